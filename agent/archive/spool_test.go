package archive

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const spoolHelperEnv = "ARCHIVE_TEST_SPOOL_HELPER"

// spoolHelper is another process that holds a spool file and then waits to be killed.
func spoolHelper(dir string) {
	s, err := CreateSpool(dir, someName("helper"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if _, err := s.Write([]byte("half a snapshot")); err != nil {
		os.Exit(1)
	}
	fmt.Println(s.Path())
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(1)
}

func someName(policy string) string {
	name, err := NewName(policy, time.Now(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return name
}

func files(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestSpool(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "spool")
	name := someName("etcd")
	s, err := CreateSpool(dir, name)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, name+".spool"), s.Path())
	for path, mode := range map[string]os.FileMode{dir: 0o700, s.Path(): 0o600} {
		fi, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, mode, fi.Mode().Perm())
	}
	_, err = CreateSpool(dir, name)
	require.ErrorIs(t, err, os.ErrExist)

	data := database(3<<20 + 1)
	for rest := data; len(rest) > 0; {
		n := min(len(rest), 64<<10+16)
		_, err := s.Write(rest[:n])
		require.NoError(t, err)
		rest = rest[n:]
	}
	b, err := s.Finish()
	require.NoError(t, err)
	require.EqualValues(t, len(data), b.Size)
	require.Equal(t, sha256.Sum256(data), b.SHA256)
	onDisk, err := os.ReadFile(s.Path())
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, onDisk))

	// Every destination reads at the same time.
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			got, err := io.ReadAll(io.NewSectionReader(b, 0, b.Size))
			if err != nil || !bytes.Equal(data, got) {
				t.Errorf("read %d bytes, %v", len(got), err)
			}
		})
	}
	wg.Wait()

	_, err = s.Write([]byte("x"))
	require.ErrorIs(t, err, errClosed)
	_, err = s.Finish()
	require.ErrorIs(t, err, errClosed)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	require.Empty(t, files(t, dir))
	_, err = b.ReadAt(make([]byte, 1), 0)
	require.Error(t, err)
}

func TestSpoolOfNothing(t *testing.T) {
	s, err := CreateSpool(t.TempDir(), someName("etcd"))
	require.NoError(t, err)
	defer s.Close()
	b, err := s.Finish()
	require.NoError(t, err)
	require.Zero(t, b.Size)
	require.Equal(t, sha256.Sum256(nil), b.SHA256)
}

func TestSpoolSkipHash(t *testing.T) {
	s, err := CreateSpool(t.TempDir(), someName("etcd"))
	require.NoError(t, err)
	defer s.Close()
	s.SkipHash()
	_, err = s.Write([]byte("abc"))
	require.NoError(t, err)
	b, err := s.Finish()
	require.NoError(t, err)
	require.EqualValues(t, 3, b.Size)
	require.Zero(t, b.SHA256)
}

func TestSpoolRemovedBeforeFinish(t *testing.T) {
	dir := t.TempDir()
	s, err := CreateSpool(dir, someName("etcd"))
	require.NoError(t, err)
	_, err = s.Write(make([]byte, 5<<20))
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.Empty(t, files(t, dir))
}

func TestSpoolFolderThatCannotBe(t *testing.T) {
	file := writeFile(t, "file", "")
	_, err := CreateSpool(filepath.Join(file, "spool"), someName("etcd"))
	require.ErrorIs(t, err, syscall.ENOTDIR)
	require.ErrorContains(t, err, "--spool-dir")
	for _, name := range []string{"", "etcd", "../" + someName("etcd"), someName("etcd") + ".db"} {
		_, err = CreateSpool(t.TempDir(), name)
		require.ErrorContains(t, err, "not the name of a snapshot")
	}
}

// requireFull writes until the disk is full and checks what the user is told.
func requireFull(t *testing.T, s *Spool) {
	t.Helper()
	var err error
	for range 64 {
		if _, err = s.Write(make([]byte, 100<<10)); err != nil {
			break
		}
	}
	if err == nil {
		_, err = s.Finish()
	}
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorContains(t, err, s.dir)
	require.ErrorContains(t, err, "bytes (")
	require.ErrorContains(t, err, "--spool-dir")
}

// The kernel's always-full device stands in for the disk, which needs no privilege.
func TestSpoolDiskFullDevice(t *testing.T) {
	s, err := CreateSpool(t.TempDir(), someName("etcd"))
	require.NoError(t, err)
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	require.NoError(t, err)
	own := s.f
	s.f, s.w = full, bufio.NewWriterSize(full, largeBuffer)
	requireFull(t, s)
	require.NoError(t, s.Close())
	require.NoError(t, own.Close())
}

func TestSpoolDiskFull(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=2m"); err != nil {
		if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) {
			t.Skip("mounting a small file system needs root; TestSpoolDiskFullDevice covers the rest")
		}
		require.NoError(t, err)
	}
	defer func() { require.NoError(t, syscall.Unmount(dir, 0)) }()
	s, err := CreateSpool(dir, someName("etcd"))
	require.NoError(t, err)
	requireFull(t, s)
	require.NoError(t, s.Close())
	require.Empty(t, files(t, dir))
}

func TestSweepSpool(t *testing.T) {
	removed, err := SweepSpool(filepath.Join(t.TempDir(), "missing"))
	require.NoError(t, err)
	require.Empty(t, removed)

	dir := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), spoolHelperEnv+"="+dir)
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	defer stdin.Close()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	theirs := line[:len(line)-1]
	require.FileExists(t, theirs)

	mine, err := CreateSpool(dir, someName("etcd"))
	require.NoError(t, err)
	defer mine.Close()
	foreign := []string{"notes.spool", "etcd.spool", someName("etcd") + ".db", "README"}
	for _, f := range foreign {
		require.NoError(t, os.WriteFile(filepath.Join(dir, f), nil, 0o600))
	}
	link := filepath.Join(dir, someName("link")+spoolSuffix)
	require.NoError(t, os.Symlink(filepath.Join(dir, "README"), link))
	require.NoError(t, os.Mkdir(filepath.Join(dir, someName("folder")+spoolSuffix), 0o700))

	removed, err = SweepSpool(dir)
	require.NoError(t, err)
	require.Empty(t, removed, "both runs live")
	require.FileExists(t, theirs)

	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	require.FileExists(t, theirs, "a killed run leaves its file")
	removed, err = SweepSpool(dir)
	require.NoError(t, err)
	require.Equal(t, []string{theirs}, removed)
	require.NoFileExists(t, theirs)
	require.FileExists(t, mine.Path())
	require.FileExists(t, link)
	for _, f := range foreign {
		require.FileExists(t, filepath.Join(dir, f))
	}
}

// Runs that start while others sweep keep their files.
func TestSweepRacesWithCreate(t *testing.T) {
	dir := t.TempDir()
	stop := make(chan struct{})
	var sweeps, runs sync.WaitGroup
	for range 2 {
		sweeps.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					if _, err := SweepSpool(dir); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	for range 2 {
		runs.Go(func() {
			for range 200 {
				s, err := CreateSpool(dir, someName("etcd"))
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := os.Stat(s.Path()); err != nil {
					t.Error("a file that is held was swept: ", err)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	runs.Wait()
	close(stop)
	sweeps.Wait()
	require.Empty(t, files(t, dir))
}
