package verify

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"etcdsnapshot.dev/agent/units"
)

// SpaceError says that a folder has too little room.
type SpaceError struct {
	Dir string
	// Free and Need in bytes; Need is 0 where it is not known.
	Free, Need int64
	// Hint says what to do.
	Hint string
}

func (e *SpaceError) Error() string {
	need := ""
	if e.Need > 0 {
		need = fmt.Sprintf(" and %s (%d bytes) are needed", humanBytes(e.Need), e.Need)
	}
	hint := e.Hint
	if hint == "" {
		hint = "choose another folder with --scratch-dir"
	}
	return fmt.Sprintf("not enough room: %s has %s (%d bytes) free%s: %s", e.Dir, humanBytes(e.Free), e.Free, need, hint)
}

// Unwrap makes it a full disk's error.
func (e *SpaceError) Unwrap() error { return syscall.ENOSPC }

// CheckSpace gives a *SpaceError unless the file system of dir, or of the nearest folder above that is there, has need
// bytes free for us.
func CheckSpace(dir string, need int64, hint string) error {
	free, err := FreeSpace(dir)
	if err != nil {
		return err
	}
	if free < need {
		return &SpaceError{Dir: dir, Free: free, Need: need, Hint: hint}
	}
	return nil
}

// FreeSpace gives the bytes that are free for us in the file system of dir, or of the nearest folder above that is there.
func FreeSpace(dir string) (int64, error) {
	at, err := filepath.Abs(dir)
	if err != nil {
		return 0, fmt.Errorf("tell the free space of %s: %w", dir, err)
	}
	for {
		var st unix.Statfs_t
		switch err := unix.Statfs(at, &st); {
		case err == nil:
			free := uint64(st.Bavail) * uint64(st.Bsize) //nolint:gosec // a block has a size
			return int64(min(free, math.MaxInt64)), nil
		case errors.Is(err, os.ErrNotExist) && filepath.Dir(at) != at:
			at = filepath.Dir(at)
		case errors.Is(err, unix.EINTR):
		default:
			return 0, fmt.Errorf("tell the free space of %s: %w", dir, err)
		}
	}
}

// spaceError turns a full disk into a *SpaceError.
func spaceError(err error, dir string, need int64, hint string) error {
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return err
	}
	free, ferr := FreeSpace(dir)
	if ferr != nil {
		return errors.Join(err, ferr)
	}
	return &SpaceError{Dir: dir, Free: free, Need: need, Hint: hint}
}

func humanBytes(n int64) string { return units.Bytes(n) }
