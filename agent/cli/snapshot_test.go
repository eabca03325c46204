package cli_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/stretchr/testify/require"

	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/ci/etcdtest"
	"etcdsnapshot.dev/ci/parts"
)

// TestEveryEtcd is the main job against every supported line of etcd, with TLS: what is stored, opened with the tools of
// others alone, is a snapshot that etcd's own tool accepts and restores.
func TestEveryEtcd(t *testing.T) {
	zstd, err := exec.LookPath("zstd")
	if err != nil && os.Getenv("CI") == "" {
		t.Skip("the zstd command is not installed")
	}
	require.NoError(t, err)
	ageTool := filepath.Join(parts.Require(t, "age"), "age")
	etcdutl := filepath.Join(parts.Require(t, "etcd-3.7"), "etcdutl")
	for _, version := range etcdtest.Versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			c := filled(t, etcdtest.Options{Version: version, TLS: true}, 4<<20)
			s := newSite(t, c.Endpoints(), "node", "nfs")
			s.etcd()["caFile"], s.etcd()["certFile"], s.etcd()["keyFile"] = c.Certs.CAFile, c.Certs.ClientCertFile, c.Certs.ClientKeyFile
			id, err := age.GenerateX25519Identity()
			require.NoError(t, err)
			s.spec()["encryption"] = map[string]any{"age": map[string]any{"recipients": []string{id.Recipient().String()}}}

			o := s.snapshot(t, "-o", "json")
			require.Zero(t, o.code, o.stderr)
			var result struct {
				Manifest struct {
					Name   string
					Node   string
					Etcd   struct{ Version string }
					Object struct{ Key string }
				}
				Destinations []struct{ Name, URI, Result string }
			}
			require.NoError(t, json.Unmarshal([]byte(o.stdout), &result))
			require.True(t, strings.HasPrefix(result.Manifest.Etcd.Version, version+"."))
			require.Equal(t, "n1", result.Manifest.Node)
			require.Len(t, result.Destinations, 2)
			for _, name := range []string{"node", "nfs"} {
				require.Equal(t, []string{result.Manifest.Name}, s.listed(t, name))
			}
			require.Empty(t, files(t, s.spool))

			stored := filepath.Join(s.stores["nfs"], "prod", result.Manifest.Object.Key)
			identity := filepath.Join(s.dir, "identity.txt")
			require.NoError(t, os.WriteFile(identity, []byte(id.String()), 0o600))
			db := filepath.Join(s.dir, "restored.db")
			tool(t, ageTool, "-d", "-i", identity, "-o", db+".zst", stored)
			tool(t, zstd, "-d", "-q", db+".zst", "-o", db)
			tool(t, etcdutl, "snapshot", "status", db)
			tool(t, etcdutl, "snapshot", "restore", db, "--data-dir", filepath.Join(s.dir, "data"))
			for _, f := range files(t, s.stores["node"]) {
				st, err := os.Stat(f)
				require.NoError(t, err)
				require.Equal(t, os.FileMode(0o600), st.Mode())
			}
		})
	}
}

func tool(t *testing.T, name string, args ...string) {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(t, err, "%s %s: %s", name, strings.Join(args, " "), out)
}

func TestPlainTable(t *testing.T) {
	c := filled(t, etcdtest.Options{}, 1<<20)
	s := newSite(t, c.Endpoints(), "node")
	s.spec()["compression"] = map[string]any{"algorithm": "none"}
	o := s.snapshot(t)
	require.Zero(t, o.code, o.stderr)
	requireContains(t, o.stdout, "SNAPSHOT", "REVISION", "DATABASE", "STORED", "MEMBER", "TOOK", "DESTINATION   RESULT   WHERE", "node          stored   file://"+s.stores["node"])
	o = agent(t, "list", "-f", s.file(t), "-o", "wide")
	require.Zero(t, o.code)
	requireContains(t, o.stdout, "NAME", "AGE", "SIZE", "DESTINATIONS", "NODE", "REVISION", "n1")
	for _, f := range files(t, s.stores["node"]) {
		if strings.HasSuffix(f, ".db") {
			tool(t, filepath.Join(parts.Require(t, "etcd-3.6"), "etcdutl"), "snapshot", "status", f)
		}
	}
}

func TestTerminationMessage(t *testing.T) {
	c := filled(t, etcdtest.Options{}, 1<<20)
	s := newSite(t, c.Endpoints(), "node")
	message := filepath.Join(s.dir, "termination-log")
	require.NoError(t, os.WriteFile(message, nil, 0o644))
	require.Zero(t, s.snapshot(t, "--termination-log", message).code)
	data, err := os.ReadFile(message)
	require.NoError(t, err)
	requireContains(t, string(data), "etcd-", "revision", "node: file://")

	c.Stop()
	require.Equal(t, 1, s.snapshot(t, "--termination-log", message).code)
	data, err = os.ReadFile(message)
	require.NoError(t, err)
	requireContains(t, string(data), "exit code 1", c.Endpoints()[0], "connection refused")
}

// TestPolicyErrors: a bad policy is told by the field, with exit code 2, and nothing is written.
func TestPolicyErrors(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(s *site)
		want []string
	}{
		"unknown field":  {func(s *site) { s.spec()["retentoin"] = 3 }, []string{`unknown field "spec.retentoin"`}},
		"two backends":   {func(s *site) { s.destination(0)["s3"] = map[string]any{"bucket": "abc"} }, []string{"spec.destinations[0]", "exactly one backend"}},
		"no clusterName": {func(s *site) { delete(s.spec(), "clusterName") }, []string{"spec.clusterName", "Required value"}},
		"key file missing": {func(s *site) { s.etcd()["certFile"], s.etcd()["keyFile"] = "/no/such.crt", "/no/such.key" },
			[]string{"/no/such.", "no such file", "certFile"}},
		"recipient that is none": {func(s *site) {
			s.spec()["encryption"] = map[string]any{"age": map[string]any{"recipients": []string{"age1" + strings.Repeat("q", 58)}}}
		}, []string{"spec.encryption.age.recipients[0]"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, []string{"http://127.0.0.1:1"}, "node")
			c.edit(s)
			o := s.snapshot(t)
			require.Equal(t, 2, o.code)
			requireContains(t, o.stderr, c.want...)
			require.NoDirExists(t, s.stores["node"])
		})
	}
	t.Run("no policy file", func(t *testing.T) {
		o := agent(t, "snapshot", "--policy-file", "/no/policy.yaml")
		require.Equal(t, 2, o.code)
		requireContains(t, o.stderr, "/no/policy.yaml", "no such file")
	})
	for _, args := range [][]string{{"snapshot"}, {"snapshot", "--nope"}, {"snapshot", "extra"}, {"nope"}, {"list", "-o", "xml"}, {"list", "--policy", "a", "--policy-file", "b"}, {"version", "--log-level", "loud"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			require.Equal(t, 2, agent(t, args...).code)
		})
	}
}

// TestReach: what cannot be reached is told as itself, and nothing is left behind.
func TestReach(t *testing.T) {
	c := filled(t, etcdtest.Options{TLS: true}, 1<<20)
	good := func(s *site) {
		s.etcd()["caFile"], s.etcd()["certFile"], s.etcd()["keyFile"] = c.Certs.CAFile, c.Certs.ClientCertFile, c.Certs.ClientKeyFile
	}
	for name, tc := range map[string]struct {
		edit func(s *site)
		want []string
	}{
		"wrong CA": {func(s *site) { good(s); s.etcd()["caFile"] = c.Certs.OtherCAFile }, []string{"x509", "unknown authority"}},
		"expired certificate": {func(s *site) {
			good(s)
			s.etcd()["certFile"], s.etcd()["keyFile"] = c.Certs.ExpiredClientCertFile, c.Certs.ExpiredClientKeyFile
		}, []string{"expired"}},
		"no certificate": {func(s *site) { good(s); delete(s.etcd(), "certFile"); delete(s.etcd(), "keyFile") }, []string{"certificate required"}},
		"nobody there": {func(s *site) { good(s); s.etcd()["endpoints"] = []string{"https://127.0.0.1:1", "https://[::1]:1"} },
			[]string{"https://127.0.0.1:1", "https://[::1]:1", "connection refused"}},
		"no such host": {func(s *site) { good(s); s.etcd()["endpoints"] = []string{"https://no-such-host.invalid:2379"} }, []string{"no-such-host.invalid"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, c.Endpoints(), "node")
			tc.edit(s)
			o := s.snapshot(t)
			require.Contains(t, []int{1, 2}, o.code)
			requireContains(t, o.stderr, tc.want...)
			require.NotContains(t, lastLine(o.stderr), "deadline exceeded")
			s.nothingVisible(t)
		})
	}
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// TestTampered: a stream that is not what etcd meant to send is never published.
func TestTampered(t *testing.T) {
	real := realSnapshot(t, filled(t, etcdtest.Options{}, 2<<20))
	for name, c := range map[string]struct {
		tamper func([]byte) []byte
		want   string
	}{
		"trailer flipped":  {etcdtest.FlipBit(-1), "checksum"},
		"database flipped": {etcdtest.FlipBit(len(real) / 2), "checksum"},
		"trailer missing":  {etcdtest.DropChecksum, "checksum"},
		"cut at 50 %":      {etcdtest.Truncate(len(real)/2 + 7), ""},
		"cut at a page":    {etcdtest.Truncate(len(real) / 2 / 4096 * 4096), ""},
		"empty":            {etcdtest.Truncate(0), ""},
	} {
		t.Run(name, func(t *testing.T) {
			url := etcdtest.StartFake(t, &etcdtest.FakeMaintenance{Snapshot: real, Tamper: c.tamper})
			s := newSite(t, []string{url}, "node")
			o := s.snapshot(t)
			require.Equal(t, 1, o.code)
			requireContains(t, lastLine(o.stderr), url, c.want)
			s.nothingVisible(t)
		})
	}
	t.Run("the next member is asked", func(t *testing.T) {
		c := filled(t, etcdtest.Options{Members: 3}, 2<<20)
		var endpoints []string
		leader, err := c.Leader(t.Context())
		require.NoError(t, err)
		for i, m := range c.Members {
			if i == leader {
				endpoints = append(endpoints, m.ClientURL)
				continue
			}
			p := etcdtest.StartProxy(t, m.ClientURL)
			p.CutAfter(1 << 20) // enough for the status, not for the snapshot
			endpoints = append(endpoints, p.URL())
		}
		s := newSite(t, endpoints, "node")
		o := s.snapshot(t)
		require.Zero(t, o.code, o.stderr)
		require.Contains(t, o.stdout, c.Members[leader].ClientURL)
		require.Len(t, s.listed(t, "node"), 1)
		require.Empty(t, files(t, s.spool))
	})
}

// TestOneDestinationFails: the others have the snapshot whole, and the exit code says partial.
func TestOneDestinationFails(t *testing.T) {
	c := filled(t, etcdtest.Options{}, 2<<20)
	newBad := func(t *testing.T) *site {
		s := newSite(t, c.Endpoints(), "bad", "good")
		s.stores["bad"] = filepath.Join(s.dir, "no", "such", "parent")
		s.destination(0)["hostPath"] = map[string]any{"path": s.stores["bad"]}
		return s
	}
	t.Run("required", func(t *testing.T) {
		s := newBad(t)
		o := s.snapshot(t)
		require.Equal(t, 3, o.code)
		requireContains(t, lastLine(o.stderr), "bad", s.stores["bad"])
		requireContains(t, o.stdout, "bad           failed", "good          stored")
		require.Len(t, s.listed(t, "good"), 1)
	})
	t.Run("not required", func(t *testing.T) {
		s := newBad(t)
		s.destination(0)["required"] = false
		o := s.snapshot(t)
		require.Zero(t, o.code, o.stderr)
		requireContains(t, o.stdout, "failed (not required)", "good          stored")
	})
	t.Run("all", func(t *testing.T) {
		s := newBad(t)
		s.destination(1)["hostPath"] = map[string]any{"path": filepath.Join(s.dir, "neither", "this")}
		o := s.snapshot(t)
		require.Contains(t, []int{1, 2}, o.code)
		requireContains(t, lastLine(o.stderr), "no destination", "bad", "good")
	})
	t.Run("belongs to another cluster", func(t *testing.T) {
		s := newSite(t, c.Endpoints(), "node")
		s.spec()["clusterUID"] = "uid-1"
		require.Zero(t, s.snapshot(t).code)
		s.spec()["clusterUID"] = "uid-2"
		o := s.snapshot(t)
		require.Equal(t, 2, o.code)
		requireContains(t, lastLine(o.stderr), "uid-1", "uid-2", "clusterName")
		require.Len(t, s.listed(t, "node"), 1)
		require.Equal(t, 2, agent(t, "prune", "-f", s.file(t)).code)
		delete(s.spec(), "clusterUID")
		require.NotZero(t, agent(t, "prune", "-f", s.file(t)).code, "whose folder it is cannot be told, so nothing is removed")
		require.Zero(t, s.snapshot(t).code, "a snapshot is never refused for that")
	})
}

func TestDisks(t *testing.T) {
	c := filled(t, etcdtest.Options{}, 8<<20)
	incompressible := func(s *site) { s.spec()["compression"] = map[string]any{"algorithm": "none"} }
	t.Run("read-only destination", func(t *testing.T) {
		s := newSite(t, c.Endpoints(), "node")
		s.stores["node"] = tmpfs(t, "64m")
		s.destination(0)["hostPath"] = map[string]any{"path": s.stores["node"]}
		readOnly(t, s.stores["node"])
		o := s.snapshot(t)
		require.Equal(t, 1, o.code)
		requireContains(t, lastLine(o.stderr), "read-only file system", s.stores["node"])
		s.nothingVisible(t)
	})
	t.Run("full while spooling", func(t *testing.T) {
		s := newSite(t, c.Endpoints(), "node")
		incompressible(s)
		s.spool = filepath.Join(tmpfs(t, "2m"), "spool")
		o := s.snapshot(t)
		require.Equal(t, 1, o.code)
		requireContains(t, lastLine(o.stderr), "no space left on device", s.spool, "--spool-dir")
		s.nothingVisible(t)
	})
	t.Run("full while publishing", func(t *testing.T) {
		s := newSite(t, c.Endpoints(), "node", "other")
		incompressible(s)
		s.stores["node"] = tmpfs(t, "2m") // and so on another file system than the spool
		s.destination(0)["hostPath"] = map[string]any{"path": s.stores["node"]}
		o := s.snapshot(t)
		require.Equal(t, 3, o.code)
		requireContains(t, lastLine(o.stderr), "no space left on device", s.stores["node"])
		require.Empty(t, files(t, s.stores["node"]))
		require.Len(t, s.listed(t, "other"), 1)
	})
	t.Run("another file system than the spool", func(t *testing.T) {
		s := newSite(t, c.Endpoints(), "node")
		s.stores["node"] = tmpfs(t, "256m")
		s.destination(0)["hostPath"] = map[string]any{"path": s.stores["node"]}
		require.Zero(t, s.snapshot(t).code)
		require.Len(t, s.listed(t, "node"), 1)
	})
}

// TestKilled: a run that is ended in the middle of the stream leaves nothing that is visible, and nothing that is in the
// way of the next one.
func TestKilled(t *testing.T) {
	c := filled(t, etcdtest.Options{}, 8<<20)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			proxy := etcdtest.StartProxy(t, c.Members[0].ClientURL)
			proxy.StallAfter(4 << 20)
			s := newSite(t, []string{proxy.URL()}, "node")
			cmd := process(t, s.args(t)...)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			require.NoError(t, cmd.Start())
			require.Eventually(t, func() bool { return len(files(t, s.spool)) == 1 }, 30*time.Second, 10*time.Millisecond, "the run spools")
			require.NoError(t, cmd.Process.Signal(sig))
			err := cmd.Wait()
			require.Error(t, err)
			if sig == syscall.SIGTERM {
				require.Equal(t, 130, cmd.ProcessState.ExitCode(), stderr.String())
				require.Contains(t, lastLine(stderr.String()), "interrupted")
				s.nothingVisible(t)
			}
			require.Empty(t, s.listed(t, "node"))
			proxy.Pass()
			require.Zero(t, s.snapshot(t).code)
			require.Len(t, s.listed(t, "node"), 1)
			require.Empty(t, files(t, s.spool), "the killed run's spool file is swept")
		})
	}
}

func TestStalledStream(t *testing.T) {
	c := filled(t, etcdtest.Options{}, 8<<20)
	proxy := etcdtest.StartProxy(t, c.Members[0].ClientURL)
	proxy.StallAfter(4 << 20)
	s := newSite(t, []string{proxy.URL()}, "node")
	o := s.snapshot(t, "--stall-timeout", "1s")
	require.Equal(t, 1, o.code)
	requireContains(t, lastLine(o.stderr), "1s", proxy.URL())
	s.nothingVisible(t)
}

// TestSameSecond: agents that run at the same time do not get in each other's way.
func TestSameSecond(t *testing.T) {
	c := filled(t, etcdtest.Options{}, 1<<20)
	s := newSite(t, c.Endpoints(), "node")
	args := s.args(t)
	var wg sync.WaitGroup
	const agents = 4
	codes := make([]int, agents)
	for i := range agents {
		wg.Go(func() { codes[i] = agent(t, args...).code })
	}
	wg.Wait()
	require.Equal(t, make([]int, agents), codes)
	names := s.listed(t, "node")
	require.Len(t, names, agents)
	for _, n := range names {
		_, ok := archive.ParseName(n)
		require.True(t, ok)
	}
}

func TestPrune(t *testing.T) {
	c := filled(t, etcdtest.Options{}, 1<<20)
	s := newSite(t, c.Endpoints(), "node", "all")
	for range 4 {
		require.Zero(t, s.snapshot(t).code)
	}
	s.destination(0)["retention"] = map[string]any{"last": 2}
	// What is not ours is neither counted nor touched.
	foreign := filepath.Join(s.stores["node"], "prod", "notes.txt")
	require.NoError(t, os.WriteFile(foreign, []byte("mine"), 0o600))

	o := agent(t, "prune", "-f", s.file(t), "--dry-run")
	require.Zero(t, o.code)
	requireContains(t, o.stdout, "keep", "remove", "newest, last 1/2", "no rule keeps it", "no retention is set", "keep 6", "remove 2")
	require.Len(t, s.listed(t, "node"), 4, "a dry run removes nothing")

	o = agent(t, "prune", "-f", s.file(t))
	require.Zero(t, o.code)
	requireContains(t, o.stdout, "removed 2")
	require.Len(t, s.listed(t, "node"), 2)
	require.Len(t, s.listed(t, "all"), 4)
	require.Len(t, files(t, s.stores["node"]), 5, "two snapshots, their manifests, and what is not ours")
	requireContains(t, agent(t, "list", "-f", s.file(t)).stdout, "node: 1 foreign objects, not touched")

	require.Zero(t, s.snapshot(t).code)
	require.Len(t, s.listed(t, "node"), 2, "a run prunes where it stored")
	require.Len(t, s.listed(t, "all"), 5)
}
