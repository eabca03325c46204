package verify

import (
	"bytes"
	"crypto/sha256"
	"os"
	"path/filepath"
	"testing"

	"filippo.io/age"
	"github.com/stretchr/testify/require"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/extras"
	"etcdsnapshot.dev/agent/store"
)

// TestStoredExtras: the extras of a copy are proven with it, as far as the level and the identities go, and neither hides
// what is wrong with the other.
func TestStoredExtras(t *testing.T) {
	c := real(t, "3.6")
	s := newShelf(t)
	id, other := identity(t), identity(t)
	file := filepath.Join(t.TempDir(), "ca.key")
	require.NoError(t, os.WriteFile(file, []byte("private"), 0o600))
	var tar bytes.Buffer
	files, err := extras.Collect(t.Context(), &tar, []string{file}, quiet)
	require.NoError(t, err)
	put := func(plain []byte, files []string) *v1.Manifest {
		stored, sealed := encode(t, c.db, "zstd", id), encode(t, plain, "zstd", other)
		m := manifestOf(t, c.db, stored, "zstd", true, c.revision)
		m.Extras = &v1.ExtrasFacts{Object: v1.ObjectFacts{Key: archive.ExtrasKey(m.Name), Size: int64(len(sealed)), SHA256: sha(sealed)}, Encryption: *m.Encryption, Files: files}
		blob := func(b []byte) store.Blob {
			return store.Blob{ReaderAt: bytes.NewReader(b), Size: int64(len(b)), SHA256: sha256.Sum256(b)}
		}
		for _, key := range []string{m.Object.Key, m.Extras.Object.Key, archive.ManifestKey(m.Name)} {
			require.NoError(t, s.Store.Delete(t.Context(), key))
		}
		require.NoError(t, s.Publish(t.Context(), m, blob(stored), blob(sealed), v1.AfterStoreFull))
		return m
	}
	verify := func(m *v1.Manifest, level Level, ids ...age.Identity) (Result, error) {
		r := request(t, level, ids...)
		res, err := Stored(t.Context(), s.Destination, m.Name, r)
		requireEmpty(t, r.Scratch.Path())
		return res, err
	}

	m := put(tar.Bytes(), files)
	for _, test := range []struct {
		level  Level
		ids    []age.Identity
		opened bool
	}{{LevelChecksum, []age.Identity{id, other}, false}, {LevelDatabase, []age.Identity{id}, false}, {LevelDatabase, []age.Identity{id, other}, true}} {
		res, err := verify(m, test.level, test.ids...)
		require.NoError(t, err)
		require.Equal(t, &ExtrasResult{Files: 1, Opened: test.opened}, res.Extras)
		require.Equal(t, test.level, res.Level)
	}

	// Good by its checksum, and not what the manifest says.
	for says, m := range map[string]func() *v1.Manifest{
		"it lacks /etc/other": func() *v1.Manifest { return put(tar.Bytes(), append(files, "/etc/other")) },
		"archive of extras":   func() *v1.Manifest { return put([]byte("no archive"), files) },
	} {
		res, err := verify(m(), LevelDatabase, id, other)
		require.ErrorIs(t, err, archive.ErrCorrupt)
		require.ErrorContains(t, err, says)
		require.ErrorContains(t, err, "a snapshot that is good itself")
		require.NotNil(t, res.Facts)
	}

	m = put(tar.Bytes(), files)
	for _, damage := range []func(b []byte) []byte{
		func(b []byte) []byte { b[len(b)-1] ^= 1; return b },
		func(b []byte) []byte { return b[:len(b)-1] },
		func(b []byte) []byte { return append(b, 0) },
	} {
		m = put(tar.Bytes(), files)
		s.change(t, m.Extras.Object.Key, damage)
		for _, level := range []Level{LevelChecksum, LevelDatabase} {
			_, err := verify(m, level, id, other)
			require.ErrorIs(t, err, archive.ErrCorrupt)
			require.ErrorContains(t, err, m.Extras.Object.Key)
		}
	}
	s.change(t, m.Object.Key, func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
	_, err = verify(m, LevelChecksum, id, other)
	require.ErrorContains(t, err, m.Object.Key)
	require.ErrorContains(t, err, m.Extras.Object.Key)
	require.NoError(t, s.Store.Delete(t.Context(), m.Extras.Object.Key))
	_, err = verify(m, LevelChecksum)
	require.ErrorIs(t, err, archive.ErrCorrupt)
}
