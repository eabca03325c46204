package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcdsnapshot.dev/agent/cli"
	"etcdsnapshot.dev/ci/etcdtest"
	"etcdsnapshot.dev/ci/secrets"
)

// asAgent makes this test binary the agent, for tests that kill it.
const asAgent = "ETCD_SNAPSHOT_TEST_AS_AGENT"

// recordIn is the folder into which such an agent copies what it says.
const recordIn = "ETCD_SNAPSHOT_TEST_RECORD_IN"

func TestMain(m *testing.M) {
	// The level restore starts this program again, which here is the test binary.
	if os.Getenv(asAgent) != "" || len(os.Args) > 1 && os.Args[1] == "verify-drill" {
		ctx, cancel := context.WithCancelCause(context.Background())
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGTERM)
		go func() { cancel(cli.Interrupted{Signal: <-signals}) }()
		stdout, stderr, err := secrets.Recorder(os.Getenv(recordIn), "agent", os.Args[1:], os.Stdout, os.Stderr)
		if err != nil {
			panic(err)
		}
		os.Exit(cli.Run(ctx, os.Args[1:], os.Stdin, stdout, stderr))
	}
	cli.Run(context.Background(), []string{"version"}, strings.NewReader(""), io.Discard, io.Discard) // sets the libraries' loggers, before they log
	records, err := os.MkdirTemp("", "said")
	if err == nil {
		err = os.Setenv(recordIn, records)
	}
	if err != nil {
		panic(err)
	}
	code := m.Run()
	if err := search.Folder("a process", records, func(string) bool { return true }); err != nil {
		panic(err)
	}
	os.RemoveAll(records)
	os.Exit(search.Report(os.Stderr, code))
}

// search looks, when all tests have run, for the secrets that the agent was given in all that it said. What runs the agent
// here and in apiserver_test.go tells it of both, so that a test need not.
var search secrets.Search

// outcome is what a user sees of a run.
type outcome struct {
	code           int
	stdout, stderr string
}

// agent runs a verb in this process.
func agent(t *testing.T, args ...string) outcome {
	t.Helper()
	o := quietly(t, args...)
	t.Logf("etcd-snapshot-agent %s → %d\n%s%s", strings.Join(args, " "), o.code, o.stdout, o.stderr)
	return o
}

// quietly is agent without its output in the test's log.
func quietly(t *testing.T, args ...string) outcome {
	t.Helper()
	search.KeepOf(args)
	args, last := withTerminationLog(t, args)
	var stdout, stderr bytes.Buffer
	code := cli.Run(context.Background(), args, strings.NewReader(""), &stdout, &stderr)
	place := t.Name() + ": etcd-snapshot-agent " + strings.Join(args, " ")
	search.Said(place+", stdout", stdout.String())
	search.Said(place+", stderr", stderr.String())
	if word, err := os.ReadFile(last); err == nil {
		search.Said(place+", termination message", string(word))
	}
	return outcome{code, stdout.String(), stderr.String()}
}

// withTerminationLog gives a run a file for its last word, if it has none.
func withTerminationLog(t *testing.T, args []string) (with []string, file string) {
	t.Helper()
	const flag = "--termination-log"
	if i := slices.Index(args, flag); i >= 0 {
		return args, args[i+1]
	}
	file = filepath.Join(t.TempDir(), "termination-log")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	return append([]string{flag + "=" + file}, args...), file
}

// process runs a verb in a process of its own.
func process(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	search.KeepOf(args)
	args, last := withTerminationLog(t, args)
	t.Cleanup(func() {
		if word, err := os.ReadFile(last); err == nil {
			search.Said(t.Name()+", termination message", string(word))
		}
	})
	cmd := exec.Command(exe, args...)
	cmd.Env = append(os.Environ(), asAgent+"=1")
	cmd.SysProcAttr = dieWithParent()
	return cmd
}

// shipped builds the program as it is shipped: without the race detector, which needs many times the memory.
func shipped(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "etcd-snapshot-agent")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "etcdsnapshot.dev/agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	return program
}

// site is a policy, its destinations and a spool, all in temporary folders.
type site struct {
	dir, spool string
	stores     map[string]string
	policy     map[string]any
}

func newSite(t *testing.T, endpoints []string, destinations ...string) *site {
	t.Helper()
	s := &site{dir: t.TempDir(), stores: map[string]string{}}
	// Of what is stored, all but the snapshots is open to who reads the store.
	t.Cleanup(func() {
		for name, dir := range s.stores {
			require.NoError(t, search.Folder(t.Name()+", store "+name, dir, func(file string) bool { return !strings.Contains(file, ".db") }))
		}
	})
	s.spool = filepath.Join(s.dir, "spool")
	var list []any
	for _, name := range destinations {
		s.stores[name] = filepath.Join(s.dir, name)
		list = append(list, map[string]any{"name": name, "hostPath": map[string]any{"path": s.stores[name]}})
	}
	s.policy = map[string]any{
		"apiVersion": "etcdsnapshot.dev/v1", "kind": "EtcdSnapshotPolicy", "metadata": map[string]any{"name": "etcd"},
		"spec": map[string]any{"clusterName": "prod", "etcd": map[string]any{"endpoints": endpoints}, "destinations": list},
	}
	return s
}

func (s *site) spec() map[string]any { return s.policy["spec"].(map[string]any) }
func (s *site) etcd() map[string]any { return s.spec()["etcd"].(map[string]any) }
func (s *site) destination(i int) map[string]any {
	return s.spec()["destinations"].([]any)[i].(map[string]any)
}

// file writes the policy as it is now.
func (s *site) file(t *testing.T) string {
	t.Helper()
	data, err := json.Marshal(s.policy)
	require.NoError(t, err)
	path := filepath.Join(s.dir, "policy.json")
	require.NoError(t, os.WriteFile(path, data, 0o600))
	return path
}

func (s *site) args(t *testing.T, more ...string) []string {
	return append([]string{"snapshot", "--policy-file", s.file(t), "--spool-dir", s.spool, "--node", "n1", "--dial-timeout", "2s"}, more...)
}

func (s *site) snapshot(t *testing.T, more ...string) outcome { return agent(t, s.args(t, more...)...) }

// listed gives the names that the list verb shows in a destination.
func (s *site) listed(t *testing.T, destination string) []string {
	t.Helper()
	o := agent(t, "list", "--policy-file", s.file(t), "-d", destination, "-o", "name")
	require.Zero(t, o.code, o.stderr)
	return strings.Fields(o.stdout)
}

// nextSecond waits until the next snapshot is newer than the last one by its name, too: names and most stores tell the time
// in whole seconds.
func nextSecond(t *testing.T) {
	t.Helper()
	now := time.Now().Truncate(time.Second)
	require.Eventually(t, func() bool { return time.Now().Truncate(time.Second).After(now) }, 5*time.Second, time.Millisecond)
}

// nothingVisible requires that no file but cluster.json is under the stores, hidden temporary files included, and none in
// the spool.
func (s *site) nothingVisible(t *testing.T) {
	t.Helper()
	for _, dir := range append([]string{s.spool}, mapValues(s.stores)...) {
		require.Empty(t, files(t, dir), "left in %s", dir)
	}
}

func mapValues(m map[string]string) (values []string) {
	for _, v := range m {
		values = append(values, v)
	}
	return values
}

// files gives the paths of all files under dir but cluster.json.
func files(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil
		}
		if err == nil && !d.IsDir() && d.Name() != "cluster.json" {
			found = append(found, path)
		}
		return err
	})
	require.NoError(t, err)
	return found
}

// filled starts one etcd with some data in it.
func filled(t *testing.T, o etcdtest.Options, size int64) *etcdtest.Cluster {
	t.Helper()
	c := etcdtest.Start(t, o)
	c.MustFill(t, size)
	return c
}

func requireContains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		require.Contains(t, text, p)
	}
}

// realSnapshot gives the bytes of a snapshot as etcd itself sends it.
func realSnapshot(t *testing.T, c *etcdtest.Cluster) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "real.db")
	require.NoError(t, c.SaveSnapshot(t.Context(), 0, path))
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return data
}
