package charts

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/release"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	patchtypes "k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"etcdsnapshot.dev/agent/cli"
	"etcdsnapshot.dev/ci/helmtest"
	"etcdsnapshot.dev/ci/kubetest"
)

// cluster is a real API server that Helm installs into.
type cluster struct {
	*kubetest.Server
	dynamic.Interface
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	s := kubetest.New(t)
	client, err := dynamic.NewForConfig(s.Admin())
	require.NoError(t, err)
	return &cluster{s, client}
}

// helm gives Helm's actions, set up as the helm command does it.
func (c *cluster) helm(t *testing.T, namespace string) *action.Configuration {
	t.Helper()
	dir := t.TempDir()
	kubeconfig, cache := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "cache")
	require.NoError(t, kubetest.WriteKubeconfig(kubeconfig, c.Admin(), namespace))
	a, err := helmtest.Configuration(kubeconfig, namespace, cache, nil)
	require.NoError(t, err)
	return a
}

func (c *cluster) install(t *testing.T, r rendering) *release.Release {
	t.Helper()
	a := action.NewInstall(c.helm(t, r.namespace))
	a.ReleaseName, a.Namespace, a.CreateNamespace, a.Timeout = r.release, r.namespace, true, time.Minute
	rel, err := a.Run(loadChart(t), r.valueMap(t))
	require.NoError(t, err)
	return rel
}

func (c *cluster) upgrade(t *testing.T, r rendering) *release.Release {
	t.Helper()
	a := action.NewUpgrade(c.helm(t, r.namespace))
	a.Namespace, a.Timeout = r.namespace, time.Minute
	rel, err := a.Run(r.release, loadChart(t), r.valueMap(t))
	require.NoError(t, err)
	return rel
}

func (c *cluster) get(ctx context.Context, resource, namespace, name string) (*unstructured.Unstructured, error) {
	gvr := schema.GroupVersionResource{Group: "etcdsnapshot.dev", Version: "v1", Resource: resource}
	switch resource {
	case "cronjobs":
		gvr.Group = "batch"
	case "customresourcedefinitions":
		gvr.Group = "apiextensions.k8s.io"
		return c.Resource(gvr).Get(ctx, name, metav1.GetOptions{})
	}
	return c.Resource(gvr).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
}

// run does what the CronJob's pod does: the arguments of the CronJob in the cluster, as the chart's service account. The
// pod's mounts are stood in for by files of the test.
func (c *cluster) run(t *testing.T, namespace, name string) {
	t.Helper()
	cron, err := c.get(t.Context(), "cronjobs", namespace, name)
	require.NoError(t, err)
	container := containerOf(cron.Object["spec"].(map[string]any))
	account, err := c.ServiceAccount(t.Context(), namespace, name)
	require.NoError(t, err)
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	require.NoError(t, kubetest.WriteKubeconfig(kubeconfig, account, namespace))
	config, err := c.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace(namespace).Get(t.Context(), name+"-policy", metav1.GetOptions{})
	require.NoError(t, err)
	manifest, _, err := unstructured.NestedString(config.Object, "data", "policy.yaml")
	require.NoError(t, err)

	var args []string
	for _, arg := range container["args"].([]any) {
		arg := strings.ReplaceAll(arg.(string), "$(POD_NAMESPACE)", namespace)
		arg = strings.ReplaceAll(arg, "/spool", filepath.Join(dir, "spool"))
		if strings.HasPrefix(arg, "--policy-manifest=") {
			arg = "--policy-manifest=-"
		}
		args = append(args, arg)
	}
	args = append(args, "--kubeconfig="+kubeconfig, "--node=node-1", "--log-format=json")
	var stdout, stderr bytes.Buffer
	code := cli.Run(t.Context(), args, strings.NewReader(manifest), &stdout, &stderr)
	require.Zero(t, code, "%s\n%s", &stdout, &stderr)
	require.NotContains(t, strings.ToLower(stderr.String()), "forbidden", "the chart grants too little")
	require.NotContains(t, stderr.String(), `"level":"ERROR"`)
}

// runWithoutPolicy follows the policy's manifest on an API server without the CRDs: a snapshot is worth more than its row.
func (c *cluster) runWithoutPolicy(t *testing.T, r rendering) {
	t.Helper()
	manifest := render(t, r).configMap(t, "-policy").Data["policy.yaml"]
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, kubetest.WriteKubeconfig(kubeconfig, c.Admin(), r.namespace))
	var stdout, stderr bytes.Buffer
	run := func(policy string) int {
		stdout.Reset()
		stderr.Reset()
		args := []string{"snapshot", "--policy=" + policy, "--namespace=" + r.namespace, "--policy-manifest=-", "--kubeconfig=" + kubeconfig, "--spool-dir=" + t.TempDir()}
		return cli.Run(t.Context(), args, strings.NewReader(manifest), &stdout, &stderr)
	}
	require.Zero(t, run(r.release), "%s\n%s", &stdout, &stderr)
	require.Contains(t, stderr.String(), "its manifest is followed")
	require.Contains(t, stdout.String(), r.release+"-")
	require.Equal(t, 2, run("other"))
	require.Contains(t, stderr.String(), "--policy-manifest: - holds the policy kube-system/etcd-snapshot, not kube-system/other")
}

// changesWithTheFirstUpgrade has a policy that a run made, and an upgrade that changes it while it takes it into the release:
// Helm leaves the object as it is then.
func (c *cluster) changesWithTheFirstUpgrade(t *testing.T, r rendering) {
	t.Helper()
	ctx := t.Context()
	spec := func() (last int64, level string) {
		p, err := c.get(ctx, "etcdsnapshotpolicies", r.namespace, r.release)
		require.NoError(t, err)
		destinations, _, err := unstructured.NestedSlice(p.Object, "spec", "destinations")
		require.NoError(t, err)
		last, _, err = unstructured.NestedInt64(destinations[0].(map[string]any), "retention", "last")
		require.NoError(t, err)
		level, _, err = unstructured.NestedString(p.Object, "spec", "compression", "level")
		require.NoError(t, err)
		return last, level
	}
	policies := c.Resource(schema.GroupVersionResource{Group: "etcdsnapshot.dev", Version: "v1", Resource: "etcdsnapshotpolicies"}).Namespace(r.namespace)
	// As after the first installation: a policy that is not the release's.
	_, err := action.NewUninstall(c.helm(t, r.namespace)).Run(r.release)
	require.NoError(t, err)
	c.crdsGone(t)
	c.install(t, r)
	c.run(t, r.namespace, r.release)

	r.set = append(r.set, "destinations.node.retention.last=20")
	c.upgrade(t, r)
	c.run(t, r.namespace, r.release)
	last, _ := spec()
	require.EqualValues(t, 20, last, "the first upgrade did not reach the policy")

	// From now on Helm patches it, and what was edited by hand stays until the release changes that.
	_, err = policies.Patch(ctx, r.release, patchtypes.MergePatchType, []byte(`{"spec":{"compression":{"level":"better"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	c.run(t, r.namespace, r.release)
	_, level := spec()
	require.Equal(t, "better", level)
	r.set = append(r.set, "destinations.node.retention.last=21")
	c.upgrade(t, r)
	last, level = spec()
	require.EqualValues(t, 21, last)
	require.Equal(t, "better", level)
	c.run(t, r.namespace, r.release)
	_, level = spec()
	require.Equal(t, "better", level)
}

// crdsGone removes the CRDs with all that they hold.
func (c *cluster) crdsGone(t *testing.T) {
	t.Helper()
	crds := c.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	for _, resource := range []string{"etcdsnapshotpolicies", "etcdsnapshots"} {
		name := resource + ".etcdsnapshot.dev"
		require.NoError(t, crds.Delete(t.Context(), name, metav1.DeleteOptions{}))
		require.Eventually(t, func() bool {
			_, err := crds.Get(t.Context(), name, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		}, time.Minute, 50*time.Millisecond)
	}
}

// The whole life of a release on a real API server: installed where there is no CRD, run, upgraded, joined by a second
// release, removed, and installed again.
func TestInstallOnARealAPIServer(t *testing.T) {
	c := newCluster(t)
	ctx := t.Context()
	certs := c.Etcd.Certs
	values, err := yaml.Marshal(map[string]any{
		"etcd":         map[string]any{"endpoints": c.Etcd.Endpoints(), "caFile": certs.CAFile, "certFile": certs.ClientCertFile, "keyFile": certs.ClientKeyFile},
		"destinations": map[string]any{"node": map[string]any{"hostPath": map[string]any{"path": filepath.Join(t.TempDir(), "snapshots")}}},
	})
	require.NoError(t, err)
	r := rendering{release: "etcd-snapshot", namespace: "kube-system", values: string(values)}
	c.runWithoutPolicy(t, r)
	first := c.install(t, r)
	require.NotContains(t, first.Manifest, "kind: EtcdSnapshotPolicy\nmetadata")
	_, err = c.get(ctx, "etcdsnapshotpolicies", r.namespace, r.release)
	require.True(t, apierrors.IsNotFound(err), "%v", err)

	c.run(t, r.namespace, r.release)
	made, err := c.get(ctx, "etcdsnapshotpolicies", r.namespace, r.release)
	require.NoError(t, err, "the first run makes the policy")
	status, _, err := unstructured.NestedMap(made.Object, "status")
	require.NoError(t, err)
	require.Equal(t, "0 */6 * * *", status["schedule"])
	require.EqualValues(t, 2, status["snapshots"], "the one without a policy, too")

	cron, err := c.get(ctx, "cronjobs", r.namespace, r.release)
	require.NoError(t, err)
	r.set = []string{"schedule=15 3 * * *"}
	second := c.upgrade(t, r)
	require.Contains(t, second.Manifest, "kind: EtcdSnapshotPolicy\nmetadata", "the upgrade takes the policy into the release")
	kept, err := c.get(ctx, "etcdsnapshotpolicies", r.namespace, r.release)
	require.NoError(t, err)
	require.Equal(t, made.GetUID(), kept.GetUID(), "the policy was replaced, and its history is gone")
	require.Equal(t, made.Object["spec"], kept.Object["spec"])
	require.Equal(t, made.GetGeneration(), kept.GetGeneration())
	require.Equal(t, made.Object["status"], kept.Object["status"])
	changed, err := c.get(ctx, "cronjobs", r.namespace, r.release)
	require.NoError(t, err)
	require.NotEqual(t, cron.GetGeneration(), changed.GetGeneration())
	c.run(t, r.namespace, r.release)
	kept, err = c.get(ctx, "etcdsnapshotpolicies", r.namespace, r.release)
	require.NoError(t, err)
	schedule, _, err := unstructured.NestedString(kept.Object, "status", "schedule")
	require.NoError(t, err)
	require.Equal(t, "15 3 * * *", schedule)

	c.changesWithTheFirstUpgrade(t, r)

	// A second release leaves the CRDs alone, and has its policy from the start.
	other := rendering{release: "events", namespace: "backup", values: string(values)}
	rel := c.install(t, other)
	require.NotContains(t, rel.Manifest, "kind: CustomResourceDefinition")
	require.Contains(t, rel.Info.Notes, "The CRDs belong to the release kube-system/etcd-snapshot")
	_, err = c.get(ctx, "etcdsnapshotpolicies", other.namespace, "events-etcd-snapshot")
	require.NoError(t, err)

	// The CRDs, and all that they hold, outlive the release.
	uninstall := action.NewUninstall(c.helm(t, r.namespace))
	_, err = uninstall.Run(r.release)
	require.NoError(t, err)
	_, err = c.get(ctx, "customresourcedefinitions", "", "etcdsnapshots.etcdsnapshot.dev")
	require.NoError(t, err)
	rows, err := c.Resource(schema.GroupVersionResource{Group: "etcdsnapshot.dev", Version: "v1", Resource: "etcdsnapshots"}).Namespace(r.namespace).List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, rows.Items, 7)
	c.install(t, r)
	_, err = c.get(ctx, "etcdsnapshotpolicies", r.namespace, r.release)
	require.NoError(t, err)
}
