package file

import (
	"context"
	"errors"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"etcdsnapshot.dev/agent/store"
)

var _ store.UploadSweeper = (*Store)(nil)

// SweepUploads implements store.UploadSweeper: it removes the temporary files that killed writers left behind. On a
// local file system a writer's lock tells at once whether it lives, and those of dead ones are removed whatever their
// age. Elsewhere (NFS and the like) a lock may be unknown to other nodes, so that a file must also not have been
// written to since before.
func (s *Store) SweepUploads(ctx context.Context, prefix string, before time.Time, mine func(key string) bool) (int, error) {
	if err := store.CtxErr(ctx); err != nil {
		return 0, err
	}
	root, err := openRoot(s.root)
	if err != nil {
		return 0, err
	}
	defer root.Close()
	return sweeper{prefix, before, mine}.sweep(ctx, root, "")
}

type sweeper struct {
	prefix string
	before time.Time
	mine   func(key string) bool
}

// sweep sweeps dir, whose own key with a slash at its end is key, and says how many files it removed.
func (s sweeper) sweep(ctx context.Context, dir *folder, key string) (swept int, err error) {
	entries, err := dir.read(ctx, "")
	if err != nil {
		return 0, err
	}
	here := 0
	for _, e := range entries {
		if err := store.CtxErr(ctx); err != nil {
			return swept, err
		}
		if sub := key + e.name + "/"; e.isFolder() && (strings.HasPrefix(sub, s.prefix) || strings.HasPrefix(s.prefix, sub)) {
			n, err := s.sweepSub(ctx, dir, e.name, sub)
			if swept += n; err != nil {
				return swept, err
			}
		}
		if object, ok := tempOf(e.name); e.temp && ok && strings.HasPrefix(key+object, s.prefix) && s.mine(key+object) {
			ok, err := dir.sweepFile(e.name, s.before)
			if err != nil {
				return swept, err
			}
			if ok {
				here++
				swept++
			}
		}
	}
	if here > 0 {
		return swept, syncFolder(dir.f, dir.path)
	}
	return swept, nil
}

func (s sweeper) sweepSub(ctx context.Context, dir *folder, name, key string) (int, error) {
	sub, err := dir.sub(name, false)
	if skip(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer sub.Close()
	return s.sweep(ctx, sub, key)
}

// sweepFile removes the temporary file name if its writer is gone.
func (d *folder) sweepFile(name string, before time.Time) (bool, error) {
	f, st, err := d.openFile(name)
	if errors.Is(err, store.ErrNotExist) || errors.Is(err, errForeign) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = lock(f)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	if err != nil && !noLocks(err) {
		return false, explain("lock", d.join(name), err)
	}
	if (err != nil || !locksAreGlobal(f)) && !modTime(st).Before(before) {
		return false, nil
	}
	// The lock is held until the name is gone: a writer that made the file just now finds out.
	err = retryEINTR(func() error { return unix.Unlinkat(int(d.f.Fd()), name, 0) })
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, explain("delete", d.join(name), err)
	}
	return true, nil
}
