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
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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

	"etcdsnapshot.dev/agent/restore"
	"etcdsnapshot.dev/ci/cluster"
	"etcdsnapshot.dev/ci/e2e"
)

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

// drill is a disaster drill on a cluster.
type drill struct {
	*testing.T
	c    *e2e.Cluster
	node *cluster.Node // where snapshots are taken

	watching      *watchers
	folder        string            // of snapshots
	first, latest string            // snapshots
	revision      int64             // the latest one's
	state         map[string]string // what it holds
	objects       string            // the drill's part of that, as the API server tells it
	newest        map[string]uint64 // revisions that were seen before the disaster
	services      string            // processes of the nodes' services then
}

// newDrill prepares a drill. Only clusters of ci/cluster are destroyed.
func newDrill(t *testing.T, c *e2e.Cluster) *drill {
	t.Helper()
	d := &drill{T: t, c: c, node: c.Own.Nodes[0]}
	t.Cleanup(func() {
		for _, n := range c.Own.Nodes {
			_, err := n.Exec(context.Background(), "sh", "-c", "rm -rf /var/lib/etcd.before-restore-* "+database)
			require.NoError(t, err)
		}
	})
	return d
}

func needOwn(t *testing.T) {
	t.Helper()
	if os.Getenv(e2e.KubeconfigEnv) == "" {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatal("the drill needs a cluster of ci/cluster")
	}
	t.Skip("the drill destroys etcd: it does that to a cluster of ci/cluster only")
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
		d.Fatalf("%s: %v: %v\n%s", what, err, last, d.c.Describe("drill"))
	}
}

func (d *drill) makeObjects() {
	d.Cleanup(func() { d.c.Kubectl(d.T, "delete", "-f", objectsFile, "-f", kindFile, "--ignore-not-found") })
	d.c.Kubectl(d.T, "create", "-f", kindFile)
	d.c.Kubectl(d.T, "wait", "--for=condition=Established", "--timeout=5m", "-f", kindFile)
	d.c.Kubectl(d.T, "create", "-f", objectsFile)
	d.c.Kubectl(d.T, "wait", "--for=jsonpath={.status.phase}=Bound", "--timeout=5m", "-n", "drill", "pvc/claim")
	d.eventually("the pods run", func() error { return errors.Join(d.podsRun("web", 2), d.podsRun("goes", 1)) })
}

// list gives the drill's objects, without what their controllers write.
func (d *drill) list() string {
	d.Helper()
	list := &unstructured.UnstructuredList{}
	require.NoError(d, json.Unmarshal([]byte(d.c.Kubectl(d.T, "get", "-f", objectsFile, "-f", kindFile, "-o", "json")), list))
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
	lists, err := d.c.Client.Discovery().ServerPreferredResources()
	require.NoError(d, err)
	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list"}}, lists) {
		for _, r := range list.APIResources {
			gv, err := schema.ParseGroupVersion(list.GroupVersion)
			require.NoError(d, err)
			objects, err := d.c.Dynamic.Resource(gv.WithResource(r.Name)).List(d.Context(), metav1.ListOptions{Limit: 1})
			require.NoError(d, err)
			require.NotEmpty(d, objects.Items, "%s.%s", r.Name, gv.Group)
		}
	}
}

// takeSnapshot takes a snapshot, and gives its name.
func (d *drill) takeSnapshot() string {
	d.Helper()
	d.c.RunNow(d.T, "kube-system", "etcd-snapshot")
	return d.c.Policy(d.T, "kube-system", "etcd-snapshot").Status.LastSnapshot
}

// restore runs the agent's restore on the node.
func (d *drill) restore(args ...string) *restore.Result {
	d.Helper()
	out := d.c.OnNode(d.T, d.node.Name, append([]string{e2e.Agent(), "restore", "-o", "json"}, args...)...)
	res := &restore.Result{}
	require.NoError(d, json.Unmarshal([]byte(out), res))
	return res
}

func etcdctl(args ...string) []string {
	const pki = "/etc/kubernetes/pki/etcd/"
	return append([]string{"etcdctl", "--endpoints=https://127.0.0.1:2379", "--cacert=" + pki + "ca.crt",
		"--cert=" + pki + "healthcheck-client.crt", "--key=" + pki + "healthcheck-client.key"}, args...)
}

// etcd gives all that a node's etcd has at a revision, by key.
func (d *drill) etcd(node *cluster.Node, revision int64) map[string]string {
	d.Helper()
	out := d.c.OnNode(d.T, node.Name, etcdctl("get", "", "--from-key", "--rev="+strconv.FormatInt(revision, 10), "-w", "json")...)
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
	d.c.Kubectl(d.T, "scale", "-n", "drill", "deployment/web", "--replicas", strconv.Itoa(replicas))
}

// podsRun tells that so many pods of an app are ready, and that the Service's EndpointSlice says the same.
func (d *drill) podsRun(app string, count int) error {
	pods, err := d.c.Client.CoreV1().Pods("drill").List(d.Context(), metav1.ListOptions{LabelSelector: "app=" + app})
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
	slices, err := d.c.Client.DiscoveryV1().EndpointSlices("drill").List(d.Context(), metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=web"})
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

// nothingElseRuns tells that each node runs the containers that the API server tells of, and no others.
func (d *drill) nothingElseRuns() error {
	pods, err := d.c.Client.CoreV1().Pods("").List(d.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, n := range d.c.Own.Nodes {
		out, err := n.Exec(d.Context(), "sh", "-c", "ctr -n k8s.io tasks list | awk '$3 == \"RUNNING\" {print $1}'")
		if err != nil {
			return err
		}
		running := strings.Fields(string(out))
		want := 0
		for _, p := range pods.Items {
			if p.Spec.NodeName != n.Name || p.Status.Phase != corev1.PodRunning {
				continue
			}
			want++ // its sandbox
			for _, s := range p.Status.ContainerStatuses {
				want++
				_, id, _ := strings.Cut(s.ContainerID, "//")
				if !slices.Contains(running, id) {
					return fmt.Errorf("%s: %s/%s: its container %q does not run", n.Name, p.Namespace, p.Name, id)
				}
			}
		}
		if want != len(running) {
			return fmt.Errorf("%s: %d containers run, and should be %d", n.Name, len(running), want)
		}
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
	_, err := d.c.Client.DiscoveryV1().EndpointSlices("drill").Patch(d.Context(), "outside", types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
	require.NoError(d, err)
}

// serviceSays tells where the Service outside leads: the word of every node's kube-proxy.
func (d *drill) serviceSays(want string) error {
	service, err := d.c.Client.CoreV1().Services("drill").Get(d.Context(), "outside", metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, n := range d.c.Own.Nodes {
		got, err := ask(d.Context(), n, net.JoinHostPort(service.Spec.ClusterIP, "80"))
		if err != nil || got != want {
			return fmt.Errorf("from %s the Service leads to %q, and should to %q (%w)", n.Name, got, want, err)
		}
	}
	return nil
}

func ask(ctx context.Context, node *cluster.Node, address string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := node.Dial(ctx, address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	said, err := io.ReadAll(conn)
	return string(said), err
}

// processes gives the process of each service of each node.
func (d *drill) processes() (all string) {
	d.Helper()
	for _, n := range d.c.Own.Nodes {
		all += n.Name + "\n" + d.c.OnNode(d.T, n.Name, "sh", "-c", "cd /run/services && grep . *.pid")
	}
	return all
}

// watchers are informers, such as every controller has.
type watchers struct {
	*drill
	namespace string
	informers map[schema.GroupVersionResource]cache.SharedIndexInformer
}

// watch starts informers, and ends them with the test.
func (d *drill) watch(namespace string, resources ...schema.GroupVersionResource) *watchers {
	d.Helper()
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(d.c.Dynamic, 0, namespace, nil)
	w := &watchers{d, namespace, map[schema.GroupVersionResource]cache.SharedIndexInformer{}}
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
		list, err := w.c.Dynamic.Resource(r).Namespace(w.namespace).List(w.Context(), metav1.ListOptions{})
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
	w.Helper()
	seen := map[string]uint64{}
	for r, informer := range w.informers {
		revision, err := strconv.ParseUint(informer.LastSyncResourceVersion(), 10, 64)
		require.NoError(w, err)
		seen[r.Resource] = revision
	}
	return seen
}
