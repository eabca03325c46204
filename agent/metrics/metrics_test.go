package metrics

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/crypto/bcrypt"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/ci/parts"
	"etcdsnapshot.dev/ci/promtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var taken = time.Date(2026, 12, 1, 6, 0, 0, 0, time.UTC)

func on(day int) *metav1.Time {
	t := metav1.NewTime(taken.AddDate(0, 0, day))
	return &t
}

func p[T any](v T) *T { return &v }

// full is a source with every metric.
func full(spec v1.MetricsSpec) *Source {
	return &Source{
		Policy: &v1.EtcdSnapshotPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "etcd", CreationTimestamp: *on(-9)},
			Spec:       v1.EtcdSnapshotPolicySpec{TimeZone: "Europe/Berlin", Metrics: &spec},
		},
		Status: &v1.EtcdSnapshotPolicyStatus{
			Schedule: "0 */6 * * *", ScheduleIntervalSeconds: 21600, LastRunTime: on(0), LastResult: v1.ResultPartial, LastSuccessTime: on(-1),
			LastSnapshot: "etcd-20261130t060000z-aaaaa", LastDurationSeconds: "1.58", ConsecutiveFailures: 1, Snapshots: p(int32(2)),
			DatabaseBytes: 4000, PreviousDatabaseBytes: 3000, StoredBytes: 1000, Revision: 20, PreviousRevision: 10,
			Certificates:  []v1.CertificateStatus{{File: "/etc/kubernetes/pki/etcd/ca.crt", NotAfter: *on(300)}},
			Verifications: []v1.PolicyVerificationStatus{{Level: "restore", Time: *on(0), Snapshot: "x", Result: v1.VerificationFailed, PassedTime: on(-1), PassedSnapshotTime: on(-2)}},
			Destinations: []v1.PolicyDestinationStatus{
				{Name: "node", Backend: "hostPath", Required: p(true), Retention: p(true), Snapshots: 2, Bytes: 2000, LastSuccessTime: on(0), LastPruneTime: on(0), LastPruned: p(int32(3))},
				{Name: "offsite", Backend: "s3", Required: p(false), Retention: p(false)},
			},
		},
		Complete: true, Destinations: []string{"node", "offsite"}, Node: "n1",
	}
}

// The chart's kube-state-metrics and the agent must make the same metrics of a policy, to a word.
func TestSameAsKubeStateMetrics(t *testing.T) {
	data, err := os.ReadFile("../../charts/etcd-snapshot/monitoring/kube-state-metrics.yaml")
	require.NoError(t, err)
	type each struct {
		LabelName      string
		LabelsFromPath map[string]any
	}
	var config struct {
		Spec struct {
			Resources []struct {
				GroupVersionKind struct{ Kind string }
				MetricNamePrefix string
				Metrics          []struct {
					Name, Help string
					Each       struct{ Info, Gauge, StateSet each }
				}
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(data, &config))
	var want []string
	for _, r := range config.Spec.Resources {
		if r.GroupVersionKind.Kind != v1.PolicyKind {
			continue
		}
		for _, m := range r.Metrics {
			labels := map[string]bool{}
			for _, e := range []each{m.Each.Info, m.Each.Gauge, m.Each.StateSet} {
				for l := range e.LabelsFromPath {
					labels[l] = true
				}
				if e.LabelName != "" {
					labels[e.LabelName] = true
				}
			}
			want = append(want, r.MetricNamePrefix+"_"+m.Name+" "+sorted(labels)+" "+m.Help)
		}
	}
	require.NotEmpty(t, want)
	families, err := full(v1.MetricsSpec{}).registry(nil).Gather()
	require.NoError(t, err)
	var got []string
	for _, f := range families {
		labels := map[string]bool{}
		for _, l := range f.Metric[0].Label {
			labels[l.GetName()] = true
		}
		got = append(got, f.GetName()+" "+sorted(labels)+" "+f.GetHelp())
	}
	require.ElementsMatch(t, want, got)
}

func sorted(set map[string]bool) string {
	var all []string
	for k := range set {
		all = append(all, k)
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}

// text is the file that node-exporter reads.
func text(t *testing.T, dir string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "etcd-snapshot_kube-system_etcd.prom"))
	require.NoError(t, err)
	return string(data)
}

func TestTextfile(t *testing.T) {
	dir := t.TempDir()
	s := full(v1.MetricsSpec{Cluster: "prod-eu", PerNode: true, Textfile: &v1.MetricsTextfile{Directory: dir}})
	require.NoError(t, Report(t.Context(), s, Options{}))
	got := text(t, dir)
	const who = `cluster="prod-eu",`
	for _, line := range []string{
		`etcd_snapshot_policy_info{` + who + `last_snapshot="etcd-20261130t060000z-aaaaa",namespace="kube-system",node="n1",policy="etcd",schedule="0 */6 * * *",time_zone="Europe/Berlin"} 1`,
		`etcd_snapshot_last_run_result{` + who + `namespace="kube-system",node="n1",policy="etcd",result="Partial"} 1`,
		`etcd_snapshot_last_run_result{` + who + `namespace="kube-system",node="n1",policy="etcd",result="Succeeded"} 0`,
		`etcd_snapshot_last_run_duration_seconds{` + who + `namespace="kube-system",node="n1",policy="etcd"} 1.58`,
		`etcd_snapshot_destination_info{backend="s3",` + who + `destination="offsite",namespace="kube-system",node="n1",policy="etcd",required="false"} 1`,
		`etcd_snapshot_destination_snapshots{` + who + `destination="offsite",namespace="kube-system",node="n1",policy="etcd"} 0`,
		"# HELP etcd_snapshot_revision etcd's revision when the last snapshot was taken.",
		"# TYPE etcd_snapshot_revision gauge",
	} {
		require.Contains(t, got, line+"\n")
	}
	require.NotContains(t, got, `destination_last_success_timestamp_seconds{`+who+`destination="offsite"`, "never stored there")

	// Prometheus' own reader finds nothing to complain of.
	promtool := exec.CommandContext(t.Context(), filepath.Join(parts.Require(t, "prometheus"), "promtool"), "check", "metrics")
	promtool.Stdin = strings.NewReader(got)
	out, err := promtool.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Empty(t, string(out))

	info, err := os.Stat(filepath.Join(dir, "etcd-snapshot_kube-system_etcd.prom"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o644), info.Mode().Perm(), "node-exporter is not root")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	requireProbed(t, s)
	entries, err = os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "a probe leaves nothing")
	require.Equal(t, got, text(t, dir))
}

// requireProbed finds all receivers of a source usable.
func requireProbed(t *testing.T, s *Source) {
	t.Helper()
	receivers := Receivers(s.Policy.Spec.Metrics, "1.2.3")
	require.NotEmpty(t, receivers)
	for _, r := range receivers {
		require.NoError(t, r.Probe(t.Context()), r.Field)
	}
}

// Whoever reads at any moment sees a whole file.
func TestTextfileIsNeverHalf(t *testing.T) {
	dir := t.TempDir()
	s := full(v1.MetricsSpec{Textfile: &v1.MetricsTextfile{Directory: dir}})
	require.NoError(t, Report(t.Context(), s, Options{}))
	whole := text(t, dir)
	var writing sync.WaitGroup
	for range 4 {
		writing.Go(func() {
			for range 50 {
				if err := Report(t.Context(), s, Options{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { writing.Wait(); close(done) }()
	for {
		require.Equal(t, whole, text(t, dir))
		select {
		case <-done:
			return
		default:
		}
	}
}

// Without an API server a run knows of itself alone: what is known from before stays.
func TestTextfileKeepsWhatWasKnown(t *testing.T) {
	dir := t.TempDir()
	s := full(v1.MetricsSpec{Textfile: &v1.MetricsTextfile{Directory: dir}})
	require.NoError(t, Report(t.Context(), s, Options{}))
	failed := &Source{Policy: s.Policy, Status: &v1.EtcdSnapshotPolicyStatus{LastRunTime: on(1), LastResult: v1.ResultFailed, ConsecutiveFailures: 1,
		Destinations: []v1.PolicyDestinationStatus{{Name: "node", Snapshots: 7, LastSuccessTime: on(1)}, {Name: "offsite"}}},
		Destinations: []string{"node", "offsite"}}
	require.NoError(t, Report(t.Context(), failed, Options{}))
	got := values(t, dir)
	require.Equal(t, float64(on(1).Unix()), got[`last_run_timestamp_seconds`])
	require.Equal(t, float64(on(-1).Unix()), got[`last_success_timestamp_seconds`], "of the run before")
	require.Equal(t, 1.0, got[`last_run_result result=Failed`])
	require.Equal(t, 0.0, got[`last_run_result result=Partial`])
	require.Equal(t, 1.0, got[`consecutive_failures`], "what was known before; how many it are now is not known")
	require.Equal(t, 7.0, got[`destination_snapshots destination=node`])
	require.Equal(t, 0.0, got[`destination_snapshots destination=offsite`])
	require.Equal(t, 20.0, got[`revision`])
	require.Equal(t, 1.0, got[`last_verification_result level=restore result=Failed`])

	verified := &Source{Policy: s.Policy, Destinations: []string{"node"}, Status: &v1.EtcdSnapshotPolicyStatus{
		Verifications: []v1.PolicyVerificationStatus{{Level: "checksum", Time: *on(2), Result: v1.VerificationPassed}}}}
	require.NoError(t, Report(t.Context(), verified, Options{}))
	got = values(t, dir)
	require.Equal(t, 1.0, got[`last_verification_result level=restore result=Failed`])
	require.Equal(t, 1.0, got[`last_verification_result level=checksum result=Passed`])
	require.Equal(t, 0.0, got[`last_verification_result level=checksum result=Failed`])
	require.Equal(t, float64(on(1).Unix()), got[`last_run_timestamp_seconds`])
	require.NotContains(t, got, `destination_snapshots destination=offsite`, "the policy has it no more")

	// With an API server all that there is, is told.
	s.Status = &v1.EtcdSnapshotPolicyStatus{LastRunTime: on(3)}
	require.NoError(t, Report(t.Context(), s, Options{}))
	got = values(t, dir)
	require.Equal(t, float64(on(3).Unix()), got[`last_run_timestamp_seconds`])
	require.NotContains(t, got, `revision`)

	// A file that somebody broke is written anew.
	require.NoError(t, os.WriteFile(filepath.Join(dir, "etcd-snapshot_kube-system_etcd.prom"), []byte("}{"), 0o644))
	require.NoError(t, Report(t.Context(), failed, Options{}))
	require.Equal(t, 1.0, values(t, dir)[`last_run_result result=Failed`])
}

// values are the file's, by name and labels without the prefix and the labels of all.
func values(t *testing.T, dir string) map[string]float64 {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text(t, dir)))
	require.NoError(t, err)
	all := map[string]float64{}
	for name, f := range families {
		require.Equal(t, dto.MetricType_GAUGE, f.GetType())
		for _, m := range f.Metric {
			key := strings.TrimPrefix(name, "etcd_snapshot_")
			for _, l := range m.Label {
				if l.GetName() != "namespace" && l.GetName() != "policy" {
					key += " " + l.GetName() + "=" + l.GetValue()
				}
			}
			all[key] = m.GetGauge().GetValue()
		}
	}
	return all
}

// secured is a server that speaks TLS with a certificate that nobody else trusts, and asks for a password.
type secured struct {
	promtest.Config
	endpoint v1.MetricsEndpoint
}

func secure(t *testing.T) *secured {
	t.Helper()
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "promtest"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	s := &secured{Config: promtest.Config{CA: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), Username: "agent", Password: "correct horse"}}
	hash, err := bcrypt.GenerateFromPassword([]byte(s.Password), bcrypt.MinCost)
	require.NoError(t, err)
	write := func(name string, data []byte) string {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, data, 0o600))
		return file
	}
	web, err := yaml.Marshal(map[string]any{
		"tls_server_config": map[string]any{"cert_file": write("tls.crt", s.CA),
			"key_file": write("tls.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))},
		"basic_auth_users": map[string]any{s.Username: string(hash)},
	})
	require.NoError(t, err)
	s.Args = []string{"--web.config.file=" + write("web.yaml", web)}
	credentials := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(credentials, v1.MetricsFileUsername), []byte(s.Username+"\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(credentials, v1.MetricsFilePassword), []byte(s.Password+"\n"), 0o600))
	s.endpoint = v1.MetricsEndpoint{CredentialsDir: credentials, EndpointSpec: v1.EndpointSpec{CABundleFile: filepath.Join(dir, "tls.crt")}}
	return s
}

// requireAll asks a Prometheus for every metric of a source, and compares number for number, label for label.
func requireAll(t *testing.T, prometheus *promtest.Program, s *Source, ignored ...string) {
	t.Helper()
	families, err := s.registry(s.identity()).Gather()
	require.NoError(t, err)
	promtest.Eventually(t, func() error {
		if len(prometheus.Query(families[0].GetName())) == 0 {
			return errors.New("nothing came yet")
		}
		return nil
	})
	for _, f := range families {
		var want, got []string
		for _, m := range f.Metric {
			labels := map[string]string{}
			for _, l := range m.Label {
				labels[l.GetName()] = l.GetValue()
			}
			want = append(want, fmt.Sprint(labels, m.GetGauge().GetValue()))
		}
		for _, sample := range prometheus.Query(f.GetName()) {
			for _, name := range append(ignored, "__name__", "job") {
				delete(sample.Metric, name)
			}
			got = append(got, fmt.Sprint(sample.Metric, sample.Value))
		}
		require.ElementsMatch(t, want, got, f.GetName())
	}
}

func TestPushgateway(t *testing.T) {
	secured := secure(t)
	gateway := promtest.Pushgateway(t, secured.Config)
	endpoint := secured.endpoint
	endpoint.URL = gateway.URL
	s := full(v1.MetricsSpec{Cluster: "prod-eu", PerNode: true, Pushgateway: &endpoint})
	requireProbed(t, s)
	require.NotContains(t, gateway.Metrics(), "push_time_seconds", "a probe leaves nothing")
	require.NoError(t, Report(t.Context(), s, Options{}))

	prometheus := promtest.Prometheus(t, promtest.Config{}, map[string]any{
		"global": map[string]any{"scrape_interval": "1s"},
		"scrape_configs": []any{map[string]any{
			"job_name": "pushgateway", "honor_labels": true, "scheme": "https",
			"tls_config":     map[string]any{"ca_file": endpoint.CABundleFile},
			"basic_auth":     map[string]any{"username": secured.Username, "password": secured.Password},
			"static_configs": []any{map[string]any{"targets": []string{strings.TrimPrefix(gateway.URL, "https://")}}},
		}},
	})
	requireAll(t, prometheus, s, "instance")
	require.Len(t, prometheus.Query(`etcd_snapshot_revision{job="etcd-snapshot",cluster="prod-eu",node="n1"}`), 1)

	// Another node's metrics are its own; and what is gone is gone.
	other := full(*s.Policy.Spec.Metrics)
	other.Node = "n2"
	require.NoError(t, Report(t.Context(), other, Options{}))
	s.Status.Destinations = s.Status.Destinations[:1]
	require.NoError(t, Report(t.Context(), s, Options{}))
	require.Contains(t, gateway.Metrics(), `etcd_snapshot_destination_info{backend="s3",cluster="prod-eu",destination="offsite",instance="",job="etcd-snapshot",namespace="kube-system",node="n2"`)
	require.NotContains(t, gateway.Metrics(), `destination="offsite",instance="",job="etcd-snapshot",namespace="kube-system",node="n1"`)

	// A run that knows of itself alone leaves the rest as it was.
	s.Complete, s.Status = false, &v1.EtcdSnapshotPolicyStatus{LastRunTime: on(5), LastResult: v1.ResultFailed}
	require.NoError(t, Report(t.Context(), s, Options{}))
	got := gateway.Metrics()
	const n1 = `{cluster="prod-eu",instance="",job="etcd-snapshot",namespace="kube-system",node="n1",policy="etcd"} `
	require.Contains(t, got, "etcd_snapshot_last_run_timestamp_seconds"+n1+expected(on(5)))
	require.Contains(t, got, "etcd_snapshot_last_success_timestamp_seconds"+n1+expected(on(-1)))
}

func expected(t *metav1.Time) string { return strconv.FormatFloat(float64(t.Unix()), 'g', -1, 64) }

// An OpenTelemetry Collector goes on exposing what it got last, under the same names.
func TestCollector(t *testing.T) {
	collector, url := promtest.Collector(t)
	s := full(v1.MetricsSpec{Cluster: "prod-eu", PerNode: true, OTLP: &v1.MetricsEndpoint{URL: url}})
	requireProbed(t, s)
	require.NotContains(t, collector.Metrics(), "etcd_snapshot", "a probe leaves nothing")
	require.NoError(t, Report(t.Context(), s, Options{Version: "1.2.3"}))

	prometheus := promtest.Prometheus(t, promtest.Config{}, map[string]any{
		"global": map[string]any{"scrape_interval": "1s"},
		"scrape_configs": []any{map[string]any{
			"job_name": "collector", "honor_labels": true,
			"static_configs": []any{map[string]any{"targets": []string{strings.TrimPrefix(collector.URL, "http://")}}},
		}},
	})
	requireAll(t, prometheus, s, "instance", "otel_scope_name", "otel_scope_version", "otel_scope_schema_url")
	require.Contains(t, collector.Metrics(), "# HELP etcd_snapshot_revision etcd's revision when the last snapshot was taken.")
	require.Len(t, prometheus.Query(`etcd_snapshot_revision{job="etcd-snapshot",cluster="prod-eu",node="n1"}`), 1)
}

// Prometheus' own OTLP receiver makes the same names of what it gets.
func TestOTLP(t *testing.T) {
	secured := secure(t)
	config := secured.Config
	config.Args = append(config.Args, "--web.enable-otlp-receiver")
	prometheus := promtest.Prometheus(t, config, map[string]any{})
	endpoint := secured.endpoint
	endpoint.URL = prometheus.URL + "/api/v1/otlp/v1/metrics"
	s := full(v1.MetricsSpec{Cluster: "prod-eu", OTLP: &endpoint})
	requireProbed(t, s)
	require.Empty(t, prometheus.Query(`{__name__=~".+"}`), "a probe leaves nothing")
	require.NoError(t, Report(t.Context(), s, Options{Version: "1.2.3"}))
	requireAll(t, prometheus, s)
	require.Len(t, prometheus.Query(`etcd_snapshot_revision{job="etcd-snapshot"}`), 1)

	endpoint.URL = prometheus.URL + "/nowhere"
	err := Report(t.Context(), s, Options{})
	require.ErrorContains(t, err, "metrics.otlp: ")
	require.ErrorContains(t, err, "404")
	require.ErrorContains(t, err, "check url")
}

// What goes wrong is told by its field, in time, and never with the secrets.
func TestRefusals(t *testing.T) {
	secured := secure(t)
	gateway := promtest.Pushgateway(t, secured.Config)
	silent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // or the server would not notice that the client went away
		<-r.Context().Done()
	}))
	defer silent.Close()
	var tries, leaked int
	var mu sync.Mutex
	busy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if tries++; tries < 3 {
			http.Error(w, "come again", http.StatusServiceUnavailable)
		}
	}))
	defer busy.Close()
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		leaked++
	}))
	defer elsewhere.Close()
	moved := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	defer moved.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	nobody := "http://" + closed.Addr().String()
	require.NoError(t, closed.Close())
	wrong, both := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(wrong, v1.MetricsFileToken), []byte("s3cr3t"), 0o600))
	for _, name := range []string{v1.MetricsFileToken, v1.MetricsFileUsername} {
		require.NoError(t, os.WriteFile(filepath.Join(both, name), []byte("s3cr3t"), 0o600))
	}
	at := func(url string, change ...func(*v1.MetricsEndpoint)) v1.MetricsSpec {
		e := v1.MetricsEndpoint{URL: url}
		for _, c := range change {
			c(&e)
		}
		return v1.MetricsSpec{Pushgateway: &e, OTLP: &e}
	}
	from := func(dir string) func(*v1.MetricsEndpoint) {
		return func(e *v1.MetricsEndpoint) { e.CredentialsDir = dir }
	}
	for name, c := range map[string]struct {
		spec v1.MetricsSpec
		want []string
	}{
		"nothing listens":         {at(nobody), []string{"metrics.pushgateway: ", "metrics.otlp: ", "connection refused", "check url"}},
		"no answer":               {at(silent.URL), []string{"metrics.pushgateway: ", "metrics.otlp: ", "given up after 1s"}},
		"unknown CA":              {at(gateway.URL), []string{"metrics.pushgateway: ", "caBundleFile"}},
		"no credentials":          {at(gateway.URL, func(e *v1.MetricsEndpoint) { e.EndpointSpec = secured.endpoint.EndpointSpec }), []string{"401", "check credentialsDir"}},
		"wrong credentials":       {at(gateway.URL, from(wrong), func(e *v1.MetricsEndpoint) { e.EndpointSpec = secured.endpoint.EndpointSpec }), []string{"401", "check credentialsDir"}},
		"no Secret":               {at(nobody, from("/nowhere")), []string{"credentialsDir: /nowhere holds neither"}},
		"two ways at once":        {at(nobody, from(both)), []string{"credentialsDir: ", "or both"}},
		"no CA file":              {at(nobody, func(e *v1.MetricsEndpoint) { e.CABundleFile = "/nowhere" }), []string{"caBundleFile: open /nowhere"}},
		"sent elsewhere":          {at(moved.URL, from(wrong)), []string{"307", "check url"}},
		"no folder":               {v1.MetricsSpec{Textfile: &v1.MetricsTextfile{Directory: "/nowhere"}}, []string{"metrics.textfile: ", "/nowhere", "directory must be there"}},
		"TLS where there is none": {at(strings.Replace(busy.URL, "http:", "https:", 1)), []string{"write url with http://"}},
	} {
		t.Run(name, func(t *testing.T) {
			begin := time.Now()
			err := Report(t.Context(), full(c.spec), Options{Budget: time.Second})
			for _, want := range c.want {
				require.ErrorContains(t, err, want)
			}
			require.NotContains(t, err.Error(), "s3cr3t")
			require.Less(t, time.Since(begin), 30*time.Second)

			// What a run would fail at, the doctor finds.
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("given up after 1s"))
			defer cancel()
			for _, r := range Receivers(&c.spec, "1.2.3") {
				err := r.Probe(ctx)
				require.ErrorContains(t, err, "spec.metrics."+r.Field+": ")
				require.NotContains(t, err.Error(), "s3cr3t")
			}
		})
	}
	mu.Lock()
	require.Zero(t, leaked, "credentials go nowhere else")
	mu.Unlock()
	t.Run("busy", func(t *testing.T) {
		spec := v1.MetricsSpec{Pushgateway: &v1.MetricsEndpoint{URL: busy.URL}}
		mu.Lock()
		tries = 0
		mu.Unlock()
		require.NoError(t, Report(t.Context(), full(spec), Options{Budget: promtest.Patience}))
		require.Equal(t, 3, tries)
	})
	t.Run("interrupted", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("terminated"))
		require.ErrorContains(t, Report(ctx, full(at(silent.URL)), Options{}), "terminated")
	})
	t.Run("credentials are wrong configuration", func(t *testing.T) {
		require.ErrorIs(t, Report(t.Context(), full(at(nobody, from(both))), Options{}), store.ErrConfig)
	})
}
