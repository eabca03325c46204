package verify

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/ci/etcdtest"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(asBolt); path != "" {
		os.Exit(checkWithBolt(path))
	}
	if len(os.Args) > 1 && os.Args[1] == asDrill {
		os.Exit(DrillMain(os.Stdin, os.Stdout, os.Stderr))
	}
	goleak.VerifyTestMain(m)
}

// content is what a real etcd held when its snapshot was taken.
type content struct {
	db       []byte // the snapshot
	raw      []byte // the member's own file snap/db after it was stopped
	revision int64
	keys     int64
	hashKV   uint32
}

var contents = struct {
	sync.Mutex
	m map[string]*content
}{m: map[string]*content{}}

// real gives a snapshot of a real etcd of that version, which has seen deletions, leases and a compaction.
func real(t *testing.T, version string) *content {
	t.Helper()
	contents.Lock()
	defer contents.Unlock()
	if c, ok := contents.m[version]; ok {
		return c
	}
	dir, err := os.MkdirTemp("", "verify-real-")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	ctx := t.Context()
	cluster, err := etcdtest.New(ctx, dir, etcdtest.Options{Version: version})
	require.NoError(t, err)
	defer cluster.Stop()
	n, err := cluster.Fill(ctx, 1<<20)
	require.NoError(t, err)
	client, err := cluster.Client(0)
	require.NoError(t, err)
	defer client.Close()
	lease, err := client.Grant(ctx, 3600)
	require.NoError(t, err)
	for i := range 40 {
		_, err := client.Put(ctx, fmt.Sprintf("/registry/leased/%d", i), "x", clientv3.WithLease(lease.ID))
		require.NoError(t, err)
	}
	brief, err := client.Grant(ctx, 5) // it runs out while a drill looks
	require.NoError(t, err)
	_, err = client.Put(ctx, "/registry/leased/brief", "x", clientv3.WithLease(brief.ID))
	require.NoError(t, err)
	for i := range 10 {
		key, _ := etcdtest.Object(i)
		_, err := client.Delete(ctx, key)
		require.NoError(t, err)
	}
	got, err := client.Put(ctx, "/registry/leased/0", strings.Repeat("large ", 40_000))
	require.NoError(t, err)
	_, err = client.Compact(ctx, got.Header.Revision-3, clientv3.WithCompactPhysical())
	require.NoError(t, err)
	count, err := client.Get(ctx, "", clientv3.WithPrefix(), clientv3.WithCountOnly())
	require.NoError(t, err)
	require.EqualValues(t, n+41-10, count.Count)
	file := filepath.Join(dir, "snapshot.db")
	require.NoError(t, cluster.SaveSnapshot(ctx, 0, file))
	c := &content{revision: count.Header.Revision, keys: count.Count}
	c.db, err = os.ReadFile(file)
	require.NoError(t, err)
	hash, err := client.HashKV(ctx, cluster.Endpoints()[0], c.revision)
	require.NoError(t, err)
	c.hashKV = hash.Hash
	cluster.Stop()
	c.raw, err = os.ReadFile(filepath.Join(cluster.Members[0].DataDir, "member", "snap", "db"))
	require.NoError(t, err)
	contents.m[version] = c
	return c
}

const policyName = "etcd"

// manifestOf describes a stored snapshot of db.
func manifestOf(t *testing.T, db, stored []byte, algorithm string, encrypted bool, revision int64) *v1.Manifest {
	t.Helper()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	name, err := archive.NewName(policyName, at, bytes.NewReader([]byte("abcde")))
	require.NoError(t, err)
	m := &v1.Manifest{SchemaVersion: v1.ManifestSchemaVersion, Name: name, SnapshotFacts: v1.SnapshotFacts{
		Policy: policyName, ClusterName: "prod", CreatedAt: metav1.NewTime(at),
		Etcd:        v1.SnapshotEtcd{ClusterID: "1", MemberID: "1", Version: "3.6.0", Revision: revision},
		Database:    v1.DatabaseFacts{Size: int64(len(db)), SHA256: sha(db)},
		Object:      v1.ObjectFacts{Key: name + archive.Suffix(algorithm, encrypted), Size: int64(len(stored)), SHA256: sha(stored)},
		Compression: algorithm,
	}}
	if encrypted {
		m.Encryption = &v1.EncryptionFacts{Kind: "age", Recipients: []string{"SHA256:" + strings.Repeat("A", 43)}}
	}
	_, err = archive.EncodeManifest(m)
	require.NoError(t, err)
	return m
}

func sha(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// encode gives the stored form of db.
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

func identity(t *testing.T) *age.X25519Identity {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	return id
}

// proven runs Database on bytes; it requires that no file is left after an error.
func proven(t *testing.T, stored []byte, m *v1.Manifest, o Options) (Facts, string, error) {
	t.Helper()
	dst := filepath.Join(t.TempDir(), "scratch.db")
	facts, err := Database(context.Background(), Source{Name: "test", Reader: bytes.NewReader(stored), Manifest: m}, dst, o)
	if err != nil {
		require.NoFileExists(t, dst)
		require.Zero(t, facts)
	}
	return facts, dst, err
}

// asDrill is the argument that makes this test binary the child of a drill.
const asDrill = "drill"

var drillCommand = []string{os.Args[0], asDrill}

// restoredWithBump gives the database of a data directory that etcdutl restored with a higher revision.
func restoredWithBump(t *testing.T, db []byte, by uint64) []byte {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "restored")
	require.NoError(t, snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: writeFile(t, db), Name: "m", OutputDataDir: dir, PeerURLs: []string{"http://127.0.0.1:2380"},
		InitialCluster: "m=http://127.0.0.1:2380", InitialClusterToken: "t", RevisionBump: by, MarkCompacted: true,
	}))
	out, err := os.ReadFile(filepath.Join(dir, "member", "snap", "db"))
	require.NoError(t, err)
	return out
}
