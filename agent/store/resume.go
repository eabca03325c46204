package store

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"time"
)

// DefaultStall is how long a transfer may show no sign of life.
const DefaultStall = time.Minute

// OpenResumable gives a reader of the object of size bytes under key that survives broken connections: it opens the
// object again where it stopped, as p says, counting anew after every byte. A try that gives no byte for stall
// (DefaultStall if 0) counts as broken. The object is opened on the first Read. It must have exactly size bytes:
// ErrMismatch otherwise. Reads touch ctx (see WithStall).
func OpenResumable(ctx context.Context, s Store, key string, size int64, stall time.Duration, p RetryPolicy) io.ReadCloser {
	if stall == 0 {
		stall = DefaultStall
	}
	return &resumable{ctx: ctx, s: s, key: key, size: size, stall: stall, policy: p}
}

type resumable struct {
	ctx    context.Context
	s      Store
	key    string
	size   int64
	stall  time.Duration
	policy RetryPolicy

	off int64
	err error
	// The open try, if rc is not nil.
	rc    io.ReadCloser
	tryer context.Context
	touch func(int64)
	stop  func()
	// fresh says that rc was opened at off, so that an end here is the object's and not the connection's.
	fresh bool
}

func (r *resumable) Read(p []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	if len(p) == 0 {
		return 0, nil
	}
	// At the end one more byte is asked for, which must not come.
	p = p[:max(min(int64(len(p)), r.size-r.off), 1)]
	n, end := 0, false
	err := Retry(r.ctx, r.policy, func(context.Context) (err error) {
		n, end, err = r.try(p)
		return err
	})
	switch {
	case err != nil:
		r.err = fmt.Errorf("read %s/%s at byte %d of %d: %w", r.s, r.key, r.off, r.size, err)
	case n > 0 && r.off == r.size:
		n, r.err = 0, fmt.Errorf("%w: %s/%s is longer than %d bytes", ErrMismatch, r.s, r.key, r.size)
	case end && r.off < r.size:
		r.err = fmt.Errorf("%w: %s/%s has %d bytes, expected %d", ErrMismatch, r.s, r.key, r.off, r.size)
	case end:
		r.err = io.EOF
	}
	r.off += int64(n)
	if r.err != nil {
		r.close()
	}
	return n, r.err
}

// try reads once. No byte and end say that the object ends here.
func (r *resumable) try(p []byte) (n int, end bool, err error) {
	if r.rc == nil {
		if err := r.open(); err != nil {
			return 0, false, err
		}
	}
	for n == 0 && err == nil {
		n, err = r.rc.Read(p)
	}
	fresh := r.fresh
	r.fresh = false
	if n > 0 {
		r.touch(int64(n))
	}
	if err != nil {
		// The cause of a stalled try is known to its ctx only.
		err = r.stalled(err)
		r.close()
	}
	switch {
	case n > 0:
		// An error that came along comes again with the next try, or does not.
		return n, false, nil
	case err != io.EOF: //nolint:errorlint // the exact one: see below
		// Also one that wraps io.EOF: that is a connection's end.
		return 0, false, err
	case fresh || r.off == r.size:
		return 0, true, nil
	default:
		return 0, false, io.ErrUnexpectedEOF
	}
}

func (r *resumable) open() error {
	r.tryer, r.touch, r.stop = WithStall(r.ctx, r.stall)
	rc, err := r.s.Get(r.tryer, r.key, r.off)
	if err != nil {
		err = r.stalled(err)
		r.stop()
		return err
	}
	r.rc, r.fresh = rc, true
	return nil
}

// stalled says that a try failed because it stalled, if so.
func (r *resumable) stalled(err error) error {
	if cause := context.Cause(r.tryer); errors.Is(cause, ErrStalled) && r.ctx.Err() == nil {
		return cause
	}
	return err
}

func (r *resumable) close() {
	if r.rc != nil {
		// The bytes that were read are good whatever Close says.
		_ = r.rc.Close()
		r.stop()
		r.rc = nil
	}
}

func (r *resumable) Close() error {
	r.close()
	if r.err == nil {
		r.err = errors.New("reader of " + r.key + " is closed")
	}
	return nil
}

// VerifyFull reads every byte of the object back and compares it with b's size and SHA-256; b's content is not
// needed. progress, if not nil, is told the bytes read so far. ErrMismatch, ErrNotExist.
func VerifyFull(ctx context.Context, s Store, key string, b Blob, progress func(int64)) error {
	r := OpenResumable(ctx, s, key, b.Size, 0, RetryPolicy{})
	defer r.Close()
	h := sha256.New()
	buf := make([]byte, 256<<10)
	var done int64
	for {
		n, err := r.Read(buf)
		h.Write(buf[:n])
		done += int64(n)
		if progress != nil && n > 0 {
			progress(done)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	if sum := [32]byte(h.Sum(nil)); sum != b.SHA256 {
		return fmt.Errorf("%w: %s/%s has %d bytes with sha256 %x, expected %d bytes with sha256 %x", ErrMismatch, s, key, done, sum, b.Size, b.SHA256)
	}
	return nil
}
