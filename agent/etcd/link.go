package etcd

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const (
	// window is how much of a stream may be on its way or unread: enough for 10 Gbit/s over 3 ms. It bounds our
	// memory, too. gRPC's default of 64 KiB is a round trip for every two messages of etcd.
	window = 4 << 20
	// readBuffer is how much is read from the connection at once. It is below TLS, which would ask the system for each
	// record of 16 KiB; what gRPC reads comes out of it and needs no large buffer of its own.
	readBuffer = 256 << 10
	// maxMessage is far above the 32 KiB that etcd sends at once.
	maxMessage = 16 << 20
	// firstByteTime is how long the peer may take to send something once TLS is up. It is a matter of a round trip,
	// and not waiting longer costs no more than a clear error.
	firstByteTime = 3 * time.Second
)

// link is the connection to one endpoint. gRPC hides why it could not connect, so the link takes note itself.
type link struct {
	address
	conf        *tls.Config // nil without TLS
	conn        *grpc.ClientConn
	maintenance pb.MaintenanceClient

	mu    sync.Mutex
	stage stage
	err   error // why the last attempt to connect failed; nil once one succeeds
	leaf  *x509.Certificate
}

// stage is how far the last attempt to connect got.
type stage int

const (
	connecting stage = iota
	handshaking
	connected
)

func (s stage) String() string {
	return [...]string{
		"while connecting",
		"to the TLS handshake: something accepts connections there and says nothing",
		"to the request: the member is connected and says nothing",
	}[s]
}

func newLink(a address, conf *tls.Config, dialTimeout time.Duration) (*link, error) {
	l := &link{address: a, conf: conf}
	creds := insecure.NewCredentials()
	if conf != nil {
		creds = &recorder{link: l, conf: conf}
	}
	var err error
	l.conn, err = grpc.NewClient("passthrough:///"+a.authority,
		grpc.WithContextDialer(l.dial),
		grpc.WithTransportCredentials(creds),
		grpc.WithAuthority(a.authority),
		grpc.WithNoProxy(),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second},
			// The request, which is given dialTimeout, is to end first: it knows better what to say.
			MinConnectTimeout: dialTimeout + 5*time.Second,
		}),
		grpc.WithInitialWindowSize(window),
		grpc.WithInitialConnWindowSize(window),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
	)
	if err != nil {
		return nil, err
	}
	l.maintenance = pb.NewMaintenanceClient(l.conn)
	return l, nil
}

func (l *link) dial(ctx context.Context, _ string) (net.Conn, error) {
	l.reached(connecting)
	conn, err := (&net.Dialer{}).DialContext(ctx, l.network, l.addr)
	if err != nil {
		l.failed(err)
		return nil, err
	}
	if !l.secure {
		l.reached(connected)
	}
	return &bufferedConn{conn, bufio.NewReaderSize(conn, readBuffer)}, nil
}

// bufferedConn reads ahead.
type bufferedConn struct {
	net.Conn
	r *bufio.Reader
}

func (c *bufferedConn) Read(p []byte) (int, error) { return c.r.Read(p) }

func (l *link) reached(s stage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stage = s
	if s == connected {
		l.err = nil
	}
}

// showed keeps the certificate of the peer.
func (l *link) showed(chain []*x509.Certificate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(chain) > 0 {
		l.leaf = chain[0]
	}
}

func (l *link) certificate() *x509.Certificate {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leaf
}

func (l *link) failed(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil || !isTimeout(err) { // a timeout tells less than what came before
		l.err = err
	}
}

// cause turns the error of a request, which was given the time within, into what is behind it.
func (l *link) cause(err error, within time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	code := status.Code(err)
	switch {
	case code != codes.Unavailable && code != codes.DeadlineExceeded:
		return err // etcd's own answer
	case l.err != nil && !isTimeout(l.err):
		return l.err
	case l.err != nil || code == codes.DeadlineExceeded:
		return &NoAnswerError{Within: within, While: l.stage.String()}
	}
	return err
}

// isTimeout reports whether err says no more than that an attempt was given up.
func isTimeout(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
}

// recorder is TLS for gRPC's client side that keeps the errors of a handshake.
type recorder struct {
	link *link
	conf *tls.Config
}

func (r *recorder) ClientHandshake(ctx context.Context, _ string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	r.link.reached(handshaking)
	conn, err := r.handshake(ctx, raw)
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("the endpoint closed the connection in the TLS handshake: %w", err)
	}
	if err != nil {
		raw.Close()
		r.link.failed(err)
		return nil, nil, err
	}
	r.link.showed(conn.ConnectionState().PeerCertificates)
	r.link.reached(connected)
	return conn, credentials.TLSInfo{State: conn.ConnectionState(), CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}, nil
}

// handshake also waits for the first byte of the peer. In TLS 1.3 our side is done before the peer has looked at our
// certificate; that it does not like it would come as an alert after gRPC has begun to write, which may fail first
// and then hides the alert. An HTTP/2 server speaks first, so one byte means that we are let in.
func (r *recorder) handshake(ctx context.Context, raw net.Conn) (*prefixConn, error) {
	conn := tls.Client(raw, r.conf)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	p := &prefixConn{Conn: conn}
	if conn.ConnectionState().Version < tls.VersionTLS13 {
		return p, nil
	}
	if err := conn.SetReadDeadline(time.Now().Add(firstByteTime)); err != nil {
		return nil, err
	}
	// crypto/tls goes on after a read that ran into its deadline.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	n, err := conn.Read(p.first[:])
	if !stop() {
		return nil, ctx.Err()
	}
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, err
	}
	p.left = n
	return p, conn.SetReadDeadline(time.Time{})
}

func (r *recorder) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these credentials are a client's")
}

func (r *recorder) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

func (r *recorder) Clone() credentials.TransportCredentials { c := *r; return &c }

// OverrideServerName is deprecated in gRPC, and the interface still has it.
func (r *recorder) OverrideServerName(string) error { return errors.ErrUnsupported }

// prefixConn gives back the byte that handshake has read.
type prefixConn struct {
	*tls.Conn
	first [1]byte
	left  int // bytes of first that are unread
}

func (c *prefixConn) Read(p []byte) (int, error) {
	if c.left > 0 && len(p) > 0 {
		c.left = 0
		p[0] = c.first[0]
		return 1, nil
	}
	return c.Conn.Read(p)
}
