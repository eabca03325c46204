//go:build e2e

package e2e_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/ci/e2e"
)

// The README's first command, and what it promises: a snapshot on the control-plane node's disk, and a row that says so.
func TestInstallWithDefaults(t *testing.T) {
	c.Install(t, e2e.Release{Set: []string{"runOnInstall=true"}}) // waits for the hook's Job
	job, err := c.Client.BatchV1().Jobs("kube-system").Get(t.Context(), "etcd-snapshot-install", metav1.GetOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 1, job.Status.Succeeded)

	pods, err := c.Client.CoreV1().Pods("kube-system").List(t.Context(), metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=" + job.Name})
	require.NoError(t, err)
	require.Len(t, pods.Items, 1)
	pod := pods.Items[0]
	require.Equal(t, corev1.PodSucceeded, pod.Status.Phase)
	require.Contains(t, c.ControlPlane(t), pod.Spec.NodeName)

	policy := e2e.Await(t, c, e2e.Policies, "kube-system", "etcd-snapshot", func(p *v1.EtcdSnapshotPolicy) bool { return p.Status.LastSuccessTime != nil })
	require.EqualValues(t, 1, *policy.Status.Snapshots)
	row := e2e.Await(t, c, e2e.Snapshots, "kube-system", policy.Status.LastSnapshot, func(*v1.EtcdSnapshot) bool { return true })
	require.Equal(t, pod.Spec.NodeName, row.Spec.Node)
	require.Len(t, row.Status.Destinations, 1)
	require.Equal(t, v1.PhaseStored, row.Status.Destinations[0].Phase)
	require.Contains(t, pod.Status.ContainerStatuses[0].State.Terminated.Message, row.Name)

	// The folder is named after the cluster, and nobody but root may read what is in it.
	system, err := c.Client.CoreV1().Namespaces().Get(t.Context(), "kube-system", metav1.GetOptions{})
	require.NoError(t, err)
	folder := filepath.Join("/var/lib/etcd-snapshots", string(system.UID))
	stat := c.OnNode(t, pod.Spec.NodeName, "stat", "-c", "%a %u %g %n", folder, filepath.Join(folder, row.Name+".db.zst"), filepath.Join(folder, row.Name+".json"))
	require.Equal(t, fmt.Sprintf("700 0 0 %[1]s\n600 0 0 %[1]s/%[2]s.db.zst\n600 0 0 %[1]s/%[2]s.json\n", folder, row.Name), stat)

	columns := func(resource string) (header, first []string) {
		lines := strings.Split(c.Kubectl(t, "get", resource, "-n", "kube-system"), "\n")
		require.GreaterOrEqual(t, len(lines), 2)
		return strings.Fields(strings.ReplaceAll(lines[0], "LAST SUCCESS", "LAST-SUCCESS")), strings.Fields(lines[1])
	}
	header, _ := columns("esp")
	require.Equal(t, strings.Fields("NAME SCHEDULE LAST-SUCCESS SNAPSHOTS SIZE READY VERIFIED AGE"), header)
	header, first := columns("esnap")
	require.Equal(t, strings.Fields("NAME POLICY NODE REVISION SIZE STORED DESTINATIONS VERIFIED AGE"), header)
	require.Equal(t, []string{row.Name, "etcd-snapshot", pod.Spec.NodeName}, first[:3])
}
