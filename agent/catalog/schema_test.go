package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apiextv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"etcdsnapshot.dev/agent/api"
	"etcdsnapshot.dev/agent/api/apitest"
	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/ci/kubetest"
)

// dryRun has the API server judge a policy and keep nothing.
func dryRun(ctx context.Context, c *Client, doc string) error {
	t := target{resource: v1.PolicyResource, namespace: "kube-system"}
	doc = strings.Replace(doc, `"metadata":{"name":"x"}`, `"metadata":{"name":"x","namespace":"kube-system"}`, 1)
	return c.do(ctx, "create", t, c.rest.Post().Param("dryRun", "All").Param("fieldValidation", "Strict").SetHeader("Content-Type", "application/yaml").Body([]byte(doc)), nil)
}

// TestAcceptedByServer and TestRefusedByServer: the API server judges as the agent's own loader does (agent/api).
func TestAcceptedByServer(t *testing.T) {
	installCRDs(t, server)
	c, err := New(server.Admin(), "kube-system")
	require.NoError(t, err)
	for name, doc := range apitest.Accepted() {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, dryRun(t.Context(), c, strings.Trim(doc, "-\n")))
		})
	}
}

func TestRefusedByServer(t *testing.T) {
	installCRDs(t, server)
	c, err := New(server.Admin(), "kube-system")
	require.NoError(t, err)
	var said strings.Builder
	for name, r := range apitest.Refused() {
		t.Run(name, func(t *testing.T) {
			if r.NoPolicy {
				return
			}
			err := dryRun(t.Context(), c, r.Doc)
			require.Error(t, err)
			said.WriteString(err.Error())
			require.True(t, apierrors.IsInvalid(err) || apierrors.IsBadRequest(err), "%v", err)
			for _, w := range r.Want {
				require.Contains(t, err.Error(), w)
			}
		})
	}
	rules := 0
	walk(schemaOf(t, v1.PolicyResource), "", func(path string, s *apiextv1.JSONSchemaProps) {
		for _, rule := range s.XValidations {
			rules++
			require.Contains(t, said.String(), rule.Message, "no case is refused by this CEL rule of %s", path)
		}
	})
	require.Positive(t, rules)
}

// TestEveryKeyword breaks each keyword of both CRDs' schemas, one after the other, in objects that have every field. The API
// server must accept the objects, refuse each break, and name the field; and so must the agent's own loader of policies.
func TestEveryKeyword(t *testing.T) {
	b := newBench(t)
	put := func(doc string) map[string]any {
		var obj map[string]any
		require.NoError(t, yaml.Unmarshal([]byte(strings.ReplaceAll(doc, "kube-system", b.namespace)), &obj))
		return obj
	}
	create := func(resource string) func(data []byte) error {
		t := target{resource: resource, namespace: b.namespace}
		return func(data []byte) error {
			return b.client.do(b.t.Context(), "create", t, b.client.rest.Post().Param("dryRun", "All").Param("fieldValidation", "Strict").SetHeader("Content-Type", "application/json").Body(data), nil)
		}
	}
	replaceStatus := func(resource, name string) func(data []byte) error {
		t := target{resource: resource, namespace: b.namespace, name: name, subresource: "status"}
		return func(data []byte) error {
			return b.client.do(b.t.Context(), "update", t, b.client.rest.Put().Param("dryRun", "All").Param("fieldValidation", "Strict").SetHeader("Content-Type", "application/json").Body(data), nil)
		}
	}
	policy, row := put(everything), put(everyFact)
	for resource, obj := range map[string]map[string]any{v1.PolicyResource: policy, v1.SnapshotResource: row} {
		var made struct {
			Metadata metav1.ObjectMeta `json:"metadata"`
		}
		require.NoError(t, b.client.create(t.Context(), target{resource: resource, namespace: b.namespace}, obj))
		require.NoError(t, b.client.get(t.Context(), target{resource: resource, namespace: b.namespace, name: "all"}, &made))
		obj["metadata"].(map[string]any)["resourceVersion"] = made.Metadata.ResourceVersion
	}
	fresh := func(obj map[string]any) map[string]any { return with(obj, "metadata", map[string]any{"name": "other"}) }
	seen := map[string]bool{}
	for _, c := range []struct {
		resource, part string
		whole          map[string]any
		judge          func(data []byte) error
	}{
		{v1.PolicyResource, "spec", fresh(policy), create(v1.PolicyResource)},
		{v1.PolicyResource, "status", policy, replaceStatus(v1.PolicyResource, "all")},
		{v1.SnapshotResource, "spec", fresh(row), create(v1.SnapshotResource)},
		{v1.SnapshotResource, "status", row, replaceStatus(v1.SnapshotResource, "all")},
	} {
		n := 0
		good, err := json.Marshal(c.whole)
		require.NoError(t, err)
		require.NoError(t, c.judge(good), "%s.%s: the whole", c.resource, c.part)
		schema := schemaOf(t, c.resource).Properties[c.part]
		breakAll(t, c.whole[c.part], &schema, c.part, func(v any) map[string]any { return with(c.whole, c.part, v) }, func(path, keyword string, doc map[string]any) {
			n++
			seen[keyword] = true
			data, err := json.Marshal(doc)
			require.NoError(t, err)
			err = c.judge(data)
			require.Error(t, err, "%s: %s broken: %s", path, keyword, data)
			require.True(t, apierrors.IsInvalid(err) || apierrors.IsBadRequest(err), "%s: %s: %v", path, keyword, err)
			require.Contains(t, err.Error(), path, "%s broken", keyword)
			if c.resource == v1.PolicyResource && c.part == "spec" {
				_, err = api.ParsePolicy(data)
				var invalid *api.InvalidError
				require.ErrorAs(t, err, &invalid, "%s: %s broken", path, keyword)
				require.Contains(t, err.Error(), path, "%s broken", keyword)
			}
		})
		t.Logf("%s.%s: %d keywords broken", c.resource, c.part, n)
		require.Greater(t, n, 10)
	}
	for _, keyword := range []string{"type", "enum", "pattern", "maxLength", "minLength", "minimum", "maximum", "maxItems", "minItems", "maxProperties", "minProperties", "required", "list-type"} {
		require.Contains(t, seen, keyword)
	}
}

// TestFactsDoNotChange is the CEL rule of the rows.
func TestFactsDoNotChange(t *testing.T) {
	b := newBench(t)
	m := b.snapshot("cp-1")
	b.record(b.report("cp-1", m, in("node", m)))
	changed := map[string]any{"spec": map[string]any{"node": "cp-9"}}
	err := b.client.merge(t.Context(), target{resource: v1.SnapshotResource, namespace: b.namespace, name: m.Name}, changed, nil)
	require.True(t, apierrors.IsInvalid(err), "%v", err)
	require.ErrorContains(t, err, "the facts of a snapshot do not change")
}

// everything is a policy that has every field, with each backend.
const everything = `
apiVersion: etcdsnapshot.dev/v1
kind: EtcdSnapshotPolicy
metadata: {name: all, namespace: kube-system}
spec:
  clusterName: prod-eu
  clusterUID: 0d3e2f54-8c0b-4a4e-9b52-9d4a5a0b7f11
  timeZone: Europe/Berlin
  etcd: {endpoints: ["https://127.0.0.1:2379"], caFile: /ca.crt, certFile: /c.crt, keyFile: /c.key, serverName: etcd}
  compression: {algorithm: zstd, level: fastest}
  encryption: {age: {recipients: [` + apitest.Recipient + `]}}
  verification: {afterStore: full}
  extras: {paths: [/etc/kubernetes/pki], destinations: [a], encryption: {age: {recipients: [` + apitest.Recipient + `]}}}
  signing: {ssh: {keyFile: /k, trustedKeys: ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHW3vtUrv8sTgHeTi7bkPNLA7SwzaPZb8u6bvpGhCOlG prod-eu"]}}
  metrics:
    cluster: prod-eu
    perNode: true
    textfile: {directory: /metrics}
    pushgateway: &endpoint {url: "https://receiver.example", credentialsDir: /c, caBundleFile: /ca, insecureSkipTLSVerify: false}
    otlp: *endpoint
  notifications:
  - name: a
    webhook: {events: [failed], format: json, signed: true, credentialsDir: /c, caBundleFile: /ca}
  - name: b
    ping: {run: snapshot, credentialsDir: /c, caBundleFile: /ca}
  destinations:
  - name: a
    required: false
    retention: {last: 1, hourly: 1, daily: 1, weekly: 1, monthly: 1, yearly: 1, within: 1d}
    hostPath: {path: /b}
  - name: b
    gcs:
      bucket: backups
      prefix: p
      endpoint: https://gcs.example.com
      auth: {method: serviceAccountKey, credentialsFile: /k.json}
      caBundleFile: /ca
      insecureSkipTLSVerify: false
      kmsKeyName: projects/p/locations/l/keyRings/r/cryptoKeys/k
      storageClass: STANDARD
      metadata: {a: b}
  - name: c
    azure:
      account: acct
      container: backups
      prefix: p
      serviceURL: https://acct.blob.example.com
      auth: {method: clientSecret, credentialsDir: /c, clientID: i, tenantID: t, authorityHost: "https://login.example.com/"}
      caBundleFile: /ca
      insecureSkipTLSVerify: false
      accessTier: Cool
      encryptionScope: s
      metadata: {a: b}
  - name: d
    s3:
      bucket: backups
      prefix: p
      region: eu-central-1
      endpoint: https://s3.example.com
      addressingStyle: path
      auth: {method: static, credentialsDir: /c, profile: p, roleARN: "arn:aws:iam::1:role/r", stsEndpoint: "https://sts.example.com"}
      caBundleFile: /ca
      insecureSkipTLSVerify: false
      checksums: always
      serverSideEncryption: {type: SSE-KMS, kmsKeyID: k}
      storageClass: STANDARD
      objectLock: {mode: GOVERNANCE, days: 7, legalHold: true}
      tags: {a: b}
      metadata: {a: b}
status:
  clusterName: prod-eu
  clusterUID: 0d3e2f54-8c0b-4a4e-9b52-9d4a5a0b7f11
  schedule: "@hourly"
  scheduleIntervalSeconds: 3600
  lastResult: Succeeded
  lastDurationSeconds: "1"
  databaseBytes: 2
  previousDatabaseBytes: 2
  storedBytes: 1
  revision: 2
  previousRevision: 1
  certificates: [{file: /ca.crt, notAfter: "2027-11-30T12:00:00Z"}]
  verifications:
  - {level: database, time: "2026-11-30T12:00:00Z", snapshot: s, result: Passed, message: m, passedTime: "2026-11-30T12:00:00Z",
    passedSnapshot: s, passedSnapshotTime: "2026-11-30T12:00:00Z"}
  lastRunTime: "2026-11-30T12:00:00Z"
  lastSuccessTime: "2026-11-30T12:00:00Z"
  lastSnapshot: s
  lastDuration: 1s
  consecutiveFailures: 0
  snapshots: 1
  size: 1 B
  destinations:
  - {name: a, backend: hostPath, required: true, retention: true, snapshots: 1, bytes: 1, lastSuccessTime: "2026-11-30T12:00:00Z",
    lastPruneTime: "2026-11-30T12:00:00Z", lastPruned: 1, message: m}
  conditions:
  - {type: Ready, status: "True", observedGeneration: 1, lastTransitionTime: "2026-11-30T12:00:00Z", reason: Stored, message: m}
`

// everyFact is a row that has every field.
const everyFact = `
apiVersion: etcdsnapshot.dev/v1
kind: EtcdSnapshot
metadata: {name: all, namespace: kube-system}
spec:
  policy: etcd
  clusterName: prod-eu
  clusterUID: 0d3e2f54-8c0b-4a4e-9b52-9d4a5a0b7f11
  createdAt: "2026-11-30T12:00:00Z"
  node: cp-1
  agentVersion: v0.1.0
  kubernetesVersion: v1.34.4
  etcd: {clusterID: cdf818194e3a8c32, memberID: 8e9e05c52164694d, version: 3.6.5, storageVersion: 3.6.0, revision: 815, raftTerm: 2}
  database: {size: 100, sha256: &sum "0000000000000000000000000000000000000000000000000000000000000000"}
  object: {key: k.db, size: 90, sha256: *sum}
  compression: zstd
  encryption: {kind: age, recipients: ["SHA256:x"]}
status:
  databaseSize: 100 B
  storedSize: 90 B
  destinationNames: a
  destinations: [{name: a, uri: "file:///b", size: 90, phase: Stored, keptBecause: [last], message: m}]
  verification: {time: "2026-11-30T12:00:00Z", level: checksum, revision: 1, totalKeys: 1, result: Passed, message: m}
  conditions:
  - {type: Stored, status: "True", observedGeneration: 1, lastTransitionTime: "2026-11-30T12:00:00Z", reason: Stored, message: m}
`

func schemaOf(t *testing.T, resource string) *apiextv1.JSONSchemaProps {
	t.Helper()
	data, err := api.CRD(resource)
	require.NoError(t, err)
	var crd apiextv1.CustomResourceDefinition
	require.NoError(t, yaml.UnmarshalStrict(data, &crd))
	return crd.Spec.Versions[0].Schema.OpenAPIV3Schema
}

func walk(s *apiextv1.JSONSchemaProps, path string, visit func(path string, s *apiextv1.JSONSchemaProps)) {
	visit(path, s)
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		p := s.Properties[name]
		walk(&p, path+"."+name, visit)
	}
	if s.Items != nil && s.Items.Schema != nil {
		walk(s.Items.Schema, path+"[]", visit)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		walk(s.AdditionalProperties.Schema, path+"{}", visit)
	}
}

// with gives a copy of m in which key has another value; nil takes it away.
func with(m map[string]any, key string, v any) map[string]any {
	m = maps.Clone(m)
	if m[key] = v; v == nil {
		delete(m, key)
	}
	return m
}

// breakAll calls try once for each keyword of the schema s of value, with a document in which only that one is broken.
// put gives the document with another value in the place of value; paths are written as the API server does.
func breakAll(t *testing.T, value any, s *apiextv1.JSONSchemaProps, path string, put func(any) map[string]any, try func(path, keyword string, doc map[string]any)) {
	t.Helper()
	broken := func(keyword string, v any) { try(path, keyword, put(v)) }
	breakScalar(t, s, path, broken)
	switch v := value.(type) {
	case map[string]any:
		broken("type", "text")
		if s.MinProperties != nil {
			broken("minProperties", map[string]any{})
		}
		if s.MaxProperties != nil {
			many := map[string]any{}
			for i := range *s.MaxProperties + 1 {
				many[fmt.Sprintf("k%d", i)] = "v"
			}
			broken("maxProperties", many)
		}
		for _, name := range s.Required {
			try(path+"."+name, "required", put(with(v, name, nil)))
		}
		for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
			p := s.Properties[name]
			child, ok := v[name]
			if !ok {
				require.Contains(t, []string{"hostPath", "gcs", "azure", "s3", "required", "retention", "keyDir", "webhook", "ping"}, name, "%s.%s is missing in the policy that has everything", path, name)
				continue
			}
			breakAll(t, child, &p, path+"."+name, func(x any) map[string]any { return put(with(v, name, x)) }, try)
		}
	case []any:
		broken("type", "text")
		breakList(v, s, path, broken, try, put)
		for i, item := range v {
			breakAll(t, item, s.Items.Schema, fmt.Sprintf("%s[%d]", path, i), func(x any) map[string]any {
				items := slices.Clone(v)
				items[i] = x
				return put(items)
			}, try)
		}
	}
}

func breakList(v []any, s *apiextv1.JSONSchemaProps, path string, broken func(string, any), try func(string, string, map[string]any), put func(any) map[string]any) {
	if s.MinItems != nil {
		broken("minItems", []any{})
	}
	if s.MaxItems != nil {
		many := []any{}
		for range *s.MaxItems + 1 {
			many = append(many, v[0])
		}
		broken("maxItems", many)
	}
	if s.XListType != nil && *s.XListType != "atomic" {
		twice := append(slices.Clone(v), v[0])
		try(fmt.Sprintf("%s[%d]", path, len(v)), "list-type", put(twice))
	}
}

func breakScalar(t *testing.T, s *apiextv1.JSONSchemaProps, path string, broken func(keyword string, v any)) {
	t.Helper()
	switch s.Type {
	case "string":
		broken("type", 1)
	case "boolean", "integer":
		broken("type", "text")
	}
	if s.Type == "integer" {
		broken("type", 1.5)
	}
	if len(s.Enum) > 0 {
		broken("enum", "none-of-them")
	}
	if s.Minimum != nil {
		broken("minimum", *s.Minimum-1)
	}
	if s.Maximum != nil {
		broken("maximum", *s.Maximum+1)
	}
	if s.MinLength != nil {
		broken("minLength", strings.Repeat("a", int(*s.MinLength)-1))
	}
	if s.MaxLength != nil {
		broken("maxLength", strings.Repeat("a", int(*s.MaxLength)+1))
	}
	if s.Pattern != "" {
		pattern := regexp.MustCompile(s.Pattern)
		bad := "  !"
		require.False(t, pattern.MatchString(bad), "%s: the pattern takes %q", path, bad)
		broken("pattern", bad)
	}
}

// TestUnknownFieldsFromServer: a field of a newer CRD that this program does not know is refused when the policy is read,
// and so is what an older CRD let in.
func TestUnknownFieldsFromServer(t *testing.T) {
	server := kubetest.New(t) // one of its own, for it changes the CRD
	installCRDs(t, server)
	b := newBenchOn(t, server)
	data, err := api.CRD(v1.PolicyResource)
	require.NoError(t, err)
	var crd map[string]any
	require.NoError(t, yaml.Unmarshal(data, &crd))
	version := crd["spec"].(map[string]any)["versions"].([]any)[0].(map[string]any)
	version["schema"] = map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}
	open, err := yaml.Marshal(crd)
	require.NoError(t, err)
	require.NoError(t, server.Apply(t.Context(), "", open))
	for name, c := range map[string]struct{ spec, want string }{
		"a field of a newer CRD":        {`{"shiny":true}`, `unknown field "spec.shiny"`},
		"a value that an older let in":  {`{"shiny":null,"clusterName":"a/b"}`, "spec.clusterName"},
		"two backends in a destination": {`{"shiny":null,"clusterName":"a","destinations":[{"name":"x","hostPath":{"path":"/b"},"gcs":{"bucket":"abc"}}]}`, "exactly one backend"},
	} {
		t.Run(name, func(t *testing.T) {
			var spec map[string]any
			require.NoError(t, json.Unmarshal([]byte(c.spec), &spec))
			tgt := target{resource: v1.PolicyResource, namespace: b.namespace, name: "etcd"}
			require.NoError(t, b.client.merge(t.Context(), tgt, map[string]any{"spec": spec}, nil))
			_, err := b.client.Policy(t.Context(), b.namespace, "etcd")
			var invalid *api.InvalidError
			require.True(t, errors.As(err, &invalid), "%v", err)
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, b.namespace+"/etcd")
		})
	}
	// What others add to the object is not the user's to answer for.
	require.NoError(t, b.client.merge(t.Context(), target{resource: v1.PolicyResource, namespace: b.namespace, name: "etcd"}, map[string]any{"spec": map[string]any{"shiny": nil, "clusterName": "a", "destinations": []any{map[string]any{"name": "x", "hostPath": map[string]any{"path": "/b"}}}}}, nil))
	require.NoError(t, b.client.merge(t.Context(), target{resource: v1.PolicyResource, namespace: b.namespace, name: "etcd", subresource: "status"}, map[string]any{"status": map[string]any{"ofANewerAgent": 1}}, nil))
	_, err = b.client.Policy(t.Context(), b.namespace, "etcd")
	require.NoError(t, err)
}
