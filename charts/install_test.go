package charts

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/release"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/dynamic"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/ci/kubetest"
)

// helm gives Helm's actions against a real API server, set up as the helm command does it.
func helm(t *testing.T, s *kubetest.Server, namespace string) *action.Configuration {
	t.Helper()
	dir := t.TempDir()
	kubeconfig, cache := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "cache")
	require.NoError(t, kubetest.WriteKubeconfig(kubeconfig, s.Admin(), namespace))
	flags := genericclioptions.NewConfigFlags(false)
	flags.KubeConfig, flags.Namespace, flags.CacheDir = &kubeconfig, &namespace, &cache
	c := &action.Configuration{}
	require.NoError(t, c.Init(flags, namespace, "secret", func(format string, args ...any) { t.Logf(format, args...) }))
	return c
}

func install(t *testing.T, s *kubetest.Server, r rendering) *release.Release {
	t.Helper()
	a := action.NewInstall(helm(t, s, r.namespace))
	a.ReleaseName, a.Namespace, a.CreateNamespace, a.Timeout = r.release, r.namespace, true, time.Minute
	rel, err := a.Run(loadChart(t), r.valueMap(t))
	require.NoError(t, err)
	return rel
}

func TestInstallOnARealAPIServer(t *testing.T) {
	s := kubetest.New(t)
	install(t, s, rendering{release: "etcd-snapshot", namespace: "kube-system"})
}

var (
	policyResource = schema.GroupVersionResource{Group: v1.GroupVersion.Group, Version: v1.GroupVersion.Version, Resource: v1.PolicyResource}
)

var _ = context.Background
var _ = dynamic.NewForConfig
var _ = metav1.GetOptions{}
