package kubetest

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"etcdsnapshot.dev/agent/api"
	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/ci/etcdtest"
)

const role = `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader}
rules:
- {apiGroups: [""], resources: [configmaps], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects:
- {kind: ServiceAccount, name: reader, namespace: default}
`

// TestServer goes through what the other packages' tests rely on: version, manifests, RBAC, kubeconfigs, and a
// server that was killed coming back with its objects.
func TestServer(t *testing.T) {
	s := New(t)
	ctx := t.Context()
	admin, err := kubernetes.NewForConfig(s.Admin())
	require.NoError(t, err)
	version, err := admin.Discovery().ServerVersion()
	require.NoError(t, err)
	require.Regexp(t, `^v1\.[0-9]+\.[0-9]+$`, version.GitVersion, "the version is linked in")

	crd, err := api.CRD(v1.PolicyResource)
	require.NoError(t, err)
	require.NoError(t, s.Apply(ctx, "default", crd, []byte(role), []byte("# nothing\n---\n"), []byte(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"other"}}`)))

	account, err := s.ServiceAccount(ctx, "default", "reader")
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, WriteKubeconfig(path, account, "default"))
	config, err := clientcmd.BuildConfigFromFlags("", path)
	require.NoError(t, err)
	reader, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	_, err = reader.CoreV1().ConfigMaps("default").Get(ctx, "none", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "the Role grants it: %v", err)
	_, err = reader.CoreV1().ConfigMaps("other").Get(ctx, "none", metav1.GetOptions{})
	require.True(t, apierrors.IsForbidden(err), "no Role grants it: %v", err)

	path = filepath.Join(t.TempDir(), "admin")
	require.NoError(t, WriteKubeconfig(path, s.Admin(), "default"))
	config, err = clientcmd.BuildConfigFromFlags("", path)
	require.NoError(t, err)
	fromFile, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)

	require.NoError(t, s.Kill())
	_, err = fromFile.RbacV1().Roles("default").Get(ctx, "reader", metav1.GetOptions{})
	require.ErrorContains(t, err, "connection refused")
	require.NoError(t, s.Kill(), "killing twice is fine")
	require.NoError(t, s.Restart(ctx))
	got, err := fromFile.RbacV1().Roles("default").Get(ctx, "reader", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get"}}}, got.Rules)
	_, err = reader.CoreV1().ConfigMaps("default").Get(ctx, "none", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "the token is still good: %v", err)
}

// TestStartFails: the reason that the server itself gave is in the error.
func TestStartFails(t *testing.T) {
	_, err := Start(t.Context(), t.TempDir(), &etcdtest.Cluster{Members: []*etcdtest.Member{{ClientURL: "http://127.0.0.1:1"}}}, "--authorization-mode=Nonsense")
	require.ErrorContains(t, err, "ended before it was ready")
	require.ErrorContains(t, err, "Nonsense")
	require.ErrorContains(t, err, "is not a valid mode")
}
