package object

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage/value"
	"sigs.k8s.io/yaml"
)

// FuzzDecode: whatever a value holds, decoding it ends, and what comes out can be cleaned, compared and printed.
func FuzzDecode(f *testing.F) {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "b", Labels: map[string]string{"app": "web"}, Finalizers: []string{"x"}},
		Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	raw, err := pod.Marshal()
	require.NoError(f, err)
	for _, kind := range []string{"Pod", "Unheard"} {
		u := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: kind}, Raw: raw}
		b, err := u.Marshal()
		require.NoError(f, err)
		f.Add(append([]byte("k8s\x00"), b...))
	}
	f.Add([]byte(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"},"data":{"x":"aGk=","y":3}}`))
	f.Add([]byte(`{"apiVersion":"v1","kind":"List","metadata":{},"items":[{}]}`))
	f.Add([]byte("k8s:enc:secretbox:v1:key1:abc"))
	names := NewNames()
	f.Fuzz(func(t *testing.T, value []byte) {
		meta, metaErr := DecodeMeta(value)
		o, err := Decode(value)
		if err != nil {
			return
		}
		require.NoError(t, metaErr, "what can be decoded has metadata")
		require.Equal(t, o.Object["metadata"], meta.Object["metadata"])
		o.WrittenAt()
		o.IsRemade()
		before := o.Copy()
		RedactBoth(before.Copy(), o.Copy())
		Quiet(o.Copy())
		if names.Serve(o) == nil {
			Clean(o, func(string) (string, bool) { return "Retain", true })
			Redact(o)
			Differences(before.Object, o.Object)
			_, err = yaml.Marshal(o.Object)
			require.NoError(t, err)
		}
	})
}

// FuzzOpen: whatever follows the mark of encryption at rest, it is an error or something that was decrypted.
func FuzzOpen(f *testing.F) {
	for _, v := range []string{"k8s:enc:aescbc:v1:key1:0123456789abcdef0123456789abcdef", "k8s:enc:aesgcm:v1:key1:x", "k8s:enc:secretbox:v1:key1:x", "k8s:enc:kms:v2:x:y", "k8s:enc:", "{}"} {
		f.Add([]byte("/registry/secrets/b/a"), []byte(v))
	}
	k := &Keys{source: "encryption.yaml", by: map[string][]value.Transformer{}}
	for _, provider := range []string{"aescbc", "aesgcm", "secretbox"} {
		t, err := transformer(provider, "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=")
		require.NoError(f, err)
		k.by[provider+":key1"] = append(k.by[provider+":key1"], t)
	}
	f.Fuzz(func(t *testing.T, key, v []byte) {
		clear, err := k.Open(key, v)
		if err != nil {
			var sealed *EncryptedError
			require.ErrorAs(t, err, &sealed)
			require.NotEmpty(t, sealed.Provider)
			return
		}
		_, _ = Decode(clear)
	})
}
