package verify

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"

	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/etcddb"
	"etcdsnapshot.dev/agent/member"
)

// tmpfs mounts a file system of that size over a new folder; only root can, and CI must.
func tmpfs(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0700,size="+size); err != nil {
		if os.Getenv("CI") == "" {
			t.Skipf("a small tmpfs cannot be mounted here: %v", err)
		}
		require.NoError(t, err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// TestTooLittleRoom: it is seen before anything is downloaded where the manifest tells the size, and as it happens where
// nothing does. It is never damage.
func TestTooLittleRoom(t *testing.T) {
	c := real(t, "3.6")
	stored := encode(t, c.db, "zstd")
	m := manifestOf(t, c.db, stored, "zstd", false, 1)
	s := newShelf(t)
	s.put(t, m, stored)
	need := map[Level]int64{LevelDatabase: m.Database.Size, LevelRestore: DrillSpace(m.Database.Size)}
	for level, size := range map[Level]string{LevelDatabase: "1m", LevelRestore: "64m"} {
		root := tmpfs(t, size)
		sc, err := OpenScratch(root, quiet)
		require.NoError(t, err)
		r := Request{Level: level, Scratch: sc, DrillCommand: drillCommand, Log: quiet, Progress: func(int64, int64) { t.Error("something was read") }}
		_, err = Stored(t.Context(), s.Destination, m.Name, r)
		var space *SpaceError
		require.ErrorAs(t, err, &space)
		require.Equal(t, need[level], space.Need)
		require.Equal(t, sc.Path(), space.Dir)
		require.Positive(t, space.Free)
		require.ErrorIs(t, err, syscall.ENOSPC)
		require.NotErrorIs(t, err, archive.ErrCorrupt)
		require.ErrorContains(t, err, "--scratch-dir")
		requireEmpty(t, sc.Path())
		require.NoError(t, sc.Close())
		requireEmpty(t, root)
	}

	dst := filepath.Join(tmpfs(t, "1m"), "x.db")
	_, err := Database(t.Context(), Source{Name: "test", Reader: bytes.NewReader(stored)}, dst, Options{SpaceHint: "choose another data directory"})
	var space *SpaceError
	require.ErrorAs(t, err, &space)
	require.ErrorContains(t, err, "choose another data directory")
	require.NoFileExists(t, dst)

	// The estimate was wrong, or somebody else filled the disk: etcd itself runs out of room.
	path, facts := readied(t, c.db)
	sc, err := OpenScratch(tmpfs(t, "2m"), quiet)
	require.NoError(t, err)
	defer sc.Close()
	drillPlace(t, sc, path)
	_, err = runDrill(t.Context(), sc, facts, drillCommand, quiet)
	require.ErrorAs(t, err, &space)
	require.NotErrorIs(t, err, archive.ErrCorrupt)
}

// TestRoomForDrill: what is asked for beforehand is enough.
func TestRoomForDrill(t *testing.T) {
	c := real(t, "3.6")
	root := tmpfs(t, "128m")
	st := unix.Statfs_t{}
	require.NoError(t, unix.Statfs(root, &st))
	sc, err := OpenScratch(root, quiet)
	require.NoError(t, err)
	defer sc.Close()
	drillPlace(t, sc, writeFile(t, c.db))
	facts := Facts{Size: int64(len(c.db)), HasTrailer: true}
	facts.Status, err = Inspect(t.Context(), member.Database(drillDir(sc)))
	require.NoError(t, err)
	// All but what is asked for is taken.
	free, err := FreeSpace(root)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(root, "ballast"), make([]byte, free-(DrillSpace(facts.Size)-facts.Size)), 0o600))
	_, err = runDrill(t.Context(), sc, facts, drillCommand, quiet)
	require.NoError(t, err)
}

// TestMemory: proving a database does not take memory by its size.
func TestMemory(t *testing.T) {
	const size = 48 << 20
	dir := t.TempDir()
	path := filepath.Join(dir, "large.db")
	b, err := bolt.Open(path, 0o600, &bolt.Options{NoFreelistSync: true, NoSync: true})
	require.NoError(t, err)
	for batch := range 16 {
		require.NoError(t, b.Update(func(tx *bolt.Tx) error {
			bucket, err := tx.CreateBucketIfNotExists([]byte(etcddb.KeyBucket))
			for i := range 60 {
				n := uint64(1 + batch*60 + i)
				k := append(append(binary.BigEndian.AppendUint64(nil, n), '_'), make([]byte, 8)...)
				value := protowire.AppendTag(nil, 1, protowire.BytesType)
				value = protowire.AppendString(value, fmt.Sprintf("/registry/configmaps/default/%d", n))
				value = protowire.AppendTag(value, 5, protowire.BytesType)
				value = protowire.AppendBytes(value, bytes.Repeat(k, 3200))
				if err == nil {
					err = bucket.Put(k, value)
				}
			}
			return err
		}))
	}
	require.NoError(t, b.Close())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "large.db.zst"), func() []byte {
		db, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Greater(t, len(db), size)
		return encode(t, trailed(db[:len(db):len(db)]), "zstd")
	}(), 0o600))
	require.NoError(t, os.Remove(path))
	stored, err := os.Open(filepath.Join(dir, "large.db.zst"))
	require.NoError(t, err)
	defer stored.Close()

	debug.FreeOSMemory()
	before := anonymous(t)
	done := make(chan struct{})
	peak := make(chan int64)
	go func() {
		most := int64(0)
		for {
			select {
			case <-done:
				peak <- most
				return
			case <-time.After(5 * time.Millisecond):
				most = max(most, anonymous(t))
			}
		}
	}()
	facts, err := Database(t.Context(), Source{Name: "large", Reader: stored}, path, Options{})
	close(done)
	most := <-peak
	require.NoError(t, err)
	require.EqualValues(t, 960, facts.TotalKeys)
	t.Logf("%d MiB of database, %d KiB of memory before, at most %d KiB", facts.Size>>20, before>>10, most>>10)
	require.Less(t, most-before, int64(40<<20))
}

// anonymous is the memory of this process that no file backs, in bytes.
func anonymous(t *testing.T) int64 {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Error(err)
		return 0
	}
	_, rest, _ := strings.Cut(string(b), "RssAnon:")
	var n int64
	if _, err := fmt.Sscanf(rest, "%d kB", &n); err != nil {
		t.Error(err)
	}
	return n << 10
}
