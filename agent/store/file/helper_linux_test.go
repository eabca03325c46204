package file_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/file"
	"etcdsnapshot.dev/agent/store/storetest"
)

// job is what a helper process, this test binary again, is told to do: to store objects in a folder, perhaps as
// somebody else, in a kernel that refuses some calls, or stopping in the middle to be killed.
type job struct {
	Root string
	Keys []string
	Seed uint64
	Size int64
	// UID to become.
	UID int
	// Refuse makes system calls fail: it maps their numbers to the errno they give.
	Refuse map[uint32]syscall.Errno
	// HangAt is the offset at which reading the content stops for good, after "hanging" was printed; 0 is never.
	HangAt int64
	// WaitForStart makes the process print "ready" and wait for a line on stdin.
	WaitForStart bool
}

// result is one line a key.
type result struct {
	Key string
	// Error is empty if the object was stored.
	Error                           string
	Exists, Denied, Config, NoSpace bool
}

const jobEnv = "FILE_TEST_JOB"

func TestMain(m *testing.M) {
	if spec, ok := os.LookupEnv(jobEnv); ok {
		var j job
		if err := json.Unmarshal([]byte(spec), &j); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if err := j.run(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func (j job) run() error {
	if j.UID != 0 {
		if err := syscall.Setuid(j.UID); err != nil {
			return fmt.Errorf("setuid %d: %w", j.UID, err)
		}
	}
	if err := refuse(j.Refuse); err != nil {
		return fmt.Errorf("seccomp: %w", err)
	}
	out := json.NewEncoder(os.Stdout)
	s, err := file.New(j.Root, file.Options{})
	if err != nil {
		return out.Encode(resultOf("", err))
	}
	if j.WaitForStart {
		fmt.Println("ready")
		if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
			return err
		}
	}
	for _, key := range j.Keys {
		b := storetest.Blob(j.Seed, j.Size)
		if j.HangAt > 0 {
			b.ReaderAt = hanging{b.ReaderAt, j.HangAt, b.Size}
		}
		if err := out.Encode(resultOf(key, s.Put(context.Background(), key, b))); err != nil {
			return err
		}
	}
	return nil
}

func resultOf(key string, err error) result {
	if err == nil {
		return result{Key: key}
	}
	is := func(target error) bool { return errors.Is(err, target) }
	return result{key, err.Error(), is(store.ErrExists), is(store.ErrAccessDenied), is(store.ErrConfig), is(syscall.ENOSPC)}
}

// hanging blocks reads of the byte at, but not the look at the last byte with which Put begins.
type hanging struct {
	io.ReaderAt
	at, size int64
}

func (h hanging) ReadAt(p []byte, off int64) (int, error) {
	if off <= h.at && h.at < off+int64(len(p)) {
		fmt.Println("hanging")
		select {}
	}
	return h.ReaderAt.ReadAt(p, off)
}

// refuse makes the kernel answer the given system calls of this process with an error, by a seccomp filter: faults
// that a disk or a file system makes and that cannot be ordered from one.
func refuse(calls map[uint32]syscall.Errno) error {
	if len(calls) == 0 {
		return nil
	}
	prog := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0 /* seccomp_data.nr */}}
	for nr, errno := range calls {
		prog = append(prog,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: nr},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)})
	}
	prog = append(prog, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&fprog)))
	runtime.KeepAlive(prog)
	if errno != 0 {
		return errno
	}
	return nil
}

// start starts a helper process; wait gives its results.
func (j job) start(t *testing.T) (cmd *exec.Cmd, stdin io.Writer, stdout *bufio.Reader) {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	spec, err := json.Marshal(j)
	require.NoError(t, err)
	cmd = exec.Command(exe)
	cmd.Env = append(os.Environ(), jobEnv+"="+string(spec))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() && stderr.Len() > 0 {
			t.Log(stderr.String())
		}
	})
	return cmd, in, bufio.NewReader(out)
}

func results(t *testing.T, stdout io.Reader) []result {
	t.Helper()
	var rs []result
	for dec := json.NewDecoder(stdout); ; {
		var r result
		err := dec.Decode(&r)
		if err == io.EOF {
			return rs
		}
		require.NoError(t, err)
		rs = append(rs, r)
	}
}

// one runs a job of one key to its end.
func (j job) one(t *testing.T) result {
	t.Helper()
	j.Keys = []string{"a/b"}
	_, _, stdout := j.start(t)
	rs := results(t, stdout)
	require.Len(t, rs, 1)
	return rs[0]
}

// requireOrSkip skips a test whose means are missing here, which must not happen in CI.
func requireOrSkip(t *testing.T, ok bool, why string) {
	t.Helper()
	if ok {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal(why + ", and CI must not skip this")
	}
	t.Skip(why)
}

func requireRoot(t *testing.T) {
	t.Helper()
	requireOrSkip(t, os.Geteuid() == 0, "only root can change owners and mount")
}

// tmpfs mounts a small file system of its own.
func tmpfs(t *testing.T, options string) (dir string) {
	t.Helper()
	requireRoot(t)
	dir = t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0700,"+options); err != nil {
		requireOrSkip(t, false, "mount of a tmpfs is not permitted here: "+err.Error())
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}
