package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// writeReadme writes the tables between the marks in README.md; the rest of it is written by hand.
func (c *chart) writeReadme(path string, schema object) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	readme := string(text)
	for name, table := range map[string]string{
		"values": c.valuesTable(), "destinations": oneOfTable(schema, "destinations"), "notifications": oneOfTable(schema, "notifications"), "presets": c.presetsTable(), "refused": c.refusedTable(),
	} {
		begin, end := fmt.Sprintf("<!-- begin of generated table: %s -->\n", name), "<!-- end of generated table -->"
		head, rest, ok := strings.Cut(readme, begin)
		_, tail, ok2 := strings.Cut(rest, end)
		if !ok || !ok2 {
			return fmt.Errorf("%s: has no place for the table of %s: %q", path, name, begin)
		}
		readme = head + begin + "\n" + table + "\n" + end + tail
	}
	return write(path, []byte(readme))
}

func (c *chart) valuesTable() string {
	var b strings.Builder
	row(&b, "Value", "What it is", "Default")
	row(&b, "---", "---", "---")
	var walk func([]*value)
	walk = func(values []*value) {
		for _, v := range values {
			if len(v.children) > 0 {
				walk(v.children)
				continue
			}
			row(&b, code(v.path), v.description, code(compact(v.fallback)))
		}
	}
	walk(c.values)
	return b.String()
}

// oneOfTable lists what may be said of one of a map's things.
func oneOfTable(schema object, what string) string {
	var b strings.Builder
	row(&b, "Value", "What it is", "Needed or default")
	row(&b, "---", "---", "---")
	one := schema["properties"].(object)[what].(object)["additionalProperties"].(object)
	var walk func(prefix string, s object)
	walk = func(prefix string, s object) {
		properties := s["properties"].(object)
		needed := map[string]bool{}
		for _, r := range list(s["required"]) {
			needed[r.(string)] = true
		}
		for _, name := range sortedKeys(properties) {
			p := properties[name].(object)
			if _, ok := p["properties"].(object); ok {
				walk(prefix+name+".", p)
				continue
			}
			what := ""
			if fallback, ok := p["default"]; ok {
				what = code(compact(fallback))
			}
			if needed[name] {
				what = "needed"
			}
			description, _ := p["description"].(string)
			if values := list(p["enum"]); len(values) > 0 && !strings.Contains(description, fmt.Sprint(values[0])) {
				var words []string
				for _, v := range values {
					words = append(words, fmt.Sprint(v))
				}
				description += " One of " + strings.Join(words, ", ") + "."
			}
			row(&b, code(prefix+name), description, what)
		}
	}
	walk("", one)
	return b.String()
}

func (c *chart) presetsTable() string {
	var b strings.Builder
	row(&b, "distribution", "etcd", "Certificates on the node", "Disaster bundle", "Nodes", "To restore")
	row(&b, "---", "---", "---", "---", "---", "---")
	for _, name := range c.presets.order {
		p := c.presets.Distributions[name]
		etcd := "your own"
		if p.Endpoint != "" {
			etcd = code(p.Endpoint)
		}
		if p.Note != "" {
			etcd += "<br>" + p.Note
		}
		files := "`etcd.existingSecret`"
		if p.Files.CA != "" {
			files = code(p.Files.CA) + "<br>" + code(p.Files.Cert) + "<br>" + code(p.Files.Key)
		}
		if p.RunAsUser != 0 {
			files += fmt.Sprintf("<br>read as user %d, or as root with DAC_READ_SEARCH where a destination is a hostPath", p.RunAsUser)
		}
		if len(p.Capabilities) > 0 {
			files += "<br>read with the capability " + strings.Join(p.Capabilities, ", ")
		}
		nodes := "any"
		for _, k := range sortedKeys(p.NodeSelector) {
			nodes = code(fmt.Sprintf("%s=%q", k, p.NodeSelector[k]))
		}
		extras := "your own"
		if len(p.Extras) > 0 {
			extras = code(strings.Join(p.Extras, "`<br>`"))
		}
		row(&b, code(name), etcd, files, extras, nodes, p.Restore)
	}
	return b.String()
}

func (c *chart) refusedTable() string {
	var b strings.Builder
	row(&b, "distribution", "Why it is refused")
	row(&b, "---", "---")
	for _, name := range sortedKeys(c.presets.Refused) {
		row(&b, code(name), c.presets.Refused[name])
	}
	return b.String()
}

func row(b *strings.Builder, cells ...string) {
	for i, c := range cells {
		cells[i] = strings.ReplaceAll(c, "|", `\|`)
	}
	fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | "))
}

func code(s string) string { return "`" + s + "`" }

func compact(v any) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Sprint(v)
	}
	return strings.TrimSpace(b.String())
}
