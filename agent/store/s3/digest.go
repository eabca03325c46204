package s3

import (
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"hash"
	"io"

	"etcdsnapshot.dev/agent/store"
)

// digest is the sums of one part.
type digest struct {
	sha256 [sha256.Size]byte
	md5    [md5.Size]byte // zero where it was not asked for
}

func (d digest) sha256Hex() string    { return hex.EncodeToString(d.sha256[:]) }
func (d digest) sha256Base64() string { return base64.StdEncoding.EncodeToString(d.sha256[:]) }

func (d digest) md5Base64() string {
	if d.md5 == [md5.Size]byte{} {
		return ""
	}
	return base64.StdEncoding.EncodeToString(d.md5[:])
}

// sum reads a section of a blob.
func sum(ctx context.Context, section io.Reader, size int64, withMD5 bool, also ...io.Writer) (digest, error) {
	s, m := sha256.New(), md5.New()
	writers := append([]io.Writer{s}, also...)
	if withMD5 {
		writers = append(writers, m)
	}
	n, err := io.Copy(io.MultiWriter(writers...), contextReader{ctx, section})
	if err == nil && n < size {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		if ctxErr := store.CtxErr(ctx); ctxErr != nil {
			return digest{}, ctxErr
		}
		return digest{}, fmt.Errorf("read content: %w", err)
	}
	var d digest
	s.Sum(d.sha256[:0])
	if withMD5 {
		m.Sum(d.md5[:0])
	}
	return d, nil
}

type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.r.Read(p)
	store.Touch(c.ctx, int64(n))
	return n, err
}

// parts is how an object of size bytes is cut.
type parts struct{ size, partSize int64 }

// layout cuts an object of size bytes. A size that fits one part is one request and no multipart upload.
func (b *Bucket) layout(size int64) parts {
	n := b.partSize
	if n == 0 {
		n = max(defaultPartSize, (size+maxParts-1)/maxParts)
	}
	return parts{size, n}
}

func (p parts) count() int { return max(int((p.size+p.partSize-1)/p.partSize), 1) }

// part gives the i-th part, from 0.
func (p parts) part(blob store.Blob, i int) *io.SectionReader {
	off := int64(i) * p.partSize
	return io.NewSectionReader(blob.ReaderAt, off, min(p.partSize, p.size-off))
}

// local is what a service would report of a blob that was sent in these parts.
type local struct {
	// sha256 of the whole.
	sha256 [sha256.Size]byte
	// md5 is the ETag and composite the x-amz-checksum-sha256, both with their suffix.
	md5, composite string
}

// sums reads a blob once.
func (p parts) sums(ctx context.Context, blob store.Blob) (local, error) {
	whole := sha256.New()
	md5s, sha256s := md5.New(), sha256.New()
	var last digest
	for i := range p.count() {
		section := p.part(blob, i)
		var err error
		if last, err = sum(ctx, section, section.Size(), true, whole); err != nil {
			return local{}, err
		}
		md5s.Write(last.md5[:])
		sha256s.Write(last.sha256[:])
	}
	var l local
	whole.Sum(l.sha256[:0])
	if p.count() == 1 {
		l.md5, l.composite = hex.EncodeToString(last.md5[:]), last.sha256Base64()
		return l, nil
	}
	l.md5 = compose(md5s, hex.EncodeToString, p.count())
	l.composite = compose(sha256s, base64.StdEncoding.EncodeToString, p.count())
	return l, nil
}

func compose(h hash.Hash, encode func([]byte) string, n int) string {
	return fmt.Sprintf("%s-%d", encode(h.Sum(nil)), n)
}
