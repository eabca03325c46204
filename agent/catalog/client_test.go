package catalog

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/ci/kubetest"
)

func TestReads(t *testing.T) {
	b := newBench(t)
	ctx := t.Context()
	require.Equal(t, "UTC", b.policy.Spec.TimeZone, "defaults are filled in")
	require.Equal(t, b.namespace, b.policy.Namespace)
	require.NotEmpty(t, b.policy.UID)
	require.EqualValues(t, 1, b.policy.Generation)

	version, err := b.client.ServerVersion(ctx)
	require.NoError(t, err)
	require.Regexp(t, `^v1\.[0-9]+\.[0-9]+$`, version)

	uid, err := b.client.ClusterUID(ctx)
	require.NoError(t, err)
	admin, err := kubernetes.NewForConfig(server.Admin())
	require.NoError(t, err)
	ns, err := admin.CoreV1().Namespaces().Get(ctx, "kube-system", metav1.GetOptions{})
	require.NoError(t, err)
	require.EqualValues(t, ns.UID, uid)
}

// TestConnect: where the API server is found, and what is said where it is not.
func TestConnect(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "kubeconfig")
	require.NoError(t, kubetest.WriteKubeconfig(file, server.Admin(), "backup"))
	t.Setenv("HOME", dir)
	t.Setenv("KUBECONFIG", filepath.Join(dir, "none"))

	c, err := Connect(file)
	require.NoError(t, err)
	require.Equal(t, "backup", c.Namespace())
	require.Equal(t, server.URL(), c.String())
	_, err = c.ServerVersion(t.Context())
	require.NoError(t, err)

	refused := func(kubeconfig string, want ...string) {
		t.Helper()
		_, err := Connect(kubeconfig)
		var config *ConfigError
		require.ErrorAs(t, err, &config)
		for _, w := range want {
			require.ErrorContains(t, err, w)
		}
	}
	refused("", filepath.Join(dir, "none"), "--policy-file")
	refused(filepath.Join(dir, "missing"), filepath.Join(dir, "missing"), "no such file")
	broken := filepath.Join(dir, "broken")
	require.NoError(t, os.WriteFile(broken, []byte("{"), 0o600))
	refused(broken, broken)
	require.NoError(t, os.WriteFile(broken, []byte("apiVersion: v1\nkind: Config\ncurrent-context: x\n"), 0o600))
	refused(broken, broken, "context: x")

	t.Setenv("KUBECONFIG", file)
	c, err = Connect("")
	require.NoError(t, err)
	require.Equal(t, "backup", c.Namespace())

	// A pod: the variables that Kubernetes sets, but no token is mounted here.
	if _, err := os.Stat(namespaceFile); errors.Is(err, os.ErrNotExist) {
		t.Setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
		t.Setenv("KUBERNETES_SERVICE_PORT", "1")
		refused("", "service account", "token")
	}
}

// TestReadErrors: each way in which a policy cannot be read has a name.
func TestReadErrors(t *testing.T) {
	b := newBench(t)
	ctx := t.Context()
	config := func(err, is error, want ...string) {
		t.Helper()
		var config *ConfigError
		require.ErrorAs(t, err, &config)
		if is != nil {
			require.ErrorIs(t, err, is)
		}
		for _, other := range []error{ErrNotFound, ErrNotInstalled, ErrForbidden, ErrUnauthorized} {
			require.Equal(t, other == is, errors.Is(err, other), "%v: %v", other, err)
		}
		for _, w := range want {
			require.ErrorContains(t, err, w)
		}
	}
	_, err := b.client.Policy(ctx, b.namespace, "other")
	config(err, ErrNotFound, b.namespace+"/other", "etcdsnapshotpolicies.etcdsnapshot.dev")
	_, err = b.client.Policy(ctx, "no-such-namespace", "etcd")
	config(err, ErrNotFound, "no-such-namespace/etcd")

	nobody := b.as("nobody")
	_, err = nobody.Policy(ctx, b.namespace, "etcd")
	config(err, ErrForbidden, `grant the verb "get" on "etcdsnapshotpolicies.etcdsnapshot.dev"`, b.namespace+":nobody")
	_, err = nobody.ClusterUID(ctx)
	config(err, ErrForbidden, `grant the verb "get" on "namespaces"`)
	_, err = nobody.ServerVersion(ctx)
	require.NoError(t, err, "everybody may ask for the version")
	for _, err = range nobody.Rows(ctx, b.namespace, "etcd") {
		require.Error(t, err)
	}
	config(err, ErrForbidden, `grant the verb "list" on "etcdsnapshots.etcdsnapshot.dev"`)

	as := func(change func(*rest.Config)) *Client {
		c := server.Admin()
		change(c)
		client, err := New(c, b.namespace)
		require.NoError(t, err)
		return client
	}
	_, err = as(func(c *rest.Config) {
		c.CertFile, c.KeyFile, c.BearerToken = "", "", "not-a-token"
	}).Policy(ctx, b.namespace, "etcd")
	require.ErrorIs(t, err, ErrUnauthorized)
	require.NotErrorAs(t, err, new(*ConfigError))
	require.ErrorContains(t, err, "does not accept our credentials")
	require.NotContains(t, err.Error(), "not-a-token")

	_, err = as(func(c *rest.Config) { c.CAFile = "" }).Policy(ctx, b.namespace, "etcd")
	config(err, nil, server.URL(), "x509: certificate signed by unknown authority")
	_, err = as(func(c *rest.Config) { c.ServerName = "other.example.com" }).Policy(ctx, b.namespace, "etcd")
	config(err, nil, "x509: certificate is valid for")

	_, err = as(func(c *rest.Config) { c.Host = "https://127.0.0.1:1" }).Policy(ctx, b.namespace, "etcd")
	var away *UnavailableError
	require.ErrorAs(t, err, &away)
	require.ErrorContains(t, err, "connection refused")
	require.ErrorContains(t, err, "get etcdsnapshotpolicies.etcdsnapshot.dev "+b.namespace+"/etcd")

	stopped, cancel := context.WithCancelCause(ctx)
	cancel(errors.New("interrupted by signal: terminated"))
	_, err = b.client.Policy(stopped, b.namespace, "etcd")
	require.ErrorContains(t, err, "interrupted by signal: terminated")
	require.NotErrorAs(t, err, &away)
}

// TestForbiddenAtFirst: an API server that has just come up and has not read its Roles yet is away, not badly configured.
func TestForbiddenAtFirst(t *testing.T) {
	b := newBench(t)
	var ready atomic.Bool
	p := &proxy{answer: func(_ int, w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/readyz" && !ready.Load() {
			http.Error(w, "informers are not synced", http.StatusInternalServerError)
			return true
		}
		if ready.Load() {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"RBAC: clusterrole not found","reason":"Forbidden","code":403}`))
		return true
	}}
	client := p.client(b)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err := client.Policy(ctx, b.namespace, "etcd")
	require.ErrorAs(t, err, new(*UnavailableError))
	require.ErrorContains(t, err, "RBAC: clusterrole not found")
	require.ErrorContains(t, err, "not ready")
	require.NotErrorAs(t, err, new(*ConfigError))
	ready.Store(true)
	_, err = client.Policy(t.Context(), b.namespace, "etcd")
	require.NoError(t, err)
}

// TestNotInstalled is a cluster without the CRDs: reading and recording say so, and what to do.
func TestNotInstalled(t *testing.T) {
	s := kubetest.New(t)
	c, err := New(s.Admin(), "default")
	require.NoError(t, err)
	_, err = c.Policy(t.Context(), "default", "etcd")
	var config *ConfigError
	require.ErrorAs(t, err, &config)
	require.ErrorIs(t, err, ErrNotInstalled)
	require.NotErrorIs(t, err, ErrNotFound)
	require.ErrorContains(t, err, "install them with the chart")

	p := &v1.EtcdSnapshotPolicy{ObjectMeta: metav1.ObjectMeta{Name: "etcd", Namespace: "default"}}
	begin := time.Now()
	err = c.Record(t.Context(), Report{Policy: p, Node: "cp-1", Run: &Run{Begin: begin, End: begin, Err: errors.New("x")}})
	require.ErrorIs(t, err, ErrNotInstalled)
}
