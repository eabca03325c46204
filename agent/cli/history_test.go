package cli_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestHistoryAcrossSnapshots: an object is written, overwritten, deleted, made again and deleted again, and etcd is compacted
// meanwhile. What the stored snapshots hold of it is one history.
func TestHistoryAcrossSnapshots(t *testing.T) {
	k := newKube(t)
	client, err := k.Etcd.Client(0)
	require.NoError(t, err)
	defer client.Close()
	compact := func() {
		t.Helper()
		r, err := client.Get(t.Context(), "/none")
		require.NoError(t, err)
		_, err = client.Compact(t.Context(), r.Header.Revision)
		require.NoError(t, err)
	}
	s := newSite(t, k.Etcd.Endpoints(), "node")
	s.etcd()["caFile"], s.etcd()["certFile"], s.etcd()["keyFile"] = k.Etcd.Certs.CAFile, k.Etcd.Certs.ClientCertFile, k.Etcd.Certs.ClientKeyFile
	s.destination(0)["retention"] = map[string]any{"last": 10}
	var names []string
	stored := func() {
		t.Helper()
		if n := len(names); n > 0 { // snapshots are ordered by the second that is in their names
			require.Eventually(t, func() bool {
				return !strings.Contains(names[n-1], strings.ToLower(time.Now().UTC().Format("20060102T150405Z")))
			},
				time.Minute, 10*time.Millisecond)
		}
		o := quietly(t, s.args(t)...)
		require.Zero(t, o.code, o.stderr)
		for _, name := range s.listed(t, "node") {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	set := func(currency string) {
		t.Helper()
		k.must("", "patch", "cm", "settings", "-n", "shop", "--type=merge", "-p", fmt.Sprintf(`{"data":{"currency":%q}}`, currency))
	}

	k.must(shop, "apply", "-f", "-")
	stored()
	set("USD")
	set("CHF")
	compact()
	set("XXX")
	stored()
	k.must("", "delete", "cm", "settings", "-n", "shop")
	k.must("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, namespace: shop}\ndata: {currency: EUR}\n", "create", "-f", "-")
	k.must("", "patch", "deploy", "web", "-n", "shop", "--subresource=status", "--type=merge", "-p", `{"status":{"replicas":1}}`)
	stored()
	k.must("", "delete", "cm", "settings", "-n", "shop")
	compact()
	stored()
	require.Len(t, names, 4)

	type version struct {
		Revision           int64
		Change, Snapshot   string
		MissingBefore      int64
		Fields             []string
		Message, Kind, Key string
	}
	history := func(args ...string) []version {
		t.Helper()
		o := quietly(t, append([]string{"history", "-n", "shop", "--policy-file", s.file(t), "-o", "json"}, args...)...)
		require.Zero(t, o.code, o.stderr)
		var list struct{ Versions []version }
		require.NoError(t, json.Unmarshal([]byte(o.stdout), &list), o.stdout)
		return list.Versions
	}
	all := history("cm/settings", "--all-snapshots")
	var told []string
	for _, v := range all {
		told = append(told, fmt.Sprintf("%d %s, %d missing, %v %s", slices.Index(names, v.Snapshot), v.Change, v.MissingBefore, v.Fields, v.Message))
	}
	require.Equal(t, []string{
		"0 created, 0 missing, [] ",
		"1 changed, 1 missing, [data.currency] ", // USD is compacted
		"1 changed, 0 missing, [data.currency] ",
		"2 deleted, 0 missing, [] ",
		"2 created, 0 missing, [] ",
		"3 deleted, 0 missing, [] since the snapshot before; the revision is compacted",
	}, told)
	require.Equal(t, all, history("cm/settings", "--since", "1d"))

	// Each version that is listed can be shown.
	for i, currency := range map[int]string{0: "EUR", 1: "CHF", 2: "XXX", 4: "EUR"} {
		o := quietly(t, "get", "cm", "settings", "-n", "shop", "--policy-file", s.file(t), "-o", "yaml",
			"--snapshot", all[i].Snapshot, "--revision", fmt.Sprint(all[i].Revision))
		require.Zero(t, o.code, o.stderr)
		require.Contains(t, o.stdout, "currency: "+currency)
	}

	// A compacted revision is not taken for the one before it.
	get := func(i int, revision int64) outcome {
		return quietly(t, "get", "cm", "settings", "-n", "shop", "--policy-file", s.file(t), "--snapshot", names[i], "--revision", fmt.Sprint(revision))
	}
	o := get(1, all[1].Revision-1)
	require.Equal(t, 1, o.code)
	require.Contains(t, o.stderr, "are compacted")
	o = get(2, all[3].Revision)
	require.Equal(t, 1, o.code)
	require.Contains(t, o.stderr, fmt.Sprintf("it was deleted at revision %d; the version before is still there: --revision %d", all[3].Revision, all[2].Revision))
	require.Equal(t, 2, get(0, 1<<40).code)
	o = get(3, 0)
	require.Equal(t, 1, o.code)
	require.Contains(t, o.stderr, "cm/settings is not in the snapshot in namespace shop")

	// A version that changed nothing but status is there, and told of only when it is asked for.
	require.Len(t, history("deploy/web", "--snapshot", names[2]), 1)
	require.Len(t, history("deploy/web", "--snapshot", names[2], "--all"), 2)

	text := quietly(t, "history", "cm/settings", "-n", "shop", "--policy-file", s.file(t), "--all-snapshots", "-o", "diff")
	require.Zero(t, text.code, text.stderr)
	require.Contains(t, text.stdout, "-  currency: EUR\n+  currency: CHF\n")
	require.Contains(t, text.stdout, "-  currency: CHF\n+  currency: XXX\n")
	require.NotContains(t, text.stdout, "managedFields")

	for want, args := range map[string][]string{
		"no version of cm/none is left":     {"cm/none", "--all-snapshots"},
		"no version of cm/settings is left": {"cm/settings", "--latest"},
		"say which object":                  {"cm", "--latest"},
		"exclude":                           {"cm/settings", "--all-snapshots", "--latest"},
	} {
		o := quietly(t, append([]string{"history", "-n", "shop", "--policy-file", s.file(t)}, args...)...)
		require.Contains(t, []int{1, 2}, o.code)
		require.Contains(t, o.stderr, want)
	}

	// Times name snapshots, too.
	at := func(i int) string {
		_, after, _ := strings.Cut(names[i], "-")
		text, _, _ := strings.Cut(after, "-")
		return text
	}
	o = quietly(t, "diff", at(0), at(1), "--policy-file", s.file(t), "-n", "shop")
	require.Zero(t, o.code, o.stderr)
	require.Regexp(t, `changed +v1 ConfigMap +shop +settings +data.currency`, o.stdout)
	o = quietly(t, "diff", names[2], "latest", "--policy-file", s.file(t))
	require.Zero(t, o.code, o.stderr)
	require.Regexp(t, `removed +v1 ConfigMap +shop +settings`, o.stdout)

	// A snapshot that is damaged does not hide what the others know.
	for _, path := range files(t, s.stores["node"]) {
		if strings.Contains(path, names[1]) && filepath.Ext(path) == ".zst" {
			flipBit(t, path)

		}
	}
	o = quietly(t, "history", "cm/settings", "-n", "shop", "--policy-file", s.file(t), "--all-snapshots")
	require.Equal(t, 4, o.code, o.stderr)
	require.Contains(t, o.stderr, names[1])
	require.Equal(t, 1+len(all), strings.Count(o.stdout, "\n"), o.stdout) // the next one has its versions, too
	require.NotContains(t, o.stdout, names[1])
}

// TestInspectNamesAndSizes: what is unusual about names and sizes, and allowed.
func TestInspectNamesAndSizes(t *testing.T) {
	k := newKube(t)
	k.must(shop, "apply", "-f", "-")
	k.must("", "wait", "--for=condition=Established", "crd/discounts.shop.example.test", "--timeout=60s")
	long := strings.Repeat(strings.Repeat("a", 62)+".", 4) + "z" // 253
	for _, manifest := range []string{
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kube.dotted.name, namespace: shop}\n",
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + long + ", namespace: shop}\n",
		"apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: \"shop:clerk\"}\nrules: []\n",
		// The largest that etcd takes: 1.5 MiB for the request.
		"apiVersion: shop.example.test/v1\nkind: Discount\nmetadata: {name: huge, namespace: shop}\nspec: {text: \"" + strings.Repeat("x", 1536<<10-2048) + "\"}\n",
	} {
		k.must(manifest, "create", "-f", "-")
	}
	db := k.save()
	for _, args := range [][]string{
		{"cm", "kube.dotted.name", "-n", "shop"},
		{"cm", long, "-n", "shop"},
		{"configmap/" + long, "-n", "shop"},
		{"clusterrole", "shop:clerk"},
		{"clusterroles.rbac.authorization.k8s.io", "shop:clerk", "-n", "shop"},
	} {
		o := quietly(t, append([]string{"get", "--from", db, "-o", "name"}, args...)...)
		require.Zero(t, o.code, "%v: %s", args, o.stderr)
		_, name, _ := strings.Cut(strings.TrimSpace(o.stdout), "/")
		require.Contains(t, args[0]+args[1], name)
	}
	o := quietly(t, "get", "dc", "huge", "-n", "shop", "--from", db, "-o", "json", "--clean=false")
	require.Zero(t, o.code, o.stderr)
	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &got))
	want := k.raw("/apis/shop.example.test/v1/namespaces/shop/discounts/huge")
	delete(want["metadata"].(map[string]any), "resourceVersion") // is not stored: it is the revision
	require.Equal(t, want, got)
	o = quietly(t, "keys", "dc", "--from", db)
	require.Regexp(t, `shop.example.test/v1 Discount +shop +huge +\d+ +1.5 MiB`, o.stdout)

	// Damage anywhere in it is found before anything is shown.
	s := newSite(t, k.Etcd.Endpoints(), "node")
	s.etcd()["caFile"], s.etcd()["certFile"], s.etcd()["keyFile"] = k.Etcd.Certs.CAFile, k.Etcd.Certs.ClientCertFile, k.Etcd.Certs.ClientKeyFile
	o = quietly(t, s.args(t)...)
	require.Zero(t, o.code, o.stderr)
	for _, path := range files(t, s.stores["node"]) {
		if filepath.Ext(path) == ".zst" {
			flipBit(t, path)
		}
	}
	for _, args := range [][]string{{"keys"}, {"get", "dc", "huge", "-n", "shop"}, {"history", "dc/huge", "-n", "shop"}, {"history", "dc/huge", "-n", "shop", "--all-snapshots"}, {"diff", "latest", db}} {
		o := quietly(t, append(args, "--policy-file", s.file(t))...)
		require.Equal(t, 4, o.code, "%v: %s", args, o.stderr)
		require.Contains(t, o.stderr, "corrupt")
		require.Empty(t, o.stdout)
	}
}
