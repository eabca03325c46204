package charts

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	psapi "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// What the pods break of the Pod Security Standards at level restricted, by Kubernetes' own checks. Whatever is not
// named here they keep.
func TestPodSecurityStandards(t *testing.T) {
	t.Parallel()
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	require.NoError(t, err)
	onNode := []string{
		"host namespaces",         // etcd listens on the node's loopback
		"restricted volume types", // its certificates lie on the node
		"runAsNonRoot != true",    // they are root's
		"runAsUser=0",             // the same again
	}
	readingOthers := append([]string{"unrestricted capabilities"}, onNode...) // DAC_READ_SEARCH
	inCluster := []string{"runAsNonRoot != true", "runAsUser=0"}
	for name, values := range scenarios(t) {
		want := onNode
		switch name {
		case "distribution-k0s", "distribution-kubespray", "distribution-talos":
			want = readingOthers
		case "talos-cloud":
			want = []string{"host namespaces", "restricted volume types"}
		case "distribution-external":
			want = inCluster
		case "distribution-openshift":
			want = append([]string{"seLinuxOptions"}, onNode...) // spc_t
		case "everything":
			want = append([]string{"seLinuxOptions"}, onNode[1:]...) // hostNetwork is off, spc_t is set
		}
		o := render(t, rendering{values: values})
		var broken []string
		results := evaluator.EvaluatePod(psapi.LevelVersion{Level: psapi.LevelRestricted, Version: psapi.LatestVersion()}, &metav1.ObjectMeta{}, o.pod(t))
		for _, r := range results {
			if !r.Allowed {
				broken = append(broken, r.ForbiddenReason)
			}
		}
		slices.Sort(broken)
		want = slices.Sorted(slices.Values(want))
		require.Equal(t, want, broken, name)
	}
}
