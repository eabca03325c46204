package gcs

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/storetest"
	"etcdsnapshot.dev/ci/emulator"
)

// helperEnv names a job for the test's own binary, run again: what must be killed, and what reads its environment once.
const helperEnv = "GCS_TEST_HELPER"

func TestMain(m *testing.M) {
	if job := os.Getenv(helperEnv); job != "" {
		if err := help(job, os.Getenv("HELPER_ENDPOINT"), os.Getenv("HELPER_BUCKET"), os.Getenv("HELPER_CA")); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func help(job, endpoint, bucket, ca string) error {
	ctx := context.Background()
	spec := &v1.GCSDestination{Bucket: bucket, Endpoint: endpoint, Auth: v1.GCSAuth{Method: v1.GCSAuthAnonymous}}
	spec.CABundleFile = ca
	if job == "default" {
		spec.Auth.Method = v1.GCSAuthDefault
	}
	o := quick()
	o.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	b, err := New(ctx, spec, o)
	if err != nil {
		return err
	}
	defer b.Close()
	content := storetest.Text("from the helper")
	if job == "hang" {
		content = storetest.Blob(1, 3*mib)
		good := content.ReaderAt
		sent := 0
		content.ReaderAt = readerAt(func(p []byte, off int64) (int, error) {
			// The first time all is read for its checksum.
			if sent += len(p); sent > 5*mib {
				fmt.Println("in the middle")
				select {}
			}
			return good.ReadAt(p, off)
		})
	}
	return b.Put(ctx, "a/b", content)
}

// helper is a run of this binary that does a job.
func helper(t *testing.T, job string, spec *v1.GCSDestination, env ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), exe)
	for _, kv := range os.Environ() {
		switch name, _, _ := strings.Cut(kv, "="); strings.ToUpper(name) {
		case "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "GOOGLE_APPLICATION_CREDENTIALS", "GCE_METADATA_HOST", "HOME":
		default:
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, helperEnv+"="+job, "HELPER_ENDPOINT="+spec.Endpoint, "HELPER_BUCKET="+spec.Bucket, "HELPER_CA="+spec.CABundleFile, "HOME="+t.TempDir())
	cmd.Env = append(cmd.Env, env...)
	return cmd
}

// log is what a server was asked for, or what was logged.
type log struct {
	mu    sync.Mutex
	lines []string
}

func (l *log) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
}

func (l *log) Write(p []byte) (int, error) {
	l.add(string(p))
	return len(p), nil
}

func (l *log) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines
}

// TestKilled: of an upload whose process was killed nothing shows, and the next one succeeds.
func TestKilled(t *testing.T) {
	r := newRig(t, emulator.StartGCS(t), emulator.ProxyConfig{}, quick())
	cmd := helper(t, "hang", r.spec)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "in the middle\n", line)
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())

	require.Positive(t, r.uploads.Received())
	require.Empty(t, keys(t, r))
	_, err = r.Get(t.Context(), "a/b", 0)
	require.ErrorIs(t, err, store.ErrNotExist)
	require.NoError(t, r.Put(t.Context(), "a/b", storetest.Text("content")))
	require.Equal(t, "content", content(t, r, "a/b"))
}

// TestProxyVariables: what goes to another machine goes by way of the proxy that the environment names.
func TestProxyVariables(t *testing.T) {
	srv := emulator.StartGCS(t)
	target, err := url.Parse(srv.Endpoint)
	require.NoError(t, err)
	var asked log
	proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		asked.add(r.In.URL.Host)
		r.SetURL(target)
		r.Out.Host = target.Host
	}})
	defer proxy.Close()
	spec := newSpec(t, srv, "http://gcs.invalid", emulator.GCSBucketOptions{})
	out, err := helper(t, "put", spec, "HTTP_PROXY="+proxy.URL).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, []string{"gcs.invalid", "gcs.invalid"}, asked.all())
	objects, err := srv.Objects(t.Context(), spec.Bucket, "")
	require.NoError(t, err)
	require.Len(t, objects, 1)
}

// TestAuthMetadataServer: without any file the node's metadata server, or GKE's for the pod, says who we are.
func TestAuthMetadataServer(t *testing.T) {
	p := newPrivate(t)
	var mu sync.Mutex // of what is answered
	status, body := http.StatusOK, `{"access_token":"token-of-node","expires_in":3600,"token_type":"Bearer"}`
	var asked log
	meta := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.add(r.URL.Path + " " + r.Header.Get("Metadata-Flavor"))
		mu.Lock()
		defer mu.Unlock()
		w.Header().Set("Metadata-Flavor", "Google")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	defer meta.Close()
	run := func() (string, error) {
		out, err := helper(t, "default", p.spec, "GCE_METADATA_HOST="+strings.TrimPrefix(meta.URL, "http://")).CombinedOutput()
		return string(out), err
	}
	out, err := run()
	require.NoError(t, err, out)
	require.Equal(t, []string{"/computeMetadata/v1/instance/service-accounts/default/token Google"}, asked.all())
	requests := p.proxy.Requests(emulator.Rule{})
	require.Len(t, requests, 2)
	for _, r := range requests {
		require.Equal(t, "Bearer token-of-node", r.Header.Get("Authorization"))
	}

	for _, c := range []struct {
		status int
		body   string
		says   string
	}{
		{404, "not found", "the metadata server knows no service account for us"},
		{403, "Unable to generate access token; IAM returned 403 Forbidden", "access denied: 403: Unable to generate access token; IAM returned 403 Forbidden (the metadata server gives no token"},
		{200, "{}", "incomplete token"},
	} {
		mu.Lock()
		status, body = c.status, c.body
		mu.Unlock()
		out, err := run()
		require.Error(t, err)
		require.Contains(t, out, c.says)
		require.Contains(t, out, "auth: method default: get a token for gs://")
	}
}

// TestAuthNothing: no file, and no cloud around us.
func TestAuthNothing(t *testing.T) {
	p := newPrivate(t)
	out, err := helper(t, "default", p.spec).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "no Application Default Credentials")
	require.Contains(t, string(out), "GOOGLE_APPLICATION_CREDENTIALS")
	require.Zero(t, p.proxy.Count(emulator.Rule{}))
}
