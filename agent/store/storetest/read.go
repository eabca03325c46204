package storetest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcdsnapshot.dev/agent/store"
)

func testCancelGet(t *testing.T, e *env) {
	const key = "a/b"
	require.NoError(t, e.s.Put(e.ctx, key, Blob(20, e.LargeSize)))
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	rc, err := e.s.Get(ctx, key, 0)
	require.NoError(t, err)
	_, err = io.ReadFull(rc, make([]byte, 100))
	require.NoError(t, err)
	cancel()
	at := time.Now()
	_, err = io.Copy(io.Discard, rc)
	require.Error(t, err, "the reader ends with ctx, not with a short object")
	require.Less(t, time.Since(at), e.Prompt, "returns promptly")
	rc.Close()
}

func testNotFound(t *testing.T, e *env) {
	missing := func() {
		for _, key := range []string{"nothing", "a/nothing", "a/b/c/nothing"} {
			_, err := e.s.Get(e.ctx, key, 0)
			require.ErrorIs(t, err, store.ErrNotExist)
			_, err = e.s.Get(e.ctx, key, 7)
			require.ErrorIs(t, err, store.ErrNotExist, "with an offset")
			require.NoError(t, e.s.Delete(e.ctx, key), "deleting what is not there is no error")
			require.ErrorIs(t, e.s.Check(e.ctx, key, Text("x")), store.ErrNotExist)
			require.Empty(t, keys(t, e, key))
		}
		require.Empty(t, keys(t, e, "nothing/"))
	}
	require.Empty(t, keys(t, e, ""))
	missing()
	// Once more where the folders of the missing keys are there.
	require.NoError(t, e.s.Put(e.ctx, "a/b/c/there", Text("there")))
	missing()
	require.NoError(t, e.s.Put(e.ctx, "a/folder/there", Text("there")))
	_, err := e.s.Get(e.ctx, "a/folder", 0)
	require.ErrorIs(t, err, store.ErrNotExist, "a folder is no object")
	require.NoError(t, e.s.Delete(e.ctx, "a/folder"))
	require.ErrorIs(t, e.s.Check(e.ctx, "a/folder", Text("there")), store.ErrNotExist)
	_, err = e.s.Get(e.ctx, "a/folder/there/below", 0)
	require.ErrorIs(t, err, store.ErrNotExist, "an object is no folder")
	require.NoError(t, e.s.Delete(e.ctx, "a/folder/there/below"))
	require.Equal(t, "there", read(t, e.s, "a/folder/there", 0))
}

func testEmptyObject(t *testing.T, e *env) {
	const key = "a/empty"
	require.NoError(t, e.s.Put(e.ctx, key, Text("")))
	require.Equal(t, "", read(t, e.s, key, 0))
	require.NoError(t, e.s.Check(e.ctx, key, Text("")))
	require.ErrorIs(t, e.s.Check(e.ctx, key, Text("x")), store.ErrMismatch)
	require.ErrorIs(t, e.s.Put(e.ctx, key, Text("")), store.ErrExists)
	objs := list(t, e, "")
	require.Len(t, objs, 1)
	require.Zero(t, objs[0].Size)
}

func testRange(t *testing.T, e *env) {
	const text = "0123456789"
	require.NoError(t, e.s.Put(e.ctx, "a/small", Text(text)))
	for _, off := range []int64{0, 1, 5, 9, 10, 11, 1 << 40} {
		require.Equal(t, text[min(off, 10):], read(t, e.s, "a/small", off), "offset %d", off)
	}
	require.NoError(t, e.s.Put(e.ctx, "a/empty", Text("")))
	for _, off := range []int64{0, 1} {
		require.Equal(t, "", read(t, e.s, "a/empty", off), "empty object, offset %d", off)
	}
	_, err := e.s.Get(e.ctx, "a/small", -1)
	require.Error(t, err, "a negative offset")

	large := Blob(21, e.LargeSize/4)
	require.NoError(t, e.s.Put(e.ctx, "a/large", large))
	for _, off := range []int64{0, 1, large.Size/2 + 3, large.Size - 1} {
		rc, err := e.s.Get(e.ctx, "a/large", off)
		require.NoError(t, err)
		requireSame(t, large, off, rc)
	}
	// A reader closed half read costs nothing and leaves nothing behind (the suite looks for goroutines).
	rc, err := e.s.Get(e.ctx, "a/large", 0)
	require.NoError(t, err)
	_, err = io.ReadFull(rc, make([]byte, 10))
	require.NoError(t, err)
	require.NoError(t, rc.Close())
}

// Names are those that URL encoding, signing, XML, shells and file systems trip over. A name that ends with a dot or
// holds a backslash is not among them: Azure rewrites both.
var Names = []string{
	"sp ace/a  b", "plus+plus", "percent%41%2F%zz%", "hash#fragment", "question?mark=1&b=c", "amp&equals=", "co:lon", "semi;comma,",
	"single'double\"", "(round)[square]{curly}", "dollar$at@star*bang!", "tilde~caret^pipe|grave`", "<less>", ".leading/.dots", "..two/..dots",
	"Ünïcödé/日本語/🚀", "UPPER/lower", "-dash", "a.b..c", "long/" + strings.Repeat("n", 200),
}

func testNames(t *testing.T, e *env) {
	var want []string
	for _, key := range Names {
		if why, ok := e.UnsupportedKeys[key]; ok {
			t.Logf("key %q left out: %s", key, why)
			continue
		}
		require.NoError(t, e.s.Put(e.ctx, key, Text("content of "+key)), "key %q", key)
		want = append(want, key)
	}
	for _, key := range want {
		require.Equal(t, "content of "+key, read(t, e.s, key, 0), "key %q", key)
		require.Equal(t, "of "+key, read(t, e.s, key, 8), "key %q", key)
		require.NoError(t, e.s.Check(e.ctx, key, Text("content of "+key)), "key %q", key)
		require.ErrorIs(t, e.s.Put(e.ctx, key, Text("x")), store.ErrExists, "key %q", key)
		require.Equal(t, []string{key}, keys(t, e, key), "as a prefix")
	}
	require.ElementsMatch(t, want, keys(t, e, ""))
	for _, key := range want {
		require.NoError(t, e.s.Delete(e.ctx, key), "key %q", key)
		requireInvisible(t, e, key)
	}
	require.Empty(t, keys(t, e, ""))
}

// testInvalidKeys: what CheckKey refuses, every method refuses before it asks the server.
func testInvalidKeys(t *testing.T, e *env) {
	require.NoError(t, e.s.Put(e.ctx, "a/b", Text("ab")))
	for _, key := range []string{"", "/", "/a/b", "a/b/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a/b/..", "a\x00b"} {
		require.ErrorIs(t, e.s.Put(e.ctx, key, Text("x")), store.ErrConfig, "Put %q", key)
		_, err := e.s.Get(e.ctx, key, 0)
		require.ErrorIs(t, err, store.ErrConfig, "Get %q", key)
		require.ErrorIs(t, e.s.Delete(e.ctx, key), store.ErrConfig, "Delete %q", key)
		require.ErrorIs(t, e.s.Check(e.ctx, key, Text("x")), store.ErrConfig, "Check %q", key)
	}
	require.Equal(t, []string{"a/b"}, keys(t, e, ""))
	// A prefix is a plain string: it is never cleaned, never leaves the place, and matches nothing here.
	for _, prefix := range []string{"/", "/a", "a//", "./", "../", "a/../", "a/b/"} {
		require.Empty(t, keys(t, e, prefix), "List %q", prefix)
	}
}

func testDeepKeys(t *testing.T, e *env) {
	key := strings.Repeat("deep/", 60) + "x"
	require.NoError(t, e.s.Put(e.ctx, key, Text("deep")))
	require.Equal(t, "deep", read(t, e.s, key, 0))
	require.Equal(t, []string{key}, keys(t, e, "deep/deep/"))
	require.NoError(t, e.s.Delete(e.ctx, key))
	requireInvisible(t, e, key)
}

func testString(t *testing.T, e *env) {
	for _, s := range []store.Store{e.s, e.inner} {
		require.Regexp(t, `^[a-z0-9]+://`, s.String(), "scheme")
		require.NotRegexp(t, `/$`, s.String(), "slash at the end")
	}
	if e.dir != "" {
		require.Equal(t, e.inner.String()+"/"+strings.TrimSuffix(e.dir, "/"), e.s.String())
	}
}

// read gives the object's content from off on.
func read(t *testing.T, s store.Store, key string, off int64) string {
	t.Helper()
	rc, err := s.Get(t.Context(), key, off)
	require.NoError(t, err, "key %q", key)
	data, err := io.ReadAll(rc)
	require.NoError(t, err, "key %q", key)
	require.NoError(t, rc.Close())
	return string(data)
}

// requireSame reads rc to its end, closes it, and requires that it gives b from off on.
func requireSame(t *testing.T, b store.Blob, off int64, rc io.ReadCloser) {
	t.Helper()
	want := io.NewSectionReader(b.ReaderAt, off, b.Size-off)
	got, exp := make([]byte, 256<<10), make([]byte, 256<<10)
	var n int64
	for {
		i, err := io.ReadFull(rc, got)
		j, _ := io.ReadFull(want, exp)
		if i != j || !bytes.Equal(got[:i], exp[:j]) {
			require.FailNow(t, "content differs", "within %d bytes after offset %d: read %d, want %d", len(got), off+n, i, j)
		}
		n += int64(i)
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			break
		}
		require.NoError(t, err)
	}
	require.Equal(t, b.Size-off, n)
	require.NoError(t, rc.Close())
}

// requireInvisible requires that there is no sign of key.
func requireInvisible(t *testing.T, e *env, key string) {
	t.Helper()
	_, err := e.s.Get(e.ctx, key, 0)
	require.ErrorIs(t, err, store.ErrNotExist, "Get %q", key)
	require.ErrorIs(t, e.s.Check(e.ctx, key, Text("x")), store.ErrNotExist, "Check %q", key)
	require.NotContains(t, keys(t, e, ""), key)
}

// watcher calls f each time another every bytes were read.
type watcher struct {
	io.ReaderAt
	every int64
	f     func()
	read  atomic.Int64
}

func (w *watcher) ReadAt(p []byte, off int64) (int, error) {
	n, err := w.ReaderAt.ReadAt(p, off)
	if now := w.read.Add(int64(n)); now/w.every != (now-int64(n))/w.every {
		w.f()
	}
	return n, err
}

func list(t *testing.T, e *env, prefix string) []store.Object {
	t.Helper()
	var objs []store.Object
	for o, err := range e.s.List(e.ctx, prefix) {
		require.NoError(t, err, "List %q", prefix)
		objs = append(objs, o)
	}
	return objs
}

func keys(t *testing.T, e *env, prefix string) []string {
	t.Helper()
	ks := []string{}
	for _, o := range list(t, e, prefix) {
		ks = append(ks, o.Key)
	}
	return ks
}

func numbered(i int) string { return fmt.Sprintf("many/%05d.json", i) }
