package cli_test

import (
	"bytes"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/ci/emulator"
	"etcdsnapshot.dev/ci/etcdtest"
)

// peakMemory runs a command and gives the most memory it had at a time, in MiB, as the kernel saw it (VmHWM in
// proc_pid_status(5)): what wait4 tells is at least what this process had when it made the other.
func peakMemory(t *testing.T, cmd *exec.Cmd) (mib float64) {
	t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	search.KeepOf(cmd.Args)
	defer func() { search.Said(t.Name()+", stderr", stderr.String()) }()
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for tick := time.NewTicker(time.Millisecond); ; {
		select {
		case err := <-ended:
			require.NoError(t, err, stderr.String())
			tick.Stop()
			return mib
		case <-tick.C:
			status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid)) // gone once it has ended
			_, after, _ := strings.Cut(string(status), "VmHWM:")
			var kib float64
			if _, err := fmt.Sscan(after, &kib); err == nil {
				mib = max(mib, kib/1024)
			}
		}
	}
}

// TestPeakMemory is of the program as it is shipped, on its own settings.
func TestPeakMemory(t *testing.T) {
	program := shipped(t)
	c := filled(t, etcdtest.Options{TLS: true}, 24<<20)
	for _, fill := range []int64{0, 160 << 20} {
		if fill > 0 {
			c.MustFill(t, fill)
		}
		for _, form := range []struct {
			algorithm string
			encrypted bool
			limit     float64
		}{
			{v1.CompressionNone, false, 70}, // 60 when measured; about 40 are the program itself
			{v1.CompressionZstd, false, 100},
			{v1.CompressionZstd, true, 100},
		} {
			s := newSite(t, c.Endpoints(), "node")
			s.etcd()["caFile"], s.etcd()["certFile"], s.etcd()["keyFile"] = c.Certs.CAFile, c.Certs.ClientCertFile, c.Certs.ClientKeyFile
			s.spec()["compression"] = map[string]any{"algorithm": form.algorithm}
			if form.encrypted {
				s.spec()["encryption"] = map[string]any{"age": map[string]any{"recipients": []string{"age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"}}}
			}
			cmd := exec.CommandContext(t.Context(), program, s.args(t)...)
			cmd.Env = []string{"GOMEMLIMIT=off", "PATH=" + os.Getenv("PATH")}
			mib := peakMemory(t, cmd)
			t.Logf("%d MiB more, %s, encrypted %v: %.1f MiB", fill>>20, form.algorithm, form.encrypted, mib)
			require.NotZero(t, mib)
			require.LessOrEqual(t, mib, form.limit)
		}
	}
}

// TestRequests counts what a run asks of each store.
func TestRequests(t *testing.T) {
	c := filled(t, etcdtest.Options{}, 8<<20)
	gcs, azure, s3 := emulator.StartGCS(t), emulator.StartAzurite(t, emulator.AzuriteConfig{}), emulator.StartS3(t)
	gcsBucket, err := gcs.NewBucket(t.Context(), emulator.GCSBucketOptions{})
	require.NoError(t, err)
	container, err := azure.NewContainer(t.Context())
	require.NoError(t, err)
	s3Bucket, err := s3.NewBucket(t.Context(), emulator.S3BucketOptions{})
	require.NoError(t, err)
	front := func(target string) (*emulator.FaultProxy, string) {
		u, err := url.Parse(target)
		require.NoError(t, err)
		p := emulator.StartFaultProxy(t, u.Scheme+"://"+u.Host, emulator.ProxyConfig{})
		return p, p.URL + u.Path
	}
	gcsProxy, gcsURL := front(gcs.Endpoint)
	azureProxy, azureURL := front(azure.ServiceURL)
	s3Proxy, s3URL := front(s3.Endpoint)

	s := newSite(t, c.Endpoints())
	s.add(map[string]any{"name": "gcs", "gcs": map[string]any{"bucket": gcsBucket, "endpoint": gcsURL, "auth": map[string]any{"method": "anonymous"}}})
	s.add(map[string]any{"name": "azure", "azure": map[string]any{"container": container, "serviceURL": azureURL, "account": azure.Account,
		"auth": map[string]any{"method": "sharedKey", "credentialsDir": mounted(t, map[string]string{v1.AzureFileAccountKey: azure.Key})}}})
	s.add(map[string]any{"name": "s3", "s3": map[string]any{"bucket": s3Bucket, "endpoint": s3URL, "region": s3.Region,
		"auth": map[string]any{"method": "static", "credentialsDir": mounted(t, map[string]string{v1.S3FileAccessKeyID: s3.AccessKey, v1.S3FileSecretAccessKey: s3.SecretKey})}}})
	for i := range len(s.spec()["destinations"].([]any)) {
		s.destination(i)["retention"] = map[string]any{"last": 10}
	}
	o := s.snapshot(t)
	require.Zero(t, o.code, o.stderr)
	for _, p := range []*emulator.FaultProxy{gcsProxy, azureProxy, s3Proxy} {
		p.Clear()
	}
	// A run like all but the first: whose folder is it, the snapshot, its check, the manifest, the list, unfinished uploads.
	o = s.snapshot(t)
	require.Zero(t, o.code, o.stderr)
	for name, p := range map[string]*emulator.FaultProxy{"gcs": gcsProxy, "azure": azureProxy, "s3": s3Proxy} {
		for _, r := range p.Requests(emulator.Rule{}) {
			t.Logf("%s: %s %s", name, r.Method, r.URL.RequestURI())
		}
		require.LessOrEqual(t, p.Count(emulator.Rule{}), map[string]int{"gcs": 8, "azure": 8, "s3": 9}[name], name)
	}
}
