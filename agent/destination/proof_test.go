package destination_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/destination"
	"etcdsnapshot.dev/agent/store"
)

func note(t *testing.T, d *destination.Destination, name, level, result string) {
	t.Helper()
	require.NoError(t, d.Note(t.Context(), find(t, d, name), v1.VerificationStatus{Time: metav1.Now(), Level: level, Result: result, Revision: 7}))
}

func find(t *testing.T, d *destination.Destination, name string) destination.Entry {
	t.Helper()
	for _, e := range inventory(t, d).Snapshots {
		if e.Name == name {
			return e
		}
	}
	t.Fatalf("%s is not listed", name)
	return destination.Entry{}
}

// TestNotes: the highest level that passed counts, corruption counts before it, and only a pass as strict refutes that.
func TestNotes(t *testing.T) {
	d, dir := folder(t)
	name := publish(t, d, "etcd", start)
	require.Empty(t, find(t, d, name).Proof())
	for _, step := range []struct {
		level, result, proven string
		corrupt               bool
	}{
		{"database", v1.VerificationPassed, "database", false},
		{"checksum", v1.VerificationPassed, "database", false},
		{"restore", v1.VerificationPassed, "restore", false},
		{"restore", v1.VerificationPassed, "restore", false},
		{"database", v1.VerificationFailed, "database", true},
		{"checksum", v1.VerificationPassed, "database", true},
		{"database", v1.VerificationPassed, "restore", false},
	} {
		note(t, d, name, step.level, step.result)
		p := find(t, d, name).Proof()
		require.Equal(t, step.proven, p.Level, "%+v", step)
		require.Equal(t, step.corrupt, p.Corrupt, "%+v", step)
		require.WithinDuration(t, time.Now(), p.Time, time.Hour)
	}
	data, err := os.ReadFile(filepath.Join(dir, name+".verified-restore.json"))
	require.NoError(t, err)
	var outcome v1.VerificationStatus
	require.NoError(t, json.Unmarshal(data, &outcome))
	require.Equal(t, int64(7), outcome.Revision)
	require.Zero(t, inventory(t, d).Foreign)
}

// TestNotesAreKeptAndGo: the newest snapshot that a note proves is kept without a catalog, and notes go with their snapshot;
// where the store protects one longer, it is no snapshot and goes later.
func TestNotesAreKeptAndGo(t *testing.T) {
	d, dir := folder(t)
	var all []string
	for i := range 6 {
		all = append(all, publish(t, d, "etcd", start.Add(time.Duration(i)*time.Hour)))
	}
	note(t, d, all[0], "restore", v1.VerificationPassed)
	note(t, d, all[1], "restore", v1.VerificationPassed)
	note(t, d, all[2], "database", v1.VerificationFailed)
	locked := &stubborn{Store: d.Store, refuse: func(key string) error {
		if strings.Contains(key, ".verified-") || strings.Contains(key, ".corrupt-") {
			return store.ErrProtected
		}
		return nil
	}}
	d.Store = locked
	done, err := prune(t, d, "etcd")
	require.NoError(t, err)
	require.Equal(t, []string{all[0], all[2], all[3]}, done.Removed, "the newest two stay, and the newest proven one")

	inv := inventory(t, d)
	require.Equal(t, []string{all[5], all[4], all[1]}, names(inv.Snapshots))
	require.Equal(t, []string{all[2], all[0]}, names(inv.Orphans))
	old := time.Now().Add(-48 * time.Hour)
	for _, e := range inv.Orphans {
		require.NoError(t, os.Chtimes(filepath.Join(dir, e.Key), old, old))
	}
	removed, err := d.Sweep(t.Context(), inventory(t, d))
	require.NoError(t, err, "a lock is no failure")
	require.Empty(t, removed)
	d.Store = locked.Store
	removed, err = d.Sweep(t.Context(), inventory(t, d))
	require.NoError(t, err)
	require.ElementsMatch(t, []string{all[0] + ".verified-restore.json", all[2] + ".corrupt-database.json"}, removed)
}

// place opens a destination for no cluster, as list --all-clusters does.
func place(t *testing.T, d *destination.Destination) *destination.Destination {
	t.Helper()
	p, err := destination.Open(t.Context(), d.Spec, "", destination.Options{Log: d.Log})
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

// flat hides that a folder's subfolders can be read one by one, so that it is listed as a bucket is.
type flat struct{ store.Store }

func clusters(t *testing.T, p *destination.Destination) map[string]*destination.Cluster {
	t.Helper()
	all := map[string]*destination.Cluster{}
	for c, err := range p.Clusters(t.Context()) {
		require.NoError(t, err)
		require.NotContains(t, all, c.Name)
		all[c.Name] = c
	}
	return all
}

func TestClusters(t *testing.T) {
	d, dir := folder(t)
	root := filepath.Dir(dir)
	in := func(cluster string) *destination.Destination {
		c, err := destination.Open(t.Context(), d.Spec, cluster, destination.Options{Log: d.Log})
		require.NoError(t, err)
		t.Cleanup(c.Close)
		return c
	}
	var prod []string
	for i := range 5 {
		prod = append(prod, publish(t, d, "etcd", start.Add(time.Duration(i)*6*time.Hour)))
	}
	note(t, d, prod[1], "restore", v1.VerificationPassed)
	note(t, d, prod[4], "checksum", v1.VerificationFailed)
	publish(t, in("prod-2"), "etcd", start)                                                 // sorts before "prod/"
	require.NoError(t, in("new").Claim(t.Context(), destination.Owner{ClusterName: "new"})) // has not stored anything
	require.NoError(t, os.MkdirAll(filepath.Join(root, "photos", "2026"), 0o700))           // is no cluster's
	require.NoError(t, os.WriteFile(filepath.Join(root, "photos", "2026", "a.jpg"), []byte("x"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(root, "README"), []byte("x"), 0o600))
	publish(t, in("broken"), "etcd", start)

	p := place(t, d)
	folders := clusters(t, p)
	listed := place(t, d)
	listed.Store = flat{listed.Store}
	require.Equal(t, folders, clusters(t, listed), "both ways see the same")

	require.Len(t, folders, 4)
	c := folders["prod"]
	require.Equal(t, 5, c.Snapshots)
	require.Equal(t, 5, c.Unencrypted)
	require.Equal(t, prod[3], c.Last.Name, "the newest is corrupt")
	require.Equal(t, prod[1], c.Proven.Name)
	require.Equal(t, []string{prod[4]}, c.Corrupt)
	require.Equal(t, 6*time.Hour, c.Interval)
	require.Nil(t, folders["new"].Last)
	require.Zero(t, folders["prod-2"].Interval)

	// A folder that cannot be read: not ours, or not readable for who is not root.
	broken := filepath.Join(root, "broken")
	if os.Geteuid() == 0 {
		require.NoError(t, os.Chown(broken, 12345, 12345))
	} else {
		require.NoError(t, os.Chmod(broken, 0))
		t.Cleanup(func() { _ = os.Chmod(broken, 0o700) })
	}
	folders = clusters(t, p)
	require.Len(t, folders, 4, "it does not hide the others")
	require.ErrorContains(t, folders["broken"].Err, broken)
	require.Empty(t, folders["broken"].Stale(destination.Limits{}, time.Now()), "nobody knows")

	// It ends when it is told to, and when ctx does.
	for range p.Clusters(t.Context()) {
		break
	}
	for range listed.Clusters(t.Context()) {
		break
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, p := range []*destination.Destination{p, listed} {
		var last error
		for _, err := range p.Clusters(ctx) {
			last = err
		}
		require.ErrorIs(t, last, context.Canceled)
	}
}

// TestStale: by the cluster's own interval, or by what the user says.
func TestStale(t *testing.T) {
	now := start
	ago := func(d time.Duration) *destination.Entry {
		return &destination.Entry{Time: now.Add(-d), Stored: now.Add(-d)}
	}
	ahead := &destination.Entry{Time: now.Add(1000 * time.Hour), Stored: now.Add(-1000 * time.Hour)}
	for name, c := range map[string]struct {
		cluster destination.Cluster
		limits  destination.Limits
		want    []string
	}{
		"nothing stored":           {destination.Cluster{}, destination.Limits{}, []string{"no good snapshot"}},
		"one run missed":           {destination.Cluster{Last: ago(13 * time.Hour), Interval: 6 * time.Hour}, destination.Limits{}, nil},
		"two runs missed":          {destination.Cluster{Last: ago(13*time.Hour + time.Minute), Interval: 6 * time.Hour}, destination.Limits{}, []string{"the last snapshot is older than 13h"}},
		"one only, of today":       {destination.Cluster{Last: ago(24 * time.Hour)}, destination.Limits{}, nil},
		"one only, of yesterday":   {destination.Cluster{Last: ago(26 * time.Hour)}, destination.Limits{}, []string{"the last snapshot is older than 25h"}},
		"stricter than its own":    {destination.Cluster{Last: ago(3 * time.Hour), Interval: 6 * time.Hour}, destination.Limits{MaxAge: 2 * time.Hour}, []string{"the last snapshot is older than 2h"}},
		"looser than its own":      {destination.Cluster{Last: ago(30 * time.Hour), Interval: 6 * time.Hour}, destination.Limits{MaxAge: 48 * time.Hour}, nil},
		"a clock that was ahead":   {destination.Cluster{Last: ahead, Interval: time.Hour}, destination.Limits{}, []string{"the last snapshot is older than 3h"}},
		"never proven":             {destination.Cluster{Last: ago(0)}, destination.Limits{MaxProvenAge: time.Hour}, []string{"none is proven"}},
		"proven, but too long ago": {destination.Cluster{Last: ago(0), Proven: ago(8 * 24 * time.Hour)}, destination.Limits{MaxProvenAge: 7*24*time.Hour + 30*time.Minute}, []string{"the last proven snapshot is older than 168h30m"}},
		"proven":                   {destination.Cluster{Last: ago(0), Proven: ago(time.Hour)}, destination.Limits{MaxProvenAge: 7 * 24 * time.Hour}, nil},
	} {
		require.Equal(t, c.want, c.cluster.Stale(c.limits, now), name)
	}
}

// TestInterval: neither a missed run nor snapshots by hand nor another policy's change what a cluster's interval is.
func TestInterval(t *testing.T) {
	d, _ := folder(t)
	at := start
	for _, gap := range []time.Duration{6, 6, 12, 6, 6} {
		at = at.Add(gap * time.Hour)
		publish(t, d, "etcd", at)
		publish(t, d, "weekly", at.Add(-time.Hour))
	}
	publish(t, d, "etcd", at.Add(time.Minute))
	require.Equal(t, 6*time.Hour, clusters(t, place(t, d))["prod"].Interval)
}
