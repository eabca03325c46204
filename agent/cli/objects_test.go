package cli_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"etcdsnapshot.dev/ci/kubetest"
	"etcdsnapshot.dev/ci/parts"
)

// kube is an API server and what a person does with it.
type kube struct {
	*kubetest.Server
	t          *testing.T
	kubeconfig string
}

func newKube(t *testing.T, args ...string) *kube {
	t.Helper()
	k := &kube{Server: kubetest.New(t, args...), t: t, kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	require.NoError(t, kubetest.WriteKubeconfig(k.kubeconfig, k.Admin(), "default"))
	return k
}

// kubectl runs kubectl with some input; ok is whether it succeeded.
func (k *kube) kubectl(stdin string, args ...string) (out string, ok bool) {
	k.t.Helper()
	cmd := exec.Command(filepath.Join(parts.Require(k.t, "kubernetes"), "kubectl"), append([]string{"--kubeconfig", k.kubeconfig, "--cache-dir", k.t.TempDir()}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	all, err := cmd.CombinedOutput()
	return string(all), err == nil
}

func (k *kube) must(stdin string, args ...string) string {
	k.t.Helper()
	out, ok := k.kubectl(stdin, args...)
	require.True(k.t, ok, "kubectl %s: %s", strings.Join(args, " "), out)
	return out
}

// save gives a file with a snapshot of the server's etcd.
func (k *kube) save() string {
	k.t.Helper()
	path := filepath.Join(k.t.TempDir(), "snapshot.db")
	require.NoError(k.t, k.Etcd.SaveSnapshot(k.t.Context(), 0, path))
	return path
}

// raw gives an object by its path in the API, or all of a list.
func (k *kube) raw(path string) map[string]any {
	k.t.Helper()
	client, err := kubernetes.NewForConfig(k.Admin())
	require.NoError(k.t, err)
	body, err := client.RESTClient().Get().AbsPath(path).DoRaw(k.t.Context())
	require.NoError(k.t, err, path)
	var obj map[string]any
	require.NoError(k.t, json.Unmarshal(body, &obj))
	return obj
}

// resources are the kinds that the server keeps.
func (k *kube) resources() (all []metav1.APIResource) {
	k.t.Helper()
	client, err := kubernetes.NewForConfig(k.Admin())
	require.NoError(k.t, err)
	lists, err := client.Discovery().ServerPreferredResources()
	if !discovery.IsGroupDiscoveryFailedError(err) { // the sample of an APIService leads nowhere
		require.NoError(k.t, err)
	}
	for _, list := range lists {
		for _, r := range list.APIResources {
			if slices.Contains(r.Verbs, "create") && slices.Contains(r.Verbs, "list") && list.GroupVersion != "events.k8s.io/v1" {
				r.Group, r.Version, _ = strings.Cut(list.GroupVersion, "/")
				if r.Version == "" {
					r.Group, r.Version = "", list.GroupVersion
				}
				all = append(all, r)
			}
		}
	}
	return all
}

// essence is what must be the same of an object and of the one that was made of it: everything but status and what the
// server writes into the metadata.
func essence(kind string, obj map[string]any) string {
	meta := obj["metadata"].(map[string]any)
	kept := map[string]any{}
	for _, name := range []string{"name", "namespace", "labels", "annotations", "finalizers"} {
		if v, ok := meta[name]; ok {
			kept[name] = v
		}
	}
	if a, ok := kept["annotations"].(map[string]any); ok {
		if delete(a, "kubectl.kubernetes.io/last-applied-configuration"); len(a) == 0 {
			delete(kept, "annotations")
		}
	}
	obj["metadata"] = kept
	delete(obj, "status")
	spec, _ := obj["spec"].(map[string]any)
	switch kind {
	case "Service": // an address of the other cluster
		delete(spec, "clusterIP")
		delete(spec, "clusterIPs")
	case "PersistentVolume": // whose claim is another one
		ref := spec["claimRef"].(map[string]any)
		delete(ref, "uid")
	case "StatefulSet": // a default that is written into a status there
		for _, c := range spec["volumeClaimTemplates"].([]any) {
			delete(c.(map[string]any), "status")
		}
	case "CertificateSigningRequest": // who asked
		delete(spec, "extra")
	case "Job": // ties it to its pods by its UID
		delete(spec, "selector")
		for _, labels := range []any{kept["labels"], spec["template"].(map[string]any)["metadata"].(map[string]any)["labels"]} {
			if m, ok := labels.(map[string]any); ok {
				for _, name := range []string{"controller-uid", "job-name"} {
					delete(m, name)
					delete(m, "batch.kubernetes.io/"+name)
				}
			}
		}
	}
	text, err := yaml.Marshal(obj)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// TestEveryKindComesBack: an object of every kind that an API server keeps is got out of a snapshot and applied to an empty
// cluster, where it is the same.
func TestEveryKindComesBack(t *testing.T) {
	from, to := newKube(t), newKube(t)
	samples, err := os.ReadFile("testdata/kinds.yaml")
	require.NoError(t, err)
	require.NoError(t, from.Apply(t.Context(), "rt", samples))
	name := map[string]string{}
	for _, doc := range bytes.Split(samples, []byte("\n---\n")) {
		var o metav1.PartialObjectMetadata
		require.NoError(t, yaml.Unmarshal(doc, &o))
		name[o.APIVersion+" "+o.Kind] = o.Name
	}
	db := from.save()

	type sample struct{ kind, path, text string }
	var first, rest []sample
	for _, r := range from.resources() {
		gv := metav1.GroupVersion{Group: r.Group, Version: r.Version}.String()
		n, ok := name[gv+" "+r.Kind]
		require.True(t, ok, "testdata/kinds.yaml has a %s %s", gv, r.Kind)
		path := "/apis/" + gv
		if r.Group == "" {
			path = "/api/" + gv
		}
		if r.Namespaced {
			path += "/namespaces/rt"
		}
		o := quietly(t, "get", strings.Trim(r.Name+"."+r.Group, "."), n, "-n", "rt", "--from", db, "-o", "yaml", "--show-secrets")
		require.Zero(t, o.code, "%s %s: %s", gv, r.Kind, o.stderr)
		s := sample{r.Kind, path + "/" + r.Name + "/" + n, o.stdout}
		if slices.Contains([]string{"Namespace", "CustomResourceDefinition", "ServiceAccount"}, r.Kind) {
			first = append(first, s)
		} else {
			rest = append(rest, s)
		}
	}
	require.Greater(t, len(rest), 50)
	slices.SortStableFunc(first, func(a, b sample) int { return strings.Compare(a.kind, b.kind) }) // a ServiceAccount lies in a Namespace
	for _, s := range first {
		to.must(s.text, "apply", "-f", "-")
	}
	to.must("", "wait", "--for=condition=Established", "crd/widgets.example.test", "--timeout=60s")
	// What admission fills pods in from comes last, as it does among the samples.
	limits := slices.IndexFunc(rest, func(s sample) bool { return s.kind == "LimitRange" })
	rest = append(slices.Delete(slices.Clone(rest), limits, limits+1), rest[limits])
	for _, s := range append(first, rest...) {
		t.Run(s.kind, func(t *testing.T) {
			out, ok := to.kubectl(s.text, "apply", "-f", "-")
			require.True(t, ok, "%s\n%s", out, s.text)
			require.Equal(t, essence(s.kind, from.raw(s.path)), essence(s.kind, to.raw(s.path)))
		})
	}

	// Names are what the API server says they are.
	for _, r := range from.resources() {
		for _, word := range append([]string{r.Name, r.SingularName, r.Kind, r.Name + "." + r.Group, r.Name + "." + r.Version + "." + r.Group}, r.ShortNames...) {
			o := quietly(t, "keys", strings.Trim(word, "."), "-n", "rt", "--from", db, "-o", "json")
			require.Zero(t, o.code, "%s: %s", word, o.stderr)
			require.Contains(t, o.stdout, fmt.Sprintf(`"kind": %q`, r.Kind), word)
			if r.Namespaced {
				require.Contains(t, o.stdout, `"namespace": "rt"`, word)
			} else {
				require.NotContains(t, o.stdout, `"namespace"`, word)
			}
		}
	}
}
