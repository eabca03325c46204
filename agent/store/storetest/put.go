package storetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcdsnapshot.dev/agent/store"
)

func testLifecycle(t *testing.T, e *env) {
	const key = "cluster/etcd-20260102t030405z-abcde.db.zst"
	b := Text("a snapshot")
	b.ContentType = "application/zstd"
	before := time.Now()
	require.NoError(t, e.s.Put(e.ctx, key, b))
	require.Equal(t, "a snapshot", read(t, e.s, key, 0))
	require.NoError(t, e.s.Check(e.ctx, key, b))

	objs := list(t, e, "")
	require.Len(t, objs, 1)
	require.Equal(t, key, objs[0].Key)
	require.Equal(t, b.Size, objs[0].Size)
	// The store's clock is not ours; an hour apart is not a clock but a wrong unit or zone.
	require.WithinDuration(t, before, objs[0].ModTime, time.Hour)

	require.NoError(t, e.s.Delete(e.ctx, key))
	requireInvisible(t, e, key)
}

func testCreateOnly(t *testing.T, e *env) {
	const key = "a/b"
	require.NoError(t, e.s.Put(e.ctx, key, Text("first")))
	require.ErrorIs(t, e.s.Put(e.ctx, key, Text("second, longer")), store.ErrExists)
	require.ErrorIs(t, e.s.Put(e.ctx, key, Text("first")), store.ErrExists, "also with the same content")
	require.ErrorIs(t, e.s.Put(e.ctx, key, Blob(1, e.LargeSize)), store.ErrExists, "also in parts")
	require.Equal(t, "first", read(t, e.s, key, 0))
	require.NoError(t, e.s.Check(e.ctx, key, Text("first")))
	require.Equal(t, []string{key}, keys(t, e, ""))
}

func testPutAfterDelete(t *testing.T, e *env) {
	const key = "a/b"
	require.NoError(t, e.s.Put(e.ctx, key, Text("first")))
	require.NoError(t, e.s.Delete(e.ctx, key))
	require.NoError(t, e.s.Put(e.ctx, key, Text("second")))
	require.Equal(t, "second", read(t, e.s, key, 0))
}

func testInvisible(t *testing.T, e *env) {
	const key = "a/b"
	b := Blob(2, e.LargeSize/4)
	// Looked at from inside a read of Put: the object is half sent then. Failures are kept for the test's
	// goroutine, since a read may run on another.
	var seen []string
	var getErr, listErr error
	r := &trigger{ReaderAt: b.ReaderAt, after: b.Size / 2, f: func() {
		for o, err := range e.s.List(e.ctx, "") {
			listErr = err
			seen = append(seen, o.Key)
		}
		var rc io.ReadCloser
		if rc, getErr = e.s.Get(e.ctx, key, 0); getErr == nil {
			rc.Close()
		}
	}}
	want := b
	b.ReaderAt = r
	require.NoError(t, e.s.Put(e.ctx, key, b))
	require.True(t, r.fired.Load())
	require.NoError(t, listErr)
	require.Empty(t, seen)
	require.ErrorIs(t, getErr, store.ErrNotExist)
	require.NoError(t, e.s.Check(e.ctx, key, want))
}

var errBadSector = errors.New("bad sector in the spool file")

func testReaderFails(t *testing.T, e *env) { readerFails(t, e, e.LargeSize/4, e.LargeSize/8+1) }

func testReaderFailsAtOnce(t *testing.T, e *env) { readerFails(t, e, 4000, 0) }

func readerFails(t *testing.T, e *env, size, at int64) {
	const key = "a/b"
	good := Blob(3, size)
	bad := good
	bad.ReaderAt = badSector{good.ReaderAt, at, errBadSector}
	err := e.s.Put(e.ctx, key, bad)
	require.ErrorContains(t, err, errBadSector.Error(), "the error says what failed")
	require.NotErrorIs(t, err, store.ErrExists)
	requireInvisible(t, e, key)

	require.NoError(t, e.s.Put(e.ctx, key, good), "the key is free for another try")
	require.NoError(t, e.s.Check(e.ctx, key, good))
}

func testShort(t *testing.T, e *env) {
	for i, size := range []int64{10, e.LargeSize / 4} {
		key := fmt.Sprint("a/", i)
		good := Blob(4, size)
		bad := good
		bad.Size++
		require.Error(t, e.s.Put(e.ctx, key, bad))
		requireInvisible(t, e, key)
	}
}

func testLong(t *testing.T, e *env) {
	for i, size := range []int64{1, 10, e.LargeSize / 4} {
		key := fmt.Sprint("a/", i)
		bad := Blob(5, size)
		bad.Size--
		require.Error(t, e.s.Put(e.ctx, key, bad))
		requireInvisible(t, e, key)
	}
}

// A store may notice the wrong sum while it stores; Check must in any case.
func testWrongSHA256(t *testing.T, e *env) {
	const key = "a/b"
	good := Text("a snapshot")
	bad := good
	bad.SHA256[31] ^= 1
	if err := e.s.Put(e.ctx, key, bad); err != nil {
		require.ErrorIs(t, err, store.ErrMismatch)
		requireInvisible(t, e, key)
		require.NoError(t, e.s.Put(e.ctx, key, good))
	}
	require.ErrorIs(t, e.s.Check(e.ctx, key, bad), store.ErrMismatch)
}

func testCheckMismatch(t *testing.T, e *env) {
	const key = "a/b"
	require.NoError(t, e.s.Put(e.ctx, key, Text("a snapshot")))
	require.NoError(t, e.s.Check(e.ctx, key, Text("a snapshot")))
	require.ErrorIs(t, e.s.Check(e.ctx, key, Text("b snapshot")), store.ErrMismatch, "other content of the same size")
	require.ErrorIs(t, e.s.Check(e.ctx, key, Text("a snapsho")), store.ErrMismatch, "shorter")
	require.ErrorIs(t, e.s.Check(e.ctx, key, Text("a snapshots")), store.ErrMismatch, "longer")
	require.ErrorIs(t, e.s.Check(e.ctx, key, Text("")), store.ErrMismatch, "empty")
	require.NoError(t, e.s.Check(e.ctx, key, Text("a snapshot")), "a failed check changes nothing")

	large := Blob(6, e.LargeSize/4)
	require.NoError(t, e.s.Put(e.ctx, "a/large", large))
	require.NoError(t, e.s.Check(e.ctx, "a/large", large))
	require.ErrorIs(t, e.s.Check(e.ctx, "a/large", Blob(7, e.LargeSize/4)), store.ErrMismatch, "in parts")
}

func testCancelPut(t *testing.T, e *env) {
	for i, size := range []int64{4000, e.LargeSize / 4} {
		key := fmt.Sprint("a/", i)
		good := Blob(8, size)
		ctx, cancel := context.WithCancel(e.ctx)
		defer cancel()
		var at time.Time
		r := &trigger{ReaderAt: good.ReaderAt, after: size / 2, f: func() { at = time.Now(); cancel() }}
		b := good
		b.ReaderAt = r
		require.ErrorIs(t, e.s.Put(ctx, key, b), context.Canceled)
		require.Less(t, time.Since(at), e.Prompt, "returns promptly")
		requireInvisible(t, e, key)

		require.NoError(t, e.s.Put(e.ctx, key, good), "the key is free for another try")
		require.NoError(t, e.s.Check(e.ctx, key, good))
	}
}

func testCancelledBefore(t *testing.T, e *env) {
	require.NoError(t, e.s.Put(e.ctx, "a/there", Text("there")))
	ctx, cancel := context.WithCancel(e.ctx)
	cancel()
	require.ErrorIs(t, e.s.Put(ctx, "a/new", Text("new")), context.Canceled)
	requireInvisible(t, e, "a/new")
	require.ErrorIs(t, e.s.Delete(ctx, "a/there"), context.Canceled)
	require.Equal(t, "there", read(t, e.s, "a/there", 0))
	require.ErrorIs(t, e.s.Check(ctx, "a/there", Text("there")), context.Canceled)
	_, err := e.s.Get(ctx, "a/there", 0)
	require.ErrorIs(t, err, context.Canceled)
	n := 0
	for _, err := range e.s.List(ctx, "") {
		require.ErrorIs(t, err, context.Canceled)
		n++
	}
	require.Equal(t, 1, n, "an error ends the sequence")
}

func testLarge(t *testing.T, e *env) {
	const key = "a/large"
	b := Blob(9, e.LargeSize)
	base := liveHeap()
	var grown uint64
	var mu sync.Mutex
	w := watcher{ReaderAt: b.ReaderAt, every: max(e.LargeSize/8, 1), f: func() {
		mu.Lock()
		defer mu.Unlock()
		if h := liveHeap(); h > base {
			grown = max(grown, h-base)
		}
	}}
	put := b
	if e.MaxHeap > 0 {
		put.ReaderAt = &w
	}
	require.NoError(t, e.s.Put(e.ctx, key, put))
	if e.MaxHeap > 0 {
		require.Positive(t, w.read.Load())
		require.LessOrEqual(t, grown, e.MaxHeap, "live heap grew while the object was stored")
	}
	require.NoError(t, e.s.Check(e.ctx, key, b))
	rc, err := e.s.Get(e.ctx, key, 0)
	require.NoError(t, err)
	requireSame(t, b, 0, rc)
	require.Equal(t, b.Size, list(t, e, "")[0].Size)
}

func liveHeap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// testWritersOneKey: the writers start at once with contents that differ; whoever wins, its content is whole.
func testWritersOneKey(t *testing.T, e *env) {
	for _, size := range []int64{100, e.LargeSize / 8} {
		key := fmt.Sprint("a/", size)
		blobs := make([]store.Blob, e.Writers)
		for i := range blobs {
			blobs[i] = Blob(uint64(100+i), size+int64(i))
		}
		errs := race(e.Writers, func(i int) error { return e.s.Put(e.ctx, key, blobs[i]) })
		winner := -1
		for i, err := range errs {
			if err == nil {
				require.Equal(t, -1, winner, "two writers won")
				winner = i
				continue
			}
			require.ErrorIs(t, err, store.ErrExists)
		}
		require.NotEqual(t, -1, winner, "nobody won")
		require.NoError(t, e.s.Check(e.ctx, key, blobs[winner]))
		rc, err := e.s.Get(e.ctx, key, 0)
		require.NoError(t, err)
		requireSame(t, blobs[winner], 0, rc)
		require.Equal(t, []string{key}, keys(t, e, key))
	}
}

func testWritersManyKeys(t *testing.T, e *env) {
	key := func(i int) string { return fmt.Sprintf("a/deep/%d/%d", i/2, i%2) }
	errs := race(e.Writers, func(i int) error { return e.s.Put(e.ctx, key(i), Blob(uint64(i), 1000+int64(i))) })
	for i, err := range errs {
		require.NoError(t, err)
		require.NoError(t, e.s.Check(e.ctx, key(i), Blob(uint64(i), 1000+int64(i))))
	}
	require.Len(t, keys(t, e, ""), e.Writers)
}

func race(n int, f func(i int) error) []error {
	errs := make([]error, n)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			errs[i] = f(i)
		})
	}
	close(start)
	wg.Wait()
	return errs
}

// testForeign: whatever else lies in the place is listed, so that its owner can be told by name, and is left alone.
func testForeign(t *testing.T, e *env) {
	foreign := map[string]string{"a/README.txt": "not ours", "zz-other tool/state": "neither", "top": "at the top"}
	put := e.Foreign
	if put == nil {
		put = func(t *testing.T, s store.Store, key string, content []byte) {
			require.NoError(t, s.Put(e.ctx, key, Text(string(content))))
		}
	}
	for key, content := range foreign {
		put(t, e.inner, e.dir+key, []byte(content))
	}
	const own = "a/own"
	require.NoError(t, e.s.Put(e.ctx, own, Text("own")))
	require.Equal(t, []string{"a/README.txt", own, "top", "zz-other tool/state"}, keys(t, e, ""))
	for key := range foreign {
		require.ErrorIs(t, e.s.Put(e.ctx, key, Text("mine")), store.ErrExists)
	}
	bad := Text("own, too")
	bad.ReaderAt = badSector{bad.ReaderAt, 3, errBadSector}
	require.Error(t, e.s.Put(e.ctx, "a/failing", bad))
	require.NoError(t, e.s.Delete(e.ctx, own))
	require.Equal(t, []string{"a/README.txt", "top", "zz-other tool/state"}, keys(t, e, ""))
	for key, content := range foreign {
		require.Equal(t, content, read(t, e.s, key, 0))
	}
}
