package charts

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"etcdsnapshot.dev/ci/parts"
)

// series are metrics at one moment: from a metric with its labels to its value.
type series map[string]float64

// now is the moment, in Unix seconds, at which the rules are judged, after the series have been there for as long.
const now = 3 * time.Hour

// ago is the Unix time that long before now, plus or minus nothing: it may be negative.
func ago(d time.Duration) float64 { return (now - d).Seconds() }

const day = 24 * time.Hour

// healthy is what kube-state-metrics tells of a policy that snapshots every six hours and has done so an hour ago.
func healthy() series {
	s := series{
		`etcd_snapshot_policy_info{schedule="0 */6 * * *"}`:                                              1,
		`etcd_snapshot_policy_created_timestamp_seconds`:                                                 ago(30 * day),
		`etcd_snapshot_schedule_interval_seconds`:                                                        6 * 3600,
		`etcd_snapshot_last_run_timestamp_seconds`:                                                       ago(time.Hour),
		`etcd_snapshot_last_success_timestamp_seconds`:                                                   ago(time.Hour),
		`etcd_snapshot_last_run_result{result="Succeeded"}`:                                              1,
		`etcd_snapshot_last_run_result{result="Partial"}`:                                                0,
		`etcd_snapshot_last_run_result{result="Failed"}`:                                                 0,
		`etcd_snapshot_consecutive_failures`:                                                             0,
		`etcd_snapshot_database_size_bytes`:                                                              80e6,
		`etcd_snapshot_previous_database_size_bytes`:                                                     81e6,
		`etcd_snapshot_revision`:                                                                         2000,
		`etcd_snapshot_previous_revision`:                                                                1000,
		`etcd_snapshot_certificate_expiration_timestamp_seconds{file="/etc/kubernetes/pki/etcd/ca.crt"}`: ago(-300 * day),
	}
	for name, backend := range map[string]string{"node": "hostPath", "offsite": "s3"} {
		d := `{destination="` + name + `"`
		s[`etcd_snapshot_destination_info`+d+`,backend="`+backend+`",required="true"}`] = 1
		s[`etcd_snapshot_destination_snapshots`+d+`}`] = 28
		s[`etcd_snapshot_destination_retention`+d+`}`] = 1
		s[`etcd_snapshot_destination_last_success_timestamp_seconds`+d+`}`] = ago(time.Hour)
		s[`etcd_snapshot_destination_last_prune_timestamp_seconds`+d+`}`] = ago(time.Hour)
	}
	for _, level := range []string{"checksum", "database"} {
		l := `{level="` + level + `"`
		s[`etcd_snapshot_last_verification_timestamp_seconds`+l+`}`] = ago(day)
		s[`etcd_snapshot_last_verification_passed_timestamp_seconds`+l+`}`] = ago(day)
		s[`etcd_snapshot_last_verification_result`+l+`,result="Passed"}`] = 1
		s[`etcd_snapshot_last_verification_result`+l+`,result="Failed"}`] = 0
	}
	return s
}

// but gives s with other values; those that are nil are left out.
func (s series) but(changes map[string]any) series {
	out := maps.Clone(s)
	for name, v := range changes {
		switch v := v.(type) {
		case nil:
			delete(out, name)
		case int:
			out[name] = float64(v)
		case float64:
			out[name] = v
		}
	}
	return out
}

func (s series) without(prefix string) series {
	out := maps.Clone(s)
	maps.DeleteFunc(out, func(name string, _ float64) bool { return strings.HasPrefix(name, prefix) })
	return out
}

// from gives s as one source tells it: a target of Prometheus.
func (s series) from(labels string) series {
	out := series{}
	for name, v := range s {
		if metric, rest, ok := strings.Cut(name, "{"); ok {
			out[metric+"{"+labels+","+rest] = v
		} else {
			out[name+"{"+labels+"}"] = v
		}
	}
	return out
}

const (
	etcdPolicy = `namespace="kube-system",policy="etcd"`
	ksmTarget  = etcdPolicy + `,job="kube-state-metrics",instance="10.0.0.1:8080",customresource_kind="EtcdSnapshotPolicy"`
)

// node is what a node's textfile says; it knows nothing of when the policy was made.
func (s series) node(name string) series {
	return s.without("etcd_snapshot_policy_created").from(etcdPolicy + `,job="node-exporter",instance="` + name + `:9100"`)
}

func join(all ...series) series {
	out := series{}
	for _, s := range all {
		maps.Copy(out, s)
	}
	return out
}

// ruleCase says which alerts fire, as "name label=value ..." beyond namespace, policy and severity.
type ruleCase struct {
	name   string
	given  series
	firing []string
}

func ruleCases() []ruleCase {
	ksm := func(s series) series { return s.from(ksmTarget) }
	failed := map[string]any{`etcd_snapshot_last_run_result{result="Succeeded"}`: 0, `etcd_snapshot_last_run_result{result="Failed"}`: 1}
	var offsiteLast = `etcd_snapshot_destination_last_success_timestamp_seconds{destination="offsite"}`
	var nodeLast = `etcd_snapshot_destination_last_success_timestamp_seconds{destination="node"}`
	var offsitePrune = `etcd_snapshot_destination_last_prune_timestamp_seconds{destination="offsite"}`
	fresh := healthy().without("etcd_snapshot_last_").without("etcd_snapshot_schedule_").without("etcd_snapshot_database_").
		without("etcd_snapshot_previous_").without("etcd_snapshot_revision").without("etcd_snapshot_destination_").without("etcd_snapshot_certificate")
	return []ruleCase{
		{"healthy", ksm(healthy()), nil},
		{"healthy by textfile", healthy().node("n1"), nil},
		{"healthy by Pushgateway", healthy().without("etcd_snapshot_policy_created").from(etcdPolicy + `,job="etcd-snapshot"`), nil},
		{"healthy by two sources", join(ksm(healthy()), healthy().node("n1")), nil},
		{"nothing at all", series{`up{job="prometheus"}`: 1}, []string{"EtcdSnapshotMetricsAbsent"}},

		{"late", ksm(healthy().but(map[string]any{`etcd_snapshot_last_success_timestamp_seconds`: ago(12*time.Hour + 10*time.Minute)})), []string{"EtcdSnapshotLate"}},
		{"almost late", ksm(healthy().but(map[string]any{`etcd_snapshot_last_success_timestamp_seconds`: ago(12*time.Hour - time.Minute)})), nil},
		{"late by its own schedule", ksm(healthy().but(map[string]any{`etcd_snapshot_schedule_interval_seconds`: 1200})), []string{"EtcdSnapshotLate", "EtcdSnapshotOffsiteCopyStale destination=offsite"}},
		{"not late by its own schedule", ksm(healthy().but(map[string]any{`etcd_snapshot_schedule_interval_seconds`: 3 * 86400, `etcd_snapshot_last_success_timestamp_seconds`: ago(5 * day)})), nil},
		{"no schedule, so never late", ksm(healthy().but(map[string]any{`etcd_snapshot_schedule_interval_seconds`: nil, `etcd_snapshot_last_success_timestamp_seconds`: ago(50 * day)})), nil},
		{"never succeeded", ksm(healthy().but(failed).but(map[string]any{`etcd_snapshot_last_success_timestamp_seconds`: nil})), []string{"EtcdSnapshotLate", "EtcdSnapshotFailed"}},
		{"an old textfile of another node", join(healthy().node("n1"), healthy().but(failed).but(map[string]any{
			`etcd_snapshot_last_run_timestamp_seconds`: ago(5 * day), `etcd_snapshot_last_success_timestamp_seconds`: ago(6 * day), offsiteLast: ago(6 * day),
			`etcd_snapshot_revision`: 5, `etcd_snapshot_previous_revision`: 5, `etcd_snapshot_database_size_bytes`: 10,
		}).node("n2")), nil},
		{"each node with snapshots of its own", join(
			healthy().from(etcdPolicy+`,node="n1",job="node-exporter",instance="n1:9100"`),
			healthy().but(failed).from(etcdPolicy+`,node="n2",job="node-exporter",instance="n2:9100"`)), []string{"EtcdSnapshotFailed node=n2"}},

		{"never ran", ksm(fresh), []string{"EtcdSnapshotNeverRan", "EtcdSnapshotNeverVerified"}},
		{"installed a day ago", ksm(fresh.but(map[string]any{`etcd_snapshot_policy_created_timestamp_seconds`: ago(day)})), nil},

		{"failed", ksm(healthy().but(failed)), []string{"EtcdSnapshotFailed"}},
		{"partial", ksm(healthy().but(map[string]any{`etcd_snapshot_last_run_result{result="Succeeded"}`: 0, `etcd_snapshot_last_run_result{result="Partial"}`: 1})), []string{"EtcdSnapshotPartial"}},

		{"off-site copy stale", ksm(healthy().but(map[string]any{offsiteLast: ago(13 * time.Hour)})), []string{"EtcdSnapshotOffsiteCopyStale destination=offsite"}},
		{"off-site copy never made", ksm(healthy().but(map[string]any{offsiteLast: nil})), []string{"EtcdSnapshotOffsiteCopyStale destination=offsite"}},
		{"copy on the node stale", ksm(healthy().but(map[string]any{nodeLast: ago(13 * time.Hour)})), nil},

		{"verification failed", ksm(healthy().but(map[string]any{
			`etcd_snapshot_last_verification_result{level="database",result="Failed"}`: 1, `etcd_snapshot_last_verification_result{level="database",result="Passed"}`: 0,
		})), []string{"EtcdSnapshotVerificationFailed level=database"}},
		{"verification failed on another node, and passed since", join(healthy().node("n1"), healthy().but(map[string]any{
			`etcd_snapshot_last_verification_result{level="database",result="Failed"}`: 1, `etcd_snapshot_last_verification_timestamp_seconds{level="database"}`: ago(2 * day),
		}).node("n2")), nil},
		{"verification stale", ksm(healthy().but(map[string]any{`etcd_snapshot_last_verification_passed_timestamp_seconds{level="database"}`: ago(9 * day)})), []string{"EtcdSnapshotVerificationStale"}},
		{"a drill proves the database, too", ksm(healthy().but(map[string]any{
			`etcd_snapshot_last_verification_passed_timestamp_seconds{level="database"}`: ago(9 * day), `etcd_snapshot_last_verification_passed_timestamp_seconds{level="restore"}`: ago(2 * day),
		})), nil},
		{"never verified", ksm(healthy().but(map[string]any{`etcd_snapshot_last_verification_passed_timestamp_seconds{level="database"}`: nil})), []string{"EtcdSnapshotNeverVerified"}},
		{"not verified yet", ksm(healthy().but(map[string]any{
			`etcd_snapshot_last_verification_passed_timestamp_seconds{level="database"}`: nil, `etcd_snapshot_policy_created_timestamp_seconds`: ago(7 * day),
		})), nil},

		{"shrunk", ksm(healthy().but(map[string]any{`etcd_snapshot_database_size_bytes`: 40e6})), []string{"EtcdSnapshotDatabaseShrunk"}},
		{"shrunk a little", ksm(healthy().but(map[string]any{`etcd_snapshot_database_size_bytes`: 41e6})), nil},
		{"revision stands still", ksm(healthy().but(map[string]any{`etcd_snapshot_revision`: 1000})), []string{"EtcdSnapshotRevisionNotMoving"}},
		{"revision goes back", ksm(healthy().but(map[string]any{`etcd_snapshot_revision`: 900})), []string{"EtcdSnapshotRevisionNotMoving"}},
		{"certificate expires", ksm(healthy().but(map[string]any{`etcd_snapshot_certificate_expiration_timestamp_seconds{file="/etc/kubernetes/pki/etcd/ca.crt"}`: ago(-13 * day)})),
			[]string{"EtcdSnapshotCertificateExpiresSoon file=/etc/kubernetes/pki/etcd/ca.crt"}},

		{"not pruned", ksm(healthy().but(map[string]any{offsitePrune: ago(26 * time.Hour)})), []string{"EtcdSnapshotNotPruned destination=offsite"}},
		{"never pruned", ksm(healthy().but(map[string]any{offsitePrune: nil})), []string{"EtcdSnapshotNotPruned destination=offsite"}},
		{"not pruned, but nothing new either", ksm(healthy().but(map[string]any{offsitePrune: ago(26 * time.Hour), offsiteLast: ago(26 * time.Hour)})), []string{"EtcdSnapshotOffsiteCopyStale destination=offsite"}},
		{"growing", ksm(healthy().but(map[string]any{
			`etcd_snapshot_destination_snapshots{destination="offsite"}`: 501, `etcd_snapshot_destination_retention{destination="offsite"}`: 0, offsitePrune: nil,
		})), []string{"EtcdSnapshotStoreGrowing destination=offsite"}},
		{"many, as retention wants", ksm(healthy().but(map[string]any{`etcd_snapshot_destination_snapshots{destination="offsite"}`: 501})), nil},
	}
}

func severities(t testing.TB) map[string]string {
	out := map[string]string{}
	for _, a := range alertSource(t) {
		out[a.Alert] = a.Severity
	}
	return out
}

// The rules, judged by Prometheus' own tool: for each case, exactly the alerts that are named fire.
func TestRulesFire(t *testing.T) {
	t.Parallel()
	severity := severities(t)
	type sample struct {
		Labels string  `json:"labels"`
		Value  float64 `json:"value"`
	}
	type exprTest struct {
		Expr    string   `json:"expr"`
		Eval    string   `json:"eval_time"`
		Samples []sample `json:"exp_samples"`
	}
	var tests []map[string]any
	fired, quiet := map[string]bool{}, map[string]bool{}
	for _, c := range ruleCases() {
		var in []map[string]string
		for _, name := range slices.Sorted(maps.Keys(c.given)) {
			in = append(in, map[string]string{"series": name, "values": fmt.Sprintf("%gx%d", c.given[name], int(now.Minutes()))})
		}
		want := []sample{}
		for _, alert := range c.firing {
			words := strings.Fields(alert)
			fired[words[0]] = true
			labels := fmt.Sprintf(`ALERTS{alertname=%q,alertstate="firing",severity=%q`, words[0], severity[words[0]])
			if words[0] != "EtcdSnapshotMetricsAbsent" {
				labels += "," + etcdPolicy
			}
			for _, w := range words[1:] {
				k, v, _ := strings.Cut(w, "=")
				labels += fmt.Sprintf(",%s=%q", k, v)
			}
			want = append(want, sample{labels + "}", 1})
		}
		for name := range severity {
			quiet[name] = quiet[name] || !slices.ContainsFunc(c.firing, func(a string) bool { return strings.HasPrefix(a+" ", name+" ") })
		}
		tests = append(tests, map[string]any{
			"name": c.name, "interval": "1m", "input_series": in,
			"promql_expr_test": []exprTest{{`ALERTS{alertstate="firing"}`, "3h", want}},
		})
	}
	for name := range severity {
		require.True(t, fired[name], "no case in which %s fires", name)
		require.True(t, quiet[name], "no case in which %s does not fire", name)
	}
	promtoolTest(t, tests)
}

// What a person reads: the texts, with what Prometheus puts into them.
func TestAlertTexts(t *testing.T) {
	t.Parallel()
	var in []map[string]string
	for name, v := range healthy().but(map[string]any{`etcd_snapshot_last_success_timestamp_seconds`: ago(13 * time.Hour)}).from(ksmTarget) {
		in = append(in, map[string]string{"series": name, "values": fmt.Sprintf("%gx%d", v, int(now.Minutes()))})
	}
	promtoolTest(t, []map[string]any{{
		"interval": "1m", "input_series": in,
		"alert_rule_test": []map[string]any{{
			"alertname": "EtcdSnapshotLate", "eval_time": "3h",
			"exp_alerts": []map[string]any{{
				"exp_labels": map[string]string{"namespace": "kube-system", "policy": "etcd", "severity": "critical"},
				"exp_annotations": map[string]string{
					"summary": "No successful etcd snapshot within twice the schedule's period",
					"description": "kube-system/etcd reached every required destination 13h 0m 0s ago for the last time. " +
						"What changed in the cluster since then would be lost.",
					"runbook_url": "https://etcdsnapshot.dev/docs/runbooks/EtcdSnapshotLate.md",
				},
			}},
		}},
	}})
}

func promtoolTest(t *testing.T, tests []map[string]any) {
	t.Helper()
	rules, err := filepath.Abs(plainRules)
	require.NoError(t, err)
	data, err := yaml.Marshal(map[string]any{"rule_files": []string{rules}, "evaluation_interval": "1m", "tests": tests})
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "test.yaml")
	require.NoError(t, os.WriteFile(file, data, 0o600))
	promtool(t, "test", "rules", file)
}

func promtool(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), filepath.Join(parts.Require(t, "prometheus"), "promtool"), args...).CombinedOutput()
	require.NoError(t, err, "promtool %s:\n%s", strings.Join(args, " "), out)
	return string(out)
}
