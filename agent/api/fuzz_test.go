package api

import (
	"encoding/json"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"etcdsnapshot.dev/agent/api/apitest"
)

// FuzzParsePolicy: whatever stands in a policy file, it is refused with reasons, which never show a secret key, or it is
// a policy that says the same when it is written down and read again.
func FuzzParsePolicy(f *testing.F) {
	f.Add([]byte(apitest.Minimal))
	for _, doc := range apitest.Accepted() {
		f.Add([]byte(doc))
	}
	for _, c := range apitest.Refused() {
		f.Add([]byte(c.Doc))
	}
	for _, text := range []string{
		"", "---\n---\n", "[]", "null", "1", "\x00", "a: &a [*a]", "a: {b: 1, b: 2}", "{\"spec\":", "apiVersion: etcdsnapshot.dev/v1\nkind: EtcdSnapshotPolicy\nspec: []",
	} {
		f.Add([]byte(text))
	}
	secret := regexp.MustCompile(`(?i)AGE-SECRET-KEY-[0-9A-Z]`)
	f.Fuzz(func(t *testing.T, data []byte) {
		policy, err := ParsePolicy(data)
		if err != nil {
			var invalid *InvalidError
			require.ErrorAs(t, err, &invalid)
			require.NotEmpty(t, invalid.Reasons)
			for _, reason := range invalid.Reasons {
				require.NotEmpty(t, reason)
			}
			require.NotRegexp(t, secret, err.Error())
			return
		}
		written, err := json.Marshal(policy)
		require.NoError(t, err)
		again, err := ParsePolicy(written)
		require.NoError(t, err, "%s", written)
		rewritten, err := json.Marshal(again)
		require.NoError(t, err)
		require.JSONEq(t, string(written), string(rewritten))
	})
}
