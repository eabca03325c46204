package file

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"etcdsnapshot.dev/agent/store"
)

// tempPrefix begins the names of files that are being written. They are never listed. Random characters, a dash and
// the object's name follow, as much of it as a name may be long.
const (
	tempPrefix = ".tmp-"
	tempRandom = 12
	// NAME_MAX of every file system in use.
	nameMax = 255
)

func isTemp(name string) bool { return strings.HasPrefix(name, tempPrefix) }

func tempName(object string) string {
	name := tempPrefix + strings.ToLower(rand.Text()[:tempRandom]) + "-" + object
	return name[:min(len(name), nameMax)]
}

// tempOf gives the name of the object that the temporary file is for.
func tempOf(name string) (object string, ok bool) {
	rest, ok := strings.CutPrefix(name, tempPrefix)
	if !ok || len(rest) <= tempRandom+1 || rest[tempRandom] != '-' || len(name) == nameMax {
		return "", false
	}
	return rest[tempRandom+1:], true
}

// temp is a file that is being written. Its writer holds a lock on it, so that a sweep can tell the dead ones.
type temp struct {
	dir       *folder
	f         *os.File
	name      string
	published bool
	// adopted says that it is another's finished file (see adoptTemp).
	adopted bool
}

func createTemp(dir *folder, object string) (*temp, error) {
	for {
		name := tempName(object)
		var fd int
		err := retryEINTR(func() (err error) {
			fd, err = unix.Openat(int(dir.f.Fd()), name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
			return err
		})
		if err != nil {
			return nil, full(dir, 0, explain("create", dir.join(name), err))
		}
		t := &temp{dir: dir, f: os.NewFile(uintptr(fd), dir.join(name)), name: name}
		// A sweep may find the file before it is locked: then it holds the lock, or has already removed the name.
		switch err := lock(t.f); {
		case errors.Is(err, unix.EWOULDBLOCK):
			t.discard()
			continue
		case err != nil && !noLocks(err):
			t.discard()
			return nil, explain("lock", t.path(), err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			t.discard()
			return nil, explain("stat", t.path(), err)
		}
		if st.Nlink == 0 {
			t.discard()
			continue
		}
		return t, nil
	}
}

// adoptTemp gives the finished file of b one more name, if it lies on dir's file system and is as private as one of ours;
// nil if not. Its lock is what keeps a sweep away, if it has one, as a spool file does.
func adoptTemp(dir *folder, object string, b store.Blob) *temp {
	if b.File == nil {
		return nil
	}
	var st, linked unix.Stat_t
	err := unix.Fstat(int(b.File.Fd()), &st)
	if err != nil || st.Mode != unix.S_IFREG|0o600 || int(st.Uid) != os.Geteuid() || st.Nlink != 1 || st.Size != b.Size {
		return nil
	}
	fd, err := unix.FcntlInt(b.File.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	t := &temp{dir: dir, f: os.NewFile(uintptr(fd), b.File.Name()), name: tempName(object), adopted: true}
	if err := linkFile(t.f, int(dir.f.Fd()), t.name); err != nil {
		t.f.Close()
		return nil
	}
	err = unix.Fstatat(int(dir.f.Fd()), t.name, &linked, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil || linked.Ino != st.Ino || linked.Dev != st.Dev {
		t.discard()
		return nil
	}
	return t
}

func (t *temp) path() string { return t.dir.join(t.name) }

// discard removes what is left of the temporary file. Nobody can be helped by an error here: what cannot be removed
// is never listed, and a later sweep tries again.
func (t *temp) discard() {
	if !t.published {
		_ = retryEINTR(func() error { return unix.Unlinkat(int(t.dir.f.Fd()), t.name, 0) })
	}
	_ = t.f.Close()
}

// publish gives the synced file its name, if that is free, and makes the name last.
func (t *temp) publish(name string) error {
	fd := int(t.dir.f.Fd())
	err := retryEINTR(func() error { return unix.Linkat(fd, t.name, fd, name, 0) })
	linked := err == nil
	if noLinks(err) {
		err = retryEINTR(func() error { return renameNoReplace(fd, t.name, name) })
		t.published = err == nil
		if noRename(err) {
			return fmt.Errorf("%w: the file system of %s has neither hard links nor a rename that does not replace, so that "+
				"nothing can be stored there safely; if it is a mounted bucket, name the bucket as the destination: %w", store.ErrConfig, t.dir.path, err)
		}
	}
	if errors.Is(err, unix.EEXIST) {
		if err := t.dir.taken(name); err != nil {
			return err
		}
		return fmt.Errorf("%w: %s (deleted since)", store.ErrExists, t.dir.join(name))
	}
	if err != nil {
		return full(t.dir, 0, explain("link "+t.path()+" to", t.dir.join(name), err))
	}
	if err := syncFolder(t.dir.f, t.dir.path); err != nil {
		_ = retryEINTR(func() error { return unix.Unlinkat(fd, name, 0) })
		return err
	}
	if linked {
		_ = retryEINTR(func() error { return unix.Unlinkat(fd, t.name, 0) })
		t.published = true
	}
	return nil
}

// noLinks and noRename tell a file system that cannot from one that did not.
func noLinks(err error) bool {
	return isAny(err, unix.EPERM, unix.ENOSYS, unix.ENOTSUP, unix.EOPNOTSUPP, unix.EMLINK)
}

func noRename(err error) bool {
	return isAny(err, unix.EINVAL, unix.ENOSYS, unix.ENOTSUP, unix.EOPNOTSUPP)
}

func noLocks(err error) bool {
	return isAny(err, unix.EINVAL, unix.ENOSYS, unix.ENOTSUP, unix.EOPNOTSUPP, unix.ENOLCK)
}

func isAny(err error, errnos ...unix.Errno) bool {
	for _, errno := range errnos {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

func lock(f *os.File) error {
	return retryEINTR(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
}
