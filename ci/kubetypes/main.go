// Command kubetypes writes charts/testdata/kubernetes.json: which fields the objects of the chart may have in each minor
// of Kubernetes, read out of the Go types that each minor's k8s.io/api has published. The chart's tests then need no
// network. Its arguments are the first and the last minor.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
)

// field says where a field leads and which minors have it.
type field struct {
	// Type is a key of the table, after [] in a list and after {} in a map; empty for anything without fields.
	Type string `json:"type,omitempty"`
	// Since and Until are the first and the last minor that have it.
	Since int `json:"since"`
	Until int `json:"until"`
}

// packages are those that the chart's objects are made of: folder in the module, by the name that the table uses.
var packages = []struct{ name, module, dir string }{
	{"core/v1", "k8s.io/api", "core/v1"},
	{"batch/v1", "k8s.io/api", "batch/v1"},
	{"rbac/v1", "k8s.io/api", "rbac/v1"},
	{"meta/v1", "k8s.io/apimachinery", "pkg/apis/meta/v1"},
	{"apiextensions/v1", "k8s.io/apiextensions-apiserver", "pkg/apis/apiextensions/v1"},
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "kubetypes:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: kubetypes FIRST-MINOR LAST-MINOR")
	}
	first, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	last, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	table := map[string]map[string]*field{}
	for minor := first; minor <= last; minor++ {
		for _, p := range packages {
			dir, err := download(fmt.Sprintf("%s@v0.%d.0", p.module, minor))
			if err != nil {
				return err
			}
			if err := read(table, p.name, filepath.Join(dir, p.dir), minor); err != nil {
				return err
			}
		}
	}
	data, err := json.MarshalIndent(table, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join("charts", "testdata", "kubernetes.json"), append(data, '\n'), 0o644)
}

func download(module string) (dir string, err error) {
	out, err := exec.Command("go", "mod", "download", "-json", module).Output()
	if err != nil {
		return "", fmt.Errorf("download %s: %w", module, err)
	}
	var answer struct{ Dir string }
	err = json.Unmarshal(out, &answer)
	return answer.Dir, err
}

// read adds the types of one package.
func read(table map[string]map[string]*field, name, dir string, minor int) error {
	files, err := filepath.Glob(filepath.Join(dir, "types*.go"))
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("%s holds no types", dir)
	}
	structs := map[string]*ast.StructType{}
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if s, ok := spec.Type.(*ast.StructType); ok {
					structs[spec.Name.Name] = s
				}
			}
			return true
		})
	}
	for typeName, s := range structs {
		key := name + "." + typeName
		if table[key] == nil {
			table[key] = map[string]*field{}
		}
		for _, f := range s.Fields.List {
			tag := ""
			if f.Tag != nil {
				tag = reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json")
			}
			jsonName, _, _ := strings.Cut(tag, ",")
			if jsonName == "-" {
				continue
			}
			t := typeOf(f.Type, name, structs)
			if jsonName == "" { // embedded: its fields are this one's
				jsonName = "inline " + t
			}
			known := table[key][jsonName]
			if known == nil {
				known = &field{Since: minor}
				table[key][jsonName] = known
			}
			known.Type, known.Until = t, minor
		}
	}
	return nil
}

// typeOf gives a type as the table names it.
func typeOf(e ast.Expr, pkg string, structs map[string]*ast.StructType) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return typeOf(e.X, pkg, structs)
	case *ast.ArrayType:
		return within("[]", typeOf(e.Elt, pkg, structs))
	case *ast.MapType:
		return within("{}", typeOf(e.Value, pkg, structs))
	case *ast.Ident:
		switch {
		// These write themselves as a schema, or as something without fields.
		case strings.HasSuffix(e.Name, "OrArray"), strings.HasSuffix(e.Name, "OrBool"):
			return pkg + ".JSONSchemaProps"
		case pkg == "apiextensions/v1" && e.Name == "JSONSchemaDefinitions", e.Name == "JSONSchemaDependencies":
			return "{}" + pkg + ".JSONSchemaProps"
		case e.Name == "JSON", e.Name == "Time", e.Name == "MicroTime", e.Name == "Duration", e.Name == "FieldsV1":
			return ""
		case structs[e.Name] != nil:
			return pkg + "." + e.Name
		}
	case *ast.SelectorExpr:
		from, ok := e.X.(*ast.Ident)
		if !ok || e.Sel.Name == "Time" || e.Sel.Name == "MicroTime" || e.Sel.Name == "Duration" {
			return ""
		}
		switch from.Name {
		case "metav1":
			return "meta/v1." + e.Sel.Name
		case "corev1":
			return "core/v1." + e.Sel.Name
		}
	}
	return ""
}

func within(mark, t string) string {
	if t == "" {
		return ""
	}
	return mark + t
}
