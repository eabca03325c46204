package restore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"etcdsnapshot.dev/agent/member"
	"etcdsnapshot.dev/agent/verify"
)

// place is a folder that is, or will be, an etcd's data directory or its folder for the write-ahead log.
type place struct {
	// dir is its path, without symbolic links.
	dir string
	// mount says that it is a mount point, which cannot be renamed.
	mount bool
	// exists, and is empty but for what a new file system has.
	exists, empty bool
	uid, gid      int
}

// look finds out what is at path.
func look(path string) (place, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return place{}, err
	}
	p := place{dir: abs, uid: os.Geteuid(), gid: os.Getegid()}
	real, err := filepath.EvalSymlinks(abs)
	if errors.Is(err, fs.ErrNotExist) {
		p.dir, err = missing(abs)
		return p, err
	}
	if err != nil {
		return place{}, fmt.Errorf("look at %s: %w", path, err)
	}
	p.dir = real
	fi, err := os.Stat(real)
	if err != nil {
		return place{}, fmt.Errorf("look at %s: %w", path, err)
	}
	if !fi.IsDir() {
		return place{}, refusedf("%s is not a folder", real)
	}
	entries, err := os.ReadDir(real)
	if err != nil {
		return place{}, fmt.Errorf("look at %s: %w", path, err)
	}
	if p.mount, err = isMount(real); err != nil {
		return place{}, fmt.Errorf("look at %s: %w", path, err)
	}
	p.exists, p.empty = true, true
	for _, e := range entries {
		p.empty = p.empty && p.mount && e.Name() == "lost+found"
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		p.uid, p.gid = int(st.Uid), int(st.Gid)
	}
	return p, nil
}

// missing gives the place of what is not there: where a symbolic link leads, if it is one.
func missing(abs string) (string, error) {
	target, err := os.Readlink(abs)
	if err != nil {
		return abs, nil // not even a link
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(filepath.Dir(abs), target)
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(target))
	if err != nil {
		return "", refusedf("%s is a symbolic link to %s, and not even its folder is there: is a disk not mounted?", abs, target)
	}
	return filepath.Join(parent, filepath.Base(target)), nil
}

// beside is where something can be made that can be renamed to the place, or to the folder member in it.
func (p place) beside() string {
	if p.mount {
		return p.dir
	}
	return filepath.Dir(p.dir)
}

// swapped is what is renamed in place of what: etcd's data directory, whose only content is the folder member, or that
// folder where the directory is a mount point. made is the new data directory.
func (p place) swapped(made string) (from, to string) {
	if p.mount {
		return filepath.Join(made, "member"), filepath.Join(p.dir, "member")
	}
	return made, p.dir
}

// isMount tells whether a file system is mounted at dir. A bind mount has its parent's device number; only the table of
// mounts shows it.
func isMount(dir string) (bool, error) {
	here, err := device(dir)
	if err != nil {
		return false, err
	}
	above, err := device(filepath.Dir(dir))
	if err != nil {
		return false, err
	}
	if here != above {
		return true, nil
	}
	f, err := os.Open("/proc/self/mountinfo") // proc_pid_mountinfo(5): the fifth field is the mount point, escaped in octal
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the table of mounts: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 && unescapeOctal(fields[4]) == dir {
			return true, nil
		}
	}
	return false, lines.Err()
}

func unescapeOctal(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func device(path string) (uint64, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, fmt.Errorf("tell the file system of %s: not supported on this system", path)
	}
	return uint64(st.Dev), nil
}

// liveRevision is the revision of a data directory that no etcd runs on, 0 where it cannot be told: a data directory that
// is damaged is a reason to restore, not one against it.
func liveRevision(ctx context.Context, dataDir string) int64 {
	status, err := verify.Inspect(ctx, member.Database(dataDir))
	if err != nil {
		return 0
	}
	return status.Revision
}

// settle makes a new tree durable, and gives it the owner and the modes that etcd's files have.
func settle(root string, uid, gid int) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		mode := fs.FileMode(0o600)
		if d.IsDir() {
			mode = 0o700
		}
		if err := f.Chmod(mode); err != nil {
			return err
		}
		if uid != os.Geteuid() || gid != os.Getegid() {
			if err := f.Chown(uid, gid); err != nil {
				return err
			}
		}
		return f.Sync()
	})
}

// renameDurably renames and waits until the folders of both names are on the disk. It replaces an empty folder, which
// os.Rename does not.
func renameDurably(from, to string) error {
	if err := syscall.Rename(from, to); err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	err := syncDir(filepath.Dir(to))
	if filepath.Dir(from) != filepath.Dir(to) {
		err = errors.Join(err, syncDir(filepath.Dir(from)))
	}
	return err
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

func exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
