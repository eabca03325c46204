package store_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/file"
	"etcdsnapshot.dev/agent/store/storetest"
)

func TestWithStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, touch, stop := store.WithStall(t.Context(), time.Minute)
		defer stop()
		start := time.Now()
		for range 100 {
			time.Sleep(59 * time.Second)
			touch(10)
			require.NoError(t, ctx.Err())
		}
		last := time.Since(start)
		<-ctx.Done()
		require.Equal(t, last+time.Minute, time.Since(start), "a minute after the last sign of life")
		require.ErrorIs(t, ctx.Err(), context.Canceled)
		require.Equal(t, &store.StalledError{After: time.Minute, Bytes: 1000}, context.Cause(ctx))
		require.ErrorIs(t, store.CtxErr(ctx), store.ErrStalled)
		require.ErrorIs(t, store.CtxErr(ctx), context.Canceled)
		require.EqualError(t, store.CtxErr(ctx), "context canceled: no progress for 1m0s, after 1000 bytes")
	})
}

func TestWithStallNested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outer, _, stopOuter := store.WithStall(t.Context(), time.Minute)
		defer stopOuter()
		inner, _, stopInner := store.WithStall(outer, time.Hour)
		defer stopInner()
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 50 {
					time.Sleep(30 * time.Second)
					store.Touch(inner, 1)
				}
			})
		}
		wg.Wait()
		require.NoError(t, outer.Err(), "touching the inner one touches the outer one")
		<-inner.Done()
		require.Equal(t, &store.StalledError{After: time.Minute, Bytes: 200}, context.Cause(inner))
		store.Touch(t.Context(), 1)
	})
}

func TestWithStallStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, touch, stop := store.WithStall(t.Context(), time.Minute)
		touch(1)
		stop()
		require.ErrorIs(t, ctx.Err(), context.Canceled)
		time.Sleep(time.Hour)
		require.NotErrorIs(t, context.Cause(ctx), store.ErrStalled)

		ctx, _, stop = store.WithStall(t.Context(), 0)
		time.Sleep(100 * time.Hour)
		require.NoError(t, ctx.Err(), "0 is no limit")
		stop()
		require.ErrorIs(t, ctx.Err(), context.Canceled)
	})
}

func TestCtxErr(t *testing.T) {
	require.NoError(t, store.CtxErr(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Equal(t, context.Canceled, store.CtxErr(ctx), "no cause, nothing added")
}

// slow sends at a rate and, from a byte on, not at all.
type slow struct {
	store.Store
	perSecond, stallAt int64
}

func (s slow) Put(ctx context.Context, key string, b store.Blob) error {
	buf := make([]byte, s.perSecond)
	for off := int64(0); off < b.Size; off += s.perSecond {
		if s.stallAt > 0 && off >= s.stallAt {
			<-ctx.Done()
			return errors.New("http2: request canceled")
		}
		if _, err := b.ReadAt(buf[:min(s.perSecond, b.Size-off)], off); err != nil {
			return err
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return store.CtxErr(ctx)
		}
	}
	return nil
}

func TestPutWithStall(t *testing.T) {
	s, err := file.New(t.TempDir(), file.Options{})
	require.NoError(t, err)
	b := storetest.Blob(1, 1<<20)
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var seen int64
		require.NoError(t, store.PutWithStall(t.Context(), slow{s, 1024, 0}, "a/b", b, 5*time.Second, func(n int64) {
			require.Greater(t, n, seen)
			seen = n
		}))
		require.Equal(t, 1024*time.Second, time.Since(start), "1 KiB/s is slow, but no stall")
		require.Equal(t, b.Size, seen)

		start = time.Now()
		err = store.PutWithStall(t.Context(), slow{s, 1024, 10 << 10}, "a/b", b, 5*time.Second, nil)
		require.ErrorIs(t, err, store.ErrStalled)
		require.ErrorContains(t, err, "no progress for 5s, after 10240 bytes")
		require.ErrorContains(t, err, s.String()+"/a/b")
		require.Less(t, time.Since(start), 20*time.Second)
	})
}
