package restore_test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/restore"
	"etcdsnapshot.dev/ci/etcdtest"
)

// Each line's snapshot, restored and run by the same line: every key, value, version and lease is there.
func TestEveryKeyAndLeaseIsBack(t *testing.T) {
	for _, version := range etcdtest.Versions {
		t.Run(version, func(t *testing.T) {
			c := real(t, version)
			m := newMember(t, version, "m")
			r := from(t, write(t, encode(t, c.db, "zstd")))
			r.EtcdVersion = version + ".0"
			res, err := restore.Into(t.Context(), r, m.Config)
			require.NoError(t, err)
			require.Equal(t, c.revision, res.Revision)
			require.Equal(t, c.revision+restore.DefaultBump, res.RestoredRevision)
			require.EqualValues(t, len(c.keys), res.Keys)
			require.Equal(t, sha(c.db), res.SHA256)
			requireOnly(t, m.DataDir)
			m.start(t)
			client := m.client(t)
			ready(t, client)
			keys, leases, revision := everything(t, client)
			require.Equal(t, c.keys, keys)
			require.Equal(t, c.leases, leases)
			require.Equal(t, c.revision+restore.DefaultBump, revision)
			// It goes on from there.
			put, err := client.Put(t.Context(), "new", "x")
			require.NoError(t, err)
			require.Equal(t, revision+1, put.Header.Revision)
		})
	}
}

// requireOnly requires that nothing but the data directory is in its folder, and that etcd alone can read it.
func requireOnly(t *testing.T, dataDir string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(dataDir))
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.NoError(t, filepath.WalkDir(dataDir, func(path string, d fs.DirEntry, err error) error {
		require.NoError(t, err)
		fi, err := d.Info()
		require.NoError(t, err)
		require.Zero(t, fi.Mode().Perm()&0o077, path)
		return nil
	}))
}

// A client that watched before the restore, at revisions that the snapshot never saw, sees none that is smaller.
func TestWatcherSeesNoRevisionGoBack(t *testing.T) {
	ctx := t.Context()
	cluster := etcdtest.Start(t, etcdtest.Options{Version: "3.5"})
	client, err := cluster.Client(0)
	require.NoError(t, err)
	defer client.Close()
	put, err := client.Put(ctx, "/registry/a", "old")
	require.NoError(t, err)
	snapshotRevision := put.Header.Revision
	file := filepath.Join(t.TempDir(), "s.db")
	require.NoError(t, cluster.SaveSnapshot(ctx, 0, file))
	for range 100 {
		put, err = client.Put(ctx, "/registry/a", "after the snapshot")
		require.NoError(t, err)
	}
	seen := put.Header.Revision
	require.Greater(t, seen, snapshotRevision)
	cluster.Stop()

	m := newMember(t, "3.5", "m")
	_, err = restore.Into(ctx, from(t, file), m.Config)
	require.NoError(t, err)
	m.start(t)
	restored := m.client(t)
	ready(t, restored)
	// A watch that goes on from where it was must fail, so that the client lists again: events are missing.
	wctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	resp, ok := <-restored.Watch(wctx, "/registry/", clientv3.WithPrefix(), clientv3.WithRev(seen+1))
	require.True(t, ok)
	require.ErrorIs(t, resp.Err(), rpctypes.ErrCompacted)
	require.Greater(t, resp.CompactRevision, seen)
	list, err := restored.Get(ctx, "/registry/", clientv3.WithPrefix())
	require.NoError(t, err)
	require.Greater(t, list.Header.Revision, seen)
	require.Equal(t, "old", string(list.Kvs[0].Value))
	_, err = restored.Put(ctx, "/registry/a", "new")
	require.NoError(t, err)
	resp = <-restored.Watch(wctx, "/registry/", clientv3.WithPrefix(), clientv3.WithRev(list.Header.Revision+1))
	require.NoError(t, resp.Err())
	require.Greater(t, resp.Events[0].Kv.ModRevision, seen)
}

func TestRevisionIsLeftWhereAsked(t *testing.T) {
	c := real(t, "3.6")
	m := newMember(t, "3.6", "m")
	m.Bump = 0
	res, err := restore.Into(t.Context(), from(t, write(t, c.db)), m.Config)
	require.NoError(t, err)
	require.Equal(t, c.revision, res.RestoredRevision)
	m.start(t)
	client := m.client(t)
	ready(t, client)
	keys, _, revision := everything(t, client)
	require.Equal(t, c.keys, keys)
	require.Equal(t, c.revision, revision)
}

// What was restored and raised once can be saved and restored again.
func TestRestoreOfARestored(t *testing.T) {
	c := real(t, "3.6")
	first := newMember(t, "3.6", "m")
	_, err := restore.Into(t.Context(), from(t, write(t, c.db)), first.Config)
	require.NoError(t, err)
	db, err := os.ReadFile(filepath.Join(first.DataDir, "member", "snap", "db"))
	require.NoError(t, err)
	second := newMember(t, "3.6", "m")
	r := from(t, write(t, db))
	r.SkipHashCheck = true
	res, err := restore.Into(t.Context(), r, second.Config)
	require.NoError(t, err)
	require.Equal(t, c.revision+2*restore.DefaultBump, res.RestoredRevision)
	second.start(t)
	client := second.client(t)
	ready(t, client)
	keys, leases, _ := everything(t, client)
	require.Equal(t, c.keys, keys)
	require.Equal(t, c.leases, leases)
}

func TestOtherToolsDatabases(t *testing.T) {
	for _, version := range []string{"3.4", "3.7"} {
		c := real(t, version)
		t.Run(version+" snapshot", func(t *testing.T) {
			m := newMember(t, version, "m")
			_, err := restore.Into(t.Context(), from(t, write(t, c.db)), m.Config)
			require.NoError(t, err)
		})
		t.Run(version+" copied db", func(t *testing.T) {
			m := newMember(t, version, "m")
			r := from(t, write(t, c.raw))
			_, err := restore.Into(t.Context(), r, m.Config)
			require.ErrorIs(t, err, archive.ErrCorrupt)
			require.ErrorContains(t, err, "--skip-hash-check")
			untouched(t, m.DataDir)
			r.SkipHashCheck = true
			_, err = restore.Into(t.Context(), r, m.Config)
			require.NoError(t, err)
			m.start(t)
			client := m.client(t)
			ready(t, client)
			keys, _, _ := everything(t, client)
			require.Equal(t, c.keys, keys)
		})
	}
}

func TestStdin(t *testing.T) {
	c := real(t, "3.6")
	m := newMember(t, "3.6", "m")
	id, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	r := restore.Request{Sources: []*restore.Source{restore.FromReader("stdin", bytes.NewReader(encode(t, c.db, "gzip", id)))}, Identities: []age.Identity{id}, Log: discard()}
	res, err := restore.Into(t.Context(), r, m.Config)
	require.NoError(t, err)
	require.Equal(t, c.revision, res.Revision)
	requireOnly(t, m.DataDir)
}

func TestSeparateWAL(t *testing.T) {
	c := real(t, "3.6")
	m := newMember(t, "3.6", "m")
	m.WALDir = filepath.Join(t.TempDir(), "wal")
	require.NoError(t, os.Mkdir(m.DataDir, 0o755))
	require.NoError(t, os.Mkdir(m.WALDir, 0o755))
	_, err := restore.Into(t.Context(), from(t, write(t, c.db)), m.Config)
	require.NoError(t, err)
	requireOnly(t, m.DataDir)
	requireOnly(t, m.WALDir)
	require.NoDirExists(t, filepath.Join(m.DataDir, "member", "wal"))
	m.start(t)
	client := m.client(t)
	ready(t, client)
	keys, _, _ := everything(t, client)
	require.Equal(t, c.keys, keys)
	// Neither is overwritten.
	other := m.Config
	other.DataDir = filepath.Join(t.TempDir(), "other")
	_, err = restore.Into(t.Context(), from(t, write(t, c.db)), other)
	require.ErrorIs(t, err, restore.ErrRefused)
	require.ErrorContains(t, err, "write-ahead log is not empty")
}

// untouched requires that nothing was made.
func untouched(t *testing.T, dataDir string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(dataDir))
	require.NoError(t, err)
	require.Empty(t, entries)
}

func TestRefused(t *testing.T) {
	c := real(t, "3.6")
	for name, tc := range map[string]struct {
		change func(*restore.Request, *member)
		says   string
	}{
		"newer storage":  {func(r *restore.Request, _ *member) { r.EtcdVersion = "3.5.21" }, "the snapshot is of etcd 3.6"},
		"bad version":    {func(r *restore.Request, _ *member) { r.EtcdVersion = "latest" }, "--etcd-version"},
		"other snapshot": {func(r *restore.Request, _ *member) { r.ExpectSHA256 = sha([]byte("x")) }, "another snapshot"},
		"not listed":     {func(_ *restore.Request, m *member) { m.Name = "n" }, "does not list this member"},
		"other URL":      {func(_ *restore.Request, m *member) { m.PeerURLs = []string{"http://127.0.0.1:1"} }, "must be the same"},
		"no URL":         {func(_ *restore.Request, m *member) { m.InitialCluster = "m=nonsense" }, "--initial-cluster"},
		"a file": {func(_ *restore.Request, m *member) {
			m.DataDir = filepath.Join(t.TempDir(), "f")
			require.NoError(t, os.WriteFile(m.DataDir, nil, 0o600))
		}, "is not a folder"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMember(t, "3.6", "m")
			before := m.DataDir
			r := from(t, write(t, c.db))
			tc.change(&r, m)
			_, err := restore.Into(t.Context(), r, m.Config)
			require.ErrorIs(t, err, restore.ErrRefused)
			require.ErrorContains(t, err, tc.says)
			untouched(t, before)
		})
	}
	t.Run("newer storage is wanted", func(t *testing.T) {
		m := newMember(t, "3.6", "m")
		r := from(t, write(t, c.db))
		r.EtcdVersion, r.AllowNewerStorage = "3.5.21", true
		_, err := restore.Into(t.Context(), r, m.Config)
		require.NoError(t, err)
	})
	t.Run("not empty", func(t *testing.T) {
		m := newMember(t, "3.6", "m")
		require.NoError(t, os.MkdirAll(filepath.Join(m.DataDir, "member"), 0o700))
		before := tree(t, filepath.Dir(m.DataDir))
		_, err := restore.Into(t.Context(), from(t, write(t, c.db)), m.Config)
		require.ErrorIs(t, err, restore.ErrRefused)
		require.ErrorContains(t, err, "is not empty")
		require.Equal(t, before, tree(t, filepath.Dir(m.DataDir)))
	})
}

// Every kind of damage is found before anything is touched.
func TestDamage(t *testing.T) {
	c := real(t, "3.6")
	id, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	other, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	flipped := func(data []byte, at int) []byte {
		data = bytes.Clone(data)
		data[at] ^= 1
		return data
	}
	stored := encode(t, c.db, "zstd", id)
	cases := map[string]struct {
		data []byte
		ids  []age.Identity
		is   error
	}{
		"empty":            {nil, nil, archive.ErrCorrupt},
		"cut short":        {stored[:len(stored)*2/3], []age.Identity{id}, archive.ErrCorrupt},
		"plain, cut short": {c.db[:len(c.db)/4096/2*4096], nil, archive.ErrCorrupt},
		"no identity":      {stored, nil, archive.ErrNoIdentity},
		"wrong identity":   {stored, []age.Identity{other}, archive.ErrWrongIdentity},
	}
	for i := range 10 {
		cases[fmt.Sprintf("bit at %d tenths", i)] = struct {
			data []byte
			ids  []age.Identity
			is   error
		}{flipped(c.db, len(c.db)*i/10+100), nil, archive.ErrCorrupt}
		cases[fmt.Sprintf("bit at %d tenths, encrypted", i)] = struct {
			data []byte
			ids  []age.Identity
			is   error
		}{flipped(stored, 300+(len(stored)-300)*i/10), []age.Identity{id}, archive.ErrCorrupt}
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			m := newMember(t, "3.6", "m")
			r := from(t, write(t, tc.data))
			r.Identities = tc.ids
			_, err := restore.Into(t.Context(), r, m.Config)
			require.ErrorIs(t, err, tc.is)
			untouched(t, m.DataDir)
		})
	}
}

func TestInterrupted(t *testing.T) {
	c := real(t, "3.6")
	m := newMember(t, "3.6", "m")
	ctx, cancel := context.WithCancelCause(t.Context())
	why := fmt.Errorf("stop it")
	r := from(t, write(t, c.db))
	r.Progress = func(string, int64, int64) { cancel(why) }
	_, err := restore.Into(ctx, r, m.Config)
	require.ErrorIs(t, err, why)
	untouched(t, m.DataDir)
}
