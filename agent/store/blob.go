package store

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
)

// CheckPut is what every backend asks before Put sends anything: ctx is alive, key can name an object, and b holds
// exactly b.Size bytes (told by reading its last byte and the one after it). ErrConfig, ErrMismatch.
func CheckPut(ctx context.Context, key string, b Blob) error {
	if err := CtxErr(ctx); err != nil {
		return err
	}
	if err := CheckKey(key); err != nil {
		return err
	}
	if b.ReaderAt == nil || b.Size < 0 {
		return fmt.Errorf("%w: no content, or a size of %d bytes, for %q", ErrConfig, b.Size, key)
	}
	// The second byte, if there is one, is too many.
	var buf [2]byte
	at := max(b.Size-1, 0)
	want := int(b.Size - at)
	n, err := b.ReadAt(buf[:], at)
	switch {
	case n > want:
		return fmt.Errorf("%w: content of %q is longer than its size of %d bytes", ErrMismatch, key, b.Size)
	case err != nil && !errors.Is(err, io.EOF):
		return fmt.Errorf("read content of %q: %w", key, err)
	case n < want:
		return fmt.Errorf("%w: content of %q is shorter than its size of %d bytes", ErrMismatch, key, b.Size)
	}
	return nil
}

// Sum reads b whole and gives its SHA-256. It fails when b is shorter than b.Size, and when ctx ends.
func (b Blob) Sum(ctx context.Context) (sum [32]byte, err error) {
	h := sha256.New()
	n, err := io.Copy(h, &ctxReader{ctx: ctx, r: io.NewSectionReader(b.ReaderAt, 0, b.Size)})
	if err == nil && n < b.Size {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return sum, fmt.Errorf("read content at offset %d: %w", n, err)
	}
	h.Sum(sum[:0])
	return sum, nil
}

// ctxReader fails once ctx ends.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *ctxReader) Read(p []byte) (int, error) {
	if err := CtxErr(c.ctx); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// CtxErr is ctx.Err() together with context.Cause(ctx), so that errors.Is finds context.Canceled and people read why:
// "context canceled: no progress for 1m0s". Nil while ctx is alive.
func CtxErr(ctx context.Context) error {
	err := ctx.Err()
	if cause := context.Cause(ctx); err != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}
