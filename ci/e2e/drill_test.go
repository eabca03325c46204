//go:build e2e

package e2e_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/restore"
	"etcdsnapshot.dev/ci/cluster"
	"etcdsnapshot.dev/ci/e2e"
)

// The disaster that all this is for: etcd's data are deleted, an empty etcd comes up in their place, and the cluster forgets
// itself. One command on the node, and all is as it was in the snapshot; and who was watching meanwhile sees it.
func TestDisaster(t *testing.T) {
	if c.Own == nil {
		if os.Getenv("CI") != "" {
			t.Fatal("the drill needs a cluster of ci/cluster")
		}
		t.Skip("the drill destroys etcd: it does that to a cluster of ci/cluster only")
	}
	node := c.Own.Nodes[0]
	d := &drill{T: t, node: node}
	t.Cleanup(func() {
		_, err := node.Exec(context.Background(), "sh", "-c", "rm -rf /var/lib/etcd.before-restore-* "+database)
		require.NoError(t, err)
	})
	c.Install(t, e2e.Release{Set: []string{"schedule=0 0 1 1 *"}})
	d.makeObjects()
	listeners := map[string]int{"in the snapshot": 9001, "after the snapshot": 9002, "after the restore": 9003}
	for says, port := range listeners {
		serve(t, node, port, says)
	}
	d.eventually("kube-proxy knows the Service", d.serviceSays("in the snapshot"))
	watching := d.watch("drill", configMaps, endpointSlices, e2e.Pods, drills)

	first := takeSnapshot(t, "first")
	before := d.objects()
	d.everyKind()
	latest := takeSnapshot(t, "latest")
	folder := d.folder()
	proven := d.restore("--latest", "--from-dir", folder, "--db-file", database)
	snapshot := d.etcd(proven.Revision)

	// More changes: all that the snapshot does not hold.
	c.Kubectl(t, "annotate", "-f", objectsFile, "-l", "drill=changed", "lost=true")
	c.Kubectl(t, "delete", "-f", objectsFile, "-f", kindFile, "-l", "drill in (deleted,kind)")
	d.pointService(9002)
	d.scale(4)
	c.Kubectl(t, "create", "-n", "drill", "configmap", "lost")
	c.OnNode(t, node.Name, "rm", filepath.Join(folder, first+".json"), filepath.Join(folder, first+".db.zst"))
	d.eventually("what was changed has come about", func() error {
		return errors.Join(d.serviceSays("after the snapshot")(), d.podsRun("web", 4), d.podsRun("goes", 0), watching.inStep())
	})
	newest, services := watching.revisions(), d.services()

	t.Log("the disaster: etcd is killed, its data are deleted, and kubelet starts an empty one")
	c.OnNode(t, node.Name, "sh", "-c", "rm -rf /var/lib/etcd && pkill -9 -x etcd")
	d.eventually("the empty etcd answers", func() error {
		out, err := node.Exec(t.Context(), etcdctl("get", "/registry/namespaces/drill", "--keys-only")...)
		if err == nil && len(strings.TrimSpace(string(out))) > 0 {
			err = errors.New("it is not empty")
		}
		return err
	})

	start := time.Now()
	restored := d.restore("--kubeadm", "--latest", "--from-dir", folder)
	took := time.Since(start)
	_, err := c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(t.Context())
	require.NoError(t, err, "the command is done when the API server is ready")
	t.Logf("from the command to a ready API server: %.1f s (%d keys)", took.Seconds(), restored.Keys)
	require.Equal(t, latest, restored.Snapshot)

	// State equals the snapshot's, to the byte. etcd still knows it as it was before anybody wrote.
	require.Equal(t, snapshot, d.etcd(restored.RestoredRevision))
	require.Equal(t, before, d.objects())
	_, err = c.Client.CoreV1().ConfigMaps("drill").Get(t.Context(), "lost", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)

	// Kubelet, kube-proxy and our informers, none of which were restarted, go back with it.
	d.eventually("all that watch see what was restored", func() error {
		return errors.Join(d.podsRun("web", 2), d.podsRun("goes", 1), d.nothingElseRuns(), d.serviceSays("in the snapshot")(), watching.inStep())
	})
	e2e.Await(t, c, e2e.Jobs, "kube-system", "latest", func(j *batchv1.Job) bool { return j.Status.Succeeded == 1 }) // it ran when the snapshot was taken
	// And they go on from there.
	d.pointService(9003)
	d.scale(3)
	c.Kubectl(t, "create", "-n", "drill", "configmap", "new")
	d.eventually("all that watch see what is new", func() error {
		return errors.Join(d.podsRun("web", 3), d.nothingElseRuns(), d.serviceSays("after the restore")(), watching.inStep(), watching.has(configMaps, "new"))
	})
	for resource, revision := range watching.revisions() {
		require.Greater(t, revision, newest[resource], "the revision of %s went back", resource)
	}
	require.Equal(t, services, d.services(), "a service was restarted")

	// The table is an old one: it has the row of a snapshot that is gone, and none of the one that was restored.
	_, err = c.Dynamic.Resource(e2e.Snapshots).Namespace("kube-system").Get(t.Context(), first, metav1.GetOptions{})
	require.NoError(t, err)
	_, err = c.Dynamic.Resource(e2e.Snapshots).Namespace("kube-system").Get(t.Context(), latest, metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	c.Upgrade(t, e2e.Release{Set: []string{"schedule=* * * * *"}})
	e2e.Await(t, c, e2e.Snapshots, "kube-system", latest, func(s *v1.EtcdSnapshot) bool {
		return len(s.Status.Destinations) == 1 && s.Status.Destinations[0].Phase == v1.PhaseStored
	})
	c.AwaitGone(t, e2e.Snapshots, "kube-system", first)
	policy := e2e.Await(t, c, e2e.Policies, "kube-system", "etcd-snapshot", func(p *v1.EtcdSnapshotPolicy) bool {
		return p.Status.LastSnapshot > latest
	})
	jobs, err := c.Client.BatchV1().Jobs("kube-system").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(jobs.Items, func(j batchv1.Job) bool { return strings.HasPrefix(j.Name, "etcd-snapshot-") }), "the CronJob's controller made no Job")
	require.EqualValues(t, 2, *policy.Status.Snapshots)
}

const (
	database    = "/var/lib/root/drill.db"
	kindFile    = "testdata/drill/kind.yaml"
	objectsFile = "testdata/drill/objects.yaml"
)

var (
	configMaps     = corev1.SchemeGroupVersion.WithResource("configmaps")
	endpointSlices = schema.GroupVersionResource{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}
	drills         = schema.GroupVersionResource{Group: "e2e.test", Version: "v1", Resource: "drills"}
)

// drill is a disaster drill on a node.
type drill struct {
	*testing.T
	node *cluster.Node
}

// eventually polls until an attempt gives no error.
func (d *drill) eventually(what string, try func() error) {
	d.Helper()
	var last error
	err := wait.PollUntilContextTimeout(d.Context(), 250*time.Millisecond, e2e.Timeout, true, func(context.Context) (bool, error) {
		last = try()
		return last == nil, nil
	})
	if err != nil {
		d.Fatalf("%s: %v: %v\n%s", what, err, last, c.Describe("drill"))
	}
}

func (d *drill) makeObjects() {
	d.Cleanup(func() { c.Kubectl(d.T, "delete", "-f", objectsFile, "-f", kindFile, "--ignore-not-found") })
	c.Kubectl(d.T, "create", "-f", kindFile)
	c.Kubectl(d.T, "wait", "--for=condition=Established", "--timeout=5m", "-f", kindFile)
	c.Kubectl(d.T, "create", "-f", objectsFile)
	c.Kubectl(d.T, "wait", "--for=jsonpath={.status.phase}=Bound", "--timeout=5m", "-n", "drill", "pvc/claim")
	d.eventually("the pods run", func() error { return errors.Join(d.podsRun("web", 2), d.podsRun("goes", 1)) })
}

// objects gives the drill's objects, without what their controllers write.
func (d *drill) objects() string {
	d.Helper()
	list := &unstructured.UnstructuredList{}
	require.NoError(d, json.Unmarshal([]byte(c.Kubectl(d.T, "get", "-f", objectsFile, "-f", kindFile, "-o", "json")), list))
	for _, o := range list.Items {
		delete(o.Object, "status")
		unstructured.RemoveNestedField(o.Object, "metadata", "managedFields")
		unstructured.RemoveNestedField(o.Object, "metadata", "resourceVersion")
	}
	text, err := json.MarshalIndent(list, "", " ")
	require.NoError(d, err)
	return string(text)
}

// everyKind fails if there is a kind that the cluster has no object of: then it is missing in objects.yaml.
func (d *drill) everyKind() {
	d.Helper()
	lists, err := c.Client.Discovery().ServerPreferredResources()
	require.NoError(d, err)
	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list"}}, lists) {
		for _, r := range list.APIResources {
			gv, err := schema.ParseGroupVersion(list.GroupVersion)
			require.NoError(d, err)
			objects, err := c.Dynamic.Resource(gv.WithResource(r.Name)).List(d.Context(), metav1.ListOptions{Limit: 1})
			require.NoError(d, err)
			require.NotEmpty(d, objects.Items, "%s.%s", r.Name, gv.Group)
		}
	}
}

// takeSnapshot takes a snapshot as the README says, and gives its name.
func takeSnapshot(t *testing.T, job string) string {
	t.Helper()
	c.Kubectl(t, "-n", "kube-system", "create", "job", "--from=cronjob/etcd-snapshot", job)
	e2e.Await(t, c, e2e.Jobs, "kube-system", job, func(j *batchv1.Job) bool { return j.Status.Succeeded == 1 })
	policy := e2e.Await(t, c, e2e.Policies, "kube-system", "etcd-snapshot", func(p *v1.EtcdSnapshotPolicy) bool { return p.Status.LastSnapshot != "" })
	return policy.Status.LastSnapshot
}

// folder is where the chart's default stores the snapshots.
func (d *drill) folder() string {
	d.Helper()
	return strings.TrimSpace(c.OnNode(d.T, d.node.Name, "sh", "-c", "ls -d /var/lib/etcd-snapshots/*"))
}

// restore runs the agent's restore on the node.
func (d *drill) restore(args ...string) *restore.Result {
	d.Helper()
	out := c.OnNode(d.T, d.node.Name, append([]string{e2e.Agent(), "restore", "-o", "json"}, args...)...)
	res := &restore.Result{}
	require.NoError(d, json.Unmarshal([]byte(out), res))
	return res
}

func etcdctl(args ...string) []string {
	const pki = "/etc/kubernetes/pki/etcd/"
	return append([]string{"etcdctl", "--endpoints=https://127.0.0.1:2379", "--cacert=" + pki + "ca.crt",
		"--cert=" + pki + "healthcheck-client.crt", "--key=" + pki + "healthcheck-client.key"}, args...)
}

// etcd gives all that etcd has at a revision, by key.
func (d *drill) etcd(revision int64) map[string]string {
	d.Helper()
	out := c.OnNode(d.T, d.node.Name, etcdctl("get", "", "--from-key", "--rev="+strconv.FormatInt(revision, 10), "-w", "json")...)
	var reply struct {
		KVs []json.RawMessage `json:"kvs"`
	}
	require.NoError(d, json.Unmarshal([]byte(out), &reply))
	all := map[string]string{}
	for _, kv := range reply.KVs {
		var key struct {
			Key string `json:"key"`
		}
		require.NoError(d, json.Unmarshal(kv, &key))
		name, err := base64.StdEncoding.DecodeString(key.Key)
		require.NoError(d, err)
		all[string(name)] = string(kv)
	}
	require.Greater(d, len(all), 100)
	return all
}

func (d *drill) scale(replicas int) {
	d.Helper()
	c.Kubectl(d.T, "scale", "-n", "drill", "deployment/web", "--replicas", strconv.Itoa(replicas))
}

// podsRun tells that so many pods of an app are ready, and that the Service's EndpointSlice says the same.
func (d *drill) podsRun(app string, count int) error {
	pods, err := c.Client.CoreV1().Pods("drill").List(d.Context(), metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		return err
	}
	ready := map[string]bool{}
	for _, p := range pods.Items {
		if p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning && p.Status.ContainerStatuses[0].Ready {
			ready[p.Status.PodIP] = true
		}
	}
	if len(ready) != count || len(pods.Items) != count {
		return fmt.Errorf("%d of %d pods of %s are ready, and should be %d", len(ready), len(pods.Items), app, count)
	}
	if app != "web" {
		return nil
	}
	slices, err := c.Client.DiscoveryV1().EndpointSlices("drill").List(d.Context(), metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=web"})
	if err != nil {
		return err
	}
	found := 0
	for _, s := range slices.Items {
		for _, e := range s.Endpoints {
			if *e.Conditions.Ready && ready[e.Addresses[0]] {
				found++
			}
		}
	}
	if found != count {
		return fmt.Errorf("%d endpoints of web are right, of %d", found, count)
	}
	return nil
}

// nothingElseRuns tells that containerd runs the containers that the API server tells of, and no others.
func (d *drill) nothingElseRuns() error {
	pods, err := c.Client.CoreV1().Pods("").List(d.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + d.node.Name})
	if err != nil {
		return err
	}
	out, err := d.node.Exec(d.Context(), "sh", "-c", "ctr -n k8s.io tasks list | awk '$3 == \"RUNNING\" {print $1}'")
	if err != nil {
		return err
	}
	running := strings.Fields(string(out))
	want := 0
	for _, p := range pods.Items {
		if p.Status.Phase != corev1.PodRunning {
			continue
		}
		want++ // its sandbox
		for _, s := range p.Status.ContainerStatuses {
			want++
			_, id, _ := strings.Cut(s.ContainerID, "//")
			if !slices.Contains(running, id) {
				return fmt.Errorf("%s/%s: its container %q does not run", p.Namespace, p.Name, id)
			}
		}
	}
	if want != len(running) {
		return fmt.Errorf("%d containers run, and should be %d", len(running), want)
	}
	return nil
}

// serve answers every connection to a port of the node with a text.
func serve(t *testing.T, node *cluster.Node, port int, says string) {
	l, err := node.Listen(net.JoinHostPort(node.Address, strconv.Itoa(port)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed
			}
			_, _ = io.WriteString(conn, says) // who asked sees what is missing
			_ = conn.Close()
		}
	}()
}

// pointService leads the Service outside elsewhere.
func (d *drill) pointService(port int) {
	d.Helper()
	patch := fmt.Sprintf(`[{"op": "replace", "path": "/ports/0/port", "value": %d}]`, port)
	_, err := c.Client.DiscoveryV1().EndpointSlices("drill").Patch(d.Context(), "outside", types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
	require.NoError(d, err)
}

// serviceSays tells where the Service outside leads: kube-proxy's word.
func (d *drill) serviceSays(want string) func() error {
	return func() error {
		service, err := c.Client.CoreV1().Services("drill").Get(d.Context(), "outside", metav1.GetOptions{})
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(d.Context(), 5*time.Second)
		defer cancel()
		conn, err := d.node.Dial(ctx, net.JoinHostPort(service.Spec.ClusterIP, "80"))
		if err != nil {
			return err
		}
		defer conn.Close()
		if got, err := io.ReadAll(conn); err != nil || string(got) != want {
			return fmt.Errorf("the Service leads to %q, and should to %q (%w)", got, want, err)
		}
		return nil
	}
}

// services gives the process of each service of the node.
func (d *drill) services() string {
	d.Helper()
	return c.OnNode(d.T, d.node.Name, "sh", "-c", "cd /run/services && grep . *.pid")
}

// watchers are informers, such as every controller has.
type watchers struct {
	t         *testing.T
	namespace string
	informers map[schema.GroupVersionResource]cache.SharedIndexInformer
}

// watch starts informers, and ends them with the test.
func (d *drill) watch(namespace string, resources ...schema.GroupVersionResource) *watchers {
	d.Helper()
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(c.Dynamic, 0, namespace, nil)
	w := &watchers{d.T, namespace, map[schema.GroupVersionResource]cache.SharedIndexInformer{}}
	for _, r := range resources {
		w.informers[r] = factory.ForResource(r).Informer()
	}
	stop := make(chan struct{})
	d.Cleanup(func() { close(stop); factory.Shutdown() })
	factory.Start(stop)
	factory.WaitForCacheSync(stop)
	return w
}

// inStep tells that each informer has what the API server has.
func (w *watchers) inStep() error {
	for r, informer := range w.informers {
		list, err := c.Dynamic.Resource(r).Namespace(w.namespace).List(w.t.Context(), metav1.ListOptions{})
		if apierrors.IsNotFound(err) { // the kind itself
			list, err = &unstructured.UnstructuredList{}, nil
		}
		if err != nil {
			return err
		}
		has := map[string]string{}
		for _, o := range informer.GetStore().List() {
			u := o.(*unstructured.Unstructured)
			has[u.GetName()] = u.GetResourceVersion()
		}
		for _, o := range list.Items {
			if has[o.GetName()] != o.GetResourceVersion() {
				return fmt.Errorf("the informer has %s %s at %q, and not at %s", r.Resource, o.GetName(), has[o.GetName()], o.GetResourceVersion())
			}
		}
		if len(has) != len(list.Items) {
			return fmt.Errorf("the informer has %d %s, and not %d", len(has), r.Resource, len(list.Items))
		}
	}
	return nil
}

// has tells that an informer knows an object.
func (w *watchers) has(r schema.GroupVersionResource, name string) error {
	_, ok, err := w.informers[r].GetStore().GetByKey(w.namespace + "/" + name)
	if err == nil && !ok {
		err = fmt.Errorf("the informer does not know %s %s", r.Resource, name)
	}
	return err
}

// revisions gives the newest revision that each informer has seen.
func (w *watchers) revisions() map[string]uint64 {
	w.t.Helper()
	seen := map[string]uint64{}
	for r, informer := range w.informers {
		revision, err := strconv.ParseUint(informer.LastSyncResourceVersion(), 10, 64)
		require.NoError(w.t, err)
		seen[r.Resource] = revision
	}
	return seen
}
