package verify

import (
	"os"
	"path/filepath"
	"testing"

	"filippo.io/age"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/ci/etcdtest"
)

// status is what etcd's own tool says.
func status(t *testing.T, path string) snapshot.Status {
	t.Helper()
	st, err := snapshot.NewV3(zap.NewNop()).Status(path)
	require.NoError(t, err)
	return st
}

func TestDatabaseOfEveryVersion(t *testing.T) {
	for _, version := range etcdtest.Versions {
		t.Run(version, func(t *testing.T) {
			c := real(t, version)
			id := identity(t)
			for _, algorithm := range []string{v1.CompressionZstd, v1.CompressionGzip, v1.CompressionNone} {
				for _, to := range [][]*age.X25519Identity{nil, {id}} {
					stored := encode(t, c.db, algorithm, to...)
					m := manifestOf(t, c.db, stored, algorithm, to != nil, c.revision)
					facts, path, err := proven(t, stored, m, Options{Identities: []age.Identity{id}})
					require.NoError(t, err)
					require.Equal(t, c.revision, facts.Revision)
					require.Equal(t, c.keys, facts.TotalKeys)
					require.Greater(t, facts.Entries, facts.TotalKeys)
					require.Equal(t, to != nil, facts.Encrypted)
					require.Equal(t, algorithm, facts.Compression)
					require.True(t, facts.HasTrailer && facts.TrailerMatches)
					require.Equal(t, m.Object, v1.ObjectFacts{Key: m.Object.Key, Size: facts.StoredSize, SHA256: facts.StoredSHA256})
					require.Equal(t, m.Database, v1.DatabaseFacts{Size: facts.Size, SHA256: facts.SHA256})
					got, err := os.ReadFile(path)
					require.NoError(t, err)
					require.Equal(t, c.db, got)
					fi, err := os.Stat(path)
					require.NoError(t, err)
					require.EqualValues(t, 0o600, fi.Mode())

					st := status(t, path)
					require.Equal(t, st, snapshot.Status{Hash: facts.Hash, Revision: facts.Revision, TotalKey: int(facts.TotalKeys), TotalSize: st.TotalSize, Version: facts.StorageVersion})

					bare, _, err := proven(t, stored, nil, Options{Identities: []age.Identity{id}})
					require.NoError(t, err)
					require.Equal(t, facts, bare, "a manifest adds checks, not facts")
				}
			}
		})
	}
}

func TestDatabaseWithoutTrailer(t *testing.T) {
	db := real(t, "3.6").db
	_, _, err := proven(t, db[:len(db)-32], nil, Options{})
	require.ErrorIs(t, err, ErrNoChecksum)
	facts, _, err := proven(t, db[:len(db)-32], nil, Options{SkipHashCheck: true})
	require.NoError(t, err)
	require.False(t, facts.HasTrailer)
	whole, _, err := proven(t, db, nil, Options{SkipHashCheck: true})
	require.NoError(t, err)
	require.Equal(t, facts.Status, whole.Status)
	require.True(t, whole.HasTrailer && whole.TrailerMatches)
}

// TestCopiedFile: a copy of a stopped member's own file, which is larger than its pages and has no checksum.
func TestCopiedFile(t *testing.T) {
	for _, version := range etcdtest.Versions {
		c := real(t, version)
		facts, _, err := proven(t, c.raw, nil, Options{SkipHashCheck: true})
		require.NoError(t, err)
		require.False(t, facts.HasTrailer)
		require.GreaterOrEqual(t, facts.Revision, c.revision)
		st := status(t, writeFile(t, c.raw))
		require.Equal(t, st, snapshot.Status{Hash: facts.Hash, Revision: facts.Revision, TotalKey: int(facts.TotalKeys), TotalSize: st.TotalSize, Version: facts.StorageVersion})
	}
}

func TestInspectMissingFile(t *testing.T) {
	_, err := Inspect(t.Context(), filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestNotedLevels: what can be noted beside a snapshot is what can be verified.
func TestNotedLevels(t *testing.T) {
	var levels []string
	for _, l := range Levels {
		levels = append(levels, string(l))
	}
	require.Equal(t, archive.ProofLevels, levels)
}
