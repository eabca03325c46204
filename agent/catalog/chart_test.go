package catalog

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"k8s.io/client-go/rest"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

// render gives all that the chart makes in a namespace, with its default values.
func render(t *testing.T, namespace string) []byte {
	t.Helper()
	chart, err := loader.Load("../../charts/etcd-snapshot")
	require.NoError(t, err)
	install := action.NewInstall(&action.Configuration{Log: func(string, ...any) {}})
	install.DryRun, install.ClientOnly = true, true
	install.ReleaseName, install.Namespace = "backup", namespace
	install.KubeVersion = &chartutil.KubeVersion{Version: "v1.34.0", Major: "1", Minor: "34"}
	release, err := install.Run(chart, map[string]any{})
	require.NoError(t, err)
	return []byte(release.Manifest)
}

// answers counts what the API server answers.
type answers struct {
	next http.RoundTripper
	mu   sync.Mutex
	// codes by request: "PATCH 403 /apis/...".
	codes []string
}

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := a.next.RoundTrip(r)
	if err == nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.codes = append(a.codes, fmt.Sprintf("%s %d %s", r.Method, resp.StatusCode, r.URL.Path))
	}
	return resp, err
}

// TestChartRole installs what the chart renders and does all that the agent ever does as its service account: no request
// is forbidden.
func TestChartRole(t *testing.T) {
	b := newBench(t)
	ctx := t.Context()
	b.kubectl("delete", "esp", "etcd")
	require.NoError(t, server.Apply(ctx, b.namespace, render(t, b.namespace)))
	account := b.kubectl("get", "cronjobs", "-o", "jsonpath={.items[0].spec.jobTemplate.spec.template.spec.serviceAccountName}")
	policies := b.kubectl("get", "esp", "-o", "jsonpath={.items[*].metadata.name}")

	config, err := server.ServiceAccount(ctx, b.namespace, account)
	require.NoError(t, err)
	said := &answers{}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { said.next = next; return said })
	agent, err := New(config, b.namespace)
	require.NoError(t, err)

	b.policy, err = agent.Policy(ctx, b.namespace, policies)
	require.NoError(t, err)
	_, err = agent.ClusterUID(ctx)
	require.NoError(t, err)
	_, err = agent.ServerVersion(ctx)
	require.NoError(t, err)

	name := b.policy.Spec.Destinations[0].Name
	here := func(ms ...*v1.Manifest) Destination {
		d := in("node", ms...)
		d.Name = name
		return d
	}
	one, two := b.snapshot("cp-1"), b.snapshot("cp-1")
	for range 2 { // the second time the Events are there
		require.NoError(t, agent.Record(ctx, b.report("cp-1", one, here(one))))
	}
	failed := b.report("cp-1", nil)
	failed.Run.Err = errors.New("etcd is away")
	require.NoError(t, agent.Record(ctx, failed))
	b.kubectl("label", "esnap", one.Name, LabelPolicy+"-")
	b.kubectl("patch", "esnap", one.Name, "--subresource=status", "--type=merge", "-p", `{"status":{"destinations":[{"name":"moon","phase":"Stored"}]}}`)
	pruned := b.report("cp-1", two, here(one, two))
	require.NoError(t, agent.Record(ctx, pruned))
	pruned.Destinations[0].Pruned = []string{one.Name}
	require.NoError(t, agent.Record(ctx, pruned))
	forged := two.SnapshotFacts
	forged.Object.Key = "other"
	b.kubectl("delete", "esnap", two.Name)
	require.NoError(t, b.client.create(ctx, target{resource: v1.SnapshotResource, namespace: b.namespace},
		applied{TypeMeta: typeMeta(v1.SnapshotKind), Metadata: appliedMeta{Name: two.Name, Namespace: b.namespace}, Spec: &forged}))
	require.NoError(t, agent.Record(ctx, Report{Policy: b.policy, Node: "cp-1", Destinations: []Destination{here(two)}, Manifest: b.manifest}))
	for row, err := range agent.Rows(ctx, b.namespace, b.policy.Name) {
		require.NoError(t, err)
		require.False(t, IsVerified(row), "the forged row took what was known of it along")
	}
	rows := b.rows()
	require.Len(t, rows, 1)
	require.True(t, same(two.SnapshotFacts, rows[two.Name].Spec))

	methods := map[string]bool{}
	for _, code := range said.codes {
		require.NotContains(t, code, " 403 ")
		require.NotContains(t, code, " 401 ")
		methods[code[:3]] = true
	}
	require.Equal(t, map[string]bool{"GET": true, "POS": true, "PAT": true, "DEL": true}, methods)

	// And nothing beyond that: another namespace, another policy, a Secret.
	for _, request := range []struct{ verb, path string }{
		{"get", "/api/v1/namespaces/" + b.namespace + "/secrets/x"},
		{"list", "/api/v1/namespaces/" + b.namespace + "/configmaps"},
		{"get", "/apis/etcdsnapshot.dev/v1/namespaces/" + b.namespace + "/etcdsnapshotpolicies/another"},
		{"get", "/apis/etcdsnapshot.dev/v1/namespaces/kube-system/etcdsnapshots/x"},
		{"get", "/api/v1/namespaces/default"},
	} {
		require.Equal(t, http.StatusForbidden, status(ctx, t, config, request.path), "%s %s", request.verb, request.path)
	}
}

func status(ctx context.Context, t *testing.T, config *rest.Config, path string) int {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+path, nil)
	require.NoError(t, err)
	resp, err := client.Do(r)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode
}
