package archive

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"

	"filippo.io/age"
	"filippo.io/age/armor"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

// maxWindow bounds what a zstd frame may make the decoder keep in memory. Our own windows are at most 4 MiB, those of
// the zstd tool's levels 1 to 19 at most 8 MiB.
const maxWindow = 32 << 20

// Decoder reads the database out of a stored snapshot.
type Decoder struct {
	// Encrypted tells whether the snapshot was encrypted.
	Encrypted bool
	// Compression is one of v1.CompressionZstd, v1.CompressionGzip, v1.CompressionNone.
	Compression string

	r      io.Reader
	layers []*layer // the source first; each records the first error it gave
	close  func()
	err    error
}

// NewDecoder looks at the first bytes of r and returns a reader of the database within: etcd's bbolt file, plain or
// compressed with zstd or gzip, and then plain or encrypted with age (binary or armored) to one of ids.
//
// Read gives an error that is ErrCorrupt, at the latest in place of io.EOF, wherever the compression's checksum or
// the encryption's authentication shows damage, a missing end or something behind the end. A plain database has
// neither: the caller checks etcd's own checksum or the manifest's. Errors of r itself are passed on as they are and
// are never ErrCorrupt; an r that can be cut short must say so with an error, not with io.EOF.
//
// Memory stays below about 50 MiB whatever r holds; how much comes out is the caller's to limit. Close must be
// called and does not close r; it waits for a Read of r that is under way.
func NewDecoder(r io.Reader, ids ...age.Identity) (*Decoder, error) {
	return newDecoder(r, true, ids)
}

// NewExtrasDecoder is NewDecoder for a snapshot's extras: what comes out is a tar file.
func NewExtrasDecoder(r io.Reader, ids ...age.Identity) (*Decoder, error) {
	return newDecoder(r, false, ids)
}

// newDecoder leaves out the look at the decoded bytes where database is false.
func newDecoder(r io.Reader, database bool, ids []age.Identity) (*Decoder, error) {
	d := &Decoder{Compression: v1.CompressionNone, close: func() {}}
	what := "the file"

	br := d.push("", r, largeBuffer)
	head, err := d.peek(br)
	if err != nil {
		return nil, err
	}
	if isAge(head) || isArmor(head) {
		d.Encrypted = true
		what = "what was decrypted"
		var src io.Reader = br
		if isArmor(head) {
			src = armor.NewReader(br)
		}
		plain, err := decrypt(src, ids)
		if err != nil {
			return nil, d.explain("age", err)
		}
		br = d.push("age", plain, layerBuffer)
		if head, err = d.peek(br); err != nil {
			return nil, err
		}
	}

	switch {
	case isZstd(head):
		d.Compression = v1.CompressionZstd
		zr, err := zstd.NewReader(br,
			zstd.WithDecoderConcurrency(min(2, runtime.GOMAXPROCS(0))),
			zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxWindow),
			zstd.WithDecoderMaxMemory(maxWindow),
		)
		if err != nil {
			return nil, d.explain(v1.CompressionZstd, err)
		}
		d.close = zr.Close
		br = d.push(v1.CompressionZstd, zr, layerBuffer)
	case isGzip(head):
		d.Compression = v1.CompressionGzip
		zr, err := gzip.NewReader(br)
		if err != nil {
			return nil, d.explain(v1.CompressionGzip, err)
		}
		br = d.push(v1.CompressionGzip, zr, layerBuffer)
	}
	if d.Compression != v1.CompressionNone {
		what = "what was decompressed"
		if head, err = d.peek(br); err != nil {
			d.close()
			return nil, err
		}
	}
	if database && !isBolt(head) {
		d.close()
		return nil, unknownFormat(what, head)
	}
	d.r = br
	return d, nil
}

// Read reads the database.
func (d *Decoder) Read(p []byte) (int, error) {
	if d.err != nil {
		return 0, d.err
	}
	n, err := d.r.Read(p)
	if err != nil {
		d.err = d.explain("", err)
	}
	return n, d.err
}

// WriteTo writes the rest of the database to w in large pieces. Errors of w are passed on as they are.
func (d *Decoder) WriteTo(w io.Writer) (n int64, err error) {
	buf := make([]byte, largeBuffer)
	for {
		k, rerr := d.Read(buf)
		if k > 0 {
			m, werr := w.Write(buf[:k])
			n += int64(m)
			if werr == nil && m < k {
				werr = io.ErrShortWrite
			}
			if werr != nil {
				return n, werr
			}
		}
		if rerr == io.EOF { //nolint:errorlint // the exact io.EOF ends a stream, a wrapped one is a broken source
			return n, nil
		}
		if rerr != nil {
			return n, rerr
		}
	}
}

// Close ends the decoder's goroutines.
func (d *Decoder) Close() error {
	d.close()
	if d.err == nil {
		d.err = errors.New("read after Close")
	}
	return nil
}

// layer remembers the first error other than io.EOF that reading it gave: the layers above may reword it.
type layer struct {
	name string
	r    io.Reader

	mu  sync.Mutex
	err error
}

func (l *layer) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if err != nil && err != io.EOF {
		l.mu.Lock()
		if l.err == nil {
			l.err = err
		}
		l.mu.Unlock()
	}
	return n, err
}

func (l *layer) failed() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// push puts a layer on top and returns a reader of it that can be peeked into.
func (d *Decoder) push(name string, r io.Reader, size int) *bufio.Reader {
	l := &layer{name: name, r: r}
	d.layers = append(d.layers, l)
	return bufio.NewReaderSize(l, size)
}

// peek returns the first bytes, fewer than sniffLen only where there are no more.
func (d *Decoder) peek(br *bufio.Reader) ([]byte, error) {
	head, err := br.Peek(sniffLen)
	if err != nil && err != io.EOF {
		return nil, d.explain("", err)
	}
	return head, nil
}

// explain turns an error of the layer called name into the caller's: the cause is what the lowest failing layer said.
// An end counts only where no layer below failed: zstd takes an end in the middle of nothing for a whole file.
func (d *Decoder) explain(name string, err error) error {
	if e := d.layers[0].failed(); e != nil {
		return fmt.Errorf("read stored snapshot: %w", e)
	}
	if errors.Is(err, ErrNoIdentity) || errors.Is(err, ErrWrongIdentity) {
		return err
	}
	for _, l := range d.layers[1:] {
		if e := l.failed(); e != nil {
			name, err = l.name, e
			break
		}
	}
	if err == io.EOF && name == "" { //nolint:errorlint // as above
		return err
	}
	text := err.Error()
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF) || err == io.EOF: //nolint:errorlint // as above
		text = "it ends too early"
	case errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, zstd.ErrDecoderSizeExceeded):
		text = fmt.Sprintf("it wants a window of more than %d MiB, which no snapshot of ours does; if it was compressed by hand "+
			"with --ultra or --long, decompress it with zstd -d --long=31 first", maxWindow>>20)
	}
	return &failure{msg: fmt.Sprintf("snapshot is %v: %s: %s", ErrCorrupt, name, text), is: []error{ErrCorrupt, err}}
}
