package member_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/etcdserver/api/snap"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"etcdsnapshot.dev/agent/member"
	"etcdsnapshot.dev/ci/etcdtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestLikeEtcdutl: each line's snapshot becomes what etcd's own library makes of it, in the database, in the write-ahead
// log, and in the snapshot that goes with it.
func TestLikeEtcdutl(t *testing.T) {
	for _, version := range etcdtest.Versions {
		t.Run(version, func(t *testing.T) {
			file, revision := taken(t, version)
			for name, cluster := range map[string]string{
				"one":   "b=http://10.0.0.2:2380",
				"three": "a=http://10.0.0.1:2380,b=http://10.0.0.2:2380,b=http://10.1.0.2:2380,c=http://10.0.0.3:2380",
			} {
				for _, bump := range []int64{0, 1_000_000_000} {
					t.Run(fmt.Sprintf("%s raised by %d", name, bump), func(t *testing.T) {
						ours := member.Config{DataDir: filepath.Join(t.TempDir(), "ours"), Name: "b", InitialCluster: cluster, Token: "new", Bump: bump, Revision: revision}
						place(t, file, ours.DataDir)
						require.NoError(t, member.Make(ours, zap.NewNop()))
						theirs := filepath.Join(t.TempDir(), "theirs")
						peers := []string{"http://10.0.0.2:2380"}
						if name == "three" {
							peers = append(peers, "http://10.1.0.2:2380")
						}
						require.NoError(t, snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{SnapshotPath: file, Name: "b", OutputDataDir: theirs,
							PeerURLs: peers, InitialCluster: cluster, InitialClusterToken: "new", RevisionBump: uint64(bump), MarkCompacted: bump > 0}))
						require.Equal(t, content(t, theirs), content(t, ours.DataDir))
						requireSameLog(t, filepath.Join(theirs, "member", "wal"), filepath.Join(ours.DataDir, "member", "wal"))
						require.Equal(t, names(t, theirs), names(t, ours.DataDir))
						wantState, wantMembers := state(t, theirs)
						gotState, gotMembers := state(t, ours.DataDir)
						require.Equal(t, wantState, gotState)
						require.Equal(t, wantMembers, gotMembers)
					})
				}
			}
		})
	}
}

// taken gives the snapshot of a cluster of three, of which one was removed.
func taken(t *testing.T, version string) (file string, revision int64) {
	t.Helper()
	ctx := t.Context()
	c := etcdtest.Start(t, etcdtest.Options{Version: version, Members: 3})
	client, err := c.Client(0)
	require.NoError(t, err)
	defer client.Close()
	var put *clientv3.PutResponse
	for i := range 20 {
		put, err = client.Put(ctx, fmt.Sprintf("/registry/%d", i), "x")
		require.NoError(t, err)
	}
	list, err := client.MemberList(ctx)
	require.NoError(t, err)
	for _, m := range list.Members {
		if m.Name == "member-2" {
			// etcd refuses until its members have known each other for a while.
			require.Eventually(t, func() bool {
				_, err = client.MemberRemove(ctx, m.ID)
				return err == nil
			}, time.Minute, 100*time.Millisecond)
		}
	}
	file = filepath.Join(t.TempDir(), "snapshot.db")
	require.NoError(t, c.SaveSnapshot(ctx, 0, file))
	return file, put.Header.Revision
}

// place puts the database without etcd's checksum into a data directory.
func place(t *testing.T, file, dataDir string) {
	t.Helper()
	require.NoError(t, member.MakeRoom(dataDir))
	db := read(t, file)
	require.NoError(t, os.WriteFile(member.Database(dataDir), db[:len(db)-sha256.Size], 0o600))
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	return data
}

func names(t *testing.T, dir string) (list []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		require.NoError(t, err)
		fi, err := d.Info()
		require.NoError(t, err)
		rel, err := filepath.Rel(dir, path)
		list = append(list, fmt.Sprint(rel, " ", fi.Mode()))
		return err
	}))
	return list
}

// content is all that is in a database.
func content(t *testing.T, dataDir string) map[string]string {
	t.Helper()
	b, err := bolt.Open(member.Database(dataDir), 0o600, &bolt.Options{ReadOnly: true})
	require.NoError(t, err)
	defer b.Close()
	all := map[string]string{}
	require.NoError(t, b.View(func(tx *bolt.Tx) error {
		for err := range tx.Check() {
			require.NoError(t, err)
		}
		return tx.ForEach(func(bucket []byte, b *bolt.Bucket) error {
			all[string(bucket)] = "a bucket"
			return b.ForEach(func(k, v []byte) error {
				all[fmt.Sprintf("%s %q", bucket, k)] = fmt.Sprintf("%q", v)
				return nil
			})
		})
	}))
	return all
}

func requireSameLog(t *testing.T, want, got string) {
	t.Helper()
	var found [2][]string
	for i, dir := range []string{want, got} {
		snaps, err := wal.ValidSnapshotEntries(zap.NewNop(), dir)
		require.NoError(t, err)
		w, err := wal.OpenForRead(zap.NewNop(), dir, &walpb.Snapshot{Index: new(uint64), Term: new(uint64)})
		require.NoError(t, err)
		metadata, state, entries, err := w.ReadAll()
		require.NoError(t, err)
		_ = w.Close() // of a log that is only read, it fails to unlock what it did not lock
		found[i] = append(found[i], fmt.Sprintf("%x", metadata), text(t, state))
		for _, e := range entries {
			found[i] = append(found[i], text(t, e))
		}
		for _, s := range snaps {
			found[i] = append(found[i], fmt.Sprint(s))
		}
	}
	require.Equal(t, found[0], found[1])
	require.Greater(t, len(found[0]), 2)
}

// state is what the snapshot beside the database says, without the order in which it came to know it.
func state(t *testing.T, dataDir string) (string, any) {
	t.Helper()
	s, err := snap.New(zap.NewNop(), filepath.Join(dataDir, "member", "snap")).Load()
	require.NoError(t, err)
	var data any
	require.NoError(t, json.Unmarshal(s.Data, &data))
	forget(data, "WatcherHub", "ModifiedIndex", "CreatedIndex")
	return text(t, s.Metadata), data
}

func forget(v any, keys ...string) {
	m, _ := v.(map[string]any)
	for _, k := range keys {
		delete(m, k)
	}
	for _, v := range m {
		forget(v, keys...)
	}
}

func text(t *testing.T, m proto.Message) string {
	t.Helper()
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	require.NoError(t, err)
	return fmt.Sprintf("%x", data)
}

// TestWhatItRefuses: what etcd's library cannot live with is an error, and does not end the process.
func TestWhatItRefuses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	require.NoError(t, member.MakeRoom(dir))
	c := member.Config{DataDir: dir, Name: "a", InitialCluster: "a=http://10.0.0.1:2380", Token: "new"}
	require.NoError(t, os.WriteFile(member.Database(dir), make([]byte, 64<<10), 0o600))
	require.ErrorContains(t, member.Make(c, zap.NewNop()), "etcd's library gave up: failed to open database")
	c.Name = "other"
	require.ErrorContains(t, member.Make(c, zap.NewNop()), `"other" is none of`)
	c.InitialCluster = "nonsense"
	require.ErrorContains(t, member.Make(c, zap.NewNop()), "initial cluster")
}
