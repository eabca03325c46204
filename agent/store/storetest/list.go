package storetest

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"etcdsnapshot.dev/agent/store"
)

// ordered are keys in lexical order of their bytes, which is not the order in which a walk of folders meets them:
// '-' and '.' come before '/', digits and letters after it.
var ordered = []string{
	"B", "a-b", "a.b", "a.b-c/x", "a/-", "a/b", "a/c-d", "a/c.d", "a/c/d/e", "a/c/d0", "a/c0", "a/d", "a0", "aB", "ab/c", "ab0", "b",
}

func testListOrder(t *testing.T, e *env) {
	require.True(t, slices.IsSorted(ordered))
	// Stored in another order than listed.
	for i := range ordered {
		key := ordered[(i*7)%len(ordered)]
		require.NoError(t, e.s.Put(e.ctx, key, Text(key)))
	}
	require.Equal(t, ordered, keys(t, e, ""))
	seq := e.s.List(e.ctx, "a/c")
	for range 2 {
		var got []string
		for o, err := range seq {
			require.NoError(t, err)
			require.Equal(t, int64(len(o.Key)), o.Size)
			got = append(got, o.Key)
		}
		require.Equal(t, []string{"a/c-d", "a/c.d", "a/c/d/e", "a/c/d0", "a/c0"}, got, "a sequence can be ranged over again")
	}
}

func testListPrefix(t *testing.T, e *env) {
	for _, key := range ordered {
		require.NoError(t, e.s.Put(e.ctx, key, Text(key)))
	}
	for _, prefix := range []string{
		"a", "a/", "a/c", "a/c/", "a/c/d", "a/c/d/", "a/c/d/e", "a.", "a.b", "a.b-", "a.b-c/", "ab", "ab/", "B", "b", "A",
		"a/b", "a/b/", "a/x", "a/x/", "zzz", "zzz/", "-",
	} {
		want := []string{}
		for _, key := range ordered {
			if strings.HasPrefix(key, prefix) {
				want = append(want, key)
			}
		}
		require.Equal(t, want, keys(t, e, prefix), "prefix %q", prefix)
	}
}

// fill stores the numbered objects, several at a time, since it takes a round trip for each.
func fill(t *testing.T, e *env) {
	t.Helper()
	var wg sync.WaitGroup
	errs := make([]error, e.Writers)
	for w := range e.Writers {
		wg.Go(func() {
			for i := w; i < e.ListCount && errs[w] == nil; i += e.Writers {
				errs[w] = e.s.Put(e.ctx, numbered(i), Text(numbered(i)))
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
}

func testListMany(t *testing.T, e *env) {
	fill(t, e)
	want := make([]string, e.ListCount)
	for i := range want {
		want[i] = numbered(i)
	}
	require.Equal(t, want, keys(t, e, "many/"))
	require.Equal(t, want, keys(t, e, ""))
	require.Equal(t, want[:min(10, len(want))], keys(t, e, "many/0000"))
	require.Empty(t, keys(t, e, "many/x"))

	// A consumer that stops in the middle, after more than one page, is not called again.
	n := 0
	for _, err := range e.s.List(e.ctx, "") {
		require.NoError(t, err)
		if n++; n == e.ListCount-1 {
			break
		}
	}
	require.Equal(t, e.ListCount-1, n)
}

func testListStopped(t *testing.T, e *env) {
	for _, key := range ordered {
		require.NoError(t, e.s.Put(e.ctx, key, Text(key)))
	}
	for stop := 1; stop <= len(ordered); stop++ {
		var got []string
		for o, err := range e.s.List(e.ctx, "") {
			require.NoError(t, err)
			if got = append(got, o.Key); len(got) == stop {
				break
			}
		}
		require.Equal(t, ordered[:stop], got)
	}
	// Objects may be deleted while they are listed, as pruning does.
	n := 0
	for o, err := range e.s.List(e.ctx, "") {
		require.NoError(t, err)
		require.NoError(t, e.s.Delete(e.ctx, o.Key))
		n++
	}
	require.Equal(t, len(ordered), n)
	require.Empty(t, keys(t, e, ""))
}

// CheckList asks s for the first object below prefix: the cheapest request that tells a wrong place, certificate, clock or
// identity apart.
func CheckList(ctx context.Context, s store.Store, prefix string) error {
	for _, err := range s.List(ctx, prefix) {
		return err
	}
	return nil
}
