package etcdtest

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"sync"
)

// Proxy is a TCP proxy in front of an endpoint. It passes bytes on as they are, TLS or not, until it is told to cut
// the connection or to go silent in the middle.
type Proxy struct {
	relay
	scheme string

	pmu     sync.Mutex
	fault   fault
	left    int64         // bytes until the fault
	changed chan struct{} // closed when the fault is another one, or the proxy ends
}

type fault int

const (
	none fault = iota
	cut
	stall
)

// NewProxy listens on a free port of 127.0.0.1 in front of endpoint, a client URL of etcd.
func NewProxy(endpoint string) (*Proxy, error) {
	u, err := url.Parse(endpoint)
	if err != nil {
		return nil, err
	}
	p := &Proxy{changed: make(chan struct{})}
	network, addr := "tcp", u.Host
	switch u.Scheme {
	case "http", "https":
		p.scheme = u.Scheme
	case "unix", "unixs":
		network, addr = "unix", u.Host+u.Path
		p.scheme = map[string]string{"unix": "http", "unixs": "https"}[u.Scheme]
	default:
		return nil, fmt.Errorf("proxy: %q is not a client URL of etcd", endpoint)
	}
	p.dial = func() (net.Conn, error) { return net.Dial(network, addr) }
	p.admit = func(client net.Conn) (io.Reader, error) { return client, nil }
	p.answer = p.pass
	return p, p.listen()
}

// URL is the proxy's own client URL.
func (p *Proxy) URL() string { return p.scheme + "://" + p.Addr() }

// CutAfter closes connections once n more bytes have come from etcd, counted over all connections.
func (p *Proxy) CutAfter(n int64) { p.set(cut, n) }

// StallAfter forwards nothing more from etcd once n more bytes have come, and keeps connections open.
func (p *Proxy) StallAfter(n int64) { p.set(stall, n) }

// Pass ends CutAfter and StallAfter; what was stalled goes on.
func (p *Proxy) Pass() { p.set(none, 0) }

func (p *Proxy) set(f fault, n int64) {
	p.pmu.Lock()
	defer p.pmu.Unlock()
	p.fault, p.left = f, n
	close(p.changed)
	p.changed = make(chan struct{})
}

// Close ends the proxy and its connections.
func (p *Proxy) Close() {
	p.set(cut, 0) // wakes what is stalled
	p.close()
}

func (p *Proxy) pass(client io.Writer, server io.Reader) error {
	buf := make([]byte, 32<<10)
	for {
		n, err := server.Read(buf)
		for rest := buf[:n]; len(rest) > 0; {
			allowed, f, changed := p.take(len(rest))
			if _, err := client.Write(rest[:allowed]); err != nil {
				return err
			}
			rest = rest[allowed:]
			switch {
			case len(rest) == 0:
			case f == cut:
				return io.ErrUnexpectedEOF
			case f == stall:
				<-changed
			}
		}
		if err != nil {
			return err
		}
	}
}

// take tells how many of n bytes may pass, and which fault holds the others back until changed is closed.
func (p *Proxy) take(n int) (allowed int, f fault, changed <-chan struct{}) {
	p.pmu.Lock()
	defer p.pmu.Unlock()
	if p.fault == none {
		return n, none, nil
	}
	allowed = int(min(p.left, int64(n)))
	p.left -= int64(allowed)
	return allowed, p.fault, p.changed
}
