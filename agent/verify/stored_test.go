package verify

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"filippo.io/age"
	"github.com/stretchr/testify/require"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/destination"
	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/file"
)

var quiet = slog.New(slog.DiscardHandler)

// shelf is a destination in a folder.
type shelf struct {
	dir string
	*destination.Destination
}

func newShelf(t *testing.T) *shelf {
	t.Helper()
	dir := t.TempDir()
	s, err := file.New(dir, file.Options{})
	require.NoError(t, err)
	return &shelf{dir, &destination.Destination{Spec: v1.Destination{Name: "node"}, Store: s, Log: quiet}}
}

// put stores a snapshot as it should be.
func (s *shelf) put(t *testing.T, m *v1.Manifest, stored []byte) {
	t.Helper()
	b := store.Blob{ReaderAt: bytes.NewReader(stored), Size: int64(len(stored)), SHA256: sha256.Sum256(stored)}
	require.NoError(t, s.Publish(t.Context(), m, b, store.Blob{}, v1.AfterStoreFull))
}

func (s *shelf) path(key string) string { return filepath.Join(s.dir, key) }

// change rewrites a stored file behind the store's back.
func (s *shelf) change(t *testing.T, key string, how func(b []byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(s.path(key))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(s.path(key), how(b), 0o600))
}

func request(t *testing.T, level Level, ids ...age.Identity) Request {
	return Request{Level: level, Identities: ids, Scratch: scratch(t), DrillCommand: drillCommand, Log: quiet}
}

func requireEmpty(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
}

func TestStoredLevels(t *testing.T) {
	c := real(t, "3.6")
	id := identity(t)
	s := newShelf(t)
	stored := encode(t, c.db, "zstd", id)
	m := manifestOf(t, c.db, stored, "zstd", true, c.revision)
	s.put(t, m, stored)
	for _, level := range Levels {
		r := request(t, level, id)
		var last, total int64
		r.Progress = func(read, of int64) { last, total = read, of }
		res, err := Stored(t.Context(), s.Destination, m.Name, r)
		require.NoError(t, err)
		require.Equal(t, level, res.Level)
		require.Equal(t, m.Object.Key, res.Key)
		require.Equal(t, level != LevelChecksum, res.Facts != nil)
		require.Equal(t, level == LevelRestore, res.Drill != nil)
		require.Equal(t, []int64{m.Object.Size, m.Object.Size}, []int64{last, total})
		requireEmpty(t, r.Scratch.Path())
	}

	r := request(t, LevelDatabase)
	_, err := Stored(t.Context(), s.Destination, m.Name, r)
	require.ErrorIs(t, err, archive.ErrNoIdentity)
	require.NotErrorIs(t, err, archive.ErrCorrupt)
	r.Lower = true
	res, err := Stored(t.Context(), s.Destination, m.Name, r)
	require.NoError(t, err)
	require.True(t, res.Lowered)
	require.Equal(t, LevelChecksum, res.Level)
}

// TestCorruptions: each is caught, for what it is, at every level.
func TestCorruptions(t *testing.T) {
	c := real(t, "3.6")
	id, other := identity(t), identity(t)
	type corruption struct {
		name   string
		damage func(t *testing.T, s *shelf, m *v1.Manifest)
		says   string
	}
	list := []corruption{
		{"cut by a byte", func(t *testing.T, s *shelf, m *v1.Manifest) {
			s.change(t, m.Object.Key, func(b []byte) []byte { return b[:len(b)-1] })
		}, "bytes, expected"},
		{"cut in half", func(t *testing.T, s *shelf, m *v1.Manifest) {
			s.change(t, m.Object.Key, func(b []byte) []byte { return b[:len(b)/2] })
		}, "bytes, expected"},
		{"longer", func(t *testing.T, s *shelf, m *v1.Manifest) {
			s.change(t, m.Object.Key, func(b []byte) []byte { return append(b, 0) })
		}, "is longer than"},
		{"empty", func(t *testing.T, s *shelf, m *v1.Manifest) {
			s.change(t, m.Object.Key, func([]byte) []byte { return nil })
		}, "has 0 bytes, expected"},
		{"zeros", func(t *testing.T, s *shelf, m *v1.Manifest) {
			s.change(t, m.Object.Key, func(b []byte) []byte { return make([]byte, len(b)) })
		}, "its manifest says"},
		{"another snapshot of the same size", func(t *testing.T, s *shelf, m *v1.Manifest) {
			s.change(t, m.Object.Key, func(b []byte) []byte {
				swapped := append([]byte(nil), c.db...)
				swapped[len(swapped)/2] ^= 1
				again := encode(t, trailed(swapped[:len(swapped)-sha256.Size]), m.Compression)
				if m.Encryption != nil {
					again = encode(t, c.db, m.Compression, id) // another file key and nonce: the same size, other bytes
				}
				if len(again) > len(b) {
					again = again[:len(b)]
				}
				return append(again, make([]byte, len(b)-len(again))...)
			})
		}, "its manifest says"},
		{"data missing", func(t *testing.T, s *shelf, m *v1.Manifest) {
			require.NoError(t, os.Remove(s.path(m.Object.Key)))
		}, "its manifest is there, but not its data"},
		{"manifest missing", func(t *testing.T, s *shelf, m *v1.Manifest) {
			require.NoError(t, os.Remove(s.path(archive.ManifestKey(m.Name))))
		}, "its manifest is missing"},
		{"manifest unreadable", func(t *testing.T, s *shelf, m *v1.Manifest) {
			s.change(t, archive.ManifestKey(m.Name), func(b []byte) []byte { return b[:len(b)-3] })
		}, "manifest is corrupt"},
		{"manifest of another snapshot", func(t *testing.T, s *shelf, m *v1.Manifest) {
			theirs := *m
			theirs.Name = m.Name[:len(m.Name)-5] + "zzzzz"
			theirs.Object.Key = theirs.Name + archive.Suffix(m.Compression, m.Encryption != nil)
			b, err := archive.EncodeManifest(&theirs)
			require.NoError(t, err)
			s.change(t, archive.ManifestKey(m.Name), func([]byte) []byte { return b })
		}, "it is the manifest of"},
	}
	for tenth := range 10 {
		list = append(list, corruption{fmt.Sprintf("a bit at %d tenths", tenth), func(t *testing.T, s *shelf, m *v1.Manifest) {
			s.change(t, m.Object.Key, func(b []byte) []byte { b[len(b)*tenth/10] ^= 0x10; return b })
		}, "its manifest says"})
	}
	list = append(list, corruption{"the last bit", func(t *testing.T, s *shelf, m *v1.Manifest) {
		s.change(t, m.Object.Key, func(b []byte) []byte { b[len(b)-1] ^= 1; return b })
	}, "its manifest says"}, corruption{"header", func(t *testing.T, s *shelf, m *v1.Manifest) {
		// In an encrypted object these are the bytes that hold the wrapped key: none of the identities opens it then.
		s.change(t, m.Object.Key, func(b []byte) []byte { b[100] ^= 1; return b })
	}, "its manifest says"})

	for _, form := range []struct {
		algorithm string
		to        []*age.X25519Identity
	}{{"zstd", nil}, {"none", nil}, {"gzip", []*age.X25519Identity{id}}} {
		stored := encode(t, c.db, form.algorithm, form.to...)
		m := manifestOf(t, c.db, stored, form.algorithm, form.to != nil, c.revision)
		for _, k := range list {
			t.Run(m.Object.Key[len(m.Name):]+"/"+k.name, func(t *testing.T) {
				s := newShelf(t)
				s.put(t, m, stored)
				k.damage(t, s, m)
				for _, level := range []Level{LevelChecksum, LevelDatabase} {
					r := request(t, level, id)
					_, err := Stored(t.Context(), s.Destination, m.Name, r)
					require.ErrorIs(t, err, archive.ErrCorrupt, level)
					require.ErrorContains(t, err, k.says)
					require.NotErrorIs(t, err, archive.ErrWrongIdentity, "what is damaged says nothing about the identity")
					requireEmpty(t, r.Scratch.Path())
				}
			})
		}
	}

	t.Run("wrong identity", func(t *testing.T) {
		stored := encode(t, c.db, "zstd", id)
		m := manifestOf(t, c.db, stored, "zstd", true, c.revision)
		s := newShelf(t)
		s.put(t, m, stored)
		_, err := Stored(t.Context(), s.Destination, m.Name, request(t, LevelDatabase, other))
		require.ErrorIs(t, err, archive.ErrWrongIdentity)
		require.NotErrorIs(t, err, archive.ErrCorrupt)
	})
}

// TestNeverGood: objects that match their manifest, and were no good when they were stored.
func TestNeverGood(t *testing.T) {
	c := real(t, "3.6")
	flipped := append([]byte(nil), c.db...)
	flipped[len(flipped)/2] ^= 1
	for name, k := range map[string]struct {
		db     []byte
		stored func(db []byte) []byte
		change func(m *v1.Manifest)
		says   string
	}{
		"trailer":           {db: flipped, says: "etcd's checksum at its end says"},
		"no trailer":        {db: c.db[:len(c.db)-32], says: "no checksum of etcd's at its end"},
		"cut":               {db: c.db[:len(c.db)-100], says: "no whole number of pages"},
		"revision":          {db: c.db, change: func(m *v1.Manifest) { m.Etcd.Revision = c.revision + 1 }, says: "its revision is"},
		"database's sha256": {db: c.db, change: func(m *v1.Manifest) { m.Database.SHA256 = sha([]byte("x")) }, says: "and the manifest says"},
		"database's size":   {db: c.db, change: func(m *v1.Manifest) { m.Database.Size -= 512 }, says: "it has more than the"},
		"no database":       {db: []byte("<html>404</html>" + string(make([]byte, 600))), says: "not an etcd snapshot: it looks like an XML or HTML document"},
		"cut compression":   {db: c.db, stored: func(db []byte) []byte { b := encode(t, db, "zstd"); return b[:len(b)-9] }, says: "zstd: it ends too early"},
	} {
		t.Run(name, func(t *testing.T) {
			stored := encode(t, k.db, "zstd")
			if k.stored != nil {
				stored = k.stored(k.db)
			}
			m := manifestOf(t, k.db, stored, "zstd", false, 1)
			if k.change != nil {
				k.change(m)
			}
			_, _, err := proven(t, stored, m, Options{})
			require.ErrorIs(t, err, archive.ErrCorrupt)
			require.ErrorContains(t, err, k.says)
		})
	}
}

// TestNotVerified: what says nothing about the snapshot must not be taken for damage.
func TestNotVerified(t *testing.T) {
	c := real(t, "3.6")
	stored := encode(t, c.db, "zstd")
	m := manifestOf(t, c.db, stored, "zstd", false, 1)
	s := newShelf(t)
	s.put(t, m, stored)

	t.Run("context", func(t *testing.T) {
		why := errors.New("told to stop")
		ctx, cancel := context.WithCancelCause(t.Context())
		r := request(t, LevelDatabase)
		r.Progress = func(read, _ int64) { cancel(why) }
		_, err := Stored(ctx, s.Destination, m.Name, r)
		require.ErrorIs(t, err, why)
		require.NotErrorIs(t, err, archive.ErrCorrupt)
		requireEmpty(t, r.Scratch.Path())
	})
	t.Run("reader", func(t *testing.T) {
		broken := errors.New("connection reset")
		dst := filepath.Join(t.TempDir(), "x.db")
		_, err := Database(t.Context(), Source{Name: "test", Reader: &breaking{bytes.NewReader(stored[:len(stored)/2]), broken}, Manifest: m}, dst, Options{})
		require.ErrorIs(t, err, broken)
		require.NotErrorIs(t, err, archive.ErrCorrupt)
		require.NoFileExists(t, dst)
	})
	t.Run("file is there", func(t *testing.T) {
		dst := writeFile(t, []byte("precious"))
		_, err := Database(t.Context(), Source{Name: "test", Reader: bytes.NewReader(stored), Manifest: m}, dst, Options{})
		require.ErrorIs(t, err, os.ErrExist)
		require.FileExists(t, dst)
	})
	t.Run("limit", func(t *testing.T) {
		_, _, err := proven(t, stored, m, Options{MaxBytes: 1 << 20})
		require.ErrorContains(t, err, "1048576 are the limit")
		require.NotErrorIs(t, err, archive.ErrCorrupt)
		_, _, err = proven(t, stored, nil, Options{MaxBytes: 1 << 20})
		require.ErrorContains(t, err, "it has more than the 1048576 bytes that it may have")
	})
	t.Run("newer manifest", func(t *testing.T) {
		s := newShelf(t)
		s.put(t, m, stored)
		s.change(t, archive.ManifestKey(m.Name), func(b []byte) []byte {
			return bytes.Replace(b, []byte(`"schemaVersion": 1`), []byte(`"schemaVersion": 2`), 1)
		})
		_, err := Stored(t.Context(), s.Destination, m.Name, request(t, LevelChecksum))
		require.ErrorIs(t, err, archive.ErrNewerVersion)
		require.NotErrorIs(t, err, archive.ErrCorrupt)
	})
}

// breaking gives an error where its content ends.
type breaking struct {
	*bytes.Reader
	err error
}

func (b *breaking) Read(p []byte) (int, error) {
	if b.Len() == 0 {
		return 0, b.err
	}
	return b.Reader.Read(p)
}
