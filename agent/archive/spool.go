package archive

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"etcdsnapshot.dev/agent/store"
)

// spoolSuffix follows the snapshot's name in the name of its spool file.
const spoolSuffix = ".spool"

// Spool is the one local file of a run: what is published to every destination is read from it. The file is held by
// a lock (flock) as long as the run lives, so that SweepSpool knows the leftovers of killed runs. It is not safe for
// concurrent use, but the ReaderAt of its Blob is.
type Spool struct {
	dir  string
	path string
	f    *os.File
	w    *bufio.Writer
	hash hash.Hash // nil after SkipHash
	size int64
	done bool
}

var _ io.WriteCloser = (*Spool)(nil)

// CreateSpool makes the file dir/name.spool (mode 0600), and dir (mode 0700) where it is missing. name is a
// snapshot's name. The error is fs.ErrExist where the file is there already.
func CreateSpool(dir, name string) (*Spool, error) {
	if _, ok := ParseName(name); !ok {
		return nil, fmt.Errorf("create spool file: %q is not the name of a snapshot", name)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create spool folder (choose another with --spool-dir): %w", spaceError(err))
	}
	path := filepath.Join(dir, name+spoolSuffix)
	// A sweep may see the new file before it is locked, and remove it: then it is made again.
	for range 100 {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, fmt.Errorf("create spool file (choose another folder with --spool-dir): %w", spaceError(err))
		}
		if err := lock(f, syscall.LOCK_EX); err != nil {
			return nil, errors.Join(fmt.Errorf("lock spool file %s: %w", path, err), os.Remove(path), f.Close())
		}
		if isSame(f, path) {
			h := sha256.New()
			return &Spool{dir: dir, path: path, f: f, hash: h, w: bufio.NewWriterSize(f, spoolBuffer)}, nil
		}
		f.Close()
	}
	return nil, fmt.Errorf("create spool file %s: another process keeps removing it", path)
}

// Path of the file.
func (s *Spool) Path() string { return s.path }

// SkipHash leaves the SHA-256 out, for an object whose SHA-256 is known otherwise: the plain database's. It is called
// before the first Write; the Blob's SHA256 is then the caller's to set.
func (s *Spool) SkipHash() { s.hash = nil }

// Write appends to the file. The error is syscall.ENOSPC (or EDQUOT) where the disk is full.
func (s *Spool) Write(p []byte) (int, error) {
	if s.done {
		return 0, errClosed
	}
	n, err := s.w.Write(p)
	if s.hash != nil {
		s.hash.Write(p[:n])
	}
	s.size += int64(n)
	if err != nil {
		return n, s.writeError(err)
	}
	return n, nil
}

// Finish ends writing and gives what was written for store.Store's Put. The Blob is good until Close. The file is not
// synced to the disk: it need not outlive the run, and a store that keeps it (Blob.File) syncs it itself.
func (s *Spool) Finish() (store.Blob, error) {
	if s.done {
		return store.Blob{}, errClosed
	}
	s.done = true
	if err := s.w.Flush(); err != nil {
		return store.Blob{}, s.writeError(err)
	}
	s.w = nil // its buffer is not needed while the blob is uploaded
	b := store.Blob{ReaderAt: s.f, Size: s.size, File: s.f}
	if s.hash != nil {
		s.hash.Sum(b.SHA256[:0])
	}
	return b, nil
}

// Close removes the file. Further calls do nothing.
func (s *Spool) Close() error {
	if s.f == nil {
		return nil
	}
	s.done = true
	// Removed while still locked: nobody else takes the file for a leftover.
	err := os.Remove(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	err = errors.Join(err, s.f.Close())
	s.f = nil
	if err != nil {
		return fmt.Errorf("remove spool file: %w", err)
	}
	return nil
}

func (s *Spool) writeError(err error) error {
	onDisk := s.size
	if fi, serr := s.f.Stat(); serr == nil {
		onDisk = fi.Size()
	}
	return fmt.Errorf("spool snapshot in %s after %d bytes (%.1f MiB): %w", s.dir, onDisk, float64(onDisk)/(1<<20), spaceError(err))
}

// spaceError says what to do about a full disk.
func spaceError(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: the spool holds one encoded snapshot; give --spool-dir a folder with more room, or the spool volume a larger size", err)
	}
	return err
}

// SweepSpool removes the spool files in dir that no living process holds and returns their paths. Files that are not
// named like a spool file are left alone; a missing dir holds none. One file's error does not keep it from the others.
func SweepSpool(dir string) (removed []string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("sweep spool folder: %w", err)
	}
	var errs []error
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), spoolSuffix)
		if !ok || !e.Type().IsRegular() {
			continue
		}
		if _, ok := ParseName(name); !ok {
			continue
		}
		path := filepath.Join(dir, e.Name())
		switch ok, err := sweep(path); {
		case err != nil:
			errs = append(errs, fmt.Errorf("sweep spool file: %w", err))
		case ok:
			removed = append(removed, path)
		}
	}
	return removed, errors.Join(errs...)
}

// sweep removes path unless it is held, or gone.
func sweep(path string) (bool, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	if err := lock(f, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return false, nil
		}
		return false, fmt.Errorf("lock %s: %w", path, err)
	}
	// Between opening and locking, the holder may have removed its file and another run made one of this name.
	if !isSame(f, path) {
		return false, nil
	}
	if err := os.Remove(path); err != nil {
		return false, err
	}
	return true, nil
}

// lock takes a lock that ends with the open file, hence at the latest with the process.
func lock(f *os.File, how int) error {
	for {
		err := syscall.Flock(int(f.Fd()), how)
		if err != syscall.EINTR {
			return err
		}
	}
}

// isSame tells whether path still names the open file f.
func isSame(f *os.File, path string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Lstat(path)
	return err == nil && os.SameFile(a, b)
}
