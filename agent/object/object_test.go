package object

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	metafuzz "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/randfill"
)

// TestEveryKindAsKubernetesDoes: for every kind that Kubernetes' own types know, objects with every field set at random, and
// empty ones, are written by Kubernetes' own encoder and read by ours. What we print is, byte for byte, what Kubernetes'
// decoder and encoding/json make of it.
func TestEveryKindAsKubernetesDoes(t *testing.T) {
	seed := time.Now().UnixNano()
	codec := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	fill := fuzzer.FuzzerFor(metafuzz.Funcs, rand.NewSource(seed), scheme.Codecs).NilChance(.2).NumElements(1, 3).MaxDepth(30)
	n := 0
	for gvk := range scheme.Scheme.AllKnownTypes() {
		obj, err := scheme.Scheme.New(gvk)
		require.NoError(t, err)
		if _, ok := obj.(metav1.ObjectMetaAccessor); !ok || gvk.Version == runtime.APIVersionInternal {
			continue
		}
		n++
		t.Run(gvk.String(), func(t *testing.T) {
			for round := range 10 {
				obj, _ := scheme.Scheme.New(gvk)
				if round > 0 {
					fillIn(fill, obj)
				}
				obj.GetObjectKind().SetGroupVersionKind(gvk)
				var stored bytes.Buffer
				require.NoError(t, codec.Encode(obj, &stored))
				theirs, _, err := codec.Decode(stored.Bytes(), nil, nil)
				require.NoError(t, err)
				theirs.GetObjectKind().SetGroupVersionKind(gvk)
				want, err := json.Marshal(theirs)
				require.NoError(t, err)

				ours, err := Decode(stored.Bytes())
				require.NoError(t, err)
				require.Zero(t, ours.UnknownFields)
				got, err := json.Marshal(ours.Object)
				require.NoError(t, err)
				require.JSONEq(t, string(want), string(got), "seed %d", seed)

				meta, err := DecodeMeta(stored.Bytes())
				require.NoError(t, err)
				require.Equal(t, ours.Object["metadata"], meta.Object["metadata"])
			}
		})
	}
	require.Greater(t, n, 100)
	require.Len(t, schema().kinds, n, "kinds.txt is of the same version as the types: make generate")
}

func fillIn(f *randfill.Filler, obj runtime.Object) { f.Fill(obj) }

// TestNewerKubernetes: a field that is not known is not lost in silence.
func TestNewerKubernetes(t *testing.T) {
	u := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}}
	meta := metav1.ObjectMeta{Name: "a"}
	inner, err := meta.Marshal()
	require.NoError(t, err)
	u.Raw = append(append([]byte{0x0a, byte(len(inner))}, inner...), 0xfa, 0x06, 2, 'h', 'i') // field 111
	b, err := u.Marshal()
	require.NoError(t, err)
	o, err := Decode(append([]byte("k8s\x00"), b...))
	require.NoError(t, err)
	require.Equal(t, "a", o.GetName())
	require.Equal(t, 1, o.UnknownFields)

	u.APIVersion, u.Kind = "route.openshift.io/v1", "Route"
	b, err = u.Marshal()
	require.NoError(t, err)
	o, err = Decode(append([]byte("k8s\x00"), b...))
	require.ErrorIs(t, err, ErrUnknownKind)
	require.Equal(t, "a", o.GetName())
	require.Equal(t, "Route", o.GetKind())
	_, err = DecodeMeta(append([]byte("k8s\x00"), b...))
	require.NoError(t, err)
}

func ExampleDecode() {
	o, err := Decode([]byte(`{"apiVersion":"example.test/v1","kind":"Widget","metadata":{"name":"a","namespace":"shop"},"spec":{"size":3}}`))
	fmt.Println(o.Type, o.GetNamespace(), o.GetName(), o.Object["spec"], err)
	// Output: example.test/v1 Widget shop a map[size:3] <nil>
}
