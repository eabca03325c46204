// Command gitopstypes writes charts/testdata/gitops.json: the schemas of the objects in docs/examples, out of the CRDs that
// the projects publish with their Go modules. The test of the examples then needs no network.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"sigs.k8s.io/yaml"
)

// sources are the modules and their CRDs. Cluster API's provider for Helm is not among them: its module is not published
// everywhere, and the test knows its one kind by hand.
var sources = []struct{ module, file string }{
	{"github.com/argoproj/argo-cd/v3@v3.3.0", "manifests/crds/applicationset-crd.yaml"},
	{"github.com/fluxcd/helm-controller@v1.4.0", "config/crd/bases/helm.toolkit.fluxcd.io_helmreleases.yaml"},
	{"github.com/fluxcd/source-controller@v1.7.0", "config/crd/bases/source.toolkit.fluxcd.io_ocirepositories.yaml"},
	{"sigs.k8s.io/cluster-api@v1.14.2", "core/config/crd/bases/addons.cluster.x-k8s.io_clusterresourcesets.yaml"},
}

// crd is what of a CustomResourceDefinition is of interest.
type crd struct {
	Spec struct {
		Group string
		Names struct{ Kind string }
		// Versions that are served, each with its schema.
		Versions []struct {
			Name   string
			Served bool
			Schema struct {
				OpenAPIV3Schema map[string]any `json:"openAPIV3Schema"`
			}
		}
	}
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "gitopstypes:", err)
		os.Exit(1)
	}
}

func run() error {
	schemas := map[string]map[string]any{}
	for _, s := range sources {
		dir, err := download(s.module)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(filepath.Join(dir, s.file))
		if err != nil {
			return err
		}
		var c crd
		if err := yaml.Unmarshal(data, &c); err != nil {
			return fmt.Errorf("%s: %w", s.file, err)
		}
		for _, v := range c.Spec.Versions {
			if !v.Served {
				continue
			}
			schema := v.Schema.OpenAPIV3Schema
			delete(schema["properties"].(map[string]any), "status")
			if c.Spec.Names.Kind == "ApplicationSet" {
				keepGenerators(schema, "clusters", "list")
			}
			undescribed(schema)
			schemas[c.Spec.Group+"/"+v.Name+" "+c.Spec.Names.Kind] = schema
		}
	}
	data, err := json.Marshal(schemas)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join("charts", "testdata", "gitops.json"), append(data, '\n'), 0o644)
}

// keepGenerators drops the generators that no example uses: each repeats the whole Application, several times.
func keepGenerators(schema map[string]any, names ...string) {
	at := schema
	for _, key := range []string{"properties", "spec", "properties", "generators", "items"} {
		at = at[key].(map[string]any)
	}
	all := at["properties"].(map[string]any)
	kept := map[string]any{}
	for _, name := range names {
		kept[name] = all[name]
	}
	at["properties"] = kept
}

// undescribed removes the descriptions of fields, but no field that is called description.
func undescribed(schema map[string]any) {
	delete(schema, "description")
	for _, key := range []string{"additionalProperties", "items"} {
		if child, ok := schema[key].(map[string]any); ok {
			undescribed(child)
		}
	}
	fields, _ := schema["properties"].(map[string]any)
	for _, field := range fields {
		undescribed(field.(map[string]any))
	}
}

func download(module string) (dir string, err error) {
	out, err := exec.Command("go", "mod", "download", "-json", module).Output()
	if err != nil {
		return "", fmt.Errorf("download %s: %w", module, err)
	}
	var m struct{ Dir string }
	return m.Dir, json.Unmarshal(out, &m)
}
