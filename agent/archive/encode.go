package archive

import (
	"fmt"
	"io"
	"runtime"
	"strings"

	"filippo.io/age"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

// Options say how a snapshot is encoded.
type Options struct {
	// Algorithm is one of v1.CompressionZstd, v1.CompressionGzip, v1.CompressionNone; empty means zstd.
	Algorithm string
	// Level is one of v1.LevelFastest, v1.LevelDefault, v1.LevelBetter; empty means fastest. Of no effect
	// without compression.
	Level string
	// Recipients that can each open the snapshot on their own; without any it is not encrypted.
	Recipients []Recipient
	// Concurrency is how many goroutines compress with zstd; 0 means two, or one where GOMAXPROCS is one. The
	// encoder takes less than 30 MiB of memory with up to two, and about 8 MiB more for each further one.
	Concurrency int
}

const encryptedSuffix = ".age"

// Suffix is what follows a snapshot's name in the name of its object: .db, .db.zst, .db.gz, each also with .age.
func Suffix(algorithm string, encrypted bool) string {
	s := ".db"
	switch algorithm {
	case v1.CompressionZstd:
		s += ".zst"
	case v1.CompressionGzip:
		s += ".gz"
	}
	if encrypted {
		s += encryptedSuffix
	}
	return s
}

// IsEncrypted tells by an object's key whether it is encrypted.
func IsEncrypted(key string) bool { return strings.HasSuffix(key, encryptedSuffix) }

// NewEncoder returns a writer that compresses, then encrypts, what is written to it, into w. Encryption's header is
// written at once. Close ends all layers and does not close w. It must be called after a failure, too: until it
// returns, other goroutines may write to w. What lies in w is a snapshot only if every Write and Close succeeded.
func NewEncoder(w io.Writer, o Options) (io.WriteCloser, error) {
	e := &encoder{top: w}
	if len(o.Recipients) > 0 {
		if err := checkMix("recipients", o.Recipients); err != nil {
			return nil, err
		}
		rs := make([]age.Recipient, len(o.Recipients))
		for i, r := range o.Recipients {
			rs[i] = r.recipient
		}
		aw, err := age.Encrypt(w, rs...)
		if err != nil {
			return nil, fmt.Errorf("begin age encryption: %w", err)
		}
		e.push(aw)
	}
	cw, err := newCompressor(e.top, o)
	if err != nil {
		return nil, err
	}
	if cw != nil {
		e.push(cw)
	}
	return e, nil
}

// newCompressor returns nil where nothing is to be compressed.
func newCompressor(w io.Writer, o Options) (io.WriteCloser, error) {
	level := o.Level
	if level == "" {
		level = v1.LevelFastest
	}
	switch o.Algorithm {
	case v1.CompressionNone:
		return nil, nil
	case v1.CompressionGzip:
		l, ok := gzipLevels[level]
		if !ok {
			return nil, fmt.Errorf("unknown compression level %q", o.Level)
		}
		return gzip.NewWriterLevel(w, l)
	case v1.CompressionZstd, "":
		l, ok := zstdLevels[level]
		if !ok {
			return nil, fmt.Errorf("unknown compression level %q", o.Level)
		}
		return zstd.NewWriter(w, zstdOptions(l, o.Concurrency)...)
	}
	return nil, fmt.Errorf("unknown compression algorithm %q", o.Algorithm)
}

var (
	zstdLevels = map[string]zstd.EncoderLevel{
		v1.LevelFastest: zstd.SpeedFastest,
		v1.LevelDefault: zstd.SpeedDefault,
		v1.LevelBetter:  zstd.SpeedBetterCompression,
	}
	gzipLevels = map[string]int{
		v1.LevelFastest: gzip.BestSpeed,
		v1.LevelDefault: gzip.DefaultCompression,
		v1.LevelBetter:  8,
	}
)

// zstdOptions bound memory by the window. The two quick levels cut the input into jobs of four windows that
// are compressed side by side, which needs several jobs in memory: a window of 512 KiB keeps them below 30 MiB and
// took less CPU than the pipelined encoder when measured. The level better is asked for the ratio: it keeps one
// stream and a window of 4 MiB. Every window is far below the 8 MiB that any decoder should accept (RFC 8878, 3.1.1.1.2).
func zstdOptions(level zstd.EncoderLevel, concurrency int) []zstd.EOption {
	if concurrency <= 0 {
		concurrency = min(2, runtime.GOMAXPROCS(0))
	}
	jobs := concurrency > 1 && level != zstd.SpeedBetterCompression
	window := 4 << 20
	if jobs {
		window = 512 << 10
	}
	return []zstd.EOption{
		zstd.WithEncoderLevel(level),
		zstd.WithEncoderConcurrency(concurrency),
		zstd.WithConcurrentBlocks(jobs),
		zstd.WithWindowSize(window),
		zstd.WithEncoderCRC(true),
		zstd.WithZeroFrames(true),
	}
}

// encoder is a stack of layers: top is written to, layers are closed from the last to the first.
type encoder struct {
	top    io.Writer
	layers []io.Closer
	err    error
	closed bool
}

func (e *encoder) push(w io.WriteCloser) {
	e.top = w
	e.layers = append(e.layers, w)
}

func (e *encoder) Write(p []byte) (int, error) {
	if e.closed {
		return 0, errClosed
	}
	if e.err != nil {
		return 0, e.err
	}
	n, err := e.top.Write(p)
	if err != nil {
		e.err = fmt.Errorf("encode snapshot: %w", err)
	}
	return n, e.err
}

func (e *encoder) Close() error {
	if e.closed {
		return e.err
	}
	e.closed = true
	for i := len(e.layers) - 1; i >= 0; i-- {
		if err := e.layers[i].Close(); err != nil && e.err == nil {
			e.err = fmt.Errorf("encode snapshot: %w", err)
		}
	}
	return e.err
}
