// Package charts tests the chart etcd-snapshot: it is rendered by Helm's own library, for every Kubernetes that it
// supports, and what comes out is decoded strictly, checked by the CRDs' own rules and read by the agent's own flags.
package charts

import (
	"bytes"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/strvals"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/yaml"

	"etcdsnapshot.dev/agent/api"
	v1 "etcdsnapshot.dev/agent/api/v1"
)

const chartDir = "etcd-snapshot"

var update = flag.Bool("update", false, "write the golden files in testdata")

// supportedMinors are the minors of Kubernetes 1 that the chart is tested for; Chart.yaml has no upper bound.
var supportedMinors = []int{27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37}

// chartFiles reads the chart once, as it would be packaged.
var chartFiles = sync.OnceValues(func() ([]*loader.BufferedFile, error) {
	var files []*loader.BufferedFile
	err := filepath.WalkDir(chartDir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if d.Name() == "ci" { // .helmignore leaves it out, too
				return fs.SkipDir
			}
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(chartDir, path)
		files = append(files, &loader.BufferedFile{Name: filepath.ToSlash(name), Data: data})
		return err
	})
	return files, err
})

// loadChart gives a chart of its own to the caller: Helm writes into what it renders.
func loadChart(t testing.TB) *chart.Chart {
	t.Helper()
	files, err := chartFiles()
	require.NoError(t, err)
	c, err := loader.LoadFiles(files)
	require.NoError(t, err)
	return c
}

// rendering says how to render. The zero value is what `helm install etcd-snapshot -n kube-system` does.
type rendering struct {
	release, namespace string
	// values is YAML; set is more of them as --set takes them.
	values string
	set    []string
	minor  int
	// upgrade renders as `helm upgrade` does.
	upgrade bool
}

func (r rendering) valueMap(t testing.TB) map[string]any {
	t.Helper()
	values := map[string]any{}
	require.NoError(t, yaml.UnmarshalStrict([]byte(r.values), &values))
	if values == nil {
		values = map[string]any{}
	}
	for _, s := range r.set {
		require.NoError(t, strvals.ParseInto(s, values))
	}
	return values
}

// run renders as Helm does, with all that Helm checks.
func (r rendering) run(t testing.TB) (*release.Release, error) {
	t.Helper()
	return r.action().Run(loadChart(t), r.valueMap(t))
}

func (r rendering) action() *action.Install {
	install := action.NewInstall(&action.Configuration{Log: func(string, ...any) {}})
	install.DryRun, install.ClientOnly, install.IsUpgrade = true, true, r.upgrade
	install.ReleaseName, install.Namespace = "etcd-snapshot", "kube-system"
	if r.release != "" {
		install.ReleaseName = r.release
	}
	if r.namespace != "" {
		install.Namespace = r.namespace
	}
	minor := r.minor
	if minor == 0 {
		minor = supportedMinors[len(supportedMinors)-1]
	}
	install.KubeVersion = &chartutil.KubeVersion{Version: fmt.Sprintf("v1.%d.0", minor), Major: "1", Minor: fmt.Sprint(minor)}
	return install
}

// refused renders, and gives the error that the user reads.
func (r rendering) refused(t testing.TB) string {
	t.Helper()
	_, err := r.run(t)
	require.Error(t, err, "the chart takes these values")
	return err.Error()
}

// objects is what a chart made, decoded strictly.
type objects struct {
	release *release.Release
	// manifest is all documents, hooks last, as `helm template` prints them.
	manifest string

	cronJobs            []*batchv1.CronJob
	jobs                []*batchv1.Job
	serviceAccounts     []*corev1.ServiceAccount
	configMaps          []*corev1.ConfigMap
	roles               []*rbacv1.Role
	roleBindings        []*rbacv1.RoleBinding
	clusterRoles        []*rbacv1.ClusterRole
	clusterRoleBindings []*rbacv1.ClusterRoleBinding
	crds                []*apiextv1.CustomResourceDefinition
	policies            []*v1.EtcdSnapshotPolicy
	others              []*unstructured.Unstructured
}

var strictDecoder = sync.OnceValue(func() runtime.Decoder {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{batchv1.AddToScheme, corev1.AddToScheme, rbacv1.AddToScheme, apiextv1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
})

// rendered keeps what was rendered and decoded: many tests look at the same. Nobody writes into it.
var rendered sync.Map // of the rendering's text to *renderedOnce

type renderedOnce struct {
	sync.Once
	objects *objects
}

// render renders and decodes. Whatever is rendered in any test passes through the checks in here.
func render(t testing.TB, r rendering) *objects {
	t.Helper()
	known, _ := rendered.LoadOrStore(fmt.Sprintf("%#v", r), &renderedOnce{})
	once := known.(*renderedOnce)
	once.Do(func() { once.objects = r.decoded(t) })
	require.NotNil(t, once.objects, "this rendering failed in the test that came first")
	return once.objects
}

func (r rendering) decoded(t testing.TB) *objects {
	t.Helper()
	// Helm would compile the schema again for each rendering.
	install := r.action()
	install.SkipSchemaValidation = true
	values := r.valueMap(t)
	all, err := chartutil.CoalesceValues(loadChart(t), values)
	require.NoError(t, err)
	require.Empty(t, complaints(t, all))
	rel, err := install.Run(loadChart(t), values)
	require.NoError(t, err)
	o := &objects{release: rel, manifest: rel.Manifest}
	for _, h := range rel.Hooks {
		o.manifest += "---\n# Source: " + h.Path + "\n" + h.Manifest + "\n"
	}
	for _, doc := range documents(o.manifest) {
		o.add(t, doc)
	}
	checkNames(t, o)
	// The policy that a run makes where there is none is the one of the release.
	p, err := api.ParsePolicy([]byte(o.configMap(t, "-policy").Data["policy.yaml"]))
	require.NoError(t, err)
	require.Equal(t, []*v1.EtcdSnapshotPolicy{p}, o.policies)
	return o
}

// documents splits a manifest and drops documents that hold comments only.
func documents(manifest string) [][]byte {
	var docs [][]byte
	for doc := range strings.SplitSeq("\n"+manifest, "\n---") {
		if notComment.MatchString(doc) {
			docs = append(docs, []byte(doc))
		}
	}
	return docs
}

var notComment = regexp.MustCompile(`(?m)^[^#\s]`)

// crds keeps the decoded CRDs: they are large, and almost always the same.
var crds sync.Map // of their text to *apiextv1.CustomResourceDefinition

func (o *objects) add(t testing.TB, doc []byte) {
	t.Helper()
	require.NotContains(t, string(doc), "<no value>", "a template prints a value that is not there")
	require.NotContains(t, string(doc), "annotations: null")
	if known, ok := crds.Load(string(doc)); ok {
		o.crds = append(o.crds, known.(*apiextv1.CustomResourceDefinition))
		return
	}
	var meta metav1.TypeMeta
	require.NoError(t, yaml.Unmarshal(doc, &meta), "%s", doc)
	if meta.Kind == v1.PolicyKind {
		policy, err := api.ParsePolicy(doc)
		require.NoError(t, err, "the CRD's own rules refuse the policy:\n%s", doc)
		o.policies = append(o.policies, policy)
		return
	}
	obj, _, err := strictDecoder().Decode(doc, nil, nil)
	if runtime.IsNotRegisteredError(err) {
		var u unstructured.Unstructured
		require.NoError(t, yaml.UnmarshalStrict(doc, &u.Object))
		o.others = append(o.others, &u)
		return
	}
	require.NoError(t, err, "%s", doc)
	switch obj := obj.(type) {
	case *batchv1.CronJob:
		o.cronJobs = append(o.cronJobs, obj)
	case *batchv1.Job:
		o.jobs = append(o.jobs, obj)
	case *corev1.ServiceAccount:
		o.serviceAccounts = append(o.serviceAccounts, obj)
	case *corev1.ConfigMap:
		o.configMaps = append(o.configMaps, obj)
	case *rbacv1.Role:
		o.roles = append(o.roles, obj)
	case *rbacv1.RoleBinding:
		o.roleBindings = append(o.roleBindings, obj)
	case *rbacv1.ClusterRole:
		o.clusterRoles = append(o.clusterRoles, obj)
	case *rbacv1.ClusterRoleBinding:
		o.clusterRoleBindings = append(o.clusterRoleBindings, obj)
	case *apiextv1.CustomResourceDefinition:
		crds.Store(string(doc), obj)
		o.crds = append(o.crds, obj)
	default:
		require.Failf(t, "unexpected object", "%T is rendered by no template that the tests know", obj)
	}
}

// all gives the metadata of every object.
func (o *objects) all() []metav1.Object {
	var all []metav1.Object
	for _, x := range o.cronJobs {
		all = append(all, x)
	}
	for _, x := range o.jobs {
		all = append(all, x)
	}
	for _, x := range o.serviceAccounts {
		all = append(all, x)
	}
	for _, x := range o.configMaps {
		all = append(all, x)
	}
	for _, x := range o.roles {
		all = append(all, x)
	}
	for _, x := range o.roleBindings {
		all = append(all, x)
	}
	for _, x := range o.clusterRoles {
		all = append(all, x)
	}
	for _, x := range o.clusterRoleBindings {
		all = append(all, x)
	}
	for _, x := range o.crds {
		all = append(all, x)
	}
	for _, x := range o.policies {
		all = append(all, x)
	}
	return all
}

func checkNames(t testing.TB, o *objects) {
	t.Helper()
	for _, c := range o.cronJobs {
		require.LessOrEqual(t, len(c.Name), 52, "the CronJob controller refuses longer names: %s", c.Name)
	}
	for _, p := range o.policies {
		require.LessOrEqual(t, len(p.Name), 40, "the CRD refuses longer names: %s", p.Name)
	}
	for _, x := range o.all() {
		require.LessOrEqual(t, len(x.GetName()), 63, "%s", x.GetName())
		require.NotContains(t, []string{"", "-"}, x.GetName())
		require.False(t, strings.HasSuffix(x.GetName(), "-"), x.GetName())
		for k, v := range x.GetLabels() {
			require.LessOrEqual(t, len(v), 63, "label %s", k)
		}
		require.Equal(t, "etcd-snapshot", x.GetLabels()["app.kubernetes.io/part-of"], "%s lacks the chart's labels", x.GetName())
	}
}

func (o *objects) cronJob(t testing.TB) *batchv1.CronJob {
	t.Helper()
	return o.only(t, "snapshot")
}

// only gives the one CronJob whose pods are of that component.
func (o *objects) only(t testing.TB, component string) *batchv1.CronJob {
	t.Helper()
	found := o.cronJobsOf(component)
	require.Len(t, found, 1)
	return found[0]
}

func (o *objects) cronJobsOf(component string) (found []*batchv1.CronJob) {
	for _, job := range o.cronJobs {
		if job.Spec.JobTemplate.Spec.Template.Labels["app.kubernetes.io/component"] == component {
			found = append(found, job)
		}
	}
	return found
}

func (o *objects) jobsOf(component string) (found []*batchv1.Job) {
	for _, job := range o.jobs {
		if job.Spec.Template.Labels["app.kubernetes.io/component"] == component {
			found = append(found, job)
		}
	}
	return found
}

func (o *objects) configMap(t testing.TB, suffix string) *corev1.ConfigMap {
	t.Helper()
	i := slices.IndexFunc(o.configMaps, func(c *corev1.ConfigMap) bool { return strings.HasSuffix(c.Name, suffix) })
	require.GreaterOrEqual(t, i, 0, "no ConfigMap whose name ends in %s", suffix)
	return o.configMaps[i]
}

func (o *objects) policy(t testing.TB) *v1.EtcdSnapshotPolicy {
	t.Helper()
	require.Len(t, o.policies, 1)
	return o.policies[0]
}

func (o *objects) pod(t testing.TB) *corev1.PodSpec {
	t.Helper()
	return &o.cronJob(t).Spec.JobTemplate.Spec.Template.Spec
}

func (o *objects) agent(t testing.TB) *corev1.Container {
	t.Helper()
	require.Len(t, o.pod(t).Containers, 1)
	return &o.pod(t).Containers[0]
}

func (o *objects) volume(t testing.TB, name string) corev1.Volume {
	t.Helper()
	i := slices.IndexFunc(o.pod(t).Volumes, func(v corev1.Volume) bool { return v.Name == name })
	require.GreaterOrEqual(t, i, 0, "no volume %s", name)
	return o.pod(t).Volumes[i]
}

func (o *objects) mount(t testing.TB, name string) corev1.VolumeMount {
	t.Helper()
	mounts := o.agent(t).VolumeMounts
	i := slices.IndexFunc(mounts, func(v corev1.VolumeMount) bool { return v.Name == name })
	require.GreaterOrEqual(t, i, 0, "no mount of volume %s", name)
	return mounts[i]
}

func (o *objects) env(t testing.TB, name string) *corev1.EnvVar {
	t.Helper()
	for i, e := range o.agent(t).Env {
		if e.Name == name {
			return &o.agent(t).Env[i]
		}
	}
	return nil
}

// plain gives YAML as a generic value, for comparisons.
func plain(t testing.TB, doc []byte) map[string]any {
	t.Helper()
	var v map[string]any
	require.NoError(t, yaml.Unmarshal(bytes.TrimSpace(doc), &v))
	return v
}
