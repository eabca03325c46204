// Package etcdtest runs real etcd clusters, as processes of any supported line, for tests, benchmarks and the demo.
//
// New, Fill and the rest take a context and return errors; Start and the other functions that take a testing.TB are
// thin wrappers. Everything listens on loopback, every process dies with its parent, and what etcd prints is kept
// in a file and shown only when a test fails.
package etcdtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"etcdsnapshot.dev/ci/etcdtest/certs"
	"etcdsnapshot.dev/ci/parts"
)

// Versions are the supported lines of etcd, oldest first.
var Versions = []string{"3.4", "3.5", "3.6", "3.7"}

// DefaultVersion is the line that most clusters run now.
const DefaultVersion = "3.6"

// Options say what kind of cluster is wanted. The zero value is one member without TLS on 127.0.0.1.
type Options struct {
	// Version is one of Versions; DefaultVersion if empty.
	Version string
	// Members that vote; one if zero.
	Members int
	// Learner adds one more member that does not vote. It is the last one in Cluster.Members.
	Learner bool
	// TLS for clients, who must show a certificate. Peers talk plain HTTP.
	TLS bool
	// CertLifetime is how long their certificates are valid; certs.Lifetime if zero.
	CertLifetime time.Duration
	// AnyClient lets clients in that show no certificate.
	AnyClient bool
	// IPv6 has clients connect to [::1].
	IPv6 bool
	// UnixSocket has clients connect to a unix socket instead of a port.
	UnixSocket bool
	// Partitionable puts a proxy in front of each member's peer port, which Isolate needs.
	Partitionable bool
	// Args are added to the command line of each member.
	Args []string
}

// Cluster is a running cluster.
type Cluster struct {
	Options Options
	// Members are those that vote, in no particular order, then the learner.
	Members []*Member
	// Certs is nil without TLS.
	Certs *certs.Set

	dir     string // all files
	sockets string // a folder with a short name: a socket's path is at most 107 bytes long
}

const (
	readyTime = time.Minute
	pollTime  = 50 * time.Millisecond
	// quota is far above what tests write.
	quota = 8 << 30
)

// New starts a cluster and waits until each member answers. Its files lie in dir, which is the caller's to remove
// after Stop. ctx bounds the start alone.
func New(ctx context.Context, dir string, opts Options) (*Cluster, error) {
	if opts.Version == "" {
		opts.Version = DefaultVersion
	}
	if opts.Members == 0 {
		opts.Members = 1
	}
	binaries, err := parts.Dir(ctx, "etcd-"+opts.Version)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	c := &Cluster{Options: opts, dir: dir}
	if opts.TLS {
		if c.Certs, err = certs.Write(filepath.Join(dir, "pki"), cmp.Or(opts.CertLifetime, certs.Lifetime)); err != nil {
			return nil, fmt.Errorf("make certificates: %w", err)
		}
	}
	// Between finding a free port and taking it somebody else may.
	for range 5 {
		if err = c.start(ctx, filepath.Join(binaries, "etcd")); err == nil {
			return c, nil
		}
		c.Stop()
		if !strings.Contains(err.Error(), "address already in use") {
			break
		}
	}
	return nil, fmt.Errorf("start etcd %s: %w", opts.Version, err)
}

func (c *Cluster) start(ctx context.Context, binary string) (err error) {
	c.Members = nil
	if c.Options.UnixSocket {
		if c.sockets, err = os.MkdirTemp("", "etcd"); err != nil {
			return err
		}
	}
	var initial []string
	for i := range c.Options.Members {
		m, err := c.newMember(i, binary)
		if err != nil {
			return err
		}
		initial = append(initial, m.Name+"="+m.peerURL)
		c.Members = append(c.Members, m)
	}
	for _, m := range c.Members {
		m.initial, m.state = strings.Join(initial, ","), "new"
		if err := m.launch(); err != nil {
			return err
		}
	}
	for _, m := range c.Members {
		if err := m.waitReady(ctx); err != nil {
			return err
		}
	}
	if c.Options.Learner {
		return c.addLearner(ctx, binary, initial)
	}
	return nil
}

func (c *Cluster) addLearner(ctx context.Context, binary string, initial []string) error {
	m, err := c.newMember(len(c.Members), binary)
	if err != nil {
		return err
	}
	m.Learner = true
	m.initial, m.state = strings.Join(append(initial, m.Name+"="+m.peerURL), ","), "existing"
	client, err := c.Client(0)
	if err != nil {
		return err
	}
	defer client.Close()
	// etcd refuses a new member until the others have been connected for a while.
	for {
		_, err := client.MemberAddAsLearner(ctx, []string{m.peerURL})
		if err == nil {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("add learner: %w: %w", ctx.Err(), err)
		case <-time.After(pollTime):
		}
	}
	c.Members = append(c.Members, m)
	if err := m.launch(); err != nil {
		return err
	}
	return m.waitReady(ctx)
}

// Stop kills all members. Stopping again does nothing.
func (c *Cluster) Stop() {
	for _, m := range c.Members {
		m.Stop()
		if m.peerProxy != nil {
			m.peerProxy.Close()
		}
	}
	if c.sockets != "" {
		_ = os.RemoveAll(c.sockets) // empty but for sockets that nobody listens on
		c.sockets = ""
	}
}

// Endpoints are the client URLs of all members.
func (c *Cluster) Endpoints() []string {
	var urls []string
	for _, m := range c.Members {
		urls = append(urls, m.ClientURL)
	}
	return urls
}

// Client connects to the i-th member, with a client certificate where there is TLS. The caller closes it.
func (c *Cluster) Client(i int) (*clientv3.Client, error) {
	return c.client(c.Members[i])
}

func (c *Cluster) client(m *Member) (*clientv3.Client, error) {
	config := clientv3.Config{Endpoints: []string{m.ClientURL}, DialTimeout: 10 * time.Second, Logger: zap.NewNop()}
	if c.Certs != nil {
		tls, err := c.Certs.ClientTLS()
		if err != nil {
			return nil, err
		}
		config.TLS = tls
	}
	client, err := clientv3.New(config)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", m.ClientURL, err)
	}
	return client, nil
}

// Leader gives the index of the member that leads now.
func (c *Cluster) Leader(ctx context.Context) (int, error) {
	for i, m := range c.Members {
		status, err := m.status(ctx)
		if err == nil && status.Leader == status.Header.MemberId {
			return i, nil
		}
	}
	return 0, errors.New("no member leads")
}

// Isolate cuts the i-th member off from the other members; clients still reach all of them. It needs
// Options.Partitionable. Heal undoes it.
func (c *Cluster) Isolate(ctx context.Context, i int) error {
	status, err := c.Members[i].status(ctx)
	if err != nil {
		return err
	}
	for j, m := range c.Members {
		if m.peerProxy == nil {
			return errors.New("isolate: the cluster is not partitionable")
		}
		if j == i {
			m.peerProxy.refuse("") // what the others send to it
		} else {
			m.peerProxy.refuse(fmt.Sprintf("%x", status.Header.MemberId)) // what it asks the others for
		}
	}
	return nil
}

// Heal ends all isolation.
func (c *Cluster) Heal() {
	for _, m := range c.Members {
		m.peerProxy.accept()
	}
}

// SaveSnapshot writes a snapshot of the i-th member to file, with etcd's own client.
func (c *Cluster) SaveSnapshot(ctx context.Context, i int, file string) (err error) {
	client, err := c.Client(i)
	if err != nil {
		return err
	}
	defer client.Close()
	stream, err := client.Snapshot(ctx)
	if err != nil {
		return fmt.Errorf("save snapshot: %w", err)
	}
	defer stream.Close()
	return writeFile(file, stream)
}

func writeFile(file string, r io.Reader) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, r); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// freePort finds a port of host that is free now.
func freePort(host string) (string, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}
