package verify

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// scratchPrefix begins the names of scratch folders.
const scratchPrefix = "etcd-snapshot-scratch-"

// Scratch is a folder of one run that holds a decoded database for as long as it is looked at. It is held by a lock
// (flock) as long as the run lives, so that the next one knows the leftovers of killed runs.
type Scratch struct {
	path string
	lock *os.File
}

// OpenScratch makes a scratch folder in root (mode 0700), and root where it is missing, and removes what killed runs left
// there. A leftover that cannot be removed is logged, and is no reason not to go on.
func OpenScratch(root string, log *slog.Logger) (*Scratch, error) {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, fmt.Errorf("create scratch folder (choose another with --scratch-dir): %w", err)
	}
	removed, err := SweepScratch(root)
	if err != nil {
		log.Warn("what a killed run left cannot be removed", "error", err)
	}
	if len(removed) > 0 {
		log.Info("removed what a killed run left", "folders", removed)
	}
	// Another run's sweep may see the new folder before it is locked, and remove it: then it is made again.
	for range 100 {
		path, err := os.MkdirTemp(root, scratchPrefix)
		if err != nil {
			return nil, fmt.Errorf("create scratch folder (choose another with --scratch-dir): %w", err)
		}
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open scratch folder: %w", err), os.Remove(path))
		}
		if err := flock(f, syscall.LOCK_EX); err != nil {
			return nil, errors.Join(fmt.Errorf("lock scratch folder %s: %w", path, err), os.Remove(path), f.Close())
		}
		if isSame(f, path) {
			return &Scratch{path: path, lock: f}, nil
		}
		f.Close()
	}
	return nil, fmt.Errorf("create a scratch folder in %s: another process keeps removing it", root)
}

// Path of the folder.
func (s *Scratch) Path() string { return s.path }

// Empty removes what is in the folder.
func (s *Scratch) Empty() error {
	entries, err := os.ReadDir(s.path)
	if err != nil {
		return fmt.Errorf("empty scratch folder: %w", err)
	}
	var errs []error
	for _, e := range entries {
		errs = append(errs, os.RemoveAll(filepath.Join(s.path, e.Name())))
	}
	return errors.Join(errs...)
}

// Close removes the folder. Further calls do nothing.
func (s *Scratch) Close() error {
	if s.lock == nil {
		return nil
	}
	// Removed while still locked: nobody else takes it for a leftover.
	err := errors.Join(os.RemoveAll(s.path), s.lock.Close())
	s.lock = nil
	if err != nil {
		return fmt.Errorf("remove scratch folder: %w", err)
	}
	return nil
}

// SweepScratch removes the scratch folders of our own user in root that no living process holds and returns their paths.
// A missing root holds none. One folder's error does not keep it from the others.
func SweepScratch(root string) (removed []string, err error) {
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("sweep scratch folder: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), scratchPrefix) || !e.IsDir() {
			continue
		}
		path := filepath.Join(root, e.Name())
		switch ok, err := sweep(path); {
		case err != nil:
			errs = append(errs, fmt.Errorf("sweep scratch folder: %w", err))
		case ok:
			removed = append(removed, path)
		}
	}
	return removed, errors.Join(errs...)
}

// sweep removes the folder unless it is held, somebody else's, or gone.
func sweep(path string) (bool, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return false, err
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return false, nil
	}
	if err := flock(f, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return false, nil
		}
		return false, fmt.Errorf("lock %s: %w", path, err)
	}
	if !isSame(f, path) {
		return false, nil
	}
	if err := os.RemoveAll(path); err != nil {
		return false, err
	}
	return true, nil
}

// flock takes a lock that ends with the last process that has the open file.
func flock(f *os.File, how int) error {
	for {
		if err := syscall.Flock(int(f.Fd()), how); err != syscall.EINTR {
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
