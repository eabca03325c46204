package s3

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/wire"
)

// readLimit is how many bytes are handed on at once, so that a slow line tells of progress often.
const readLimit = 16 << 10

// exchange is what minio-go does not hand on about a request: the answer's status and headers, and the transport's
// own error.
type exchange struct {
	mu     sync.Mutex
	status int
	header http.Header
	err    error
}

func (x *exchange) answer() (status int, header http.Header, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.status, x.header, x.err
}

type exchangeKey struct{}

// exchangeOf gives the exchange of the try that ctx belongs to.
func exchangeOf(ctx context.Context) *exchange {
	x, ok := ctx.Value(exchangeKey{}).(*exchange)
	if !ok {
		return &exchange{}
	}
	return x
}

// observer notes each exchange, and tells WithStall that the server answers.
type observer struct{ base http.RoundTripper }

func (o observer) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	resp, err := o.base.RoundTrip(req)
	x := exchangeOf(ctx)
	x.mu.Lock()
	x.status, x.header, x.err = 0, nil, err
	if err == nil {
		x.status, x.header = resp.StatusCode, resp.Header
	}
	x.mu.Unlock()
	if err != nil {
		return nil, err
	}
	store.Touch(ctx, 0)
	resp.Body = wire.Touching(ctx, resp.Body)
	return resp, nil
}

// upload is the body of one try to send a section of a blob. Its reads touch ctx. It remembers a read that failed,
// which minio-go does not hand on. The transport may read on for a moment after a request has failed, until result is
// called.
type upload struct {
	ctx     context.Context
	section *io.SectionReader
	size    int64
	read    atomic.Int64
	ended   atomic.Bool
	failure atomic.Pointer[error]
}

func newUpload(ctx context.Context, section *io.SectionReader) *upload {
	return &upload{ctx: ctx, section: section, size: section.Size()}
}

func (u *upload) Read(p []byte) (int, error) {
	if u.ended.Load() {
		return 0, net.ErrClosed
	}
	n, err := u.section.Read(p[:min(len(p), readLimit)])
	u.read.Add(int64(n))
	store.Touch(u.ctx, int64(n))
	if err == io.EOF && u.read.Load() < u.size {
		err = io.ErrUnexpectedEOF
	}
	if err != nil && err != io.EOF {
		u.failure.Store(&err)
	}
	return n, err
}

// Seek lets minio-go begin at the start, once before each try.
func (u *upload) Seek(offset int64, whence int) (int64, error) {
	u.read.Store(0)
	return u.section.Seek(offset, whence)
}

// sent says that all of it was handed over, so that the server may have acted on it.
func (u *upload) sent() bool { return u.read.Load() >= u.size }

// result ends the reading and gives err, or the failed read that led to it.
func (u *upload) result(err error) error {
	u.ended.Store(true)
	if failure := u.failure.Load(); err != nil && failure != nil {
		return decided{store.Permanent(fmt.Errorf("read content: %w", *failure))}
	}
	return err
}
