// Package certs makes the certificates of a throwaway etcd: what a cluster has in /etc/kubernetes/pki/etcd, and the
// broken ones that a test needs.
package certs

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Lifetime of what is valid where none is given, counted from a little before now: a run of tests is over long before.
const Lifetime = 24 * time.Hour

// Set is a set of PEM files, all of mode 0600.
type Set struct {
	// CAFile holds the authority that signed all but the Other ones.
	CAFile string
	// ServerCertFile is for 127.0.0.1, ::1, localhost and etcd.example.test.
	ServerCertFile, ServerKeyFile string
	// ClientCertFile names the user root, as kubeadm's etcd client certificates do not: any name is let in.
	ClientCertFile, ClientKeyFile string
	// ExpiredClientCertFile was valid until an hour ago.
	ExpiredClientCertFile, ExpiredClientKeyFile string
	// OtherCAFile holds an authority that nobody trusts, and OtherClientCertFile is what it signed.
	OtherCAFile, OtherClientCertFile, OtherClientKeyFile string
}

// Write makes a new set in dir, which is made if it is missing. What is valid lasts for lifetime.
func Write(dir string, lifetime time.Duration) (*Set, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	s := &Set{}
	ca, err := newCA("etcd-ca", lifetime)
	if err != nil {
		return nil, err
	}
	other, err := newCA("other-ca", lifetime)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	for _, a := range []struct {
		ca   *CA
		file *string
		name string
	}{{ca, &s.CAFile, "ca.crt"}, {other, &s.OtherCAFile, "other-ca.crt"}} {
		*a.file = filepath.Join(dir, a.name)
		if err := a.ca.WriteCert(*a.file); err != nil {
			return nil, err
		}
	}
	for _, l := range []struct {
		ca        *CA
		cert, key *string
		name      string
		template  x509.Certificate
	}{
		{ca, &s.ServerCertFile, &s.ServerKeyFile, "server", x509.Certificate{
			Subject:     pkix.Name{CommonName: "etcd"},
			DNSNames:    []string{"localhost", "etcd.example.test"},
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
			// A server is also a client of itself: its gateway dials its own gRPC port.
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		}},
		{ca, &s.ClientCertFile, &s.ClientKeyFile, "client", client("root")},
		{ca, &s.ExpiredClientCertFile, &s.ExpiredClientKeyFile, "expired-client", func() x509.Certificate {
			c := client("root")
			c.NotBefore, c.NotAfter = now.Add(-2*time.Hour), now.Add(-time.Hour)
			return c
		}()},
		{other, &s.OtherClientCertFile, &s.OtherClientKeyFile, "other-client", client("root")},
	} {
		*l.cert, *l.key = filepath.Join(dir, l.name+".crt"), filepath.Join(dir, l.name+".key")
		if err := l.ca.Issue(l.template, *l.cert, *l.key); err != nil {
			return nil, fmt.Errorf("issue %s: %w", l.name, err)
		}
	}
	return s, nil
}

func client(name string) x509.Certificate {
	return x509.Certificate{Subject: pkix.Name{CommonName: name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
}

// CA is a certificate authority. Its key is in memory only.
type CA struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// NewCA makes an authority.
func NewCA(name string) (*CA, error) { return newCA(name, Lifetime) }

func newCA(name string, lifetime time.Duration) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-3 * time.Hour), NotAfter: now.Add(lifetime),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &CA{cert: cert, key: key}, nil
}

// WriteCert writes the authority's own certificate.
func (ca *CA) WriteCert(file string) error { return write(file, "CERTIFICATE", ca.cert.Raw) }

// Issue signs template with a new key and writes both. Left-out dates are those of a valid certificate.
func (ca *CA) Issue(template x509.Certificate, certFile, keyFile string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62)); err != nil {
		return err
	}
	if template.NotAfter.IsZero() {
		template.NotBefore, template.NotAfter = ca.cert.NotBefore, ca.cert.NotAfter
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, &template, ca.cert, key.Public(), ca.key)
	if err != nil {
		return err
	}
	if err := write(certFile, "CERTIFICATE", der); err != nil {
		return err
	}
	if der, err = x509.MarshalECPrivateKey(key); err != nil {
		return err
	}
	return write(keyFile, "EC PRIVATE KEY", der)
}

func write(file, kind string, der []byte) error {
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// ClientTLS is the configuration of a good client.
func (s *Set) ClientTLS() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(s.ClientCertFile, s.ClientKeyFile)
	if err != nil {
		return nil, err
	}
	pem, err := os.ReadFile(s.CAFile)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate", s.CAFile)
	}
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}, nil
}
