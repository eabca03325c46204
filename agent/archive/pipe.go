package archive

import (
	"context"
	"errors"
	"io"
)

var errClosed = errors.New("write after Close")

// Sizes of a Pipe that are used where 0 is given.
const (
	DefaultPipeBuffers    = 4
	DefaultPipeBufferSize = pipeBuffer
)

// Pipe is a writer that hands what is written to another goroutine in large pieces: Write copies into a buffer and
// returns, so a stream is drained while earlier parts of it are still being encoded. It holds exactly buffers × size
// bytes; when all buffers are full, Write waits.
//
// Write and Close are for one goroutine. The writer behind must not be used by others before Close has returned.
type Pipe struct {
	ctx    context.Context
	w      io.Writer
	free   chan []byte
	full   chan []byte
	cur    []byte
	closed bool

	failed chan struct{} // closed once err is set
	done   chan struct{} // closed when the goroutine has ended
	err    error
}

// NewPipe starts the goroutine that writes to w; 0 means the default number and size of buffers. The goroutine ends
// with Close, with the first error of w, and with ctx, but not before a Write to w that is under way has returned.
func NewPipe(ctx context.Context, w io.Writer, buffers, size int) *Pipe {
	if buffers <= 0 {
		buffers = DefaultPipeBuffers
	}
	if size <= 0 {
		size = DefaultPipeBufferSize
	}
	p := &Pipe{
		ctx:    ctx,
		w:      w,
		free:   make(chan []byte, buffers),
		full:   make(chan []byte, buffers),
		failed: make(chan struct{}),
		done:   make(chan struct{}),
	}
	for range buffers {
		p.free <- make([]byte, 0, size)
	}
	go p.drain()
	return p
}

// Write copies b. An error is that of an earlier piece: the writer's own, or the cause of the end of ctx.
func (p *Pipe) Write(b []byte) (n int, err error) {
	if p.closed {
		return 0, errClosed
	}
	for len(b) > 0 {
		if p.cur == nil {
			select {
			case p.cur = <-p.free:
			case <-p.failed:
				return n, p.err
			case <-p.ctx.Done():
				return n, context.Cause(p.ctx)
			}
		}
		k := min(len(b), cap(p.cur)-len(p.cur))
		p.cur = append(p.cur, b[:k]...)
		n, b = n+k, b[k:]
		if len(p.cur) == cap(p.cur) {
			p.full <- p.cur // never blocks: there is room for every buffer
			p.cur = nil
		}
	}
	select {
	case <-p.failed:
		return n, p.err
	default:
		return n, nil
	}
}

// Close writes out what is left, waits for the goroutine to end and returns the first error. It does not close the
// writer behind. Further calls return the same.
func (p *Pipe) Close() error {
	if !p.closed {
		p.closed = true
		if len(p.cur) > 0 {
			p.full <- p.cur
		}
		close(p.full)
	}
	<-p.done
	return p.err
}

func (p *Pipe) drain() {
	defer close(p.done)
	for {
		var b []byte
		more := true
		select {
		case b, more = <-p.full:
		case <-p.ctx.Done():
		}
		if p.ctx.Err() != nil {
			p.fail(context.Cause(p.ctx))
			return
		}
		if !more {
			return
		}
		n, err := p.w.Write(b)
		if err == nil && n < len(b) {
			err = io.ErrShortWrite
		}
		if err != nil {
			p.fail(err)
			return
		}
		p.free <- b[:0]
	}
}

func (p *Pipe) fail(err error) {
	p.err = err
	close(p.failed)
}
