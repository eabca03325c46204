package cli_test

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"etcdsnapshot.dev/ci/etcdtest"
)

const shop = `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: default, namespace: shop}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: shop, labels: {app: web}}
data: {currency: EUR, theme: light}
---
apiVersion: v1
kind: Secret
metadata: {name: payment, namespace: shop}
stringData: {token: hunter2-hunter2, user: shop}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop, labels: {app: web}}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: "shop/web:1"}]}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: orders, namespace: shop}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: discounts.shop.example.test}
spec:
  group: shop.example.test
  scope: Namespaced
  names: {kind: Discount, plural: discounts, singular: discount, shortNames: [dc]}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`

const discount = `
apiVersion: shop.example.test/v1
kind: Discount
metadata: {name: winter, namespace: shop}
spec: {percent: 10}
`

// TestRecoverOneNamespace is the story of docs/recover-one-object.md on a real API server: what happened to a namespace is
// found out, and the namespace comes back.
func TestRecoverOneNamespace(t *testing.T) {
	k := newKube(t)
	ok := func(args ...string) string {
		t.Helper()
		o := quietly(t, args...)
		require.Zero(t, o.code, "%s\n%s", o.stderr, o.stdout)
		return o.stdout
	}
	k.must(shop, "apply", "-f", "-")
	k.must("", "wait", "--for=condition=Established", "crd/discounts.shop.example.test", "--timeout=60s")
	k.must(discount, "apply", "-f", "-")
	k.must("", "patch", "cm", "settings", "-n", "shop", "--type=merge", "-p", `{"data":{"currency":"USD"}}`)
	before := k.save()

	// Find.
	listed := ok("keys", "--from", before, "-n", "shop")
	require.Regexp(t, `(?m)^KIND +NAMESPACE +NAME +REVISION +SIZE$`, listed)
	require.Regexp(t, `(?m)^shop.example.test/v1 Discount +shop +winter +\d+ +\d+ B$`, listed)
	require.Equal(t, 8, strings.Count(listed, "\n"), "seven objects")
	require.Equal(t, "discount.shop.example.test/winter\n", ok("get", "dc", "-n", "shop", "--from", before, "-o", "name"))
	require.Equal(t, "configmap/settings\n", ok("get", "cm", "-n", "shop", "--from", before, "-o", "name", "-l", "app=web"))
	require.Regexp(t, `(?m)^apps/v1 Deployment +1 `, ok("keys", "--from", before, "--by", "kind"))

	// Show: Secrets only when they are asked for.
	hidden := quietly(t, "get", "secret/payment", "-n", "shop", "--from", before, "-o", "yaml")
	require.Zero(t, hidden.code)
	for _, secret := range []string{"hunter2", base64.StdEncoding.EncodeToString([]byte("hunter2-hunter2"))} {
		require.NotContains(t, hidden.stdout+hidden.stderr, secret)
	}
	require.Contains(t, hidden.stderr, "--show-secrets")
	_, applied := k.kubectl(hidden.stdout, "apply", "-f", "-")
	require.False(t, applied, "a hidden Secret must not be applied by mistake")
	require.Contains(t, ok("get", "secret/payment", "-n", "shop", "--from", before, "-o", "yaml", "--show-secrets"), "aHVudGVyMi1odW50ZXIy")

	// The versions that are still there, and one of them.
	history := ok("history", "cm/settings", "-n", "shop", "--from", before)
	require.Contains(t, history, "data.currency")
	revisions := regexp.MustCompile(`shop/settings +(\d+)`).FindAllStringSubmatch(history, -1)
	require.Len(t, revisions, 2, history)
	first := revisions[0][1]
	require.Contains(t, ok("get", "cm", "settings", "-n", "shop", "--from", before, "-o", "yaml", "--revision", first), "currency: EUR")
	require.Contains(t, ok("get", "cm", "settings", "-n", "shop", "--from", before, "-o", "yaml"), "currency: USD")

	// What changed.
	k.must("", "delete", "deploy", "web", "-n", "shop", "--wait=false")
	k.must("", "patch", "secret", "payment", "-n", "shop", "--type=merge", "-p", `{"stringData":{"token":"hunter3-hunter3"}}`)
	k.must("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: new, namespace: shop}\n", "apply", "-f", "-")
	after := k.save()
	var difference struct {
		Differences []struct{ Change, APIVersion, Kind, Namespace, Name string }
	}
	text := ok("diff", before, after, "-n", "shop", "-o", "json")
	require.NoError(t, json.Unmarshal([]byte(text), &difference), text)
	got := map[string]string{}
	for _, d := range difference.Differences {
		require.Equal(t, "shop", d.Namespace)
		got[d.APIVersion+" "+d.Kind+" "+d.Name] = d.Change
	}
	require.Equal(t, map[string]string{"apps/v1 Deployment web": "removed", "v1 Secret payment": "changed", "v1 ConfigMap new": "added"}, got, text)
	for _, form := range []string{"table", "json", "yaml"} {
		for _, side := range [][]string{{before, after}, {before, "--live", "--kubeconfig", k.kubeconfig}} {
			o := quietly(t, append([]string{"diff", "-n", "shop", "-o", form}, side...)...)
			require.Zero(t, o.code, o.stderr)
			require.Contains(t, o.stdout, "payment")
			require.NotContains(t, o.stdout+o.stderr, "hunter")
			require.NotContains(t, o.stdout+o.stderr, "aHVudGVy")
			require.NotContains(t, o.stdout, "v1 Namespace", "the namespace itself is as it was")
			if form == "yaml" {
				require.Contains(t, o.stdout, "\n--- apps/v1 Deployment shop/web at revision ", "headers begin a line")
			}
		}
	}
	require.Contains(t, ok("diff", before, after, "secret", "payment", "-n", "shop", "-o", "yaml", "--show-secrets"), "aHVudGVyMy1odW50ZXIz")

	// An object counts that has the labels on either side.
	k.must("", "label", "cm", "settings", "-n", "shop", "app=old", "--overwrite")
	relabelled := k.save()
	for _, label := range []string{"app=web", "app=old"} {
		for _, side := range [][]string{{before, relabelled}, {before, "--live", "--kubeconfig", k.kubeconfig}} {
			text := ok(append([]string{"diff", "-n", "shop", "-l", label}, side...)...)
			require.Regexp(t, `changed +v1 ConfigMap +shop +settings +metadata.labels.app`, text)
		}
	}

	// All of it comes back.
	k.must("", "delete", "deploy,cm,secret,pvc,dc", "--all", "-n", "shop", "--wait=false")
	k.must("", "patch", "pvc", "orders", "-n", "shop", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	k.must(ok("get", "all", "-n", "shop", "--from", before, "--show-secrets", "-o", "yaml"), "apply", "-f", "-")
	require.Equal(t, "USD", k.must("", "get", "cm", "settings", "-n", "shop", "-o", "jsonpath={.data.currency}"))
	require.Equal(t, "shop/web:1", k.must("", "get", "deploy", "web", "-n", "shop", "-o", "jsonpath={.spec.template.spec.containers[0].image}"))
	require.Equal(t, "10", k.must("", "get", "dc", "winter", "-n", "shop", "-o", "jsonpath={.spec.percent}"))
	k.must("", "get", "pvc", "orders", "-n", "shop")

	// What cannot be answered is said.
	o := quietly(t, "get", "deploy", "wrb", "-n", "shop", "--from", before)
	require.Equal(t, 1, o.code)
	require.Contains(t, o.stderr, "deploy/wrb is not in the snapshot in namespace shop")
	o = quietly(t, "get", "deployment", "web", "-n", "shop", "--from", after)
	require.Equal(t, 1, o.code)
	require.Contains(t, o.stderr, "it was deleted at revision")
	for _, args := range [][]string{
		{"get", "gadgets", "--from", before},
		{"keys", "gadgets", "--from", before},
		{"history", "gadgets", "a", "--from", before},
		{"diff", before, after, "gadgets"},
		{"diff", before, "--live", "--kubeconfig", k.kubeconfig, "gadgets"},
	} {
		o = quietly(t, args...)
		require.Equal(t, 2, o.code, "%v: %s", args, o.stderr)
		require.Contains(t, o.stderr, `"gadgets" is no kind`)
	}
}

// TestInspectEncryptedAtRest: what the API server encrypted is read with its own configuration, and named without.
func TestInspectEncryptedAtRest(t *testing.T) {
	for provider, prefix := range map[string]string{"aescbc": "/registry", "aesgcm": "/kubernetes.io", "secretbox": "/own"} {
		t.Run(provider, func(t *testing.T) {
			key := make([]byte, 32)
			_, err := rand.Read(key)
			require.NoError(t, err)
			write := func(key []byte) string {
				path := filepath.Join(t.TempDir(), "encryption.yaml")
				require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - %s: {keys: [{name: key1, secret: %s}]}
  - identity: {}
`, provider, base64.StdEncoding.EncodeToString(key)), 0o600))
				return path
			}
			config := write(key)
			// Keys lie where OpenShift has them, for one.
			k := newKube(t, "--encryption-provider-config="+config, "--etcd-prefix="+prefix)
			k.must(shop, "apply", "-f", "-")
			db := k.save()
			get := func(args ...string) outcome {
				return quietly(t, append([]string{"get", "secret", "payment", "-n", "shop", "--from", db, "-o", "yaml", "--show-secrets"}, args...)...)
			}
			o := get("--encryption-config", config)
			require.Zero(t, o.code, o.stderr)
			require.Contains(t, o.stdout, "aHVudGVyMi1odW50ZXIy")

			o = quietly(t, "keys", "-n", "shop", "--from", db, "-o", "wide")
			require.Zero(t, o.code, o.stderr)
			require.Regexp(t, `apps/v1 Deployment +shop +web .* `+prefix+`/deployments/shop/web`, o.stdout)
			require.Regexp(t, `secrets \(encrypted with `+provider+`\) +shop +payment .* `+prefix+`/secrets/shop/payment`, o.stdout)

			o = get()
			require.Equal(t, 2, o.code, o.stderr)
			require.Contains(t, o.stderr, provider)
			require.Contains(t, o.stderr, "--encryption-config")

			key[0] ^= 1
			o = get("--encryption-config", write(key))
			require.NotZero(t, o.code)
			require.NotContains(t, o.stderr, base64.StdEncoding.EncodeToString(key))
		})
	}
}

// TestInspectOtherDatabases: databases that are damaged, or nothing of Kubernetes.
func TestInspectOtherDatabases(t *testing.T) {
	cluster := etcdtest.Start(t, etcdtest.Options{})
	client, err := cluster.Client(0)
	require.NoError(t, err)
	defer client.Close()
	for i := range 300 {
		_, err := client.Put(t.Context(), "/plain/"+strconv.Itoa(i), strings.Repeat("v", 300))
		require.NoError(t, err)
	}
	path := filepath.Join(t.TempDir(), "plain.db")
	require.NoError(t, cluster.SaveSnapshot(t.Context(), 0, path))
	o := quietly(t, "keys", "--from", path, "--prefix", "/plain/29", "-o", "name")
	require.Zero(t, o.code, o.stderr)
	require.Len(t, strings.Fields(o.stdout), 11)
	o = quietly(t, "get", "pods", "-A", "--from", path)
	require.Equal(t, 1, o.code)
	require.Contains(t, o.stderr, "no such objects")

	db, err := os.ReadFile(path)
	require.NoError(t, err)
	for i := 4 * 4096; i+4096 < len(db); i += 4096 {
		for j := range 64 {
			db[i+j] ^= 0xff
		}
	}
	damaged := filepath.Join(t.TempDir(), "damaged.db")
	require.NoError(t, os.WriteFile(damaged, db, 0o600))
	for _, args := range [][]string{{"keys", "--from", damaged}, {"keys", "--from", damaged, "--skip-hash-check"}, {"get", "pods", "-A", "--from", damaged}} {
		o := quietly(t, args...)
		require.Equal(t, 4, o.code, "%v: %s", args, o.stderr)
		require.Contains(t, o.stderr, "corrupt")
	}
}
