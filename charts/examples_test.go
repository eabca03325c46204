package charts

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"text/template"

	"github.com/Masterminds/sprig/v3"
	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

const examplesDir = "../docs/examples"

// example gives the objects of a file of docs/examples, each checked by its own CRD: no field that it does not know, and
// all of its rules.
func example(t *testing.T, file string) map[string]map[string]any {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(examplesDir, file))
	require.NoError(t, err)
	data2, err := os.ReadFile("testdata/gitops.json") // make gitops-types
	require.NoError(t, err)
	var schemas map[string]*apiextv1.JSONSchemaProps
	require.NoError(t, json.Unmarshal(data2, &schemas))
	// Of a project whose CRDs cannot be had as a Go module: the fields of its v1alpha1.
	var helmChartProxy apiextv1.JSONSchemaProps
	require.NoError(t, yaml.UnmarshalStrict([]byte(`
type: object
properties:
  spec:
    type: object
    required: [chartName, clusterSelector, repoURL]
    properties:
      clusterSelector: {type: object, properties: {matchLabels: {type: object, additionalProperties: {type: string}}}}
      chartName: {type: string}
      repoURL: {type: string}
      version: {type: string}
      releaseName: {type: string}
      namespace: {type: string}
      valuesTemplate: {type: string}
`), &helmChartProxy))
	schemas["addons.cluster.x-k8s.io/v1alpha1 HelmChartProxy"] = &helmChartProxy

	objects := map[string]map[string]any{}
	for _, doc := range documents(string(data)) {
		var o map[string]any
		require.NoError(t, yaml.UnmarshalStrict([]byte(doc), &o))
		u := unstructured.Unstructured{Object: o}
		s, ok := schemas[u.GetAPIVersion()+" "+u.GetKind()]
		require.True(t, ok, "%s: nobody knows %s %s", file, u.GetAPIVersion(), u.GetKind())
		require.Empty(t, refusal(t, s, o), file)
		broken := runtime.DeepCopyJSON(o)
		require.NoError(t, unstructured.SetNestedField(broken, "x", "spec", "sepc"))
		require.Contains(t, refusal(t, s, broken), "spec.sepc: unknown field", "a schema that lets everything pass")
		objects[u.GetKind()] = o
	}
	return objects
}

// refusal is what the API server would say of the object; nothing where it would take it and keep every field.
func refusal(t *testing.T, s *apiextv1.JSONSchemaProps, object map[string]any) (said []string) {
	t.Helper()
	var internal apiextensions.JSONSchemaProps
	require.NoError(t, apiextv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(s, &internal, nil))
	structural, err := schema.NewStructural(&internal)
	require.NoError(t, err)
	options := schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}
	for _, path := range pruning.PruneWithOptions(runtime.DeepCopyJSON(object), structural, true, options) {
		said = append(said, path+": unknown field")
	}
	v, _, err := validation.NewSchemaValidator(&internal)
	require.NoError(t, err)
	errs := validation.ValidateCustomResource(nil, object, v)
	more, _ := cel.NewValidator(structural, true, celconfig.PerCallLimit).Validate(t.Context(), nil, structural, object, nil, celconfig.RuntimeCELCostBudget)
	for _, err := range append(errs, more...) {
		said = append(said, err.Error())
	}
	return said
}

// filled is a Go template as the tools execute it.
func filled(t *testing.T, text string, data any) string {
	t.Helper()
	tmpl, err := template.New("example").Option("missingkey=error").Funcs(sprig.TxtFuncMap()).Parse(text)
	require.NoError(t, err)
	var b bytes.Buffer
	require.NoError(t, tmpl.Execute(&b, data))
	return b.String()
}

func nested(t *testing.T, o map[string]any, fields ...string) any {
	t.Helper()
	v, ok, err := unstructured.NestedFieldNoCopy(o, fields...)
	require.NoError(t, err)
	require.True(t, ok, "%v", fields)
	return v
}

// TestExamples: the objects are valid by their own CRDs, the values in them are those of values.yaml with a cluster's name,
// and the chart renders with them.
func TestExamples(t *testing.T) {
	t.Parallel()
	common, err := os.ReadFile(filepath.Join(examplesDir, "values.yaml"))
	require.NoError(t, err)
	var want map[string]any
	require.NoError(t, yaml.UnmarshalStrict(common, &want))
	install := func(t *testing.T, values map[string]any) {
		t.Helper()
		data, err := json.Marshal(values)
		require.NoError(t, err)
		o := render(t, rendering{values: string(data)})
		require.Equal(t, "prod-eu", o.policy(t).Spec.ClusterName)
		require.Regexp(t, `^\d+ \*/6 `, o.cronJob(t).Spec.Schedule)
		shared := maps.Clone(values)
		delete(shared, "clusterName")
		require.Equal(t, want, shared, "the values are not those of values.yaml")
	}
	seen := map[string]bool{"values.yaml": true}
	is := func(file string, test func(t *testing.T, objects map[string]map[string]any)) {
		seen[file] = true
		t.Run(file, func(t *testing.T) { test(t, example(t, file)) })
	}
	is("argocd.yaml", func(t *testing.T, objects map[string]map[string]any) {
		cluster := map[string]any{"name": "prod_EU", "nameNormalized": "prod-eu", "server": "https://10.0.0.1:6443", "metadata": map[string]any{"labels": map[string]any{"stage": "canary"}}}
		text, err := yaml.Marshal(nested(t, objects["ApplicationSet"], "spec", "template"))
		require.NoError(t, err)
		var app map[string]any
		require.NoError(t, yaml.UnmarshalStrict([]byte(filled(t, string(text), cluster)), &app))
		require.Equal(t, "canary", nested(t, app, "metadata", "labels", "stage"))
		require.NotContains(t, nested(t, app, "spec", "source", "repoURL"), "oci://", "Argo CD wants no scheme there")
		install(t, nested(t, app, "spec", "source", "helm", "valuesObject").(map[string]any))
	})
	is("flux.yaml", func(t *testing.T, objects map[string]map[string]any) {
		release := objects["HelmRelease"]
		require.Equal(t, nested(t, objects["OCIRepository"], "metadata", "name"), nested(t, release, "spec", "chartRef", "name"))
		values := maps.Clone(nested(t, release, "spec", "values").(map[string]any))
		from := nested(t, release, "spec", "valuesFrom").([]any)[0].(map[string]any)
		values[from["targetPath"].(string)] = "prod-eu"
		install(t, values)
	})
	is("cluster-api-helm.yaml", func(t *testing.T, objects map[string]map[string]any) {
		text := nested(t, objects["HelmChartProxy"], "spec", "valuesTemplate").(string)
		var values map[string]any
		require.NoError(t, yaml.UnmarshalStrict([]byte(filled(t, text, map[string]any{"Cluster": map[string]any{"metadata": map[string]any{"name": "prod-eu"}}})), &values))
		install(t, values)
	})
	is("cluster-api-resources.yaml", func(t *testing.T, _ map[string]map[string]any) {
		text, err := os.ReadFile(filepath.Join(examplesDir, "cluster-api-resources.yaml"))
		require.NoError(t, err)
		var set []string
		for _, m := range regexp.MustCompile(`--set (\S+?)='([^']*)'`).FindAllStringSubmatch(string(text), -1) {
			set = append(set, m[1]+"="+m[2])
		}
		require.Len(t, set, 2)
		o := render(t, rendering{values: string(common), set: set})
		require.Less(t, len(o.manifest), 1<<20*3/4, "it must fit into a Secret, with room for what is to come")
	})
	files, err := os.ReadDir(examplesDir)
	require.NoError(t, err)
	for _, f := range files {
		require.True(t, seen[f.Name()], "no test knows %s", f.Name())
	}
}
