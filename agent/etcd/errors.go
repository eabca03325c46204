package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Why a member is not asked for a snapshot, and why one that was asked gave none.
var (
	// ErrLearner: the member does not vote yet and may lack much of the data.
	ErrLearner = errors.New("it is a learner")
	// ErrLagging: the member is too far behind the others; see MaxLag.
	ErrLagging = errors.New("it lags behind")
	// ErrCorrupt: etcd itself found this member's data to differ from the other members' (alarm CORRUPT).
	ErrCorrupt = errors.New("etcd has raised the alarm CORRUPT for it")
	// ErrDuplicate: another endpoint leads to the same member.
	ErrDuplicate = errors.New("it is the same member")

	// ErrNotEtcd: something else answers there. Kine, which k3s and MicroK8s' dqlite use to keep Kubernetes' state in another
	// database, answers a Status that names no member
	// (https://github.com/k3s-io/kine/blob/master/pkg/server/maintenance.go).
	ErrNotEtcd = errors.New("the answer names no member: this is not etcd, but perhaps kine in front of another database")

	// ErrStreamCut: the stream ended before all of the database was received.
	ErrStreamCut = errors.New("the snapshot stream was cut short")
	// ErrTrailerMissing: the stream ended well, without etcd's checksum.
	ErrTrailerMissing = errors.New("the snapshot has no checksum at its end")
	// ErrTrailerMismatch: the database that was received is not the one that etcd took the checksum of.
	ErrTrailerMismatch = errors.New("the snapshot does not match its checksum")
)

// Fields of a policy that a ConfigError names.
const (
	fieldEndpoints = "spec.etcd.endpoints"
	fieldCAFile    = "spec.etcd.caFile"
	fieldCertFile  = "spec.etcd.certFile"
	fieldKeyFile   = "spec.etcd.keyFile"
)

// ConfigError is a configuration that cannot work; trying again does not help.
type ConfigError struct {
	// Field is the path of the field in the policy, such as spec.etcd.keyFile.
	Field string
	Err   error
}

func (e *ConfigError) Error() string { return e.Field + ": " + e.Err.Error() }
func (e *ConfigError) Unwrap() error { return e.Err }

// EndpointError says why the member behind an endpoint is not asked for a snapshot.
type EndpointError struct {
	Endpoint string
	Err      error
}

func (e *EndpointError) Error() string { return e.Endpoint + ": " + e.Err.Error() }
func (e *EndpointError) Unwrap() error { return e.Err }

// UnavailableError says that no member can be asked for a snapshot, and why for each endpoint.
type UnavailableError struct{ Endpoints []*EndpointError }

func (e *UnavailableError) Error() string {
	var texts []string
	for _, one := range e.Endpoints {
		texts = append(texts, one.Error())
	}
	return "no etcd member can give a snapshot: " + strings.Join(texts, "; ")
}

func (e *UnavailableError) Unwrap() []error {
	var errs []error
	for _, one := range e.Endpoints {
		errs = append(errs, one)
	}
	return errs
}

// StallError says that a stream made no progress.
type StallError struct {
	// Received is how many bytes had come.
	Received int64
	// For is how long no further byte came. Time that our own side took to write is not in it.
	For time.Duration
}

func (e *StallError) Error() string {
	return fmt.Sprintf("the snapshot stream stalled: no byte for %s after %d bytes", e.For, e.Received)
}

// NoAnswerError says that an endpoint took too long, and how far it got.
type NoAnswerError struct {
	Within time.Duration
	// While is what was waited for.
	While string
}

func (e *NoAnswerError) Error() string {
	return fmt.Sprintf("no answer within %s %s", e.Within, e.While)
}

// hint adds to err, which came of a connection or a request, what can be done about it.
func (c *Cluster) hint(err error) error {
	if text := c.hintText(err); text != "" {
		return fmt.Errorf("%w (%s)", err, text)
	}
	return err
}

func (c *Cluster) hintText(err error) string {
	var (
		authority x509.UnknownAuthorityError
		hostname  x509.HostnameError
		invalid   x509.CertificateInvalidError
		record    tls.RecordHeaderError
		op        *net.OpError
	)
	switch {
	case errors.As(err, &authority) && c.config.CAFile == "":
		return "the system's roots do not know the member's authority: set " + fieldCAFile
	case errors.As(err, &authority):
		return "the member's certificate is not signed by an authority in " + fieldCAFile + " " + c.config.CAFile
	case errors.As(err, &hostname):
		return "set spec.etcd.serverName to a name that the member's certificate is for"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "set this machine's clock, or renew the member's certificate"
	case errors.As(err, &record), errors.Is(err, io.EOF):
		return "perhaps it does not speak TLS and is http://"
	case errors.As(err, &op) && op.Op == "remote error": // crypto/tls: an alert that the peer sent
		return c.rejectedHint()
	case errors.Is(err, fs.ErrPermission):
		return "the socket may not be opened " + asUser()
	}
	s, ok := status.FromError(err)
	if !ok {
		return ""
	}
	switch {
	case s.Code() == codes.PermissionDenied, s.Code() == codes.Unauthenticated, strings.Contains(s.Message(), "user name is empty"):
		return "etcd's own authentication is on: the common name of the client certificate must be a user with the role root"
	case s.Code() == codes.Unavailable && strings.Contains(s.Message(), "server preface"):
		return "the endpoint does not speak etcd's protocol: is it https://, or another port?"
	}
	return ""
}

// rejectedHint is about our certificate that a member does not take.
func (c *Cluster) rejectedHint() string {
	if c.config.CertFile == "" {
		return "etcd wants a client certificate: set " + fieldCertFile + " and " + fieldKeyFile
	}
	text := "etcd does not take the client certificate " + c.config.CertFile
	if c.leaf != nil && time.Now().After(c.leaf.NotAfter) {
		text += ", which expired on " + c.leaf.NotAfter.UTC().Format(time.RFC3339) + ": renew it"
	}
	return text
}
