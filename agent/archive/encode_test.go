package archive

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

func TestRoundTrip(t *testing.T) {
	sizes := []int{0, 1, 32<<10 - 1, 32 << 10, 32<<10 + 1, 2<<20 + 7}
	for _, algorithm := range algorithms {
		for _, level := range levels {
			for _, set := range recipientSets {
				if algorithm == v1.CompressionNone && (set == nil || level != v1.LevelFastest) {
					continue // bare bytes and levels without compression: nothing to tell apart
				}
				t.Run(fmt.Sprintf("%s/%s/%s", algorithm, level, setName(set)), func(t *testing.T) {
					t.Parallel()
					for _, size := range sizes {
						if set != nil && level != v1.LevelFastest && size > 64<<10 {
							continue // what encryption adds to a level shows on small sizes
						}
						for _, concurrency := range []int{1, 0, 4} {
							if concurrency != 0 && (algorithm != v1.CompressionZstd || set != nil) {
								continue
							}
							data := database(size)
							stored := encode(t, data, Options{Algorithm: algorithm, Level: level, Recipients: recipients(t, set...), Concurrency: concurrency})
							openers := set
							if set == nil {
								openers = []string{""}
							}
							for _, opener := range openers {
								ids := identities(t, strings.Fields(opener)...)
								got, d, err := decodeAll(stored, size >= 20, ids...)
								require.NoError(t, err, "size %d, opened by %q", size, opener)
								require.True(t, bytes.Equal(data, got), "size %d, opened by %q", size, opener)
								require.Equal(t, set != nil, d.Encrypted)
								require.Equal(t, algorithm, d.Compression)
							}
						}
					}
				})
			}
		}
	}
}

func TestPlainDatabase(t *testing.T) {
	data := database(1 << 20)
	stored := encode(t, data, Options{Algorithm: v1.CompressionNone})
	require.True(t, bytes.Equal(data, stored), "without compression and encryption the object is the database itself")
	got, d, err := decodeAll(stored, true)
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, got))
	require.False(t, d.Encrypted)
	require.Equal(t, v1.CompressionNone, d.Compression)
}

func TestDefaultsAreThePolicys(t *testing.T) {
	data := database(100 << 10)
	require.Equal(t, encode(t, data, Options{Algorithm: v1.CompressionZstd, Level: v1.LevelFastest}), encode(t, data, Options{}))
}

// The field's own tools open what we write: without this project a snapshot is still restorable.
func TestToolsOpenOurs(t *testing.T) {
	zstdTool, gzipTool, ageTool := tool(t, "zstd"), tool(t, "gzip"), ageTool(t)
	for _, algorithm := range algorithms {
		for _, level := range levels {
			for _, set := range recipientSets {
				t.Run(fmt.Sprintf("%s/%s/%s", algorithm, level, setName(set)), func(t *testing.T) {
					for _, size := range []int{0, 1, 32 << 10, 300<<10 + 1} {
						data := database(size)
						got := encode(t, data, Options{Algorithm: algorithm, Level: level, Recipients: recipients(t, set...)})
						if set != nil {
							key := writeFile(t, "key", keyPairs()[set[len(set)-1]].identity)
							got = run(t, got, ageTool, "-d", "-i", key)
						}
						switch algorithm {
						case v1.CompressionZstd:
							got = run(t, got, zstdTool, "-d", "-c", "-q")
						case v1.CompressionGzip:
							got = run(t, got, gzipTool, "-d", "-c")
						}
						require.True(t, bytes.Equal(data, got), "size %d", size)
					}
				})
			}
		}
	}
}

// A database that is larger than every window and holds the work of several goroutines is one frame to the zstd tool.
func TestZstdToolOpensManyJobs(t *testing.T) {
	zstdTool := tool(t, "zstd")
	data := database(9<<20 + 5)
	for _, concurrency := range []int{1, 2, 8} {
		got := run(t, encode(t, data, Options{Concurrency: concurrency}), zstdTool, "-d", "-c", "-q")
		require.True(t, bytes.Equal(data, got), "concurrency %d", concurrency)
	}
}

func TestEncoderRefuses(t *testing.T) {
	for _, o := range []Options{
		{Algorithm: "lz4"},
		{Algorithm: v1.CompressionZstd, Level: "best"},
		{Algorithm: v1.CompressionGzip, Level: "9"},
	} {
		_, err := NewEncoder(io.Discard, o)
		require.ErrorContains(t, err, "unknown compression")
	}
	mixed := append(recipients(t, "pq"), recipients(t, "x25519")...)
	_, err := NewEncoder(io.Discard, Options{Recipients: mixed})
	require.ErrorContains(t, err, "recipients[1]: post-quantum")
}

// failingWriter takes n bytes and then fails.
type failingWriter struct{ n int }

var errDisk = errors.New("the disk is gone")

func (w *failingWriter) Write(p []byte) (int, error) {
	if len(p) > w.n {
		n := w.n
		w.n = 0
		return n, errDisk
	}
	w.n -= len(p)
	return len(p), nil
}

func TestEncoderReportsTheSinksError(t *testing.T) {
	data := database(5 << 20)
	for _, algorithm := range algorithms {
		for _, set := range [][]string{nil, {"x25519"}} {
			for _, concurrency := range []int{1, 2} {
				stored := len(encode(t, data, Options{Algorithm: algorithm, Recipients: recipients(t, set...), Concurrency: concurrency}))
				for _, room := range []int{400, stored / 2, stored - 1} {
					t.Run(fmt.Sprintf("%s/%s/%d/%d", algorithm, setName(set), concurrency, room), func(t *testing.T) {
						w, err := NewEncoder(&failingWriter{n: room}, Options{Algorithm: algorithm, Recipients: recipients(t, set...), Concurrency: concurrency})
						require.NoError(t, err)
						_, werr := w.Write(data)
						cerr := w.Close()
						require.ErrorIs(t, cerr, errDisk)
						if werr != nil {
							require.ErrorIs(t, werr, errDisk)
						}
						_, err = w.Write(data)
						require.Error(t, err, "writing goes on after Close")
						require.ErrorIs(t, w.Close(), errDisk)
					})
				}
			}
		}
	}
	_, err := NewEncoder(&failingWriter{n: 10}, Options{Recipients: recipients(t, "x25519")})
	require.ErrorIs(t, err, errDisk)
}

func TestSuffix(t *testing.T) {
	require.Equal(t, ".db.zst.age", Suffix(v1.CompressionZstd, true))
	require.Equal(t, ".db.zst", Suffix(v1.CompressionZstd, false))
	require.Equal(t, ".db.gz", Suffix(v1.CompressionGzip, false))
	require.Equal(t, ".db.gz.age", Suffix(v1.CompressionGzip, true))
	require.Equal(t, ".db", Suffix(v1.CompressionNone, false))
	require.Equal(t, ".db.age", Suffix(v1.CompressionNone, true))
}

// live is how many bytes are held, after collection.
func live() uint64 {
	var m runtime.MemStats
	runtime.GC() // once for what is unreachable, once more for what pools still keep
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// allocated runs f and returns how many bytes it allocated in all, which bounds what it ever held.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// What the encoder holds stays below its bound however much goes through.
func TestEncoderMemoryIsBounded(t *testing.T) {
	piece := database(1 << 20)
	for _, algorithm := range algorithms {
		for _, level := range levels {
			if algorithm == v1.CompressionNone && level != v1.LevelFastest {
				continue
			}
			o := Options{Algorithm: algorithm, Level: level, Recipients: recipients(t, "x25519"), Concurrency: 2}
			before := live()
			var held uint64
			w, err := NewEncoder(io.Discard, o)
			require.NoError(t, err)
			for i := range 24 {
				_, err := w.Write(piece)
				require.NoError(t, err)
				if i%4 == 3 {
					now := live()
					held = max(held, now-min(before, now))
				}
			}
			require.NoError(t, w.Close())
			t.Logf("%s %s: %.1f MiB", algorithm, level, float64(held)/(1<<20))
			require.Less(t, held, uint64(30<<20), "%s %s", algorithm, level)
		}
	}
}
