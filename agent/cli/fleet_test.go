package cli_test

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/ci/emulator"
	"etcdsnapshot.dev/ci/etcdtest"
)

// putSnapshot writes the objects of a snapshot as a store keeps them, and gives its name.
func putSnapshot(t *testing.T, folder string, at time.Time, suffix string, proofs ...archive.Proof) string {
	t.Helper()
	name, err := archive.NewName("etcd", at, rand.Reader)
	require.NoError(t, err)
	keys := []string{name + suffix, archive.ManifestKey(name)}
	for _, p := range proofs {
		keys = append(keys, archive.ProofKey(name, p))
	}
	for _, key := range keys {
		path := filepath.Join(folder, key)
		require.NoError(t, os.WriteFile(path, []byte("x"), 0o600))
		require.NoError(t, os.Chtimes(path, at, at))
	}
	return name
}

// fleet is what -o json gives.
type fleet struct {
	Clusters []struct {
		Cluster, Destination, URI, State string
		Reasons, Corrupt                 []string
		Snapshots, Unencrypted           int
		Bytes, IntervalSeconds           int64
		LastGood, LastProven             *struct {
			Name, VerifiedLevel string
			AgeSeconds          int64
			Encrypted           bool
		}
	}
}

func decodeFleet(t *testing.T, text string) (f fleet) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(text), &f), text)
	return f
}

// TestFleetOfRealSnapshots: what snapshot and verify leave in a store is what list --all-clusters and list tell of it.
func TestFleetOfRealSnapshots(t *testing.T) {
	c := filled(t, etcdtest.Options{}, 1<<20)
	s := newSite(t, c.Endpoints(), "nfs")
	identity := s.encrypted(t)
	for _, cluster := range []string{"prod", "staging"} {
		s.spec()["clusterName"] = cluster
		require.Zero(t, s.snapshot(t).code)
	}
	require.Zero(t, s.verify(t, "--identity", identity).code)
	name := s.listed(t, "nfs")[0]
	o := agent(t, "list", "-f", s.file(t))
	require.Zero(t, o.code)
	require.Regexp(t, name+`.* database `, o.stdout)

	// Which cluster's policy it is does not matter, nor whether it names one.
	delete(s.spec(), "clusterName")
	o = agent(t, "list", "-f", s.file(t), "--all-clusters", "-o", "json")
	require.Zero(t, o.code, o.stderr)
	f := decodeFleet(t, o.stdout)
	require.Len(t, f.Clusters, 2)
	prod, staging := f.Clusters[0], f.Clusters[1]
	if prod.Cluster != "prod" {
		prod, staging = staging, prod
	}
	require.Equal(t, "file://"+s.stores["nfs"]+"/prod", prod.URI)
	require.Nil(t, prod.LastProven)
	require.True(t, prod.LastGood.Encrypted)
	require.Equal(t, name, staging.LastProven.Name)
	require.Equal(t, "database", staging.LastProven.VerifiedLevel)

	o = agent(t, "list", "-f", s.file(t), "--all-clusters", "--max-proven-age", "7d")
	require.Equal(t, 3, o.code)
	require.Regexp(t, `(?m)^prod .* never .* yes +Stale: none is proven$`, o.stdout)
	require.Contains(t, o.stderr, "1 of 2 clusters are stale: prod in nfs")

	// A copy that was damaged since: verify notes it, and it is no good snapshot any more.
	s.spec()["clusterName"] = "staging"
	flipBit(t, s.dataFile(t, "nfs", name))
	require.Equal(t, 4, s.verify(t, "--identity", identity).code)
	o = agent(t, "list", "-f", s.file(t))
	require.Zero(t, o.code)
	require.Regexp(t, name+`.* FAILED `, o.stdout)
	o = agent(t, "list", "-f", s.file(t), "--all-clusters")
	require.Equal(t, 4, o.code)
	require.Regexp(t, `(?m)^staging +never +never .*Stale: no good snapshot; corrupt: `+name+`$`, o.stdout)
	require.Contains(t, o.stdout, "1 stale, 1 fresh")
}

// TestVerifyWithoutTheRightToWrite: the verification is good, and only the note is missing.
func TestVerifyWithoutTheRightToWrite(t *testing.T) {
	c := filled(t, etcdtest.Options{}, 1<<20)
	s3 := emulator.StartS3(t)
	bucket, err := s3.NewBucket(t.Context(), emulator.S3BucketOptions{})
	require.NoError(t, err)
	proxy := emulator.StartFaultProxy(t, s3.Endpoint, emulator.ProxyConfig{})
	s := newSite(t, c.Endpoints())
	s.add(s3Destination(t, s3, proxy.URL, bucket))
	require.Zero(t, s.snapshot(t).code)
	proxy.Add(emulator.Rule{Method: "PUT", Path: ".verified-", Status: 403})
	o := s.verify(t)
	require.Zero(t, o.code)
	requireContains(t, o.stderr, "the outcome is not noted in the destination", "access denied")
	proxy.Clear()
	before := proxy.Count(emulator.Rule{Method: "PUT"})
	for range 2 {
		require.Zero(t, s.verify(t).code)
	}
	require.Equal(t, 1, proxy.Count(emulator.Rule{Method: "PUT"})-before, "it is noted once")
}

func s3Destination(t *testing.T, s3 *emulator.S3, endpoint, bucket string) map[string]any {
	return map[string]any{"name": "s3", "s3": map[string]any{"bucket": bucket, "endpoint": endpoint, "region": s3.Region,
		"auth": map[string]any{"method": "static", "credentialsDir": mounted(t, map[string]string{v1.S3FileAccessKeyID: s3.AccessKey, v1.S3FileSecretAccessKey: s3.SecretKey})}}}
}

// TestFleetOutput: the order, the forms, and what a user did wrong.
func TestFleetOutput(t *testing.T) {
	s := newSite(t, []string{"http://127.0.0.1:1"}, "a", "b")
	now := time.Now()
	passed, failed := archive.Proof{Level: "restore", Passed: true}, archive.Proof{Level: "checksum"}
	for destination, clusters := range map[string]map[string][]time.Duration{
		"a": {"fresh": {1, 7, 13}, "old": {30, 36, 42}, "older": {300}, "rotten": {2, 8}},
		"b": {"fresh": {1}},
	} {
		for cluster, ages := range clusters {
			folder := filepath.Join(s.stores[destination], cluster)
			require.NoError(t, os.MkdirAll(folder, 0o700))
			for i, age := range ages {
				var proofs []archive.Proof
				switch {
				case cluster == "rotten" && i == 1:
					proofs = append(proofs, failed)
				case cluster == "fresh" && i == 1:
					proofs = append(proofs, passed)
				}
				putSnapshot(t, folder, now.Add(-age*time.Hour), []string{".db.zst", ".db.zst.age"}[i%2], proofs...)
			}
		}
	}
	list := func(more ...string) outcome {
		return agent(t, append([]string{"list", "-f", s.file(t), "--all-clusters"}, more...)...)
	}
	o := list()
	require.Equal(t, 4, o.code)
	var cells [][]string
	for _, line := range strings.Split(strings.TrimSpace(o.stdout), "\n") {
		cells = append(cells, regexp.MustCompile(` {2,}`).Split(line, -1))
	}
	corrupt := cells[3][len(cells[3])-1]
	require.Contains(t, corrupt, "Corrupt: corrupt: etcd-")
	require.Equal(t, [][]string{
		{"CLUSTER", "DESTINATION", "LAST GOOD", "LAST PROVEN", "EVERY", "SNAPSHOTS", "SIZE", "ENCRYPTED", "STATE"},
		{"older", "a", "12d", "never", "-", "1", "1 B", "no", "Stale: the last snapshot is older than 25h"},
		{"old", "a", "30h", "never", "6h", "3", "3 B", "1 of 3", "Stale: the last snapshot is older than 13h"},
		{"rotten", "a", "2h", "never", "-", "2", "2 B", "1 of 2", corrupt},
		{"fresh", "a", "60m", "7h (restore)", "6h", "3", "3 B", "1 of 3", "Fresh"},
		{"fresh", "b", "60m", "never", "-", "1", "1 B", "no", "Fresh"},
		{""},
		{"2 stale, 1 corrupt, 2 fresh"},
	}, cells)
	require.Contains(t, o.stderr, "2 of 5 clusters are stale: older in a, old in a\n1 of 5 clusters have a corrupt snapshot: rotten in a")
	require.Equal(t, "older\nold\nrotten\nfresh\n", list("-o", "name").stdout)
	require.Contains(t, list("-o", "yaml").stdout, "cluster: older")
	require.Contains(t, list("-o", "wide").stdout, "file://"+s.stores["a"]+"/older")
	require.Len(t, decodeFleet(t, list("-o", "json").stdout).Clusters, 5)

	o = list("-d", "b")
	require.Zero(t, o.code)
	require.NotContains(t, o.stdout, "DESTINATION")
	require.Equal(t, 3, list("-d", "b", "--max-age", "1h").code)
	require.NoError(t, os.RemoveAll(filepath.Join(s.stores["a"], "rotten")))
	require.Zero(t, list("--max-age", "1y").code)

	// A place that cannot be listed does not hide the other, and what is known to be stale comes before it.
	s.add(map[string]any{"name": "gone", "hostPath": map[string]any{"path": filepath.Join(s.dir, "gone")}})
	o = list("--max-age", "1y")
	require.Equal(t, 1, o.code)
	require.Contains(t, o.stderr, "destination gone: ")
	require.Contains(t, o.stdout, "4 fresh")
	require.Equal(t, 3, list().code)

	empty := newSite(t, []string{"http://127.0.0.1:1"}, "empty")
	require.NoError(t, os.Mkdir(empty.stores["empty"], 0o700))
	o = agent(t, "list", "-f", empty.file(t), "--all-clusters")
	require.Zero(t, o.code)
	require.Equal(t, "No clusters.\n", o.stdout)

	for _, args := range [][]string{{"--all-clusters", "--max-age", "2 days"}, {"--all-clusters", "--max-proven-age", "0h"}, {"--max-age", "2d"}} {
		o := agent(t, append([]string{"list", "-f", s.file(t)}, args...)...)
		require.Equal(t, 2, o.code)
		require.Contains(t, o.stderr, "--max-")
	}
}

// TestFleetOfAThousand: 1,000 clusters of 50 snapshots each cost one list of the bucket, a page for 1,000 objects, and the
// memory of one cluster at a time.
func TestFleetOfAThousand(t *testing.T) {
	const clusters, snapshots = 1000, 50
	s3 := emulator.StartS3(t)
	bucket, err := s3.NewBucket(t.Context(), emulator.S3BucketOptions{})
	require.NoError(t, err)
	root := s3.Folder(bucket)
	now := time.Now()
	objects := 0
	for i := range clusters {
		folder := filepath.Join(root, fmt.Sprintf("cluster-%04d", i))
		require.NoError(t, os.Mkdir(folder, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(folder, "cluster.json"), []byte("{}"), 0o600))
		newest := now.Add(-time.Hour)
		if i%100 == 7 {
			newest = now.Add(-time.Duration(24+i) * time.Hour)
		}
		for n := range snapshots {
			var proofs []archive.Proof
			if n == 3 {
				proofs = append(proofs, archive.Proof{Level: "restore", Passed: true})
			}
			putSnapshot(t, folder, newest.Add(-time.Duration(n)*6*time.Hour), ".db.zst.age", proofs...)
		}
		objects += 1 + 2*snapshots + 1
	}

	check := func(t *testing.T, policy *site) {
		args := []string{"list", "-f", policy.file(t), "--all-clusters", "-o", "json"}
		o := quietly(t, args...)
		require.Equal(t, 3, o.code, o.stderr)
		f := decodeFleet(t, o.stdout)
		require.Len(t, f.Clusters, clusters)
		for i, c := range f.Clusters {
			require.Equal(t, snapshots, c.Snapshots)
			require.Equal(t, int64(6*3600), c.IntervalSeconds)
			require.Zero(t, c.Unencrypted)
			require.NotNil(t, c.LastProven)
			require.Equal(t, i < clusters/100, c.State == "Stale", "%d: %s", i, c.Cluster)
		}
		require.Equal(t, "cluster-0907", f.Clusters[0].Cluster, "the oldest first")
		require.Contains(t, o.stderr, "10 of 1000 clusters are stale: cluster-0907 in ")
	}
	program := shipped(t)
	// Memory is that of a process of its own, beside what the program takes to list one cluster.
	memory := func(t *testing.T, policy *site, one string) {
		if runtime.GOOS != "linux" {
			t.Skip("the kernel tells the peak of a process on Linux only")
		}
		policy.spec()["clusterName"] = one
		least := peakMemory(t, exec.Command(program, "list", "-f", policy.file(t), "-o", "name"))
		most := peakMemory(t, exec.Command(program, "list", "-f", policy.file(t), "--all-clusters", "--max-age", "1y", "-o", "json"))
		t.Logf("one cluster: %.1f MiB; %d clusters: %.1f MiB", least, clusters, most)
		require.LessOrEqual(t, most, least+25)
	}
	t.Run("S3", func(t *testing.T) {
		proxy := emulator.StartFaultProxy(t, s3.Endpoint, emulator.ProxyConfig{})
		policy := newSite(t, []string{"http://127.0.0.1:1"})
		policy.add(s3Destination(t, s3, proxy.URL, bucket))
		begin := time.Now()
		check(t, policy)
		t.Logf("%d objects: %d requests, %v", objects, proxy.Count(emulator.Rule{}), time.Since(begin).Round(time.Millisecond))
		require.LessOrEqual(t, proxy.Count(emulator.Rule{}), objects/1000+1, "list pages, and nothing per cluster or snapshot")
		require.Equal(t, proxy.Count(emulator.Rule{}), proxy.Count(emulator.Rule{Method: "GET", Query: "list-type=2"}))
		memory(t, policy, "cluster-0001")
	})
	t.Run("folder", func(t *testing.T) {
		policy := newSite(t, []string{"http://127.0.0.1:1"})
		policy.add(map[string]any{"name": "nfs", "hostPath": map[string]any{"path": root}})
		begin := time.Now()
		check(t, policy)
		t.Logf("%d objects: %v", objects, time.Since(begin).Round(time.Millisecond))
		memory(t, policy, "cluster-0001")
	})
}
