// Package wire is what the stores that speak HTTP share below their protocols: connections that tell of progress, and
// errors of the network that say what to do.
package wire

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/store"
)

// WriteUnit is how many bytes are handed to the kernel at once, and how many it takes before the network has taken
// them (TCP_NOTSENT_LOWAT). The kernel's own choice is megabytes: on a slow line minutes would pass between two signs
// of progress. A TLS record is no larger. The body of a request gives no more than this with one Read, for net/http asks
// for twice as much.
const WriteUnit = 16 << 10

// NewTransport gives connections to the service that e describes, of which up to idle are kept for further requests.
// It honours the proxy variables of the environment and speaks HTTP/1.1, so that uploads that go on side by side have
// connections of their own. store.ErrConfig names the field of e that cannot work.
func NewTransport(e v1.EndpointSpec, idle int) (*http.Transport, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: e.InsecureSkipTLSVerify} //nolint:gosec // the policy asks for it
	if e.CABundleFile != "" {
		pem, err := os.ReadFile(e.CABundleFile)
		if err != nil {
			return nil, fmt.Errorf("%w: caBundleFile: %w", store.ErrConfig, err)
		}
		if config.RootCAs, err = x509.SystemCertPool(); err != nil {
			config.RootCAs = x509.NewCertPool()
		}
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%w: caBundleFile: %s holds no certificate in PEM format", store.ErrConfig, e.CABundleFile)
		}
	}
	dialer := &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 15 * time.Second, Control: LimitUnsent}
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         dialer.DialContext,
		TLSClientConfig:     config,
		TLSHandshakeTimeout: 30 * time.Second,
		IdleConnTimeout:     90 * time.Second,
		MaxIdleConnsPerHost: idle,
		WriteBufferSize:     WriteUnit,
		DisableCompression:  true, // an object stored with Content-Encoding is to be read as it was stored
	}, nil
}

// LimitUnsent is the Control of a net.Dialer: it has the kernel take no more than WriteUnit ahead of the network.
func LimitUnsent(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		// A kernel without it does not tell of progress as finely, and that is all.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, WriteUnit)
	})
}

// Retry is store.Retry for requests that go through t: a try that stalls is given a second chance on a new connection,
// and no third.
func Retry(ctx context.Context, t *http.Transport, p store.RetryPolicy, f func(ctx context.Context) error) error {
	stalls := 0
	return store.Retry(ctx, p, func(ctx context.Context) error {
		err := f(ctx)
		if errors.Is(err, store.ErrStalled) && ctx.Err() == nil {
			t.CloseIdleConnections()
			if stalls++; stalls > 1 {
				return store.Permanent(err)
			}
		}
		return err
	})
}

// Explain adds to an error of the network what to do about it. endpoint is the URL of the service, and field the one
// of the destination that holds it.
func Explain(err error, endpoint, field string) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err // what was asked for is said already
	}
	var dns *net.DNSError
	var cert *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &cert):
		return fmt.Errorf("%w (the certificate of %s does not verify: %s)", err, endpoint, CertificateRemedy(cert))
	case errors.As(err, &record), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return store.Permanent(fmt.Errorf("%w (%s does not speak TLS: write %s with http://)", err, endpoint, field))
	case errors.As(err, &dns):
		err = fmt.Errorf("%w (check %s and the DNS of this node)", err, field)
		if dns.IsNotFound {
			return store.Permanent(err)
		}
		return err
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w (nothing listens at %s: check %s, and that the service is up)", err, endpoint, field)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		return fmt.Errorf("%w (the connection was cut)", err)
	}
	return err
}

// Touching gives a body whose every read touches ctx (see store.WithStall).
func Touching(ctx context.Context, body io.ReadCloser) io.ReadCloser { return &touching{ctx, body} }

type touching struct {
	ctx context.Context
	io.ReadCloser
}

func (b *touching) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		store.Touch(b.ctx, int64(n))
	}
	return n, err
}

// Reader is the content of an object. A Read that gets nothing for a stall time ends it; a consumer that takes its
// time between two reads does not. It owns a ctx of its own, which Close ends.
type Reader struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	stall  time.Duration
	name   string
	body   io.ReadCloser
	read   int64
}

// Open calls f, which opens the body of the object called name in messages, and gives a reader of it. The ctx that f
// gets lives as long as the reader. The stall time holds for f as well. Errors are f's, or the cause that ended it.
func Open(ctx context.Context, stall time.Duration, name string, f func(ctx context.Context) (io.ReadCloser, error)) (*Reader, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	r := &Reader{ctx: ctx, cancel: cancel, stall: stall, name: name}
	watch := r.watch()
	body, err := f(ctx)
	if !watch.Stop() {
		<-ctx.Done()
	}
	if ctxErr := store.CtxErr(ctx); ctxErr != nil {
		if err == nil {
			body.Close()
		}
		err = fmt.Errorf("get %s: %w", name, ctxErr)
	}
	if err != nil {
		cancel(nil)
		return nil, err
	}
	r.body = body
	return r, nil
}

func (r *Reader) watch() *time.Timer {
	return time.AfterFunc(r.stall, func() { r.cancel(&store.StalledError{After: r.stall, Bytes: r.read}) })
}

// Read is io.Reader's.
func (r *Reader) Read(p []byte) (int, error) {
	watch := r.watch()
	n, err := r.body.Read(p)
	if !watch.Stop() {
		// The timer has read r.read, or is about to.
		<-r.ctx.Done()
	}
	r.read += int64(n)
	if n > 0 && errors.Is(err, io.EOF) {
		// It comes again, alone: whoever reads to the end must not take the last bytes for a broken connection.
		err = nil
	}
	if err != nil && !errors.Is(err, io.EOF) {
		if ctxErr := store.CtxErr(r.ctx); ctxErr != nil {
			err = ctxErr
		}
		err = fmt.Errorf("get %s: %w", r.name, err)
	}
	return n, err
}

// Close is io.Closer's.
func (r *Reader) Close() error {
	err := r.body.Close()
	r.cancel(nil)
	return err
}

// CertificateRemedy says what to do about a certificate that does not verify.
func CertificateRemedy(err error) string {
	var invalid x509.CertificateInvalidError
	var hostname x509.HostnameError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "set this machine's clock, or renew the certificate"
	case errors.As(err, &hostname):
		return "it is for another name: correct the address, or have the name put into the certificate"
	}
	return "put the CA's certificate into caBundleFile"
}
