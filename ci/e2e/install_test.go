//go:build e2e

package e2e_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/release"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/ci/e2e"
)

const system = "kube-system" // where releases are, but for those that say otherwise

// The README's first command, and what it promises: a snapshot on the control-plane node's disk, and a row that says so.
// Then the same release's life: helm test, a snapshot on demand, and what is left when it goes.
func TestInstallWithDefaults(t *testing.T) {
	c.Install(t, e2e.Release{Set: []string{"runOnInstall=true"}}) // waits for the hook's Job
	first := c.Finish(t, system, "etcd-snapshot-install")
	require.True(t, first.Succeeded())
	require.Len(t, first.Pods, 1)
	pod := first.Pods[0]

	t.Run("placement", func(t *testing.T) {
		require.Contains(t, c.ControlPlane(t), pod.Spec.NodeName)
		require.Contains(t, pod.Spec.Tolerations, corev1.Toleration{Key: "node-role.kubernetes.io/control-plane", Operator: corev1.TolerationOpExists})
		node := e2e.Get[corev1.Node](t, c, e2e.Nodes, "", pod.Spec.NodeName)
		if c.Own != nil { // a user's kind cluster of one node has no taint
			require.Contains(t, node.Spec.Taints, corev1.Taint{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule})
		}
	})
	t.Run("restricted context", func(t *testing.T) { requireRestricted(t, pod) })

	policy := c.Policy(t, system, "etcd-snapshot")
	require.EqualValues(t, 1, *policy.Status.Snapshots)
	row := c.Rows(t, system, "etcd-snapshot")[policy.Status.LastSnapshot]
	require.Equal(t, pod.Spec.NodeName, row.Spec.Node)
	require.Len(t, row.Status.Destinations, 1)
	require.Equal(t, v1.PhaseStored, row.Status.Destinations[0].Phase)
	require.Equal(t, []string{"newest", "last 1/28"}, row.Status.Destinations[0].KeptBecause)
	require.Contains(t, first.End(t).Message, row.Name)

	// The folder is named after the cluster, and nobody but root may read what is in it.
	folder := c.Folder(t, "/var/lib/etcd-snapshots")
	stat := c.OnNode(t, pod.Spec.NodeName, "stat", "-c", "%a %u %g %n", folder, filepath.Join(folder, row.Name+".db.zst"), filepath.Join(folder, row.Name+".json"))
	require.Equal(t, fmt.Sprintf("700 0 0 %[1]s\n600 0 0 %[1]s/%[2]s.db.zst\n600 0 0 %[1]s/%[2]s.json\n", folder, row.Name), stat)

	t.Run("columns", func(t *testing.T) {
		// As docs/catalog.md shows them.
		columns := func(resource string) (header, first []string) {
			lines := strings.Split(c.Kubectl(t, "get", resource, "-n", system), "\n")
			require.GreaterOrEqual(t, len(lines), 2)
			return strings.Fields(strings.ReplaceAll(lines[0], "LAST SUCCESS", "LAST-SUCCESS")), strings.Fields(lines[1])
		}
		header, first := columns("esp")
		require.Equal(t, strings.Fields("NAME SCHEDULE LAST-SUCCESS SNAPSHOTS SIZE READY VERIFIED AGE"), header)
		require.Equal(t, strings.Fields("etcd-snapshot 0 */6 * * *"), first[:6])
		require.Equal(t, "1", first[7])
		require.Equal(t, []string{"True", "Unknown"}, first[len(first)-3:len(first)-1])
		header, first = columns("esnap")
		require.Equal(t, strings.Fields("NAME POLICY NODE REVISION SIZE STORED DESTINATIONS VERIFIED AGE"), header)
		require.Equal(t, []string{row.Name, "etcd-snapshot", pod.Spec.NodeName, fmt.Sprint(row.Spec.Etcd.Revision)}, first[:4])
		require.Equal(t, "node", first[len(first)-2]) // VERIFIED is empty: it was never tried
	})
	t.Run("helm test", func(t *testing.T) {
		test := action.NewReleaseTesting(c.Helm(t, system))
		test.Namespace, test.Timeout = system, e2e.Timeout
		rel, err := test.Run("etcd-snapshot")
		require.NoError(t, err)
		for _, h := range rel.Hooks {
			if h.Name == "etcd-snapshot-test" {
				require.Equal(t, release.HookPhaseSucceeded, h.LastRun.Phase)
			}
		}
		require.Contains(t, c.Kubectl(t, "logs", "-n", system, "job/etcd-snapshot-test"), "\n0 failed", "the doctor says what it looked at")
	})
	t.Run("on demand", func(t *testing.T) {
		c.RunNow(t, system, "etcd-snapshot")
		require.Len(t, c.Rows(t, system, "etcd-snapshot"), 2)
		require.EqualValues(t, 2, *c.Policy(t, system, "etcd-snapshot").Status.Snapshots)
	})

	// crds.keep: the table outlives the release, and the next one finds it.
	rows := c.Rows(t, system, "etcd-snapshot")
	c.Uninstall(t, e2e.Release{})
	c.AwaitGone(t, e2e.CronJobs, system, "etcd-snapshot")
	require.Equal(t, rows, c.Rows(t, system, "etcd-snapshot"))
	c.Install(t, e2e.Release{})
	c.RunNow(t, system, "etcd-snapshot")
	after := c.Rows(t, system, "etcd-snapshot")
	require.Len(t, after, len(rows)+1)
	for name, row := range rows {
		require.Equal(t, row.UID, after[name].UID)
	}
	require.EqualValues(t, len(after), *c.Policy(t, system, "etcd-snapshot").Status.Snapshots)

	// Without, all goes but the files.
	c.Upgrade(t, e2e.Release{Set: []string{"crds.keep=false"}})
	c.Uninstall(t, e2e.Release{})
	c.AwaitGone(t, e2e.CRDs, "", "etcdsnapshots.etcdsnapshot.dev")
	c.AwaitGone(t, e2e.CRDs, "", "etcdsnapshotpolicies.etcdsnapshot.dev")
	require.Len(t, strings.Fields(c.OnNode(t, pod.Spec.NodeName, "sh", "-c", "ls "+folder+"/*.db.zst")), len(after))
}

// requireRestricted looks at what the container runtime was told, after all defaults: a root without any power but to read
// and write root's files where they are mounted.
func requireRestricted(t *testing.T, pod corev1.Pod) {
	t.Helper()
	id := strings.TrimPrefix(pod.Status.ContainerStatuses[0].ContainerID, "containerd://")
	var info struct {
		Spec struct {
			Process struct {
				User            struct{ UID, GID int }
				Capabilities    map[string][]string
				NoNewPrivileges bool
			}
			Root  struct{ Readonly bool }
			Linux struct {
				Seccomp *struct{ DefaultAction string }
			}
			Mounts []struct {
				Destination, Source string
				Options             []string
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(c.OnNode(t, pod.Spec.NodeName, "ctr", "-n", "k8s.io", "containers", "info", id)), &info))
	process := info.Spec.Process
	require.Zero(t, process.User.UID)
	for set, capabilities := range process.Capabilities {
		require.Empty(t, capabilities, set)
	}
	require.True(t, process.NoNewPrivileges)
	require.True(t, info.Spec.Root.Readonly)
	require.NotNil(t, info.Spec.Linux.Seccomp)
	require.Equal(t, "SCMP_ACT_ERRNO", info.Spec.Linux.Seccomp.DefaultAction)
	var keys []string
	for _, m := range info.Spec.Mounts {
		if strings.HasPrefix(m.Source, "/etc/kubernetes") {
			require.Contains(t, m.Options, "ro", m.Destination)
			keys = append(keys, m.Destination)
		}
	}
	require.ElementsMatch(t, []string{"/etc/kubernetes/pki/etcd/ca.crt", "/etc/kubernetes/pki/apiserver-etcd-client.crt", "/etc/kubernetes/pki/apiserver-etcd-client.key"}, keys, "the pod sees more of the node than it needs")
}

// An upgrade keeps the table. No version was released yet: the previous one is this tree's chart with a lower number.
func TestUpgradeFromThePreviousVersion(t *testing.T) {
	c.Install(t, e2e.Release{Version: "0.0.1", Set: []string{"runOnInstall=true"}})
	before := c.Rows(t, system, "etcd-snapshot")
	require.Len(t, before, 1)
	policy := c.Policy(t, system, "etcd-snapshot")
	require.Equal(t, "etcd-snapshot-0.0.1", e2e.Get[batchv1.CronJob](t, c, e2e.CronJobs, system, "etcd-snapshot").Labels["helm.sh/chart"])

	// It also changes the policy, which until now is what the first run made.
	c.Upgrade(t, e2e.Release{Set: []string{"compression.algorithm=gzip"}})
	require.Equal(t, before, c.Rows(t, system, "etcd-snapshot"))
	upgraded := c.Policy(t, system, "etcd-snapshot")
	require.Equal(t, policy.UID, upgraded.UID)
	require.Equal(t, policy.Status, upgraded.Status)
	c.RunNow(t, system, "etcd-snapshot")
	after := c.Rows(t, system, "etcd-snapshot")
	require.Len(t, after, 2)
	upgraded = c.Policy(t, system, "etcd-snapshot")
	require.Equal(t, v1.CompressionGzip, upgraded.Spec.Compression.Algorithm)
	require.Equal(t, v1.CompressionGzip, after[upgraded.Status.LastSnapshot].Spec.Compression)
	require.NotContains(t, c.Kubectl(t, "get", "cronjobs,serviceaccounts,configmaps,roles,rolebindings", "-n", system, "-l", "app.kubernetes.io/instance=etcd-snapshot", "-o", "yaml"), "etcd-snapshot-0.0.1")
}
