package verify

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"etcdsnapshot.dev/agent/etcddb"
	"etcdsnapshot.dev/ci/etcdtest"
)

// stored gives an object as the API server writes it in protobuf: the types are Kubernetes' own.
func protobuf(t testing.TB, apiVersion, kind, name string) []byte {
	t.Helper()
	meta := metav1.ObjectMeta{Name: name, Namespace: "kube-system"}
	inner, err := meta.Marshal()
	require.NoError(t, err)
	raw := append([]byte{0x0a, byte(len(inner))}, inner...)
	u := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: apiVersion, Kind: kind}, Raw: raw}
	b, err := u.Marshal()
	require.NoError(t, err)
	return append([]byte("k8s\x00"), b...)
}

func TestKinds(t *testing.T) {
	var k Kinds
	pod := protobuf(t, "v1", "Pod", "coredns")
	crd := `{"apiVersion":"example.test/v1","kind":"Widget","metadata":{"name":"a"}}`
	for key, value := range map[string]string{
		"/registry/pods/kube-system/coredns":         string(pod),
		"/registry/pods/kube-system/other":           string(pod),
		"/registry/apps/deployments/x/y":             string(protobuf(t, "apps/v1", "Deployment", "y")),
		"/registry/example.test/widgets/ns/a":        crd,
		"/registry/example.test/widgets/ns/b":        `{"metadata":{"name":"b"},"spec":[1,{"kind":"No"}],"kind":"Widget","apiVersion":"example.test/v1"}`,
		"/registry/secrets/default/token":            "k8s:enc:aescbc:v1:key1:\x00\x01\x02",
		"/registry/secrets/default/token2":           "k8s:enc:aescbc:v1:key1:\x03",
		"/registry/configmaps/default/c":             "k8s:enc:kms:v2:provider:\x03",
		"/registry/example.test/widgets/ns/enc":      "k8s:enc:secretbox:v1:k:\x03",
		"/registry/ranges/list":                      `{"apiVersion":"v1"}`,
		"compact_rev_key":                            "12345",
		"/registry/health":                           "",
		"/coreos.com/network/config":                 `{"Network":"10.0.0.0/8"}`,
		"/registry/pods/kube-system/cut":             string(pod[:len(pod)-3]),
		"/registry/pods/kube-system/nameless":        "k8s\x00",
		"/registry/example.test/widgets/ns/cut":      crd[:len(crd)-2],
		"/registry/secrets/default/no-provider":      "k8s:enc:",
		"/registry/example.test/widgets/ns/odd-kind": `{"apiVersion":"example.test/v1","kind":"a\nb"}`,
	} {
		k.add([]byte(key), []byte(value))
	}
	k.finish()
	var got []string
	for _, one := range k.List {
		got = append(got, one.String())
	}
	require.Equal(t, []string{"apps/v1 Deployment", "configmaps (encrypted with kms)", "example.test/v1 Widget", "secrets (encrypted with aescbc)", "v1 Pod", "widgets.example.test (encrypted with secretbox)"}, got)
	require.EqualValues(t, 9, k.Objects())
	require.EqualValues(t, 4, k.Other)
	require.EqualValues(t, 5, k.Undecodable)
	require.NotEmpty(t, k.Example)
	require.EqualValues(t, 2, k.List[4].Count)
	require.EqualValues(t, 2*len(pod), k.List[4].Bytes)

	out, err := json.Marshal(Drill{Kinds: k})
	require.NoError(t, err)
	require.Contains(t, string(out), `"kinds":[{"apiVersion":"apps/v1","kind":"Deployment","count":1`)
}

func TestKindsAreBounded(t *testing.T) {
	var k Kinds
	for i := range maxKinds + 10 {
		k.add([]byte("/registry/x"), []byte(`{"apiVersion":"v1","kind":"K`+strings.Repeat("x", i%200)+string(rune('a'+i%26))+strings.Repeat("y", i/200)+`"}`))
	}
	require.LessOrEqual(t, len(k.List), maxKinds)
	k.add(nil, []byte(`{"apiVersion":"v1","kind":"`+strings.Repeat("x", 1<<20)+`"}`))
	require.Positive(t, k.Undecodable)
}

func FuzzSniff(f *testing.F) {
	for i := range 8 {
		key, value := etcdtest.Object(i)
		f.Add([]byte(key), value)
	}
	f.Add([]byte("/registry/secrets/a/b"), []byte("k8s:enc:aescbc:v1:key1:\x00"))
	f.Add([]byte("/registry/pods/a/b"), protobuf(f, "v1", "Pod", "b"))
	f.Add([]byte("x"), []byte(`{"kind":{"a":[]},"apiVersion":1}`))
	f.Fuzz(func(t *testing.T, key, value []byte) {
		var k Kinds
		k.add(key, value)
		k.finish()
		require.EqualValues(t, 1, k.Objects()+k.Other+k.Undecodable)
		for _, one := range k.List {
			require.True(t, one.Kind != "" && one.APIVersion != "" || one.Resource != "" && one.Encryption != "")
			require.Less(t, len(one.String()), 1024)
		}
		_, _ = etcddb.ParseEntry(key, value)
	})
}
