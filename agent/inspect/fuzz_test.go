package inspect

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"etcdsnapshot.dev/agent/etcddb"
	"etcdsnapshot.dev/agent/object"
	"etcdsnapshot.dev/ci/etcdtest"
)

// FuzzItem: whatever stands under a key of etcd, all that the verbs do with it ends, without a panic.
func FuzzItem(f *testing.F) {
	for i := range 8 {
		key, value := etcdtest.Object(i)
		f.Add([]byte(key), value)
	}
	for _, text := range []string{
		`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a","annotations":7,"labels":[],"finalizers":"x","ownerReferences":[1]},"data":[1]}`,
		`{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":"a","namespace":"b"},"spec":{"volumeName":"v"}}`,
		`{"apiVersion":"batch/v1","kind":"Job","metadata":{},"spec":{"template":[]},"status":{"conditions":[null,{"type":"Complete","status":"True"}]}}`,
		`{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"a"},"secrets":[{"name":"a-token-abcde"},3]}`,
		`{"apiVersion":"apiextensions.k8s.io/v1beta1","kind":"CustomResourceDefinition","metadata":{"name":"a"},"spec":{"names":{"kind":"K","plural":"ks","shortNames":[1]}}}`,
		`{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"a"},"spec":{"group":1,"version":"v1"}}`,
		`{"apiVersion":"apps/v1","kind":"StatefulSet","metadata":{"name":"a"},"spec":{"volumeClaimTemplates":{}}}`,
		"k8s:enc:aescbc:v1:key1:0123456789abcdef", "k8s:enc:kms:v2:", "", "k8s\x00",
	} {
		f.Add([]byte("/registry/secrets/b/a"), []byte(text))
	}
	selector, err := labels.Parse("app=web,tier!=cache")
	require.NoError(f, err)
	known := object.NewNames()
	f.Fuzz(func(t *testing.T, key, value []byte) {
		s := &Snapshot{keys: &object.Keys{}, names: known}
		it := s.item(etcddb.Entry{Key: key, Value: value})
		namespace, name := it.Location()
		require.LessOrEqual(t, len(namespace)+len(name), len(key)+len(value))
		require.NotEmpty(t, it.KindName())
		if o, err := it.Object(); err == nil {
			require.Equal(t, it.Type, o.Type)
			if o.IsCRD() {
				_ = object.NewNames().AddCRD(o)
			}
			if o.IsAPIService() {
				object.NewNames().AddAPIService(o)
			}
		}
		for _, wanted := range []string{"all", "secrets", "cm/a"} {
			q := Query{Selector: selector}
			q.Wanted, err = ParseWanted(strings.Fields(wanted))
			require.NoError(t, err)
			m := newMatcher(q)
			m.match(it)
			_, _ = m.foreign()
		}
		changed := s.item(etcddb.Entry{Key: key, Value: append([]byte(nil), value...)})
		d := &differ{result: &DiffResult{Noise: map[string]int64{}}, fn: func(Difference) error { return nil }}
		require.NoError(t, d.one(newMatcher(Query{}), it, newMatcher(Query{}), Item{}))
		var out Difference
		d.fill(&out, it, changed)
		require.Empty(t, out.Fields, "an object differs from itself in nothing")
	})
}
