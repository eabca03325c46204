//go:build linux

package main

import (
	"io"
	"net"
	"sync"
	"time"
)

// pace lets so many bytes pass in a second, whoever asks.
type pace struct {
	rate float64

	mu   sync.Mutex
	next time.Time
}

func (p *pace) wait(n int) {
	p.mu.Lock()
	now := time.Now()
	if p.next.Before(now) {
		p.next = now
	}
	p.next = p.next.Add(time.Duration(float64(n) / p.rate * float64(time.Second)))
	until := p.next
	p.mu.Unlock()
	time.Sleep(time.Until(until))
}

type pacedReader struct {
	r io.Reader
	p *pace
}

func (r *pacedReader) Read(b []byte) (int, error) {
	n, err := r.r.Read(b[:min(len(b), 32<<10)])
	r.p.wait(n)
	return n, err
}

// slowLine forwards connections; what clients send shares one pace.
type slowLine struct {
	listener net.Listener
	wg       sync.WaitGroup
}

func newSlowLine(to string, rate float64) (*slowLine, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &slowLine{listener: l}
	p := &pace{rate: rate}
	s.wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return // closed
			}
			s.wg.Go(func() { forward(client, to, p) })
		}
	})
	return s, nil
}

func forward(client net.Conn, to string, p *pace) {
	defer client.Close()
	server, err := net.Dial("tcp", to)
	if err != nil {
		return // the client sees its connection closed
	}
	defer server.Close()
	back := make(chan struct{})
	go func() {
		defer close(back)
		_, _ = io.Copy(client, server)
		client.Close()
	}()
	_, _ = io.Copy(struct{ io.Writer }{server}, &pacedReader{client, p})
	server.Close()
	<-back
}

func (s *slowLine) addr() string { return s.listener.Addr().String() }

// close waits for the connections, which end with their clients.
func (s *slowLine) close() {
	s.listener.Close()
	s.wg.Wait()
}
