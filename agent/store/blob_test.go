package store_test

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/storetest"
)

func TestCheckPut(t *testing.T) {
	ctx := t.Context()
	good := storetest.Text("content")
	require.NoError(t, store.CheckPut(ctx, "a/b", good))
	require.NoError(t, store.CheckPut(ctx, "a/b", storetest.Text("")))
	require.ErrorIs(t, store.CheckPut(ctx, "a//b", good), store.ErrConfig)
	for _, size := range []int64{0, 1, 6, 8, 1 << 40} {
		b := good
		b.Size = size
		require.ErrorIs(t, store.CheckPut(ctx, "a/b", b), store.ErrMismatch, "size %d", size)
	}
	b := good
	b.Size = -1
	require.ErrorIs(t, store.CheckPut(ctx, "a/b", b), store.ErrConfig)
	require.ErrorIs(t, store.CheckPut(ctx, "a/b", store.Blob{}), store.ErrConfig)
}

func TestBlobSum(t *testing.T) {
	b := storetest.Blob(7, 100_001)
	sum, err := b.Sum(t.Context())
	require.NoError(t, err)
	require.Equal(t, b.SHA256, sum)
	short := b
	short.Size++
	_, err = short.Sum(t.Context())
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = b.Sum(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

func TestCheckKeyAndPrefix(t *testing.T) {
	for _, key := range append([]string{"a", "a/b", "...", ".a", "a..", "ä/日本"}, storetest.Names...) {
		require.NoError(t, store.CheckKey(key), "%q", key)
	}
	for _, key := range []string{"", "/", "a/", "/a", "a//b", ".", "..", "a/../b", "a/.", "a\x00"} {
		require.ErrorIs(t, store.CheckKey(key), store.ErrConfig, "%q", key)
	}
	for in, want := range map[string]string{"": "", "/": "", "a": "a", "a/": "a", "/a//b": "a/b", "//a/b//": "a/b"} {
		require.Equal(t, want, store.CleanPrefix(in), "%q", in)
	}
	s := stored(t, storetest.Text("x"))
	same, err := store.Prefixed(s, "//")
	require.NoError(t, err)
	require.Equal(t, s, same)
	_, err = store.Prefixed(s, "a/../b")
	require.ErrorIs(t, err, store.ErrConfig)
	// Keys are checked by the store below: no key leads out of the prefix.
	p, err := store.Prefixed(s, "/a//")
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(p.String(), "/a"))
	_, err = p.Get(t.Context(), "../a/b", 0)
	require.ErrorIs(t, err, store.ErrConfig)
}
