package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// object is a JSON Schema, or a part of one, or a value.
type object = map[string]any

// value is one key of values.yaml.
type value struct {
	// path is the keys from the root, joined by dots.
	path        string
	description string
	// annotation is what the lines @schema in its comment say.
	annotation object
	// fallback is the default.
	fallback any
	children []*value
}

// chart is what is derived from: the chart's values and its presets.
type chart struct {
	values  []*value
	presets presets
	alerts  []alert
}

type presets struct {
	Distributions map[string]preset `yaml:"distributions"`
	// order is the order of distributions in the file.
	order   []string
	Refused map[string]string `yaml:"refused"`
}

type preset struct {
	Note     string `yaml:"note"`
	Endpoint string `yaml:"endpoint"`
	Files    struct {
		CA   string `yaml:"ca"`
		Cert string `yaml:"cert"`
		Key  string `yaml:"key"`
	} `yaml:"files"`
	DataDir      string            `yaml:"dataDir"`
	Extras       []string          `yaml:"extras"`
	NodeSelector map[string]string `yaml:"nodeSelector"`
	RunAsUser    int               `yaml:"runAsUser"`
	Capabilities []string          `yaml:"capabilities"`
	SELinuxType  string            `yaml:"seLinuxType"`
	SCC          string            `yaml:"scc"`
	Restore      string            `yaml:"restore"`
}

// writeChart writes values.schema.json and the tables in README.md of the chart in dir.
func (g *generator) writeChart(dir string) error {
	c, err := readChart(dir)
	if err != nil {
		return err
	}
	schema, err := g.valuesSchema(c)
	if err != nil {
		return fmt.Errorf("make the schema of values.yaml: %w", err)
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(schema); err != nil {
		return err
	}
	if err := write(filepath.Join(dir, "values.schema.json"), out.Bytes()); err != nil {
		return err
	}
	return c.writeReadme(filepath.Join(dir, "README.md"), schema)
}

func readChart(dir string) (*chart, error) {
	c := &chart{}
	text, err := os.ReadFile(filepath.Join(dir, "values.yaml"))
	if err != nil {
		return nil, err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, fmt.Errorf("read values.yaml: %w", err)
	}
	if c.values, err = readValues(doc.Content[0], strings.Split(string(text), "\n"), ""); err != nil {
		return nil, fmt.Errorf("read values.yaml: %w", err)
	}
	text, err = os.ReadFile(filepath.Join(dir, "presets.yaml"))
	if err != nil {
		return nil, err
	}
	if err := yaml.Unmarshal(text, &c.presets); err != nil {
		return nil, fmt.Errorf("read presets.yaml: %w", err)
	}
	var ordered struct {
		Distributions yaml.Node `yaml:"distributions"`
	}
	if err := yaml.Unmarshal(text, &ordered); err != nil {
		return nil, fmt.Errorf("read presets.yaml: %w", err)
	}
	for i := 0; i < len(ordered.Distributions.Content); i += 2 {
		c.presets.order = append(c.presets.order, ordered.Distributions.Content[i].Value)
	}
	if c.alerts, err = readAlerts(dir); err != nil {
		return nil, err
	}
	return c, nil
}

func readValues(mapping *yaml.Node, lines []string, prefix string) ([]*value, error) {
	var values []*value
	for i := 0; i < len(mapping.Content); i += 2 {
		key, node := mapping.Content[i], mapping.Content[i+1]
		v := &value{path: prefix + key.Value}
		var err error
		if v.description, v.annotation, err = comment(lines, key); err != nil {
			return nil, fmt.Errorf("%s: %w", v.path, err)
		}
		if err := node.Decode(&v.fallback); err != nil {
			return nil, fmt.Errorf("%s: %w", v.path, err)
		}
		// What lies below an annotation is described by it, unless it has comments of its own.
		described := len(v.annotation) == 0 || hasComments(node, lines)
		if node.Kind == yaml.MappingNode && len(node.Content) > 0 && described {
			if v.children, err = readValues(node, lines, v.path+"."); err != nil {
				return nil, err
			}
		} else if v.description == "" {
			return nil, fmt.Errorf("%s: has no comment that describes it", v.path)
		}
		values = append(values, v)
	}
	return values, nil
}

func hasComments(mapping *yaml.Node, lines []string) bool {
	return len(mapping.Content) > 0 && strings.HasPrefix(strings.TrimSpace(lines[mapping.Content[0].Line-2]), "#")
}

// comment gives what the lines right above a key say. Headings (##) do not count.
func comment(lines []string, key *yaml.Node) (description string, annotation object, err error) {
	mark := strings.Repeat(" ", key.Column-1) + "# "
	first := key.Line - 1 // the key's own index
	for first > 0 && strings.HasPrefix(lines[first-1], mark) {
		first--
	}
	var words []string
	annotation = object{}
	for _, line := range lines[first : key.Line-1] {
		line = strings.TrimPrefix(line, mark)
		if schema, ok := strings.CutPrefix(line, "@schema "); ok {
			if err := yaml.Unmarshal([]byte(schema), &annotation); err != nil {
				return "", nil, fmt.Errorf("@schema: %w", err)
			}
			continue
		}
		words = append(words, line)
	}
	return strings.Join(words, " "), annotation, nil
}

// valuesSchema gives the schema of values.yaml: draft-07, closed at every level.
func (g *generator) valuesSchema(c *chart) (object, error) {
	b := &schemaBuilder{generator: g, presets: c.presets, alerts: c.alerts}
	root, err := b.mapping(c.values, nil)
	if err != nil {
		return nil, err
	}
	closeObjects(root)
	explainPatterns(root)
	root["$schema"] = "http://json-schema.org/draft-07/schema#"
	root["$id"] = "https://etcdsnapshot.dev/schemas/values.schema.json"
	root["title"] = "Values of the chart etcd-snapshot"
	root["allOf"] = []any{
		refuse(object{
			"required": []any{"nodes"}, "properties": object{"nodes": object{"const": "all"}, "nodeCount": object{"maximum": 0}},
		}, "nodeCount", "the number of control-plane nodes, because nodes is all"),
		opensWithoutKey(),
		extrasInTheClear(),
	}
	return root, nil
}

// opensWithoutKey refuses to verify more of encrypted snapshots than their bytes without the key that opens them.
func opensWithoutKey() object {
	rule := refuse(object{
		"required": []any{"verification", "encryption"},
		"properties": object{
			"verification": object{
				"required": []any{"schedule", "level"},
				"properties": object{
					"schedule": object{"minLength": 1}, "level": object{"not": object{"const": "checksum"}}, "identitySecret": object{"maxLength": 0},
				},
			},
			"encryption": object{
				"required":   []any{"age"},
				"properties": object{"age": object{"required": []any{"recipients"}, "properties": object{"recipients": object{"minItems": 1}}}},
			},
		},
	}, "identitySecret", "a Secret whose key identity.txt holds the age identity: verification.schedule opens encrypted snapshots. Without it only verification.level=checksum is possible")
	rule["then"] = object{"properties": object{"verification": rule["then"]}}
	return rule
}

// extrasInTheClear refuses extras that nobody is named for.
func extrasInTheClear() object {
	named := object{
		"required": []any{"encryption"},
		"properties": object{"encryption": object{
			"required":   []any{"age"},
			"properties": object{"age": object{"required": []any{"recipients"}, "properties": object{"recipients": object{"minItems": 1}}}},
		}},
	}
	rule := refuse(object{
		"required": []any{"extras"},
		"properties": object{"extras": object{
			"required": []any{"enabled"}, "properties": object{"enabled": object{"const": true}}, "not": named,
		}},
		"not": named,
	}, "encryption", "a list of recipients (age.recipients), or encryption.age.recipients must be: files of the node are never stored in the clear")
	rule["then"] = object{"properties": object{"extras": rule["then"]}}
	return rule
}

type schemaBuilder struct {
	*generator
	presets presets
	alerts  []alert
}

// mapping gives the schema of an object with these keys, on top of base.
func (b *schemaBuilder) mapping(values []*value, base object) (object, error) {
	if base == nil {
		base = object{"type": "object", "additionalProperties": false}
	}
	properties, _ := base["properties"].(object)
	if properties == nil {
		properties = object{}
	}
	for _, v := range values {
		name := v.path[strings.LastIndexByte(v.path, '.')+1:]
		inherited, _ := properties[name].(object)
		s, err := b.schema(v, inherited)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", v.path, err)
		}
		properties[name] = s
	}
	base["properties"] = properties
	return base, nil
}

// schema gives the schema of one value: the annotation upon what it refers to, upon what was inherited, upon what the
// default looks like.
func (b *schemaBuilder) schema(v *value, inherited object) (object, error) {
	s := object{}
	if t := typeOf(v.fallback); t != "" && inherited == nil {
		s["type"] = t
	}
	overlay(s, inherited)
	annotation, err := b.resolveAll(v.annotation)
	if err != nil {
		return nil, err
	}
	if ref, ok := v.annotation["$ref"].(string); ok {
		referred, err := b.resolve(ref)
		if err != nil {
			return nil, err
		}
		overlay(s, referred)
	}
	for _, field := range list(annotation["omit"]) {
		delete(s["properties"].(object), field.(string))
	}
	delete(annotation, "omit")
	overlay(s, annotation)
	if v.description != "" {
		s["description"] = v.description
	}
	if v.fallback == "" {
		allowEmpty(s)
	}
	if len(v.children) > 0 {
		base := s
		if s["properties"] == nil && s["additionalProperties"] == nil {
			base["additionalProperties"] = false
		}
		return b.mapping(v.children, base)
	}
	s["default"] = v.fallback
	switch typeOf(v.fallback) {
	case "object":
		if s["properties"] == nil && s["additionalProperties"] == nil {
			return nil, fmt.Errorf("@schema must say what may be in it")
		}
	case "array":
		if s["items"] == nil {
			return nil, fmt.Errorf("@schema must say what its items are")
		}
	case "":
		if s["type"] == nil {
			return nil, fmt.Errorf("@schema must say its type")
		}
	}
	return s, nil
}

// resolveAll replaces the references below an annotation.
func (b *schemaBuilder) resolveAll(annotation object) (object, error) {
	out := object{}
	for k, v := range annotation {
		nested, ok := v.(object)
		if k == "$ref" || !ok || k == "examples" {
			if k != "$ref" {
				out[k] = v
			}
			continue
		}
		s := object{}
		if ref, ok := nested["$ref"].(string); ok {
			var err error
			if s, err = b.resolve(ref); err != nil {
				return nil, err
			}
		}
		rest, err := b.resolveAll(nested)
		if err != nil {
			return nil, err
		}
		overlay(s, rest)
		out[k] = s
	}
	return out, nil
}

func overlay(s, over object) {
	for k, v := range over {
		if k == "required" && len(list(v)) == 0 {
			delete(s, k)
			continue
		}
		s[k] = v
	}
}

// allowEmpty lets "" pass, which in the values means the default of the chart or of the distribution.
func allowEmpty(s object) {
	delete(s, "minLength")
	if pattern, ok := s["pattern"].(string); ok {
		s["pattern"] = "^$|" + pattern
	}
}

func typeOf(v any) string {
	switch v.(type) {
	case string:
		return "string"
	case bool:
		return "boolean"
	case int:
		return "integer"
	case []any:
		return "array"
	case object:
		return "object"
	}
	return ""
}

func list(v any) []any {
	l, _ := v.([]any)
	return l
}

// refuse gives a rule that fails with a sentence: a value that matches violation must equal the sentence, which it
// cannot. Validators print what a value must be, so the user reads `value must be '...'` at the path of the value, or of
// its field where one is named.
func refuse(violation object, field, sentence string) object {
	then := object{"const": sentence}
	if field != "" {
		then = object{"properties": object{field: then}}
	}
	return object{"if": violation, "then": then}
}

// explained marks a schema whose rules have sentences of their own.
const explained = "explained"

// explainPatterns adds to every pattern the description of its field, for those who do not read regular expressions.
func explainPatterns(node any) {
	switch n := node.(type) {
	case object:
		for _, k := range sortedKeys(n) {
			explainPatterns(n[k])
		}
		pattern, ok := n["pattern"].(string)
		description, _ := n["description"].(string)
		if ok && description != "" && n[explained] == nil {
			sentence, _, _ := strings.Cut(description, ". ")
			rule := refuse(object{"type": "string", "not": object{"pattern": pattern}}, "", strings.TrimSuffix(sentence, "."))
			n["allOf"] = append(list(n["allOf"]), rule)
		}
		delete(n, explained)
	case []any:
		for _, v := range n {
			explainPatterns(v)
		}
	}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
