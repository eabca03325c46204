package main

import (
	"fmt"
	"slices"
	"strings"
)

// destinations gives the schema of values' map of destinations: the API's list turned into a map by name, and files
// turned into references to the Secrets and ConfigMaps that are mounted in their place.
func (b *schemaBuilder) destinations() (object, error) {
	one, name, err := b.named("Destination", "One place that keeps snapshots: exactly one of hostPath, gcs, azure and s3.")
	if err != nil {
		return nil, err
	}
	properties := one["properties"].(object)

	for backend, needing := range map[string][]any{
		"gcs":   {"serviceAccountKey", "workloadIdentityFederation"},
		"azure": {"clientSecret", "sharedKey", "sas"},
		"s3":    {"static", "sharedFile"},
	} {
		store := properties[backend].(object)
		p := store["properties"].(object)
		delete(p, "caBundleFile")
		p["caBundle"] = caBundle()
		auth := p["auth"].(object)
		fields := auth["properties"].(object)
		keys := "one key for each file that the method needs"
		if backend == "gcs" {
			keys = "the key key.json"
		}
		delete(fields, "credentialsFile")
		delete(fields, "credentialsDir")
		fields["existingSecret"] = secretName("Secret in the release's namespace with " + keys + ".")
		rules := list(auth["allOf"])
		rules = append(rules, refuse(object{
			"type": "object", "required": []any{"existingSecret"},
			"not": object{"required": []any{"method"}, "properties": object{"method": object{"enum": needing}}},
		}, "", "explicit about its method: existingSecret goes with "+joinOr(needing)))
		known := anyKeys(fields)
		rules = append(rules, refuse(object{"type": "object", "not": object{"propertyNames": object{"enum": known}}}, "",
			"free of secrets: put them into a Secret and name it in existingSecret"))
		auth["allOf"] = rules
		store["allOf"] = append(list(store["allOf"]), refuse(object{
			"type": "object", "not": object{"propertyNames": object{"not": object{"pattern": secretKey}}},
		}, "", "free of secrets: put them into a Secret and name it in auth.existingSecret"))
	}
	sse := properties["s3"].(object)["properties"].(object)["serverSideEncryption"].(object)["properties"].(object)
	delete(sse, "keyDir")
	sse["existingSecret"] = secretName("Secret in the release's namespace with the key sse-c-key: 32 bytes, raw or in base64.")

	return object{
		"type":                 "object",
		"maxProperties":        16,
		"additionalProperties": one,
		"allOf": []any{
			refuse(object{"type": "object", "maxProperties": 0}, "",
				"at least one destination, such as destinations.node.hostPath.path=/var/lib/etcd-snapshots"),
			keysAreNames("destinations", name),
		},
	}, nil
}

// named gives the schema of one item of an API list that values has as a map by name, and that of the name, which is its
// key there.
func (b *schemaBuilder) named(kind, description string) (one, name object, err error) {
	spec, err := b.flattened(kind)
	if err != nil {
		return nil, nil, err
	}
	if one, err = apiSchema(spec); err != nil {
		return nil, nil, err
	}
	properties := one["properties"].(object)
	name = properties["name"].(object)
	delete(properties, "name")
	delete(one, "required")
	one["additionalProperties"] = false
	one["type"] = []any{"object", "null"} // null removes one that an earlier values file brought
	one["description"] = description
	return one, name, nil
}

// keysAreNames refuses a map whose keys are not names as the schema name says. It is not propertyNames itself: the
// validator that Helm uses reports that at the wrong path.
func keysAreNames(what string, name object) object {
	bad := object{"type": "object", "not": object{"propertyNames": object{"maxLength": name["maxLength"], "pattern": name["pattern"]}}}
	return refuse(bad, "", fmt.Sprintf("a map whose keys are the %s' names: at most %v lower-case letters, digits and '-'", what, name["maxLength"]))
}

// secretKey matches names that people give to secret values.
const secretKey = `^(access[kK]ey.*|secret.*|session[tT]oken|account[kK]ey|shared[kK]ey|sas.*|client[sS]ecret|credentials.*|key[jJ](son|SON)|serviceAccount.*|connectionString|password|token)$`

func secretName(description string) object {
	return object{"type": "string", "minLength": 1, "maxLength": 253, "pattern": `^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`, "description": description}
}

// caBundle is where the CA certificates of an endpoint come from.
func caBundle() object {
	from := func(kind string) object {
		return object{
			"type": "object", "additionalProperties": false, "required": []any{"name"},
			"description": kind + " in the release's namespace.",
			"properties": object{
				"name": secretName("Name of the " + kind + "."),
				"key":  object{"type": "string", "minLength": 1, "maxLength": 253, "pattern": `^[-._a-zA-Z0-9]+$`, "default": "ca.crt", "description": "Key of the certificates (PEM) in it."},
			},
		}
	}
	ways := object{
		"inline":         object{"type": "string", "pattern": `-----BEGIN CERTIFICATE-----`, "description": "The certificates themselves (PEM)."},
		"configMap":      from("ConfigMap"),
		"existingSecret": from("Secret"),
	}
	return object{
		"type": "object", "additionalProperties": false, "properties": ways,
		"description": "CA certificates that the endpoint's certificate is checked against, besides the system's roots.",
		"allOf": []any{refuse(notOneOf("configMap", "existingSecret", "inline"), "",
			"exactly one of inline, configMap and existingSecret")},
	}
}

// notOneOf matches objects that do not have exactly one of these fields.
func notOneOf(fields ...string) object {
	var each []any
	for _, f := range fields {
		each = append(each, object{"required": []any{f}})
	}
	return object{"type": "object", "not": object{"oneOf": each}}
}

// violations gives for each CEL rule of the API types the draft-07 schema of the values that violate it, in the words
// of the values. A rule that is not listed here stops the generator: the chart never knows fewer rules than the CRDs.
var violations = map[string]object{
	"[has(self.hostPath), has(self.gcs), has(self.azure), has(self.s3)].filter(b, b).size() == 1": notOneOf("hostPath", "gcs", "azure", "s3"),
	"!self.matches('/[.]{1,2}(/|$)')": {"pattern": `/[.]{1,2}(/|$)`},
	"self != '/etc'":                  {"const": "/etc"},
	"self != '/var/lib/etcd' && !self.startsWith('/var/lib/etcd/')":                                                           {"pattern": `^/var/lib/etcd(/|$)`},
	"!has(self.method) || !(self.method in ['serviceAccountKey', 'workloadIdentityFederation']) || has(self.credentialsFile)": methodLacks("existingSecret", "serviceAccountKey", "workloadIdentityFederation"),
	"has(self.account) || has(self.serviceURL)": {
		"type": "object", "not": object{"anyOf": []any{object{"required": []any{"account"}}, object{"required": []any{"serviceURL"}}}},
	},
	"!has(self.method) || !(self.method in ['clientSecret', 'sharedKey', 'sas']) || has(self.credentialsDir)": methodLacks("existingSecret", "clientSecret", "sharedKey", "sas"),
	"!has(self.method) || self.method != 'clientSecret' || (has(self.clientID) && has(self.tenantID))": {
		"type": "object", "required": []any{"method"}, "properties": object{"method": object{"const": "clientSecret"}},
		"not": object{"required": []any{"clientID", "tenantID"}},
	},
	"!has(self.method) || !(self.method in ['static', 'sharedFile']) || has(self.credentialsDir)": methodLacks("existingSecret", "static", "sharedFile"),
	"(self.type == 'SSE-C') == has(self.keyDir)": {
		"type": "object", "not": object{"oneOf": []any{
			object{"properties": object{"type": object{"const": "SSE-C"}}, "required": []any{"existingSecret"}},
			object{"properties": object{"type": object{"not": object{"const": "SSE-C"}}}, "not": object{"required": []any{"existingSecret"}}},
		}},
	},
	"!has(self.kmsKeyID) || self.type == 'SSE-KMS'": {
		"type": "object", "required": []any{"kmsKeyID"}, "properties": object{"type": object{"not": object{"const": "SSE-KMS"}}},
	},
	"has(self.webhook) != has(self.ping)": notOneOf("ping", "webhook"),
	"!has(self.signed) || !self.signed || !has(self.format) || self.format == 'json'": {
		"type": "object", "required": []any{"signed", "format"},
		"properties": object{"signed": object{"const": true}, "format": object{"not": object{"const": "json"}}},
	},
	"has(self.mode) == has(self.days)": {
		"type": "object", "oneOf": []any{object{"required": []any{"mode"}}, object{"required": []any{"days"}}},
	},
	"has(self.mode) || (has(self.legalHold) && self.legalHold)": {
		"type": "object", "not": object{"anyOf": []any{
			object{"required": []any{"mode"}},
			object{"required": []any{"legalHold"}, "properties": object{"legalHold": object{"const": true}}},
		}},
	},
}

// methodLacks matches an auth with one of the methods and without the field that they need.
func methodLacks(field string, methods ...string) object {
	var each []any
	for _, m := range methods {
		each = append(each, m)
	}
	return object{
		"type": "object", "required": []any{"method"}, "properties": object{"method": object{"enum": each}},
		"not": object{"required": []any{field}},
	}
}

// inValues says in the values' words what a CEL rule says in the policy's.
var inValues = strings.NewReplacer(
	"credentialsFile is", "existingSecret is", "credentialsDir is", "existingSecret is",
	"keyDir goes with type SSE-C: it holds the file sse-c-key", "existingSecret goes with type SSE-C: it holds the key sse-c-key",
)

// translateRules turns the CEL rules of a schema into draft-07.
func translateRules(node any) error {
	switch n := node.(type) {
	case object:
		for _, k := range sortedKeys(n) {
			if err := translateRules(n[k]); err != nil {
				return err
			}
		}
		for _, r := range list(n["x-kubernetes-validations"]) {
			rule := r.(object)
			violation, ok := violations[rule["rule"].(string)]
			if !ok {
				return fmt.Errorf("the CEL rule %q has no translation: add one to violations in ci/tools/generate", rule["rule"])
			}
			n["allOf"] = append(list(n["allOf"]), refuse(violation, "", inValues.Replace(rule["message"].(string))))
		}
	case []any:
		for _, v := range n {
			if err := translateRules(v); err != nil {
				return err
			}
		}
	}
	return nil
}

func anyKeys(m object) []any {
	var keys []any
	for _, k := range sortedKeys(m) {
		keys = append(keys, k)
	}
	return keys
}

func joinOr(words []any) string {
	var s []string
	for _, w := range words {
		s = append(s, fmt.Sprint(w))
	}
	slices.Sort(s)
	return strings.Join(s[:len(s)-1], ", ") + " or " + s[len(s)-1]
}
