package cli_test

import (
	"crypto/rand"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/ci/emulator"
)

// TestTenThousand: what a bucket of 10,000 snapshots costs to list and to plan is list pages, and nothing per snapshot.
func TestTenThousand(t *testing.T) {
	const snapshots = 10_000
	s3 := emulator.StartS3(t)
	bucket, err := s3.NewBucket(t.Context(), emulator.S3BucketOptions{})
	require.NoError(t, err)
	folder := filepath.Join(s3.Folder(bucket), "prod")
	require.NoError(t, os.Mkdir(folder, 0o755))
	start := time.Now().Add(-snapshots * time.Hour)
	for i := range snapshots {
		name, err := archive.NewName("etcd", start.Add(time.Duration(i)*time.Hour), rand.Reader)
		require.NoError(t, err)
		for _, key := range []string{name + ".db.zst", archive.ManifestKey(name)} {
			require.NoError(t, os.WriteFile(filepath.Join(folder, key), []byte("x"), 0o644))
		}
	}

	proxy := emulator.StartFaultProxy(t, s3.Endpoint, emulator.ProxyConfig{})
	s := newSite(t, []string{"http://127.0.0.1:1"})
	s.add(map[string]any{"name": "s3", "s3": map[string]any{"bucket": bucket, "endpoint": proxy.URL, "region": s3.Region,
		"auth": map[string]any{"method": "static", "credentialsDir": mounted(t, map[string]string{v1.S3FileAccessKeyID: s3.AccessKey, v1.S3FileSecretAccessKey: s3.SecretKey})}},
		"retention": map[string]any{"last": 24, "daily": 14, "weekly": 8, "monthly": 12}})
	for verb, args := range map[string][]string{
		"list":  {"list", "-f", s.file(t), "-o", "name"},
		"prune": {"prune", "-f", s.file(t), "--dry-run", "-o", "json"},
	} {
		before := proxy.Count(emulator.Rule{})
		o := quietly(t, args...)
		require.Zero(t, o.code, o.stderr)
		if verb == "list" {
			require.Equal(t, snapshots, strings.Count(o.stdout, "\n"))
		} else {
			require.Equal(t, snapshots, strings.Count(o.stdout, `"action":`))
			require.Greater(t, strings.Count(o.stdout, `"remove"`), snapshots-100)
		}
		pages := (2*snapshots + 999) / 1000
		require.LessOrEqual(t, proxy.Count(emulator.Rule{})-before, pages+3, "%s: list pages, and who owns the folder", verb)
	}
	require.Zero(t, proxy.Count(emulator.Rule{Method: http.MethodDelete}))
}
