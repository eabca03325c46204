package cli_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/stretchr/testify/require"

	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/ci/etcdtest"
)

func (s *site) scratch() string { return filepath.Join(s.dir, "scratch") }

func (s *site) verifyArgs(t *testing.T, more ...string) []string {
	return append([]string{"verify", "--policy-file", s.file(t), "--scratch-dir", s.scratch()}, more...)
}

// verify runs the verb and requires that it leaves nothing in the scratch folder.
func (s *site) verify(t *testing.T, more ...string) outcome {
	t.Helper()
	o := agent(t, s.verifyArgs(t, more...)...)
	s.noScratch(t)
	return o
}

func (s *site) noScratch(t *testing.T) {
	t.Helper()
	entries, err := os.ReadDir(s.scratch())
	if !os.IsNotExist(err) {
		require.NoError(t, err)
	}
	require.Empty(t, entries)
}

// encrypted makes the policy encrypt, and gives the file with the identity.
func (s *site) encrypted(t *testing.T) (identity string) {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	s.spec()["encryption"] = map[string]any{"age": map[string]any{"recipients": []string{id.Recipient().String()}}}
	identity = filepath.Join(s.dir, "identity-"+id.Recipient().String()[:10]+".txt")
	require.NoError(t, os.WriteFile(identity, []byte(id.String()+"\n"), 0o600))
	return identity
}

// verified is what -o json gives.
type verified struct {
	Level  string
	Copies []struct {
		Snapshot, Destination, URI, Level, Result, Message string
		Revision, TotalKeys                                int64
		Drill                                              *struct {
			EtcdVersion    string
			Keys, Revision int64
			Kinds          []struct {
				APIVersion, Kind string
				Count            int64
			}
		}
	}
}

func decodeVerified(t *testing.T, o outcome) (v verified) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &v), o.stdout)
	return v
}

// dataFile is the one stored file of a snapshot's data in a destination.
func (s *site) dataFile(t *testing.T, destination, name string) string {
	t.Helper()
	for _, f := range files(t, s.stores[destination]) {
		if strings.Contains(f, name) && !strings.HasSuffix(f, ".json") {
			return f
		}
	}
	t.Fatalf("%s is not in %s", name, destination)
	return ""
}

func flipBit(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	b[len(b)/2] ^= 4
	require.NoError(t, os.WriteFile(path, b, 0o600))
}

// TestVerifyEveryEtcd proves encrypted snapshots of every supported line at every level, in two destinations.
func TestVerifyEveryEtcd(t *testing.T) {
	for _, version := range etcdtest.Versions {
		t.Run(version, func(t *testing.T) {
			c := etcdtest.Start(t, etcdtest.Options{Version: version})
			keys := c.MustFill(t, 2<<20)
			s := newSite(t, c.Endpoints(), "node", "nfs")
			identity := s.encrypted(t)
			require.Zero(t, s.snapshot(t).code)

			for _, level := range []string{"checksum", "database", "restore"} {
				o := s.verify(t, "--level", level, "--identity", identity, "-o", "json")
				require.Zero(t, o.code)
				v := decodeVerified(t, o)
				require.Len(t, v.Copies, 2)
				for _, got := range v.Copies {
					require.Equal(t, "Passed", got.Result)
					require.Equal(t, level, got.Level)
					if level == "checksum" {
						require.Zero(t, got.Revision)
						continue
					}
					require.EqualValues(t, keys, got.TotalKeys)
					require.Greater(t, got.Revision, int64(1))
				}
				if level == "restore" {
					require.EqualValues(t, keys, v.Copies[0].Drill.Keys)
					require.Len(t, v.Copies[1].Drill.Kinds, 8)
				}
			}
			o := s.verify(t, "--level", "restore", "--identity", identity, "-d", "nfs")
			require.Zero(t, o.code)
			requireContains(t, o.stdout, "SNAPSHOT", "DESTINATION", "LEVEL", "RESULT", "REVISION", "KEYS", "TOOK", "MESSAGE", "Passed",
				"started from it and served "+fmt.Sprint(keys)+" keys", "KIND", "COUNT", "v1 Secret", "apps.example.test/v1alpha1 Release")
		})
	}
}

func TestVerifyIdentities(t *testing.T) {
	c := filled(t, etcdtest.Options{}, 1<<20)
	s := newSite(t, c.Endpoints(), "node")
	other := s.encrypted(t)
	identity := s.encrypted(t)
	require.Zero(t, s.snapshot(t).code)
	name := s.listed(t, "node")[0]

	o := s.verify(t)
	require.Zero(t, o.code, "the default level gives way")
	requireContains(t, o.stdout, "checksum", "Passed", "without --identity only its checksum can be verified")
	o = s.verify(t, "--level", "database")
	require.Equal(t, 2, o.code, "a level that was asked for does not")
	requireContains(t, o.stderr, "no identity", "AGE-SECRET-KEY-1")
	requireContains(t, o.stdout, "Unknown")
	o = s.verify(t, "--identity", other)
	require.Equal(t, 2, o.code)
	requireContains(t, o.stderr, "wrong identity")
	require.Zero(t, s.verify(t, "--identity", other, "--identity", identity).code)

	// Damage to the wrapped key looks like a wrong identity, and is told apart by the manifest.
	path := s.dataFile(t, "node", name)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	b[100] ^= 1
	require.NoError(t, os.WriteFile(path, b, 0o600))
	o = s.verify(t, "--identity", identity)
	require.Equal(t, 4, o.code)
	requireContains(t, o.stderr, "stored object is corrupt", "its manifest says")

	for _, bad := range []string{filepath.Join(s.dir, "none.txt"), s.file(t)} {
		o = s.verify(t, "--identity", bad)
		require.Equal(t, 2, o.code)
		requireContains(t, o.stderr, "--identity")
	}
}

// TestVerifyChoice is about which snapshots are looked at, and what their copies make of the exit code.
func TestVerifyChoice(t *testing.T) {
	c := filled(t, etcdtest.Options{}, 1<<20)
	s := newSite(t, c.Endpoints(), "node", "nfs")
	require.Equal(t, 1, s.verify(t).code, "nothing stored is nothing proven")
	require.Zero(t, s.snapshot(t).code)
	nextSecond(t)
	require.Zero(t, s.snapshot(t, "-d", "nfs").code)
	names := s.listed(t, "nfs")
	require.Len(t, names, 2)
	newest, oldest := names[0], names[1]

	seen := func(o outcome) (all []string) {
		for _, got := range decodeVerified(t, o).Copies {
			all = append(all, got.Snapshot+"@"+got.Destination+"="+got.Result)
		}
		return all
	}
	everything := []string{newest + "@nfs=Passed", oldest + "@node=Passed", oldest + "@nfs=Passed"}
	require.Equal(t, everything[:1], seen(s.verify(t, "-o", "json")))
	require.Equal(t, everything[:1], seen(s.verify(t, "-o", "json", "--latest")))
	require.Equal(t, everything, seen(s.verify(t, "-o", "json", "--all")))
	require.Equal(t, everything, seen(s.verify(t, "-o", "json", "--since", "1d")))
	require.Equal(t, everything[1:], seen(s.verify(t, "-o", "json", oldest)))
	require.Equal(t, everything[1:2], seen(s.verify(t, "-o", "json", "-d", "node")), "the newest of the destinations asked for")

	for _, args := range [][]string{{"nonsense"}, {"etcd-20200101t000000z-aaaaa"}, {oldest, "--all"}, {"--latest", "--all"}, {oldest, "--since", "1d"},
		{"--since", "yesterday"}, {"--level", "everything"}, {"-o", "wide"}} {
		require.Equal(t, 2, s.verify(t, args...).code, "%s", args)
	}

	flipBit(t, s.dataFile(t, "nfs", oldest))
	o := s.verify(t, "--all", "-o", "json")
	require.Equal(t, 4, o.code)
	require.Equal(t, []string{newest + "@nfs=Passed", oldest + "@node=Passed", oldest + "@nfs=Failed"}, seen(o))
	requireContains(t, o.stderr, oldest+" in destination nfs", "sha256")
	require.Zero(t, s.verify(t).code, "the newest is good")

	t.Run("a destination that is away", func(t *testing.T) {
		require.NoError(t, os.Rename(s.stores["node"], s.stores["node"]+".away"))
		defer func() { require.NoError(t, os.Rename(s.stores["node"]+".away", s.stores["node"])) }()
		o := s.verify(t)
		require.NotZero(t, o.code)
		requireContains(t, o.stderr, "destination node")
		requireContains(t, o.stdout, newest, "Passed")
		require.Equal(t, 4, s.verify(t, "--all").code, "what is known to be corrupt comes first")
	})
	t.Run("manifest missing", func(t *testing.T) {
		require.NoError(t, os.Remove(filepath.Join(s.stores["node"], "prod", archive.ManifestKey(oldest))))
		o := s.verify(t, oldest, "-d", "node")
		require.Equal(t, 4, o.code)
		requireContains(t, o.stderr, "its manifest is missing")
		o = s.verify(t)
		require.Zero(t, o.code, "it may be one that is just being stored")
		requireContains(t, o.stderr, "data without a manifest")
	})
	t.Run("data missing", func(t *testing.T) {
		require.NoError(t, os.Remove(s.dataFile(t, "nfs", newest)))
		o := s.verify(t)
		require.Equal(t, 4, o.code)
		requireContains(t, o.stderr, "its manifest is there, but not its data")
	})
}

func TestVerifyScratch(t *testing.T) {
	c := filled(t, etcdtest.Options{}, 4<<20)
	s := newSite(t, c.Endpoints(), "node")
	require.Zero(t, s.snapshot(t).code)

	t.Run("too little room", func(t *testing.T) {
		dir := tmpfs(t, "16m")
		o := agent(t, "verify", "-f", s.file(t), "--scratch-dir", dir, "--level", "restore")
		require.Equal(t, 1, o.code)
		requireContains(t, lastLine(o.stderr), "not enough room", dir, "free", "are needed", "--scratch-dir")
		require.Empty(t, files(t, dir))
		require.Zero(t, agent(t, "verify", "-f", s.file(t), "--scratch-dir", dir, "--level", "database").code)
	})
	t.Run("no folder", func(t *testing.T) {
		o := agent(t, "verify", "-f", s.file(t), "--scratch-dir", "/proc/nowhere")
		require.NotZero(t, o.code)
		requireContains(t, o.stderr, "scratch folder", "--scratch-dir")
		require.Zero(t, agent(t, "verify", "-f", s.file(t), "--scratch-dir", "/proc/nowhere", "--level", "checksum").code, "this level needs none")
	})

	// started runs the level restore until there is a data directory in the scratch folder.
	started := func(t *testing.T) (*exec.Cmd, *bytes.Buffer) {
		cmd := process(t, s.verifyArgs(t, "--level", "restore")...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		require.NoError(t, cmd.Start())
		require.Eventually(t, func() bool {
			found, err := filepath.Glob(filepath.Join(s.scratch(), "*", "restored"))
			return err == nil && len(found) == 1
		}, 30*time.Second, time.Millisecond)
		return cmd, &stderr
	}
	t.Run("SIGTERM", func(t *testing.T) {
		cmd, stderr := started(t)
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		_ = cmd.Wait() // the exit code tells
		require.Equal(t, 130, cmd.ProcessState.ExitCode(), "%s", stderr)
		s.noScratch(t)
	})
	t.Run("SIGKILL", func(t *testing.T) {
		cmd, _ := started(t)
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
		left, err := os.ReadDir(s.scratch())
		require.NoError(t, err)
		require.Len(t, left, 1)
		// The child that ran the etcd holds the folder until it has ended, too: that takes a moment.
		require.Eventually(t, func() bool {
			require.Zero(t, agent(t, s.verifyArgs(t)...).code)
			left, err := os.ReadDir(s.scratch())
			return err == nil && len(left) == 0
		}, 30*time.Second, 10*time.Millisecond)
	})
}

func TestVerifyDrillVerbAlone(t *testing.T) {
	require.Equal(t, 2, agent(t, "verify-drill").code)
	require.NotContains(t, agent(t, "--help").stdout, "verify-drill")
}

// TestVerifyAgainstAPIServer: the outcome is in the row, the policy's condition and Events.
func TestVerifyAgainstAPIServer(t *testing.T) {
	a := newAPIServer(t)
	require.Zero(t, a.agent("snapshot").code)
	name := strings.TrimSpace(a.agent("list", "-o", "name").stdout)
	condition := func(kind, of string) string {
		return a.kubectl("get", kind, of, "-o", `jsonpath={.status.conditions[?(@.type=="Verified")]}`)
	}
	require.Contains(t, condition("esp", "etcd"), `"status":"Unknown"`)

	o := a.agent("verify", "--level", "restore", "--scratch-dir", a.site.scratch())
	require.Zero(t, o.code, o.stderr)
	requireContains(t, o.stdout, "rbac.authorization.k8s.io/v1 ClusterRole", " CustomResourceDefinition", "etcdsnapshot.dev/v1 EtcdSnapshotPolicy", "v1 Namespace")
	requireContains(t, condition("esp", "etcd"), `"status":"True"`, name, "restore")
	requireContains(t, condition("esnap", name), `"status":"True"`)
	done := a.kubectl("get", "esnap", name, "-o", "jsonpath={.status.verification}")
	requireContains(t, done, `"level":"restore"`, `"result":"Passed"`, `"revision":`, `"totalKeys":`)
	requireContains(t, a.kubectl("get", "esnap"), "True")

	path := a.site.dataFile(t, "node", name)
	flipBit(t, path)
	o = a.agent("verify", "--level", "checksum")
	require.Equal(t, 4, o.code)
	requireContains(t, condition("esp", "etcd"), `"status":"False"`, "VerificationFailed", name, "its manifest says")
	requireContains(t, condition("esnap", name), `"status":"False"`)
	requireContains(t, a.kubectl("get", "events"), "Warning", "VerificationFailed", name)

	// What could not be checked leaves what is known as it was.
	before := a.kubectl("get", "esnap", name, "-o", "jsonpath={.status.verification}")
	o = a.agent("verify", "--scratch-dir", "/proc/nowhere")
	require.Equal(t, 1, o.code)
	require.Equal(t, before, a.kubectl("get", "esnap", name, "-o", "jsonpath={.status.verification}"))

	flipBit(t, path)
	require.Zero(t, a.agent("verify").code)
	requireContains(t, condition("esp", "etcd"), `"status":"True"`)
}
