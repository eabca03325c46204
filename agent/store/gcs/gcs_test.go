package gcs

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/storetest"
	"etcdsnapshot.dev/ci/emulator"
)

// quick are options for faults: they are waited for as long as it takes to see them.
func quick() Options {
	return Options{
		Logger:       slog.New(slog.DiscardHandler),
		StallTimeout: 500 * time.Millisecond, ChunkSize: 1 << 20,
		Retry: store.RetryPolicy{Base: time.Millisecond, Max: 20 * time.Millisecond, GiveUp: 2 * time.Second},
	}
}

// newSpec is the shortest destination in a fresh bucket of srv, reached at endpoint.
func newSpec(t *testing.T, srv *emulator.GCS, endpoint string, o emulator.GCSBucketOptions) *v1.GCSDestination {
	t.Helper()
	name, err := srv.NewBucket(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, srv.DropBucket(context.Background(), name)) })
	return &v1.GCSDestination{Bucket: name, Endpoint: endpoint, Auth: v1.GCSAuth{Method: v1.GCSAuthAnonymous}}
}

func open(t *testing.T, spec *v1.GCSDestination, o Options) *Bucket {
	t.Helper()
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	b, err := New(t.Context(), spec, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

func keys(t *testing.T, s store.Store) []string {
	t.Helper()
	ks := []string{}
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

// TestConformance: on the server itself, where a large object is one request, and through what does all of resumable
// uploads, where it is many.
func TestConformance(t *testing.T) {
	srv := emulator.StartGCS(t)
	uploads := emulator.StartGCSUploads(t, srv)
	for name, c := range map[string]struct {
		endpoint string
		o        Options
		suite    storetest.Options
	}{
		"one request":   {srv.Endpoint, Options{}, storetest.Options{LargeSize: 32 << 20, MaxHeap: 4 << 20}},
		"many requests": {uploads.URL, Options{ChunkSize: 512 << 10}, storetest.Options{LargeSize: 8 << 20, ListCount: 40}},
	} {
		t.Run(name, func(t *testing.T) {
			suite := c.suite
			suite.Foreign = func(t *testing.T, s store.Store, key string, content []byte) {
				bucket, folder, _ := strings.Cut(strings.TrimPrefix(s.String(), "gs://"), "/")
				if folder != "" {
					key = folder + "/" + key
				}
				require.NoError(t, srv.PutObject(t.Context(), bucket, key, content))
			}
			storetest.RunWith(t, suite, func(t *testing.T) store.Store {
				return open(t, newSpec(t, srv, c.endpoint, emulator.GCSBucketOptions{}), c.o)
			})
		})
	}
}
