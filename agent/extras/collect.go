// Package extras keeps the files of a control plane node that a restored etcd is of little use without: certificate
// authorities, static pods, the configuration of encryption at rest, a distribution's token.
//
// The form is a plain tar file with the paths that the files have on the node, less the leading slash. Compression and
// encryption around it are package archive's, so that `age -d | zstd -d | tar -x` opens it. Collect makes one, Read
// reads and checks one, and Place puts its files below a folder without overwriting anything unasked.
package extras

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Limits of one archive. What belongs here is kilobytes; a path that was mistyped (/, /var/lib) must not fill the memory.
const (
	MaxBytes = 16 << 20
	MaxFiles = 4096
	// maxNames bounds the list of paths, in bytes, which goes into the manifest.
	maxNames = 256 << 10
)

// Collect writes the files and folders at paths to w as a tar file, the same for the same files, and tells the paths of
// the files in it. Folders are taken with all in them. A path that is a symbolic link is followed, links below it are kept
// as links. Sockets, pipes and devices are left out. Something that is missing, cannot be read, or holds nothing is an
// error that names it; w holds half an archive then.
func Collect(ctx context.Context, w io.Writer, paths []string, log *slog.Logger) (files []string, err error) {
	c := &collector{ctx: ctx, tar: tar.NewWriter(w), log: log, seen: map[string]bool{}}
	sorted := slices.Clone(paths)
	for i, p := range sorted {
		sorted[i] = filepath.Clean(p)
	}
	slices.Sort(sorted)
	for _, p := range slices.Compact(sorted) {
		if c.seen[p] { // below one of the others
			continue
		}
		before := len(c.files)
		fi, err := os.Stat(p)
		if err != nil {
			return nil, explain(p, err)
		}
		if err := c.add(p, fi); err != nil {
			return nil, err
		}
		if len(c.files) == before {
			return nil, fmt.Errorf("%s holds no file: is it the right path, and mounted in the pod?", p)
		}
	}
	for _, l := range c.links {
		if !c.within(l.target) {
			log.Warn("a symbolic link is kept as a link, and what it points to is not collected: add that to extras.paths if it is needed", "link", l.path, "target", l.target)
		}
	}
	if err := c.tar.Close(); err != nil {
		return nil, err
	}
	slices.Sort(c.files)
	return c.files, nil
}

// explain says of which path an error is, once: whoever passes it on leaves it as it is.
func explain(path string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s does not exist on this node: %w", path, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s cannot be read as uid %d: %w", path, os.Geteuid(), err)
	}
	return err
}

type collector struct {
	ctx   context.Context
	tar   *tar.Writer
	log   *slog.Logger
	seen  map[string]bool
	files []string
	links []link
	bytes int64
	names int
}

type link struct{ path, target string }

// add writes what is at path, which fi describes, and all below it.
func (c *collector) add(path string, fi fs.FileInfo) error {
	if err := context.Cause(c.ctx); err != nil {
		return err
	}
	c.seen[path] = true
	h, err := header(path, fi)
	if err != nil {
		return err
	}
	switch {
	case fi.IsDir():
		if err := c.tar.WriteHeader(h); err != nil {
			return fmt.Errorf("archive %s: %w", path, err)
		}
		return c.folder(path)
	case fi.Mode()&fs.ModeSymlink != 0:
		if h.Linkname, err = os.Readlink(path); err != nil {
			return explain(path, err)
		}
		c.links = append(c.links, link{path, resolve(path, h.Linkname)})
		return c.write(path, h, nil)
	case fi.Mode().IsRegular():
		data, err := c.read(path)
		if err != nil {
			return err
		}
		h.Size = int64(len(data))
		return c.write(path, h, data)
	}
	c.log.Info("neither a file nor a folder nor a link: left out", "path", path, "type", fi.Mode().Type().String())
	return nil
}

func (c *collector) folder(path string) error {
	entries, err := os.ReadDir(path) // sorted
	if err != nil {
		return explain(path, err)
	}
	for _, e := range entries {
		below := filepath.Join(path, e.Name())
		fi, err := os.Lstat(below)
		if err != nil {
			err = explain(below, err)
		} else {
			err = c.add(below, fi)
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile: certificates are renewed by renaming
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// within tells whether path is, or lies below, something that was collected.
func (c *collector) within(path string) bool {
	for p := path; ; p = filepath.Dir(p) {
		if c.seen[p] {
			return true
		}
		if p == filepath.Dir(p) {
			return false
		}
	}
}

func (c *collector) read(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, explain(path, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxBytes-c.bytes+1))
	if err != nil {
		return nil, explain(path, err)
	}
	if c.bytes += int64(len(data)); c.bytes > MaxBytes {
		return nil, fmt.Errorf("the files in extras.paths have more than %d MiB together, at %s: name the files that are needed", MaxBytes>>20, path)
	}
	return data, nil
}

func (c *collector) write(path string, h *tar.Header, data []byte) error {
	c.names += len(path)
	if c.files = append(c.files, path); len(c.files) > MaxFiles || c.names > maxNames {
		return fmt.Errorf("extras.paths hold more than %d files, at %s: name the files that are needed", MaxFiles, path)
	}
	err := c.tar.WriteHeader(h)
	if err == nil {
		_, err = c.tar.Write(data)
	}
	if err != nil {
		return fmt.Errorf("archive %s: %w", path, err)
	}
	return nil
}

// header leaves out what differs without a change: times of access, names of users.
func header(path string, fi fs.FileInfo) (*tar.Header, error) {
	h, err := tar.FileInfoHeader(fi, "")
	if err != nil {
		return nil, err
	}
	h.Name = strings.TrimPrefix(path, "/")
	if fi.IsDir() {
		h.Name += "/"
	}
	h.ModTime = fi.ModTime().Truncate(1e9)
	return &tar.Header{Typeflag: h.Typeflag, Name: h.Name, Mode: h.Mode, Uid: h.Uid, Gid: h.Gid, ModTime: h.ModTime}, nil
}

// resolve gives what a link at path points to, as far as its text tells.
func resolve(path, target string) string {
	if filepath.IsAbs(target) {
		return filepath.Clean(target)
	}
	return filepath.Join(filepath.Dir(path), target)
}
