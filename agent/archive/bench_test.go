package archive

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

const benchSize = 32 << 20

// benchForms are the forms worth a number: every algorithm and level, and what encryption adds to the default.
var benchForms = []struct {
	algorithm, level string
	set              []string
}{
	{v1.CompressionNone, v1.LevelFastest, nil},
	{v1.CompressionNone, v1.LevelFastest, []string{"x25519"}},
	{v1.CompressionZstd, v1.LevelFastest, nil},
	{v1.CompressionZstd, v1.LevelFastest, []string{"x25519"}},
	{v1.CompressionZstd, v1.LevelDefault, nil},
	{v1.CompressionZstd, v1.LevelBetter, nil},
	{v1.CompressionGzip, v1.LevelFastest, nil},
	{v1.CompressionGzip, v1.LevelDefault, nil},
	{v1.CompressionGzip, v1.LevelBetter, nil},
}

// BenchmarkEncode takes pieces of 32 KiB, as etcd sends them, to the spool file.
func BenchmarkEncode(b *testing.B) {
	data := database(benchSize)
	for _, form := range benchForms {
		for _, piped := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/%s/%s/pipe=%v", form.algorithm, form.level, setName(form.set), piped), func(b *testing.B) {
				o := Options{Algorithm: form.algorithm, Level: form.level, Recipients: recipients(b, form.set...)}
				dir := b.TempDir()
				b.SetBytes(int64(len(data)))
				b.ReportAllocs()
				for b.Loop() {
					stored := toSpool(b, dir, data, o, piped)
					b.ReportMetric(float64(stored)/float64(len(data)), "stored/size")
				}
			})
		}
	}
}

func toSpool(tb testing.TB, dir string, data []byte, o Options, piped bool) int64 {
	s, err := CreateSpool(dir, someName("bench"))
	require.NoError(tb, err)
	defer s.Close()
	enc, err := NewEncoder(s, o)
	require.NoError(tb, err)
	w := enc
	if piped {
		w = NewPipe(context.Background(), enc, 0, 0)
	}
	for rest := data; len(rest) > 0; rest = rest[min(len(rest), 32<<10):] {
		_, err := w.Write(rest[:min(len(rest), 32<<10)])
		require.NoError(tb, err)
	}
	require.NoError(tb, w.Close())
	require.NoError(tb, enc.Close())
	blob, err := s.Finish()
	require.NoError(tb, err)
	return blob.Size
}

func BenchmarkDecode(b *testing.B) {
	data := database(benchSize)
	for _, form := range benchForms {
		b.Run(fmt.Sprintf("%s/%s/%s", form.algorithm, form.level, setName(form.set)), func(b *testing.B) {
			stored := encode(b, data, Options{Algorithm: form.algorithm, Level: form.level, Recipients: recipients(b, form.set...)})
			ids := identities(b, form.set...)
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				d, err := NewDecoder(bytes.NewReader(stored), ids...)
				require.NoError(b, err)
				n, err := io.Copy(io.Discard, d)
				require.NoError(b, err)
				require.EqualValues(b, len(data), n)
				require.NoError(b, d.Close())
			}
		})
	}
}

// Putting a snapshot on the disk costs buffers, not allocations for each piece: whatever the size, the same.
func TestAllocationsDoNotGrow(t *testing.T) {
	dir := t.TempDir()
	data := database(5 << 20)
	for _, form := range benchForms {
		o := Options{Algorithm: form.algorithm, Level: form.level, Recipients: recipients(t, form.set...), Concurrency: 1}
		small := testing.AllocsPerRun(1, func() { toSpool(t, dir, data[:1<<20], o, false) })
		large := testing.AllocsPerRun(1, func() { toSpool(t, dir, data, o, false) })
		t.Logf("%s/%s/%s: %.0f allocations for 1 MiB, %.0f for 5 MiB", form.algorithm, form.level, setName(form.set), small, large)
		require.Less(t, large-small, 4*8.0, "more than 8 per MiB")
	}
}
