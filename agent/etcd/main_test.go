package etcd_test

import (
	"bytes"
	"crypto/sha256"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"etcdsnapshot.dev/agent/etcd"
	"etcdsnapshot.dev/ci/etcdtest"
	"etcdsnapshot.dev/ci/parts"
)

func TestMain(m *testing.M) {
	if file := os.Getenv(keyFileEnv); file != "" {
		tellAboutKeyFile(file)
	}
	goleak.VerifyTestMain(m)
}

// configFor is how a policy would reach c.
func configFor(c *etcdtest.Cluster, endpoints ...string) etcd.Config {
	if len(endpoints) == 0 {
		endpoints = c.Endpoints()
	}
	config := etcd.Config{Endpoints: endpoints}
	if c.Certs != nil {
		config.CAFile, config.CertFile, config.KeyFile = c.Certs.CAFile, c.Certs.ClientCertFile, c.Certs.ClientKeyFile
	}
	return config
}

func connect(t *testing.T, config etcd.Config) *etcd.Cluster {
	t.Helper()
	c, err := etcd.New(config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func members(t *testing.T, c *etcd.Cluster) []etcd.Member {
	t.Helper()
	ms, err := c.Members(t.Context())
	require.NoError(t, err)
	return ms
}

// unavailable is the error of a cluster without a usable member.
func unavailable(t *testing.T, config etcd.Config) *etcd.UnavailableError {
	t.Helper()
	_, err := connect(t, config).Members(t.Context())
	var e *etcd.UnavailableError
	require.ErrorAs(t, err, &e)
	require.NotContains(t, err.Error(), "deadline exceeded")
	return e
}

// requireProven has etcd's own tool judge a snapshot, and compares what was reported about it.
func requireProven(t *testing.T, db etcd.Database, data []byte) {
	t.Helper()
	require.EqualValues(t, len(data), db.Size)
	require.Equal(t, sha256.Sum256(data), db.SHA256)
	file := filepath.Join(t.TempDir(), "snapshot.db")
	require.NoError(t, os.WriteFile(file, data, 0o600))
	etcdutl := filepath.Join(parts.Require(t, "etcd-3.7"), "etcdutl")
	out, err := exec.Command(etcdutl, "snapshot", "restore", file, "--data-dir", filepath.Join(t.TempDir(), "restored")).CombinedOutput()
	require.NoError(t, err, string(out))
}

// logged is a logger whose lines can be looked at.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func hasIPv6() bool {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		return false
	}
	l.Close()
	return true
}

// TestEveryVersionAndWayToConnect takes a snapshot of each line of etcd over each kind of endpoint.
func TestEveryVersionAndWayToConnect(t *testing.T) {
	for _, version := range etcdtest.Versions {
		for name, o := range map[string]etcdtest.Options{
			"http": {}, "https": {TLS: true}, "https without client certificate": {TLS: true, AnyClient: true},
			"IPv6": {TLS: true, IPv6: true}, "unix": {UnixSocket: true}, "unixs": {UnixSocket: true, TLS: true},
		} {
			t.Run(version+"/"+name, func(t *testing.T) {
				t.Parallel()
				if o.IPv6 && !hasIPv6() {
					t.Skip("this machine has no IPv6 loopback")
				}
				o.Version = version
				server := etcdtest.Start(t, o)
				server.MustFill(t, 1<<20)
				config := configFor(server)
				if o.AnyClient {
					config.CertFile, config.KeyFile = "", ""
				}
				cluster := connect(t, config)
				want := "" // etcd tells the storage version from 3.6 on, and raises it a little after its start
				if version >= "3.6" {
					want = version + ".0"
				}
				var m etcd.Member
				require.Eventually(t, func() bool {
					ms := members(t, cluster)
					m = ms[0]
					return len(ms) == 1 && m.StorageVersion == want
				}, 20*time.Second, 20*time.Millisecond)
				require.Equal(t, server.Members[0].ClientURL, m.Endpoint)
				require.True(t, strings.HasPrefix(m.Version, version+"."), m.Version)
				require.True(t, m.Leader)
				require.Empty(t, m.Warnings)
				require.Greater(t, m.Revision, int64(1))
				require.Positive(t, m.DBSize)
				require.Positive(t, m.DBSizeInUse)
				require.NotZero(t, m.ClusterID)
				require.NotZero(t, m.MemberID)
				require.NotZero(t, m.RaftTerm)

				var got bytes.Buffer
				db, err := cluster.Snapshot(t.Context(), m, &got)
				require.NoError(t, err)
				requireProven(t, db, got.Bytes())
				require.Equal(t, want, db.Version)
			})
		}
	}
}

func TestServerName(t *testing.T) {
	server := etcdtest.Start(t, etcdtest.Options{TLS: true})
	config := configFor(server)
	config.ServerName = "etcd.example.test"
	require.Len(t, members(t, connect(t, config)), 1)
	config.ServerName = "other.example.test"
	err := unavailable(t, config)
	require.ErrorContains(t, err, "x509: certificate is valid for localhost, etcd.example.test, not other.example.test")
	require.ErrorContains(t, err, "set spec.etcd.serverName")
}

// The tools' environment is not ours: none of this must matter.
func TestEnvironmentIsIgnored(t *testing.T) {
	for name, value := range map[string]string{
		"ETCDCTL_ENDPOINTS": "http://127.0.0.1:1", "ETCDCTL_CACERT": "/nowhere", "ETCDCTL_USER": "a:b",
		"HTTP_PROXY": "http://127.0.0.1:1", "HTTPS_PROXY": "http://127.0.0.1:1", "ETCD_CLIENT_DEBUG": "debug",
	} {
		t.Setenv(name, value)
	}
	server := etcdtest.Start(t, etcdtest.Options{TLS: true})
	require.Len(t, members(t, connect(t, configFor(server))), 1)
}
