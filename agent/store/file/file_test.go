package file_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/file"
	"etcdsnapshot.dev/agent/store/storetest"
)

func newStore(t *testing.T) (*file.Store, string) {
	t.Helper()
	root := filepath.Join(t.TempDir(), "root")
	s, err := file.New(root, file.Options{Create: true})
	require.NoError(t, err)
	return s, root
}

func TestConformance(t *testing.T) {
	o := storetest.Options{
		// A folder has no pages, and each object is synced to a real disk.
		ListCount: 300,
		MaxHeap:   8 << 20,
		Foreign: func(t *testing.T, s store.Store, key string, content []byte) {
			path := filepath.Join(strings.TrimPrefix(s.String(), "file://"), key)
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			require.NoError(t, os.WriteFile(path, content, 0o644))
		},
	}
	storetest.RunWith(t, o, func(t *testing.T) store.Store {
		s, _ := newStore(t)
		return s
	})
}

func TestNew(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "real"), 0o755))
	require.NoError(t, os.Symlink("real", filepath.Join(dir, "link")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "real", "sub"), 0o755))
	for _, tc := range []struct {
		root string
		want error
		text string
	}{
		{"relative/path", store.ErrConfig, "not an absolute path"},
		{"", store.ErrConfig, "not an absolute path"},
		{"/", store.ErrConfig, "no folder for snapshots"},
		{"/../", store.ErrConfig, "no folder for snapshots"},
		{filepath.Join(dir, "file"), store.ErrConfig, "not a folder: " + dir + "/file"},
		{filepath.Join(dir, "file", "below"), store.ErrConfig, "not a folder"},
		{filepath.Join(dir, "link"), store.ErrConfig, dir + "/link is a symbolic link"},
		{filepath.Join(dir, "missing"), store.ErrNotExist, dir + "/missing"},
	} {
		_, err := file.New(tc.root, file.Options{})
		require.ErrorIs(t, err, tc.want, tc.root)
		require.ErrorContains(t, err, tc.text)
	}
	_, err := file.New(filepath.Join(dir, "link", "sub"), file.Options{})
	require.NoError(t, err, "an ancestor may be a link")

	_, err = file.New(filepath.Join(dir, "not mounted", "snapshots"), file.Options{Create: true})
	require.ErrorIs(t, err, store.ErrNotExist)
	require.NoDirExists(t, filepath.Join(dir, "not mounted"))
	for range 2 {
		_, err = file.New(filepath.Join(dir, "new"), file.Options{Create: true})
		require.NoError(t, err)
	}
	require.Equal(t, os.FileMode(0o700), mode(t, filepath.Join(dir, "new")))
}

func TestRootGone(t *testing.T) {
	s, root := newStore(t)
	require.NoError(t, os.Remove(root))
	require.ErrorIs(t, s.Put(t.Context(), "a/b", storetest.Text("x")), store.ErrNotExist)
	require.NoDirExists(t, root, "it is not made again: the disk may be unmounted")
	for _, prefix := range []string{"", "a/"} {
		require.ErrorIs(t, listErr(t, s, prefix), store.ErrNotExist, "a missing store is not an empty one")
	}
}

func TestModes(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0))
	s, root := newStore(t)
	require.NoError(t, s.Put(t.Context(), "cluster/deep/x.db", storetest.Text("x")))
	require.Equal(t, os.FileMode(0o700), mode(t, root))
	require.Equal(t, os.FileMode(0o700), mode(t, root+"/cluster"))
	require.Equal(t, os.FileMode(0o700), mode(t, root+"/cluster/deep"))
	require.Equal(t, os.FileMode(0o600), mode(t, root+"/cluster/deep/x.db"))
	require.Equal(t, []string{"cluster", "cluster/deep", "cluster/deep/x.db"}, tree(t, root), "no temporary file")
	var st syscall.Stat_t
	require.NoError(t, syscall.Stat(root+"/cluster/deep/x.db", &st))
	require.EqualValues(t, 1, st.Nlink)

	require.NoError(t, s.Delete(t.Context(), "cluster/deep/x.db"))
	require.Equal(t, []string{"cluster", "cluster/deep"}, tree(t, root), "folders stay")
}

func TestWorldWritable(t *testing.T) {
	s, root := newStore(t)
	require.NoError(t, s.Put(t.Context(), "a/b", storetest.Text("x")))
	require.NoError(t, os.Chmod(root, 0o777))
	_, err := file.New(root, file.Options{})
	require.ErrorIs(t, err, store.ErrConfig)
	require.ErrorContains(t, err, "chmod o-w "+root)
	require.ErrorIs(t, s.Put(t.Context(), "a/c", storetest.Text("x")), store.ErrConfig, "also when it became so")

	require.NoError(t, os.Chmod(root, 0o777|os.ModeSticky))
	require.NoError(t, s.Put(t.Context(), "a/c", storetest.Text("x")))
	require.NoError(t, os.Chmod(root+"/a", 0o777))
	_, err = s.Get(t.Context(), "a/c", 0)
	require.ErrorContains(t, err, "chmod o-w "+root+"/a")
}

func TestSymlinks(t *testing.T) {
	s, root := newStore(t)
	ctx := t.Context()
	outside := t.TempDir()
	require.NoError(t, os.WriteFile(outside+"/secret", []byte("secret"), 0o600))
	require.NoError(t, s.Put(ctx, "a/b", storetest.Text("x")))
	for link, target := range map[string]string{
		"folder": outside, "up": "..", "inside": "a", "a/secret": outside + "/secret", "a/same": "b", "a/dangling": "nowhere",
	} {
		require.NoError(t, os.Symlink(target, filepath.Join(root, link)))
	}
	for _, dir := range []string{"folder", "up", "inside"} {
		for name, err := range map[string]error{
			"put":    s.Put(ctx, dir+"/new", storetest.Text("x")),
			"get":    getErr(ctx, s, dir+"/secret"),
			"check":  s.Check(ctx, dir+"/secret", storetest.Text("secret")),
			"delete": s.Delete(ctx, dir+"/secret"),
			"list":   listErr(t, s, dir+"/"),
		} {
			require.ErrorIs(t, err, store.ErrConfig, "%s %s", name, dir)
			require.ErrorContains(t, err, root+"/"+dir+" is a symbolic link", "%s %s", name, dir)
		}
	}
	for _, key := range []string{"a/secret", "a/same", "a/dangling"} {
		require.ErrorIs(t, getErr(ctx, s, key), store.ErrNotExist, key)
		require.ErrorContains(t, getErr(ctx, s, key), "symbolic link")
		require.ErrorIs(t, s.Check(ctx, key, storetest.Text("secret")), store.ErrNotExist, key)
		require.ErrorIs(t, s.Put(ctx, key, storetest.Text("mine")), store.ErrConfig, key)
		require.NoError(t, s.Delete(ctx, key), key)
		_, err := os.Lstat(filepath.Join(root, key))
		require.NoError(t, err, "the link is not ours to delete")
	}
	require.Equal(t, []string{"a/b"}, keys(t, s, ""))
	require.Equal(t, []string{"secret"}, tree(t, outside), "nothing was made or deleted outside")
	require.NoFileExists(t, root+"/a/nowhere")
}

// What a bucket could keep side by side and a folder cannot.
func TestObjectIsNoFolder(t *testing.T) {
	s, root := newStore(t)
	ctx := t.Context()
	require.NoError(t, s.Put(ctx, "a/b", storetest.Text("x")))
	err := s.Put(ctx, "a/b/c", storetest.Text("x"))
	require.ErrorIs(t, err, store.ErrConfig)
	require.ErrorContains(t, err, "not a folder: "+root+"/a/b")
	err = s.Put(ctx, "a", storetest.Text("x"))
	require.ErrorIs(t, err, store.ErrConfig)
	require.ErrorContains(t, err, root+"/a is a folder")
	require.Empty(t, keys(t, s, "a/b/"))

	require.NoError(t, syscall.Mkfifo(root+"/a/fifo", 0o600))
	require.ErrorIs(t, getErr(ctx, s, "a/fifo"), store.ErrNotExist, "and it does not hang")
	require.ErrorContains(t, s.Put(ctx, "a/fifo", storetest.Text("x")), "special file")
	require.Equal(t, []string{"a/b"}, keys(t, s, ""))
}

func TestNamesOfTemporaryFiles(t *testing.T) {
	s, root := newStore(t)
	ctx := t.Context()
	require.ErrorIs(t, s.Put(ctx, "a/.tmp-x", storetest.Text("x")), store.ErrConfig)
	require.ErrorIs(t, getErr(ctx, s, "a/.tmp-x"), store.ErrConfig)
	require.ErrorIs(t, s.Put(ctx, "a/"+strings.Repeat("n", 256), storetest.Text("x")), store.ErrConfig)
	require.NoError(t, s.Put(ctx, ".tmp-folder/x", storetest.Text("x")))
	require.NoError(t, os.WriteFile(root+"/.tmp-leftover", []byte("half"), 0o600))
	require.Equal(t, []string{".tmp-folder/x"}, keys(t, s, ""))
	require.Equal(t, []string{".tmp-folder/x"}, keys(t, s, ".tmp-"))
}

func TestPutChecksTheSum(t *testing.T) {
	s, root := newStore(t)
	b := storetest.Blob(1, 3<<20+1)
	b.SHA256[0] ^= 1
	err := s.Put(t.Context(), "a/b", b)
	require.ErrorIs(t, err, store.ErrMismatch)
	require.ErrorContains(t, err, fmt.Sprintf("expected %x", b.SHA256))
	require.Equal(t, []string{"a"}, tree(t, root), "nothing left")
}

func TestCheckFindsChangesOnDisk(t *testing.T) {
	s, root := newStore(t)
	b := storetest.Blob(2, 3<<20+1)
	require.NoError(t, s.Put(t.Context(), "a/b", b))
	require.NoError(t, s.Check(t.Context(), "a/b", b))
	f, err := os.OpenFile(root+"/a/b", os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	var one [1]byte
	_, err = f.ReadAt(one[:], 2<<20)
	require.NoError(t, err)
	one[0] ^= 0x10
	_, err = f.WriteAt(one[:], 2<<20)
	require.NoError(t, err)
	err = s.Check(t.Context(), "a/b", b)
	require.ErrorIs(t, err, store.ErrMismatch, "one bit flipped")
	require.ErrorContains(t, err, root+"/a/b")
	require.NoError(t, f.Truncate(3<<20))
	require.ErrorContains(t, s.Check(t.Context(), "a/b", b), "has 3145728 bytes, expected 3145729")
}

// A spool file, read as Put reads it, from wherever TMPDIR is.
func TestPutFromFile(t *testing.T) {
	s, root := newStore(t)
	putSpooled(t, s)
	require.Equal(t, []string{"a", "a/b"}, tree(t, root))
}

func putSpooled(t *testing.T, s store.Store) {
	t.Helper()
	content := make([]byte, 1<<20+7)
	copy(content[1<<19:], "somewhere in the middle")
	spool := filepath.Join(t.TempDir(), "spool")
	require.NoError(t, os.WriteFile(spool, content, 0o600))
	f, err := os.Open(spool)
	require.NoError(t, err)
	defer f.Close()
	b := store.Blob{ReaderAt: f, Size: int64(len(content)), SHA256: sha256.Sum256(content)}
	require.NoError(t, s.Put(t.Context(), "a/b", b))
	require.NoError(t, s.Check(t.Context(), "a/b", b))
	require.FileExists(t, spool)
}

// sweep removes what is left of any upload, but for age where that counts.
func sweep(t *testing.T, s *file.Store, olderThan time.Duration) int {
	t.Helper()
	n, err := s.SweepUploads(t.Context(), "", time.Now().Add(-olderThan), func(string) bool { return true })
	require.NoError(t, err)
	return n
}

func TestSweep(t *testing.T) {
	s, root := newStore(t)
	ctx := t.Context()
	require.NoError(t, s.Put(ctx, "a/b", storetest.Text("x")))
	const random = ".tmp-abcdefghijkl-"
	// Two of dead writers, one killed between giving the object its name and removing the other one.
	require.NoError(t, os.WriteFile(root+"/"+random+"dead", []byte("half"), 0o600))
	require.NoError(t, os.Link(root+"/a/b", root+"/a/"+random+"b"))
	// What is none of ours, though it looks like it.
	require.NoError(t, os.Symlink("b", root+"/a/"+random+"link"))
	require.NoError(t, os.Mkdir(root+"/"+random+"folder", 0o700))
	require.NoError(t, os.WriteFile(root+"/.tmp-other-program", nil, 0o600))
	// One of a writer that lives.
	alive, err := os.Create(root + "/a/" + random + "alive")
	require.NoError(t, err)
	defer alive.Close()
	require.NoError(t, syscall.Flock(int(alive.Fd()), syscall.LOCK_EX))
	old := time.Now().Add(-48 * time.Hour)
	require.NoError(t, os.Chtimes(alive.Name(), old, old))

	all := func(string) bool { return true }
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	_, err = s.SweepUploads(cancelled, "", time.Now(), all)
	require.ErrorIs(t, err, context.Canceled)

	// Only those whose keys have the prefix and are the caller's.
	var asked []string
	n, err := s.SweepUploads(ctx, "a/", time.Now(), func(key string) bool { asked = append(asked, key); return false })
	require.NoError(t, err)
	require.Zero(t, n)
	require.Equal(t, []string{"a/alive", "a/b"}, asked)
	for _, prefix := range []string{"b", "a/c", "ded", "../"} {
		n, err = s.SweepUploads(ctx, prefix, time.Now(), all)
		require.NoError(t, err)
		require.Zero(t, n, prefix)
	}

	require.Equal(t, 2, sweep(t, s, 24*time.Hour), "however young")
	require.Equal(t, []string{random + "folder", ".tmp-other-program", "a", "a/" + random + "alive", "a/" + random + "link", "a/b"}, tree(t, root))
	require.NoError(t, s.Check(ctx, "a/b", storetest.Text("x")))

	require.NoError(t, alive.Close())
	require.Equal(t, 1, sweep(t, s, 24*time.Hour))
	require.NoError(t, os.RemoveAll(root))
	_, err = s.SweepUploads(ctx, "", time.Now(), all)
	require.ErrorIs(t, err, store.ErrNotExist)
}

// A sweep that runs all the time takes nothing from writers, not even between the making and the locking of a file.
func TestSweepWhileWriting(t *testing.T) {
	s, root := newStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	swept := make(chan error)
	go func() {
		var err error
		for ctx.Err() == nil && err == nil {
			_, err = s.SweepUploads(t.Context(), "", time.Now(), func(string) bool { return true })
		}
		swept <- err
	}()
	for i := range 300 {
		require.NoError(t, s.Put(t.Context(), fmt.Sprint("a/", i), storetest.Text("x")))
	}
	cancel()
	require.NoError(t, <-swept)
	require.Len(t, keys(t, s, "a/"), 300)
	for _, name := range tree(t, root) {
		require.NotContains(t, name, ".tmp-")
	}
}

// A name that fills a segment leaves no room for a temporary name with it whole.
func TestLongName(t *testing.T) {
	s, root := newStore(t)
	key := "a/" + strings.Repeat("n", 255)
	require.NoError(t, s.Put(t.Context(), key, storetest.Text("x")))
	require.Equal(t, []string{"a", key}, tree(t, root))
}

func mode(t *testing.T, path string) os.FileMode {
	t.Helper()
	fi, err := os.Lstat(path)
	require.NoError(t, err)
	return fi.Mode().Perm()
}

// tree gives all names below dir.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	names := []string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if rel, _ := filepath.Rel(dir, path); rel != "." {
			names = append(names, rel)
		}
		return err
	}))
	slices.Sort(names)
	return names
}

func keys(t *testing.T, s store.Store, prefix string) []string {
	t.Helper()
	ks := []string{}
	for o, err := range s.List(t.Context(), prefix) {
		require.NoError(t, err)
		ks = append(ks, o.Key)
	}
	return ks
}

func listErr(t *testing.T, s store.Store, prefix string) (last error) {
	t.Helper()
	for _, err := range s.List(t.Context(), prefix) {
		require.NoError(t, last, "an error ends the sequence")
		last = err
	}
	return last
}

func getErr(ctx context.Context, s store.Store, key string) error {
	rc, err := s.Get(ctx, key, 0)
	if err != nil {
		return err
	}
	data, err := io.ReadAll(rc)
	return errors.Join(fmt.Errorf("got %q", data), err, rc.Close())
}
