package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/strvals"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/yaml"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/ci/helmtest"
	"etcdsnapshot.dev/ci/parts"
)

// Timeout bounds every wait: it is long, because a test machine may be busy, and nothing is asserted on time.
const Timeout = 5 * time.Minute

// Resources that tests wait for.
var (
	Policies    = schema.GroupVersionResource{Group: "etcdsnapshot.dev", Version: "v1", Resource: v1.PolicyResource}
	Snapshots   = schema.GroupVersionResource{Group: "etcdsnapshot.dev", Version: "v1", Resource: v1.SnapshotResource}
	Jobs        = schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}
	CronJobs    = schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "cronjobs"}
	Pods        = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	Events      = schema.GroupVersionResource{Version: "v1", Resource: "events"}
	Namespaces  = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	Nodes       = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	Deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	CRDs        = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
)

// Release is what is installed: by default with the default values, as etcd-snapshot in kube-system.
type Release struct {
	Name, Namespace string
	// Version is the chart's, packaged from the same tree. Empty: the tree's own.
	Version string
	// Values is YAML; Set is more of them as --set takes them.
	Values string
	Set    []string
}

func (r Release) withDefaults() Release {
	if r.Name == "" {
		r.Name = "etcd-snapshot"
	}
	if r.Namespace == "" {
		r.Namespace = "kube-system"
	}
	return r
}

func (r Release) values(tb testing.TB) map[string]any {
	tb.Helper()
	values := map[string]any{}
	require.NoError(tb, yaml.UnmarshalStrict([]byte(r.Values), &values))
	if values == nil {
		values = map[string]any{}
	}
	for _, s := range r.Set {
		require.NoError(tb, strvals.ParseInto(s, values))
	}
	return values
}

func (r Release) chart(tb testing.TB) *chart.Chart {
	tb.Helper()
	ch, err := Chart()
	require.NoError(tb, err)
	if r.Version == "" {
		return ch
	}
	ch.Metadata.Version = r.Version
	file, err := chartutil.Save(ch, tb.TempDir())
	require.NoError(tb, err)
	ch, err = loader.Load(file)
	require.NoError(tb, err)
	return ch
}

// Helm gives Helm's actions in a namespace.
func (c *Cluster) Helm(tb testing.TB, namespace string) *action.Configuration {
	tb.Helper()
	a, err := helmtest.Configuration(c.Kubeconfig, namespace, filepath.Join(tb.TempDir(), "cache"), nil)
	require.NoError(tb, err)
	return a
}

// Install installs a release, which is purged when the test ends.
func (c *Cluster) Install(tb testing.TB, r Release) *release.Release {
	tb.Helper()
	r = r.withDefaults()
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Log(c.Describe(r.Namespace))
		}
		c.Purge(tb, r)
	})
	a := action.NewInstall(c.Helm(tb, r.Namespace))
	a.ReleaseName, a.Namespace, a.CreateNamespace, a.Timeout = r.Name, r.Namespace, true, Timeout
	rel, err := a.RunWithContext(tb.Context(), r.chart(tb), r.values(tb))
	require.NoError(tb, err)
	return rel
}

// Upgrade is helm upgrade: the values are the release's alone, what it had before is forgotten.
func (c *Cluster) Upgrade(tb testing.TB, r Release) *release.Release {
	tb.Helper()
	r = r.withDefaults()
	a := action.NewUpgrade(c.Helm(tb, r.Namespace))
	a.Namespace, a.Timeout, a.ResetValues = r.Namespace, Timeout, true
	rel, err := a.RunWithContext(tb.Context(), r.Name, r.chart(tb), r.values(tb))
	require.NoError(tb, err)
	return rel
}

// Uninstall is helm uninstall: it waits for the release's objects to go.
func (c *Cluster) Uninstall(tb testing.TB, r Release) {
	tb.Helper()
	r = r.withDefaults()
	a := action.NewUninstall(c.Helm(tb, r.Namespace))
	a.Wait, a.Timeout, a.IgnoreNotFound, a.DeletionPropagation = true, Timeout, true, "foreground"
	_, err := a.Run(r.Name)
	require.NoError(tb, err)
}

// Purge removes a release and all that it left: hooks' Jobs, the CRDs with the rows, and the snapshots on the nodes' disks.
func (c *Cluster) Purge(tb testing.TB, r Release) {
	tb.Helper()
	r = r.withDefaults()
	c.note(tb, r.Namespace)
	c.Uninstall(tb, r)
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	foreground := metav1.DeletePropagationForeground
	selector := metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=" + r.Name}
	require.NoError(tb, c.Dynamic.Resource(Jobs).Namespace(r.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{PropagationPolicy: &foreground}, selector))
	for _, resource := range []string{v1.PolicyResource, v1.SnapshotResource} {
		name := resource + ".etcdsnapshot.dev"
		err := c.Dynamic.Resource(CRDs).Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &foreground})
		if !apierrors.IsNotFound(err) {
			require.NoError(tb, err)
		}
		c.AwaitGone(tb, CRDs, "", name)
	}
	for _, node := range c.ControlPlane(tb) {
		c.noteNode(ctx, tb, node)
		_, err := c.Exec(ctx, node, "rm", "-rf", "/var/lib/etcd-snapshots")
		require.NoError(tb, err)
	}
}

// ControlPlane gives the names of the control-plane nodes.
func (c *Cluster) ControlPlane(tb testing.TB) (names []string) {
	tb.Helper()
	nodes, err := c.Client.CoreV1().Nodes().List(context.Background(), metav1.ListOptions{LabelSelector: "node-role.kubernetes.io/control-plane"})
	require.NoError(tb, err)
	for _, n := range nodes.Items {
		names = append(names, n.Name)
	}
	require.NotEmpty(tb, names)
	return names
}

// Folder is a destination's folder of this cluster, which has no name but its UID.
func (c *Cluster) Folder(tb testing.TB, destination string) string {
	tb.Helper()
	ns, err := c.Client.CoreV1().Namespaces().Get(context.Background(), metav1.NamespaceSystem, metav1.GetOptions{})
	require.NoError(tb, err)
	return filepath.Join(destination, string(ns.UID))
}

// OnNode is Exec for tests.
func (c *Cluster) OnNode(tb testing.TB, node string, command ...string) string {
	tb.Helper()
	out, err := c.Exec(tb.Context(), node, command...)
	require.NoError(tb, err)
	return string(out)
}

// Kubectl runs the real kubectl, and gives what it printed to stdout. It may be called in a test's cleanup.
func (c *Cluster) Kubectl(tb testing.TB, args ...string) string {
	tb.Helper()
	out, err := c.kubectl(context.WithoutCancel(tb.Context()), args...)
	require.NoError(tb, err)
	return out
}

func (c *Cluster) kubectl(ctx context.Context, args ...string) (string, error) {
	dir, err := parts.Dir(ctx, "kubernetes")
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "kubectl"), append([]string{"--kubeconfig=" + c.Kubeconfig}, args...)...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), nil
}

// Describe tells what is in a namespace, for who has to find out why a test failed.
func (c *Cluster) Describe(namespace string) string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var b strings.Builder
	for _, command := range []string{
		"get nodes,pods,jobs,cronjobs,esp,esnap -A -o wide",
		"get events --sort-by=.lastTimestamp -n " + namespace,
		"logs --tail=40 --prefix -l app.kubernetes.io/name=etcd-snapshot -n " + namespace,
	} {
		out, err := c.kubectl(ctx, strings.Fields(command)...)
		fmt.Fprintf(&b, "$ kubectl %s\n%s", command, out)
		if err != nil {
			fmt.Fprintln(&b, err)
		}
	}
	return b.String()
}

// Deadline is the context of a wait: it outlives the test's own, for cleanups.
func Deadline(tb testing.TB) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(tb.Context()), Timeout)
}

// Await waits for an object to be there and done to say so, and gives it. It watches, and goes on watching when the API
// server was away. T is the object's type, such as batchv1.Job.
func Await[T any](tb testing.TB, c *Cluster, resource schema.GroupVersionResource, namespace, name string, done func(*T) bool) *T {
	tb.Helper()
	return AwaitAny(tb, c, resource, namespace, named(name), done)
}

// AwaitAny is Await for whichever of the selected objects it is first.
func AwaitAny[T any](tb testing.TB, c *Cluster, resource schema.GroupVersionResource, namespace string, selected metav1.ListOptions, done func(*T) bool) *T {
	tb.Helper()
	ctx, cancel := Deadline(tb)
	defer cancel()
	var last *T
	_, err := watchtools.UntilWithSync(ctx, c.lister(resource, namespace, selected), &unstructured.Unstructured{}, nil, func(e watch.Event) (bool, error) {
		if e.Type == watch.Deleted {
			last = nil
			return false, nil
		}
		last = convert[T](tb, e.Object.(*unstructured.Unstructured))
		return done(last), nil
	})
	if err != nil {
		text, _ := yaml.Marshal(last)
		tb.Fatalf("%s in %s (%s%s) is not as awaited: %v; it is:\n%s", resource.Resource, namespace, selected.FieldSelector, selected.LabelSelector, err, text)
	}
	return last
}

func named(name string) metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()}
}

// AwaitGone waits for an object not to be there.
func (c *Cluster) AwaitGone(tb testing.TB, resource schema.GroupVersionResource, namespace, name string) {
	tb.Helper()
	ctx, cancel := Deadline(tb)
	defer cancel()
	gone := false
	absent := func(store cache.Store) (bool, error) {
		gone = len(store.List()) == 0
		return gone, nil
	}
	_, err := watchtools.UntilWithSync(ctx, c.lister(resource, namespace, named(name)), &unstructured.Unstructured{}, absent, func(e watch.Event) (bool, error) {
		return e.Type == watch.Deleted, nil
	})
	if err != nil && !gone {
		tb.Fatalf("%s %s/%s is still there: %v", resource.Resource, namespace, name, err)
	}
}

func (c *Cluster) lister(resource schema.GroupVersionResource, namespace string, selected metav1.ListOptions) cache.ListerWatcher {
	var ri dynamic.ResourceInterface = c.Dynamic.Resource(resource)
	if namespace != "" {
		ri = c.Dynamic.Resource(resource).Namespace(namespace)
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector, o.LabelSelector = selected.FieldSelector, selected.LabelSelector
			return ri.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector, o.LabelSelector = selected.FieldSelector, selected.LabelSelector
			return ri.Watch(ctx, o)
		},
	}
}
