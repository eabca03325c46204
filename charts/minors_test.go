package charts

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

// kubernetesField is a field of a type of Kubernetes, as ci/kubetypes has found it.
type kubernetesField struct {
	Type         string
	Since, Until int
}

// kubernetesTypes are the types that the chart's objects are made of, with their fields in every supported minor.
var kubernetesTypes = sync.OnceValues(func() (types map[string]map[string]kubernetesField, err error) {
	data, err := os.ReadFile(filepath.Join("testdata", "kubernetes.json"))
	if err == nil {
		err = json.Unmarshal(data, &types)
	}
	return types, err
})

// unknownFields gives the fields of v, an object of that type, which the minor lacks.
func unknownFields(types map[string]map[string]kubernetesField, typeName, path string, v any, minor int) (unknown []string) {
	if rest, ok := strings.CutPrefix(typeName, "[]"); ok {
		list, _ := v.([]any)
		for i, item := range list {
			unknown = append(unknown, unknownFields(types, rest, fmt.Sprintf("%s[%d]", path, i), item, minor)...)
		}
		return unknown
	}
	object, ok := v.(map[string]any)
	if !ok || typeName == "" {
		return nil
	}
	if rest, ok := strings.CutPrefix(typeName, "{}"); ok {
		for k, item := range object {
			unknown = append(unknown, unknownFields(types, rest, path+"."+k, item, minor)...)
		}
		return unknown
	}
	fields := map[string]kubernetesField{}
	var collect func(name string)
	collect = func(name string) {
		for k, f := range types[name] {
			if strings.HasPrefix(k, "inline ") {
				collect(f.Type)
			} else {
				fields[k] = f
			}
		}
	}
	collect(typeName)
	for k, item := range object {
		f, ok := fields[k]
		if !ok || minor < f.Since || minor > f.Until {
			unknown = append(unknown, path+"."+k)
			continue
		}
		unknown = append(unknown, unknownFields(types, f.Type, path+"."+k, item, minor)...)
	}
	return unknown
}

// typeOfObject is how the types are told apart by an object's apiVersion.
func typeOfObject(t testing.TB, object map[string]any) string {
	t.Helper()
	group, ok := map[string]string{"v1": "core/v1", "batch/v1": "batch/v1", "rbac.authorization.k8s.io/v1": "rbac/v1", "apiextensions.k8s.io/v1": "apiextensions/v1"}[str(object["apiVersion"])]
	require.True(t, ok, "no types of %v are known", object["apiVersion"])
	return group + "." + str(object["kind"])
}

// Every field of every object is one that each supported minor of Kubernetes has.
func TestObjectsFitEveryMinor(t *testing.T) {
	t.Parallel()
	types, err := kubernetesTypes()
	require.NoError(t, err)
	eachScenario(t, func(t *testing.T, values string) {
		for _, doc := range documents(render(t, rendering{values: values}).manifest) {
			object := plain(t, doc)
			if object["kind"] == v1.PolicyKind || object["kind"] == "PrometheusRule" || strings.Contains(string(doc), "extra-objects.yaml") {
				continue // not Kubernetes' own
			}
			name := typeOfObject(t, object)
			require.Contains(t, types, name)
			for _, minor := range supportedMinors {
				require.Empty(t, unknownFields(types, name, name, object, minor), "1.%d does not know these", minor)
			}
		}
	})
	// The check tells a field that came later, and one that never was.
	for _, minor := range supportedMinors {
		pod := map[string]any{"apiVersion": "v1", "kind": "Pod", "spec": map[string]any{"containers": []any{map[string]any{"resizePolicy": []any{}, "misspelt": 1}}, "resources": map[string]any{}}}
		said := unknownFields(types, "core/v1.Pod", "pod", pod, minor)
		require.Contains(t, said, "pod.spec.containers[0].misspelt")
		require.Equal(t, minor < 32, strings.Contains(fmt.Sprint(said), "pod.spec.resources"), "spec.resources came with 1.32")
	}
}
