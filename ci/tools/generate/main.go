// Command generate writes everything that is derived from the Go types in agent/api/v1: their DeepCopy methods,
// the CRDs (embedded in the agent, and as templates of the chart) and the JSON Schemas under schemas/; and from the
// chart's values.yaml and presets.yaml: the schema of its values and the tables in its README. From Kubernetes' own Go types
// it writes what the agent needs to read objects out of etcd, and from the agent's own flags the reference in docs/.
//
// It is run by `make generate`; `make verify` fails when what it writes differs from what is committed.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/tools/go/packages"
	apiext "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-tools/pkg/crd"
	crdmarkers "sigs.k8s.io/controller-tools/pkg/crd/markers"
	"sigs.k8s.io/controller-tools/pkg/deepcopy"
	"sigs.k8s.io/controller-tools/pkg/genall"
	"sigs.k8s.io/controller-tools/pkg/loader"
	"sigs.k8s.io/controller-tools/pkg/markers"
	"sigs.k8s.io/yaml"
)

const group = "etcdsnapshot.dev"

func main() {
	root := flag.String("root", "../..", "folder of the repository")
	flag.Parse()
	if err := run(*root); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func run(root string) error {
	if err := deepCopy(root); err != nil {
		return fmt.Errorf("write DeepCopy methods: %w", err)
	}
	if err := writeKinds(root); err != nil {
		return fmt.Errorf("write the fields of Kubernetes' kinds: %w", err)
	}
	g, err := load(root)
	if err != nil {
		return err
	}
	for kind, schemaName := range map[string]string{"EtcdSnapshotPolicy": "policy", "EtcdSnapshot": "snapshot"} {
		def, err := g.crd(kind)
		if err != nil {
			return err
		}
		delete(def.Annotations, "controller-gen.kubebuilder.io/version")
		plain, err := yaml.Marshal(def)
		if err != nil {
			return err
		}
		plain = dropStatus(plain)
		file := def.Spec.Names.Plural + ".yaml"
		if err := write(filepath.Join(root, "agent/api/crds", file), generated("# ", plain)); err != nil {
			return err
		}
		if err := write(filepath.Join(root, "charts/etcd-snapshot/templates/crds", file), template(plain)); err != nil {
			return err
		}
		if err := writeSchema(root, schemaName, kind+" of "+group+"/v1", withTypeMeta(*def.Spec.Versions[0].Schema.OpenAPIV3Schema, kind)); err != nil {
			return err
		}
	}
	for typeName, title := range map[string]string{"Manifest": "Manifest of a stored snapshot", "Notice": "Notice of how a run ended, as a webhook gets it"} {
		s, err := g.flattened(typeName)
		if err != nil {
			return err
		}
		if err := writeSchema(root, strings.ToLower(typeName), title, s); err != nil {
			return err
		}
	}
	if err := g.writeChart(filepath.Join(root, "charts/etcd-snapshot")); err != nil {
		return err
	}
	return reference(root)
}

// reference writes docs/reference. It is a program of the agent's own module, since the agent's flags are in it.
func reference(root string) error {
	cmd := exec.Command("go", "run", "./ci/docs/reference")
	cmd.Dir, cmd.Stdout, cmd.Stderr = root, os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("write docs/reference: %w", err)
	}
	return nil
}

// deepCopy writes agent/api/v1/zz_generated.deepcopy.go.
func deepCopy(root string) error {
	var gen genall.Generator = deepcopy.Generator{}
	rt, err := genall.Generators{&gen}.ForRootsWithConfig(&packages.Config{Dir: abs(root)}, "./agent/api/v1")
	if err != nil {
		return err
	}
	rt.OutputRules.Default = genall.OutputArtifacts{Config: genall.OutputToDirectory(os.DevNull)} // code goes beside its package
	if failed := rt.Run(); failed {
		return fmt.Errorf("the generator failed: see above")
	}
	return nil
}

func abs(p string) string {
	a, err := filepath.Abs(p)
	if err != nil {
		panic(err)
	}
	return a
}

type generator struct {
	root   string
	parser *crd.Parser
	pkg    *loader.Package
	// corePkg is Kubernetes' core/v1, loaded when it is first needed.
	corePkg *loader.Package
}

func load(root string) (*generator, error) {
	pkgs, err := loader.LoadRootsWithConfig(&packages.Config{Dir: abs(root)}, "./agent/api/v1")
	if err != nil {
		return nil, fmt.Errorf("load the API types: %w", err)
	}
	reg := &markers.Registry{}
	if err := (crd.Generator{}).RegisterMarkers(reg); err != nil {
		return nil, err
	}
	if err := crdmarkers.Register(reg); err != nil {
		return nil, err
	}
	p := &crd.Parser{Collector: &markers.Collector{Registry: reg}, Checker: &loader.TypeChecker{}, GenerateEmbeddedObjectMeta: false}
	crd.AddKnownTypes(p)
	for _, pkg := range pkgs {
		p.NeedPackage(pkg)
	}
	if loader.PrintErrors(pkgs, packages.TypeError) {
		return nil, fmt.Errorf("the API types do not compile: see above")
	}
	return &generator{root: root, parser: p, pkg: pkgs[0]}, nil
}

func (g *generator) crd(kind string) (*apiext.CustomResourceDefinition, error) {
	gk := schema.GroupKind{Group: group, Kind: kind}
	g.parser.NeedCRDFor(gk, nil)
	def, ok := g.parser.CustomResourceDefinitions[gk]
	if !ok {
		return nil, fmt.Errorf("no CRD was made for %s", kind)
	}
	if loader.PrintErrors([]*loader.Package{g.pkg}, packages.TypeError) {
		return nil, fmt.Errorf("the markers of %s are wrong: see above", kind)
	}
	crd.FixTopLevelMetadata(def)
	return &def, nil
}

func (g *generator) flattened(typeName string) (apiext.JSONSchemaProps, error) {
	id := crd.TypeIdent{Package: g.pkg, Name: typeName}
	g.parser.NeedFlattenedSchemaFor(id)
	s, ok := g.parser.FlattenedSchemata[id]
	if !ok {
		return s, fmt.Errorf("no schema was made for %s", typeName)
	}
	return s, nil
}

// dropStatus removes the empty status that Go types give every CRD.
func dropStatus(y []byte) []byte {
	if i := bytes.Index(y, []byte("\nstatus:\n")); i >= 0 {
		y = y[:i+1]
	}
	return y
}

func generated(comment string, body []byte) []byte {
	return append([]byte(comment+"Code generated by `make generate` from agent/api/v1. DO NOT EDIT.\n"), body...)
}

// template makes a chart template of a CRD: behind crds.enabled (and only where no other release owns it), kept on uninstall with crds.keep.
func template(plain []byte) []byte {
	body := strings.ReplaceAll(string(plain), "{{", `{{ "{{" }}`)
	const meta = "metadata:\n"
	if strings.Count(body, "\n"+meta) != 1 {
		panic("a CRD has one metadata at its top level")
	}
	body = strings.Replace(body, "\n"+meta, "\n"+meta+`  labels:
    {{- include "etcd-snapshot.labels" . | nindent 4 }}
  {{- if .Values.crds.keep }}
  annotations:
    helm.sh/resource-policy: keep
  {{- end }}
`, 1)
	return []byte("{{- /* Code generated by `make generate` from agent/api/v1. DO NOT EDIT. */ -}}\n{{- if include \"etcd-snapshot.rendersCRDs\" . }}\n" + body + "{{- end }}\n")
}

// withTypeMeta pins apiVersion and kind, which a CRD's schema leaves open.
func withTypeMeta(s apiext.JSONSchemaProps, kind string) apiext.JSONSchemaProps {
	s = *s.DeepCopy()
	s.Properties["apiVersion"] = apiext.JSONSchemaProps{Type: "string", Enum: []apiext.JSON{{Raw: []byte(`"` + group + `/v1"`)}}}
	s.Properties["kind"] = apiext.JSONSchemaProps{Type: "string", Enum: []apiext.JSON{{Raw: []byte(`"` + kind + `"`)}}}
	s.Required = append([]string{"apiVersion", "kind", "metadata"}, s.Required...)
	seen, required := map[string]bool{}, []string{}
	for _, r := range s.Required {
		if !seen[r] {
			seen[r], required = true, append(required, r)
		}
	}
	s.Required = required
	return s
}

// writeSchema writes schemas/<name>.schema.json: draft-07, closed wherever fields are listed.
func writeSchema(root, name, title string, s apiext.JSONSchemaProps) error {
	raw, err := json.Marshal(s)
	if err != nil {
		return err
	}
	var doc map[string]any
	if err := json.Unmarshal(raw, &doc); err != nil {
		return err
	}
	closeObjects(doc)
	doc["$schema"] = "http://json-schema.org/draft-07/schema#"
	doc["$id"] = "https://etcdsnapshot.dev/schemas/" + name + ".schema.json"
	doc["title"] = title
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(doc); err != nil {
		return err
	}
	return write(filepath.Join(root, "schemas", name+".schema.json"), out.Bytes())
}

// closeObjects forbids unknown fields and drops what only Kubernetes reads (x-kubernetes-*).
func closeObjects(node any) {
	switch n := node.(type) {
	case map[string]any:
		for k := range n {
			if strings.HasPrefix(k, "x-kubernetes-") {
				delete(n, k)
			}
		}
		if props, ok := n["properties"].(map[string]any); ok && n["type"] == "object" && n["additionalProperties"] == nil && len(props) > 0 {
			n["additionalProperties"] = false
		}
		for k, v := range n {
			if k != "if" { // a condition looks at some fields only
				closeObjects(v)
			}
		}
	case []any:
		for _, v := range n {
			closeObjects(v)
		}
	}
}

func write(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}
