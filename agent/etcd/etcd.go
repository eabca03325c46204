// Package etcd takes a snapshot from a running etcd cluster: it asks every endpoint for its status, chooses the
// member to ask, streams that member's database, and compares etcd's own checksum in passing.
//
// It speaks etcd's Maintenance service (etcdserverpb in go.etcd.io/etcd/api/v3, the same on the wire from 3.4 to
// 3.7) over one gRPC connection for each endpoint, so that exactly the member that was chosen is asked. Nothing is
// read from the environment, and errors of a connection surface as themselves: a certificate that is not trusted is
// an x509 error, never a deadline.
package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"time"
)

// SupportedVersions are the lines of etcd that this package is tested with, oldest first.
var SupportedVersions = []string{"3.4", "3.5", "3.6", "3.7"}

// Config says how to reach a cluster. Fields are those of spec.etcd in a policy.
type Config struct {
	// Endpoints are client URLs: https://, http://, unix:// or unixs://, the last two with the path of a socket.
	// A host without a port means port 2379.
	Endpoints []string
	// CAFile holds the PEM certificates that members' certificates are checked against; the system's roots if empty.
	CAFile string
	// CertFile and KeyFile are the client certificate and its key (PEM): both or neither.
	CertFile, KeyFile string
	// ServerName is what members' certificates must be for, where it is not the endpoint's host. For a unix socket
	// the default is the file's name up to a colon, as with etcd's own client.
	ServerName string

	// DialTimeout is how long an endpoint may take to be connected to and to tell its status; 10 s if zero.
	DialTimeout time.Duration
	// StallTimeout is how long a stream may go without a byte; 60 s if zero.
	StallTimeout time.Duration
	// Logger takes warnings about members; nil drops them.
	Logger *slog.Logger
}

const (
	defaultDialTimeout  = 10 * time.Second
	defaultStallTimeout = time.Minute
)

// Cluster is a set of endpoints that are believed to be one cluster. It is safe for concurrent use.
type Cluster struct {
	config Config
	links  []*link
	leaf   *x509.Certificate // of the client certificate; nil if there is none
	log    *slog.Logger
}

// New reads the certificates and prepares one connection for each endpoint; it connects to none. The error is a
// *ConfigError.
func New(config Config) (*Cluster, error) {
	if config.DialTimeout == 0 {
		config.DialTimeout = defaultDialTimeout
	}
	if config.StallTimeout == 0 {
		config.StallTimeout = defaultStallTimeout
	}
	c := &Cluster{config: config, log: config.Logger}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if len(config.Endpoints) == 0 {
		return nil, &ConfigError{Field: fieldEndpoints, Err: errors.New("at least one endpoint is needed, such as https://127.0.0.1:2379")}
	}
	base, err := tlsConfig(config)
	if err != nil {
		return nil, err
	}
	if len(base.Certificates) > 0 {
		c.leaf = base.Certificates[0].Leaf
	}
	for _, endpoint := range config.Endpoints {
		a, err := parseEndpoint(endpoint)
		if err != nil {
			c.Close()
			return nil, &ConfigError{Field: fieldEndpoints, Err: err}
		}
		var conf *tls.Config
		if a.secure {
			conf = base.Clone()
			if conf.ServerName == "" {
				conf.ServerName = a.serverName
			}
		}
		l, err := newLink(a, conf, config.DialTimeout)
		if err != nil {
			c.Close()
			return nil, &ConfigError{Field: fieldEndpoints, Err: err}
		}
		c.links = append(c.links, l)
	}
	return c, nil
}

// Close ends all connections, and streams that still run.
func (c *Cluster) Close() error {
	var errs []error
	for _, l := range c.links {
		errs = append(errs, l.conn.Close())
	}
	return errors.Join(errs...)
}
