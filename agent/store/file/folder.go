package file

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"etcdsnapshot.dev/agent/store"
)

// folder is an open folder that passed check. Everything in it is reached through its descriptor, one path segment
// at a time and without following links, so that nobody can swap a folder between a check and its use.
type folder struct {
	f    *os.File
	path string
}

const openFolder = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

func openRoot(path string) (*folder, error) {
	return openAt(unix.AT_FDCWD, path, path)
}

// openAt opens the folder name in at; path is its whole path for messages.
func openAt(at int, name, path string) (*folder, error) {
	var fd int
	err := retryEINTR(func() (err error) {
		fd, err = unix.Openat(at, name, openFolder, 0)
		return err
	})
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil, notFolder(at, name, path, err)
	}
	if err != nil {
		return nil, explain("open folder", path, err)
	}
	d := &folder{f: os.NewFile(uintptr(fd), path), path: path}
	if err := d.check(); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// notFolder says what lies where a folder was expected. A link is refused; anything else means that no object can lie
// below, which errors.Is(err, errNotFolder) tells.
func notFolder(at int, name, path string, err error) error {
	var st unix.Stat_t
	e := retryEINTR(func() error { return unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	switch {
	case errors.Is(e, unix.ENOTDIR):
		return fmt.Errorf("%w: an ancestor of %s", errNotFolder, path)
	case e != nil:
		return explain("open folder", path, err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return fmt.Errorf("%w: %s is a symbolic link, which is refused here; name the folder it points to, or mount that folder here", store.ErrConfig, path)
	}
	return fmt.Errorf("%w: %s", errNotFolder, path)
}

var errNotFolder = fmt.Errorf("%w: not a folder", store.ErrConfig)

// errForeign marks a folder or file of somebody who is neither us nor root, or that everyone may write to.
var errForeign = fmt.Errorf("%w: not safe", store.ErrConfig)

func (d *folder) check() error {
	var st unix.Stat_t
	if err := retryEINTR(func() error { return unix.Fstat(int(d.f.Fd()), &st) }); err != nil {
		return explain("stat", d.path, err)
	}
	if err := checkOwner("folder", d.path, st.Uid); err != nil {
		return err
	}
	if st.Mode&unix.S_IWOTH != 0 && st.Mode&unix.S_ISVTX == 0 {
		return fmt.Errorf("%w: folder %s is writable for everyone (mode %04o): chmod o-w %[2]s", errForeign, d.path, st.Mode&0o7777)
	}
	return nil
}

func checkOwner(kind, path string, uid uint32) error {
	me := os.Geteuid()
	if uid == 0 || int(uid) == me {
		return nil
	}
	return fmt.Errorf("%w: %s %s belongs to uid %d, and this process runs as uid %d: chown %[5]d %[3]s, or run as uid %[4]d", errForeign, kind, path, uid, me)
}

func (d *folder) Close() error { return d.f.Close() }

func (d *folder) join(name string) string { return filepath.Join(d.path, name) }

// open opens the folder that lies below the root at the given names. With create, missing ones are made and every
// folder on the way is synced: also one that another writer made, since that writer may not have come to it yet.
// Without, a missing one is ErrNotExist.
func (s *Store) open(names []string, create bool) (*folder, error) {
	dir, err := openRoot(s.root)
	for _, name := range names {
		if err != nil {
			return nil, err
		}
		var sub *folder
		sub, err = dir.sub(name, create)
		err = errors.Join(err, dir.Close())
		if err != nil && sub != nil {
			sub.Close()
		}
		dir = sub
	}
	if err != nil {
		if !create && errors.Is(err, errNotFolder) {
			return nil, fmt.Errorf("%w: %w", store.ErrNotExist, err)
		}
		return nil, err
	}
	return dir, nil
}

func (d *folder) sub(name string, create bool) (*folder, error) {
	if create {
		err := retryEINTR(func() error { return unix.Mkdirat(int(d.f.Fd()), name, 0o700) })
		// On a read-only file system an existing folder is EROFS, not EEXIST; opening it tells.
		if err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EROFS) {
			return nil, full(d, 0, explain("make folder", d.join(name), err))
		}
		if err == nil || errors.Is(err, unix.EEXIST) {
			if err := syncFolder(d.f, d.path); err != nil {
				return nil, err
			}
		}
		sub, openErr := openAt(int(d.f.Fd()), name, d.join(name))
		if errors.Is(err, unix.EROFS) && errors.Is(openErr, store.ErrNotExist) {
			return nil, explain("make folder", d.join(name), err)
		}
		return sub, openErr
	}
	return openAt(int(d.f.Fd()), name, d.join(name))
}

// stat looks at name without following it.
func (d *folder) stat(name string) (st unix.Stat_t, err error) {
	err = retryEINTR(func() error { return unix.Fstatat(int(d.f.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	if err != nil {
		return st, explain("stat", d.join(name), err)
	}
	return st, nil
}

// object looks for the object name. What is not a regular file is none.
func (d *folder) object(name string) (st unix.Stat_t, err error) {
	if st, err = d.stat(name); err != nil {
		return st, err
	}
	if kind := kindOf(st); kind != "file" {
		return st, fmt.Errorf("%w: %s is a %s, not a regular file", store.ErrNotExist, d.join(name), kind)
	}
	return st, checkOwner("file", d.join(name), st.Uid)
}

// taken says that name is not free for Put, and what it is.
func (d *folder) taken(name string) error {
	st, err := d.stat(name)
	if err != nil {
		return notExistIsNil(err)
	}
	if kind := kindOf(st); kind != "file" {
		return fmt.Errorf("%w: %s is a %s, so that it cannot be made an object", store.ErrConfig, d.join(name), kind)
	}
	return fmt.Errorf("%w: %s", store.ErrExists, d.join(name))
}

func kindOf(st unix.Stat_t) string {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return "file"
	case unix.S_IFDIR:
		return "folder"
	case unix.S_IFLNK:
		return "symbolic link"
	default:
		return "special file"
	}
}

// syncFolder makes the names in f last. Some network file systems know no sync of folders and say EINVAL: their
// names last by other means or not at all.
func syncFolder(f *os.File, path string) error {
	if err := f.Sync(); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTSUP) {
		return explain("sync folder", path, err)
	}
	return nil
}

// explain says what was tried with path and maps what the system said to the store's errors.
func explain(verb, path string, err error) error {
	// What os.File returns names the path once more.
	var pathErr *os.PathError
	if errors.As(err, &pathErr) {
		err = pathErr.Err
	}
	switch {
	case errors.Is(err, unix.ENOENT):
		err = fmt.Errorf("%w: %w", store.ErrNotExist, err)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		err = fmt.Errorf("%w: %w (as uid %d)", store.ErrAccessDenied, err, os.Geteuid())
	case errors.Is(err, unix.EROFS):
		err = fmt.Errorf("%w: %w", store.ErrAccessDenied, err)
	}
	return fmt.Errorf("%s %s: %w", verb, path, err)
}

func retryEINTR(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// skip tells the errors for which a walk passes a folder by: it is gone, or it is not ours to look into.
func skip(err error) bool {
	return errors.Is(err, store.ErrNotExist) || errors.Is(err, store.ErrAccessDenied) || errors.Is(err, store.ErrConfig)
}
