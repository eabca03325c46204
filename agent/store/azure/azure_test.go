package azure

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/sas"
	"github.com/stretchr/testify/require"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/storetest"
	"etcdsnapshot.dev/ci/emulator"
)

// secrets writes a folder as a mounted Secret looks like.
func secrets(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	return dir
}

// newContainer makes a container and tells how to use it with the account's key.
func newContainer(t *testing.T, az *emulator.Azurite) *v1.AzureDestination {
	t.Helper()
	name, err := az.NewContainer(t.Context())
	require.NoError(t, err)
	return &v1.AzureDestination{
		Container: name, ServiceURL: az.ServiceURL,
		Auth: v1.AzureAuth{Method: v1.AzureAuthSharedKey, CredentialsDir: secrets(t, map[string]string{v1.AzureFileAccountKey: az.Key + "\n"})},
	}
}

// quick are options for faults: small blocks, and little patience with what fails, but not with what is slow.
func quick() Options {
	return Options{
		Logger: slog.New(slog.DiscardHandler), BlockSize: 256 << 10,
		Retry: store.RetryPolicy{Base: time.Millisecond, Max: 20 * time.Millisecond, GiveUp: 2 * time.Second},
	}
}

func open(t *testing.T, spec *v1.AzureDestination, o Options) *Bucket {
	t.Helper()
	b, err := New(t.Context(), spec, o)
	require.NoError(t, err)
	t.Cleanup(func() { b.Close() })
	return b
}

// client looks at the container behind the back of the store.
func client(t *testing.T, az *emulator.Azurite, spec *v1.AzureDestination) *container.Client {
	t.Helper()
	c, closeIdle, err := az.Client(spec.Container)
	require.NoError(t, err)
	t.Cleanup(closeIdle)
	return c
}

func TestStore(t *testing.T) {
	az := emulator.StartAzurite(t, emulator.AzuriteConfig{})
	var c *container.Client
	factory := func(t *testing.T) store.Store {
		spec := newContainer(t, az)
		c = client(t, az, spec)
		b := open(t, spec, Options{})
		page := int32(50)
		b.pageSize = &page
		return b
	}
	storetest.RunWith(t, storetest.Options{
		LargeSize: 4*defaultBlockSize + 12345,
		ListCount: 220,
		// Blocks in memory, and what the SDK and the transport need.
		MaxHeap: (defaultParallelism + 1) * defaultBlockSize,
		Foreign: func(t *testing.T, s store.Store, key string, content []byte) {
			folder := strings.TrimPrefix(strings.TrimPrefix(s.String(), c.URL()), "/")
			if folder != "" {
				key = folder + "/" + key
			}
			_, err := c.NewBlockBlobClient(key).UploadBuffer(t.Context(), content, nil)
			require.NoError(t, err)
		},
	}, factory)
}

// withSAS makes spec use a SAS with the given permissions, for the next hour.
func withSAS(t *testing.T, az *emulator.Azurite, spec *v1.AzureDestination, permissions string) {
	t.Helper()
	token := newSAS(t, az, spec.Container, permissions, time.Now().Add(time.Hour))
	spec.Auth = v1.AzureAuth{Method: v1.AzureAuthSAS, CredentialsDir: secrets(t, map[string]string{v1.AzureFileSASToken: "?" + token + "\n"})}
}

func newSAS(t *testing.T, az *emulator.Azurite, name, permissions string, expiry time.Time) string {
	t.Helper()
	key, err := container.NewSharedKeyCredential(az.Account, az.Key)
	require.NoError(t, err)
	q, err := sas.BlobSignatureValues{
		Protocol: sas.ProtocolHTTPSandHTTP, StartTime: expiry.Add(-2 * time.Hour), ExpiryTime: expiry, ContainerName: name, Permissions: permissions,
	}.SignWithSharedKey(key)
	require.NoError(t, err)
	return q.Encode()
}
