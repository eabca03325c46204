// Package parts builds the third-party programs that tests run: etcd in each supported line, the age tool, cloud
// emulators, Kubernetes.
//
// A part is a folder beside this file. It holds either a go.mod with tool directives (and its go.sum), or a
// package.json with its package-lock.json: both pin every byte that is built. Optional files ldflags and tags are
// passed to the Go linker and compiler. What is built lies outside the checkout, in $ETCD_SNAPSHOT_CACHE or the user's cache folder, under
// a name that changes with the pins and the toolchain, so that a part is built once and never stale.
package parts

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// CacheEnv names the environment variable for the folder that built parts are kept in.
const CacheEnv = "ETCD_SNAPSHOT_CACHE"

var (
	// ErrUnknown: there is no such part.
	ErrUnknown = errors.New("unknown part")
	// ErrNoNode: the part runs on Node.js, and node or npm is not in PATH.
	ErrNoNode = errors.New("this part needs Node.js (node and npm in PATH)")
)

// kind is one way to build a part.
type kind interface {
	// pins are the files that decide what is built; optional ones are prefixed with "?".
	pins() []string
	// check says whether what the part needs to be built and run is there.
	check() error
	// build builds the part of folder src into the empty folder dst.
	build(ctx context.Context, src, dst string) error
	// bin is the folder of the programs below the built folder.
	bin() string
}

// Dir gives the folder with the part's programs, and builds them first if they are not in the cache. It is safe to
// call from several processes at once: one builds, the others wait. Errors: ErrUnknown, ErrNoNode, the output of the
// build that failed, ctx.Err().
func Dir(ctx context.Context, name string) (string, error) {
	root, err := sourceDir()
	if err != nil {
		return "", err
	}
	dir, err := build(ctx, root, name)
	if err != nil {
		return "", fmt.Errorf("part %s: %w", name, err)
	}
	return dir, nil
}

// Require is Dir for tests. A part that cannot be built fails the test: nothing is skipped.
func Require(tb testing.TB, name string) string {
	tb.Helper()
	dir, err := Dir(tb.Context(), name)
	if err != nil {
		tb.Fatal(err)
	}
	return dir
}

// Names lists the parts there are.
func Names() ([]string, error) {
	root, err := sourceDir()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if _, err := kindOf(filepath.Join(root, e.Name())); err == nil {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// build is Dir for the parts in the folder root.
func build(ctx context.Context, root, name string) (string, error) {
	if name == "" || name != filepath.Base(name) {
		return "", ErrUnknown
	}
	src := filepath.Join(root, name)
	k, err := kindOf(src)
	if err != nil {
		return "", err
	}
	if err := k.check(); err != nil {
		return "", err
	}
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	key, err := keyOf(src, k)
	if err != nil {
		return "", err
	}
	dst := filepath.Join(cache, name+"-"+key)
	if isDir(dst) {
		return filepath.Join(dst, k.bin()), nil
	}
	unlock, err := lock(ctx, dst+".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if isDir(dst) { // somebody else was building it
		return filepath.Join(dst, k.bin()), nil
	}
	// Under the lock nobody else builds this part, so what is there is of a build that was killed.
	tmp := dst + ".tmp"
	if err := os.RemoveAll(tmp); err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(tmp) }() // what stays is swept by the next build
	if err := os.Mkdir(tmp, 0o755); err != nil {
		return "", err
	}
	fmt.Fprintf(os.Stderr, "building %s into %s (once)\n", name, dst)
	if err := k.build(ctx, src, tmp); err != nil {
		return "", err
	}
	if err := os.Rename(tmp, dst); err != nil {
		return "", err
	}
	return filepath.Join(dst, k.bin()), nil
}

func kindOf(src string) (kind, error) {
	for _, k := range []kind{goPart{}, npmPart{}} {
		if isFile(filepath.Join(src, k.pins()[0])) {
			return k, nil
		}
	}
	return nil, ErrUnknown
}

// sourceDir finds this package's folder in the checkout: where it was compiled from or, if paths were trimmed from
// the binary, in the module around the current folder. The parts cannot be embedded, being modules of their own.
func sourceDir() (string, error) {
	if _, file, _, ok := runtime.Caller(0); ok && isFile(file) {
		return filepath.Dir(file), nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if parts := filepath.Join(dir, "ci", "parts"); isFile(filepath.Join(parts, "parts.go")) {
			return parts, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("ci/parts was not found: run this inside a checkout of etcd-snapshot")
		}
	}
}

// CacheDir is the folder that built parts are kept in, made if it is missing.
func CacheDir() (string, error) {
	dir := os.Getenv(CacheEnv)
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("%w (set %s to a folder that may be written)", err, CacheEnv)
		}
		dir = filepath.Join(user, "etcd-snapshot")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return dir, os.MkdirAll(dir, 0o755)
}

// keyOf names what would be built: 12 hex digits over the pins, the platform and the toolchain.
func keyOf(src string, k kind) (string, error) {
	h := sha256.New()
	for _, pin := range k.pins() {
		name, optional := strings.CutPrefix(pin, "?")
		data, err := os.ReadFile(filepath.Join(src, name))
		if optional && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n", name, len(data))
		h.Write(data)
	}
	fmt.Fprintf(h, "%s/%s %s", runtime.GOOS, runtime.GOARCH, runtime.Version())
	return fmt.Sprintf("%x", h.Sum(nil))[:12], nil
}

// lock takes an exclusive lock on file, which is made if needed and stays: removing it would let two in.
func lock(ctx context.Context, file string) (unlock func(), err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", file, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("wait for another process that builds it: %w", ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// run runs a command of a build. Its output is part of the error.
func run(ctx context.Context, dir string, env []string, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, env
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s%s", name, strings.Join(args, " "), err, stderr.String(), out)
	}
	return out, nil
}

// environ is ours without the given variables.
func environ(without ...string) []string {
	return slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains(without, name)
	})
}

func copyFile(dst, src string) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(dst)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
