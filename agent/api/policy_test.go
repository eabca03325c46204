package api

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"etcdsnapshot.dev/agent/api/apitest"
	v1 "etcdsnapshot.dev/agent/api/v1"
)

func TestDefaults(t *testing.T) {
	p, err := ParsePolicy([]byte(apitest.Minimal))
	require.NoError(t, err)
	require.Equal(t, v1.CompressionSpec{Algorithm: "zstd", Level: "fastest"}, p.Spec.Compression)
	require.Equal(t, "checksum", p.Spec.Verification.AfterStore)
	require.Equal(t, "UTC", p.Spec.TimeZone)
	require.True(t, p.Spec.Destinations[0].IsRequired())
	require.Equal(t, "hostPath", p.Spec.Destinations[0].Backend())
}

// TestAsKubectlPrints: what `kubectl get esp etcd -o yaml` prints is a policy file.
func TestAsKubectlPrints(t *testing.T) {
	p, err := ParsePolicy([]byte(strings.Replace(apitest.Minimal, "metadata: {name: etcd, namespace: kube-system}", `
metadata:
  name: etcd
  namespace: kube-system
  uid: 0d3e2f54-8c0b-4a4e-9b52-9d4a5a0b7f11
  resourceVersion: "815"
  generation: 3
  creationTimestamp: "2026-11-30T10:00:00Z"
  managedFields:
  - {manager: helm, operation: Update, apiVersion: etcdsnapshot.dev/v1, fieldsType: FieldsV1, fieldsV1: {"f:spec": {}}}
`, 1) + `
status:
  schedule: "0 */6 * * *"
  lastRunTime: "2026-11-30T12:00:00Z"
  lastDuration: 2.5s
  consecutiveFailures: 0
  snapshots: 3
  ofANewerAgent: 1
  conditions:
  - {type: Ready, status: "True", reason: Stored, message: "", lastTransitionTime: "2026-11-30T12:00:00Z"}
`))
	require.NoError(t, err)
	require.Equal(t, "prod-eu", p.Spec.ClusterName)
}

func TestAccepted(t *testing.T) {
	for name, doc := range apitest.Accepted() {
		t.Run(name, func(t *testing.T) {
			_, err := ParsePolicy([]byte(doc))
			require.NoError(t, err)
		})
	}
}

// TestRefused: each refusal names the field.
func TestRefused(t *testing.T) {
	for name, c := range apitest.Refused() {
		t.Run(name, func(t *testing.T) {
			_, err := ParsePolicy([]byte(c.Doc))
			var invalid *InvalidError
			require.ErrorAs(t, err, &invalid)
			for _, w := range c.Want {
				require.Contains(t, err.Error(), w)
			}
			require.NotContains(t, err.Error(), "AGE-SECRET-KEY", "a secret key is not printed")
		})
	}
}
