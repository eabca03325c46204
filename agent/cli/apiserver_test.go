package cli_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcdsnapshot.dev/agent/api"
	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/ci/etcdtest"
	"etcdsnapshot.dev/ci/kubetest"
	"etcdsnapshot.dev/ci/parts"
)

// apiServer is a real API server and the policy in it that backs up its own etcd.
type apiServer struct {
	*kubetest.Server
	t          *testing.T
	kubeconfig string
	noted      bool
	site       *site
}

func newAPIServer(t *testing.T) *apiServer {
	t.Helper()
	a := &apiServer{Server: kubetest.New(t), t: t, kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	require.NoError(t, kubetest.WriteKubeconfig(a.kubeconfig, a.Admin(), "kube-system"))
	for _, resource := range []string{v1.PolicyResource, v1.SnapshotResource} {
		crd, err := api.CRD(resource)
		require.NoError(t, err)
		require.NoError(t, a.Apply(t.Context(), "", crd))
	}
	a.site = newSite(t, a.Etcd.Endpoints(), "node")
	certs := a.Etcd.Certs
	a.site.etcd()["caFile"], a.site.etcd()["certFile"], a.site.etcd()["keyFile"] = certs.CAFile, certs.ClientCertFile, certs.ClientKeyFile
	delete(a.site.spec(), "clusterName") // the UID of kube-system then
	a.apply()
	t.Cleanup(func() {
		if !a.noted {
			a.note()
		}
	})
	return a
}

// note notes for search what is in the API server. It is called in the end, and by a test that leaves no API server then.
func (a *apiServer) note() {
	a.t.Helper()
	search.Said(a.t.Name()+", the API server's objects", a.kubectl("get", "esp,esnap,events", "-A", "-o", "json", "--show-managed-fields"))
	a.noted = true
}

// apply writes the policy to the API server as it is now.
func (a *apiServer) apply() {
	a.t.Helper()
	search.KeepIn("policy", a.site.policy)
	data, err := json.Marshal(a.site.policy)
	require.NoError(a.t, err)
	require.NoError(a.t, a.Apply(a.t.Context(), "kube-system", data))
}

func (a *apiServer) kubectl(args ...string) string {
	a.t.Helper()
	cmd := exec.Command(filepath.Join(parts.Require(a.t, "kubernetes"), "kubectl"), append([]string{"--kubeconfig", a.kubeconfig, "-n", "kube-system"}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(a.t, err, "kubectl %s: %s", strings.Join(args, " "), &stderr)
	return strings.TrimSpace(string(out))
}

// agent runs a verb as the CronJob's pod does: a process of its own that reads its policy from the API server.
func (a *apiServer) agent(verb string, more ...string) outcome {
	a.t.Helper()
	args := append([]string{verb, "--kubeconfig", a.kubeconfig, "--policy", "etcd"}, more...)
	if verb == "snapshot" {
		args = append(args[:len(args):len(args)], "--spool-dir", a.site.spool, "--schedule", "0 */6 * * *")
	}
	cmd := process(a.t, args...)
	cmd.Env = append(cmd.Env, "NODE_NAME=n1")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run() // the exit code tells
	a.t.Logf("etcd-snapshot-agent %s → %d\n%s%s", strings.Join(args, " "), cmd.ProcessState.ExitCode(), &stdout, &stderr)
	return outcome{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// TestAgainstAPIServer backs up the etcd of the API server that the policy is read from, and compares what people see.
func TestAgainstAPIServer(t *testing.T) {
	a := newAPIServer(t)
	uid := a.kubectl("get", "namespace", "kube-system", "-o", "jsonpath={.metadata.uid}")

	o := a.agent("snapshot")
	require.Zero(t, o.code, o.stderr)
	require.Contains(t, o.stdout, "/"+uid+"/etcd-", "the cluster's folder is named by its UID")
	a.kubectl("wait", "--for=condition=Ready", "esp/etcd", "--timeout=1s")
	policies := strings.Fields(a.kubectl("get", "esp"))
	require.Equal(t, []string{"NAME", "SCHEDULE", "LAST", "SUCCESS", "SNAPSHOTS", "SIZE", "READY", "VERIFIED", "AGE"}, policies[:9])
	requireContains(t, a.kubectl("get", "esp"), "0 */6 * * *", "True")
	rows := a.kubectl("get", "esnap")
	require.Equal(t, []string{"NAME", "POLICY", "NODE", "REVISION", "SIZE", "STORED", "DESTINATIONS", "VERIFIED", "AGE"}, strings.Fields(rows)[:9])
	requireContains(t, rows, "etcd", "n1", "node", "KiB")
	t.Logf("\n%s\n\n%s", a.kubectl("get", "esp"), rows)
	// What alerts are derived of is there after the first run, of the run's own flags, files and snapshot.
	status := func(path string) string { return a.kubectl("get", "esp", "etcd", "-o", "jsonpath={.status."+path+"}") }
	require.Equal(t, "21600", status("scheduleIntervalSeconds"))
	require.Equal(t, "Succeeded", status("lastResult"))
	require.Equal(t, a.Etcd.Certs.CAFile+" "+a.Etcd.Certs.ClientCertFile, status("certificates[*].file"))
	for _, expiry := range strings.Fields(status("certificates[*].notAfter")) {
		at, err := time.Parse(time.RFC3339, expiry)
		require.NoError(t, err)
		require.True(t, at.After(time.Now()), "%s", expiry)
	}
	require.Equal(t, "hostPath true false", status("destinations[0].backend")+" "+status("destinations[0].required")+" "+status("destinations[0].retention"))
	for _, path := range []string{"lastDurationSeconds", "databaseBytes", "storedBytes", "revision", "destinations[0].lastSuccessTime"} {
		require.NotEmpty(t, status(path), path)
	}
	o = a.agent("status")
	require.Equal(t, 1, o.code, "the certificates of this etcd are for a test")
	requireContains(t, o.stdout, "WARNING  kube-system/etcd", "certificate "+a.Etcd.Certs.CAFile+" expires in", "LAST GOOD", "never", "hostPath", "keeps everything")
	first := a.kubectl("get", "esnap", "-o", "jsonpath={.items[0].metadata.name}")
	require.Equal(t, first, strings.TrimSpace(a.agent("list", "-o", "name").stdout))

	t.Run("rows follow the store", func(t *testing.T) {
		// Rows lost, as after a restore of an older etcd; then data removed by hand.
		a.kubectl("delete", "esnap", "--all")
		require.Zero(t, a.agent("snapshot").code)
		require.Len(t, strings.Fields(a.kubectl("get", "esnap", "-o", "name")), 2)
		for _, f := range files(t, a.site.stores["node"]) {
			if strings.Contains(f, first) {
				require.NoError(t, os.Remove(f))
			}
		}
		require.Zero(t, a.agent("snapshot").code)
		names := a.kubectl("get", "esnap", "-o", "name")
		require.NotContains(t, names, first)
		require.Len(t, strings.Fields(names), 2)
	})
	t.Run("retention", func(t *testing.T) {
		a.site.destination(0)["retention"] = map[string]any{"last": 1}
		a.apply()
		require.Zero(t, a.agent("prune", "--dry-run").code)
		require.Len(t, strings.Fields(a.kubectl("get", "esnap", "-o", "name")), 2)
		require.Zero(t, a.agent("snapshot").code)
		require.Len(t, strings.Fields(a.kubectl("get", "esnap", "-o", "name")), 1)
		require.Contains(t, a.kubectl("get", "esnap", "-o", "jsonpath={.items[0].status.destinations[0].keptBecause}"), "newest")
		require.Equal(t, "true 2", status("destinations[0].retention")+" "+status("destinations[0].lastPruned"))
		require.NotEmpty(t, status("destinations[0].lastPruneTime"))
		require.NotEmpty(t, status("previousRevision"))
		requireContains(t, a.kubectl("get", "events"), "SnapshotStored", "SnapshotsPruned")
	})
	t.Run("other nodes' disks", func(t *testing.T) {
		disk := a.site.destination(0)["hostPath"]
		a.site.destination(0)["hostPath"] = map[string]any{"path": filepath.Join(a.site.dir, "disk-of-n2")}
		a.apply()
		require.Zero(t, a.agent("snapshot", "--node", "n2").code)
		a.site.destination(0)["hostPath"] = disk
		a.apply()
		o := a.agent("list")
		require.Zero(t, o.code)
		requireContains(t, o.stdout, "node (n2)", "VERIFIED", "KEPT BECAUSE")
		require.Zero(t, a.agent("snapshot").code)
		require.Contains(t, a.kubectl("get", "esnap"), "n2", "the row of a disk that cannot be seen from here is left alone")
		require.Contains(t, a.agent("list").stdout, "node (n2)")
	})
	t.Run("read back whole is verified", func(t *testing.T) {
		a.site.spec()["verification"] = map[string]any{"afterStore": "full"}
		a.apply()
		require.Zero(t, a.agent("snapshot").code)
		a.kubectl("wait", "--for=condition=Verified", "esp/etcd", "--timeout=1s")
		require.Contains(t, a.agent("list").stdout, "checksum")
		require.Equal(t, "checksum Passed", status("verifications[0].level")+" "+status("verifications[0].result"))
		require.Equal(t, status("lastSnapshot"), status("verifications[0].passedSnapshot"))
		delete(a.site.spec(), "verification")
		a.apply()
	})
	t.Run("a failed run tells why", func(t *testing.T) {
		good := a.site.etcd()["endpoints"]
		a.site.etcd()["endpoints"] = []string{"https://127.0.0.1:1"}
		a.apply()
		require.Equal(t, 1, a.agent("snapshot", "--dial-timeout", "1s").code)
		ready := a.kubectl("get", "esp", "etcd", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")]}`)
		requireContains(t, ready, "False", "SnapshotFailed", "connection refused")
		require.Equal(t, "1 Failed", status("consecutiveFailures")+" "+status("lastResult"))
		unsafe := a.agent("status", "-o", "json")
		require.Equal(t, 1, unsafe.code)
		requireContains(t, unsafe.stdout, `"severity": "WARNING"`, "the last run failed (1 in a row did)", `"nextRun": "20`)
		requireContains(t, a.kubectl("get", "events"), "SnapshotFailed")
		a.site.etcd()["endpoints"] = good
		a.apply()
		require.Zero(t, a.agent("snapshot").code)
		require.Equal(t, "0 Succeeded", status("consecutiveFailures")+" "+status("lastResult"))
	})
	t.Run("metrics are handed over", func(t *testing.T) {
		// One place takes them, another is not there: the run is none the worse for it.
		dir := t.TempDir()
		a.site.spec()["metrics"] = map[string]any{"textfile": map[string]any{"directory": dir}, "pushgateway": map[string]any{"url": "http://127.0.0.1:1"}}
		a.apply()
		o := a.agent("snapshot", "--metrics-timeout", "1s")
		require.Zero(t, o.code, o.stderr)
		requireContains(t, o.stderr, "metrics were not handed over", "metrics.pushgateway: ", "connection refused", "check url")
		file := filepath.Join(dir, "etcd-snapshot_kube-system_etcd.prom")
		text := func() string {
			data, err := os.ReadFile(file)
			require.NoError(t, err)
			return string(data)
		}
		const labels = `{namespace="kube-system",policy="etcd"} `
		first := text()
		requireContains(t, first, "etcd_snapshot_schedule_interval_seconds"+labels+"21600\n", "etcd_snapshot_consecutive_failures"+labels+"0\n",
			`etcd_snapshot_last_run_result{namespace="kube-system",policy="etcd",result="Succeeded"} 1`,
			`etcd_snapshot_last_verification_result{level="checksum",namespace="kube-system",policy="etcd",result="Passed"} 1`,
			`etcd_snapshot_certificate_expiration_timestamp_seconds{file="`+a.Etcd.Certs.CAFile)
		previous := status("previousRevision")
		require.NotEmpty(t, previous)
		require.Contains(t, first, `last_snapshot="`+status("lastSnapshot")+`"`)

		require.Zero(t, a.agent("verify", "--metrics-timeout", "1s", "--scratch-dir", t.TempDir()).code)
		verified := text()
		require.Contains(t, verified, `etcd_snapshot_last_verification_result{level="database",namespace="kube-system",policy="etcd",result="Passed"} 1`)
		require.Contains(t, verified, `etcd_snapshot_last_run_result{namespace="kube-system",policy="etcd",result="Succeeded"} 1`)
		require.NoError(t, os.Remove(file))
		require.Zero(t, a.agent("prune", "--dry-run").code)
		require.NoFileExists(t, file, "nothing was done")
		require.Zero(t, a.agent("prune", "--metrics-timeout", "1s").code)
		requireContains(t, text(), `etcd_snapshot_destination_snapshots{destination="node",namespace="kube-system",policy="etcd"} `+status("destinations[0].snapshots")+"\n",
			`etcd_snapshot_destination_last_pruned_snapshots{destination="node",namespace="kube-system",policy="etcd"} `+status("destinations[0].lastPruned")+"\n",
			`etcd_snapshot_last_run_result{namespace="kube-system",policy="etcd",result="Succeeded"} 1`)

		good := a.site.etcd()["endpoints"]
		a.site.etcd()["endpoints"] = []string{"https://127.0.0.1:1"}
		a.apply()
		require.Equal(t, 1, a.agent("snapshot", "--dial-timeout", "1s", "--metrics-timeout", "1s").code)
		requireContains(t, text(), "etcd_snapshot_consecutive_failures"+labels+"1\n", `result="Failed"} 1`)
		a.site.etcd()["endpoints"] = good
		delete(a.site.spec(), "metrics")
		a.apply()
		require.Zero(t, a.agent("snapshot").code)
	})
	t.Run("no such policy", func(t *testing.T) {
		require.Equal(t, 3, agent(t, "status", "--kubeconfig", a.kubeconfig, "--policy", "nope").code, "UNKNOWN")
		o := agent(t, "snapshot", "--kubeconfig", a.kubeconfig, "--policy", "nope")
		require.Equal(t, 2, o.code)
		requireContains(t, lastLine(o.stderr), "nope", "kube-system")
	})
	t.Run("what kubectl prints is a policy file", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "policy.yaml")
		require.NoError(t, os.WriteFile(file, []byte(a.kubectl("get", "esp", "etcd", "-o", "yaml")), 0o600))
		o := agent(t, "list", "--policy-file", file, "-o", "name")
		require.Zero(t, o.code, o.stderr)
		require.NotEmpty(t, o.stdout, "its status says which folder is this cluster's")
		a.kubectl("delete", "esp", "etcd")
		a.apply()
		require.NoError(t, os.WriteFile(file, []byte(a.kubectl("get", "esp", "etcd", "-o", "yaml")), 0o600))
		o = agent(t, "list", "--policy-file", file)
		require.Equal(t, 2, o.code, "before the first run nobody knows")
		requireContains(t, o.stderr, "spec.clusterName", "status")
		o = agent(t, "list", "--policy-file", file, "--kubeconfig", a.kubeconfig)
		require.Zero(t, o.code, o.stderr)
		require.Zero(t, a.agent("snapshot").code)
	})
	t.Run("the API server goes away in the middle", func(t *testing.T) {
		// The stream stalls in a proxy until the API server is dead; then the run goes on.
		proxy := etcdtest.StartProxy(t, a.Etcd.Members[0].ClientURL)
		proxy.StallAfter(64 << 10)
		good := a.site.etcd()["endpoints"]
		a.site.etcd()["endpoints"] = []string{proxy.URL()}
		delete(a.site.destination(0), "retention")
		a.apply()
		before := strings.Fields(a.agent("list", "-o", "name").stdout)
		cmd := process(t, "snapshot", "--kubeconfig", a.kubeconfig, "--policy", "etcd", "--spool-dir", a.site.spool, "--node", "n1", "--catalog-timeout", "3s")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		require.NoError(t, cmd.Start())
		require.Eventually(t, func() bool { return len(files(t, a.site.spool)) == 1 }, 30*time.Second, 10*time.Millisecond)
		require.NoError(t, a.Kill())
		proxy.Pass()
		require.NoError(t, cmd.Wait(), "%s", &stderr)
		require.Contains(t, stderr.String(), "the catalog is not up to date")
		require.NoError(t, a.Restart(t.Context()))
		a.site.etcd()["endpoints"] = good
		a.apply()
		require.Len(t, strings.Fields(a.agent("list", "-o", "name").stdout), len(before)+1)
		require.Zero(t, a.agent("snapshot").code)
		require.Len(t, strings.Fields(a.kubectl("get", "esnap", "-o", "name")), len(before)+2, "the next run heals the table")
	})
	t.Run("the API server goes away", func(t *testing.T) {
		cmd := process(t, "snapshot", "--kubeconfig", a.kubeconfig, "--policy", "etcd", "--spool-dir", a.site.spool, "--node", "n1", "--log-format", "json")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		require.NoError(t, a.Kill())
		begin := time.Now()
		require.NoError(t, cmd.Start())
		err := cmd.Wait()
		require.Error(t, err, "the policy cannot be read")
		require.Equal(t, 1, cmd.ProcessState.ExitCode())
		requireContains(t, lastLine(stderr.String()), "connection refused", "--policy-file")
		require.Less(t, time.Since(begin), time.Minute)
		require.NoError(t, a.Restart(t.Context()))
	})
}
