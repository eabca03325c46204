package charts

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/chartutil"
	"sigs.k8s.io/yaml"
)

const schemaURL = "file:///values.schema.json"

var schemaDocument = sync.OnceValues(func() (map[string]any, error) {
	data, err := os.ReadFile(filepath.Join(chartDir, "values.schema.json"))
	if err != nil {
		return nil, err
	}
	var doc map[string]any
	return doc, json.Unmarshal(data, &doc)
})

// valuesSchema compiles the schema as Helm does.
var valuesSchema = sync.OnceValues(func() (*jsonschema.Schema, error) {
	data, err := os.ReadFile(filepath.Join(chartDir, "values.schema.json"))
	if err != nil {
		return nil, err
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(schemaURL, doc); err != nil {
		return nil, err
	}
	return c.Compile(schemaURL)
})

// complaints gives what the schema says against values, by the path of the field (a/b/c).
func complaints(t testing.TB, values map[string]any) map[string][]string {
	t.Helper()
	schema, err := valuesSchema()
	require.NoError(t, err)
	data, err := json.Marshal(values) // Helm's values are JSON, too
	require.NoError(t, err)
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	require.NoError(t, err)
	err = schema.Validate(doc)
	out := map[string][]string{}
	if err == nil {
		return out
	}
	var invalid *jsonschema.ValidationError
	require.True(t, errors.As(err, &invalid))
	var leaves func(*jsonschema.ValidationError)
	leaves = func(e *jsonschema.ValidationError) {
		if len(e.Causes) > 0 {
			for _, c := range e.Causes {
				leaves(c)
			}
			return
		}
		text := e.Error()[strings.LastIndex(e.Error(), ": ")+2:]
		paths := []string{strings.Join(e.InstanceLocation, "/")}
		switch k := e.ErrorKind.(type) {
		case *kind.AdditionalProperties:
			paths = nil
			for _, p := range k.Properties {
				paths = append(paths, strings.Join(append(slices.Clone(e.InstanceLocation), p), "/"))
			}
		case *kind.Required:
			paths = nil
			for _, p := range k.Missing {
				paths = append(paths, strings.Join(append(slices.Clone(e.InstanceLocation), p), "/"))
			}
		case *kind.Const:
			text = fmt.Sprint(k.Want)
		}
		for _, p := range paths {
			out[p] = append(out[p], text)
		}
	}
	leaves(invalid)
	return out
}

// node is one place in the values that the schema describes.
type node struct {
	path   []string // * stands for any key of a map, 0 for an item of a list
	schema map[string]any
}

func (n node) String() string { return strings.Join(n.path, "/") }

// nodes gives every place that the schema describes.
func nodes(t testing.TB) []node {
	t.Helper()
	doc, err := schemaDocument()
	require.NoError(t, err)
	var out []node
	var walk func(path []string, schema map[string]any)
	walk = func(path []string, schema map[string]any) {
		if len(path) > 0 {
			out = append(out, node{path: path, schema: schema})
		}
		properties, _ := schema["properties"].(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(properties)) {
			walk(append(slices.Clone(path), name), properties[name].(map[string]any))
		}
		if more, ok := schema["additionalProperties"].(map[string]any); ok {
			walk(append(slices.Clone(path), "*"), more)
		}
		if items, ok := schema["items"].(map[string]any); ok {
			walk(append(slices.Clone(path), "0"), items)
		}
	}
	walk(nil, doc)
	require.Greater(t, len(out), 300)
	return out
}

// place puts v where path says, in objects and lists that hold nothing else.
func place(path []string, v any) any {
	if len(path) == 0 {
		return v
	}
	inner := place(path[1:], v)
	switch path[0] {
	case "0":
		return []any{inner}
	case "*":
		return map[string]any{"key": inner}
	}
	return map[string]any{path[0]: inner}
}

// location is where place put it.
func location(path []string) string {
	return strings.ReplaceAll(strings.Join(path, "/"), "*", "key")
}

func types(schema map[string]any) []string {
	switch t := schema["type"].(type) {
	case string:
		return []string{t}
	case []any:
		var out []string
		for _, x := range t {
			out = append(out, x.(string))
		}
		return out
	}
	return nil
}

// valid are good values for fields whose pattern allows few; the others are made from the schema.
var valid = map[string]any{
	"etcd/endpoints/0":            "https://10.0.0.1:2379",
	"etcd/caFile":                 "/etc/ca.crt",
	"etcd/certFile":               "/etc/tls.crt",
	"etcd/keyFile":                "/etc/tls.key",
	"image/digest":                "sha256:" + strings.Repeat("ab", 32),
	"timeZone":                    "Europe/Berlin",
	"retentionTimeZone":           "Etc/UTC",
	"signing/trustedKeys/0":       "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHW3vtUrv8sTgHeTi7bkPNLA7SwzaPZb8u6bvpGhCOlG",
	"encryption/age/recipients/0": "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p",

	"extras/paths/0":                     "/etc/kubernetes/pki/",
	"extras/additionalPaths/0":           "/etc/kubernetes/enc.yaml",
	"extras/encryption/age/recipients/0": "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p",
	"extras/encryption/age/recipients":   []any{"age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"},

	"destinations/*":                          map[string]any{"hostPath": map[string]any{"path": "/a"}},
	"encryption/age/recipients":               []any{"age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"},
	"destinations/*/gcs/caBundle":             map[string]any{"configMap": map[string]any{"name": "a"}},
	"destinations/*/azure/caBundle":           map[string]any{"configMap": map[string]any{"name": "a"}},
	"destinations/*/s3/caBundle":              map[string]any{"configMap": map[string]any{"name": "a"}},
	"destinations/*/azure":                    map[string]any{"account": "abc", "container": "abc"},
	"destinations/*/s3/serverSideEncryption":  map[string]any{"type": "SSE-S3"},
	"destinations/*/s3/objectLock":            map[string]any{"legalHold": true},
	"destinations/*/retention":                map[string]any{"last": 1},
	"destinations/*/hostPath/path":            "/var/lib/etcd-snapshots",
	"destinations/*/retention/within":         "1y6m3d12h",
	"destinations/*/gcs/endpoint":             "http://127.0.0.1:4443/storage",
	"destinations/*/gcs/kmsKeyName":           "projects/p/locations/l/keyRings/r/cryptoKeys/k",
	"destinations/*/azure/account":            "examplebackups",
	"destinations/*/azure/serviceURL":         "https://examplebackups.blob.core.chinacloudapi.cn",
	"destinations/*/azure/auth/authorityHost": "https://login.microsoftonline.us/",
	"destinations/*/s3/endpoint":              "https://minio.example:9000",
	"destinations/*/s3/storageClass":          "STANDARD_IA",
	"destinations/*/s3/auth/stsEndpoint":      "https://sts.example/",
	"destinations/*/gcs/caBundle/inline":      "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n",
	"destinations/*/azure/caBundle/inline":    "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n",
	"destinations/*/s3/caBundle/inline":       "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n",

	"monitoring/metrics/textfile":                    map[string]any{"directory": "/metrics"},
	"monitoring/metrics/textfile/directory":          "/metrics",
	"monitoring/metrics/pushgateway":                 map[string]any{"url": "http://pushgateway:9091"},
	"monitoring/metrics/pushgateway/url":             "http://pushgateway:9091",
	"monitoring/metrics/otlp":                        map[string]any{"url": "http://otel:4318/v1/metrics"},
	"monitoring/metrics/otlp/url":                    "http://otel:4318/v1/metrics",
	"monitoring/metrics/pushgateway/caBundle":        map[string]any{"configMap": map[string]any{"name": "a"}},
	"monitoring/metrics/otlp/caBundle":               map[string]any{"configMap": map[string]any{"name": "a"}},
	"monitoring/metrics/pushgateway/caBundle/inline": "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n",
	"monitoring/metrics/otlp/caBundle/inline":        "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n",
	"notifications/*":                                map[string]any{"ping": map[string]any{"existingSecret": "a"}},
	"notifications/*/ping":                           map[string]any{"existingSecret": "a"},
	"notifications/*/webhook":                        map[string]any{"existingSecret": "a"},
	"notifications/*/ping/caBundle":                  map[string]any{"configMap": map[string]any{"name": "a"}},
	"notifications/*/webhook/caBundle":               map[string]any{"configMap": map[string]any{"name": "a"}},
	"notifications/*/ping/caBundle/inline":           "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n",
	"notifications/*/webhook/caBundle/inline":        "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n",
}

// good makes a value that the schema of one place takes.
func good(n node) any {
	if v, ok := valid[n.String()]; ok {
		return v
	}
	if enum, ok := n.schema["enum"].([]any); ok {
		return enum[0]
	}
	if d := n.schema["default"]; d != nil && d != "" {
		return d
	}
	if e, ok := n.schema["examples"].([]any); ok {
		return e[0]
	}
	switch types(n.schema)[0] {
	case "string":
		if pattern, ok := n.schema["pattern"].(string); ok && !regexp.MustCompile(pattern).MatchString("example") {
			return "1"
		}
		return "example"
	case "boolean":
		return true
	case "integer", "number":
		return max(1, number(n.schema["minimum"]))
	case "array":
		return []any{}
	}
	return map[string]any{}
}

func number(v any) float64 {
	f, _ := v.(float64)
	return f
}

// bad makes, for each rule of one place, a value that breaks this rule. The key is the rule's keyword.
func bad(n node) map[string]any {
	out := map[string]any{}
	has := func(keyword string) bool { _, ok := n.schema[keyword]; return ok }
	if ts := types(n.schema); !slices.Contains(ts, "object") {
		out["type"] = map[string]any{"not": "this"}
	} else {
		out["type"] = "not an object"
	}
	if has("enum") {
		out["enum"] = "no such value"
	}
	if has("pattern") {
		out["pattern"] = "! \n"
	}
	if has("maxLength") {
		out["maxLength"] = strings.Repeat("a", int(number(n.schema["maxLength"]))+1)
	}
	if number(n.schema["minLength"]) > 0 {
		out["minLength"] = strings.Repeat("a", int(number(n.schema["minLength"]))-1)
	}
	if has("minimum") {
		out["minimum"] = number(n.schema["minimum"]) - 1
	}
	if has("maximum") {
		out["maximum"] = number(n.schema["maximum"]) + 1
	}
	if slices.Contains(types(n.schema), "integer") {
		out["integer"] = math.Pi
	}
	if has("maxItems") {
		var items []any
		for i := range int(number(n.schema["maxItems"])) + 1 {
			items = append(items, fmt.Sprint(i))
		}
		out["maxItems"] = items
	}
	if number(n.schema["minItems"]) > 0 {
		out["minItems"] = []any{}
	}
	if has("maxProperties") {
		members := map[string]any{}
		for i := range int(number(n.schema["maxProperties"])) + 1 {
			members[fmt.Sprintf("k%d", i)] = "v"
		}
		out["maxProperties"] = members
	}
	return out
}

// Every place in the values, and every rule of its own: a good value is taken, and one that breaks the rule is refused
// at the path of the field.
func TestEveryRuleOfEveryField(t *testing.T) {
	t.Parallel()
	for _, n := range nodes(t) {
		at := location(n.path)
		v := good(n)
		require.NotContains(t, complaints(t, place(n.path, v).(map[string]any)), at, "%v is refused", v)
		for rule, v := range bad(n) {
			require.Contains(t, complaints(t, place(n.path, v).(map[string]any)), at, "rule %s takes %v", rule, v)
		}
		if required, ok := n.schema["required"].([]any); ok {
			said := complaints(t, place(n.path, map[string]any{}).(map[string]any))
			for _, field := range required {
				require.Contains(t, said, at+"/"+field.(string), "it is needed")
			}
		}
	}
}

// No level takes a key that it does not know.
func TestMisspeltKeyAtEveryLevel(t *testing.T) {
	t.Parallel()
	open := map[string]bool{}
	for _, n := range append(nodes(t), node{}) {
		if n.path != nil && !slices.Contains(types(n.schema), "object") {
			continue
		}
		at := strings.TrimPrefix(location(append(slices.Clone(n.path), "misspelt")), "/")
		if len(complaints(t, place(append(slices.Clone(n.path), "misspelt"), []any{[]any{}}).(map[string]any))[at]) == 0 {
			open[n.String()] = true
		}
	}
	require.Equal(t, map[string]bool{
		"global":         true, // other charts' values
		"extraObjects/0": true, // objects of any kind
		"extraVolumes/0/ephemeral/volumeClaimTemplate/metadata": true, // left open by Kubernetes' own schema
	}, open, "these levels take any key")
}

// Rules between fields: each with values that it takes, and values that it refuses at the path of the field with a
// sentence.
func TestRulesBetweenFields(t *testing.T) {
	t.Parallel()
	destination := func(values string) string { return "destinations: {x: " + values + "}" }
	notification := func(values string) string { return "notifications: {x: " + values + "}" }
	for _, c := range []struct {
		path, sentence string
		takes          []string
		refuses        []string
	}{
		{"destinations", "at least one destination", []string{"destinations: {a: {hostPath: {path: /a}}}"}, []string{"destinations: {node: null}"}},
		{
			"destinations/x", "exactly one backend is needed",
			[]string{destination("{gcs: {bucket: abc}}"), destination("null")},
			[]string{destination("{}"), destination("{retention: {last: 1}}"), destination("{gcs: {bucket: abc}, s3: {bucket: abc}}"), destination("{hostPath: {path: /a}, azure: {account: abc, container: abc}}")},
		},
		{
			"destinations/x/hostPath/path", "must not be /etc",
			[]string{destination("{hostPath: {path: /etc2}}"), destination("{hostPath: {path: /etc/x}}")},
			[]string{destination("{hostPath: {path: /etc}}")},
		},
		{
			"destinations/x/hostPath/path", "must not be etcd's data directory",
			[]string{destination("{hostPath: {path: /var/lib/etcd-snapshots}}")},
			[]string{destination("{hostPath: {path: /var/lib/etcd}}"), destination("{hostPath: {path: /var/lib/etcd/member}}")},
		},
		{
			"destinations/x/hostPath/path", "must not hold the segments",
			[]string{destination("{hostPath: {path: /a/..b/.c}}")},
			[]string{destination("{hostPath: {path: /a/../etc}}"), destination("{hostPath: {path: /a/.}}")},
		},
		{
			"destinations/x/hostPath/path", "Absolute path of the folder",
			nil, []string{destination("{hostPath: {path: /}}"), destination("{hostPath: {path: a/b}}"), destination("{hostPath: {path: /a/}}")},
		},
		{
			"destinations/x/gcs/bucket", "Name of the bucket, without gs://",
			nil, []string{destination("{gcs: {bucket: 'gs://backups'}}"), destination("{gcs: {bucket: 'backups/etcd'}}")},
		},
		{
			"destinations/x/s3/bucket", "Name of the bucket, without s3://",
			nil, []string{destination("{s3: {bucket: 's3://backups'}}")},
		},
		{
			"destinations/x/gcs/auth", "existingSecret is needed by the methods",
			[]string{destination("{gcs: {bucket: abc, auth: {method: serviceAccountKey, existingSecret: s}}}"), destination("{gcs: {bucket: abc, auth: {method: anonymous}}}"), destination("{gcs: {bucket: abc, auth: {}}}")},
			[]string{destination("{gcs: {bucket: abc, auth: {method: serviceAccountKey}}}"), destination("{gcs: {bucket: abc, auth: {method: workloadIdentityFederation}}}")},
		},
		{
			"destinations/x/gcs/auth", "existingSecret goes with",
			nil, []string{destination("{gcs: {bucket: abc, auth: {existingSecret: s}}}"), destination("{gcs: {bucket: abc, auth: {method: default, existingSecret: s}}}")},
		},
		{
			"destinations/x/azure", "account is needed, or serviceURL",
			[]string{destination("{azure: {container: abc, account: abc}}"), destination("{azure: {container: abc, serviceURL: 'https://a.example'}}")},
			[]string{destination("{azure: {container: abc}}")},
		},
		{
			"destinations/x/azure/auth", "existingSecret is needed by the methods",
			[]string{destination("{azure: {account: abc, container: abc, auth: {method: sas, existingSecret: s}}}"), destination("{azure: {account: abc, container: abc, auth: {method: managedIdentity}}}")},
			[]string{destination("{azure: {account: abc, container: abc, auth: {method: sas}}}"), destination("{azure: {account: abc, container: abc, auth: {method: sharedKey}}}"), destination("{azure: {account: abc, container: abc, auth: {method: clientSecret, clientID: a, tenantID: b}}}")},
		},
		{
			"destinations/x/azure/auth", "clientID and tenantID are needed",
			[]string{destination("{azure: {account: abc, container: abc, auth: {method: clientSecret, existingSecret: s, clientID: a, tenantID: b}}}")},
			[]string{destination("{azure: {account: abc, container: abc, auth: {method: clientSecret, existingSecret: s, clientID: a}}}")},
		},
		{
			"destinations/x/azure/auth", "existingSecret goes with",
			nil, []string{destination("{azure: {account: abc, container: abc, auth: {method: workloadIdentity, existingSecret: s}}}")},
		},
		{
			"destinations/x/s3/auth", "existingSecret is needed by the methods",
			[]string{destination("{s3: {bucket: abc, auth: {method: static, existingSecret: s}}}"), destination("{s3: {bucket: abc, auth: {method: webIdentity}}}")},
			[]string{destination("{s3: {bucket: abc, auth: {method: static}}}"), destination("{s3: {bucket: abc, auth: {method: sharedFile}}}")},
		},
		{
			"destinations/x/s3/auth", "existingSecret goes with",
			nil, []string{destination("{s3: {bucket: abc, auth: {method: podIdentity, existingSecret: s}}}")},
		},
		{
			"destinations/x/s3/auth", "free of secrets",
			nil, []string{destination("{s3: {bucket: abc, auth: {method: static, accessKeyID: AKIA, secretAccessKey: x}}}"), destination("{s3: {bucket: abc, auth: {secret: x}}}")},
		},
		{
			"destinations/x/s3", "free of secrets",
			[]string{destination("{s3: {bucket: abc, storageClass: GLACIER}}")},
			[]string{destination("{s3: {bucket: abc, accessKeyId: AKIA}}"), destination("{s3: {bucket: abc, secretAccessKey: x}}"), destination("{s3: {bucket: abc, credentials: x}}")},
		},
		{
			"destinations/x/azure", "free of secrets",
			nil, []string{destination("{azure: {account: abc, container: abc, accountKey: x}}"), destination("{azure: {account: abc, container: abc, sasToken: x}}"), destination("{azure: {account: abc, container: abc, connectionString: x}}")},
		},
		{
			"destinations/x/gcs", "free of secrets",
			nil, []string{destination("{gcs: {bucket: abc, serviceAccountKey: x}}"), destination("{gcs: {bucket: abc, keyJson: x}}")},
		},
		{
			"destinations/x/s3/serverSideEncryption", "existingSecret goes with type SSE-C",
			[]string{destination("{s3: {bucket: abc, serverSideEncryption: {type: SSE-C, existingSecret: s}}}"), destination("{s3: {bucket: abc, serverSideEncryption: {type: SSE-S3}}}")},
			[]string{destination("{s3: {bucket: abc, serverSideEncryption: {type: SSE-C}}}"), destination("{s3: {bucket: abc, serverSideEncryption: {type: SSE-S3, existingSecret: s}}}")},
		},
		{
			"destinations/x/s3/serverSideEncryption", "kmsKeyID goes with type SSE-KMS",
			[]string{destination("{s3: {bucket: abc, serverSideEncryption: {type: SSE-KMS, kmsKeyID: k}}}")},
			[]string{destination("{s3: {bucket: abc, serverSideEncryption: {type: SSE-S3, kmsKeyID: k}}}")},
		},
		{
			"destinations/x/s3/objectLock", "mode and days go together",
			[]string{destination("{s3: {bucket: abc, objectLock: {mode: GOVERNANCE, days: 1}}}"), destination("{s3: {bucket: abc, objectLock: {legalHold: true}}}")},
			[]string{destination("{s3: {bucket: abc, objectLock: {mode: GOVERNANCE}}}"), destination("{s3: {bucket: abc, objectLock: {days: 1, legalHold: true}}}")},
		},
		{
			"destinations/x/s3/objectLock", "mode and days, or legalHold",
			nil, []string{destination("{s3: {bucket: abc, objectLock: {}}}"), destination("{s3: {bucket: abc, objectLock: {legalHold: false}}}")},
		},
		{
			"destinations/x/s3/caBundle", "exactly one of",
			[]string{destination("{s3: {bucket: abc, caBundle: {configMap: {name: a}}}}"), destination("{s3: {bucket: abc, caBundle: {existingSecret: {name: a, key: b.pem}}}}")},
			[]string{destination("{s3: {bucket: abc, caBundle: {}}}"), destination("{s3: {bucket: abc, caBundle: {configMap: {name: a}, existingSecret: {name: b}}}}")},
		},
		{
			"verification/identitySecret", "a Secret whose key identity.txt",
			[]string{
				"{verification: {schedule: '@daily', level: checksum}, " + recipientValues + "}", "{verification: {schedule: ''}, " + recipientValues + "}",
				"{verification: {schedule: '@daily', level: restore}}", "{verification: {schedule: '@daily', level: restore, identitySecret: key}, " + recipientValues + "}",
			},
			[]string{"{verification: {schedule: '@daily'}, " + recipientValues + "}", "{verification: {schedule: '@daily', level: restore}, " + recipientValues + "}"},
		},
		{
			"notifications/x", "exactly one of webhook and ping",
			[]string{notification("{ping: {existingSecret: s}}"), notification("{webhook: {existingSecret: s}}"), notification("null")},
			[]string{notification("{}"), notification("{ping: {existingSecret: s}, webhook: {existingSecret: s}}")},
		},
		{
			"notifications/x/webhook", "signed goes with format json",
			[]string{
				notification("{webhook: {existingSecret: s, signed: true}}"), notification("{webhook: {existingSecret: s, signed: true, format: json}}"),
				notification("{webhook: {existingSecret: s, signed: false, format: slack}}"), notification("{webhook: {existingSecret: s, format: teams}}"),
			},
			[]string{notification("{webhook: {existingSecret: s, signed: true, format: slack}}"), notification("{webhook: {existingSecret: s, signed: true, format: teams}}")},
		},
		{
			"notifications/x/webhook", "free of secrets", nil,
			[]string{notification("{webhook: {existingSecret: s, url: 'https://hooks.example/x'}}"), notification("{webhook: {existingSecret: s, signingKey: x}}"), notification("{webhook: {existingSecret: s, token: x}}")},
		},
		{"notifications/x/ping", "free of secrets", nil, []string{notification("{ping: {existingSecret: s, url: 'https://hc.example/x'}}")}},
		{
			"notifications/x/ping/caBundle", "exactly one of",
			[]string{notification("{ping: {existingSecret: s, caBundle: {configMap: {name: a}}}}")},
			[]string{notification("{ping: {existingSecret: s, caBundle: {}}}")},
		},
		{
			"extras/encryption", "never stored in the clear",
			[]string{
				"{extras: {enabled: true}, " + recipientValues + "}", "{extras: {enabled: true, " + recipientValues + "}}", "{extras: {enabled: false, paths: [/etc/pki/]}}",
				"{extras: {enabled: true, " + recipientValues + "}, " + recipientValues + "}",
			},
			[]string{
				"{extras: {enabled: true}}", "{extras: {enabled: true, encryption: {}}, encryption: {}}", "{extras: {enabled: true, encryption: {age: {recipients: []}}}}",
			},
		},
		{
			"extras/paths/0", "free of the segments",
			[]string{"{extras: {paths: [/etc/..pki/, /etc/pki.d, /.hidden/.x]}}", "{extras: {paths: []}}", "{extras: {paths: null}}"},
			[]string{"{extras: {paths: [/etc/../root/]}}", "{extras: {paths: [/etc/.]}}", "{extras: {paths: [/..]}}"},
		},
		{"nodeCount", "the number of control-plane nodes", []string{"{nodes: all, nodeCount: 3}", "{nodes: any, nodeCount: 0}"}, []string{"{nodes: all, nodeCount: 0}"}},
	} {
		for _, values := range c.takes {
			require.NotContains(t, complaints(t, withDefaults(t, values)), c.path, values)
		}
		for _, values := range c.refuses {
			said := complaints(t, withDefaults(t, values))
			require.Contains(t, said, c.path, values)
			require.Contains(t, strings.Join(said[c.path], "\n"), c.sentence, values)
		}
	}
}

// withDefaults gives the values that Helm checks and renders.
func withDefaults(t testing.TB, values string) map[string]any {
	t.Helper()
	v := map[string]any{}
	require.NoError(t, yaml.UnmarshalStrict([]byte(values), &v))
	out, err := chartutil.CoalesceValues(loadChart(t), v)
	require.NoError(t, err)
	return out
}

// Names of destinations and of notifications are those that the CRD takes.
func TestNamesOfDestinationsAndNotifications(t *testing.T) {
	t.Parallel()
	for name, ok := range map[string]bool{"a": true, "off-site-2": true, strings.Repeat("a", 40): true, "A": false, "a.b": false, "-a": false, "a_b": false, strings.Repeat("a", 41): false} {
		said := complaints(t, withDefaults(t, "destinations: {"+name+": {gcs: {bucket: abc}}}"))
		if ok {
			require.Empty(t, said, name)
		} else {
			require.Contains(t, strings.Join(said["destinations"], "\n"), "names", name)
		}
		said = complaints(t, withDefaults(t, "notifications: {"+name+": {ping: {existingSecret: abc}}}"))
		if ok {
			require.Empty(t, said, name)
		} else {
			require.Contains(t, strings.Join(said["notifications"], "\n"), "names", name)
		}
	}
}

// What editors complete and explain: every field says what it is, and what it is by default.
func TestSchemaHelpsEditors(t *testing.T) {
	t.Parallel()
	doc, err := schemaDocument()
	require.NoError(t, err)
	require.Equal(t, "http://json-schema.org/draft-07/schema#", doc["$schema"])
	for _, n := range nodes(t) {
		if last := n.path[len(n.path)-1]; last == "0" || last == "*" {
			continue
		}
		if _, ok := n.schema["properties"]; ok && len(n.path) == 1 {
			continue
		}
		require.NotEmpty(t, n.schema["description"], "%s has no description", n)
	}
	values, err := os.ReadFile(filepath.Join(chartDir, "values.yaml"))
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(values), "# yaml-language-server: $schema=values.schema.json\n"))
}
