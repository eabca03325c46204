package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"golang.org/x/tools/go/packages"
	apiext "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-tools/pkg/crd"
	"sigs.k8s.io/controller-tools/pkg/loader"
)

// resolve gives the schema that an annotation's $ref names: api.TYPE or api.TYPE.FIELD of agent/api/v1, core.TYPE of
// Kubernetes' core/v1, or one of the names below. The caller may change what it gets.
func (b *schemaBuilder) resolve(ref string) (object, error) {
	switch ref {
	case "presets":
		return b.distribution(), nil
	case "destinations":
		return b.destinations()
	case "metrics":
		return b.metrics()
	case "notifications":
		return b.notifications()
	case "alerts":
		return b.alertSettings(), nil
	case "schedule":
		return schedule(), nil
	case "scheduleOrNone":
		return object{"type": "string", "if": object{"maxLength": 0}, "then": true, "else": schedule()}, nil
	case "timeZone":
		return object{"type": "string", "maxLength": 64, "pattern": `^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$`}, nil
	case "secretName", "objectName":
		return object{"type": "string", "maxLength": 253, "pattern": `^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`}, nil
	case "name":
		return object{"type": "string", "maxLength": 63, "pattern": `^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`}, nil
	case "nodePaths":
		return object{"type": "array", "uniqueItems": true, "maxItems": 64, "items": object{
			"type": "string", "maxLength": 1024, "pattern": `^(/[^/]+)+/?$`,
			"allOf": []any{refuse(object{"pattern": `/\.{1,2}(/|$)`}, "", "free of the segments . and ..")},
		}}, nil
	case "quantity":
		return object{"type": []any{"string", "number"}, "pattern": `^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$`}, nil
	}
	family, name, _ := strings.Cut(ref, ".")
	switch family {
	case "api":
		name, field, _ := strings.Cut(name, ".")
		s, err := b.flattened(name)
		if err != nil {
			return nil, err
		}
		if field != "" {
			var ok bool
			if s, ok = s.Properties[field]; !ok {
				return nil, fmt.Errorf("$ref %s: %s has no field %s", ref, name, field)
			}
		}
		return apiSchema(s)
	case "core":
		return b.core(name)
	}
	return nil, fmt.Errorf("$ref %s: no such reference", ref)
}

// apiSchema makes a draft-07 schema of a type of agent/api/v1: with its CEL rules.
func apiSchema(s apiext.JSONSchemaProps) (object, error) {
	raw, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	var out object
	if err := json.Unmarshal(raw, &out); err != nil {
		return nil, err
	}
	if err := translateRules(out); err != nil {
		return nil, err
	}
	flatten(out)
	return out, nil
}

// flatten joins descriptions that were broken into lines.
func flatten(node any) {
	switch n := node.(type) {
	case object:
		if d, ok := n["description"].(string); ok {
			n["description"] = strings.Join(strings.Fields(d), " ")
		}
		for _, v := range n {
			flatten(v)
		}
	case []any:
		for _, v := range n {
			flatten(v)
		}
	}
}

// core gives the schema of a type of Kubernetes' core/v1. Of its descriptions only the first sentence is kept.
func (b *schemaBuilder) core(name string) (object, error) {
	if b.corePkg == nil {
		pkgs, err := loader.LoadRootsWithConfig(&packages.Config{Dir: abs(b.root)}, "k8s.io/api/core/v1")
		if err != nil {
			return nil, fmt.Errorf("load Kubernetes' core/v1: %w", err)
		}
		b.corePkg = pkgs[0]
		b.parser.NeedPackage(b.corePkg)
	}
	id := crd.TypeIdent{Package: b.corePkg, Name: name}
	b.parser.NeedFlattenedSchemaFor(id)
	s, ok := b.parser.FlattenedSchemata[id]
	if !ok || len(s.Properties) == 0 {
		return nil, fmt.Errorf("$ref core.%s: no such type", name)
	}
	raw, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	var out object
	if err := json.Unmarshal(raw, &out); err != nil {
		return nil, err
	}
	tidyCore(out)
	return out, nil
}

func tidyCore(node any) {
	switch n := node.(type) {
	case object:
		// A quantity or a port: a number or a string, which Kubernetes marks in its own way.
		if n["x-kubernetes-int-or-string"] == true {
			delete(n, "anyOf")
			n["type"] = []any{"string", "number"}
		}
		delete(n, "default") // Kubernetes sets it, not the chart
		if d, ok := n["description"].(string); ok {
			d, _, _ = strings.Cut(strings.Join(strings.Fields(d), " "), ". ")
			n["description"] = strings.TrimSuffix(d, ".") + "."
		}
		for k, v := range n {
			if k == "properties" { // a field may be called default or description
				for _, field := range v.(object) {
					tidyCore(field)
				}
				continue
			}
			tidyCore(v)
		}
	case []any:
		for _, v := range n {
			tidyCore(v)
		}
	}
}

// distribution allows the presets' names, and lets those through that the templates refuse with a reason.
func (b *schemaBuilder) distribution() object {
	var known, refused []any
	for _, name := range b.presets.order {
		known = append(known, name)
	}
	for _, name := range sortedKeys(b.presets.Refused) {
		refused = append(refused, name)
	}
	return object{"type": "string", "if": object{"enum": refused}, "then": true, "else": object{"enum": known}}
}

// schedule allows what the CronJob controller's parser (robfig/cron's ParseStandard) takes, and H for the minute, which the
// chart replaces, but not a few things: @every, which is counted from when the controller saw the CronJob; N/STEP, which cron knows nothing of and people
// read in two ways; a time zone, which Kubernetes refuses since it has spec.timeZone; and what only that parser knows (+1, nothing between two commas).
func schedule() object {
	names := func(all string) string {
		var out []string
		for _, name := range strings.Fields(all) {
			var b strings.Builder
			for _, c := range name {
				b.WriteString("[" + string(c) + strings.ToUpper(string(c)) + "]")
			}
			out = append(out, b.String())
		}
		return strings.Join(out, "|")
	}
	field := func(v string) string {
		item := `(\*|\?|(` + v + `)(-(` + v + `))?)`
		return item + `(/0*[1-9][0-9]*)?(,` + item + `(/0*[1-9][0-9]*)?)*`
	}
	fields := strings.Join([]string{
		`([hH]|` + field(`[0-5]?[0-9]`) + `)`, field(`[01]?[0-9]|2[0-3]`), field(`0?[1-9]|[12][0-9]|3[01]`),
		field(`0?[1-9]|1[0-2]|` + names("jan feb mar apr may jun jul aug sep oct nov dec")),
		field(`0?[0-6]|` + names("sun mon tue wed thu fri sat")),
	}, " +")
	pattern := `^(@(yearly|annually|monthly|weekly|daily|midnight|hourly)| *` + fields + ` *)$`
	const begin = `^[ *?0-9@hH]` // no sentence below begins so, or it would be a valid schedule
	rule := refuse(object{"not": object{"pattern": pattern}}, "",
		"five fields (minute hour day-of-month month day-of-week) or one of @hourly, @daily, @weekly, @monthly, @yearly")
	for _, r := range []object{
		refuse(object{"pattern": `(^|[ ,])[0-9A-Za-z]+/`}, "", "clear about its steps: */15 or 0-59/15, not 0/15"),
		refuse(object{"pattern": `TZ=`}, "", "free of a time zone: set timeZone instead"),
		refuse(object{"pattern": `^@every`}, "", "made of times of the day, such as */5 * * * * for every five minutes: @every is counted from whenever the controller began"),
	} {
		r["else"] = rule
		rule = r
	}
	return object{"type": "string", "maxLength": 256, "pattern": begin, "allOf": []any{rule}, explained: true}
}
