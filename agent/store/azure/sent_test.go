package azure

import (
	"bytes"
	"crypto/md5"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/storetest"
	"etcdsnapshot.dev/ci/emulator"
)

// TestSent looks at what is asked of the service, and at what becomes of it where Azurite knows it.
func TestSent(t *testing.T) {
	az := emulator.StartAzurite(t, emulator.AzuriteConfig{})
	proxy := emulator.StartFaultProxy(t, az.Endpoint, emulator.ProxyConfig{})
	spec := newContainer(t, az)
	c := client(t, az, spec)
	withSAS(t, az, spec, "racwdl") // with which no signature covers the headers
	spec.ServiceURL = proxy.URL + "/" + az.Account
	// Azurite refuses encryption scopes.
	const scope = "X-Ms-Encryption-Scope"
	drop := emulator.Rule{Request: emulator.Fault{Rewrite: func(h http.Header) { h.Del(scope) }}}

	for name, blob := range map[string]store.Blob{"empty": storetest.Text(""), "small": storetest.Text("small"), "large": storetest.Blob(1, 600<<10)} {
		t.Run(name, func(t *testing.T) {
			proxy.Clear()
			proxy.Add(drop)
			s := *spec
			s.AccessTier, s.EncryptionScope, s.Metadata = "Cool", "scope1", map[string]string{"policy": "etcd", "empty": ""}
			b := open(t, &s, quick())
			blob.ContentType = "application/zstd"
			require.NoError(t, b.Put(t.Context(), "set/"+name, blob))
			content, err := io.ReadAll(io.NewSectionReader(blob, 0, blob.Size))
			require.NoError(t, err)
			whole := md5.Sum(content)
			sum := base64.StdEncoding.EncodeToString(whole[:])

			puts := proxy.Requests(emulator.Rule{Method: http.MethodPut})
			require.NotEmpty(t, puts)
			for _, r := range puts {
				require.Equal(t, "scope1", r.Header.Get(scope))
				require.NotContains(t, r.Header, "X-Ms-Meta-Empty")
			}
			blocks := proxy.Requests(stageBlock)
			require.Len(t, blocks, int((blob.Size+256<<10-1)/(256<<10)))
			for _, r := range blocks {
				require.NotEmpty(t, r.Header.Get("Content-Md5"))
				require.NotContains(t, r.Header, "X-Ms-Access-Tier")
			}
			commit := puts[len(puts)-1]
			require.Equal(t, "*", commit.Header.Get("If-None-Match"))
			require.Equal(t, "Cool", commit.Header.Get("X-Ms-Access-Tier"))
			require.Equal(t, "etcd", commit.Header.Get("X-Ms-Meta-Policy"))
			require.Equal(t, "application/zstd", commit.Header.Get("X-Ms-Blob-Content-Type"))

			props, err := c.NewBlobClient("set/"+name).GetProperties(t.Context(), nil)
			require.NoError(t, err)
			require.Equal(t, "Cool", *props.AccessTier)
			require.Equal(t, "application/zstd", *props.ContentType)
			require.Equal(t, sum, base64.StdEncoding.EncodeToString(props.ContentMD5))
			require.Len(t, props.Metadata, 1)

			// Nothing is asked for that is not wanted.
			proxy.Clear()
			s.AccessTier, s.EncryptionScope, s.Metadata = "", "", map[string]string{"empty": ""}
			b = open(t, &s, quick())
			blob.ContentType = ""
			require.NoError(t, b.Put(t.Context(), "unset/"+name, blob))
			for _, r := range proxy.Requests(emulator.Rule{Method: http.MethodPut}) {
				for _, h := range []string{scope, "X-Ms-Access-Tier", "X-Ms-Meta-Empty"} {
					require.NotContains(t, r.Header, h)
				}
			}
			props, err = c.NewBlobClient("unset/"+name).GetProperties(t.Context(), nil)
			require.NoError(t, err)
			require.Equal(t, "application/octet-stream", *props.ContentType)
			require.Empty(t, props.Metadata)
		})
	}

	t.Run("encryption scope refused", func(t *testing.T) {
		proxy.Clear()
		proxy.Add(with(stageBlock, func(r *emulator.Rule) {
			refuse(r, http.StatusConflict, "EncryptionScopeNotFound", "The specified encryption scope does not exist.")
		}))
		s := *spec
		s.EncryptionScope = "scope1"
		err := open(t, &s, quick()).Put(t.Context(), "a", storetest.Text("x"))
		require.ErrorIs(t, err, store.ErrConfig)
		require.ErrorContains(t, err, "check encryptionScope")
	})
	t.Run("check asks once", func(t *testing.T) {
		proxy.Clear()
		b := open(t, spec, quick())
		blob := storetest.Text("x")
		require.NoError(t, b.Put(t.Context(), "b", blob))
		blob.ReaderAt = unreadable{}
		require.NoError(t, b.Check(t.Context(), "b", blob), "Put has read it already")
		require.Equal(t, 1, proxy.Count(head))
	})
}

type unreadable struct{}

func (unreadable) ReadAt([]byte, int64) (int, error) { return 0, errors.New("unreadable") }

// TestBlockSize: the largest database that etcd knows, and the largest blob that there can be, fit the service's limit
// of 50,000 blocks.
func TestBlockSize(t *testing.T) {
	b := open(t, &v1.AzureDestination{
		Account: "account", Container: "container",
		Auth: v1.AzureAuth{Method: v1.AzureAuthSharedKey, CredentialsDir: secrets(t, map[string]string{"account-key": "AAAA"})},
	}, Options{})
	for size, want := range map[int64]struct{ blockSize, blocks int64 }{
		0:         {8 << 20, 0},
		1:         {8 << 20, 1},
		8 << 20:   {8 << 20, 1},
		8<<20 + 1: {8 << 20, 2},
		8 << 30:   {8 << 20, 1024},
		1 << 40:   {24433592, 45000},
	} {
		u := b.newUpload("key", store.Blob{ReaderAt: bytes.NewReader(nil), Size: size})
		require.Equal(t, want.blockSize, u.blockSize, "size %d", size)
		require.Len(t, u.ids, int(want.blocks), "size %d", size)
		ids := map[string]bool{}
		for _, id := range u.ids {
			require.Len(t, id, 16)
			ids[id] = true
		}
		require.Len(t, ids, len(u.ids))
	}
	require.Equal(t, "https://account.blob.core.windows.net/container", b.String())
}

// TestUnwritableKeys: what the service would rewrite is refused.
func TestUnwritableKeys(t *testing.T) {
	b := open(t, &v1.AzureDestination{
		Account: "account", Container: "container",
		Auth: v1.AzureAuth{Method: v1.AzureAuthSharedKey, CredentialsDir: secrets(t, map[string]string{"account-key": "AAAA"})},
	}, quick())
	for _, key := range []string{`a\b`, "a.", "a./b", "a\x01b", "a\xff", string(bytes.Repeat([]byte("a/"), 512)) + "b"} {
		require.ErrorIs(t, b.Put(t.Context(), key, storetest.Text("x")), store.ErrConfig, "%q", key)
		_, err := b.Get(t.Context(), key, 0)
		require.ErrorIs(t, err, store.ErrConfig, "%q", key)
		require.ErrorIs(t, b.Delete(t.Context(), key), store.ErrConfig, "%q", key)
		require.ErrorIs(t, b.Check(t.Context(), key, storetest.Text("x")), store.ErrConfig, "%q", key)
	}
}

// TestReadsOnce: the spool file is read once, whatever has to be sent again.
func TestReadsOnce(t *testing.T) {
	az := emulator.StartAzurite(t, emulator.AzuriteConfig{})
	proxy, b, _ := behind(t, az, emulator.ProxyConfig{}, quick())
	proxy.Add(with(stageBlock, func(r *emulator.Rule) { r.Times = 3; refuse(r, 503, "ServerBusy", "Busy.") }))
	blob := storetest.Blob(1, 2<<20)
	var last int64
	progress := make(chan int64, 1024)
	require.NoError(t, store.PutWithStall(t.Context(), b, "a/b", blob, time.Minute, func(n int64) { progress <- n }))
	close(progress)
	for n := range progress {
		last = max(last, n)
	}
	require.Equal(t, blob.Size+1, last, "and one byte to see that it ends there")
	requireWhole(t, b, "a/b", blob)
}

// TestSpoolVanishes: what is wrong with the spool file is said as it is.
func TestSpoolVanishes(t *testing.T) {
	az := emulator.StartAzurite(t, emulator.AzuriteConfig{})
	b := open(t, newContainer(t, az), quick())
	f, err := os.CreateTemp(t.TempDir(), "spool")
	require.NoError(t, err)
	blob := storetest.Blob(1, 2<<20)
	_, err = io.Copy(f, io.NewSectionReader(blob, 0, blob.Size))
	require.NoError(t, err)
	blob.ReaderAt = f
	require.NoError(t, f.Truncate(1<<20+1))
	require.ErrorIs(t, b.Put(t.Context(), "a/b", blob), store.ErrMismatch)
	require.NoError(t, f.Close())
	require.ErrorIs(t, b.Put(t.Context(), "a/b", blob), os.ErrClosed)
	require.Empty(t, keys(t, b))
}
