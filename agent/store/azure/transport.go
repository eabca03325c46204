package azure

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/wire"
)

// writeBuffer is how many bytes are handed to the kernel at once: half of wire.WriteUnit, so that both together pass
// within the stall time, also at 1 KiB/s.
const writeBuffer = 8 << 10

// newTransport is what all requests go through, those for tokens included. The node's own metadata service is never
// asked by way of a proxy, which would answer for another machine.
func newTransport(e v1.EndpointSpec, parallelism int, dial func(context.Context, string, string) (net.Conn, error)) (*http.Transport, error) {
	t, err := wire.NewTransport(e, parallelism+1)
	if err != nil {
		return nil, err
	}
	t.Proxy, t.DialContext, t.WriteBufferSize = proxy, dial, writeBuffer
	// The SDK asks for permission to send after the service was busy.
	t.ExpectContinueTimeout = time.Second
	return t, nil
}

func proxy(r *http.Request) (*url.URL, error) {
	if linkLocal(r.URL.Hostname()) {
		return nil, nil
	}
	return http.ProxyFromEnvironment(r)
}

func linkLocal(host string) bool { return net.ParseIP(host).IsLinkLocalUnicast() }

func dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: 30 * time.Second, KeepAlive: 15 * time.Second, Control: wire.LimitUnsent}
	if host, _, _ := net.SplitHostPort(addr); linkLocal(host) {
		// On the node itself. Where there is no such service nothing answers at all.
		d.Timeout = 3 * time.Second
	}
	return d.DialContext(ctx, network, addr)
}

// newHTTPClient gives what the SDK sends its requests with.
func newHTTPClient(base http.RoundTripper, sas string) *http.Client {
	return &http.Client{
		Transport: lastStep{base, sas},
		// The service never redirects. Whoever does is not to be handed our signature.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// lastStep is the last step before the network. It tells WithStall that the server answers, and adds the SAS, which thus
// is in no URL that the SDK or net/http may put into a message or a log.
type lastStep struct {
	base http.RoundTripper
	sas  string
}

func (w lastStep) RoundTrip(req *http.Request) (*http.Response, error) {
	out := req
	if w.sas != "" {
		out = req.Clone(req.Context())
		if out.URL.RawQuery != "" {
			out.URL.RawQuery += "&"
		}
		out.URL.RawQuery += w.sas
	}
	resp, err := w.base.RoundTrip(out)
	noteOf(req.Context()).set(err)
	if err != nil {
		return nil, err
	}
	resp.Request = req
	store.Touch(req.Context(), 0)
	resp.Body = wire.Touching(req.Context(), resp.Body)
	return resp, nil
}

// note is the outcome of a try's last exchange below the SDK.
type note struct {
	mu  sync.Mutex
	err error
}

type noteKey struct{}

// noteOf gives the note of ctx, which may be nil.
func noteOf(ctx context.Context) *note {
	n, _ := ctx.Value(noteKey{}).(*note)
	return n
}

func (n *note) set(err error) {
	if n != nil {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.err = err
	}
}

func (n *note) get() error {
	if n == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.err
}

// body is what one try sends of a block. Its reads touch ctx. The transport may read on for a moment after a request
// has failed: after end it does not see the buffer any more, which is then used for another block.
type body struct {
	ctx context.Context
	mu  sync.Mutex
	buf []byte
	off int64
	end bool
}

func newBody(ctx context.Context, buf []byte) *body { return &body{ctx: ctx, buf: buf} }

func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.end {
		return 0, net.ErrClosed
	}
	if b.off >= int64(len(b.buf)) {
		return 0, io.EOF
	}
	n := copy(p, b.buf[b.off:])
	b.off += int64(n)
	store.Touch(b.ctx, int64(n))
	return n, nil
}

// Seek is how the SDK finds the size and begins at the start.
func (b *body) Seek(offset int64, whence int) (int64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch whence {
	case io.SeekCurrent:
		offset += b.off
	case io.SeekEnd:
		offset += int64(len(b.buf))
	}
	if offset < 0 {
		return 0, os.ErrInvalid
	}
	b.off = offset
	return offset, nil
}

// Close is the transport's and the SDK's, who may disagree on when; release ends the reading.
func (b *body) Close() error { return nil }

func (b *body) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.end = true
}
