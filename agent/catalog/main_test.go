package catalog

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"etcdsnapshot.dev/agent/api"
	"etcdsnapshot.dev/agent/api/apitest"
	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/destination"
	"etcdsnapshot.dev/ci/kubetest"
	"etcdsnapshot.dev/ci/parts"
)

// server is shared by the tests that do not harm it. Each works in a namespace of its own.
var server *kubetest.Server

func TestMain(m *testing.M) {
	os.Exit(kubetest.Main(m, func(s *kubetest.Server) { server = s }))
}

// installCRDs installs what the program embeds.
func installCRDs(t *testing.T, s *kubetest.Server) {
	t.Helper()
	for _, resource := range []string{v1.PolicyResource, v1.SnapshotResource} {
		crd, err := api.CRD(resource)
		require.NoError(t, err)
		require.NoError(t, s.Apply(t.Context(), "", crd))
	}
}

var namespaces atomic.Int64

// bench is a namespace with a policy in it, and what a test does there.
type bench struct {
	t         *testing.T
	server    *kubetest.Server
	namespace string
	// client is a cluster administrator's.
	client *Client
	policy *v1.EtcdSnapshotPolicy
	// clock is the time of the next snapshot.
	clock time.Time
	// manifests of all snapshots that were taken.
	manifests map[string]*v1.Manifest
}

const twoDestinations = `
  - name: offsite
    s3: {bucket: backups}
`

func newBench(t *testing.T) *bench {
	t.Helper()
	installCRDs(t, server)
	return newBenchOn(t, server)
}

func newBenchOn(t *testing.T, s *kubetest.Server) *bench {
	t.Helper()
	b := &bench{t: t, server: s, namespace: fmt.Sprintf("bench-%d", namespaces.Add(1)), clock: time.Now().UTC().Truncate(time.Second).Add(-time.Hour), manifests: map[string]*v1.Manifest{}}
	var err error
	b.client, err = New(s.Admin(), b.namespace)
	require.NoError(t, err)
	b.apply(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"` + b.namespace + `"}}`)
	b.apply(strings.Replace(apitest.Minimal, "namespace: kube-system", "namespace: "+b.namespace, 1) + twoDestinations)
	b.policy, err = b.client.Policy(t.Context(), b.namespace, "etcd")
	require.NoError(t, err)
	return b
}

func (b *bench) apply(manifest string) {
	b.t.Helper()
	require.NoError(b.t, b.server.Apply(b.t.Context(), b.namespace, []byte(manifest)))
}

// as gives a client of a service account of the namespace.
func (b *bench) as(account string) *Client {
	b.t.Helper()
	config, err := b.server.ServiceAccount(b.t.Context(), b.namespace, account)
	require.NoError(b.t, err)
	c, err := New(config, b.namespace)
	require.NoError(b.t, err)
	return c
}

// kubectl runs kubectl as an administrator and gives what it prints.
func (b *bench) kubectl(args ...string) string {
	b.t.Helper()
	config := filepath.Join(b.t.TempDir(), "kubeconfig")
	require.NoError(b.t, kubetest.WriteKubeconfig(config, b.server.Admin(), b.namespace))
	cmd := exec.CommandContext(b.t.Context(), filepath.Join(parts.Require(b.t, "kubernetes"), "kubectl"), append([]string{"--kubeconfig", config, "--cache-dir", b.t.TempDir()}, args...)...)
	out, err := cmd.CombinedOutput()
	require.NoError(b.t, err, "kubectl %s: %s", strings.Join(args, " "), out)
	return string(out)
}

// snapshot makes a manifest, as if one had been taken on node.
func (b *bench) snapshot(node string) *v1.Manifest {
	b.t.Helper()
	b.clock = b.clock.Add(time.Minute)
	seed := sha256.Sum256([]byte(b.clock.String() + node))
	name, err := archive.NewName(b.policy.Name, b.clock, strings.NewReader(string(seed[:])))
	require.NoError(b.t, err)
	hash := fmt.Sprintf("%x", seed)
	m := &v1.Manifest{SchemaVersion: v1.ManifestSchemaVersion, Name: name, SnapshotFacts: v1.SnapshotFacts{
		Policy: b.policy.Name, ClusterName: "prod-eu", ClusterUID: "uid", CreatedAt: metav1.NewTime(b.clock), Node: node,
		AgentVersion: "v0.0.0", KubernetesVersion: "v1.34.4",
		Etcd:     v1.SnapshotEtcd{ClusterID: "cdf818194e3a8c32", MemberID: "8e9e05c52164694d", Version: "3.6.5", Revision: 815, RaftTerm: 2},
		Database: v1.DatabaseFacts{Size: 20<<20 + 32, SHA256: hash}, Object: v1.ObjectFacts{Key: name + ".db.zst", Size: 3 << 20, SHA256: hash},
		Compression: v1.CompressionZstd,
	}}
	b.manifests[name] = m
	return m
}

// in gives a destination that holds the snapshots.
func in(name string, ms ...*v1.Manifest) Destination {
	d := Destination{Name: name, URI: "s3://backups/prod-eu", Required: true, Listed: true, Snapshots: []destination.Entry{}}
	if name == "node" {
		d.URI, d.NodeLocal = "file:///var/lib/etcd-snapshots/prod-eu", true
	}
	for _, m := range ms {
		d.Snapshots = append([]destination.Entry{{Name: m.Name, Policy: m.Policy, Time: m.CreatedAt.Time, Key: m.Object.Key, Size: m.Object.Size, Stored: m.CreatedAt.Time}}, d.Snapshots...)
	}
	return d
}

// report is the report of a run on node that took m; nil is a run that took none.
func (b *bench) report(node string, m *v1.Manifest, ds ...Destination) Report {
	r := Report{
		Policy: b.policy, Node: node, Destinations: ds, Manifest: b.manifest,
		Run: &Run{Schedule: "0 */6 * * *", Begin: b.clock, End: b.clock.Add(2500 * time.Millisecond), Manifest: m},
	}
	if m != nil {
		r.Verifications = map[string]v1.VerificationStatus{m.Name: {Time: metav1.NewTime(b.clock), Level: "checksum", Result: v1.VerificationPassed}}
	}
	return r
}

func (b *bench) manifest(_ context.Context, dest, name string) (*v1.Manifest, error) {
	if m, ok := b.manifests[name]; ok {
		return m, nil
	}
	return nil, fmt.Errorf("%s holds no %s", dest, name)
}

func (b *bench) record(r Report) {
	b.t.Helper()
	require.NoError(b.t, b.client.Record(b.t.Context(), r))
}

// patiently reads from a server that may have just come back.
func (b *bench) patiently(try func() error) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	require.NoError(b.t, patiently(ctx, unlessGone, try))
}

// rows gives all rows of the namespace by name.
func (b *bench) rows() map[string]v1.EtcdSnapshot {
	b.t.Helper()
	var list v1.EtcdSnapshotList
	b.patiently(func() error {
		return b.client.do(b.t.Context(), "list", target{resource: v1.SnapshotResource, namespace: b.namespace}, b.client.rest.Get(), &list)
	})
	rows := map[string]v1.EtcdSnapshot{}
	for _, row := range list.Items {
		rows[row.Name] = row
	}
	return rows
}

// phases gives what a row says of its copies: "node=Stored offsite=Pruned".
func phases(row v1.EtcdSnapshot) string {
	var all []string
	for _, d := range row.Status.Destinations {
		all = append(all, d.Name+"="+d.Phase)
	}
	return strings.Join(all, " ")
}

func (b *bench) status() v1.EtcdSnapshotPolicyStatus {
	b.t.Helper()
	var p policy
	b.patiently(func() error {
		return b.client.get(b.t.Context(), target{resource: v1.PolicyResource, namespace: b.namespace, name: b.policy.Name}, &p)
	})
	return p.Status
}

// condition gives a condition as "Status/Reason: Message".
func condition(cs []metav1.Condition, kind string) string {
	for _, c := range cs {
		if c.Type == kind {
			return fmt.Sprintf("%s/%s: %s", c.Status, c.Reason, c.Message)
		}
	}
	return ""
}

// events gives the Events of the namespace as "Type Reason xCount: Message", by reason.
func (b *bench) events() map[string]string {
	b.t.Helper()
	var list struct{ Items []event }
	require.NoError(b.t, json.Unmarshal([]byte(b.kubectl("get", "events", "-o", "json")), &list))
	events := map[string]string{}
	for _, e := range list.Items {
		require.NotContains(b.t, events, e.Reason, "one Event a reason")
		require.Equal(b.t, b.policy.Name, e.InvolvedObject["name"])
		require.Equal(b.t, string(b.policy.UID), e.InvolvedObject["uid"])
		events[e.Reason] = fmt.Sprintf("%s x%d: %s", e.Type, e.Count, e.Message)
	}
	return events
}
