// Package kubetest runs a real kube-apiserver on a real etcd, for tests and for trying things out by hand: TLS and
// client certificates made on the spot, the RBAC authorizer on, service account tokens issued, everything on
// loopback. There is no kubelet and no controller: objects are stored, checked and guarded, and that is all.
package kubetest

import (
	"bytes"
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"etcdsnapshot.dev/ci/etcdtest"
	"etcdsnapshot.dev/ci/etcdtest/certs"
	"etcdsnapshot.dev/ci/parts"
)

// Server is one kube-apiserver.
type Server struct {
	// Etcd that the objects are kept in. It is the caller's to stop.
	Etcd *etcdtest.Cluster

	binaries string
	dir      string
	extra    []string
	port     int

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has ended
}

const (
	readyTime = 2 * time.Minute
	pollTime  = 100 * time.Millisecond
)

// Start starts a server and waits until it is ready: RBAC's own roles are there, and so is the namespace kube-system.
// Certificates and the log lie in dir, which is the caller's to remove after Kill. args are added to the command line; a
// flag given there replaces ours. ctx bounds the start alone.
func Start(ctx context.Context, dir string, etcd *etcdtest.Cluster, args ...string) (*Server, error) {
	s := &Server{Etcd: etcd, dir: dir, extra: args}
	var err error
	if s.binaries, err = parts.Dir(ctx, "kubernetes"); err != nil {
		return nil, err
	}
	if err := s.writeCerts(); err != nil {
		return nil, fmt.Errorf("make certificates: %w", err)
	}
	// Between finding a free port and taking it somebody else may.
	for range 5 {
		if s.port, err = freePort(); err != nil {
			return nil, err
		}
		if err = s.run(ctx); err == nil {
			return s, nil
		}
		if !strings.Contains(err.Error(), "address already in use") {
			break
		}
	}
	return nil, err
}

// With runs do around a server on an etcd of its own, with TLS, both in a temporary folder. The error is do's, or why the
// server could not be started or ended.
func With(ctx context.Context, do func(*Server) error) (err error) {
	dir, err := os.MkdirTemp("", "kubetest")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	etcdDir, serverDir := filepath.Join(dir, "etcd"), filepath.Join(dir, "kube-apiserver")
	for _, d := range []string{etcdDir, serverDir} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return err
		}
	}
	etcd, err := etcdtest.New(ctx, etcdDir, etcdtest.Options{TLS: true})
	if err != nil {
		return err
	}
	defer etcd.Stop()
	s, err := Start(ctx, serverDir, etcd)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Kill()) }()
	return do(s)
}

// Files in the server's folder.
const (
	caCert      = "ca.crt"
	servingCert = "apiserver.crt"
	servingKey  = "apiserver.key"
	adminCert   = "admin.crt"
	adminKey    = "admin.key"
	logFile     = "kube-apiserver.log"
)

func (s *Server) path(file string) string { return filepath.Join(s.dir, file) }

func (s *Server) writeCerts() error {
	ca, err := certs.NewCA("kubernetes")
	if err != nil {
		return err
	}
	if err := ca.WriteCert(s.path(caCert)); err != nil {
		return err
	}
	if err := ca.Issue(x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(10, 96, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, s.path(servingCert), s.path(servingKey)); err != nil {
		return err
	}
	return ca.Issue(x509.Certificate{
		Subject:     pkix.Name{CommonName: "kubernetes-admin", Organization: []string{"system:masters"}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, s.path(adminCert), s.path(adminKey))
}

// Dir is the folder of the server's files.
func (s *Server) Dir() string { return s.dir }

// URL of the server.
func (s *Server) URL() string { return fmt.Sprintf("https://127.0.0.1:%d", s.port) }

// Kill ends the server with SIGKILL, as an out-of-memory kill or a power cut would. Restart starts it again.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kill()
}

func (s *Server) kill() error {
	if s.cmd == nil {
		return nil
	}
	err := s.cmd.Process.Kill()
	<-s.done
	s.cmd = nil
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	return err
}

// Restart starts the server again, at the same address and with the same certificates, and waits until it is ready.
func (s *Server) Restart(ctx context.Context) error {
	if err := s.Kill(); err != nil {
		return err
	}
	return s.run(ctx)
}

// run starts the process and waits until it is ready.
func (s *Server) run(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	log, err := os.OpenFile(s.path(logFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(s.binaries, "kube-apiserver"), s.args()...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = dieWithParent()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start kube-apiserver: %w", err)
	}
	done := make(chan struct{})
	s.cmd, s.done = cmd, done
	go func() {
		defer close(done)
		_ = cmd.Wait() // how it ended is in the log
	}()
	if err := s.waitReady(ctx); err != nil {
		return errors.Join(fmt.Errorf("%w\n%s", err, s.LogTail(30)), s.kill())
	}
	return nil
}

func (s *Server) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	client, err := kubernetes.NewForConfig(s.Admin())
	if err != nil {
		return err
	}
	var last error
	for {
		_, last = client.RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		if last == nil {
			_, last = client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
		}
		if last == nil {
			return nil
		}
		select {
		case <-s.done:
			return errors.New("kube-apiserver ended before it was ready")
		case <-ctx.Done():
			return fmt.Errorf("kube-apiserver is not ready: %w: %w", ctx.Err(), last)
		case <-time.After(pollTime):
		}
	}
}

func (s *Server) args() []string {
	args := []string{
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1", // which cannot be an endpoint of the Service kubernetes, hence:
		"--endpoint-reconciler-type=none",
		fmt.Sprintf("--secure-port=%d", s.port),
		"--tls-cert-file=" + s.path(servingCert),
		"--tls-private-key-file=" + s.path(servingKey),
		"--client-ca-file=" + s.path(caCert),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + s.path(servingCert), // any key pair will do; this one is at hand
		"--service-account-signing-key-file=" + s.path(servingKey),
		"--authorization-mode=RBAC",
		"--allow-privileged=true",
		"--service-cluster-ip-range=10.96.0.0/16",
		"--etcd-servers=" + strings.Join(s.Etcd.Endpoints(), ","),
	}
	if c := s.Etcd.Certs; c != nil {
		args = append(args, "--etcd-cafile="+c.CAFile, "--etcd-certfile="+c.ClientCertFile, "--etcd-keyfile="+c.ClientKeyFile)
	}
	for _, extra := range s.extra {
		name, _, _ := strings.Cut(extra, "=")
		args = slices.DeleteFunc(args, func(ours string) bool { return strings.HasPrefix(ours, name+"=") })
	}
	return append(args, s.extra...)
}

// LogTail gives the last lines that the server logged.
func (s *Server) LogTail(lines int) string {
	data, err := os.ReadFile(s.path(logFile))
	if err != nil {
		return err.Error()
	}
	all := bytes.Split(bytes.TrimSpace(data), []byte("\n"))
	return string(bytes.Join(all[max(0, len(all)-lines):], []byte("\n")))
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// Admin is the configuration of a cluster administrator. Each call gives a new one.
func (s *Server) Admin() *rest.Config {
	config := s.anonymous()
	config.TLSClientConfig.CertFile = s.path(adminCert)
	config.TLSClientConfig.KeyFile = s.path(adminKey)
	return config
}

func (s *Server) anonymous() *rest.Config {
	return &rest.Config{Host: s.URL(), QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAFile: s.path(caCert)}}
}
