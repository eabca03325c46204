package charts

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"etcdsnapshot.dev/agent/api"
	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/catalog"
	"etcdsnapshot.dev/agent/destination"
	agentmetrics "etcdsnapshot.dev/agent/metrics"
	"etcdsnapshot.dev/ci/kubetest"
	"etcdsnapshot.dev/ci/promtest"
)

// TestMonitoringChain goes the whole way with real parts: the agent's catalog writes status and rows to an API server, a
// kube-state-metrics that is set up and allowed by the chart makes metrics of them, and a Prometheus with the chart's
// rules judges three policies. Every query of the dashboard is answered with data.
func TestMonitoringChain(t *testing.T) {
	s := kubetest.New(t)
	for _, resource := range []string{v1.PolicyResource, v1.SnapshotResource} {
		crd, err := api.CRD(resource)
		require.NoError(t, err)
		require.NoError(t, s.Apply(t.Context(), "", crd))
	}
	rules := map[string]any{}
	var groups []any
	for _, name := range []string{"healthy", "failed", "stale"} {
		o := render(t, rendering{release: name, values: monitored(t, name)})
		spec := prometheusRule(t, o).Object["spec"].(map[string]any)
		groups = append(groups, spec["groups"].([]any)...)
		policy, err := json.Marshal(o.policy(t))
		require.NoError(t, err)
		require.NoError(t, s.Apply(t.Context(), "kube-system", policy))
	}
	rules["groups"] = groups
	client, err := catalog.New(s.Admin(), "kube-system")
	require.NoError(t, err)
	recent := time.Now().UTC().Truncate(time.Second)
	w := &writer{t: t, client: client}
	w.run("healthy", recent.Add(-3*time.Hour), 1000, nil)
	w.run("healthy", recent.Add(-time.Hour), 2000, nil)
	w.run("failed", recent.Add(-7*time.Hour), 1000, nil)
	w.run("failed", recent.Add(-time.Hour), 0, errors.New("no member of etcd could be asked"))
	w.run("stale", recent.Add(-15*time.Hour), 1000, nil)
	w.run("stale", recent.Add(-13*time.Hour), 2000, nil)

	ksm := startKubeStateMetrics(t, s)
	prometheus := startPrometheus(t, ksm, rules)
	want := map[string][]string{
		"healthy": nil,
		"failed":  {"EtcdSnapshotFailed"},
		"stale":   {"EtcdSnapshotLate", "EtcdSnapshotOffsiteCopyStale"},
	}
	var got map[string][]string
	promtest.Eventually(t, func() error {
		got = map[string][]string{"healthy": nil, "failed": nil, "stale": nil}
		// All rules were evaluated on what was scraped only once there is something of each policy.
		if n := len(prometheus.Query(`etcd_snapshot_last_run_timestamp_seconds`)); n != 3 {
			return fmt.Errorf("%d policies are known", n)
		}
		for _, a := range prometheus.Query(`ALERTS{alertstate="firing"}`) {
			got[a.Metric["policy"]] = append(got[a.Metric["policy"]], a.Metric["alertname"])
		}
		for _, names := range got {
			slices.Sort(names)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Errorf("these alerts fire: %v", got)
		}
		return nil
	})

	// What kube-state-metrics makes of each kind of field, number for number.
	for query, value := range map[string]float64{
		`etcd_snapshot_schedule_interval_seconds{policy="healthy"}`:                                                       6 * 3600,
		`etcd_snapshot_last_success_timestamp_seconds{policy="healthy"}`:                                                  float64(recent.Add(-time.Hour).Unix()),
		`etcd_snapshot_last_run_duration_seconds{policy="healthy"}`:                                                       2.5,
		`etcd_snapshot_last_run_result{policy="failed",result="Failed"}`:                                                  1,
		`etcd_snapshot_last_run_result{policy="failed",result="Succeeded"}`:                                               0,
		`etcd_snapshot_consecutive_failures{policy="failed"}`:                                                             1,
		`etcd_snapshot_revision{policy="healthy"}`:                                                                        2000,
		`etcd_snapshot_previous_revision{policy="healthy"}`:                                                               1000,
		`etcd_snapshot_destination_info{policy="healthy",destination="offsite",backend="s3",required="true"}`:             1,
		`etcd_snapshot_destination_info{policy="healthy",destination="node",backend="hostPath",required="true"}`:          1,
		`etcd_snapshot_destination_snapshots{policy="healthy",destination="offsite"}`:                                     2,
		`etcd_snapshot_destination_retention{policy="healthy",destination="node"}`:                                        1,
		`etcd_snapshot_destination_retention{policy="healthy",destination="offsite"}`:                                     0,
		`etcd_snapshot_certificate_expiration_timestamp_seconds{policy="healthy",file="/etc/kubernetes/pki/etcd/ca.crt"}`: float64(certificateEnd.Unix()),
		`etcd_snapshot_last_verification_result{policy="healthy",level="database",result="Passed"}`:                       1,
		`count(etcd_snapshot_snapshot_info{policy="healthy",etcd_version="3.6.5",destinations="node,offsite"})`:           2,
		`count(etcd_snapshot_snapshot_verified{policy="healthy"} == 1)`:                                                   2,
		`count(etcd_snapshot_snapshot_verified{policy="failed"} == 0)`:                                                    1,
	} {
		samples := prometheus.Query(query)
		require.Len(t, samples, 1, "%s\n%s", query, ksm.Metrics())
		require.InDelta(t, value, samples[0].Value, 0.001, query)
	}
	// Every metric that the guide lists is there.
	for _, m := range metrics(t) {
		require.NotEmpty(t, prometheus.Query(m.name), "%s is not made\n%s", m.name, ksm.Output())
	}
	// What the agent hands over of the same status is the same, series for series.
	for _, name := range []string{"healthy", "failed", "stale"} {
		require.ElementsMatch(t, exposed(t, ksm.Metrics(), name), exposed(t, handedOver(t, client, name), name))
	}
	for _, query := range dashboardQueries(t) {
		query = strings.NewReplacer("$namespace", ".*", "$policy", ".*", "$__range", "1h").Replace(query)
		promtest.Eventually(t, func() error { // a trend needs two scrapes
			if len(prometheus.Query(query)) == 0 {
				return fmt.Errorf("no data: %s", query)
			}
			return nil
		})
	}
}

// handedOver is what the agent writes for node-exporter of a policy's status in the API server.
func handedOver(t *testing.T, client *catalog.Client, name string) string {
	t.Helper()
	policy, err := client.Policy(t.Context(), "kube-system", name)
	require.NoError(t, err)
	status, err := client.PolicyStatus(t.Context(), "kube-system", name)
	require.NoError(t, err)
	dir := t.TempDir()
	policy.Spec.Metrics = &v1.MetricsSpec{Textfile: &v1.MetricsTextfile{Directory: dir}}
	require.NoError(t, agentmetrics.Report(t.Context(), &agentmetrics.Source{Policy: policy, Status: status, Complete: true}, agentmetrics.Options{}))
	data, err := os.ReadFile(filepath.Join(dir, "etcd-snapshot_kube-system_"+name+".prom"))
	require.NoError(t, err)
	return string(data)
}

// exposed are the series of a policy, without the rows of its snapshots, as text that says what a scrape sees.
func exposed(t *testing.T, text, policy string) (all []string) {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	require.NoError(t, err)
	for name, f := range families {
		for _, m := range f.Metric {
			labels := map[string]string{}
			for _, l := range m.Label {
				if l.GetValue() != "" && !strings.HasPrefix(l.GetName(), "customresource_") {
					labels[l.GetName()] = l.GetValue()
				}
			}
			if strings.HasPrefix(name, "etcd_snapshot_snapshot_") || labels["policy"] != policy {
				continue
			}
			all = append(all, fmt.Sprint(name, " ", f.GetHelp(), labels, m.GetGauge().GetValue()+m.GetUntyped().GetValue()))
		}
	}
	require.NotEmpty(t, all)
	return all
}

// monitored are values of a policy whose alerts need not wait.
func monitored(t testing.TB, name string) string {
	alerts := map[string]any{}
	for _, a := range alertSource(t) {
		alerts[a.Alert] = map[string]any{"for": "0s"}
	}
	// Until the first scrape there are no metrics.
	alerts["EtcdSnapshotMetricsAbsent"] = map[string]any{"enabled": false}
	data, err := json.Marshal(map[string]any{
		"fullnameOverride": name,
		"destinations":     map[string]any{"offsite": map[string]any{"s3": map[string]any{"bucket": "backups"}}},
		"monitoring":       map[string]any{"prometheusRule": map[string]any{"enabled": true, "alerts": alerts}},
	})
	require.NoError(t, err)
	return string(data)
}

var certificateEnd = time.Now().Add(300 * 24 * time.Hour).UTC().Truncate(time.Second)

// writer writes down runs as the agent does.
type writer struct {
	t      *testing.T
	client *catalog.Client
	taken  map[string][]*v1.Manifest
}

func (w *writer) run(policy string, at time.Time, revision int64, failure error) {
	w.t.Helper()
	if w.taken == nil {
		w.taken = map[string][]*v1.Manifest{}
	}
	p, err := w.client.Policy(w.t.Context(), "kube-system", policy)
	require.NoError(w.t, err)
	r := catalog.Report{Policy: p, Node: "n1", Run: &catalog.Run{
		Schedule: "0 */6 * * *", Interval: 6 * time.Hour, Begin: at, End: at.Add(2500 * time.Millisecond), Err: failure,
		Certificates: []v1.CertificateStatus{{File: "/etc/kubernetes/pki/etcd/ca.crt", NotAfter: metav1.NewTime(certificateEnd)}},
	}}
	if failure == nil {
		name, err := archive.NewName(policy, at, bytes.NewReader([]byte(fmt.Sprintf("%020d", revision))))
		require.NoError(w.t, err)
		hash := strings.Repeat("ab", 32)
		m := &v1.Manifest{SchemaVersion: v1.ManifestSchemaVersion, Name: name, SnapshotFacts: v1.SnapshotFacts{
			Policy: policy, ClusterName: "prod-eu", CreatedAt: metav1.NewTime(at), Node: "n1",
			Etcd:     v1.SnapshotEtcd{ClusterID: "cdf818194e3a8c32", MemberID: "8e9e05c52164694d", Version: "3.6.5", Revision: revision},
			Database: v1.DatabaseFacts{Size: 80 << 20, SHA256: hash}, Object: v1.ObjectFacts{Key: name + ".db.zst", Size: 18 << 20, SHA256: hash},
			Compression: v1.CompressionZstd,
		}}
		w.taken[policy] = append(w.taken[policy], m)
		r.Run.Manifest = m
		if policy != "failed" { // nobody verified its snapshot
			r.Verifications = map[string]v1.VerificationStatus{name: {Time: metav1.NewTime(at), Level: "database", Result: v1.VerificationPassed}}
		}
	}
	for _, d := range []string{"node", "offsite"} {
		dest := catalog.Destination{Name: d, URI: "s3://backups/prod-eu", Required: true, Listed: true, Err: failure}
		if d == "node" {
			dest.KeptBecause = map[string][]string{}
		}
		for _, m := range w.taken[policy] {
			dest.Snapshots = append([]destination.Entry{{Name: m.Name, Policy: policy, Time: m.CreatedAt.Time, Key: m.Object.Key, Size: m.Object.Size, Stored: m.CreatedAt.Time}}, dest.Snapshots...)
		}
		r.Destinations = append(r.Destinations, dest)
	}
	require.NoError(w.t, w.client.Record(w.t.Context(), r))
}

func startKubeStateMetrics(t *testing.T, s *kubetest.Server) *promtest.Program {
	t.Helper()
	o := render(t, rendering{set: []string{"crds.enabled=false", "monitoring.kubeStateMetrics.configMap.enabled=true", "monitoring.kubeStateMetrics.serviceAccount.name=kube-state-metrics"}})
	for _, doc := range documents(o.manifest) {
		if strings.Contains(string(doc), "monitoring-kube-state-metrics.yaml") {
			require.NoError(t, s.Apply(t.Context(), "kube-system", doc))
		}
	}
	account, err := s.ServiceAccount(t.Context(), "kube-system", "kube-state-metrics")
	require.NoError(t, err)
	dir := t.TempDir()
	kubeconfig, config := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "config.yaml")
	require.NoError(t, kubetest.WriteKubeconfig(kubeconfig, account, "kube-system"))
	require.NoError(t, os.WriteFile(config, []byte(o.configMap(t, "-kube-state-metrics").Data["config.yaml"]), 0o600))
	return promtest.Start(t, "kube-state-metrics", "kube-state-metrics", "/metrics", promtest.Config{}, func(port int) []string {
		return []string{"--kubeconfig=" + kubeconfig, "--custom-resource-state-only", "--custom-resource-state-config-file=" + config,
			"--host=127.0.0.1", fmt.Sprintf("--port=%d", port), "--telemetry-host=127.0.0.1", "--telemetry-port=0"}
	})
}

func startPrometheus(t *testing.T, ksm *promtest.Program, rules map[string]any) *promtest.Program {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rules.yaml")
	data, err := yaml.Marshal(rules)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, data, 0o600))
	return promtest.Prometheus(t, promtest.Config{}, map[string]any{
		"global":     map[string]any{"scrape_interval": "1s", "evaluation_interval": "1s"},
		"rule_files": []string{file},
		"scrape_configs": []any{map[string]any{
			"job_name": "kube-state-metrics", "honor_labels": true,
			"static_configs": []any{map[string]any{"targets": []string{strings.TrimPrefix(ksm.URL, "http://")}}},
		}},
	})
}

// dashboardQueries gives every expression of the dashboard.
func dashboardQueries(t testing.TB) []string {
	t.Helper()
	var d struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	require.NoError(t, json.Unmarshal(chartFile(t, "monitoring/dashboard.json"), &d))
	var queries []string
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			queries = append(queries, target.Expr)
		}
	}
	require.NotEmpty(t, queries)
	return queries
}
