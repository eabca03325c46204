package s3_test

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/require"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/s3"
	"etcdsnapshot.dev/agent/store/storetest"
	"etcdsnapshot.dev/ci/emulator"
)

// minPartSize is the smallest part that S3 takes, but for the last.
const minPartSize = 5 << 20

// quick fails within seconds where a run would try for minutes.
var quick = store.RetryPolicy{Base: 10 * time.Millisecond, Max: 50 * time.Millisecond, GiveUp: time.Second}

var quiet = slog.New(slog.DiscardHandler)

// secretDir gives a folder as a mounted Secret looks like.
func secretDir(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	return dir
}

func staticAuth(t *testing.T, accessKey, secretKey string) v1.S3Auth {
	return v1.S3Auth{Method: v1.S3AuthStatic, CredentialsDir: secretDir(t, map[string]string{
		v1.S3FileAccessKeyID: accessKey + "\n", v1.S3FileSecretAccessKey: secretKey + "\n",
	})}
}

// newSpec is the shortest destination in a fresh bucket of srv, reached at endpoint.
func newSpec(t *testing.T, srv *emulator.S3, endpoint string, o emulator.S3BucketOptions) *v1.S3Destination {
	t.Helper()
	name, err := srv.NewBucket(t.Context(), o)
	require.NoError(t, err)
	return &v1.S3Destination{Bucket: name, Endpoint: endpoint, Auth: staticAuth(t, srv.AccessKey, srv.SecretKey)}
}

func open(t *testing.T, spec *v1.S3Destination, o s3.Options) *s3.Bucket {
	t.Helper()
	if o.Logger == nil {
		o.Logger = quiet
	}
	if o.Retry.GiveUp == 0 {
		o.Retry = quick
	}
	if o.PartSize == 0 {
		o.PartSize = minPartSize
	}
	b, err := s3.New(t.Context(), spec, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// admin looks behind the back of the code under test.
func admin(t *testing.T, srv *emulator.S3) *minio.Client {
	t.Helper()
	c, closeIdle, err := srv.Client()
	require.NoError(t, err)
	t.Cleanup(closeIdle)
	return c
}

// noLeftovers requires that nothing is in the bucket, unfinished uploads included.
func noLeftovers(t *testing.T, srv *emulator.S3, bucket string) {
	t.Helper()
	c := admin(t, srv)
	for o := range c.ListObjects(t.Context(), bucket, minio.ListObjectsOptions{Recursive: true}) {
		require.NoError(t, o.Err)
		t.Errorf("object left behind: %s", o.Key)
	}
	for u := range c.ListIncompleteUploads(t.Context(), bucket, "", true) {
		require.NoError(t, u.Err)
		t.Errorf("unfinished upload left behind: %s", u.Key)
	}
}

func keys(t *testing.T, s store.Store) []string {
	t.Helper()
	var ks []string
	for o, err := range s.List(t.Context(), "") {
		require.NoError(t, err)
		ks = append(ks, o.Key)
	}
	return ks
}

func content(t *testing.T, s store.Store, key string) string {
	t.Helper()
	rc, err := s.Get(t.Context(), key, 0)
	require.NoError(t, err)
	defer rc.Close()
	data, err := io.ReadAll(rc)
	require.NoError(t, err)
	return string(data)
}

func TestConformance(t *testing.T) {
	srv := emulator.StartS3(t)
	full := storetest.Options{MaxHeap: 16 << 20, Foreign: func(t *testing.T, s store.Store, key string, content []byte) {
		bucket := strings.TrimPrefix(s.String(), "s3://")
		_, err := admin(t, srv).PutObject(context.Background(), bucket, key, strings.NewReader(string(content)), int64(len(content)), minio.PutObjectOptions{})
		require.NoError(t, err)
	}}
	// Still several parts, and one page: how checksums are sent has no part in the rest.
	smaller := full
	smaller.LargeSize, smaller.ListCount = 24<<20, 100
	for checksums, o := range map[string]storetest.Options{v1.S3ChecksumsNever: full, v1.S3ChecksumsAlways: smaller} {
		t.Run("checksums "+checksums, func(t *testing.T) {
			storetest.RunWith(t, o, func(t *testing.T) store.Store {
				spec := newSpec(t, srv, srv.Endpoint, emulator.S3BucketOptions{})
				spec.Checksums = checksums
				return open(t, spec, s3.Options{})
			})
		})
	}
}
