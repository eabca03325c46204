package cli_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/ci/emulator"
	"etcdsnapshot.dev/ci/etcdtest"
)

// mounted writes a folder as a mounted Secret looks like.
func mounted(t *testing.T, values map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, v := range values {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(v), 0o600))
	}
	return dir
}

func (s *site) add(destination map[string]any) {
	s.spec()["destinations"] = append(s.spec()["destinations"].([]any), destination)
}

// TestThreeClouds is one run into a folder and the three clouds side by side, then list, prune and a run that one of them
// refuses.
func TestThreeClouds(t *testing.T) {
	c := filled(t, etcdtest.Options{}, 8<<20)
	gcs, azure, s3 := emulator.StartGCS(t), emulator.StartAzurite(t, emulator.AzuriteConfig{}), emulator.StartS3(t)
	gcsBucket, err := gcs.NewBucket(t.Context(), emulator.GCSBucketOptions{})
	require.NoError(t, err)
	container, err := azure.NewContainer(t.Context())
	require.NoError(t, err)
	s3Bucket, err := s3.NewBucket(t.Context(), emulator.S3BucketOptions{})
	require.NoError(t, err)
	proxy := emulator.StartFaultProxy(t, s3.Endpoint, emulator.ProxyConfig{})

	s := newSite(t, c.Endpoints(), "node")
	s.add(map[string]any{"name": "gcs", "gcs": map[string]any{"bucket": gcsBucket, "prefix": "/a//b/", "endpoint": gcs.Endpoint, "auth": map[string]any{"method": "anonymous"}}})
	s.add(map[string]any{"name": "azure", "azure": map[string]any{"container": container, "serviceURL": azure.ServiceURL, "account": azure.Account,
		"auth": map[string]any{"method": "sharedKey", "credentialsDir": mounted(t, map[string]string{v1.AzureFileAccountKey: azure.Key})}}})
	s.add(map[string]any{"name": "s3", "s3": map[string]any{"bucket": s3Bucket, "prefix": "etcd", "endpoint": proxy.URL, "region": s3.Region,
		"auth": map[string]any{"method": "static", "credentialsDir": mounted(t, map[string]string{v1.S3FileAccessKeyID: s3.AccessKey, v1.S3FileSecretAccessKey: s3.SecretKey})}}})
	s.spec()["verification"] = map[string]any{"afterStore": "full"}

	for range 2 {
		o := s.snapshot(t)
		require.Zero(t, o.code, o.stderr)
		requireContains(t, o.stdout, "gs://"+gcsBucket+"/a/b/prod/etcd-", "s3://"+s3Bucket+"/etcd/prod/etcd-", azure.ServiceURL+"/"+container+"/prod/etcd-", "file://")
		nextSecond(t)
	}
	local := s.listed(t, "node")
	require.Len(t, local, 2)
	for _, name := range []string{"gcs", "azure", "s3"} {
		require.Equal(t, local, s.listed(t, name))
	}
	o := agent(t, "list", "-f", s.file(t))
	require.Zero(t, o.code)
	requireContains(t, o.stdout, "node,gcs,azure,s3")
	o = agent(t, "list", "-f", s.file(t), "-o", "json")
	require.Zero(t, o.code)
	var listed struct {
		Snapshots []struct {
			Copies   []struct{ Size int64 }
			Manifest *v1.Manifest
		}
	}
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &listed))
	for _, row := range listed.Snapshots {
		require.Len(t, row.Copies, 4)
		for _, copied := range row.Copies {
			require.Equal(t, row.Manifest.Object.Size, copied.Size)
		}
		data, err := os.ReadFile(filepath.Join(s.stores["node"], "prod", row.Manifest.Object.Key))
		require.NoError(t, err)
		require.Equal(t, row.Manifest.Object.SHA256, fmt.Sprintf("%x", sha256.Sum256(data)))
	}

	for i := range 4 {
		s.destination(i)["retention"] = map[string]any{"last": 1}
	}
	o = agent(t, "prune", "-f", s.file(t))
	require.Zero(t, o.code, o.stderr)
	requireContains(t, o.stdout, "removed 4")
	for _, name := range []string{"node", "gcs", "azure", "s3"} {
		require.Equal(t, local[:1], s.listed(t, name))
	}

	t.Run("one refuses", func(t *testing.T) {
		proxy.Add(emulator.Rule{Method: http.MethodPut, Path: ".db", Status: http.StatusForbidden})
		o := s.snapshot(t)
		require.Equal(t, 3, o.code)
		requireContains(t, lastLine(o.stderr), "s3: put s3://"+s3Bucket, "access denied", "s3:PutObject")
		require.NotContains(t, o.stderr+o.stdout, s3.SecretKey)
		require.Len(t, s.listed(t, "gcs"), 1, "pruned where it was stored")
		proxy.Clear()
		require.Equal(t, local[:1], s.listed(t, "s3"), "not pruned where it was not")
		require.NotEqual(t, local[:1], s.listed(t, "gcs"))
	})
	t.Run("wrong credentials are told before etcd is asked", func(t *testing.T) {
		only := newSite(t, []string{"http://127.0.0.1:1"})
		only.spec()["destinations"] = []any{s.destination(2)}
		azure := only.destination(0)["azure"].(map[string]any)
		azure["auth"] = map[string]any{"method": "sharedKey", "credentialsDir": filepath.Join(s.dir, "nowhere")}
		o := only.snapshot(t)
		require.Equal(t, 2, o.code)
		requireContains(t, lastLine(o.stderr), "azure", "account-key", "no such file")
	})
}
