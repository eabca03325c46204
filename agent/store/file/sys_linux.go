package file

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// renameNoReplace renames within the folder at, or says EEXIST.
func renameNoReplace(at int, from, to string) error {
	return unix.Renameat2(at, from, at, to, unix.RENAME_NOREPLACE)
}

// linkFile gives the open file f the name in the folder at. It fails across file systems, and across mounts of one.
func linkFile(f *os.File, at int, name string) error {
	return retryEINTR(func() error {
		return unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), at, name, unix.AT_SYMLINK_FOLLOW)
	})
}

// reserve asks for size bytes, so that a disk that is too small says so at once and not after minutes.
func reserve(f *os.File, size int64) error {
	if size == 0 {
		return nil
	}
	err := retryEINTR(func() error { return unix.Fallocate(int(f.Fd()), 0, 0, size) })
	if isAny(err, unix.EOPNOTSUPP, unix.ENOTSUP, unix.ENOSYS, unix.EINVAL) {
		return nil
	}
	return err
}

// syncData waits until f's content and size are on the disk.
func syncData(f *os.File) error {
	return retryEINTR(func() error { return unix.Fdatasync(int(f.Fd())) })
}

// window is how many bytes are handed to the disk at once; twice as many wait for it at most.
const window = 16 << 20

// writeback starts writing a window to the disk as soon as it is full, waits for the one before, and gives its memory
// back.
type writeback struct {
	f           *os.File
	off         int64
	unsupported bool
}

// wrote takes note that the file is written up to end. An error is one of the disk, and may not be told again by
// fsync.
func (w *writeback) wrote(end int64) error {
	for !w.unsupported && end-w.off >= window {
		fd := int(w.f.Fd())
		err := retryEINTR(func() error { return unix.SyncFileRange(fd, w.off, window, unix.SYNC_FILE_RANGE_WRITE) })
		if err == nil && w.off >= window {
			prev := w.off - window
			err = retryEINTR(func() error {
				return unix.SyncFileRange(fd, prev, window, unix.SYNC_FILE_RANGE_WAIT_BEFORE|unix.SYNC_FILE_RANGE_WRITE|unix.SYNC_FILE_RANGE_WAIT_AFTER)
			})
			// Only advice: the memory is given back anyway when it is needed.
			_ = unix.Fadvise(fd, prev, window, unix.FADV_DONTNEED)
		}
		if w.unsupported = isAny(err, unix.ENOSYS, unix.EINVAL, unix.EOPNOTSUPP, unix.ESPIPE); w.unsupported {
			return nil
		}
		if err != nil {
			return err
		}
		w.off += window
	}
	return nil
}

// dropCache makes the next read of f come from the disk.
func dropCache(f *os.File) error {
	// Only what is on the disk can be dropped.
	if err := f.Sync(); err != nil && !isAny(err, unix.EINVAL, unix.ENOTSUP, unix.EROFS) {
		return err
	}
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	return nil
}

// locksAreGlobal says that a lock on f is seen by everyone who can open it, which holds for the file systems of one
// machine. The list is of those in use for local disks; numbers are in linux/magic.h.
func locksAreGlobal(f *os.File) bool {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return false
	}
	switch uint32(st.Type) { //nolint:gosec // a magic number has 32 bits, whatever the type of the field
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.TMPFS_MAGIC,
		unix.OVERLAYFS_SUPER_MAGIC, unix.MSDOS_SUPER_MAGIC, unix.EXFAT_SUPER_MAGIC, 0x2fc12fc1 /* ZFS, which has no name there */ :
		return true
	}
	return false
}
