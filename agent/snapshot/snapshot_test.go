package snapshot_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"etcdsnapshot.dev/agent/api"
	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/destination"
	"etcdsnapshot.dev/agent/etcd"
	"etcdsnapshot.dev/agent/snapshot"
	"etcdsnapshot.dev/ci/etcdtest"
)

// request gives a run of a policy with one folder.
func request(t *testing.T, endpoint string, retention string) snapshot.Request {
	t.Helper()
	dir := t.TempDir()
	policy, err := api.ParsePolicy([]byte(`
apiVersion: etcdsnapshot.dev/v1
kind: EtcdSnapshotPolicy
metadata: {name: etcd}
spec:
  clusterName: prod
  etcd: {endpoints: ["` + endpoint + `"]}
  destinations:
  - {name: node, hostPath: {path: ` + filepath.Join(dir, "store") + `}` + retention + `}
`))
	require.NoError(t, err)
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	cluster, err := etcd.New(etcd.Config{Endpoints: policy.Spec.Etcd.Endpoints, DialTimeout: 5 * time.Second, StallTimeout: 20 * time.Second, Logger: log})
	require.NoError(t, err)
	t.Cleanup(func() { _ = cluster.Close() }) // a test may have closed it
	d, err := destination.Open(t.Context(), policy.Spec.Destinations[0], "prod", destination.Options{Create: true, Log: log})
	require.NoError(t, err)
	return snapshot.Request{
		Policy: policy, Owner: destination.Owner{ClusterName: "prod"}, Etcd: cluster,
		Destinations: []*destination.Destination{d}, SpoolDir: filepath.Join(dir, "spool"), Node: "n1", Log: log,
	}
}

func names(t *testing.T, q snapshot.Request) (names []string) {
	t.Helper()
	inv, err := q.Destinations[0].Inventory(t.Context())
	require.NoError(t, err)
	require.Empty(t, inv.Orphans)
	require.Empty(t, inv.Dangling)
	for _, e := range inv.Snapshots {
		names = append(names, e.Name)
	}
	return names
}

// TestClockSetBack: a run whose clock is a day behind stores its snapshot all the same, and neither it nor retention
// makes the others go.
func TestClockSetBack(t *testing.T) {
	c := etcdtest.Start(t, etcdtest.Options{})
	q := request(t, c.Members[0].ClientURL, ", retention: {last: 1}")
	now := time.Now().UTC().Truncate(time.Second)
	q.Now = func() time.Time { return now }
	first, err := snapshot.Run(t.Context(), q)
	require.NoError(t, err)

	q.Now = func() time.Time { return now.AddDate(0, 0, -1) }
	second, err := snapshot.Run(t.Context(), q)
	require.NoError(t, err)
	require.Equal(t, now.AddDate(0, 0, -1), second.Manifest.CreatedAt.UTC())
	require.Equal(t, []string{first.Manifest.Name, second.Manifest.Name}, names(t, q))

	// With the clock right again, the newest by its name is the one that stays.
	q.Now = func() time.Time { return now.Add(time.Minute) }
	third, err := snapshot.Run(t.Context(), q)
	require.NoError(t, err)
	require.Equal(t, []string{third.Manifest.Name}, names(t, q))
}

// TestInterrupted: at whatever moment a run is interrupted, it ends with the interruption, nothing half-written is
// visible, and no goroutine stays.
func TestInterrupted(t *testing.T) {
	c := etcdtest.Start(t, etcdtest.Options{})
	c.MustFill(t, 8<<20)
	for _, phase := range []string{"stream", "store"} {
		t.Run(phase, func(t *testing.T) {
			q := request(t, c.Members[0].ClientURL, "")
			before := goleak.IgnoreCurrent()
			ctx, cancel := context.WithCancelCause(t.Context())
			stop := errors.New("told to stop")
			q.Progress = func(p snapshot.Progress) {
				if p.Phase == phase && p.Done > p.Total/4 {
					cancel(stop)
				}
			}
			_, err := snapshot.Run(ctx, q)
			require.ErrorIs(t, err, stop)
			require.Empty(t, names(t, q))
			for _, dir := range []string{q.SpoolDir, filepath.Join(filepath.Dir(q.SpoolDir), "store", "prod")} {
				entries, err := os.ReadDir(dir)
				require.NoError(t, err)
				for _, e := range entries {
					require.Equal(t, "cluster.json", e.Name())
				}
			}
			require.NoError(t, q.Etcd.Close())
			require.NoError(t, goleak.Find(before))
		})
	}
}

func TestManifestFacts(t *testing.T) {
	c := etcdtest.Start(t, etcdtest.Options{Version: "3.6"})
	c.MustFill(t, 1<<20)
	q := request(t, c.Members[0].ClientURL, "")
	q.KubernetesVersion, q.AgentVersion = "v1.34.0", "1.2.3"
	res, err := snapshot.Run(t.Context(), q)
	require.NoError(t, err)
	stored, err := q.Destinations[0].Manifest(t.Context(), res.Manifest.Name)
	require.NoError(t, err)
	require.Equal(t, res.Manifest.SnapshotFacts.Database, stored.Database)
	require.Equal(t, "n1", stored.Node)
	require.Equal(t, "v1.34.0", stored.KubernetesVersion)
	require.Equal(t, v1.CompressionZstd, stored.Compression)
	require.Nil(t, stored.Encryption)
	require.NotEmpty(t, stored.Etcd.ClusterID)
	require.Positive(t, stored.Etcd.Revision)
	require.Equal(t, int64(32), stored.Database.Size%512, "pages and etcd's checksum")
	require.Less(t, stored.Object.Size, stored.Database.Size)
}
