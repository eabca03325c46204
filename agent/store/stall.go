package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

// ErrStalled is what errors.Is finds in every StalledError.
var ErrStalled = errors.New("no progress")

// StalledError is the cause of a ctx that WithStall ended.
type StalledError struct {
	// After is how long there was no sign of life.
	After time.Duration
	// Bytes is how many bytes had been moved before.
	Bytes int64
}

func (e *StalledError) Error() string {
	return fmt.Sprintf("no progress for %v, after %d bytes", e.After, e.Bytes)
}

// Is makes a StalledError an ErrStalled.
func (e *StalledError) Is(target error) bool { return target == ErrStalled }

type stallKey struct{}

// WithStall gives a ctx that ends, with a *StalledError as its cause, once touch was not called for d. So a transfer
// is bounded by lack of progress and not by its length. touch takes the bytes moved; 0 is a sign of life as well. It
// is safe for concurrent use, touches the parent's WithStall too, and is what Touch(ctx, n) calls. stop releases the
// timer and must be called. A d of 0 or less never ends ctx.
func WithStall(parent context.Context, d time.Duration) (ctx context.Context, touch func(n int64), stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	var bytes atomic.Int64
	start := time.Now()
	// Since start, on the monotonic clock.
	var last atomic.Int64
	touch = func(n int64) {
		bytes.Add(n)
		last.Store(int64(time.Since(start)))
		Touch(parent, n)
	}
	ctx = context.WithValue(ctx, stallKey{}, touch)
	if d <= 0 {
		return ctx, touch, func() { cancel(nil) }
	}
	// A touch costs a store; the timer looks at when the last one was and sleeps for what is left of d.
	var timer atomic.Pointer[time.Timer]
	ready := make(chan struct{})
	timer.Store(time.AfterFunc(d, func() {
		<-ready
		if ctx.Err() != nil {
			return
		}
		if left := d - (time.Since(start) - time.Duration(last.Load())); left > 0 {
			timer.Load().Reset(left)
			return
		}
		cancel(&StalledError{After: d, Bytes: bytes.Load()})
	}))
	close(ready)
	return ctx, touch, func() {
		// A timer that is just being reset fires once more, and then finds that ctx has ended.
		timer.Load().Stop()
		cancel(nil)
	}
}

// Touch tells the innermost WithStall around ctx, and those around that, that n bytes were moved. Without one it does
// nothing. Backends call it with 0 where work goes on while nothing is read from the Blob: each time the server
// answers.
func Touch(ctx context.Context, n int64) {
	if touch, ok := ctx.Value(stallKey{}).(func(int64)); ok {
		touch(n)
	}
}

// PutWithStall is s.Put that fails with an error that wraps ErrStalled once nothing was read from b for stall
// (DefaultStall if 0) and the backend did not Touch its ctx either. progress, if not nil, is told the bytes read so
// far, which a retried part makes more than b.Size; it may be called from several goroutines at once.
func PutWithStall(ctx context.Context, s Store, key string, b Blob, stall time.Duration, progress func(int64)) error {
	if stall == 0 {
		stall = DefaultStall
	}
	ctx, _, stop := WithStall(ctx, stall)
	defer stop()
	b = TouchReads(ctx, b)
	if progress != nil {
		b.ReaderAt = &countingReaderAt{ReaderAt: b.ReaderAt, progress: progress}
	}
	err := s.Put(ctx, key, b)
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, ErrStalled) && !errors.Is(err, ErrStalled) {
		return fmt.Errorf("store %s/%s: %w: %w", s, key, cause, err)
	}
	return err
}

type countingReaderAt struct {
	io.ReaderAt
	n        atomic.Int64
	progress func(int64)
}

func (r *countingReaderAt) ReadAt(p []byte, off int64) (int, error) {
	n, err := r.ReaderAt.ReadAt(p, off)
	r.progress(r.n.Add(int64(n)))
	return n, err
}

// TouchReads gives a blob whose every read touches ctx: with it, sending b counts as progress.
func TouchReads(ctx context.Context, b Blob) Blob {
	b.ReaderAt = touchingReaderAt{ctx, b.ReaderAt}
	return b
}

type touchingReaderAt struct {
	ctx context.Context
	io.ReaderAt
}

func (r touchingReaderAt) ReadAt(p []byte, off int64) (int, error) {
	n, err := r.ReaderAt.ReadAt(p, off)
	Touch(r.ctx, int64(n))
	return n, err
}
