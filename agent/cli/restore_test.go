package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/cli"
	"etcdsnapshot.dev/agent/restore"
	"etcdsnapshot.dev/agent/verify"
	"etcdsnapshot.dev/ci/etcdtest"
)

// restored reads the result and checks the data directory that it names.
func restored(t *testing.T, o outcome) (res struct {
	Snapshot, URI, DataDir, SHA256 string
	Revision, RestoredRevision     int64
}) {
	t.Helper()
	require.Zero(t, o.code, o.stderr)
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &res))
	status, err := verify.Inspect(t.Context(), filepath.Join(res.DataDir, "member", "snap", "db"))
	require.NoError(t, err)
	require.Equal(t, res.RestoredRevision, status.Revision)
	require.Equal(t, res.Revision+restore.DefaultBump, status.Revision)
	return res
}

func TestRestoreByNameLatestAtAndFolder(t *testing.T) {
	c := filled(t, etcdtest.Options{}, 100<<10)
	s := newSite(t, c.Endpoints(), "node", "offsite")
	require.Zero(t, s.snapshot(t).code)
	first := s.listed(t, "node")[0]
	parsed, ok := archive.ParseName(first)
	require.True(t, ok)
	nextSecond(t)
	c.MustFill(t, 110<<10)
	require.Zero(t, s.snapshot(t).code)
	second := s.listed(t, "node")[0]
	require.NotEqual(t, first, second)
	file := s.file(t)
	dataDir := func() string { return filepath.Join(t.TempDir(), "etcd") }

	r := restored(t, agent(t, "restore", "--policy-file", file, "--latest", "--data-dir", dataDir(), "-o", "json"))
	require.Equal(t, second, r.Snapshot)
	latest := r.Revision
	r = restored(t, agent(t, "restore", first, "--policy-file", file, "--data-dir", dataDir(), "-o", "json"))
	require.Equal(t, first, r.Snapshot)
	require.Less(t, r.Revision, latest)
	for _, at := range []string{parsed.Time.Format(time.RFC3339), parsed.Time.Format(time.DateTime)} {
		r = restored(t, agent(t, "restore", "--at", at, "--policy-file", file, "--data-dir", dataDir(), "-o", "json"))
		require.Equal(t, first, r.Snapshot)
	}
	o := agent(t, "restore", "--at", "2020-01-01T00:00:00Z", "--policy-file", file, "--data-dir", dataDir())
	require.Equal(t, 2, o.code)
	require.Contains(t, o.stderr, "the oldest is of "+parsed.Time.Format(time.RFC3339))
	r = restored(t, agent(t, "restore", "--from-dir", filepath.Join(s.stores["offsite"], "prod"), "--latest", "--data-dir", dataDir(), "-o", "json"))
	require.Equal(t, second, r.Snapshot)
	stored := files(t, s.stores["offsite"])[0]
	require.Equal(t, ".zst", filepath.Ext(stored))
	r = restored(t, agent(t, "restore", "--from", stored, "--data-dir", dataDir(), "-o", "json"))
	require.Equal(t, first, r.Snapshot)

	// A copy that is damaged or away is no reason to fail as long as there is another.
	data, err := os.ReadFile(filepath.Join(s.stores["node"], "prod", second+".db.zst"))
	require.NoError(t, err)
	data[len(data)/2] ^= 1
	require.NoError(t, os.WriteFile(filepath.Join(s.stores["node"], "prod", second+".db.zst"), data, 0o600))
	o = agent(t, "restore", "--policy-file", file, "--latest", "--data-dir", dataDir(), "-o", "json")
	r = restored(t, o)
	require.Contains(t, r.URI, s.stores["offsite"])
	require.Contains(t, o.stderr, "the next one is tried")
	target := dataDir()
	o = agent(t, "restore", "--policy-file", file, "-d", "node", "--latest", "--data-dir", target)
	require.Equal(t, 4, o.code)
	require.NoDirExists(t, target)
	require.NoError(t, os.RemoveAll(s.stores["node"]))
	o = agent(t, "restore", "--policy-file", file, "--latest", "--data-dir", dataDir(), "-o", "json")
	require.Equal(t, second, restored(t, o).Snapshot)
	require.Contains(t, o.stderr, "this destination cannot be read")

	// The manifest beside a file must be its own.
	require.NoError(t, os.WriteFile(filepath.Join(s.stores["offsite"], "prod", second+".db.zst"), data, 0o600))
	o = agent(t, "restore", "--from-dir", filepath.Join(s.stores["offsite"], "prod"), second, "--data-dir", dataDir())
	require.Equal(t, 4, o.code)
	require.NoError(t, os.Rename(filepath.Join(s.stores["offsite"], "prod", first+".json"), filepath.Join(s.stores["offsite"], "prod", second+".json")))
	o = agent(t, "restore", "--from-dir", filepath.Join(s.stores["offsite"], "prod"), second, "--data-dir", dataDir())
	require.Equal(t, 4, o.code)
	require.Contains(t, o.stderr, "it is the manifest of "+first)
}

func TestRestoreEncryptedAndOfAnotherCluster(t *testing.T) {
	c := filled(t, etcdtest.Options{}, 100<<10)
	s := newSite(t, c.Endpoints(), "node")
	id, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	other, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	s.spec()["encryption"] = map[string]any{"age": map[string]any{"recipients": []string{id.Recipient().String()}}}
	s.spec()["clusterUID"] = "one"
	require.Zero(t, s.snapshot(t).code)
	key := func(id *age.X25519Identity) string {
		path := filepath.Join(t.TempDir(), "key.txt")
		require.NoError(t, os.WriteFile(path, []byte(id.String()+"\n"), 0o600))
		return path
	}
	dataDir := filepath.Join(t.TempDir(), "etcd")
	args := []string{"restore", "--policy-file", s.file(t), "--latest", "--data-dir", dataDir, "-o", "json"}
	o := agent(t, args...)
	require.Equal(t, 2, o.code)
	require.Contains(t, o.stderr, "no identity")
	o = agent(t, append(args, "--identity", key(other))...)
	require.Equal(t, 2, o.code)
	require.Contains(t, o.stderr, "wrong identity")
	require.NotContains(t, o.stderr, other.String())
	require.NoDirExists(t, dataDir)
	right := key(id)
	restored(t, agent(t, append(args, "--identity", right)...))

	s.spec()["clusterUID"] = "two"
	dataDir = filepath.Join(t.TempDir(), "etcd")
	args = []string{"restore", "--policy-file", s.file(t), "--latest", "--data-dir", dataDir, "--identity", right, "-o", "json"}
	o = agent(t, args...)
	require.Equal(t, 2, o.code)
	requireContains(t, o.stderr, "belongs to the cluster with UID one", "--allow-other-cluster")
	require.NoDirExists(t, dataDir)
	restored(t, agent(t, append(args, "--allow-other-cluster")...))
}

func TestRestoreDryRunAndFile(t *testing.T) {
	c := filled(t, etcdtest.Options{}, 100<<10)
	dir := t.TempDir()
	db := filepath.Join(dir, "etcd-snapshot-node1-1700000000")
	require.NoError(t, os.WriteFile(db, realSnapshot(t, c), 0o600))
	target := filepath.Join(dir, "etcd")
	o := agent(t, "restore", "--from", db, "--data-dir", target, "--dry-run")
	require.Zero(t, o.code)
	requireContains(t, o.stdout, "  1. Fetch "+db, "Rename it to "+target, "a dry run changes nothing")
	require.NoDirExists(t, target)

	out := filepath.Join(dir, "out.db")
	o = agent(t, "restore", "--from", db, "--db-file", out)
	require.Zero(t, o.code)
	require.Equal(t, realFile(t, db), realFile(t, out))
	o = agent(t, "restore", "--from", db, "--db-file", out)
	require.Equal(t, 2, o.code)
	require.Contains(t, o.stderr, "is there already")

	for _, tc := range []struct{ distribution, says string }{
		{"k3s", "k3s server --cluster-reset --cluster-reset-restore-path="},
		{"rke2", "systemctl start rke2-server"},
		{"k0s", "--data-dir /var/lib/k0s/etcd"},
		{"kops", "etcd-manager-ctl --backup-store=STORE restore-backup"},
		{"openshift", "cluster-restore.sh /home/core/assets/backup"},
		{"talos", "bootstrap --recover-from="},
		{"kubespray", "systemctl start etcd"},
	} {
		out := filepath.Join(t.TempDir(), "x y.db")
		o := agent(t, "restore", "--from", db, "--distribution", tc.distribution, "--db-file", out)
		require.Zero(t, o.code)
		requireContains(t, o.stdout, tc.says, "'"+out+"'")
		require.FileExists(t, out)
	}
	o = agent(t, "restore", "--from", db, "--distribution", "microk8s")
	require.Equal(t, 2, o.code)
}

func realFile(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return data
}

// TestDBFileOnFullDisk: what is told to do is something that --db-file can do.
func TestDBFileOnFullDisk(t *testing.T) {
	enc, err := zstd.NewWriter(nil)
	require.NoError(t, err)
	stored := filepath.Join(t.TempDir(), "large.db.zst")
	large := append(realSnapshot(t, filled(t, etcdtest.Options{}, 1<<10))[:4096:4096], make([]byte, 4<<20)...)
	require.NoError(t, os.WriteFile(stored, enc.EncodeAll(large, nil), 0o600))
	out := filepath.Join(tmpfs(t, "1m"), "snapshot.db")
	o := agent(t, "restore", "--from", stored, "--db-file", out)
	require.Equal(t, 1, o.code)
	requireContains(t, o.stderr, "not enough room", "choose another file with --db-file")
	require.NotContains(t, o.stderr, "--scratch-dir")
	require.NoFileExists(t, out)
}

func TestRestoreUsage(t *testing.T) {
	name := "etcd-20260102t030405z-k3x7q"
	for args, says := range map[string]string{
		"":                      "say what to restore to",
		"--data-dir x":          "say which snapshot",
		"--data-dir x --latest": "say where the snapshot is",
		"--data-dir x --latest --at 2026-01-01T00:00:00Z -f p":           "exclude each other",
		"--data-dir x --from f --from-dir d":                             "exclude each other",
		"--data-dir x --kubeadm --from f":                                "exclude each other",
		"--data-dir x --abort":                                           "--abort goes with --kubeadm",
		"--data-dir x --alone --from f":                                  "--alone goes with --kubeadm",
		"--kubeadm --abort --from f":                                     "it takes no snapshot",
		"--kubeadm --scratch-dir x --from f":                             "--scratch-dir goes with --plan",
		"--kubeadm --alone --initial-cluster a=b --from f":               "exclude each other",
		"snapshot.db --data-dir x":                                       "is not the name of a snapshot",
		name + " --latest --data-dir x -f p":                             "exclude each other",
		"--data-dir x --at yesterday -f p":                               "is no time like",
		"--data-dir x --from f --mark-compacted=false --bump-revision 5": "go together",
		"--data-dir x --from f --mark-compacted --bump-revision 0":       "go together",
		"--data-dir x --from /nowhere/f":                                 "no such file",
		"--plan m --from -":                                              "no such file",
		"--data-dir x --from f -o yaml":                                  "--output",
		"--extras x":                                                     "say which snapshot",
		"--extras x --data-dir y --from f":                               "exclude each other",
		"--data-dir x --from f --force":                                  "--force goes with --extras",
		"--extras x --from -":                                            "has no extras",
		"--kubeadm --manifests-dir /nowhere":                             "there is no etcd.yaml in /nowhere",
		"--kubeadm --manifests-dir /nowhere --abort":                     "there is no etcd.yaml in /nowhere",
		"a b": "accepts at most 1 arg",
	} {
		o := quietly(t, append([]string{"restore"}, strings.Fields(args)...)...)
		require.Equal(t, 2, o.code, "%s: %s", args, o.stderr)
		require.Contains(t, o.stderr, says, args)
	}
	require.NoDirExists(t, "x")
}

// Every command that is printed for a distribution is one that the program takes. (Those of the documents: ci/docs.)
func TestGuidesCommands(t *testing.T) {
	var text strings.Builder
	for _, d := range restore.Distributions() {
		if d == "kubeadm" {
			continue
		}
		steps, err := restore.Guide(d, "/tmp/a.db", nil)
		require.NoError(t, err)
		text.WriteString(strings.Join(steps, "\n") + "\n")
	}
	commands := regexp.MustCompile("(?m)etcd-snapshot-agent (?:restore|list|verify)[^`\n]*").FindAllString(text.String(), -1)
	require.NotEmpty(t, commands)
	for _, c := range commands {
		words := strings.Fields(c)[1:]
		verb, args, err := cli.NewCommand().Find(words)
		require.NoError(t, err, c)
		require.NoError(t, verb.ParseFlags(args), c)
		require.Less(t, verb.Flags().NArg(), 2, c)
	}
}
