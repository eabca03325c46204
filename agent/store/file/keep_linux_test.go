package file_test

import (
	"crypto/sha256"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/file"
)

// finished makes a blob of a file as a spool is one.
func finished(t *testing.T, path string, mode os.FileMode) store.Blob {
	t.Helper()
	content := make([]byte, 40<<20) // more than is sent to the disk at once
	copy(content[33<<20:], "somewhere in the middle")
	require.NoError(t, os.WriteFile(path, content, mode))
	require.NoError(t, os.Chmod(path, mode))
	f, err := os.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return store.Blob{ReaderAt: f, File: f, Size: int64(len(content)), SHA256: sha256.Sum256(content)}
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	fi, err := os.Lstat(path)
	require.NoError(t, err)
	return fi.Sys().(*syscall.Stat_t).Ino
}

// TestPutKeepsTheFile: a finished file on the same file system is stored without being written again, and stays when its
// first name goes.
func TestPutKeepsTheFile(t *testing.T) {
	s, root := newStore(t)
	spool := filepath.Join(filepath.Dir(root), "spool")
	b := finished(t, spool, 0o600)
	require.NoError(t, s.Put(t.Context(), "a/b", b))
	stored := filepath.Join(root, "a", "b")
	require.Equal(t, inode(t, spool), inode(t, stored))
	require.Equal(t, []string{"a", "a/b"}, tree(t, root))
	require.ErrorIs(t, s.Put(t.Context(), "a/b", b), store.ErrExists)
	require.NoError(t, os.Remove(spool))
	require.NoError(t, s.Check(t.Context(), "a/b", b))
	require.Equal(t, os.FileMode(0o600), mode(t, stored))
	require.NoError(t, s.Put(t.Context(), "a/c", b), "its one name is an object's by now")
	require.NoError(t, s.Delete(t.Context(), "a/b"))
	require.NoError(t, s.Check(t.Context(), "a/c", b))
}

// TestPutCopiesWhatItCannotKeep: a file that others may read, that has several names, or that is on another file system.
func TestPutCopiesWhatItCannotKeep(t *testing.T) {
	s, root := newStore(t)
	spool := filepath.Join(filepath.Dir(root), "spool")
	check := func(s *file.Store, root string, b store.Blob) {
		t.Helper()
		require.NoError(t, s.Put(t.Context(), "a/b", b))
		require.NoError(t, s.Check(t.Context(), "a/b", b))
		require.NotEqual(t, inode(t, spool), inode(t, filepath.Join(root, "a", "b")))
		require.Equal(t, os.FileMode(0o600), mode(t, filepath.Join(root, "a", "b")))
		require.NoError(t, s.Delete(t.Context(), "a/b"))
	}
	check(s, root, finished(t, spool, 0o644))
	b := finished(t, spool, 0o600)
	require.NoError(t, os.Link(spool, spool+"-too"))
	check(s, root, b)
	require.NoError(t, os.Remove(spool+"-too"))

	elsewhere := tmpfs(t, "size=64m")
	other, err := file.New(elsewhere, file.Options{})
	require.NoError(t, err)
	check(other, elsewhere, b)
}
