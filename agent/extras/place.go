package extras

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"etcdsnapshot.dev/agent/archive"
)

// Entry is a file, a folder or a symbolic link of an archive.
type Entry struct {
	// Path that it had on the node, without the leading slash.
	Path string
	// Mode with its type: regular, fs.ModeDir or fs.ModeSymlink.
	Mode     fs.FileMode
	UID, GID int
	ModTime  time.Time
	// Link is where a symbolic link points to.
	Link string
	Data []byte
}

// Read reads a tar file that Collect wrote. What Collect does not write (other types, paths that leave the folder, paths
// that come twice) is archive.ErrCorrupt.
func Read(r io.Reader) ([]Entry, error) {
	var (
		all  []Entry
		seen = map[string]bool{}
		size int64
	)
	corrupt := func(format string, args ...any) error {
		return fmt.Errorf("archive of extras is %w: "+format, append([]any{archive.ErrCorrupt}, args...)...)
	}
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, damage(err)
		}
		e := Entry{Path: strings.TrimSuffix(h.Name, "/"), Mode: fs.FileMode(h.Mode & 0o777), UID: h.Uid, GID: h.Gid, ModTime: h.ModTime}
		if !fs.ValidPath(e.Path) || e.Path == "." || strings.ContainsRune(e.Path, 0) {
			return nil, corrupt("%.200q is not a path below a folder", h.Name)
		}
		if seen[e.Path] {
			return nil, corrupt("/%s comes twice", e.Path)
		}
		seen[e.Path] = true
		switch h.Typeflag {
		case tar.TypeReg:
			if size += h.Size; size > MaxBytes {
				return nil, corrupt("its files have more than %d MiB", MaxBytes>>20)
			}
			if e.Data, err = io.ReadAll(t); err != nil {
				return nil, damage(err)
			}
		case tar.TypeDir:
			e.Mode |= fs.ModeDir
		case tar.TypeSymlink:
			e.Mode, e.Link = fs.ModeSymlink, h.Linkname
		default:
			return nil, corrupt("/%s is of type %q, which this program does not write", e.Path, h.Typeflag)
		}
		if all = append(all, e); len(all) > 2*MaxFiles {
			return nil, corrupt("it has more than %d entries", 2*MaxFiles)
		}
	}
	if _, err := io.Copy(io.Discard, r); err != nil { // to the end, where compression and encryption say that it is whole
		return nil, damage(err)
	}
	if len(all) == 0 {
		return nil, corrupt("it is empty")
	}
	return all, nil
}

// damage marks what tar says about its input; errors of the layers below keep what they are.
func damage(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, archive.ErrCorrupt) {
		return fmt.Errorf("archive of extras is %w: %w", archive.ErrCorrupt, err)
	}
	return err
}

// State is how an entry compares with what is in the folder.
type State string

// States.
const (
	// StateNew: nothing is there.
	StateNew State = "new"
	// StateSame: the same is there; nothing is done.
	StateSame State = "same"
	// StateDiffers: something else is there, which is only replaced if asked for.
	StateDiffers State = "differs"
)

// Change is what Place does, or would do, about an entry. Folders that are there are StateSame, whatever their mode.
type Change struct {
	Entry
	State State
}

// ErrExists says that files are there that differ from the archive's.
var ErrExists = errors.New("files are there that differ")

// Compare tells how the entries compare with what is below the folder dir, which may be missing.
func Compare(dir string, entries []Entry) ([]Change, error) {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		var all []Change
		for _, e := range entries {
			all = append(all, Change{e, StateNew})
		}
		return all, nil
	}
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return compare(root, entries)
}

func compare(root *os.Root, entries []Entry) (all []Change, err error) {
	for _, e := range entries {
		c := Change{e, StateNew}
		fi, err := root.Lstat(e.Path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, explainRoot(root, e, err)
		default:
			same, err := isSame(root, e, fi)
			if err != nil {
				return nil, explainRoot(root, e, err)
			}
			if c.State = StateDiffers; same {
				c.State = StateSame
			}
			if fi.IsDir() != e.Mode.IsDir() {
				return nil, fmt.Errorf("%s: a folder and a file cannot replace one another: move it away first", path.Join(root.Name(), e.Path))
			}
		}
		all = append(all, c)
	}
	return all, nil
}

// explainRoot says what os.Root means where a link in the folder leads out of it.
func explainRoot(root *os.Root, e Entry, err error) error {
	return fmt.Errorf("%s (nothing is written through symbolic links that are absolute or leave %s): %w", path.Join(root.Name(), e.Path), root.Name(), err)
}

func isSame(root *os.Root, e Entry, fi fs.FileInfo) (bool, error) {
	switch {
	case fi.Mode().Type() != e.Mode.Type():
		return false, nil
	case fi.IsDir():
		return true, nil
	case e.Mode&fs.ModeSymlink != 0:
		link, err := root.Readlink(e.Path)
		return link == e.Link, err
	case fi.Size() != int64(len(e.Data)), fi.Mode().Perm() != e.Mode.Perm(): // a key that all may read is not the key that was collected
		return false, nil
	}
	have, err := root.ReadFile(e.Path)
	return bytes.Equal(have, e.Data), err
}

// Place writes the entries below dir, which is made (mode 0700) where it is missing, with their modes and, as root, their
// owners. Each file appears whole. Nothing is written through a symbolic link that leads out of dir. Where files are there
// that differ and force is false nothing is written: ErrExists, which names them.
func Place(dir string, entries []Entry, force bool) ([]Change, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	all, err := compare(root, entries)
	if err != nil {
		return nil, err
	}
	var differ []string
	for _, c := range all {
		if c.State == StateDiffers {
			differ = append(differ, path.Join(dir, c.Path))
		}
	}
	if len(differ) > 0 && !force {
		return all, fmt.Errorf("%w from the archive's, and nothing was written (look at them with --dry-run, replace them with --force, or name an empty folder): %s", ErrExists, strings.Join(differ, ", "))
	}
	for _, c := range all {
		if c.State == StateSame {
			continue
		}
		if err := place(root, c.Entry); err != nil {
			return all, fmt.Errorf("write %s: %w", path.Join(dir, c.Path), err)
		}
	}
	for _, c := range all { // folders last: one may be closed to its owner
		if c.Mode.IsDir() && c.State == StateNew {
			if err := finish(root, c.Path, c.Entry); err != nil {
				return all, fmt.Errorf("write %s: %w", path.Join(dir, c.Path), err)
			}
		}
	}
	return all, nil
}

func place(root *os.Root, e Entry) error {
	if parent := path.Dir(e.Path); parent != "." {
		if err := root.MkdirAll(parent, 0o755); err != nil {
			return err
		}
	}
	if e.Mode.IsDir() {
		return root.MkdirAll(e.Path, 0o700)
	}
	at := path.Join(path.Dir(e.Path), "."+path.Base(e.Path)+".etcd-snapshot-new")
	if err := root.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) { // left by one that was interrupted
		return err
	}
	err := write(root, at, e)
	if err == nil {
		err = finish(root, at, e)
	}
	if err == nil {
		err = root.Rename(at, e.Path)
	}
	if err != nil {
		return errors.Join(err, root.Remove(at))
	}
	return nil
}

func write(root *os.Root, at string, e Entry) error {
	if e.Mode&fs.ModeSymlink != 0 {
		return root.Symlink(e.Link, at)
	}
	f, err := root.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(e.Data)
	return errors.Join(err, f.Sync(), f.Close())
}

// finish gives what was written its owner, which takes root, and its mode, in this order: a change of owner may change the
// mode.
func finish(root *os.Root, at string, e Entry) error {
	if os.Geteuid() == 0 {
		if err := root.Lchown(at, e.UID, e.GID); err != nil {
			return err
		}
	}
	if e.Mode&fs.ModeSymlink != 0 {
		return nil
	}
	if err := root.Chmod(at, e.Mode.Perm()); err != nil {
		return err
	}
	return root.Chtimes(at, time.Time{}, e.ModTime)
}
