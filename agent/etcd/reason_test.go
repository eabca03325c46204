package etcd_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcdsnapshot.dev/agent/etcd"
	"etcdsnapshot.dev/ci/etcdtest"
)

// TestCertificateReasons is what a user sees when certificates are wrong. All lines of etcd say it in the same words.
func TestCertificateReasons(t *testing.T) {
	for _, version := range etcdtest.Versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			server := etcdtest.Start(t, etcdtest.Options{TLS: true, Version: version})
			certs := server.Certs
			good := configFor(server)

			t.Run("wrong CA", func(t *testing.T) {
				config := good
				config.CAFile = certs.OtherCAFile
				err := unavailable(t, config)
				var authority x509.UnknownAuthorityError
				require.ErrorAs(t, err, &authority)
				require.ErrorContains(t, err, "x509: certificate signed by unknown authority")
				require.ErrorContains(t, err, "not signed by an authority in spec.etcd.caFile "+certs.OtherCAFile)
			})
			t.Run("no CA", func(t *testing.T) {
				config := good
				config.CAFile = ""
				err := unavailable(t, config)
				require.ErrorContains(t, err, "x509: certificate signed by unknown authority")
				require.ErrorContains(t, err, "set spec.etcd.caFile")
			})
			t.Run("expired client certificate", func(t *testing.T) {
				config := good
				config.CertFile, config.KeyFile = certs.ExpiredClientCertFile, certs.ExpiredClientKeyFile
				err := unavailable(t, config)
				require.ErrorContains(t, err, "remote error: tls: expired certificate")
				require.ErrorContains(t, err, certs.ExpiredClientCertFile+", which expired on 2")
			})
			t.Run("no client certificate", func(t *testing.T) {
				config := good
				config.CertFile, config.KeyFile = "", ""
				err := unavailable(t, config)
				require.ErrorContains(t, err, "remote error: tls: certificate required")
				require.ErrorContains(t, err, "etcd wants a client certificate: set spec.etcd.certFile and spec.etcd.keyFile")
			})
			t.Run("client certificate of another CA", func(t *testing.T) {
				config := good
				config.CertFile, config.KeyFile = certs.OtherClientCertFile, certs.OtherClientKeyFile
				err := unavailable(t, config)
				require.ErrorContains(t, err, "remote error: tls: unknown certificate authority")
				require.ErrorContains(t, err, "does not take the client certificate "+certs.OtherClientCertFile)
			})
		})
	}
}

// TestCertificateReasonsOverTLS12 has the alert come within the handshake.
func TestCertificateReasonsOverTLS12(t *testing.T) {
	server := etcdtest.Start(t, etcdtest.Options{TLS: true, Args: []string{"--tls-max-version=TLS1.2"}})
	config := configFor(server)
	require.Len(t, members(t, connect(t, config)), 1)
	config.CertFile, config.KeyFile = server.Certs.ExpiredClientCertFile, server.Certs.ExpiredClientKeyFile
	require.ErrorContains(t, unavailable(t, config), "remote error: tls: expired certificate")
}

func TestConnectionReasons(t *testing.T) {
	server := etcdtest.Start(t, etcdtest.Options{TLS: true})
	plain := etcdtest.Start(t, etcdtest.Options{})
	config := configFor(server)
	config.DialTimeout = 2 * time.Second
	one := func(t *testing.T, endpoint string) error {
		t.Helper()
		c := config
		c.Endpoints = []string{endpoint}
		err := unavailable(t, c)
		require.Len(t, err.Endpoints, 1)
		require.Equal(t, endpoint, err.Endpoints[0].Endpoint)
		return err
	}
	t.Run("refused", func(t *testing.T) {
		err := one(t, "https://127.0.0.1:1")
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.ErrorContains(t, err, "dial tcp 127.0.0.1:1: connect: connection refused")
	})
	t.Run("no such host", func(t *testing.T) {
		var dns *net.DNSError
		require.ErrorAs(t, one(t, "https://etcd.invalid:2379"), &dns)
	})
	t.Run("no such socket", func(t *testing.T) {
		require.ErrorIs(t, one(t, "unix:///nowhere/etcd.sock"), fs.ErrNotExist)
	})
	t.Run("https to a plain port", func(t *testing.T) {
		err := one(t, "https"+plain.Members[0].ClientURL[len("http"):])
		require.ErrorContains(t, err, "closed the connection in the TLS handshake")
		require.ErrorContains(t, err, "is http://")
	})
	t.Run("https to what is no etcd at all", func(t *testing.T) {
		web := httptest.NewServer(http.NotFoundHandler())
		defer web.Close()
		err := one(t, "https"+web.URL[len("http"):])
		require.ErrorAs(t, err, new(tls.RecordHeaderError))
		require.ErrorContains(t, err, "is http://")
		require.ErrorContains(t, one(t, web.URL), "does not speak etcd's protocol")
	})
	t.Run("http to a TLS port", func(t *testing.T) {
		require.ErrorContains(t, one(t, "http"+server.Members[0].ClientURL[len("https"):]), "is it https://")
	})
	t.Run("a server that says nothing", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		var silent *etcd.NoAnswerError
		err = one(t, "https://"+l.Addr().String())
		require.ErrorAs(t, err, &silent)
		require.ErrorContains(t, err, "no answer within 2s to the TLS handshake")
		require.ErrorAs(t, one(t, "http://"+l.Addr().String()), &silent)
	})
	t.Run("a server that hangs up", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				conn.Close()
			}
		}()
		require.NotErrorAs(t, one(t, "https://"+l.Addr().String()), new(*etcd.NoAnswerError))
		require.NotErrorAs(t, one(t, "http://"+l.Addr().String()), new(*etcd.NoAnswerError))
	})
	t.Run("a member that is paused", func(t *testing.T) {
		cluster := connect(t, config)
		require.Len(t, members(t, cluster), 1)
		require.NoError(t, server.Members[0].Pause(t.Context()))
		defer func() { require.NoError(t, server.Members[0].Resume()) }()
		_, err := cluster.Members(t.Context()) // connected before
		require.ErrorContains(t, err, "no answer within 2s to the request")
		require.ErrorContains(t, unavailable(t, config), "no answer within 2s to the TLS handshake")
	})
	t.Run("every endpoint is named", func(t *testing.T) {
		c := config
		c.Endpoints = []string{"https://127.0.0.1:1", "https://127.0.0.1:2", "https://[::1]:1"}
		err := unavailable(t, c)
		require.Len(t, err.Endpoints, 3)
		for i, e := range err.Endpoints {
			require.Equal(t, c.Endpoints[i], e.Endpoint)
			require.ErrorContains(t, err, e.Error())
		}
	})
}

func TestFileReasons(t *testing.T) {
	server := etcdtest.Start(t, etcdtest.Options{TLS: true})
	good, dir := configFor(server), t.TempDir()
	junk := filepath.Join(dir, "junk.pem")
	require.NoError(t, os.WriteFile(junk, []byte("junk"), 0o600))
	broken := filepath.Join(dir, "broken.pem")
	require.NoError(t, os.WriteFile(broken, []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), 0o600))
	missing := filepath.Join(dir, "missing")
	for name, test := range map[string]struct {
		change func(*etcd.Config)
		field  string
		phrase string
	}{
		"CA missing":          {func(c *etcd.Config) { c.CAFile = missing }, "spec.etcd.caFile", "open " + missing + ": no such file or directory"},
		"CA is a folder":      {func(c *etcd.Config) { c.CAFile = dir }, "spec.etcd.caFile", "is a directory"},
		"CA is junk":          {func(c *etcd.Config) { c.CAFile = junk }, "spec.etcd.caFile", junk + ": no PEM certificate found"},
		"CA is broken":        {func(c *etcd.Config) { c.CAFile = broken }, "spec.etcd.caFile", broken + ": x509: malformed certificate"},
		"certificate missing": {func(c *etcd.Config) { c.CertFile = missing }, "spec.etcd.certFile", "no such file"},
		"certificate is junk": {func(c *etcd.Config) { c.CertFile = junk }, "spec.etcd.certFile", junk + ": no PEM certificate found"},
		"key missing":         {func(c *etcd.Config) { c.KeyFile = missing }, "spec.etcd.keyFile", "open " + missing + ": no such file"},
		"key is a folder":     {func(c *etcd.Config) { c.KeyFile = dir }, "spec.etcd.keyFile", "is a directory"},
		"key is junk":         {func(c *etcd.Config) { c.KeyFile = junk }, "spec.etcd.keyFile", junk + ": no PEM block found"},
		"key of another":      {func(c *etcd.Config) { c.KeyFile = server.Certs.OtherClientKeyFile }, "spec.etcd.keyFile", "private key does not match public key"},
		"no key":              {func(c *etcd.Config) { c.KeyFile = "" }, "spec.etcd.keyFile", "it is missing"},
		"no certificate":      {func(c *etcd.Config) { c.CertFile = "" }, "spec.etcd.certFile", "it is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			config := good
			test.change(&config)
			_, err := etcd.New(config)
			var e *etcd.ConfigError
			require.ErrorAs(t, err, &e)
			require.Equal(t, test.field, e.Field)
			require.ErrorContains(t, err, test.field+": ")
			require.ErrorContains(t, err, test.phrase)
		})
	}
}

// keyFileEnv has the test binary be an agent that may not read its key file, see TestKeyFileOfAnotherUser.
const keyFileEnv = "ETCD_TEST_KEY_FILE"

func tellAboutKeyFile(file string) {
	_, err := etcd.New(etcd.Config{Endpoints: []string{"https://127.0.0.1:1"}, CAFile: os.Getenv("ETCD_TEST_CA_FILE"), CertFile: os.Getenv("ETCD_TEST_CERT_FILE"), KeyFile: file})
	fmt.Fprint(os.Stdout, err)
	os.Exit(0)
}

// root may read everything, so the agent runs as another user here.
func TestKeyFileOfAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("changing the user needs root; the same error for oneself is in TestUnreadableKeyFile")
	}
	// The test binary and the certificates must be reachable for that user, the key must not be readable.
	dir, err := os.MkdirTemp("/var/tmp", "etcd-test")
	require.NoError(t, err)
	defer func() { require.NoError(t, os.RemoveAll(dir)) }()
	require.NoError(t, os.Chmod(dir, 0o755))
	server := etcdtest.Start(t, etcdtest.Options{TLS: true})
	put := func(name, from string, mode os.FileMode) string {
		data, err := os.ReadFile(from)
		require.NoError(t, err)
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, data, mode))
		return file
	}
	agent := put("agent", os.Args[0], 0o755)
	ca, cert := put("ca.crt", server.Certs.CAFile, 0o644), put("client.crt", server.Certs.ClientCertFile, 0o644)
	key := put("client.key", server.Certs.ClientKeyFile, 0o600)
	cmd := exec.Command(agent)
	cmd.Dir = dir
	cmd.Env = []string{keyFileEnv + "=" + key, "ETCD_TEST_CA_FILE=" + ca, "ETCD_TEST_CERT_FILE=" + cert}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.Output()
	require.NoError(t, err)
	require.Equal(t, "spec.etcd.keyFile: open "+key+": permission denied (as uid 65534)", string(out))
}

func TestUnreadableKeyFile(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root may read everything; TestKeyFileOfAnotherUser is for root")
	}
	server := etcdtest.Start(t, etcdtest.Options{TLS: true})
	config := configFor(server)
	require.NoError(t, os.Chmod(config.KeyFile, 0))
	_, err := etcd.New(config)
	require.ErrorIs(t, err, fs.ErrPermission)
	require.ErrorContains(t, err, "as uid ")
}
