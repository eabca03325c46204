// Package file keeps snapshots in a folder: a node's own disk or whatever is mounted there.
//
// An object is a regular file of mode 0600 at the path that its key is below the root, in folders of mode 0700. It is
// written to a temporary file (.tmp-*) in its folder, synced, and linked to its name, which fails when the name is
// taken; then the folder is synced. A reader therefore sees a whole object or none, also after a power cut.
//
// Below the root no symbolic link is followed, and folders and files must belong to the effective user or to root:
// who could plant or swap a snapshot could own the cluster that is restored from it.
//
// Unlike in a bucket, a key cannot be an object and a folder of others at once; Put refuses the second of the two.
package file

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"etcdsnapshot.dev/agent/store"
)

// chunk is how much is read and written between two looks at ctx.
const chunk = 1 << 20

// Options of New.
type Options struct {
	// Create makes the root folder if it is missing. Its parent must be there: a disk that is not mounted should
	// be an error, not a backup on the disk below.
	Create bool
}

// Store is a store.Store in a folder. It holds nothing open between calls.
type Store struct {
	root string
}

var _ store.Store = (*Store)(nil)

// New gives the store in the folder root, an absolute path. The folder must be a real one (its ancestors may be
// symbolic links), belong to the effective user or to root, and not be writable for everyone unless it is sticky.
// ErrConfig, ErrNotExist, ErrAccessDenied.
func New(root string, o Options) (*Store, error) {
	if !filepath.IsAbs(root) {
		return nil, fmt.Errorf("%w: folder %q is not an absolute path", store.ErrConfig, root)
	}
	s := &Store{root: filepath.Clean(root)}
	if s.root == "/" {
		return nil, fmt.Errorf("%w: / is no folder for snapshots", store.ErrConfig)
	}
	f, err := openRoot(s.root)
	if errors.Is(err, store.ErrNotExist) && o.Create {
		if err = makeRoot(s.root); err == nil {
			f, err = openRoot(s.root)
		}
	}
	if err != nil {
		return nil, err
	}
	return s, f.Close()
}

func makeRoot(root string) error {
	// Two agents may start at once; the one that comes second finds the folder made.
	if err := os.Mkdir(root, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return explain("make folder", root, err)
	}
	parent, err := os.Open(filepath.Dir(root))
	if err != nil {
		return explain("open", filepath.Dir(root), err)
	}
	defer parent.Close()
	return syncFolder(parent, filepath.Dir(root))
}

// String gives file:// and the root's path.
func (s *Store) String() string { return "file://" + s.root }

// split checks key and gives its folders and its last segment.
func split(key string) (folders []string, name string, err error) {
	if err := store.CheckKey(key); err != nil {
		return nil, "", err
	}
	segs := strings.Split(key, "/")
	name = segs[len(segs)-1]
	if isTemp(name) {
		return nil, "", fmt.Errorf("%w: key %q has the name of a temporary file (%s*)", store.ErrConfig, key, tempPrefix)
	}
	for _, seg := range segs {
		if len(seg) > nameMax {
			return nil, "", fmt.Errorf("%w: key %q has a segment longer than %d bytes", store.ErrConfig, key, nameMax)
		}
	}
	return segs[:len(segs)-1], name, nil
}

// Put implements store.Store. It hashes while it copies, so that ErrMismatch also says that b does not have the
// checksum it claims.
func (s *Store) Put(ctx context.Context, key string, b store.Blob) error {
	folders, name, err := split(key)
	if err != nil {
		return err
	}
	if err := store.CheckPut(ctx, key, b); err != nil {
		return err
	}
	dir, err := s.open(folders, true)
	if err != nil {
		return err
	}
	defer dir.Close()
	// Asked early to spare the copy, and again by the link, which is what decides.
	if err := dir.taken(name); err != nil {
		return err
	}
	tmp := adoptTemp(dir, name, b)
	if tmp == nil {
		if tmp, err = createTemp(dir, name); err != nil {
			return err
		}
	}
	defer tmp.discard()
	if err := tmp.fill(ctx, b); err != nil {
		return full(dir, b.Size, err)
	}
	if err := syncData(tmp.f); err != nil {
		return full(dir, b.Size, explain("sync", tmp.path(), err))
	}
	if err := store.CtxErr(ctx); err != nil {
		return fmt.Errorf("store %s: %w", dir.join(name), err)
	}
	return tmp.publish(name)
}

// fill writes b's content into tmp, where it is not there already, and checks its sum. It keeps the amount of data that
// waits for the disk small: a sync of gigabytes at the end would show no progress, could not be cancelled, and would
// starve an etcd that shares the disk.
func (t *temp) fill(ctx context.Context, b store.Blob) error {
	if t.adopted {
		return t.flush(ctx, b)
	}
	if err := reserve(t.f, b.Size); err != nil {
		return explain("reserve space in", t.path(), err)
	}
	return t.copy(ctx, b)
}

func (t *temp) copy(ctx context.Context, b store.Blob) error {
	h := sha256.New()
	buf := make([]byte, min(chunk, max(b.Size, 1)))
	wb := writeback{f: t.f}
	for off := int64(0); off < b.Size; {
		if err := store.CtxErr(ctx); err != nil {
			return fmt.Errorf("write %s: %w", t.path(), err)
		}
		part := buf[:min(int64(len(buf)), b.Size-off)]
		if n, err := b.ReadAt(part, off); n < len(part) {
			if err == nil || errors.Is(err, io.EOF) {
				return fmt.Errorf("%w: content ends after %d of %d bytes", store.ErrMismatch, off+int64(n), b.Size)
			}
			return fmt.Errorf("read content at offset %d: %w", off, err)
		}
		h.Write(part)
		if _, err := t.f.WriteAt(part, off); err != nil {
			return explain("write", t.path(), err)
		}
		off += int64(len(part))
		if err := wb.wrote(off); err != nil {
			return explain("write", t.path(), err)
		}
	}
	if sum := [32]byte(h.Sum(nil)); sum != b.SHA256 {
		return fmt.Errorf("%w: content has sha256 %x, expected %x", store.ErrMismatch, sum, b.SHA256)
	}
	return nil
}

// flush sends what was adopted to the disk. Its sum was taken when it was written.
func (t *temp) flush(ctx context.Context, b store.Blob) error {
	wb := writeback{f: t.f}
	for off := int64(0); off < b.Size; {
		if err := store.CtxErr(ctx); err != nil {
			return fmt.Errorf("write %s: %w", t.path(), err)
		}
		n := min(chunk, b.Size-off)
		off += n
		if err := wb.wrote(off); err != nil {
			return explain("write", t.path(), err)
		}
		if b.Flushed != nil {
			b.Flushed(int(n))
		}
	}
	return nil
}

// full adds to an error of a full disk or quota how much was needed (if size is not 0) and how much there is.
func full(dir *folder, size int64, err error) error {
	if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return err
	}
	what, free := "another file", "unknown"
	if size > 0 {
		what = fmt.Sprint(size, " bytes")
	}
	var st unix.Statfs_t
	if retryEINTR(func() error { return unix.Fstatfs(int(dir.f.Fd()), &st) }) == nil {
		// The files are those that a file system with a fixed number of inodes has left.
		free = fmt.Sprint(uint64(st.Bavail)*uint64(st.Bsize), " bytes, ", st.Ffree, " files") //nolint:gosec // a block has a size
	}
	return fmt.Errorf("folder %s is too full for %s (free now: %s): %w", dir.path, what, free, err)
}

// Delete implements store.Store. Folders stay, also when they are empty now.
func (s *Store) Delete(ctx context.Context, key string) error {
	dir, name, err := s.locate(ctx, key)
	if err != nil {
		return notExistIsNil(err)
	}
	defer dir.Close()
	if _, err := dir.object(name); err != nil {
		return notExistIsNil(err)
	}
	err = retryEINTR(func() error { return unix.Unlinkat(int(dir.f.Fd()), name, 0) })
	if err != nil {
		return notExistIsNil(explain("delete", dir.join(name), err))
	}
	return syncFolder(dir.f, dir.path)
}

func notExistIsNil(err error) error {
	if errors.Is(err, store.ErrNotExist) {
		return nil
	}
	return err
}

// locate opens the folder of key for reading.
func (s *Store) locate(ctx context.Context, key string) (*folder, string, error) {
	if err := store.CtxErr(ctx); err != nil {
		return nil, "", err
	}
	folders, name, err := split(key)
	if err != nil {
		return nil, "", err
	}
	dir, err := s.open(folders, false)
	return dir, name, err
}
