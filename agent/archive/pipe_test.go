package archive

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPipeDeliversEverythingInOrder(t *testing.T) {
	data := database(1<<20 + 17)
	for _, shape := range [][2]int{{1, 1}, {1, 4096}, {3, 1000}, {0, 0}, {4, 64 << 10}} {
		if shape[1] == 1 {
			data = data[:5000]
		} else {
			data = database(1<<20 + 17)
		}
		var sink bytes.Buffer
		p := NewPipe(t.Context(), &sink, shape[0], shape[1])
		r := rand.New(rand.NewPCG(1, 2))
		for rest := data; len(rest) > 0; {
			n := min(len(rest), r.IntN(70_000))
			piece := bytes.Clone(rest[:n])
			k, err := p.Write(piece)
			require.NoError(t, err)
			require.Equal(t, n, k)
			clear(piece) // what was written was copied
			rest = rest[n:]
		}
		require.NoError(t, p.Close())
		require.NoError(t, p.Close())
		require.True(t, bytes.Equal(data, sink.Bytes()))
		_, err := p.Write([]byte("x"))
		require.ErrorIs(t, err, errClosed)
	}
}

func TestPipeWithoutData(t *testing.T) {
	var sink bytes.Buffer
	require.NoError(t, NewPipe(t.Context(), &sink, 0, 0).Close())
	require.Zero(t, sink.Len())
}

func TestPipeCallsTheSinkWithWholeBuffers(t *testing.T) {
	var sizes []int
	p := NewPipe(t.Context(), writerFunc(func(b []byte) (int, error) {
		sizes = append(sizes, len(b))
		return len(b), nil
	}), 2, 1000)
	for range 250 {
		_, err := p.Write(make([]byte, 10))
		require.NoError(t, err)
	}
	require.NoError(t, p.Close())
	require.Equal(t, []int{1000, 1000, 500}, sizes)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestPipeReportsTheSinksError(t *testing.T) {
	p := NewPipe(t.Context(), &failingWriter{n: 5000}, 2, 1000)
	var err error
	for range 100 { // bounded: the error has to surface once the buffers are full
		if _, err = p.Write(make([]byte, 1000)); err != nil {
			break
		}
	}
	require.ErrorIs(t, err, errDisk)
	require.ErrorIs(t, p.Close(), errDisk)

	p = NewPipe(t.Context(), &failingWriter{}, 4, 1000)
	_, err = p.Write([]byte("less than a buffer"))
	require.NoError(t, err)
	require.ErrorIs(t, p.Close(), errDisk, "Close is the last chance to tell")

	p = NewPipe(t.Context(), writerFunc(func(b []byte) (int, error) { return len(b) - 1, nil }), 4, 1000)
	_, err = p.Write(make([]byte, 10))
	require.NoError(t, err)
	require.ErrorIs(t, p.Close(), io.ErrShortWrite)
}

func TestPipeEndsWithItsContext(t *testing.T) {
	cause := errors.New("interrupted by SIGTERM")
	ctx, cancel := context.WithCancelCause(context.Background())
	release := make(chan struct{})
	p := NewPipe(ctx, writerFunc(func(b []byte) (int, error) { <-release; return len(b), nil }), 2, 100)
	time.AfterFunc(10*time.Millisecond, func() { cancel(cause) })
	// The sink hangs, so the buffers fill up and Write waits, until ctx ends it.
	_, err := p.Write(make([]byte, 1000))
	require.ErrorIs(t, err, cause)
	close(release)
	require.ErrorIs(t, p.Close(), cause)

	// A pipe whose context has ended never claims that everything arrived.
	p = NewPipe(ctx, io.Discard, 2, 100)
	require.ErrorIs(t, p.Close(), cause)
}

func TestPipeHoldsItsBuffersOnly(t *testing.T) {
	piece := make([]byte, 32<<10)
	total := allocated(func() {
		p := NewPipe(t.Context(), io.Discard, 4, 1<<20)
		for range 10_000 {
			_, err := p.Write(piece)
			require.NoError(t, err)
		}
		require.NoError(t, p.Close())
	})
	require.Less(t, total, uint64(5<<20))
}
