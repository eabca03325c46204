package file_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/file"
	"etcdsnapshot.dev/agent/store/storetest"
)

const stranger = 12345

func TestForeignOwners(t *testing.T) {
	requireRoot(t)
	s, root := newStore(t)
	ctx := t.Context()
	for _, key := range []string{"ours/b", "theirs/b"} {
		require.NoError(t, s.Put(ctx, key, storetest.Text("x")))
	}

	require.NoError(t, os.Chown(root, stranger, -1))
	_, err := file.New(root, file.Options{})
	require.ErrorIs(t, err, store.ErrConfig)
	require.ErrorContains(t, err, "folder "+root+" belongs to uid 12345, and this process runs as uid 0: chown 0 "+root+", or run as uid 12345")
	require.ErrorContains(t, s.Put(ctx, "ours/c", storetest.Text("x")), "belongs to uid 12345", "also when it became so")
	require.NoError(t, os.Chown(root, 0, -1))

	require.NoError(t, os.Chown(root+"/theirs", stranger, -1))
	for name, err := range map[string]error{
		"put":    s.Put(ctx, "theirs/c", storetest.Text("x")),
		"get":    getErr(ctx, s, "theirs/b"),
		"check":  s.Check(ctx, "theirs/b", storetest.Text("x")),
		"delete": s.Delete(ctx, "theirs/b"),
		"list":   listErr(t, s, "theirs/"),
	} {
		require.ErrorIs(t, err, store.ErrConfig, name)
		require.ErrorContains(t, err, "folder "+root+"/theirs belongs to uid 12345", name)
	}
	require.Equal(t, []string{"ours/b"}, keys(t, s, ""), "met on the way, it is passed over")
	require.NoError(t, os.WriteFile(root+"/theirs/.tmp-abcdefghijkl-x", nil, 0o600))

	require.NoError(t, os.Chown(root+"/ours/b", stranger, -1))
	require.NoError(t, os.WriteFile(root+"/ours/.tmp-abcdefghijkl-x", nil, 0o600))
	require.NoError(t, os.Chown(root+"/ours/.tmp-abcdefghijkl-x", stranger, -1))
	require.Equal(t, []string{"ours/b"}, keys(t, s, ""), "a foreign file is listed")
	require.ErrorContains(t, getErr(ctx, s, "ours/b"), "file "+root+"/ours/b belongs to uid 12345")
	require.ErrorIs(t, s.Delete(ctx, "ours/b"), store.ErrConfig)
	require.ErrorIs(t, s.Put(ctx, "ours/b", storetest.Text("x")), store.ErrExists)
	require.Zero(t, sweep(t, s, 0))
	require.Equal(t, []string{"ours", "ours/.tmp-abcdefghijkl-x", "ours/b", "theirs", "theirs/.tmp-abcdefghijkl-x", "theirs/b"}, tree(t, root), "nothing was touched")
}

// A process that is not root gets root's folder to read, if it may, and is told what it may not.
func TestAccessDenied(t *testing.T) {
	requireRoot(t)
	_, root := newStore(t)
	// The test's own folder and those above it are of mode 0700.
	for dir := root; dir != filepath.Clean(os.TempDir()); dir = filepath.Dir(dir) {
		require.NoError(t, os.Chmod(dir, 0o755))
	}
	r := job{Root: root, Size: 10, UID: stranger}.one(t)
	require.True(t, r.Denied, r.Error)
	require.Contains(t, r.Error, "make folder "+root+"/a: access denied: permission denied (as uid 12345)")

	require.NoError(t, os.Chmod(root, 0o700))
	r = job{Root: root, Size: 10, UID: stranger}.one(t)
	require.True(t, r.Denied, r.Error)
	require.Contains(t, r.Error, "open folder "+root+": access denied: permission denied (as uid 12345)")

	require.NoError(t, os.Chown(root, stranger, -1))
	require.Empty(t, job{Root: root, Size: 10, UID: stranger}.one(t).Error, "its own folder")
}

func TestReadOnly(t *testing.T) {
	root := tmpfs(t, "size=2m")
	s, err := file.New(root, file.Options{})
	require.NoError(t, err)
	ctx := t.Context()
	b := storetest.Text("x")
	require.NoError(t, s.Put(ctx, "a/b", b))
	require.NoError(t, unix.Mount("", root, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	for key, path := range map[string]string{"a/c": root + "/a/.tmp-", "new/c": root + "/new"} {
		err := s.Put(ctx, key, b)
		require.ErrorIs(t, err, store.ErrAccessDenied)
		require.ErrorIs(t, err, unix.EROFS)
		require.ErrorContains(t, err, path)
	}
	require.ErrorIs(t, s.Delete(ctx, "a/b"), store.ErrAccessDenied)
	require.ErrorIs(t, s.Put(ctx, "a/b", b), store.ErrExists)
	require.Equal(t, []string{"a/b"}, keys(t, s, ""), "it can still be read")
	require.NoError(t, s.Check(ctx, "a/b", b))
	_, err = file.New(root+"/new", file.Options{Create: true})
	require.ErrorIs(t, err, store.ErrAccessDenied)
}

func TestDiskFull(t *testing.T) {
	root := tmpfs(t, "size=2m")
	s, err := file.New(root, file.Options{})
	require.NoError(t, err)
	r := job{Root: root, Size: 4 << 20}.one(t)
	require.True(t, r.NoSpace, r.Error)
	require.Contains(t, r.Error, "folder "+root+"/a is too full for 4194304 bytes (free now: ")
	require.Equal(t, []string{"a"}, tree(t, root), "nothing left")

	// Where space cannot be reserved the disk is found full in the middle.
	r = job{Root: root, Size: 4 << 20, Refuse: map[uint32]syscall.Errno{unix.SYS_FALLOCATE: unix.EOPNOTSUPP}}.one(t)
	require.True(t, r.NoSpace, r.Error)
	require.Contains(t, r.Error, "folder "+root+"/a is too full for 4194304 bytes")
	require.Contains(t, r.Error, "write "+root+"/a/.tmp-")
	require.Equal(t, []string{"a"}, tree(t, root), "nothing left")

	require.NoError(t, s.Put(t.Context(), "a/b", storetest.Blob(1, 1<<20)), "what fits is stored")
}

func TestOutOfInodes(t *testing.T) {
	// One is the root's, one the folder's.
	root := tmpfs(t, "size=2m,nr_inodes=2")
	s, err := file.New(root, file.Options{})
	require.NoError(t, err)
	for _, key := range []string{"a/b", "a/b/c"} {
		err = s.Put(t.Context(), key, storetest.Text("x"))
		require.ErrorIs(t, err, unix.ENOSPC)
		require.ErrorContains(t, err, root+"/a is too full for another file")
		require.ErrorContains(t, err, " 0 files)")
	}
	require.Equal(t, []string{"a"}, tree(t, root))
}

func TestOtherFileSystem(t *testing.T) {
	root := tmpfs(t, "size=4m")
	var here, there unix.Stat_t
	require.NoError(t, unix.Stat(root, &there))
	require.NoError(t, unix.Stat(t.TempDir(), &here))
	require.NotEqual(t, here.Dev, there.Dev)
	s, err := file.New(root, file.Options{})
	require.NoError(t, err)
	putSpooled(t, s)
}

// The calls that fail here fail on file systems that lack them and on disks that break.
func TestRefusedCalls(t *testing.T) {
	type calls = map[uint32]syscall.Errno
	for name, tc := range map[string]struct {
		refuse calls
		// text is of the error; without one the object is stored all the same.
		text string
	}{
		"no hard links":       {calls{unix.SYS_LINKAT: unix.EPERM}, ""},
		"no link call":        {calls{unix.SYS_LINKAT: unix.ENOSYS}, ""},
		"no locks":            {calls{unix.SYS_FLOCK: unix.ENOLCK}, ""},
		"no early writing":    {calls{unix.SYS_SYNC_FILE_RANGE: unix.ENOSYS}, ""},
		"no reservation":      {calls{unix.SYS_FALLOCATE: unix.EOPNOTSUPP}, ""},
		"no advice":           {calls{unix.SYS_FADVISE64: unix.ENOSYS}, ""},
		"no exclusive naming": {calls{unix.SYS_LINKAT: unix.EPERM, unix.SYS_RENAMEAT2: unix.EINVAL}, "neither hard links nor a rename"},
		"link fails":          {calls{unix.SYS_LINKAT: unix.EIO}, "/b: input/output error"},
		"rename fails":        {calls{unix.SYS_LINKAT: unix.EPERM, unix.SYS_RENAMEAT2: unix.EIO}, "/b: input/output error"},
		"sync fails":          {calls{unix.SYS_FDATASYNC: unix.EIO}, "input/output error"},
		"folder sync fails":   {calls{unix.SYS_FSYNC: unix.EIO}, "sync folder"},
		"early writing fails": {calls{unix.SYS_SYNC_FILE_RANGE: unix.EIO}, "input/output error"},
		"write fails":         {calls{unix.SYS_PWRITE64: unix.EIO}, "input/output error"},
		"quota":               {calls{unix.SYS_PWRITE64: unix.EDQUOT}, "too full for 1048576 bytes"},
		"lock fails":          {calls{unix.SYS_FLOCK: unix.EIO}, "input/output error"},
		"stat fails":          {calls{unix.SYS_NEWFSTATAT: unix.EIO}, "input/output error"},
	} {
		t.Run(name, func(t *testing.T) {
			s, root := newStore(t)
			// At the top, where no other folder has to be synced on the way.
			put := func(seed uint64, size int64) result {
				_, _, stdout := job{Root: root, Keys: []string{"b"}, Seed: seed, Size: size, Refuse: tc.refuse}.start(t)
				rs := results(t, stdout)
				require.Len(t, rs, 1)
				return rs[0]
			}
			size := int64(1 << 20)
			if strings.Contains(name, "early writing") {
				// More than what is handed to the disk at once.
				size = 17 << 20
			}
			r := put(7, size)
			if tc.text != "" {
				require.Contains(t, r.Error, tc.text)
				require.Equal(t, name == "no exclusive naming", r.Config, r.Error)
				require.Empty(t, tree(t, root), "nothing left")
				return
			}
			require.Empty(t, r.Error)
			require.Equal(t, []string{"b"}, tree(t, root))
			require.True(t, put(8, 10).Exists, "create-only all the same")
			require.NoError(t, s.Check(t.Context(), "b", storetest.Blob(7, size)))
		})
	}
}

// The early look at the name finds few of these: it is the link, or the rename, that finds the name taken.
func TestRaceOfProcesses(t *testing.T) {
	for name, refuse := range map[string]map[uint32]syscall.Errno{
		"link":   nil,
		"rename": {unix.SYS_LINKAT: unix.EPERM},
	} {
		t.Run(name, func(t *testing.T) {
			s, root := newStore(t)
			const n = 100
			all := make([]string, n)
			for i := range all {
				all[i] = fmt.Sprintf("a/%03d", i)
			}
			type proc struct {
				seed uint64
				out  interface{ Read([]byte) (int, error) }
			}
			var procs []proc
			var starts []func()
			for seed := uint64(1); seed <= 2; seed++ {
				_, stdin, stdout := job{Root: root, Keys: all, Seed: seed, Size: 2 << 10, WaitForStart: true, Refuse: refuse}.start(t)
				line, err := stdout.ReadString('\n')
				require.NoError(t, err)
				require.Equal(t, "ready\n", line)
				procs = append(procs, proc{seed, stdout})
				starts = append(starts, func() { fmt.Fprintln(stdin) })
			}
			for _, start := range starts {
				start()
			}
			won := map[string]uint64{}
			for _, p := range procs {
				rs := results(t, p.out)
				require.Len(t, rs, n)
				for _, r := range rs {
					if r.Error == "" {
						require.Zero(t, won[r.Key], "two writers of %s won", r.Key)
						won[r.Key] = p.seed
						continue
					}
					require.True(t, r.Exists, r.Error)
				}
			}
			require.Len(t, won, n)
			for key, seed := range won {
				require.NoError(t, s.Check(t.Context(), key, storetest.Blob(seed, 2<<10)), "the content is the winner's")
			}
			require.Equal(t, all, keys(t, s, ""))
			require.Len(t, tree(t, root), n+1, "no temporary file")
		})
	}
}

func TestKilledWhileWriting(t *testing.T) {
	s, root := newStore(t)
	ctx := t.Context()
	cmd, _, stdout := job{Root: root, Keys: []string{"a/b"}, Seed: 3, Size: 8 << 20, HangAt: 4 << 20}.start(t)
	line, err := stdout.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "hanging\n", line)

	temps := func() int { return strings.Count(strings.Join(tree(t, root), "\n"), ".tmp-") }
	require.Equal(t, 1, temps(), "half of it is written")
	require.Empty(t, keys(t, s, ""))
	require.Zero(t, sweep(t, s, 0), "its writer lives")

	require.NoError(t, cmd.Process.Signal(syscall.SIGKILL))
	require.Error(t, cmd.Wait())
	require.Equal(t, 1, temps())
	require.Empty(t, keys(t, s, ""))
	require.ErrorIs(t, getErr(ctx, s, "a/b"), store.ErrNotExist)
	require.NoError(t, s.Put(ctx, "a/c", storetest.Text("x")), "a leftover is not in the way")

	// No waiting for 24 hours: the lock died with its writer.
	require.Equal(t, 1, sweep(t, s, 24*time.Hour))
	require.Zero(t, temps())
	require.NoError(t, s.Put(ctx, "a/b", storetest.Text("x")))
}

// A file system that cannot lock, or whose locks other nodes may not see, leaves only the age to go by.
func TestSweepByAge(t *testing.T) {
	requireRoot(t)
	dir := t.TempDir()
	// ramfs stands for every file system that is not known to be of one machine.
	if err := unix.Mount("ramfs", dir, "ramfs", 0, "mode=0700"); err != nil {
		requireOrSkip(t, false, "mount of a ramfs is not permitted here: "+err.Error())
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	s, err := file.New(dir, file.Options{})
	require.NoError(t, err)
	for name, age := range map[string]time.Duration{".tmp-abcdefghijkl-old": 25 * time.Hour, ".tmp-abcdefghijkl-young": 23 * time.Hour} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
		at := time.Now().Add(-age)
		require.NoError(t, os.Chtimes(filepath.Join(dir, name), at, at))
	}
	require.Equal(t, 1, sweep(t, s, 24*time.Hour))
	require.Equal(t, []string{".tmp-abcdefghijkl-young"}, tree(t, dir))
}

// TestCheckReadsTheDisk changes a block under a mounted file system: memory still has the good bytes, the disk does not.
func TestCheckReadsTheDisk(t *testing.T) {
	requireRoot(t)
	for _, tool := range []string{"mkfs.ext4", "mount", "umount"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("needs " + tool)
		}
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skip("needs loop devices")
	}
	image, dir := filepath.Join(t.TempDir(), "image"), t.TempDir()
	f, err := os.OpenFile(image, os.O_RDWR|os.O_CREATE, 0o600)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, f.Truncate(16<<20))
	command := func(name string, args ...string) error {
		out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w: %s", name, err, out)
		}
		return nil
	}
	require.NoError(t, command("mkfs.ext4", "-q", image))
	if err := command("mount", "-o", "loop", image, dir); err != nil {
		t.Skip("no loop device can be mounted here: ", err)
	}
	t.Cleanup(func() {
		out, err := exec.CommandContext(context.Background(), "umount", dir).CombinedOutput()
		require.NoError(t, err, "%s", out)
	})
	s, err := file.New(dir, file.Options{})
	require.NoError(t, err)
	b := storetest.Blob(11, 64<<10)
	require.NoError(t, s.Put(t.Context(), "a/b", b))
	require.NoError(t, s.Check(t.Context(), "a/b", b))

	disk, err := os.ReadFile(image)
	require.NoError(t, err)
	want := make([]byte, 4096)
	_, err = b.ReadAt(want, 8192)
	require.NoError(t, err)
	at := bytes.Index(disk, want)
	require.Positive(t, at, "a synced object is on the disk")
	_, err = f.WriteAt([]byte{want[100] ^ 1}, int64(at)+100)
	require.NoError(t, err)

	inMemory, err := os.ReadFile(dir + "/a/b")
	require.NoError(t, err)
	require.Equal(t, want, inMemory[8192:8192+4096], "a plain read does not notice")
	require.ErrorIs(t, s.Check(t.Context(), "a/b", b), store.ErrMismatch)
	require.Equal(t, []string{"a/b"}, keys(t, s, ""), "lost+found is no object and no error")
}

func TestNoDescriptorsLeftOpen(t *testing.T) {
	s, root := newStore(t)
	open := func() []string {
		fds, err := filepath.Glob("/proc/self/fd/*")
		require.NoError(t, err)
		var below []string
		for _, fd := range fds {
			if target, err := os.Readlink(fd); err == nil && strings.HasPrefix(target, root) {
				below = append(below, target)
			}
		}
		return below
	}
	ctx := t.Context()
	b := storetest.Text("x")
	bad := b
	bad.SHA256[0] ^= 1
	require.NoError(t, s.Put(ctx, "a/b/c", b))
	require.NoError(t, os.Symlink("b", root+"/a/link"))
	_ = s.Put(ctx, "a/b/c", b)
	_ = s.Put(ctx, "a/b/bad", bad)
	_ = s.Put(ctx, "a/link/c", b)
	_ = s.Put(ctx, "a/b/c/d", b)
	_ = s.Check(ctx, "a/b/c", b)
	_ = s.Check(ctx, "a/b/c", bad)
	_ = s.Check(ctx, "a/none", b)
	_ = getErr(ctx, s, "a/link")
	for range s.List(ctx, "") {
		break
	}
	rc, err := s.Get(ctx, "a/b/c", 0)
	require.NoError(t, err)
	require.Equal(t, []string{root + "/a/b/c"}, open(), "only what the caller has to close")
	require.NoError(t, rc.Close())
	require.NoError(t, s.Delete(ctx, "a/b/c"))
	sweep(t, s, 0)
	require.Empty(t, open())
}
