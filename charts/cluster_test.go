package charts

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"

	"etcdsnapshot.dev/agent/api"
	v1 "etcdsnapshot.dev/agent/api/v1"
)

// knownCluster is a cluster for the templates' lookups.
type knownCluster struct{ client dynamic.Interface }

func (c knownCluster) GetClientFor(apiVersion, kind string) (dynamic.NamespaceableResourceInterface, bool, error) {
	switch kind {
	case "CustomResourceDefinition":
		return c.client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}), false, nil
	case "Namespace":
		return c.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}), false, nil
	}
	return nil, false, errors.New("the templates look up a kind that no test knows: " + apiVersion + " " + kind)
}

// clusterWith gives a cluster with the namespace kube-system and, where an owner is named, the CRDs of that release.
func clusterWith(t testing.TB, ownerNamespace, ownerName string) knownCluster {
	t.Helper()
	kubeSystem := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "kube-system"}}}
	objects := []runtime.Object{kubeSystem}
	if ownerName != "" {
		data, err := api.CRD(v1.PolicyResource)
		require.NoError(t, err)
		crd := &unstructured.Unstructured{Object: plain(t, data)}
		crd.SetAnnotations(map[string]string{"meta.helm.sh/release-name": ownerName, "meta.helm.sh/release-namespace": ownerNamespace})
		objects = append(objects, crd)
	}
	return knownCluster{fake.NewSimpleDynamicClient(runtime.NewScheme(), objects...)}
}

// inCluster renders as `helm install` does in a cluster that has these API versions besides those of Kubernetes.
func inCluster(t testing.TB, cluster knownCluster, values string, versions ...string) map[string]string {
	t.Helper()
	chart := loadChart(t)
	caps := chartutil.DefaultCapabilities.Copy()
	caps.KubeVersion = chartutil.KubeVersion{Version: "v1.37.0", Major: "1", Minor: "37"}
	caps.APIVersions = append(caps.APIVersions, versions...)
	options := chartutil.ReleaseOptions{Name: "etcd-snapshot", Namespace: "kube-system", Revision: 1, IsInstall: true}
	v, err := chartutil.ToRenderValues(chart, rendering{values: values}.valueMap(t), options, caps)
	require.NoError(t, err)
	files, err := engine.RenderWithClientProvider(chart, v, cluster)
	require.NoError(t, err)
	return files
}

const (
	policyFile = "etcd-snapshot/templates/policy.yaml"
	crdFile    = "etcd-snapshot/templates/crds/etcdsnapshotpolicies.yaml"
	notesFile  = "etcd-snapshot/templates/NOTES.txt"
	policyKind = "etcdsnapshot.dev/v1/EtcdSnapshotPolicy"
)

// The policy is part of every release but the one that brings its CRD: Helm looks up every kind before it makes the first
// object. TestInstallOnARealAPIServer goes on from there.
func TestPolicyFollowsItsCRD(t *testing.T) {
	t.Parallel()
	files := inCluster(t, clusterWith(t, "", ""), "")
	require.Empty(t, documents(files[policyFile]))
	require.Contains(t, files[notesFile], "is made by the first run")

	files = inCluster(t, clusterWith(t, "kube-system", "etcd-snapshot"), "", policyKind)
	require.Len(t, documents(files[policyFile]), 1)
	require.NotContains(t, files[notesFile], "is made by the first run")

	files = inCluster(t, clusterWith(t, "", ""), "crds: {enabled: false}")
	require.Len(t, documents(files[policyFile]), 1, "nobody brings the CRD: Helm shall say so")
}

func TestOnlyTheOwnerRendersTheCRDs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		namespace, name string
		renders         bool
	}{
		{"", "", true},
		{"kube-system", "etcd-snapshot", true},
		{"kube-system", "other", false},
		{"elsewhere", "etcd-snapshot", false},
	} {
		files := inCluster(t, clusterWith(t, c.namespace, c.name), "", policyKind)
		require.Equal(t, c.renders, len(documents(files[crdFile])) == 1, fmt.Sprint(c))
		if c.renders {
			require.NotContains(t, files[notesFile], "The CRDs belong")
		} else {
			require.Contains(t, files[notesFile], "The CRDs belong to the release "+c.namespace+"/"+c.name)
		}
	}
}
