package charts

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"etcdsnapshot.dev/agent/api"
	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/catalog"
	"etcdsnapshot.dev/agent/destination"
	"etcdsnapshot.dev/ci/kubetest"
	"etcdsnapshot.dev/ci/parts"
)

// serverTime bounds everything that is waited for here, on a machine that is busy with other tests.
const serverTime = 2 * time.Minute

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
	eventually(t, func() error {
		got = map[string][]string{"healthy": nil, "failed": nil, "stale": nil}
		// All rules were evaluated on what was scraped only once there is something of each policy.
		if n := len(prometheus.query(t, `etcd_snapshot_last_run_timestamp_seconds`)); n != 3 {
			return fmt.Errorf("%d policies are known", n)
		}
		for _, a := range prometheus.query(t, `ALERTS{alertstate="firing"}`) {
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
	} {
		samples := prometheus.query(t, query)
		require.Len(t, samples, 1, "%s\n%s", query, ksm.metrics(t))
		require.InDelta(t, value, samples[0].value(t), 0.001, query)
	}
	// Every metric that the guide lists is there.
	for _, m := range metrics(t) {
		require.NotEmpty(t, prometheus.query(t, m.name), "%s is not made\n%s", m.name, ksm.output(t))
	}
	for _, query := range dashboardQueries(t) {
		query = strings.NewReplacer("$namespace", ".*", "$policy", ".*", "$__range", "1h").Replace(query)
		eventually(t, func() error { // a trend needs two scrapes
			if len(prometheus.query(t, query)) == 0 {
				return fmt.Errorf("no data: %s", query)
			}
			return nil
		})
	}
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
		r.Verifications = map[string]v1.VerificationStatus{name: {Time: metav1.NewTime(at), Level: "database", Result: v1.VerificationPassed}}
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

// program is a server of somebody else's on a loopback port.
type program struct {
	url, log string
}

func startProgram(t *testing.T, ready string, name string, args func(port int) []string) *program {
	t.Helper()
	p := &program{log: filepath.Join(t.TempDir(), "log")}
	log, err := os.Create(p.log)
	require.NoError(t, err)
	defer log.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	require.NoError(t, l.Close())
	p.url = fmt.Sprintf("http://127.0.0.1:%d", port)
	cmd := exec.CommandContext(t.Context(), name, args(port)...)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // killed
	})
	eventually(t, func() error {
		_, err := p.get(ready)
		if err != nil {
			return fmt.Errorf("%w\n%s", err, p.output(t))
		}
		return nil
	})
	return p
}

func (p *program) get(path string) ([]byte, error) {
	resp, err := http.Get(p.url + path)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, resp.Status, body)
	}
	return body, err
}

func (p *program) output(t testing.TB) string {
	t.Helper()
	data, err := os.ReadFile(p.log)
	require.NoError(t, err)
	return string(data[max(0, len(data)-4000):])
}

func (p *program) metrics(t testing.TB) string {
	t.Helper()
	body, err := p.get("/metrics")
	require.NoError(t, err)
	return string(body)
}

// sample is one of an instant query.
type sample struct {
	Metric map[string]string
	Value  [2]any
}

func (s sample) value(t testing.TB) float64 {
	t.Helper()
	var f float64
	_, err := fmt.Sscan(s.Value[1].(string), &f)
	require.NoError(t, err)
	return f
}

func (p *program) query(t testing.TB, expr string) []sample {
	t.Helper()
	body, err := p.get("/api/v1/query?query=" + url.QueryEscape(expr))
	require.NoError(t, err)
	var answer struct{ Data struct{ Result []sample } }
	require.NoError(t, json.Unmarshal(body, &answer))
	return answer.Data.Result
}

func startKubeStateMetrics(t *testing.T, s *kubetest.Server) *program {
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
	return startProgram(t, "/metrics", filepath.Join(parts.Require(t, "kube-state-metrics"), "kube-state-metrics"), func(port int) []string {
		return []string{"--kubeconfig=" + kubeconfig, "--custom-resource-state-only", "--custom-resource-state-config-file=" + config,
			"--host=127.0.0.1", fmt.Sprintf("--port=%d", port), "--telemetry-host=127.0.0.1", "--telemetry-port=0"}
	})
}

func startPrometheus(t *testing.T, ksm *program, rules map[string]any) *program {
	t.Helper()
	dir := t.TempDir()
	write := func(name string, content any) {
		data, err := yaml.Marshal(content)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	write("rules.yaml", rules)
	write("prometheus.yaml", map[string]any{
		"global":     map[string]any{"scrape_interval": "1s", "evaluation_interval": "1s"},
		"rule_files": []string{filepath.Join(dir, "rules.yaml")},
		"scrape_configs": []any{map[string]any{
			"job_name": "kube-state-metrics", "honor_labels": true,
			"static_configs": []any{map[string]any{"targets": []string{strings.TrimPrefix(ksm.url, "http://")}}},
		}},
	})
	return startProgram(t, "/-/ready", filepath.Join(parts.Require(t, "prometheus"), "prometheus"), func(port int) []string {
		return []string{"--config.file=" + filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path=" + filepath.Join(dir, "data"),
			fmt.Sprintf("--web.listen-address=127.0.0.1:%d", port)}
	})
}

// eventually tries until there is no error.
func eventually(t *testing.T, try func() error) {
	t.Helper()
	deadline := time.Now().Add(serverTime)
	for {
		err := try()
		if err == nil {
			return
		}
		require.True(t, time.Now().Before(deadline), "%v", err)
		time.Sleep(200 * time.Millisecond)
	}
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
