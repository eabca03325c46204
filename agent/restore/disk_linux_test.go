package restore_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"etcdsnapshot.dev/agent/restore"
	"etcdsnapshot.dev/agent/verify"
)

// mount mounts a file system over dir; only root can, and CI must.
func mount(t *testing.T, source, dir, kind string, flags uintptr, options string) {
	t.Helper()
	if err := unix.Mount(source, dir, kind, flags, options); err != nil {
		if os.Getenv("CI") == "" {
			t.Skipf("cannot mount here: %v", err)
		}
		require.NoError(t, err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
}

func TestTooLittleSpace(t *testing.T) {
	c := real(t, "3.6")
	small := t.TempDir()
	mount(t, "tmpfs", small, "tmpfs", 0, "mode=0700,size=100m")
	m := newMember(t, "3.6", "m")
	m.DataDir = filepath.Join(small, "etcd")
	_, err := restore.Into(t.Context(), from(t, write(t, c.db)), m.Config)
	var space *verify.SpaceError
	require.ErrorAs(t, err, &space)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorContains(t, err, "nothing has been changed")
	untouched(t, m.DataDir)
	// Its stored form fits, and it is larger than that says: what compresses to nothing.
	tight := t.TempDir()
	mount(t, "tmpfs", tight, "tmpfs", 0, "mode=0700,size=162m")
	m.DataDir = filepath.Join(tight, "etcd")
	large := append(c.db[:4096:4096], make([]byte, 164<<20)...)
	_, err = restore.Into(t.Context(), from(t, write(t, encode(t, large, "zstd"))), m.Config)
	require.ErrorAs(t, err, &space)
	require.ErrorContains(t, err, "nothing has been changed")
	untouched(t, m.DataDir)
	left, err := os.ReadDir(tight)
	require.NoError(t, err)
	require.Empty(t, left)
}

// A data directory that is a mount point, also of the same file system, cannot be renamed: what is in it is.
func TestMountedDataDirectory(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"tmpfs", "bind"} {
		t.Run(kind, func(t *testing.T) {
			c := real(t, "3.6")
			n := newNode(t, "3.6")
			if kind == "tmpfs" {
				mount(t, "tmpfs", n.DataDir, "tmpfs", 0, "mode=0700,size=800m")
			} else {
				disk := filepath.Join(n.dir, "a disk")
				require.NoError(t, os.Mkdir(disk, 0o700))
				mount(t, disk, n.DataDir, "", unix.MS_BIND, "")
			}
			require.NoError(t, os.Mkdir(filepath.Join(n.DataDir, "lost+found"), 0o700))
			_, err := restore.Into(t.Context(), from(t, write(t, c.db)), n.Config)
			require.NoError(t, err)
			entries, err := os.ReadDir(n.DataDir)
			require.NoError(t, err)
			require.Len(t, entries, 2)
			n.install(t)
			n.mark(t, "before")
			k := newKubeadm(n.manifests, write(t, c.db))
			res, err := k.Run(t.Context())
			require.NoError(t, err)
			require.True(t, strings.HasPrefix(res.Kept[0], filepath.Join(n.DataDir, "member.before-restore-")), res.Kept)
			require.DirExists(t, res.Kept[0])
			require.Empty(t, n.marker(t))
			keys, _, _ := everything(t, n.client(t))
			require.Equal(t, c.keys, keys)
			require.NoDirExists(t, filepath.Join(n.DataDir, ".restore"))
		})
	}
}

// A symbolic link to the disk stays one.
func TestLinkedDataDirectory(t *testing.T) {
	t.Parallel()
	c := real(t, "3.6")
	n := newNode(t, "3.6")
	disk := filepath.Join(n.dir, "disk", "etcd")
	require.NoError(t, os.MkdirAll(disk, 0o700))
	require.NoError(t, os.Remove(n.DataDir))
	require.NoError(t, os.Symlink(disk, n.DataDir))
	n.install(t)
	n.mark(t, "before")
	file := write(t, c.db)
	for at := 1; ; at++ {
		_, killed := order(t, kubeadmOrder{ManifestsDir: n.manifests, File: file, KillAt: at})
		if !killed {
			break
		}
		if at < 9 || at > 11 { // only around the swap is a link different
			continue
		}
	}
	require.Empty(t, n.marker(t))
	fi, err := os.Lstat(n.DataDir)
	require.NoError(t, err)
	require.NotZero(t, fi.Mode()&os.ModeSymlink)
	kept, err := filepath.Glob(disk + ".before-restore-*")
	require.NoError(t, err)
	require.Len(t, kept, 1)
	broken := newMember(t, "3.6", "m")
	require.NoError(t, os.Symlink("/nowhere/at/all", broken.DataDir))
	_, err = restore.Into(t.Context(), from(t, file), broken.Config)
	require.ErrorIs(t, err, restore.ErrRefused)
	require.ErrorContains(t, err, "is a disk not mounted")
}

// The owner of the data directory stays its owner.
func TestOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can change owners")
	}
	m := newMember(t, "3.6", "m")
	require.NoError(t, os.Mkdir(m.DataDir, 0o755))
	require.NoError(t, os.Chown(m.DataDir, 2379, 2380))
	_, err := restore.Into(t.Context(), from(t, write(t, real(t, "3.6").db)), m.Config)
	require.NoError(t, err)
	require.NoError(t, filepath.WalkDir(m.DataDir, func(path string, d os.DirEntry, err error) error {
		require.NoError(t, err)
		fi, err := d.Info()
		require.NoError(t, err)
		st := fi.Sys().(*syscall.Stat_t)
		require.EqualValues(t, 2379, st.Uid, path)
		require.EqualValues(t, 2380, st.Gid, path)
		return nil
	}))
	requireOnly(t, m.DataDir)
	// The old one may have been moved; a revision above its own is known then, too.
	n := newMember(t, "3.6", "m")
	n.OldDataDir = m.DataDir
	res, err := restore.Into(t.Context(), from(t, write(t, real(t, "3.6").db)), n.Config)
	require.NoError(t, err)
	require.Equal(t, res.Revision+2*restore.DefaultBump, res.RestoredRevision)
	fi, err := os.Stat(n.DataDir)
	require.NoError(t, err)
	require.EqualValues(t, 2379, fi.Sys().(*syscall.Stat_t).Uid)
	// Members of a cluster must all be raised by the same, which this one alone cannot choose.
	n = newMember(t, "3.6", "m")
	n.OldDataDir, n.InitialCluster, n.Bump = m.DataDir, n.InitialCluster+",o=http://127.0.0.1:1", 1000
	_, err = restore.Into(t.Context(), from(t, write(t, real(t, "3.6").db)), n.Config)
	require.ErrorIs(t, err, restore.ErrRefused)
	require.ErrorContains(t, err, "give all members --bump-revision 2000000000")
	untouched(t, n.DataDir)
}

func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
