package charts

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/chart"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// Files for those who do not install the chart's monitoring objects, made of the same sources.
const (
	plainRules  = "../docs/monitoring/rules.yaml"
	stackValues = "../docs/monitoring/kube-prometheus-stack-values.yaml"
	runbooks    = "../docs/runbooks"
	guide       = "../docs/monitoring.md"
)

const generatedNote = "# Made from charts/etcd-snapshot/monitoring by `go test ./charts -run Monitoring -update`. DO NOT EDIT.\n"

type alertRule struct {
	Alert          string            `json:"alert"`
	Summary        string            `json:"summary"`
	Severity       string            `json:"severity"`
	For            string            `json:"for"`
	Threshold      *float64          `json:"threshold"`
	ThresholdMeans string            `json:"thresholdMeans"`
	Expr           string            `json:"expr"`
	Labels         map[string]string `json:"labels"`
	Annotations    map[string]string `json:"annotations"`
}

// alertSource reads the source of all alerts.
func alertSource(t testing.TB) []alertRule {
	t.Helper()
	var file struct{ Alerts []alertRule }
	require.NoError(t, yaml.Unmarshal(chartFile(t, "monitoring/alerts.yaml"), &file))
	require.NotEmpty(t, file.Alerts)
	return file.Alerts
}

func chartFile(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(chartDir, filepath.FromSlash(name)))
	require.NoError(t, err)
	return data
}

// checkGenerated compares a file with what it is made from.
func checkGenerated(t *testing.T, file, want string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
	}
	got, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, want, string(got), "run go test ./charts -run Monitoring -update")
}

// The plain rule file is the chart's rules, for every policy.
func TestMonitoringPlainRules(t *testing.T) {
	c := loadChart(t)
	c.Templates = append(c.Templates, &chart.File{Name: "templates/plain-rules.yaml", Data: []byte(
		`{{ include "etcd-snapshot.alertRules" (dict "root" . "selector" "" "everything" true) }}`)})
	rel, err := rendering{}.action().Run(c, map[string]any{"crds": map[string]any{"enabled": false}})
	require.NoError(t, err)
	_, text, found := strings.Cut(rel.Manifest, "templates/plain-rules.yaml\n")
	require.True(t, found)
	text, _, _ = strings.Cut(text, "\n---")
	var group map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(text), &group))
	group["name"] = "etcd-snapshot"
	data, err := yaml.Marshal(map[string]any{"groups": []any{group}})
	require.NoError(t, err)
	checkGenerated(t, plainRules, generatedNote+string(data))
	require.NotContains(t, string(data), "$SELECTOR")
	require.NotRegexp(t, `\$[A-Z]`, string(data), "a placeholder was not replaced")
	promtool(t, "check", "rules", "--lint=all", "--lint-fatal", plainRules)
}

func prometheusRule(t testing.TB, o *objects) *unstructured.Unstructured {
	t.Helper()
	for _, u := range o.others {
		if u.GetKind() == "PrometheusRule" {
			return u
		}
	}
	require.Fail(t, "no PrometheusRule")
	return nil
}

func rulesOf(t testing.TB, u *unstructured.Unstructured) map[string]alertRule {
	t.Helper()
	data, err := json.Marshal(u.Object["spec"])
	require.NoError(t, err)
	var spec struct{ Groups []struct{ Rules []alertRule } }
	require.NoError(t, json.Unmarshal(data, &spec))
	require.Len(t, spec.Groups, 1)
	out := map[string]alertRule{}
	for _, r := range spec.Groups[0].Rules {
		out[r.Alert] = r
	}
	return out
}

// checkRules has promtool read the groups of a PrometheusRule.
func checkRules(t *testing.T, u *unstructured.Unstructured) {
	t.Helper()
	data, err := yaml.Marshal(u.Object["spec"])
	require.NoError(t, err)
	require.NotRegexp(t, `\$[A-Z]`, string(data), "a placeholder was not replaced")
	file := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(file, data, 0o600))
	promtool(t, "check", "rules", "--lint=all", "--lint-fatal", file)
}

func TestPrometheusRule(t *testing.T) {
	t.Parallel()
	o := render(t, rendering{set: []string{"monitoring.prometheusRule.enabled=true", "monitoring.prometheusRule.labels.release=stack"}})
	u := prometheusRule(t, o)
	require.Equal(t, "stack", u.GetLabels()["release"])
	require.Equal(t, "etcd-snapshot", u.GetLabels()["app.kubernetes.io/part-of"])
	checkRules(t, u)
	rules := rulesOf(t, u)
	for _, a := range alertSource(t) {
		if a.Alert == "EtcdSnapshotNeverVerified" {
			require.NotContains(t, rules, a.Alert, "no verification is scheduled")
			continue
		}
		require.Contains(t, rules, a.Alert)
		require.Contains(t, rules[a.Alert].Expr, `namespace="kube-system",policy="etcd-snapshot"`)
		require.Equal(t, a.Severity, rules[a.Alert].Labels["severity"])
	}
	scheduled := render(t, rendering{set: []string{"monitoring.prometheusRule.enabled=true", "verification.schedule=@daily"}})
	require.Contains(t, rulesOf(t, prometheusRule(t, scheduled)), "EtcdSnapshotNeverVerified")
}

func TestPrometheusRuleSettings(t *testing.T) {
	t.Parallel()
	o := render(t, rendering{values: `
monitoring:
  prometheusRule:
    enabled: true
    runbookURL: https://wiki.example/etcd/
    alerts:
      EtcdSnapshotLate: {threshold: 3, severity: page, for: 1h, labels: {team: a}}
      EtcdSnapshotDatabaseShrunk: {threshold: 0.25}
      EtcdSnapshotCertificateExpiresSoon: {threshold: 2592000}
      EtcdSnapshotStoreGrowing: {threshold: 0}
      EtcdSnapshotPartial: {enabled: false}
      EtcdSnapshotNeverVerified: {enabled: true}
`})
	u := prometheusRule(t, o)
	checkRules(t, u)
	rules := rulesOf(t, u)
	late := rules["EtcdSnapshotLate"]
	require.Contains(t, late.Expr, "> 3 * ")
	require.Equal(t, map[string]string{"severity": "page", "team": "a"}, late.Labels)
	require.Equal(t, "1h", late.For)
	require.Equal(t, "https://wiki.example/etcd/EtcdSnapshotLate.md", late.Annotations["runbook_url"])
	require.Contains(t, rules["EtcdSnapshotDatabaseShrunk"].Expr, "< 0.25")
	require.Contains(t, rules["EtcdSnapshotCertificateExpiresSoon"].Expr, "< 2592000", "no exponent")
	require.Contains(t, rules["EtcdSnapshotStoreGrowing"].Expr, "> 0", "0 is a threshold, too")
	require.NotContains(t, rules, "EtcdSnapshotPartial")
	require.Contains(t, rules, "EtcdSnapshotNeverVerified")
}

// With every alert turned off there is no empty PrometheusRule.
func TestPrometheusRuleWithoutAlerts(t *testing.T) {
	t.Parallel()
	off := map[string]any{}
	for _, a := range alertSource(t) {
		off[a.Alert] = map[string]any{"enabled": false}
	}
	data, err := json.Marshal(map[string]any{"monitoring": map[string]any{"prometheusRule": map[string]any{"enabled": true, "alerts": off}}})
	require.NoError(t, err)
	for _, u := range render(t, rendering{values: string(data)}).others {
		require.NotEqual(t, "PrometheusRule", u.GetKind())
	}
}

// By default nothing is installed that needs another program's CRDs, or that nobody asked for.
func TestMonitoringIsOptIn(t *testing.T) {
	t.Parallel()
	o := render(t, rendering{})
	require.Empty(t, o.others)
	require.Len(t, o.configMaps, 1, "the policy alone")
}

func TestKubeStateMetricsMayRead(t *testing.T) {
	t.Parallel()
	o := render(t, rendering{set: []string{"monitoring.kubeStateMetrics.serviceAccount.name=ksm", "monitoring.kubeStateMetrics.serviceAccount.namespace=monitoring"}})
	for _, b := range o.clusterRoleBindings {
		if b.Subjects[0].Name == "ksm" {
			require.Equal(t, "monitoring", b.Subjects[0].Namespace)
			for _, r := range o.clusterRoles {
				if r.Name == b.RoleRef.Name {
					for _, rule := range r.Rules {
						require.Equal(t, []string{"list", "watch"}, rule.Verbs, "it writes nothing")
					}
					return
				}
			}
		}
	}
	require.Fail(t, "no ClusterRole is bound to ksm")
}

// The ConfigMap is the file, and the values for kube-prometheus-stack hold the same.
func TestMonitoringKubeStateMetricsConfig(t *testing.T) {
	source := chartFile(t, "monitoring/kube-state-metrics.yaml")
	o := render(t, rendering{set: []string{"monitoring.kubeStateMetrics.configMap.enabled=true"}})
	require.Equal(t, plain(t, source), plain(t, []byte(o.configMap(t, "-kube-state-metrics").Data["config.yaml"])))
	config := plain(t, source)
	data, err := yaml.Marshal(map[string]any{"kube-state-metrics": map[string]any{
		"customResourceState": map[string]any{"enabled": true, "config": config},
		"prometheus":          map[string]any{"monitor": map[string]any{"honorLabels": true}},
		"rbac": map[string]any{"extraRules": []any{
			map[string]any{"apiGroups": []string{"apiextensions.k8s.io"}, "resources": []string{"customresourcedefinitions"}, "verbs": []string{"list", "watch"}},
			map[string]any{"apiGroups": []string{"etcdsnapshot.dev"}, "resources": []string{"etcdsnapshotpolicies", "etcdsnapshots"}, "verbs": []string{"list", "watch"}},
		}},
	}})
	require.NoError(t, err)
	checkGenerated(t, stackValues, generatedNote+"# Values of kube-prometheus-stack: helm upgrade --reuse-values -f FILE.\n"+string(data))
}

// The tables in the guide list every metric and every alert, each alert with its runbook.
func TestMonitoringGuide(t *testing.T) {
	text, err := os.ReadFile(guide)
	require.NoError(t, err)
	page := replaceTable(t, string(text), "alerts", alertsTable(t))
	page = replaceTable(t, page, "metrics", metricsTable(t))
	checkGenerated(t, guide, page)
	pages, err := filepath.Glob(filepath.Join(runbooks, "EtcdSnapshot*.md"))
	require.NoError(t, err)
	require.Len(t, pages, len(alertSource(t)), "one runbook an alert")
	for _, a := range alertSource(t) {
		text, err := os.ReadFile(filepath.Join(runbooks, a.Alert+".md"))
		require.NoError(t, err)
		require.Contains(t, string(text), "# "+a.Alert+"\n")
		for _, heading := range []string{"## Meaning", "## Impact", "## Diagnosis", "## Fix"} {
			require.Equal(t, 1, strings.Count(string(text), "\n"+heading+"\n"), "%s: %s", a.Alert, heading)
		}
		require.Contains(t, string(text), "```sh\n", "%s: commands to diagnose with", a.Alert)
	}
}

func replaceTable(t testing.TB, page, name, table string) string {
	t.Helper()
	begin, end := "<!-- begin of generated table: "+name+" -->\n", "<!-- end of generated table -->"
	head, rest, ok := strings.Cut(page, begin)
	_, tail, ok2 := strings.Cut(rest, end)
	require.True(t, ok && ok2, "no place for the table of %s", name)
	return head + begin + "\n" + table + "\n" + end + tail
}

func alertsTable(t testing.TB) string {
	var b strings.Builder
	b.WriteString("| alert | severity | fires when | threshold |\n|---|---|---|---|\n")
	for _, a := range alertSource(t) {
		threshold := "-"
		if a.Threshold != nil {
			number, err := json.Marshal(*a.Threshold)
			require.NoError(t, err)
			threshold = string(number) + " (" + a.ThresholdMeans + ")"
		}
		b.WriteString("| [`" + a.Alert + "`](runbooks/" + a.Alert + ".md) | " + a.Severity + " | " + a.Summary + " | " + threshold + " |\n")
	}
	return b.String()
}

// metric is one that kube-state-metrics is told to make.
type metric struct{ name, kind, help, labels string }

func metrics(t testing.TB) []metric {
	t.Helper()
	var config struct {
		Spec struct {
			Resources []struct {
				MetricNamePrefix string
				LabelsFromPath   map[string][]string
				GroupVersionKind struct{ Kind string }
				Metrics          []struct {
					Name, Help string
					Each       map[string]json.RawMessage
				}
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(chartFile(t, "monitoring/kube-state-metrics.yaml"), &config))
	var out []metric
	for _, r := range config.Spec.Resources {
		for _, m := range r.Metrics {
			var labels []string
			for kind, raw := range m.Each {
				var detail struct {
					LabelsFromPath map[string][]string
					LabelName      string
				}
				if kind == "type" {
					continue
				}
				require.NoError(t, json.Unmarshal(raw, &detail))
				if detail.LabelName != "" {
					labels = append(labels, "`"+detail.LabelName+"`")
				}
				for _, name := range sorted(detail.LabelsFromPath) {
					labels = append(labels, "`"+name+"`")
				}
			}
			if _, ok := r.LabelsFromPath["snapshot"]; ok {
				labels = append([]string{"`snapshot`"}, labels...)
			}
			require.NotEmpty(t, m.Help, m.Name)
			out = append(out, metric{r.MetricNamePrefix + "_" + m.Name, r.GroupVersionKind.Kind, m.Help, strings.Join(labels, ", ")})
		}
	}
	return out
}

func metricsTable(t testing.TB) string {
	var b strings.Builder
	b.WriteString("| metric | labels besides `namespace` and `policy` | what it is |\n|---|---|---|\n")
	for _, m := range metrics(t) {
		b.WriteString("| `" + m.name + "` | " + m.labels + " | " + m.help + " |\n")
	}
	return b.String()
}

// Alerts and dashboard use metrics that are made.
func TestMonitoringUsesKnownMetrics(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, m := range metrics(t) {
		known[m.name] = true
	}
	used := regexp.MustCompile(`etcd_snapshot_[a-z_]+`)
	for _, file := range []string{"monitoring/alerts.yaml", "monitoring/dashboard.json"} {
		found := used.FindAllString(string(chartFile(t, file)), -1)
		require.NotEmpty(t, found)
		for _, name := range found {
			require.True(t, known[name], "%s uses %s, which nothing makes", file, name)
		}
	}
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
