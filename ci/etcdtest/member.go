package etcdtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Member is one etcd process.
type Member struct {
	// Name of the member; its files lie in a folder of this name.
	Name string
	// ClientURL is where clients connect to: http, https, unix or unixs.
	ClientURL string
	// DataDir is etcd's data directory.
	DataDir string
	// Learner does not vote.
	Learner bool

	cluster        *Cluster
	binary         string
	peerURL        string // as the others see it
	peerListen     string
	peerProxy      *peerProxy
	initial, state string

	mu   sync.Mutex
	cmd  *exec.Cmd     // nil while it does not run
	done chan struct{} // closed when cmd has ended
}

func (c *Cluster) newMember(i int, binary string) (*Member, error) {
	name := fmt.Sprintf("member-%d", i)
	m := &Member{Name: name, DataDir: filepath.Join(c.dir, name, "data"), cluster: c, binary: binary}
	// What an earlier attempt left would be another cluster's.
	if err := os.RemoveAll(m.DataDir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(m.DataDir, 0o700); err != nil {
		return nil, err
	}
	secure := ""
	if c.Options.TLS {
		secure = "s"
	}
	if c.Options.UnixSocket {
		m.ClientURL = "unix" + secure + "://" + filepath.Join(c.sockets, fmt.Sprintf("localhost:%d", i+1))
	} else {
		host := "127.0.0.1"
		if c.Options.IPv6 {
			host = "::1"
		}
		addr, err := freePort(host)
		if err != nil {
			return nil, err
		}
		m.ClientURL = "http" + secure + "://" + addr
	}
	addr, err := freePort("127.0.0.1")
	if err != nil {
		return nil, err
	}
	m.peerListen = "http://" + addr
	m.peerURL = m.peerListen
	if c.Options.Partitionable {
		if m.peerProxy, err = newPeerProxy(addr); err != nil {
			return nil, err
		}
		m.peerURL = "http://" + m.peerProxy.Addr()
	}
	return m, nil
}

func (m *Member) args() []string {
	listen, advertise := m.ClientURL, m.ClientURL
	if m.cluster.Options.UnixSocket {
		// etcd 3.4 takes only a socket in its current folder, named like a host and a port; before 3.7 none can be advertised.
		scheme, path, _ := strings.Cut(m.ClientURL, "://")
		listen, advertise = scheme+"://"+filepath.Base(path), "http://127.0.0.1:1"
	}
	args := []string{
		"--name=" + m.Name,
		"--data-dir=" + m.DataDir,
		"--listen-client-urls=" + listen,
		"--advertise-client-urls=" + advertise,
		"--listen-peer-urls=" + m.peerListen,
		"--initial-advertise-peer-urls=" + m.peerURL,
		"--initial-cluster=" + m.initial,
		"--initial-cluster-state=" + m.state,
		fmt.Sprintf("--quota-backend-bytes=%d", int64(quota)),
		"--logger=zap",
	}
	if m.cluster.Options.Version != "3.4" {
		args = append(args, "--unsafe-no-fsync") // a power cut is not what is tested here
	}
	if m.cluster.Options.Members == 1 && !m.cluster.Options.Learner {
		// A member alone elects itself, and need not wait long for others to object.
		args = append(args, "--heartbeat-interval=10", "--election-timeout=100")
	}
	if certs := m.cluster.Certs; certs != nil {
		args = append(args, "--cert-file="+certs.ServerCertFile, "--key-file="+certs.ServerKeyFile)
		if !m.cluster.Options.AnyClient {
			args = append(args, "--client-cert-auth", "--trusted-ca-file="+certs.CAFile)
		}
	}
	return append(args, m.cluster.Options.Args...)
}

// launch starts the process.
func (m *Member) launch() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cmd != nil {
		return errors.New(m.Name + " runs already")
	}
	log, err := os.OpenFile(m.logFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	cmd := exec.Command(m.binary, m.args()...)
	cmd.Dir = filepath.Dir(m.DataDir)
	if m.cluster.Options.UnixSocket {
		cmd.Dir = m.cluster.sockets
	}
	cmd.Stdout, cmd.Stderr = log, log
	// etcd takes flags from the environment too, which is not for us to inherit.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Dir(m.DataDir)}
	cmd.SysProcAttr = dieWithParent()
	started, done := make(chan error), make(chan struct{})
	go func() {
		// The child dies with the thread that started it, so the thread must stay as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(done)
		defer log.Close()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in the log
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	m.cmd, m.done = cmd, done
	return nil
}

// PID of the process, 0 while it does not run.
func (m *Member) PID() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cmd == nil {
		return 0
	}
	return m.cmd.Process.Pid
}

// Stop ends the process with SIGKILL, as an out-of-memory kill or a power cut would.
func (m *Member) Stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cmd == nil {
		return
	}
	_ = m.cmd.Process.Kill() // fails only if it has ended
	<-m.done
	m.cmd = nil
}

// Restart starts the member again, on its data and at its address, and waits until it answers.
func (m *Member) Restart(ctx context.Context) error {
	m.Stop()
	if err := m.launch(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	return m.waitReady(ctx)
}

// Pause stops the process with SIGSTOP: it still takes connections, and answers nothing. Resume undoes it.
func (m *Member) Pause(ctx context.Context) error {
	if err := m.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for !stopped(m.PID()) { // the signal reaches one thread after the other
		select {
		case <-ctx.Done():
			return fmt.Errorf("pause %s: %w", m.Name, ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

// Resume undoes Pause.
func (m *Member) Resume() error { return m.signal(syscall.SIGCONT) }

func (m *Member) signal(s syscall.Signal) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cmd == nil {
		return errors.New(m.Name + " does not run")
	}
	return m.cmd.Process.Signal(s)
}

func (m *Member) status(ctx context.Context) (*clientv3.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	client, err := m.cluster.client(m)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return client.Status(ctx, m.ClientURL)
}

// waitReady waits until the member knows a leader and has applied what that leader committed.
func (m *Member) waitReady(ctx context.Context) error {
	client, err := m.cluster.client(m)
	if err != nil {
		return err
	}
	defer client.Close()
	for {
		last := m.ready(ctx, client)
		if last == nil {
			return nil
		}
		m.mu.Lock()
		done := m.done
		m.mu.Unlock()
		select {
		case <-done:
			return fmt.Errorf("%s ended before it was ready:\n%s", m.Name, m.LogTail(20))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w: %w\n%s", m.Name, ctx.Err(), last, m.LogTail(20))
		case <-time.After(pollTime):
		}
	}
}

func (m *Member) ready(ctx context.Context, client *clientv3.Client) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if !m.Learner {
		_, err := client.Get(ctx, "ready") // linearizable: asks the leader
		return err
	}
	status, err := client.Status(ctx, m.ClientURL)
	if err == nil && (status.Leader == 0 || status.RaftAppliedIndex == 0) {
		err = errors.New("it knows no leader yet")
	}
	return err
}

func (m *Member) logFile() string {
	return filepath.Join(filepath.Dir(m.DataDir), "etcd.log")
}

// LogTail gives the last lines that the member printed.
func (m *Member) LogTail(lines int) string {
	data, err := os.ReadFile(m.logFile())
	if err != nil {
		return err.Error()
	}
	all := bytes.Split(bytes.TrimSpace(data), []byte("\n"))
	return strings.ToValidUTF8(string(bytes.Join(all[max(0, len(all)-lines):], []byte("\n"))), "?")
}
