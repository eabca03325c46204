package object

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzLoadKeys: an encryption configuration gives keys, or an error that shows nothing of it.
func FuzzLoadKeys(f *testing.F) {
	head := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  providers:\n  - "
	for _, provider := range []string{
		"aescbc: {keys: [{name: key1, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}]}", "aesgcm: {keys: [{name: key1, secret: c2hvcnQtc2VjcmV0LXNob3J0}]}",
		"secretbox: {keys: [{name: '', secret: not-base64-not-base64-not}]}", "kms: {apiVersion: v2, name: k, endpoint: unix:///x}", "identity: {}", "[]", "aescbc: {keys: 7}",
	} {
		f.Add([]byte(head + provider))
	}
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "config.yaml")
		require.NoError(t, os.WriteFile(path, data, 0o600))
		keys, err := LoadKeys(path)
		if err != nil {
			said := strings.ReplaceAll(err.Error(), path, "")
			for word := range strings.FieldsSeq(string(data)) {
				if word = strings.Trim(word, `"'{}[],`); len(word) > 24 && !strings.Contains("apiserver.config.k8s.io EncryptionConfiguration", word) {
					require.NotContains(t, said, word)
				}
			}
			return
		}
		_, _ = keys.Open([]byte("/registry/secrets/a/b"), []byte("k8s:enc:aescbc:v1:key1:0123456789abcdef0123456789abcdef"))
	})
}
