package catalog

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/ci/kubetest"
)

// clusterAdmin lets the service account admin of a namespace do everything.
const clusterAdmin = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: admin-of-%[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: ServiceAccount, name: admin, namespace: %[1]s}]
`

// proxy stands between a client and the API server, counts the requests, and may answer itself.
type proxy struct {
	mu       sync.Mutex
	requests []string // "PATCH /apis/..."
	// answer, if it returns true, has answered.
	answer func(n int, w http.ResponseWriter, r *http.Request) bool

	web *httptest.Server
}

// client gives a client of an administrator whose requests go through the proxy.
func (p *proxy) client(b *bench) *Client {
	b.t.Helper()
	b.apply(fmt.Sprintf(clusterAdmin, b.namespace))
	account, err := b.server.ServiceAccount(b.t.Context(), b.namespace, "admin")
	require.NoError(b.t, err)
	transport, err := rest.TransportFor(account)
	require.NoError(b.t, err)
	target, err := url.Parse(account.Host)
	require.NoError(b.t, err)
	forward := &httputil.ReverseProxy{Transport: transport, ErrorLog: log.New(io.Discard, "", 0), Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	p.web = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.requests = append(p.requests, r.Method+" "+r.URL.Path)
		n := len(p.requests)
		p.mu.Unlock()
		if p.answer == nil || !p.answer(n, w, r) {
			forward.ServeHTTP(w, r)
		}
	}))
	b.t.Cleanup(p.web.Close)
	c, err := New(&rest.Config{Host: p.web.URL}, b.namespace)
	require.NoError(b.t, err)
	return c
}

// take forgets what was counted and gives it.
func (p *proxy) take() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.requests
	p.requests = nil
	return all
}

// TestThrottled: the API server says 429 to every second request, and 503 now and then.
func TestThrottled(t *testing.T) {
	b := newBench(t)
	p := &proxy{answer: func(n int, w http.ResponseWriter, _ *http.Request) bool {
		switch {
		case n%2 == 0:
			w.Header().Set("Retry-After", "0")
			http.Error(w, "too many requests", http.StatusTooManyRequests)
		case n%7 == 0:
			http.Error(w, "etcd has no leader", http.StatusServiceUnavailable)
		default:
			return false
		}
		return true
	}}
	m := b.snapshot("cp-1")
	require.NoError(t, p.client(b).Record(t.Context(), b.report("cp-1", m, in("node", m), in("offsite", m))))
	require.Equal(t, "node=Stored offsite=Stored", phases(b.rows()[m.Name]))
	require.Equal(t, m.Name, b.status().LastSnapshot)
}

// TestThrottledForever: the budget bounds the whole, and the error names the reason rather than the clock alone.
func TestThrottledForever(t *testing.T) {
	b := newBench(t)
	p := &proxy{answer: func(_ int, w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "slow down", http.StatusTooManyRequests)
		return true
	}}
	r := b.report("cp-1", nil)
	r.Budget = 2 * time.Second
	client := p.client(b)
	others := goleak.IgnoreCurrent()
	begin := time.Now()
	err := client.Record(t.Context(), r)
	require.ErrorContains(t, err, "given up after 2s")
	require.ErrorContains(t, err, "too many requests")
	require.Less(t, time.Since(begin), 20*time.Second)
	p.web.Close()
	goleak.VerifyNone(t, others)
}

// TestKilled: the API server is killed in the middle of a Record. It comes back, and the Record finishes; it stays away,
// and the Record gives up in time; the next one repairs what is missing.
func TestKilled(t *testing.T) {
	s := kubetest.New(t)
	installCRDs(t, s)
	b := newBenchOn(t, s)
	m := b.snapshot("cp-1")
	report := b.report("cp-1", m, in("node", m), in("offsite", m))
	// atFirstWrite kills the server when the first write comes by, and then does more.
	atFirstWrite := func(more func()) *proxy {
		var once sync.Once
		return &proxy{answer: func(_ int, _ http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodPatch {
				once.Do(func() {
					if err := s.Kill(); err != nil {
						t.Error(err)
					}
					more()
				})
			}
			return false
		}}
	}

	restarted := make(chan error, 1)
	client := atFirstWrite(func() {
		go func() { restarted <- s.Restart(t.Context()) }()
	}).client(b)
	require.NoError(t, client.Record(t.Context(), report))
	require.NoError(t, <-restarted)
	require.Equal(t, "node=Stored offsite=Stored", phases(b.rows()[m.Name]))
	require.Equal(t, m.Name, b.status().LastSnapshot)

	next := b.snapshot("cp-1")
	report = b.report("cp-1", next, in("node", m, next), in("offsite", m, next))
	report.Budget = 3 * time.Second
	client = atFirstWrite(func() {}).client(b)
	err := client.Record(t.Context(), report)
	require.ErrorContains(t, err, "write the row of "+next.Name)
	require.ErrorContains(t, err, "given up after 3s")
	require.NoError(t, s.Restart(t.Context()))
	require.Len(t, b.rows(), 1)
	b.record(Report{Policy: b.policy, Node: "cp-1", Destinations: report.Destinations, Manifest: b.manifest})
	require.Equal(t, "node=Stored offsite=Stored", phases(b.rows()[next.Name]))
}

// TestPolicyDeleted: a policy that is deleted during a run, and one that took its name, get no status; the row is written.
func TestPolicyDeleted(t *testing.T) {
	b := newBench(t)
	m := b.snapshot("cp-1")
	b.kubectl("delete", "esp", "etcd")
	err := b.client.Record(t.Context(), b.report("cp-1", m, in("node", m), in("offsite", m)))
	require.ErrorContains(t, err, "no policy "+b.namespace+"/etcd")
	require.Equal(t, "node=Stored offsite=Stored", phases(b.rows()[m.Name]))
	require.Empty(t, b.events())

	other := newBenchOn(t, server)
	other.policy.UID = "another"
	err = other.client.Record(t.Context(), other.report("cp-1", m, in("node", m)))
	require.ErrorContains(t, err, "no policy")
	require.Zero(t, other.status())
}

// TestForbidden: without the right to write the status the rows are written, and the other way round. The error names the
// right that is missing.
func TestForbidden(t *testing.T) {
	const binding = `
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: agent}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: agent}
subjects: [{kind: ServiceAccount, name: agent}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: agent}
rules:
- {apiGroups: [etcdsnapshot.dev], resources: [etcdsnapshotpolicies], verbs: [get]}
`
	rows := `- {apiGroups: [etcdsnapshot.dev], resources: [etcdsnapshots, etcdsnapshots/status], verbs: [get, list, create, patch, delete]}` + "\n"
	status := `- {apiGroups: [etcdsnapshot.dev], resources: [etcdsnapshotpolicies/status], verbs: [patch]}` + "\n"
	events := `- {apiGroups: [""], resources: [events], verbs: [create, patch]}` + "\n"
	for name, c := range map[string]struct {
		rules, missing      string
		row, status, events bool
	}{
		"status": {rows + events, `"patch" on "etcdsnapshotpolicies.etcdsnapshot.dev/status"`, true, false, true},
		"events": {rows + status, `"patch" on "events"`, true, true, false},
		"rows":   {status + events, `"patch" on "etcdsnapshots.etcdsnapshot.dev"`, false, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.apply(binding + c.rules)
			m := b.snapshot("cp-1")
			err := b.as("agent").Record(t.Context(), b.report("cp-1", m, in("node", m), in("offsite", m)))
			require.ErrorIs(t, err, ErrForbidden)
			require.ErrorContains(t, err, c.missing)
			require.Equal(t, c.row, len(b.rows()) == 1)
			require.Equal(t, c.status, b.status().LastSnapshot == m.Name)
			require.Equal(t, c.events, len(b.events()) == 1)
		})
	}
}

// TestEditedByHand: rows are a view; what people do to them does not last.
func TestEditedByHand(t *testing.T) {
	b := newBench(t)
	one, two := b.snapshot("cp-1"), b.snapshot("cp-1")
	report := func() Report {
		return Report{Policy: b.policy, Node: "cp-1", Destinations: []Destination{in("node", one, two), in("offsite", one, two)}, Manifest: b.manifest}
	}
	b.record(report())
	good := b.rows()
	healed := func() {
		t.Helper()
		b.record(report())
		rows := b.rows()
		require.Len(t, rows, 2)
		for name, want := range good {
			require.True(t, same(want.Spec, rows[name].Spec))
			require.True(t, same(want.Status.Destinations, rows[name].Status.Destinations))
			require.Equal(t, want.Labels, rows[name].Labels)
		}
	}

	b.kubectl("delete", "esnap", one.Name)
	healed()

	b.kubectl("label", "esnap", one.Name, LabelPolicy+"-", LabelNode+"=cp-9", "--overwrite")
	healed()

	b.kubectl("label", "esnap", one.Name, LabelPolicy+"=x", "--overwrite")
	healed()

	b.kubectl("patch", "esnap", one.Name, "--subresource=status", "--type=merge", "-p", `{"status":{"storedSize":"none","destinations":[{"name":"moon","phase":"Stored"},{"name":"node","phase":"Missing"}]}}`)
	healed()

	// Somebody made a row up for a snapshot that exists, and one for a snapshot that does not.
	b.kubectl("delete", "esnap", one.Name)
	forged := one.SnapshotFacts
	forged.Object.Key, forged.Etcd.Revision = "other.db", 1
	for _, name := range []string{one.Name, "etcd-20200101t000000z-aaaaa"} {
		for _, labels := range []map[string]string{rowLabels(&forged), nil} {
			made := applied{TypeMeta: typeMeta(v1.SnapshotKind), Metadata: appliedMeta{Name: name, Namespace: b.namespace, Labels: labels}, Spec: &forged}
			require.NoError(t, b.client.create(t.Context(), target{resource: v1.SnapshotResource, namespace: b.namespace}, made))
			healed()
			if name == one.Name && labels != nil {
				b.kubectl("delete", "esnap", one.Name)
			}
		}
	}

	// A row of another policy is none of our business, whatever its label says.
	other := one.SnapshotFacts
	other.Policy = "etcd-1"
	require.NoError(t, b.client.create(t.Context(), target{resource: v1.SnapshotResource, namespace: b.namespace},
		applied{TypeMeta: typeMeta(v1.SnapshotKind), Metadata: appliedMeta{Name: "etcd-1-20200101t000000z-aaaaa", Namespace: b.namespace, Labels: map[string]string{LabelPolicy: "etcd"}}, Spec: &other}))
	b.record(report())
	require.Len(t, b.rows(), 3)
}

// TestThousands: with thousands of rows a run that finds nothing changed costs list pages and its own few writes.
func TestThousands(t *testing.T) {
	const count = 2000
	b := newBench(t)
	var all []*v1.Manifest
	for range count {
		all = append(all, b.snapshot("cp-1"))
	}
	p := &proxy{}
	client := p.client(b)
	begin := time.Now()
	require.NoError(t, client.Record(t.Context(), Report{Policy: b.policy, Node: "cp-1", Destinations: []Destination{in("node", all...), in("offsite", all...)}, Manifest: b.manifest, Budget: 10 * time.Minute}))
	t.Logf("%d rows made in %s with %d requests", count, time.Since(begin).Round(time.Millisecond), len(p.take()))
	require.Len(t, b.rows(), count)

	m := b.snapshot("cp-1")
	all = append(all, m)
	begin = time.Now()
	require.NoError(t, client.Record(t.Context(), b.report("cp-1", m, in("node", all...), in("offsite", all...))))
	requests := p.take()
	t.Logf("one more in %s with %d requests", time.Since(begin).Round(time.Millisecond), len(requests))
	// The policy, the row and its status, the policy's status, one Event (two requests), pages, rows without a label.
	require.LessOrEqual(t, len(requests), 1+2+1+2+(count+1+pageSize-1)/pageSize+1, "%q", requests)
	require.EqualValues(t, count+1, *b.status().Snapshots)
}

// TestAtOnce: several runs and verifications at the same time, from several nodes, lose nothing of each other.
func TestAtOnce(t *testing.T) {
	b := newBench(t)
	const nodes = 4
	seen := b.snapshot("cp-0")
	b.record(b.report("cp-0", seen, in("offsite", seen)))
	reports := []Report{{Policy: b.policy, Verifications: map[string]v1.VerificationStatus{seen.Name: {Time: metav1.Now(), Level: "restore", Result: v1.VerificationPassed}}}}
	for i := range nodes {
		m := b.snapshot(fmt.Sprintf("cp-%d", i+1))
		r := b.report(m.Node, m, in("node", m), in("offsite", seen, m))
		r.Run.Err = errors.New("failed to reach the other")
		reports = append(reports, r)
	}
	errs := make(chan error, len(reports))
	for _, r := range reports {
		go func() { errs <- b.client.Record(t.Context(), r) }()
	}
	for range reports {
		require.NoError(t, <-errs)
	}
	require.EqualValues(t, nodes, b.status().ConsecutiveFailures, "each run counts")
	row := b.rows()[seen.Name]
	require.Equal(t, "restore", row.Status.Verification.Level)
}
