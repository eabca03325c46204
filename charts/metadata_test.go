package charts

import (
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"etcdsnapshot.dev/agent/api"
)

// What Artifact Hub shows is what the chart installs.
func TestChartMetadata(t *testing.T) {
	t.Parallel()
	meta := loadChart(t).Metadata
	require.Equal(t, ">=1.27.0-0", meta.KubeVersion)
	require.Equal(t, "Apache-2.0", meta.Annotations["artifacthub.io/license"])
	o := render(t, rendering{})

	list := func(name string) []map[string]any {
		t.Helper()
		var items []map[string]any
		require.NoError(t, yaml.Unmarshal([]byte(meta.Annotations["artifacthub.io/"+name]), &items))
		require.NotEmpty(t, items, name)
		return items
	}
	images := list("images")
	require.Len(t, images, 1)
	require.Equal(t, o.agent(t).Image, images[0]["image"])
	listed := map[string]string{}
	for _, crd := range list("crds") {
		listed[str(crd["name"])] = str(crd["kind"])
	}
	installed := map[string]string{}
	for _, crd := range o.crds {
		installed[crd.Name] = crd.Spec.Names.Kind
	}
	require.Equal(t, installed, listed)
	for _, example := range list("crdsExamples") {
		text, err := yaml.Marshal(example)
		require.NoError(t, err)
		_, err = api.ParsePolicy(text)
		require.NoError(t, err, "%s", text)
	}
	for _, change := range list("changes") {
		require.Contains(t, []string{"added", "changed", "deprecated", "removed", "fixed", "security"}, change["kind"])
		require.NotEmpty(t, change["description"])
	}
}
