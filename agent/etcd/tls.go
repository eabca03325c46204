package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// tlsConfig reads the certificate files. The client certificate's leaf is parsed in the result.
func tlsConfig(config Config) (*tls.Config, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: config.ServerName, NextProtos: []string{"h2"}}
	if config.CAFile != "" {
		data, err := readFile(fieldCAFile, config.CAFile)
		if err != nil {
			return nil, err
		}
		if conf.RootCAs, err = readPool(data); err != nil {
			return nil, &ConfigError{Field: fieldCAFile, Err: fmt.Errorf("%s: %w", config.CAFile, err)}
		}
	}
	switch {
	case config.CertFile == "" && config.KeyFile == "":
		return conf, nil
	case config.KeyFile == "":
		return nil, &ConfigError{Field: fieldKeyFile, Err: errors.New("it is missing, and " + fieldCertFile + " is set: they go together")}
	case config.CertFile == "":
		return nil, &ConfigError{Field: fieldCertFile, Err: errors.New("it is missing, and " + fieldKeyFile + " is set: they go together")}
	}
	cert, err := readFile(fieldCertFile, config.CertFile)
	if err != nil {
		return nil, err
	}
	if _, err := readPool(cert); err != nil {
		return nil, &ConfigError{Field: fieldCertFile, Err: fmt.Errorf("%s: %w", config.CertFile, err)}
	}
	key, err := readFile(fieldKeyFile, config.KeyFile)
	if err != nil {
		return nil, err
	}
	if block, _ := pem.Decode(key); block == nil {
		return nil, &ConfigError{Field: fieldKeyFile, Err: fmt.Errorf("%s: no PEM block found", config.KeyFile)}
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, &ConfigError{Field: fieldKeyFile, Err: fmt.Errorf("%s does not go with certificate %s: %w", config.KeyFile, config.CertFile, err)}
	}
	conf.Certificates = []tls.Certificate{pair}
	// By default nothing is sent where the member's authorities do not include ours, and the member then says that a
	// certificate is missing. Sent all the same, it says what is wrong with it.
	conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	return conf, nil
}

// Expiry is when the certificates in a file (PEM) expire: of a certificate with its chain
// the first one counts, of a bundle of authorities the one that lasts longest.
func Expiry(file string, bundle bool) (time.Time, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return time.Time{}, err
	}
	certs, err := readCertificates(data)
	if err != nil {
		return time.Time{}, fmt.Errorf("%s: %w", file, err)
	}
	expiry := certs[0].NotAfter
	for _, c := range certs {
		if bundle && c.NotAfter.After(expiry) {
			expiry = c.NotAfter
		}
	}
	return expiry, nil
}

// readPool reads all certificates of a PEM file.
func readPool(data []byte) (*x509.CertPool, error) {
	certs, err := readCertificates(data)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	for _, c := range certs {
		pool.AddCert(c)
	}
	return pool, nil
}

func readCertificates(data []byte) (certs []*x509.Certificate, err error) {
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		certs = append(certs, cert)
	}
	if len(certs) == 0 {
		return nil, errors.New("no PEM certificate found")
	}
	return certs, nil
}

func readFile(field, file string) ([]byte, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w (%s)", err, asUser())
	}
	if err != nil {
		return nil, &ConfigError{Field: field, Err: err}
	}
	return data, nil
}

// asUser says who we are to the file system.
func asUser() string { return fmt.Sprintf("as uid %d", os.Geteuid()) }
