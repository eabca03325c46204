package emulator

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Rule says which requests a FaultProxy treats badly, and how. Of several rules the first that matches and is not
// used up is applied, and no other. All conditions must hold; empty ones always do.
type Rule struct {
	// Method of the request.
	Method string
	// Path and Query are parts of the request's escaped path and of its raw query.
	Path, Query string
	// Match is any other condition.
	Match func(*http.Request) bool

	// Skip lets the first so many matching requests pass.
	Skip int
	// Times is how often the rule applies after that; 0 is for ever.
	Times int

	// Status, if not 0, is answered by the proxy itself, with Header and Body, once the request's body was read. The
	// server never sees the request.
	Status int
	Header http.Header
	Body   string

	// Request and Response are done to the two messages on their way.
	Request, Response Fault
	// Forward changes the request that the server gets, after Request.Rewrite: a signature can be made anew here.
	Forward func(*http.Request)
}

// Fault is what happens to one message.
type Fault struct {
	// Reset cuts the client's connection with a TCP reset and Stall goes silent, both once After bytes of the body
	// have passed. On a response with After 0 the server has done its work and the client is not told.
	Reset, Stall bool
	After        int64
	// Rate is how many bytes of the body pass in a second; 0 is no limit.
	Rate int64
	// Rewrite changes the headers.
	Rewrite func(http.Header)
}

// Request is one request that a FaultProxy saw, as the client sent it.
type Request struct {
	Method string
	URL    *url.URL
	Header http.Header
}

// ProxyConfig is what differs between proxies.
type ProxyConfig struct {
	// Listener is where the proxy listens, instead of a free loopback port. The proxy closes it.
	Listener net.Listener
	// TLS serves https with a certificate that is signed by nobody else (FaultProxy.CA).
	TLS bool
	// ReadBuffer is the size in bytes of the kernel's buffer for what clients send; 0 is the kernel's own choice.
	// Without a small one the kernel takes some 100 KiB before a low Request.Rate is felt.
	ReadBuffer int
}

// FaultProxy is a reverse proxy in front of a server, which counts what passes and breaks what its rules say.
type FaultProxy struct {
	// URL of the proxy: the endpoint to give to the client.
	URL string
	// CA is the certificate (PEM) to trust when the proxy serves https.
	CA []byte

	server *http.Server
	proxy  *httputil.ReverseProxy
	closed context.Context
	close  context.CancelFunc
	done   chan struct{}

	mu       sync.Mutex
	rules    []*rule
	requests []Request
}

type rule struct {
	Rule
	seen int
}

// StartFaultProxy is RunFaultProxy for a test, which it ends with.
func StartFaultProxy(tb testing.TB, target string, config ProxyConfig) *FaultProxy {
	tb.Helper()
	p, err := RunFaultProxy(target, config)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(p.Close)
	return p
}

// RunFaultProxy starts a proxy in front of the server with the URL target. The client's Host
// header is kept, since signatures cover it.
func RunFaultProxy(target string, config ProxyConfig) (*FaultProxy, error) {
	to, err := url.Parse(target)
	if err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	if config.ReadBuffer > 0 {
		// Connections inherit it. Set on them it would come too late: the client has been offered more by then.
		lc.Control = func(_, _ string, c syscall.RawConn) error {
			var optErr error
			err := c.Control(func(fd uintptr) {
				optErr = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, config.ReadBuffer)
			})
			return errors.Join(err, optErr)
		}
	}
	l := config.Listener
	if l == nil {
		if l, err = lc.Listen(context.Background(), "tcp", "127.0.0.1:0"); err != nil {
			return nil, err
		}
	}
	p := &FaultProxy{URL: "http://" + l.Addr().String(), done: make(chan struct{})}
	p.closed, p.close = context.WithCancel(context.Background())
	p.proxy = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Host = r.In.Host
			rule := ruleOf(r.In)
			if rule.Request.Rewrite != nil {
				rule.Request.Rewrite(r.Out.Header)
			}
			if rule.Forward != nil {
				rule.Forward(r.Out)
			}
		},
		// Each exchange has a connection of its own, so that a fault stays with its request.
		Transport:      &http.Transport{DisableKeepAlives: true, DisableCompression: true},
		FlushInterval:  -1,
		ModifyResponse: p.response,
		ErrorHandler:   func(w http.ResponseWriter, _ *http.Request, _ error) { reset(w) },
		ErrorLog:       log.New(io.Discard, "", 0),
	}
	p.server = &http.Server{
		Handler:      p,
		ErrorLog:     log.New(io.Discard, "", 0),
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){}, // HTTP/1.1 only: connections are cut
	}
	if config.TLS {
		var cert tls.Certificate
		if cert, p.CA, err = selfSigned(l.Addr().(*net.TCPAddr).IP); err != nil {
			l.Close()
			return nil, err
		}
		p.URL = "https://" + l.Addr().String()
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12})
	}
	go func() {
		defer close(p.done)
		_ = p.server.Serve(l) // ends when Close closes l
	}()
	return p, nil
}

// Close ends the proxy, and whatever is under way.
func (p *FaultProxy) Close() {
	p.close()
	p.server.Close()
	<-p.done
}

// Add adds rules, which count matching requests from now on.
func (p *FaultProxy) Add(rules ...Rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range rules {
		p.rules = append(p.rules, &rule{Rule: r})
	}
}

// Clear forgets all rules and all requests that were seen.
func (p *FaultProxy) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules, p.requests = nil, nil
}

// Requests gives the requests seen so far that match the method, path and query of a rule; the zero Rule gives all.
func (p *FaultProxy) Requests(like Rule) []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	var rs []Request
	for _, r := range p.requests {
		if like.matches(&http.Request{Method: r.Method, URL: r.URL, Header: r.Header}) {
			rs = append(rs, r)
		}
	}
	return rs
}

// Count is the number of Requests.
func (p *FaultProxy) Count(like Rule) int { return len(p.Requests(like)) }

func (r *Rule) matches(req *http.Request) bool {
	return (r.Method == "" || r.Method == req.Method) &&
		strings.Contains(req.URL.EscapedPath(), r.Path) &&
		strings.Contains(req.URL.RawQuery, r.Query) &&
		(r.Match == nil || r.Match(req))
}

// pick notes the request and gives the rule that applies to it.
func (p *FaultProxy) pick(req *http.Request) *Rule {
	p.mu.Lock()
	defer p.mu.Unlock()
	u := *req.URL
	p.requests = append(p.requests, Request{Method: req.Method, URL: &u, Header: req.Header.Clone()})
	for _, r := range p.rules {
		if !r.matches(req) || r.Times > 0 && r.seen >= r.Skip+r.Times {
			continue
		}
		if r.seen++; r.seen > r.Skip {
			return &r.Rule
		}
	}
	return &Rule{}
}

type ruleKey struct{}

func ruleOf(r *http.Request) *Rule { return r.Context().Value(ruleKey{}).(*Rule) }

// ServeHTTP treats one request.
func (p *FaultProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rule := p.pick(r)
	ctx, cancel := context.WithCancel(context.WithValue(r.Context(), ruleKey{}, rule))
	defer cancel()
	defer context.AfterFunc(p.closed, cancel)()
	r = r.WithContext(ctx)
	body := &faultyBody{ctx: ctx, body: r.Body, fault: rule.Request}
	if r.ContentLength != 0 {
		r.Body = body
	} else if rule.Request.Reset || rule.Request.Stall {
		// There is no body to break: the whole request is.
		if _, err := body.Read(make([]byte, 1)); err != nil {
			reset(w)
			return
		}
	}
	if rule.Status == 0 {
		p.proxy.ServeHTTP(w, r)
		return
	}
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		reset(w)
		return
	}
	for k, v := range rule.Header {
		w.Header()[k] = slices.Clone(v)
	}
	w.WriteHeader(rule.Status)
	_, _ = io.WriteString(w, rule.Body) // to a client that may have left
}

// response is done to the server's answer. An error cuts the client's connection.
func (p *FaultProxy) response(resp *http.Response) error {
	fault := ruleOf(resp.Request).Response
	if fault.Rewrite != nil {
		fault.Rewrite(resp.Header)
	}
	body := &faultyBody{ctx: resp.Request.Context(), body: resp.Body, fault: fault}
	if (fault.Reset || fault.Stall) && fault.After == 0 {
		_, err := body.Read(make([]byte, 1))
		resp.Body.Close()
		return err
	}
	resp.Body = body
	return nil
}

var errFault = errors.New("cut by the fault proxy")

// faultyBody is a message's body with a fault.
type faultyBody struct {
	ctx   context.Context
	body  io.ReadCloser
	fault Fault
	done  int64
}

func (b *faultyBody) Close() error { return b.body.Close() }

func (b *faultyBody) Read(buf []byte) (int, error) {
	f := b.fault
	if f.Reset || f.Stall {
		if b.done >= f.After {
			if f.Stall {
				<-b.ctx.Done()
			}
			return 0, errFault
		}
		buf = buf[:min(int64(len(buf)), f.After-b.done)]
	}
	if f.Rate > 0 {
		// In steps of a tenth of a second.
		buf = buf[:min(int64(len(buf)), max(f.Rate/10, 1))]
	}
	n, err := b.body.Read(buf)
	b.done += int64(n)
	if f.Rate > 0 {
		select {
		case <-time.After(time.Duration(n) * time.Second / time.Duration(f.Rate)):
		case <-b.ctx.Done():
			return n, b.ctx.Err()
		}
	}
	return n, err
}

// reset cuts the client's connection with a TCP reset.
func reset(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	tcp := conn
	if t, ok := conn.(*tls.Conn); ok {
		tcp = t.NetConn()
	}
	if t, ok := tcp.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // at worst it is closed politely
	}
	tcp.Close()
}
