package extras_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/extras"
)

// node makes the files of a control plane in a folder, and gives the folder.
func node(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for path, text := range map[string]string{"pki/ca.crt": "certificate", "pki/ca.key": "private", "pki/etcd/ca.key": "private too", "pki/empty": "", "token": "secret"} {
		file := filepath.Join(dir, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	require.NoError(t, os.Chmod(filepath.Join(dir, "pki/ca.crt"), 0o644))
	require.NoError(t, os.Chmod(filepath.Join(dir, "pki/etcd"), 0o700))
	require.NoError(t, os.Symlink("ca.crt", filepath.Join(dir, "pki/current.crt")))
	return dir
}

func collect(t *testing.T, paths ...string) (archive []byte, files []string, log string) {
	t.Helper()
	var b, l bytes.Buffer
	files, err := extras.Collect(t.Context(), &b, paths, slog.New(slog.NewTextHandler(&l, nil)))
	require.NoError(t, err)
	return b.Bytes(), files, l.String()
}

func read(t *testing.T, archive []byte) []extras.Entry {
	t.Helper()
	entries, err := extras.Read(bytes.NewReader(archive))
	require.NoError(t, err)
	return entries
}

// tree describes everything below dir: type, mode, owner, time, content.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		fi, err := os.Lstat(path)
		require.NoError(t, err)
		owner := fi.Sys().(*syscall.Stat_t)
		text := fmt.Sprintf("%s %d:%d", fi.Mode(), owner.Uid, owner.Gid)
		switch {
		case fi.Mode().IsRegular():
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			text += fmt.Sprintf(" %d %q", fi.ModTime().Unix(), data)
		case fi.Mode()&fs.ModeSymlink != 0:
			link, err := os.Readlink(path)
			require.NoError(t, err)
			text += " -> " + link
		}
		rel, err := filepath.Rel(dir, path)
		all[rel] = text
		return err
	}))
	return all
}

// TestThereAndBack: what is placed is what was collected: content, mode, owner, time, links.
func TestThereAndBack(t *testing.T) {
	dir := node(t)
	paths := []string{dir + "/token", dir + "/pki/", dir + "/pki/etcd"}
	data, files, log := collect(t, paths...)
	require.Empty(t, log)
	require.Equal(t, []string{dir + "/pki/ca.crt", dir + "/pki/ca.key", dir + "/pki/current.crt", dir + "/pki/empty", dir + "/pki/etcd/ca.key", dir + "/token"}, files)
	again, _, _ := collect(t, paths[1], paths[0])
	require.Equal(t, data, again, "the same files give the same archive")

	to := filepath.Join(t.TempDir(), "new")
	changes, err := extras.Place(to, read(t, data), false)
	require.NoError(t, err)
	for _, c := range changes {
		require.Equal(t, extras.StateNew, c.State)
	}
	require.Equal(t, tree(t, dir), tree(t, filepath.Join(to, dir)))
	changes, err = extras.Place(to, read(t, data), false)
	require.NoError(t, err, "once more")
	for _, c := range changes {
		require.Equal(t, extras.StateSame, c.State)
	}
}

// TestByTar: the tar command reads it, and gives the same.
func TestByTar(t *testing.T) {
	dir := node(t)
	data, _, _ := collect(t, dir)
	to := t.TempDir()
	cmd := exec.Command("tar", "-xpf", "-", "-C", to)
	cmd.Stdin = bytes.NewReader(data)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, tree(t, dir), tree(t, filepath.Join(to, dir)))
}

func TestCollectErrors(t *testing.T) {
	dir := node(t)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "nothing"), 0o700))
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	big := filepath.Join(dir, "zbig")
	f, err := os.Create(big)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(extras.MaxBytes))
	require.NoError(t, f.Close())
	many := filepath.Join(dir, "many")
	require.NoError(t, os.Mkdir(many, 0o700))
	for i := range extras.MaxFiles + 1 {
		require.NoError(t, os.WriteFile(filepath.Join(many, fmt.Sprint(i)), nil, 0o600))
	}
	for name, c := range map[string]struct {
		paths []string
		want  string
	}{
		"missing":       {[]string{dir + "/pki", dir + "/pkcs"}, dir + "/pkcs does not exist on this node"},
		"nothing in it": {[]string{dir + "/nothing"}, dir + "/nothing holds no file"},
		"a pipe":        {[]string{dir + "/pipe"}, dir + "/pipe holds no file"},
		"too much":      {[]string{dir + "/pki", big}, "more than 16 MiB together, at " + big},
		"too many":      {[]string{many}, "more than 4096 files"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := extras.Collect(t.Context(), &bytes.Buffer{}, c.paths, slog.New(slog.DiscardHandler))
			require.ErrorContains(t, err, c.want)
		})
	}
	require.NoError(t, os.Rename(dir+"/pipe", dir+"/pki/pipe"))
	require.NoError(t, os.Rename(dir+"/nothing", dir+"/pki/nothing"))
	_, files, log := collect(t, dir+"/pki")
	require.NotContains(t, files, dir+"/pki/pipe")
	require.Contains(t, log, "left out")
}

// TestLinks: a path that is a link is followed, what a link below it points to is told where it is not collected.
func TestLinks(t *testing.T) {
	dir := node(t)
	elsewhere := filepath.Join(dir, "token")
	require.NoError(t, os.Symlink(elsewhere, filepath.Join(dir, "pki/token")))
	require.NoError(t, os.Symlink("pki", filepath.Join(dir, "linked")))
	data, files, log := collect(t, dir+"/linked")
	require.Contains(t, files, dir+"/linked/ca.key")
	require.Contains(t, log, "target="+elsewhere)
	require.NotContains(t, log, "ca.crt", "what points into the folder is there")
	require.NotContains(t, string(data), "secret", "links below are not followed")
}

// TestNothingIsOverwritten unless it is asked for; then whole files replace whole files.
func TestNothingIsOverwritten(t *testing.T) {
	dir := node(t)
	data, _, _ := collect(t, dir)
	to := t.TempDir()
	mine := filepath.Join(to, dir, "pki/ca.key")
	require.NoError(t, os.MkdirAll(filepath.Dir(mine), 0o755))
	require.NoError(t, os.WriteFile(mine, []byte("mine"), 0o600))
	before := tree(t, to)

	changes, err := extras.Compare(to, read(t, data))
	require.NoError(t, err)
	states := map[string]extras.State{}
	for _, c := range changes {
		states["/"+c.Path] = c.State
	}
	require.Equal(t, extras.StateDiffers, states[dir+"/pki/ca.key"])
	require.Equal(t, extras.StateNew, states[dir+"/pki/etcd/ca.key"])

	_, err = extras.Place(to, read(t, data), false)
	require.ErrorIs(t, err, extras.ErrExists)
	require.ErrorContains(t, err, mine)
	require.Equal(t, before, tree(t, to), "nothing at all was written")

	_, err = extras.Place(to, read(t, data), true)
	require.NoError(t, err)
	require.Equal(t, tree(t, dir), tree(t, filepath.Join(to, dir)))

	require.NoError(t, os.Chmod(mine, 0o644))
	_, err = extras.Place(to, read(t, data), false)
	require.ErrorContains(t, err, mine, "a key that all may read is not the one that was collected")
}

// TestFolderInTheWay of a file, or the other way round, is not replaced even if asked for.
func TestFolderInTheWay(t *testing.T) {
	dir := node(t)
	data, _, _ := collect(t, dir)
	to := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(to, dir, "pki/ca.key/mine"), 0o755))
	before := tree(t, to)
	_, err := extras.Place(to, read(t, data), true)
	require.ErrorContains(t, err, "move it away first")
	require.Equal(t, before, tree(t, to))
}

// TestHostileArchives: what Collect does not write is refused before anything is touched.
func TestHostileArchives(t *testing.T) {
	archiveOf := func(hs ...tar.Header) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range hs {
			require.NoError(t, w.WriteHeader(&h))
			_, err := w.Write(make([]byte, h.Size))
			require.NoError(t, err)
		}
		require.NoError(t, w.Close())
		return b.Bytes()
	}
	file := func(name string) tar.Header {
		return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: 3}
	}
	for name, data := range map[string][]byte{
		"absolute":   archiveOf(file("/etc/shadow")),
		"dots":       archiveOf(file("etc/../../root/.ssh/authorized_keys")),
		"only dots":  archiveOf(file("..")),
		"doubled":    archiveOf(file("etc/x"), file("etc/x")),
		"hard link":  archiveOf(file("etc/x"), tar.Header{Typeflag: tar.TypeLink, Name: "etc/y", Linkname: "/etc/shadow"}),
		"device":     archiveOf(tar.Header{Typeflag: tar.TypeBlock, Name: "etc/sda", Devmajor: 8}),
		"too large":  archiveOf(tar.Header{Typeflag: tar.TypeReg, Name: "etc/x", Size: extras.MaxBytes + 1}),
		"empty":      archiveOf(),
		"no archive": bytes.Repeat([]byte("x"), 1024),
		"cut":        archiveOf(file("etc/x"))[:513],
	} {
		t.Run(name, func(t *testing.T) {
			_, err := extras.Read(bytes.NewReader(data))
			require.ErrorIs(t, err, archive.ErrCorrupt)
		})
	}
}

// TestNotThroughLinks: neither a link in the archive nor one that is there already leads out of the folder.
func TestNotThroughLinks(t *testing.T) {
	outside := t.TempDir()
	for name, link := range map[string]string{"absolute": outside, "relative": "../../" + filepath.Base(outside)} {
		entries := []extras.Entry{
			{Path: "etc", Mode: fs.ModeDir | 0o755},
			{Path: "etc/pki", Mode: fs.ModeSymlink, Link: link},
			{Path: "etc/pki/ca.key", Mode: 0o600, Data: []byte("x")},
		}
		t.Run(name+" in the archive", func(t *testing.T) {
			_, err := extras.Place(filepath.Join(t.TempDir(), "to"), entries, true)
			require.Error(t, err)
		})
		t.Run(name+" in the folder", func(t *testing.T) {
			to := t.TempDir()
			require.NoError(t, os.Mkdir(filepath.Join(to, "etc"), 0o755))
			require.NoError(t, os.Symlink(link, filepath.Join(to, "etc/pki")))
			_, err := extras.Place(to, []extras.Entry{entries[2]}, true)
			require.ErrorContains(t, err, "symbolic links")
		})
	}
	require.Empty(t, tree(t, outside))
}

// Whatever an archive holds, Read gives entries that stay below a folder, or says that it is corrupt.
func FuzzRead(f *testing.F) {
	dir := f.TempDir()
	require.NoError(f, os.WriteFile(filepath.Join(dir, "a"), []byte("x"), 0o600))
	require.NoError(f, os.Symlink("a", filepath.Join(dir, "b")))
	var b bytes.Buffer
	_, err := extras.Collect(f.Context(), &b, []string{dir}, slog.New(slog.DiscardHandler))
	require.NoError(f, err)
	f.Add(b.Bytes())
	f.Add([]byte(strings.Repeat("\x00", 1024)))
	f.Fuzz(func(t *testing.T, raw []byte) {
		entries, err := extras.Read(bytes.NewReader(raw))
		if err != nil {
			require.ErrorIs(t, err, archive.ErrCorrupt)
			return
		}
		for _, e := range entries {
			require.True(t, filepath.IsLocal(e.Path), e.Path)
			require.False(t, e.ModTime.Before(time.Unix(-1<<40, 0)))
		}
	})
}
