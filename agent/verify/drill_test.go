package verify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/member"
	"etcdsnapshot.dev/ci/etcdtest"
)

func scratch(t *testing.T) *Scratch {
	t.Helper()
	s, err := OpenScratch(t.TempDir(), quiet)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		require.NoDirExists(t, s.Path())
	})
	return s
}

// drillScratch gives a scratch folder in which a copy of the database at path lies where runDrill expects it.
func drillScratch(t *testing.T, path string) *Scratch {
	t.Helper()
	s := scratch(t)
	drillPlace(t, s, path)
	return s
}

func drillPlace(t *testing.T, s *Scratch, path string) {
	t.Helper()
	db, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, member.MakeRoom(drillDir(s)))
	require.NoError(t, os.WriteFile(member.Database(drillDir(s)), db, 0o600))
}

// readied gives a proven database in a file.
func readied(t *testing.T, db []byte) (string, Facts) {
	t.Helper()
	facts, path, err := proven(t, db, nil, Options{SkipHashCheck: true})
	require.NoError(t, err)
	return path, facts
}

// TestDrillOfEveryVersion: our etcd starts from the snapshots of all supported lines and serves what theirs did.
func TestDrillOfEveryVersion(t *testing.T) {
	for _, version := range etcdtest.Versions {
		t.Run(version, func(t *testing.T) {
			c := real(t, version)
			path, facts := readied(t, c.db)
			d, err := runDrill(t.Context(), drillScratch(t, path), facts, drillCommand, quiet)
			require.NoError(t, err)
			require.Equal(t, c.keys, d.Keys)
			require.Equal(t, c.revision, d.Revision)
			require.Equal(t, c.keys, d.Objects()+d.Other)
			require.EqualValues(t, 41, d.Other)
			require.Zero(t, d.Undecodable)
			require.Len(t, d.List, 8, "the kinds that Fill writes")
			counts := map[string]int64{}
			for _, k := range d.List {
				counts[k.String()] = k.Count
				require.Positive(t, k.Bytes)
			}
			require.Positive(t, counts["v1 Pod"])
			require.Positive(t, counts["apps.example.test/v1alpha1 Release"])
			if version >= "3.6" { // older lines begin at the first revision that is left, newer ones where they compacted
				require.Equal(t, c.hashKV, d.HashKV)
			}
		})
	}
}

// edited gives a copy of db, without etcd's checksum, with something changed through bbolt: sound pages, unsound content.
func edited(t *testing.T, db []byte, edit func(tx *bolt.Tx) error) []byte {
	t.Helper()
	path := writeFile(t, db[:len(db)/512*512])
	b, err := bolt.Open(path, 0o600, &bolt.Options{NoFreelistSync: true})
	require.NoError(t, err)
	require.NoError(t, b.Update(edit))
	require.NoError(t, b.Close())
	out, err := os.ReadFile(path)
	require.NoError(t, err)
	return out
}

// TestDrillFindsWhatPagesDoNotShow: databases that are sound by every check but that no etcd can use.
func TestDrillFindsWhatPagesDoNotShow(t *testing.T) {
	db := real(t, "3.6").db
	put := func(bucket, key, value string) func(tx *bolt.Tx) error {
		return func(tx *bolt.Tx) error { return tx.Bucket([]byte(bucket)).Put([]byte(key), []byte(value)) }
	}
	for name, k := range map[string]struct {
		edit func(tx *bolt.Tx) error
		says string
	}{
		"lease":   {put("lease", "12345678", "\xff\xff"), "does not start"},
		"version": {put("cluster", "clusterVersion", "x"), "does not start"},
		"auth":    {put("authUsers", "root", "\xff"), "does not start"},
	} {
		t.Run(name, func(t *testing.T) {
			path, facts := readied(t, edited(t, db, k.edit))
			_, err := runDrill(t.Context(), drillScratch(t, path), facts, drillCommand, quiet)
			t.Log(err)
			require.ErrorIs(t, err, archive.ErrCorrupt)
			require.ErrorContains(t, err, k.says)
		})
	}
	t.Run("counts", func(t *testing.T) {
		path, facts := readied(t, db)
		facts.TotalKeys++
		_, err := runDrill(t.Context(), drillScratch(t, path), facts, drillCommand, quiet)
		require.ErrorIs(t, err, archive.ErrCorrupt)
		require.ErrorContains(t, err, "it serves")
		facts.TotalKeys--
		facts.Revision++
		_, err = runDrill(t.Context(), drillScratch(t, path), facts, drillCommand, quiet)
		require.ErrorContains(t, err, "it begins at revision")
	})
}

// TestDrillOfRestored: a cluster that was itself restored with a higher revision has an entry that no client sees.
func TestDrillOfRestored(t *testing.T) {
	c := real(t, "3.7")
	db := restoredWithBump(t, c.db, 1_000_000)
	path, facts := readied(t, db)
	require.True(t, facts.Bumped)
	require.Equal(t, c.keys+1, facts.TotalKeys)
	require.EqualValues(t, status(t, path).TotalKey, facts.TotalKeys)
	d, err := runDrill(t.Context(), drillScratch(t, path), facts, drillCommand, quiet)
	require.NoError(t, err)
	require.Equal(t, c.keys, d.Keys)
	require.Equal(t, c.revision+1_000_000, d.Revision)
}

func TestDrillRefusesNewerStorage(t *testing.T) {
	facts := Facts{Status: Status{StorageVersion: "3.99.0"}}
	_, err := runDrill(t.Context(), scratch(t), facts, drillCommand, quiet)
	require.ErrorContains(t, err, "use a newer agent")
	require.NotErrorIs(t, err, archive.ErrCorrupt)
}

// TestDrillEndsWithItsParent: neither the end of the context nor that of the process leaves an etcd behind.
func TestDrillEndsWithItsParent(t *testing.T) {
	path, facts := readied(t, real(t, "3.6").db)
	t.Run("context", func(t *testing.T) {
		why := errors.New("told to stop")
		ctx, cancel := context.WithCancelCause(t.Context())
		s := drillScratch(t, path)
		go func() {
			for !exists(filepath.Join(s.Path(), "restored", "member", "wal")) && t.Context().Err() == nil {
				time.Sleep(time.Millisecond)
			}
			cancel(why)
		}()
		_, err := runDrill(ctx, s, facts, drillCommand, quiet)
		require.ErrorIs(t, err, why)
	})
	t.Run("pipe", func(t *testing.T) {
		dir := drillDir(drillScratch(t, path))
		cmd := exec.Command(drillCommand[0], drillCommand[1:]...)
		stdin, err := cmd.StdinPipe()
		require.NoError(t, err)
		var stdout bytes.Buffer
		cmd.Stdout = &stdout
		require.NoError(t, cmd.Start())
		require.NoError(t, json.NewEncoder(stdin).Encode(drillRequest{DataDir: dir}))
		require.Eventually(t, func() bool { return exists(filepath.Join(dir, "member", "wal")) }, 30*time.Second, time.Millisecond)
		require.NoError(t, stdin.Close()) // what the kernel does when the parent is killed
		var exit *exec.ExitError
		require.ErrorAs(t, cmd.Wait(), &exit)
		require.Equal(t, 1, exit.ExitCode())
		require.Empty(t, stdout.String())
	})
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func TestDrillMainAlone(t *testing.T) {
	var out, errs bytes.Buffer
	require.Equal(t, 2, DrillMain(bytes.NewReader(nil), &out, &errs))
	require.Contains(t, errs.String(), "verify --level restore")
}

func TestDrillCrashes(t *testing.T) {
	s := scratch(t)
	for name, k := range map[string]struct {
		script  string
		says    string
		corrupt bool
		space   bool
	}{
		"killed":        {script: "kill -9 $$", says: "was killed (killed): more memory may be needed"},
		"panic":         {script: "echo 'panic: page 7 already freed' >&2; exit 2", says: "panic: page 7 already freed", corrupt: true},
		"fatal":         {script: `echo '{"level":"fatal","msg":"cannot","error":"why"}' >&2; echo '{"level":"warn","msg":"later"}' >&2; exit 1`, says: "cannot: why", corrupt: true},
		"full":          {script: "echo 'panic: write db: no space left on device' >&2; exit 2", says: "not enough room", space: true},
		"out of memory": {script: "echo 'fatal error: runtime: out of memory' >&2; exit 2", says: "out of memory"},
		"silent":        {script: "exit 3", says: "it logged nothing", corrupt: true},
		"no result":     {script: "cat >/dev/null & echo nonsense", says: "its process gave no result"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := runDrill(t.Context(), s, Facts{}, []string{"sh", "-c", "read request; " + k.script}, quiet)
			require.ErrorContains(t, err, k.says)
			require.Equal(t, k.corrupt, errors.Is(err, archive.ErrCorrupt), err)
			var space *SpaceError
			require.Equal(t, k.space, errors.As(err, &space), err)
		})
	}
}

// TestScratchSweep: what a killed run left is removed by the next one, and what a living one holds is not.
func TestScratchSweep(t *testing.T) {
	root := t.TempDir()
	living, err := OpenScratch(root, quiet)
	require.NoError(t, err)
	defer living.Close()
	require.NoError(t, os.WriteFile(filepath.Join(living.Path(), "snapshot.db"), nil, 0o600))

	killed := filepath.Join(root, scratchPrefix+"killed")
	require.NoError(t, os.MkdirAll(filepath.Join(killed, "restored", "member"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(killed, "restored", "member", "db"), nil, 0o600))
	foreign := filepath.Join(root, "precious")
	require.NoError(t, os.Mkdir(foreign, 0o700))
	require.NoError(t, os.Symlink(foreign, filepath.Join(root, scratchPrefix+"link")))
	require.NoError(t, os.WriteFile(filepath.Join(root, scratchPrefix+"file"), nil, 0o600))

	next, err := OpenScratch(root, quiet)
	require.NoError(t, err)
	require.NoDirExists(t, killed)
	require.DirExists(t, foreign)
	require.FileExists(t, filepath.Join(root, scratchPrefix+"file"))
	require.FileExists(t, filepath.Join(living.Path(), "snapshot.db"))
	st, err := os.Stat(next.Path())
	require.NoError(t, err)
	require.Equal(t, os.ModeDir|0o700, st.Mode())
	require.NoError(t, next.Close())
	require.NoError(t, next.Close())
	require.NoDirExists(t, next.Path())

	require.NoError(t, living.Empty())
	requireEmpty(t, living.Path())
	removed, err := SweepScratch(filepath.Join(root, "none"))
	require.NoError(t, err)
	require.Empty(t, removed)
}
