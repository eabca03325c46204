package store_test

import (
	"context"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/file"
	"etcdsnapshot.dev/agent/store/storetest"
)

// broken gives readers that break in the ways that connections do, and counts how often the object was opened.
type broken struct {
	store.Store
	// breaks is what ends the n-th reader after so many bytes; readers beyond it are whole.
	breaks []brk
	opened []int64
}

type brk struct {
	after int64
	// err ends it; nil means that no byte comes until ctx ends.
	err error
	// get makes Get itself fail.
	get bool
}

func (s *broken) Get(ctx context.Context, key string, off int64) (io.ReadCloser, error) {
	n := len(s.opened)
	s.opened = append(s.opened, off)
	if n < len(s.breaks) && s.breaks[n].get {
		return nil, s.breaks[n].err
	}
	rc, err := s.Store.Get(ctx, key, off)
	if err != nil || n >= len(s.breaks) {
		return rc, err
	}
	return &brokenReader{Reader: io.LimitReader(rc, s.breaks[n].after), rc: rc, ctx: ctx, err: s.breaks[n].err}, nil
}

type brokenReader struct {
	io.Reader
	rc  io.ReadCloser
	ctx context.Context
	err error
}

func (r *brokenReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if n > 0 || err == nil {
		return n, err
	}
	if r.err != nil {
		return 0, r.err
	}
	<-r.ctx.Done()
	return 0, r.ctx.Err()
}

func (r *brokenReader) Close() error { return r.rc.Close() }

func stored(t *testing.T, b store.Blob) store.Store {
	t.Helper()
	s, err := file.New(t.TempDir(), file.Options{})
	require.NoError(t, err)
	require.NoError(t, s.Put(t.Context(), "a/b", b))
	return s
}

func TestOpenResumable(t *testing.T) {
	b := storetest.Blob(2, 1<<20)
	whole := stored(t, b)
	for name, breaks := range map[string][]brk{
		"whole":              nil,
		"reset":              {{after: 1000, err: errReset}, {after: 0, err: errReset}, {after: 300000, err: errReset}},
		"cut short":          {{after: 1000, err: io.EOF}, {after: 5, err: io.ErrUnexpectedEOF}},
		"stalls":             {{after: 1000}, {after: 0}, {after: 7}},
		"cannot be reopened": {{get: true, err: errReset}, {after: 10, err: errReset}, {get: true, err: errReset}},
		"wrapped EOF":        {{after: 0, err: fmt.Errorf("read tcp: %w", io.EOF)}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &broken{Store: whole, breaks: breaks}
				start := time.Now()
				require.NoError(t, store.VerifyFull(t.Context(), s, "a/b", b, nil))
				require.Len(t, s.opened, len(breaks)+1)
				if name == "stalls" {
					require.Greater(t, time.Since(start), 3*store.DefaultStall)
				}
				var off int64
				for i, brk := range breaks {
					require.Equal(t, off, s.opened[i], "opened where it broke")
					off += brk.after
				}
			})
		})
	}
}

// Failures without end are borne as long as each try gives a byte.
func TestOpenResumableProgress(t *testing.T) {
	b := storetest.Blob(3, 200)
	s := &broken{Store: stored(t, b)}
	for range 199 {
		s.breaks = append(s.breaks, brk{after: 1})
	}
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		require.NoError(t, store.VerifyFull(t.Context(), s, "a/b", b, nil))
		require.Greater(t, time.Since(start), 199*store.DefaultStall)
	})
}

func TestOpenResumableGivesUp(t *testing.T) {
	b := storetest.Blob(4, 1<<20)
	for name, tc := range map[string]struct {
		brk  brk
		want error
		text string
	}{
		"reset":  {brk{err: errReset}, errReset, "gave up after"},
		"stalls": {brk{}, store.ErrStalled, "no progress for 1m0s"},
		"denied": {brk{get: true, err: store.ErrAccessDenied}, store.ErrAccessDenied, "at byte 1000 of 1048576"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &broken{Store: stored(t, b), breaks: []brk{{after: 1000, err: errReset}}}
			for range 1000 {
				s.breaks = append(s.breaks, tc.brk)
			}
			synctest.Test(t, func(t *testing.T) {
				r := store.OpenResumable(t.Context(), s, "a/b", b.Size, 0, store.RetryPolicy{})
				data, err := io.ReadAll(r)
				require.Len(t, data, 1000)
				require.ErrorIs(t, err, tc.want)
				require.ErrorContains(t, err, tc.text)
				require.ErrorContains(t, err, s.String()+"/a/b")
				_, again := r.Read(make([]byte, 1))
				require.Equal(t, err, again, "an error stays")
				require.NoError(t, r.Close())
			})
		})
	}
}

func TestOpenResumableCancelled(t *testing.T) {
	b := storetest.Blob(5, 1<<20)
	s := &broken{Store: stored(t, b), breaks: []brk{{after: 1000}}}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r := store.OpenResumable(ctx, s, "a/b", b.Size, 0, store.RetryPolicy{})
		_, err := io.Copy(io.Discard, r)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, store.ErrStalled)
		require.NoError(t, r.Close())
	})
	r := store.OpenResumable(t.Context(), s, "a/b", b.Size, 0, store.RetryPolicy{})
	require.NoError(t, r.Close())
	_, err := r.Read(make([]byte, 1))
	require.ErrorContains(t, err, "closed")
}

func TestVerifyFull(t *testing.T) {
	b := storetest.Blob(6, 1<<20)
	s := stored(t, b)
	var seen int64
	require.NoError(t, store.VerifyFull(t.Context(), s, "a/b", b, func(n int64) {
		require.Greater(t, n, seen)
		seen = n
	}))
	require.Equal(t, b.Size, seen)
	require.ErrorIs(t, store.VerifyFull(t.Context(), s, "a/none", b, nil), store.ErrNotExist)

	wrong := b
	wrong.SHA256[0] ^= 1
	err := store.VerifyFull(t.Context(), s, "a/b", wrong, nil)
	require.ErrorIs(t, err, store.ErrMismatch)
	require.ErrorContains(t, err, fmt.Sprintf("has 1048576 bytes with sha256 %x, expected 1048576 bytes with sha256 %x", b.SHA256, wrong.SHA256))

	longer := b
	longer.Size += 10
	err = store.VerifyFull(t.Context(), s, "a/b", longer, nil)
	require.ErrorIs(t, err, store.ErrMismatch)
	require.ErrorContains(t, err, "has 1048576 bytes, expected 1048586")

	shorter := b
	shorter.Size -= 10
	err = store.VerifyFull(t.Context(), s, "a/b", shorter, nil)
	require.ErrorIs(t, err, store.ErrMismatch)
	require.ErrorContains(t, err, "is longer than 1048566 bytes")

	empty := storetest.Text("")
	require.NoError(t, s.Put(t.Context(), "a/empty", empty))
	require.NoError(t, store.VerifyFull(t.Context(), s, "a/empty", empty, nil))
	require.ErrorIs(t, store.VerifyFull(t.Context(), s, "a/b", empty, nil), store.ErrMismatch)
}
