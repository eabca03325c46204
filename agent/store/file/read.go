package file

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"etcdsnapshot.dev/agent/store"
)

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, key string, offset int64) (io.ReadCloser, error) {
	if offset < 0 {
		return nil, fmt.Errorf("%w: negative offset %d for %q", store.ErrConfig, offset, key)
	}
	dir, name, err := s.locate(ctx, key)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	f, st, err := dir.openFile(name)
	if err != nil {
		return nil, err
	}
	return &reader{ctx: ctx, f: f, r: io.NewSectionReader(f, min(offset, st.Size), max(st.Size-offset, 0))}, nil
}

// reader reads a file until ctx ends.
type reader struct {
	ctx context.Context
	f   *os.File
	r   io.Reader
}

func (r *reader) Read(p []byte) (int, error) {
	if err := store.CtxErr(r.ctx); err != nil {
		return 0, fmt.Errorf("read %s: %w", r.f.Name(), err)
	}
	return r.r.Read(p)
}

func (r *reader) Close() error { return r.f.Close() }

// openFile opens the object or temporary file name for reading. It never blocks, as opening a FIFO would.
func (d *folder) openFile(name string) (*os.File, unix.Stat_t, error) {
	st, err := d.object(name)
	if err != nil {
		return nil, st, err
	}
	var fd int
	err = retryEINTR(func() (err error) {
		fd, err = unix.Openat(int(d.f.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, st, explain("open", d.join(name), err)
	}
	f := os.NewFile(uintptr(fd), d.join(name))
	// What was opened need not be what object saw.
	was := st
	if err := retryEINTR(func() error { return unix.Fstat(fd, &st) }); err != nil {
		f.Close()
		return nil, st, explain("stat", d.join(name), err)
	}
	if st.Ino != was.Ino || st.Dev != was.Dev {
		f.Close()
		return nil, st, fmt.Errorf("%w: %s was replaced while it was opened", store.ErrNotExist, d.join(name))
	}
	return f, st, nil
}

// Check implements store.Store. A file system keeps no checksum, so that every byte is read back, from the disk and
// not from the memory that the write went through, where the system lets us ask for that.
func (s *Store) Check(ctx context.Context, key string, b store.Blob) error {
	dir, name, err := s.locate(ctx, key)
	if err != nil {
		return err
	}
	defer dir.Close()
	f, st, err := dir.openFile(name)
	if err != nil {
		return err
	}
	defer f.Close()
	path := dir.join(name)
	if st.Size != b.Size {
		return fmt.Errorf("%w: %s has %d bytes, expected %d", store.ErrMismatch, path, st.Size, b.Size)
	}
	if err := dropCache(f); err != nil {
		return explain("sync", path, err)
	}
	h := sha256.New()
	buf := make([]byte, min(chunk, max(b.Size, 1)))
	n, err := io.CopyBuffer(h, &reader{ctx: ctx, f: f, r: io.NewSectionReader(f, 0, b.Size)}, buf)
	if ctxErr := store.CtxErr(ctx); ctxErr != nil {
		return fmt.Errorf("check %s: %w", path, ctxErr)
	}
	if err != nil {
		return explain("read back", path, err)
	}
	if sum := [32]byte(h.Sum(nil)); n != b.Size || sum != b.SHA256 {
		return fmt.Errorf("%w: %s reads back %d bytes with sha256 %x, expected %d with %x", store.ErrMismatch, path, n, sum, b.Size, b.SHA256)
	}
	return nil
}

// List implements store.Store. A folder that is not safe or not readable is an error if prefix names it, and is passed
// over if it is merely met on the way: lost+found, or another program's.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[store.Object, error] {
	return func(yield func(store.Object, error) bool) {
		if err := store.CtxErr(ctx); err != nil {
			yield(store.Object{}, err)
			return
		}
		var names []string
		folders, rest := "", prefix
		if i := strings.LastIndexByte(prefix, '/'); i >= 0 {
			folders, rest = prefix[:i], prefix[i+1:]
			// A folder that no key can lie in ("", "..") holds nothing.
			if store.CheckKey(folders) != nil {
				return
			}
			names = strings.Split(folders, "/")
			folders += "/"
		}
		root, err := openRoot(s.root)
		if err != nil {
			yield(store.Object{}, err)
			return
		}
		root.Close()
		dir, err := s.open(names, false)
		if err != nil {
			if err = notExistIsNil(err); err != nil {
				yield(store.Object{}, err)
			}
			return
		}
		defer dir.Close()
		if err := dir.walk(ctx, folders, rest, yield); err != nil && !errors.Is(err, errStopped) {
			yield(store.Object{}, err)
		}
	}
}

// Folders gives the names of the folders at the top, sorted. Who lists them one by one with List is told of those that
// cannot be read, which a list of everything passes by.
func (s *Store) Folders(ctx context.Context) ([]string, error) {
	root, err := openRoot(s.root)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	entries, err := root.read(ctx, "")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.isFolder() {
			names = append(names, e.name)
		}
	}
	return names, nil
}

// errStopped ends a walk whose consumer wants no more.
var errStopped = fmt.Errorf("stopped by the consumer")

// walk yields the objects below d whose names begin with rest; key is d's own key with a slash at its end.
func (d *folder) walk(ctx context.Context, key, rest string, yield func(store.Object, error) bool) error {
	entries, err := d.read(ctx, rest)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := store.CtxErr(ctx); err != nil {
			return fmt.Errorf("list %s: %w", d.path, err)
		}
		switch {
		case e.isFolder():
			sub, err := d.sub(e.name, false)
			if skip(err) {
				continue
			}
			if err != nil {
				return err
			}
			err = sub.walk(ctx, key+e.name+"/", "", yield)
			sub.Close()
			if err != nil {
				return err
			}
		case !e.temp:
			if !yield(store.Object{Key: key + e.name, Size: e.st.Size, ModTime: modTime(e.st)}, nil) {
				return errStopped
			}
		}
	}
	return nil
}

// entry is a regular file or a folder in a folder.
type entry struct {
	name string
	st   unix.Stat_t
	temp bool
}

func (e entry) isFolder() bool { return kindOf(e.st) == "folder" }

// order is what sorts entries so that a walk meets keys in lexical order: the keys in the folder a begin with "a/",
// which comes after the file "a.b", though the name "a" comes before.
func (e entry) order() string {
	if e.isFolder() {
		return e.name + "/"
	}
	return e.name
}

// read gives the files and folders in d whose names begin with prefix, sorted by order.
func (d *folder) read(ctx context.Context, prefix string) ([]entry, error) {
	names, err := d.f.Readdirnames(-1)
	if err != nil {
		return nil, explain("list", d.path, err)
	}
	var entries []entry
	for _, name := range names {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		if err := store.CtxErr(ctx); err != nil {
			return nil, fmt.Errorf("list %s: %w", d.path, err)
		}
		st, err := d.stat(name)
		if err != nil {
			// Deleted since the names were read.
			if err = notExistIsNil(err); err != nil {
				return nil, err
			}
			continue
		}
		if kind := kindOf(st); kind == "file" || kind == "folder" {
			entries = append(entries, entry{name: name, st: st, temp: isTemp(name) && kind == "file"})
		}
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.order(), b.order()) })
	return entries, nil
}

func modTime(st unix.Stat_t) time.Time { return time.Unix(st.Mtim.Unix()) }
