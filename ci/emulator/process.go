package emulator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// readyTime is how long a server may take to answer after its start, on a machine busy with other tests.
const readyTime = time.Minute

// process is one running server. Its output goes to a file in dir.
type process struct {
	name string
	log  string

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has ended
}

// start runs cmd and waits until ready gives no error. When the server ends before, or ctx does, the error holds
// what the server wrote.
func (p *process) start(ctx context.Context, cmd *exec.Cmd, dir string, ready func(context.Context) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.log = filepath.Join(dir, p.name+".log")
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = dieWithParent()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait() // how it ended is in its output
	}()
	p.cmd, p.done = cmd, done

	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	for {
		err := ready(ctx)
		if err == nil {
			// Another program's answer on the same port is not ours.
			select {
			case <-done:
			default:
				return nil
			}
		}
		select {
		case <-done:
			err = errors.New("it ended before it was ready")
		case <-ctx.Done():
			err = fmt.Errorf("it is not ready: %w: %w", ctx.Err(), err)
		case <-time.After(20 * time.Millisecond):
			continue
		}
		_ = p.end(syscall.SIGKILL)
		return fmt.Errorf("start %s: %w\n%s", p.name, err, p.output())
	}
}

// stop ends the server as an operator would, and as a crash would after ten seconds.
func (p *process) stop() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.end(syscall.SIGTERM)
}

// kill ends the server as a crash would.
func (p *process) kill() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.end(syscall.SIGKILL)
}

func (p *process) end(sig syscall.Signal) error {
	if p.cmd == nil {
		return nil
	}
	err := p.cmd.Process.Signal(sig)
	timer := time.NewTimer(10 * time.Second)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		err = p.cmd.Process.Kill()
		<-p.done
	}
	p.cmd = nil
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// output is the end of what the server wrote.
func (p *process) output() string {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(data[max(0, len(data)-4096):]))
}

// freePort finds a free loopback port. Between this and its use somebody else may take it: see onFreePort.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// onFreePort calls start with one free port after another until the server could take it.
func onFreePort(start func(port int) error) error {
	var err error
	for range 5 {
		var port int
		if port, err = freePort(); err != nil {
			return err
		}
		if err = start(port); err == nil || !strings.Contains(err.Error(), "address already in use") {
			return err
		}
	}
	return err
}

// answers tells whether url gives an HTTP answer, whichever. Each call has a connection of its own: none is kept.
func answers(url string) func(context.Context) error {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
}
