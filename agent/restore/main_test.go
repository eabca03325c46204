package restore_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/restore"
	"etcdsnapshot.dev/ci/etcdtest"
	"etcdsnapshot.dev/ci/parts"
)

func TestMain(m *testing.M) {
	if os.Getenv(asKubeadm) != "" {
		os.Exit(kubeadmMain())
	}
	os.Exit(m.Run())
}

// content is what a real etcd held when its snapshot was taken.
type content struct {
	version  string
	db       []byte // the snapshot
	raw      []byte // the member's own file snap/db after it was stopped
	revision int64
	keys     map[string]string
	leases   map[clientv3.LeaseID][]string
	members  int
}

var contents = struct {
	sync.Mutex
	m map[string]*content
}{m: map[string]*content{}}

// real gives a snapshot of a real etcd of that version, with deletions, leases and a compaction in its history.
func real(t *testing.T, version string) *content { return realOf(t, version, 1) }

func realOf(t *testing.T, version string, members int) *content {
	t.Helper()
	contents.Lock()
	defer contents.Unlock()
	key := fmt.Sprint(version, "/", members)
	if c, ok := contents.m[key]; ok {
		return c
	}
	dir, err := os.MkdirTemp("", "restore-real-")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	ctx := t.Context()
	cluster, err := etcdtest.New(ctx, dir, etcdtest.Options{Version: version, Members: members})
	require.NoError(t, err)
	defer cluster.Stop()
	_, err = cluster.Fill(ctx, 1<<20)
	require.NoError(t, err)
	client, err := cluster.Client(0)
	require.NoError(t, err)
	defer client.Close()
	for i := range 3 {
		lease, err := client.Grant(ctx, 36000)
		require.NoError(t, err)
		for n := range 5 {
			_, err := client.Put(ctx, fmt.Sprintf("/registry/leased/%d/%d", i, n), "x", clientv3.WithLease(lease.ID))
			require.NoError(t, err)
		}
	}
	for i := range 10 {
		key, _ := etcdtest.Object(i)
		_, err := client.Delete(ctx, key)
		require.NoError(t, err)
	}
	got, err := client.Put(ctx, "/registry/last", "x")
	require.NoError(t, err)
	_, err = client.Compact(ctx, got.Header.Revision-3, clientv3.WithCompactPhysical())
	require.NoError(t, err)
	c := &content{version: version, members: members}
	c.keys, c.leases, c.revision = everything(t, client)
	file := filepath.Join(dir, "snapshot.db")
	require.NoError(t, cluster.SaveSnapshot(ctx, 0, file))
	c.db, err = os.ReadFile(file)
	require.NoError(t, err)
	cluster.Stop()
	c.raw, err = os.ReadFile(filepath.Join(cluster.Members[0].DataDir, "member", "snap", "db"))
	require.NoError(t, err)
	contents.m[key] = c
	return c
}

// everything that an etcd serves.
func everything(t *testing.T, client *clientv3.Client) (keys map[string]string, leases map[clientv3.LeaseID][]string, revision int64) {
	t.Helper()
	ctx := t.Context()
	got, err := client.Get(ctx, "\x00", clientv3.WithFromKey())
	require.NoError(t, err)
	keys = map[string]string{}
	for _, kv := range got.Kvs {
		keys[string(kv.Key)] = fmt.Sprintf("%x@%d/%d/%d/%x", sha256.Sum256(kv.Value), kv.CreateRevision, kv.ModRevision, kv.Version, kv.Lease)
	}
	all, err := client.Leases(ctx)
	require.NoError(t, err)
	leases = map[clientv3.LeaseID][]string{}
	for _, l := range all.Leases {
		info, err := client.TimeToLive(ctx, l.ID, clientv3.WithAttachedKeys())
		require.NoError(t, err)
		require.EqualValues(t, 36000, info.GrantedTTL)
		for _, k := range info.Keys {
			leases[l.ID] = append(leases[l.ID], string(k))
		}
		slices.Sort(leases[l.ID])
	}
	return keys, leases, got.Header.Revision
}

func write(t *testing.T, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "snapshot.db")
	require.NoError(t, os.WriteFile(path, data, 0o600))
	return path
}

// from gives a request for a stored file.
func from(t *testing.T, path string) restore.Request {
	t.Helper()
	src, err := restore.FromFile(path, nil)
	require.NoError(t, err)
	return restore.Request{Sources: []*restore.Source{src}, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
}

func encode(t *testing.T, db []byte, algorithm string, to ...*age.X25519Identity) []byte {
	t.Helper()
	o := archive.Options{Algorithm: algorithm}
	for _, id := range to {
		rs, err := archive.ParseRecipients(archive.RecipientsField, []string{id.Recipient().String()})
		require.NoError(t, err)
		o.Recipients = append(o.Recipients, rs...)
	}
	var b bytes.Buffer
	w, err := archive.NewEncoder(&b, o)
	require.NoError(t, err)
	_, err = w.Write(db)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.Bytes()
}

func sha(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// member is a member that is restored and run.
type member struct {
	restore.Config
	version, clientURL string
}

// newMember has addresses of its own and a data directory that is not there yet.
func newMember(t *testing.T, version, name string) *member {
	t.Helper()
	peer := "http://" + freePort(t)
	return &member{version: version, clientURL: "http://" + freePort(t), Config: restore.Config{
		DataDir: filepath.Join(t.TempDir(), "etcd"), Name: name, PeerURLs: []string{peer}, InitialCluster: name + "=" + peer, Bump: restore.DefaultBump,
	}}
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

func etcdBinary(t *testing.T, version string) string {
	t.Helper()
	dir, err := parts.Dir(t.Context(), "etcd-"+version)
	require.NoError(t, err)
	return filepath.Join(dir, "etcd")
}

// command is how the member is started: like kubeadm does, the flags of a new cluster are there and say nothing.
func (m *member) command(binary string) []string {
	words := []string{binary, "--name=" + m.Name, "--data-dir=" + m.DataDir, "--listen-client-urls=" + m.clientURL, "--advertise-client-urls=" + m.clientURL,
		"--listen-peer-urls=" + m.PeerURLs[0], "--initial-advertise-peer-urls=" + m.PeerURLs[0], "--initial-cluster=" + m.InitialCluster, "--logger=zap"}
	if m.version != "3.4" {
		words = append(words, "--unsafe-no-fsync") // a power cut of etcd's is not what is tested here
	}
	if m.WALDir != "" {
		words = append(words, "--wal-dir="+m.WALDir)
	}
	if !strings.Contains(m.InitialCluster, ",") {
		words = append(words, "--heartbeat-interval=10", "--election-timeout=100")
	}
	return words
}

// start runs the member's own etcd; stop ends it.
func (m *member) start(t *testing.T) (stop func()) {
	t.Helper()
	words := m.command(etcdBinary(t, m.version))
	cmd := exec.Command(words[0], words[1:]...)
	cmd.SysProcAttr = dieWithParent()
	var log lockedBuffer
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(t, cmd.Start())
	var once sync.Once
	stop = func() {
		once.Do(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			if t.Failed() {
				t.Logf("%s printed:\n%s", m.Name, log.tail())
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

func (m *member) client(t *testing.T) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{m.clientURL}, DialTimeout: 10 * time.Second, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	return client
}

// ready waits until the member serves consistent reads.
func ready(t *testing.T, client *clientv3.Client) {
	t.Helper()
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err := client.Get(ctx, "ready")
		return err == nil
	}, time.Minute, 50*time.Millisecond)
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := strings.Split(l.b.String(), "\n")
	return strings.Join(lines[max(0, len(lines)-25):], "\n")
}

// tree lists all that is below dir, with sizes of files.
func tree(t *testing.T, dir string) (list []string) {
	t.Helper()
	require.NoError(t, filepath.Walk(dir, func(path string, fi os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		list = append(list, fmt.Sprint(rel, " ", fi.Mode(), " ", fi.Size()))
		return err
	}))
	return list
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	require.NoError(t, err)
	return data
}

var _ io.Writer = (*lockedBuffer)(nil)
