package gcs

import (
	"errors"
	"hash/crc32"
	"io"
	"net/http"
	"testing"

	"cloud.google.com/go/storage"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/option"

	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/storetest"
	"etcdsnapshot.dev/ci/emulator"
)

// TestOfficialClient: Google's own client library reads what this package wrote, byte for byte and with the same
// checksum; each refuses to replace what the other one wrote; and this package reads what the library wrote.
func TestOfficialClient(t *testing.T) {
	srv := emulator.StartGCS(t)
	spec := newSpec(t, srv, srv.Endpoint, emulator.GCSBucketOptions{})
	ours := open(t, spec, Options{})
	client, err := storage.NewClient(t.Context(), option.WithEndpoint(srv.Endpoint+"/storage/v1/"), option.WithoutAuthentication(), storage.WithJSONReads())
	require.NoError(t, err)
	defer client.Close()
	bucket := client.Bucket(spec.Bucket)

	blob := storetest.Blob(1, 3<<20)
	content, err := io.ReadAll(io.NewSectionReader(blob.ReaderAt, 0, blob.Size))
	require.NoError(t, err)
	require.NoError(t, ours.Put(t.Context(), "prod/ours", blob))
	attrs, err := bucket.Object("prod/ours").Attrs(t.Context())
	require.NoError(t, err)
	require.Equal(t, blob.Size, attrs.Size)
	require.Equal(t, crc32.Checksum(content, crc32.MakeTable(crc32.Castagnoli)), attrs.CRC32C)
	r, err := bucket.Object("prod/ours").NewReader(t.Context())
	require.NoError(t, err)
	read, err := io.ReadAll(r)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	require.Equal(t, content, read)

	write := func(key string) error {
		w := bucket.Object(key).If(storage.Conditions{DoesNotExist: true}).NewWriter(t.Context())
		if _, err := w.Write(content); err != nil {
			return errors.Join(err, w.Close())
		}
		return w.Close()
	}
	var refused *googleapi.Error
	require.ErrorAs(t, write("prod/ours"), &refused)
	require.Equal(t, http.StatusPreconditionFailed, refused.Code)
	require.NoError(t, write("prod/theirs"))
	require.ErrorIs(t, ours.Put(t.Context(), "prod/theirs", blob), store.ErrExists)
	require.NoError(t, ours.Check(t.Context(), "prod/theirs", blob))
}
