package etcdtest

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
)

// relay forwards TCP connections to another address. It is what the proxies have in common.
type relay struct {
	listener net.Listener
	dial     func() (net.Conn, error)
	// admit may look at what the client sends first. It gives a reader of all that the client sends.
	admit func(client net.Conn) (io.Reader, error)
	// answer copies what the server sends to the client.
	answer func(client io.Writer, server io.Reader) error

	wg    sync.WaitGroup
	mu    sync.Mutex
	conns map[net.Conn]struct{} // nil once closed
}

// listen begins to relay.
func (r *relay) listen() (err error) {
	if r.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return err
	}
	r.conns = map[net.Conn]struct{}{}
	r.wg.Go(func() {
		for {
			client, err := r.listener.Accept()
			if err != nil {
				return // closed
			}
			r.wg.Go(func() { r.serve(client) })
		}
	})
	return nil
}

func (r *relay) serve(client net.Conn) {
	if !r.track(client) {
		return
	}
	defer r.drop(client)
	request, err := r.admit(client)
	if err != nil {
		return
	}
	server, err := r.dial()
	if err != nil || !r.track(server) {
		return
	}
	defer r.drop(server)
	r.wg.Go(func() {
		// However one direction ends, the other one ends with it.
		defer r.drop(client)
		defer r.drop(server)
		_, _ = io.Copy(server, request)
	})
	_ = r.answer(client, server)
}

// track remembers conn, or closes it where the relay has ended.
func (r *relay) track(conn net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conns == nil {
		conn.Close()
		return false
	}
	r.conns[conn] = struct{}{}
	return true
}

func (r *relay) drop(conn net.Conn) {
	conn.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, conn)
}

// cutAll closes the connections that there are now.
func (r *relay) cutAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for conn := range r.conns {
		conn.Close()
	}
}

func (r *relay) Addr() string { return r.listener.Addr().String() }

func (r *relay) close() {
	r.listener.Close()
	r.mu.Lock()
	for conn := range r.conns {
		conn.Close()
	}
	r.conns = nil
	r.mu.Unlock()
	r.wg.Wait()
}

// peerProxy stands in front of a member's peer port and can refuse one sender, or all.
type peerProxy struct {
	relay
	pmu     sync.Mutex
	refused func(from string) bool
}

func newPeerProxy(target string) (*peerProxy, error) {
	p := &peerProxy{}
	p.accept()
	p.dial = func() (net.Conn, error) { return net.Dial("tcp", target) }
	p.admit = p.check
	p.answer = func(client io.Writer, server io.Reader) error {
		_, err := io.Copy(client, server)
		return err
	}
	return p, p.listen()
}

var errRefused = errors.New("refused")

// check reads the head of the first request: etcd says in it which member it is from.
func (p *peerProxy) check(client net.Conn) (io.Reader, error) {
	var head bytes.Buffer
	req, err := http.ReadRequest(bufio.NewReader(io.TeeReader(client, &head)))
	if err != nil {
		return nil, err
	}
	p.pmu.Lock()
	refused := p.refused
	p.pmu.Unlock()
	if refused(req.Header.Get("X-Server-From")) {
		return nil, errRefused
	}
	return io.MultiReader(&head, client), nil
}

// refuse cuts all connections and refuses new ones from the member with this ID (hexadecimal), or from all if it is "".
func (p *peerProxy) refuse(id string) {
	p.pmu.Lock()
	p.refused = func(from string) bool { return id == "" || from == id }
	p.pmu.Unlock()
	p.cutAll()
}

func (p *peerProxy) accept() {
	p.pmu.Lock()
	defer p.pmu.Unlock()
	p.refused = func(string) bool { return false }
}

func (p *peerProxy) Close() { p.close() }
