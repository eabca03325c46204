package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
)

// writeKinds writes what agent/object needs to read Kubernetes' protobuf: the fields of all built-in kinds, out of the tags
// of their Go types. The format is described in agent/object/schema.go.
func writeKinds(root string) error {
	w := &kindsWriter{names: map[reflect.Type]string{}, done: map[string]string{}}
	var kinds []string
	for gvk, t := range scheme.Scheme.AllKnownTypes() {
		meta, ok := t.FieldByName("ObjectMeta")
		if !ok || meta.Type != reflect.TypeFor[metav1.ObjectMeta]() || gvk.Version == runtime.APIVersionInternal {
			continue // lists, options: nothing that is stored
		}
		name, err := w.message(t)
		if err != nil {
			return fmt.Errorf("%s: %w", gvk, err)
		}
		kinds = append(kinds, fmt.Sprintf("= %s %s %s\n", gvk.GroupVersion(), gvk.Kind, name))
	}
	slices.Sort(kinds)
	var b strings.Builder
	b.WriteString("# Generated from k8s.io/api by make generate. Do not edit.\n")
	for _, k := range kinds {
		b.WriteString(k)
	}
	for _, name := range slices.Sorted(maps.Keys(w.done)) {
		fmt.Fprintf(&b, ": %s\n%s", name, w.done[name])
	}
	return write(filepath.Join(root, "agent/object/kinds.txt"), []byte(b.String()))
}

type kindsWriter struct {
	names map[reflect.Type]string
	done  map[string]string // the lines of a message's fields
}

// special are the types that write themselves in a way of their own.
var special = map[reflect.Type]string{
	reflect.TypeFor[metav1.Time]():          "time",
	reflect.TypeFor[metav1.MicroTime]():     "microtime",
	reflect.TypeFor[metav1.Duration]():      "duration",
	reflect.TypeFor[resource.Quantity]():    "quantity",
	reflect.TypeFor[intstr.IntOrString]():   "intorstring",
	reflect.TypeFor[runtime.RawExtension](): "raw",
	reflect.TypeFor[metav1.FieldsV1]():      "raw",
}

// message writes down a message and all that its fields refer to, and gives its name: its package's last two elements
// and its own.
func (w *kindsWriter) message(t reflect.Type) (string, error) {
	if name, ok := w.names[t]; ok {
		return name, nil
	}
	parts := strings.Split(t.PkgPath(), "/")
	name := strings.Join(parts[len(parts)-2:], "/") + "." + t.Name()
	if _, ok := w.done[name]; ok {
		return "", fmt.Errorf("two messages are called %s", name)
	}
	w.names[t], w.done[name] = name, ""
	var b strings.Builder
	for i := range t.NumField() {
		line, err := w.field(t.Field(i))
		if err != nil {
			return "", fmt.Errorf("%s.%s: %w", name, t.Field(i).Name, err)
		}
		b.WriteString(line)
	}
	w.done[name] = b.String()
	return name, nil
}

// field gives the line of one field: its number, its name in JSON, flags, and its type.
func (w *kindsWriter) field(f reflect.StructField) (string, error) {
	if f.Type == reflect.TypeFor[metav1.TypeMeta]() {
		return "", nil // stands beside the object
	}
	tag := strings.Split(f.Tag.Get("protobuf"), ",")
	if len(tag) < 2 {
		return "", fmt.Errorf("it has no protobuf tag")
	}
	names := strings.Split(f.Tag.Get("json"), ",")
	name, options := names[0], names[1:]
	flags := ""
	if slices.Contains(options, "inline") || name == "" && f.Anonymous {
		name, flags = "-", flags+"i"
	}
	for option, flag := range map[string]string{"omitempty": "o", "omitzero": "z"} {
		if slices.Contains(options, option) {
			flags += flag
		}
	}
	t := f.Type
	if t.Kind() == reflect.Pointer {
		t, flags = t.Elem(), flags+"p"
	}
	of, more, err := w.typeOf(t)
	if err != nil {
		return "", err
	}
	if flags += more; flags == "" {
		flags = "-"
	}
	letters := strings.Split(flags, "")
	slices.Sort(letters)
	return fmt.Sprintf("%s %s %s %s\n", tag[1], name, strings.Join(letters, ""), of), nil
}

// typeOf gives the name of a type, and r for a list or m for a map of it; w says that the lists in a map are messages.
func (w *kindsWriter) typeOf(t reflect.Type) (name, flags string, err error) {
	if name, ok := special[t]; ok {
		return name, "", nil
	}
	if t.Implements(reflect.TypeFor[json.Marshaler]()) {
		return "", "", fmt.Errorf("%s writes its JSON itself, and nobody knows how", t)
	}
	switch t.Kind() {
	case reflect.String:
		return "string", "", nil
	case reflect.Bool:
		return "bool", "", nil
	case reflect.Int, reflect.Int32, reflect.Int64:
		return "int", "", nil
	case reflect.Float64:
		return "double", "", nil
	case reflect.Struct:
		name, err = w.message(t)
		return name, "", err
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "bytes", "", nil
		}
		name, flags, err = w.typeOf(t.Elem())
		if flags != "" {
			return "", "", fmt.Errorf("%s is a list of lists", t)
		}
		return name, "r", err
	case reflect.Map:
		if t.Key().Kind() != reflect.String {
			return "", "", fmt.Errorf("%s has other keys than strings", t)
		}
		name, flags, err = w.typeOf(t.Elem())
		switch {
		case flags == "r" && t.Elem().Name() != "":
			flags = "w"
		case flags != "":
			return "", "", fmt.Errorf("%s is a map of lists or maps", t)
		}
		return name, flags + "m", err
	}
	return "", "", fmt.Errorf("%s is of a kind that nobody expected", t)
}
