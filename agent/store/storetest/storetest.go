// Package storetest is the conformance suite of store.Store: what every backend must do in the same way, as named
// subtests. A backend's test calls Run once; each case then runs on a fresh store, plain and behind store.Prefixed.
package storetest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"etcdsnapshot.dev/agent/store"
)

// Options says what differs between the places under test. The zero value is right for a backend without quirks.
type Options struct {
	// LargeSize is the size of the large object in bytes; 64 MiB if 0. It should span several parts of the backend.
	LargeSize int64
	// ListCount is the number of small objects that must be listed in one go; 1,100 if 0, which is more than a
	// page of any backend. A store whose page size the test can lower may set both low.
	ListCount int
	// Writers is the number of concurrent writers; 8 if 0.
	Writers int
	// Timeout bounds one case, so that a hang is a failure with the name of its case; 3 minutes if 0.
	Timeout time.Duration
	// Prompt is how soon a call must return once its ctx is cancelled; 15 seconds if 0.
	Prompt time.Duration
	// MaxHeap, if not 0, is by how many bytes the live heap may grow while the large object is stored. Leave it 0
	// where the server keeps its objects in the memory of the test's process.
	MaxHeap uint64
	// Foreign stores an object in s's place by other means than s, as some other program would. Its key is
	// relative to the store that the factory made. Nil: the case uses Put.
	Foreign func(t *testing.T, s store.Store, key string, content []byte)
	// UnsupportedKeys names keys of the case "names needing escaping" that the server under test (not the backend)
	// cannot keep, and why: they are skipped by name and the reason is logged.
	UnsupportedKeys map[string]string
	// IgnoreGoroutines are goroutines of the client library or of an in-process server that outlive a case by
	// design. Idle keep-alive connections of net/http are known already.
	IgnoreGoroutines []goleak.Option
}

// Factory gives a fresh, empty store, which the test may fill; it cleans up with t.Cleanup.
type Factory func(t *testing.T) store.Store

// Run runs the suite with the zero Options.
func Run(t *testing.T, factory Factory) {
	t.Helper()
	RunWith(t, Options{}, factory)
}

// RunWith runs the suite: every case once on the store itself and once behind store.Prefixed.
func RunWith(t *testing.T, o Options, factory Factory) {
	t.Helper()
	o.setDefaults()
	t.Run("plain", func(t *testing.T) {
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				s := factory(t)
				runCase(t, o, c, s, "", s)
			})
		}
	})
	t.Run("prefixed", func(t *testing.T) {
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				inner := factory(t)
				s, err := store.Prefixed(inner, "/some//deep prefix/")
				require.NoError(t, err)
				// Neighbours that share the prefix as a string, but not as a folder, must stay out of sight.
				for _, key := range neighbours {
					require.NoError(t, inner.Put(t.Context(), key, Text("neighbour "+key)))
				}
				runCase(t, o, c, inner, "some/deep prefix/", s)
				for _, key := range neighbours {
					require.Equal(t, "neighbour "+key, read(t, inner, key, 0), "object beside the prefix")
				}
				for obj, err := range inner.List(t.Context(), "") {
					require.NoError(t, err)
					if obj.Key != neighbours[0] && obj.Key != neighbours[1] {
						require.True(t, strings.HasPrefix(obj.Key, "some/deep prefix/"), "object outside the prefix: %q", obj.Key)
					}
				}
			})
		}
	})
}

var neighbours = []string{"some/deep prefix-not/x", "some/deep"}

func (o *Options) setDefaults() {
	if o.LargeSize == 0 {
		o.LargeSize = 64 << 20
	}
	if o.ListCount == 0 {
		o.ListCount = 1100
	}
	if o.Writers == 0 {
		o.Writers = 8
	}
	if o.Timeout == 0 {
		o.Timeout = 3 * time.Minute
	}
	if o.Prompt == 0 {
		o.Prompt = 15 * time.Second
	}
}

// testCase is one promise of the contract.
type testCase struct {
	name string
	run  func(t *testing.T, e *env)
}

// env is what a case works on.
type env struct {
	Options
	ctx context.Context
	s   store.Store
	// inner is the factory's store and dir the folder of s in it: equal to s and empty when the case runs plain.
	inner store.Store
	dir   string
}

func runCase(t *testing.T, o Options, c testCase, inner store.Store, dir string, s store.Store) {
	t.Helper()
	ignore := append([]goleak.Option{
		goleak.IgnoreCurrent(),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
		goleak.IgnoreAnyFunction("net/http.(*conn).serve"),
		goleak.IgnoreAnyFunction("net/http.(*connReader).backgroundRead"),
		goleak.IgnoreAnyFunction("net/http.(*http2ClientConn).readLoop"),
		goleak.IgnoreAnyFunction("golang.org/x/net/http2.(*clientConnReadLoop).run"),
	}, o.IgnoreGoroutines...)
	ctx, cancel := context.WithTimeoutCause(t.Context(), o.Timeout, fmt.Errorf("case %q took longer than %v", c.name, o.Timeout))
	c.run(t, &env{Options: o, ctx: ctx, s: s, inner: inner, dir: dir})
	cancel()
	if !t.Failed() && !t.Skipped() {
		require.NoError(t, goleak.Find(ignore...), "goroutines left behind")
	}
}

var cases = []testCase{
	{"put then get, list, check and delete", testLifecycle},
	{"create-only", testCreateOnly},
	{"key is free again after delete", testPutAfterDelete},
	{"invisible until complete", testInvisible},
	{"reader fails in the middle", testReaderFails},
	{"reader fails at once", testReaderFailsAtOnce},
	{"reader shorter than size", testShort},
	{"reader longer than size", testLong},
	{"wrong sha256", testWrongSHA256},
	{"check finds differences", testCheckMismatch},
	{"cancel in the middle", testCancelPut},
	{"cancelled before", testCancelledBefore},
	{"cancel while reading", testCancelGet},
	{"not found", testNotFound},
	{"empty object", testEmptyObject},
	{"large object", testLarge},
	{"ranged get", testRange},
	{"names needing escaping", testNames},
	{"invalid keys", testInvalidKeys},
	{"deep keys", testDeepKeys},
	{"list order", testListOrder},
	{"list prefix", testListPrefix},
	{"list many", testListMany},
	{"list stopped early", testListStopped},
	{"concurrent writers of one key", testWritersOneKey},
	{"concurrent writers of different keys", testWritersManyKeys},
	{"foreign objects", testForeign},
	{"location", testString},
}
