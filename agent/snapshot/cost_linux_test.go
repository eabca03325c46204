package snapshot_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/destination"
	"etcdsnapshot.dev/agent/snapshot"
	"etcdsnapshot.dev/ci/etcdtest"
)

// passed is how many bytes this process has read and written by system calls (proc_pid_io(5)), connections included.
func passed(t *testing.T) (read, written int64) {
	t.Helper()
	data, err := os.ReadFile("/proc/self/io")
	require.NoError(t, err)
	for line := range strings.Lines(string(data)) {
		var name string
		var n int64
		_, err := fmt.Sscan(line, &name, &n)
		require.NoError(t, err)
		switch name {
		case "rchar:":
			read = n
		case "wchar:":
			written = n
		}
	}
	return read, written
}

// TestPasses counts how often the data passes through a run. The server is a process of its own.
func TestPasses(t *testing.T) {
	c := etcdtest.Start(t, etcdtest.Options{})
	c.MustFill(t, 32<<20)
	for _, test := range []struct {
		algorithm    string
		destinations int
		// How often the stored form is written, and read from a disk.
		written, read float64
	}{
		// Written once, and kept; read back by the check.
		{v1.CompressionZstd, 1, 1, 1},
		{v1.CompressionNone, 1, 1, 1},
		// The second folder gets a copy, which is read back as well.
		{v1.CompressionZstd, 2, 2, 3},
	} {
		t.Run(fmt.Sprintf("%s to %d", test.algorithm, test.destinations), func(t *testing.T) {
			q := request(t, c.Members[0].ClientURL, "")
			q.Policy.Spec.Compression.Algorithm = test.algorithm
			folders := []string{q.Policy.Spec.Destinations[0].HostPath.Path}
			for i := 1; i < test.destinations; i++ {
				folders = append(folders, filepath.Join(t.TempDir(), "more"))
				spec := v1.Destination{Name: fmt.Sprintf("more-%d", i), HostPath: &v1.HostPathDestination{Path: folders[i]}}
				d, err := destination.Open(t.Context(), spec, "prod", destination.Options{Create: true, Log: q.Log})
				require.NoError(t, err)
				q.Policy.Spec.Destinations = append(q.Policy.Spec.Destinations, spec)
				q.Destinations = append(q.Destinations, d)
			}
			readBefore, writtenBefore := passed(t)
			res, err := snapshot.Run(t.Context(), q)
			require.NoError(t, err)
			read, written := passed(t)
			database, stored := float64(res.Manifest.Database.Size), float64(res.Manifest.Object.Size)
			const slack = 2 << 20 // logs, manifests, windows of HTTP/2, and 1 % for its frames
			require.LessOrEqual(t, float64(written-writtenBefore), test.written*stored+slack)
			require.LessOrEqual(t, float64(read-readBefore), 1.01*database+test.read*stored+slack)

			seen := map[uint64]bool{}
			for _, f := range folders {
				fi, err := os.Stat(filepath.Join(f, "prod", res.Manifest.Object.Key))
				require.NoError(t, err)
				seen[fi.Sys().(*syscall.Stat_t).Ino] = true
			}
			require.Len(t, seen, test.destinations, "two copies are never one file")
		})
	}
}
