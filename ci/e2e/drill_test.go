//go:build e2e

package e2e_test

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/restore"
	"etcdsnapshot.dev/ci/e2e"
	"etcdsnapshot.dev/ci/pictures"
)

var makePictures = flag.Bool("pictures", false, "make the picture of a restore in docs/pictures anew")

// The disaster that all this is for: etcd's data are deleted, an empty etcd comes up in their place, and the cluster forgets
// itself. One command on the node, and all is as it was in the snapshot; and who was watching meanwhile sees it.
func TestDisaster(t *testing.T) {
	needOwn(t)
	d := newDrill(t, c)
	c.Install(t, e2e.Release{Set: []string{"schedule=0 0 1 1 *"}})
	d.begin()
	d.everyKind()
	d.change()
	c.OnNode(t, d.node.Name, "rm", filepath.Join(d.folder, d.first+".json"), filepath.Join(d.folder, d.first+".db.zst"))

	t.Log("the disaster: etcd is killed, its data are deleted, and kubelet starts an empty one")
	c.OnNode(t, d.node.Name, "sh", "-c", "rm -rf /var/lib/etcd && pkill -9 -x etcd")
	d.eventually("the empty etcd answers", func() error {
		out, err := d.node.Exec(t.Context(), etcdctl("get", "/registry/namespaces/drill", "--keys-only")...)
		if err == nil && len(strings.TrimSpace(string(out))) > 0 {
			err = errors.New("it is not empty")
		}
		return err
	})

	start := time.Now()
	restored := d.restore("--kubeadm", "--latest", "--from-dir", d.folder)
	took := time.Since(start)
	_, err := c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(t.Context())
	require.NoError(t, err, "the command is done when the API server is ready")
	t.Logf("from the command to a ready API server: %.1f s (%d keys)", took.Seconds(), restored.Keys)
	require.Equal(t, d.latest, restored.Snapshot)
	d.isBack(restored.RestoredRevision)

	// The table is an old one: it has the row of a snapshot that is gone, and none of the one that was restored.
	rows := c.Rows(t, "kube-system", "etcd-snapshot")
	require.Contains(t, rows, d.first)
	require.NotContains(t, rows, d.latest)
	c.Upgrade(t, e2e.Release{Set: []string{"schedule=* * * * *"}})
	e2e.Await(t, c, e2e.Snapshots, "kube-system", d.latest, func(s *v1.EtcdSnapshot) bool {
		return len(s.Status.Destinations) == 1 && s.Status.Destinations[0].Phase == v1.PhaseStored
	})
	c.AwaitGone(t, e2e.Snapshots, "kube-system", d.first)
	e2e.Await(t, c, e2e.Policies, "kube-system", "etcd-snapshot", func(p *v1.EtcdSnapshotPolicy) bool {
		return p.Status.LastSnapshot > d.latest
	})
	jobs, err := c.Client.BatchV1().Jobs("kube-system").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(jobs.Items, func(j batchv1.Job) bool {
		return strings.HasPrefix(j.Name, "etcd-snapshot-") && !strings.HasPrefix(j.Name, "etcd-snapshot-now-")
	}), "the CronJob's controller made no Job")
	if *makePictures {
		args := " restore --kubeadm --latest --from-dir " + d.folder
		out := c.OnNode(t, d.node.Name, "sh", "-c", e2e.Agent()+args+" 2>&1")
		require.NoError(t, pictures.DrawTerminal("restore.svg", "etcd-snapshot-agent"+args, out))
	}
}

// Three nodes with stacked etcd: the lead goes to another member during a run; one is lost, and replaced without a restore;
// then two lose their data, and all three are restored from one snapshot with the commands of a plan.
func TestDisasterOnThreeNodes(t *testing.T) {
	needOwn(t)
	three, down, err := e2e.Open(t.Context(), 3)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, down()) })
	t.Run("etcd's leader changes", func(t *testing.T) { leaderChanges(t, three) })

	d := newDrill(t, three)
	three.Install(t, e2e.Release{Set: []string{"schedule=0 0 1 1 *", `nodeSelector.kubernetes\.io/hostname=` + d.node.Name}})

	lost := three.Own.Nodes[2]
	t.Log("one member is lost: the power of " + lost.Name + " is cut, and its disk is gone")
	require.NoError(t, lost.Kill())
	require.NoError(t, lost.Erase())
	d.takeSnapshot()
	etcdctl := "kubectl -n kube-system exec etcd-cp1 -- etcdctl --cacert=/etc/kubernetes/pki/etcd/ca.crt --cert=/etc/kubernetes/pki/etcd/peer.crt --key=/etc/kubernetes/pki/etcd/peer.key "
	three.OnNode(t, d.node.Name, "sh", "-c", etcdctl+"member remove $("+etcdctl+"member list | grep ' "+lost.Name+",' | cut -d, -f1)")
	three.Kubectl(t, "delete", "node", lost.Name)
	require.NoError(t, lost.Boot(t.Context()))
	require.NoError(t, lost.Join(t.Context()))
	three.Kubectl(t, "wait", "--for=condition=Ready", "--timeout=5m", "nodes", "--all")
	require.Equal(t, 3, strings.Count(three.OnNode(t, d.node.Name, "sh", "-c", etcdctl+"member list"), ", started, "))

	d.begin()
	for _, n := range three.Own.Nodes[1:] { // every node needs the snapshot; a bucket would do as well
		require.NoError(t, os.MkdirAll(n.Path(d.folder), 0o700))
		for _, name := range []string{"cluster.json", d.latest + ".json", d.latest + ".db.zst"} {
			data, err := os.ReadFile(d.node.Path(filepath.Join(d.folder, name)))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(n.Path(filepath.Join(d.folder, name)), data, 0o600))
		}
	}
	d.change()
	t.Log("the quorum is lost: two of three lose their data")
	for _, n := range three.Own.Nodes[1:] {
		three.OnNode(t, n.Name, "sh", "-c", "rm -rf /var/lib/etcd && pkill -9 -x etcd")
	}

	start := time.Now()
	var plan restore.ClusterPlan
	out := three.OnNode(t, d.node.Name, e2e.Agent(), "restore", "--latest", "--from-dir", d.folder, "--plan", "snapshot", "-o", "json")
	require.NoError(t, json.Unmarshal([]byte(out), &plan))
	require.Equal(t, d.latest, plan.Snapshot)
	require.Len(t, plan.Commands, 3)
	for _, n := range three.Own.Nodes {
		three.OnNode(t, n.Name, "sh", "-c", plan.Stop)
	}
	var restored restore.Result
	for _, member := range plan.Commands {
		out := three.OnNode(t, member.Name, "sh", "-c", "mkdir -p /run/bin && ln -sf "+e2e.Agent()+" /run/bin/etcd-snapshot-agent && PATH=/run/bin:$PATH && "+member.Command+" -o json")
		require.NoError(t, json.Unmarshal([]byte(out), &restored))
	}
	d.eventually("the API server is ready", func() error {
		_, err := three.Client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(t.Context())
		return err
	})
	t.Logf("from the plan to a ready API server: %.1f s (%d keys)", time.Since(start).Seconds(), restored.Keys)
	d.isBack(restored.RestoredRevision)
}

// begin makes the drill's objects, starts to watch, and takes two snapshots.
func (d *drill) begin() {
	d.Helper()
	d.makeObjects()
	for says, port := range map[string]int{"in the snapshot": 9001, "after the snapshot": 9002, "after the restore": 9003} {
		serve(d.T, d.node, port, says)
	}
	d.eventually("kube-proxy knows the Service", func() error { return d.serviceSays("in the snapshot") })
	d.watching = d.watch("drill", configMaps, endpointSlices, e2e.Pods, drills)
	d.first = d.takeSnapshot()
	d.objects = d.list()
	d.latest = d.takeSnapshot()
	d.folder = strings.TrimSpace(d.c.OnNode(d.T, d.node.Name, "sh", "-c", "ls -d /var/lib/etcd-snapshots/*"))
	d.revision = d.restore("--latest", "--from-dir", d.folder, "--db-file", database).Revision
	d.state = d.etcd(d.node, d.revision)
}

// change makes all that the snapshot does not hold.
func (d *drill) change() {
	d.Helper()
	d.c.Kubectl(d.T, "annotate", "-f", objectsFile, "-l", "drill=changed", "lost=true")
	d.c.Kubectl(d.T, "delete", "-f", objectsFile, "-f", kindFile, "-l", "drill in (deleted,kind)")
	d.pointService(9002)
	d.scale(4)
	d.c.Kubectl(d.T, "create", "-n", "drill", "configmap", "lost")
	d.eventually("what was changed has come about", func() error {
		return errors.Join(d.serviceSays("after the snapshot"), d.podsRun("web", 4), d.podsRun("goes", 0), d.watching.inStep())
	})
	d.newest, d.services = d.watching.revisions(), d.processes()
}

// isBack requires that the restored cluster is what the snapshot holds, that all who watched notice, and that they go on.
func (d *drill) isBack(revision int64) {
	d.Helper()
	// To the byte: etcd still knows its state of before anybody wrote.
	for _, n := range d.c.Own.Nodes {
		require.Equal(d, d.state, d.etcd(n, revision), n.Name)
	}
	require.Equal(d, d.objects, d.list())
	_, err := d.c.Client.CoreV1().ConfigMaps("drill").Get(d.Context(), "lost", metav1.GetOptions{})
	require.True(d, apierrors.IsNotFound(err), "%v", err)

	d.eventually("all that watch see what was restored", func() error {
		return errors.Join(d.podsRun("web", 2), d.podsRun("goes", 1), d.nothingElseRuns(), d.serviceSays("in the snapshot"), d.watching.inStep())
	})
	// It ran when the snapshot was taken, and kubelet knows how it ended.
	jobs, err := d.c.Client.BatchV1().Jobs("kube-system").List(d.Context(), metav1.ListOptions{})
	require.NoError(d, err)
	for _, j := range jobs.Items {
		require.True(d, d.c.Finish(d.T, "kube-system", j.Name).Succeeded(), j.Name)
	}
	d.pointService(9003)
	d.scale(3)
	d.c.Kubectl(d.T, "create", "-n", "drill", "configmap", "new")
	d.eventually("all that watch see what is new", func() error {
		return errors.Join(d.podsRun("web", 3), d.nothingElseRuns(), d.serviceSays("after the restore"), d.watching.inStep(), d.watching.has(configMaps, "new"))
	})
	for resource, revision := range d.watching.revisions() {
		require.Greater(d, revision, d.newest[resource], "the revision of %s went back", resource)
	}
	require.Equal(d, d.services, d.processes(), "a service was restarted")
}
