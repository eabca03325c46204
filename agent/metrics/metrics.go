// Package metrics hands over what a policy's status says as metrics, to where the policy's spec.metrics says: a file for
// node-exporter, a Pushgateway, an OTLP receiver. They are the ones that kube-state-metrics makes of the same status as
// the chart configures it, name for name, for clusters that have none.
package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

// Source is what metrics are made of.
type Source struct {
	Policy *v1.EtcdSnapshotPolicy
	// Status of the policy after the run.
	Status *v1.EtcdSnapshotPolicyStatus
	// Complete says that Status has what earlier runs left, too, as the API server keeps it. What it does not have then
	// is not there any more; otherwise what was handed over before stays.
	Complete bool
	// Destinations are the names of all that the policy has.
	Destinations []string
	// Node that the run was on.
	Node string
}

// identity are the labels of every metric.
func (s *Source) identity() prometheus.Labels {
	labels := prometheus.Labels{"namespace": s.Policy.Namespace, "policy": s.Policy.Name}
	if m := s.Policy.Spec.Metrics; m != nil {
		if m.Cluster != "" {
			labels["cluster"] = m.Cluster
		}
		if m.PerNode {
			labels["node"] = s.Node
		}
	}
	return labels
}

// registry gives the metrics, each with labels besides its own.
func (s *Source) registry(labels prometheus.Labels) prometheus.Gatherer {
	r := prometheus.NewPedanticRegistry()
	prometheus.WrapRegistererWith(labels, r).MustRegister(s)
	return r
}

// Describe is prometheus.Collector's.
func (s *Source) Describe(ch chan<- *prometheus.Desc) {
	for _, f := range families {
		ch <- f.desc
	}
}

// Collect is prometheus.Collector's.
func (s *Source) Collect(ch chan<- prometheus.Metric) {
	for _, f := range families {
		f.collect(s, func(value float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(f.desc, prometheus.GaugeValue, value, labels...)
		})
	}
}

// add gives one series its value. The labels are those of the family, in its order.
type add func(value float64, labels ...string)

type family struct {
	desc    *prometheus.Desc
	collect func(s *Source, add add)
}

func of(name, help string, collect func(s *Source, add add), labels ...string) family {
	return family{prometheus.NewDesc("etcd_snapshot_"+name, help, labels, nil), collect}
}

// one is a metric with one series, left out where the status does not have it.
func one[T int32 | int64](name, help string, field func(*v1.EtcdSnapshotPolicyStatus) T) family {
	return of(name, help, func(s *Source, add add) {
		if v := field(s.Status); v != 0 {
			add(float64(v))
		}
	})
}

func when(name, help string, field func(*v1.EtcdSnapshotPolicyStatus) *metav1.Time) family {
	return of(name, help, func(s *Source, add add) { at(field(s.Status), add) })
}

// at adds a time, if there is one.
func at(t *metav1.Time, add add, labels ...string) {
	if t != nil {
		add(float64(t.Unix()), labels...)
	}
}

// states adds 1 for the state that is, and 0 for the others.
func states(is string, all []string, add add, labels ...string) {
	if is == "" {
		return
	}
	for _, state := range all {
		value := 0.0
		if state == is {
			value = 1
		}
		add(value, append([]string{state}, labels...)...)
	}
}

func perDestination(name, help string, collect func(s *Source, d *v1.PolicyDestinationStatus, add add), labels ...string) family {
	return of("destination_"+name, help, func(s *Source, add add) {
		for i := range s.Status.Destinations {
			d := &s.Status.Destinations[i]
			collect(s, d, func(value float64, more ...string) {
				add(value, append([]string{d.Name}, more...)...)
			})
		}
	}, append([]string{"destination"}, labels...)...)
}

func perLevel(name, help string, collect func(v *v1.PolicyVerificationStatus, add add), labels ...string) family {
	return of("last_"+name, help, func(s *Source, add add) {
		for i := range s.Status.Verifications {
			collect(&s.Status.Verifications[i], add)
		}
	}, append(labels, "level")...)
}

// families are all metrics, in the order of the chart's configuration of kube-state-metrics; a test compares the two.
var families = []family{
	of("policy_info", "What does not change from run to run, as labels; the value is 1.", func(s *Source, add add) {
		if s.Complete || s.Status.LastRunTime != nil {
			add(1, s.Status.Schedule, s.Policy.Spec.TimeZone, s.Status.LastSnapshot)
		}
	}, "schedule", "time_zone", "last_snapshot"),
	of("policy_created_timestamp_seconds", "When the policy was made.", func(s *Source, add add) {
		if t := s.Policy.CreationTimestamp; !t.IsZero() {
			at(&t, add)
		}
	}),
	one("schedule_interval_seconds", "Longest time between two scheduled runs.", func(s *v1.EtcdSnapshotPolicyStatus) int64 { return s.ScheduleIntervalSeconds }),
	when("last_run_timestamp_seconds", "When the last run began.", func(s *v1.EtcdSnapshotPolicyStatus) *metav1.Time { return s.LastRunTime }),
	when("last_success_timestamp_seconds", "When the last snapshot was taken that reached every required destination.", func(s *v1.EtcdSnapshotPolicyStatus) *metav1.Time { return s.LastSuccessTime }),
	of("last_run_result", "How the last run ended: 1 for the result that it had, 0 for the others.", func(s *Source, add add) {
		states(s.Status.LastResult, []string{v1.ResultSucceeded, v1.ResultPartial, v1.ResultFailed}, add)
	}, "result"),
	of("consecutive_failures", "Runs in a row that did not reach every required destination.", func(s *Source, add add) {
		if s.Complete || s.Status.LastResult == v1.ResultSucceeded { // otherwise it is not known how many there were before
			add(float64(s.Status.ConsecutiveFailures))
		}
	}),
	of("last_run_duration_seconds", "How long the last run took.", func(s *Source, add add) {
		if seconds, err := strconv.ParseFloat(s.Status.LastDurationSeconds, 64); err == nil {
			add(seconds)
		}
	}),
	of("snapshots", "Snapshots that are in at least one destination.", func(s *Source, add add) {
		if s.Status.Snapshots != nil {
			add(float64(*s.Status.Snapshots))
		}
	}),
	one("database_size_bytes", "Size of etcd's database in the last snapshot.", func(s *v1.EtcdSnapshotPolicyStatus) int64 { return s.DatabaseBytes }),
	one("previous_database_size_bytes", "Size of etcd's database in the snapshot before the last one.", func(s *v1.EtcdSnapshotPolicyStatus) int64 { return s.PreviousDatabaseBytes }),
	one("stored_size_bytes", "Size of the last snapshot as stored.", func(s *v1.EtcdSnapshotPolicyStatus) int64 { return s.StoredBytes }),
	one("revision", "etcd's revision when the last snapshot was taken.", func(s *v1.EtcdSnapshotPolicyStatus) int64 { return s.Revision }),
	one("previous_revision", "etcd's revision when the snapshot before the last one was taken.", func(s *v1.EtcdSnapshotPolicyStatus) int64 { return s.PreviousRevision }),
	of("certificate_expiration_timestamp_seconds", "When a certificate expires that etcd is reached with.", func(s *Source, add add) {
		for _, c := range s.Status.Certificates {
			at(&c.NotAfter, add, c.File)
		}
	}, "file"),
	perDestination("info", "What kind of destination it is, as labels; the value is 1.", func(_ *Source, d *v1.PolicyDestinationStatus, add add) {
		if d.Required != nil {
			add(1, d.Backend, strconv.FormatBool(*d.Required))
		}
	}, "backend", "required"),
	perDestination("snapshots", "Snapshots in the destination.", func(s *Source, d *v1.PolicyDestinationStatus, add add) {
		if s.Complete || d.Snapshots > 0 { // otherwise it is not known whether anybody looked
			add(float64(d.Snapshots))
		}
	}),
	perDestination("stored_bytes", "Size of the snapshots in the destination, as stored.", func(s *Source, d *v1.PolicyDestinationStatus, add add) {
		if s.Complete || d.Snapshots > 0 {
			add(float64(d.Bytes))
		}
	}),
	perDestination("last_success_timestamp_seconds", "When the last snapshot was taken that is stored and checked there.", func(_ *Source, d *v1.PolicyDestinationStatus, add add) { at(d.LastSuccessTime, add) }),
	perDestination("last_prune_timestamp_seconds", "When retention was last applied there without an error.", func(_ *Source, d *v1.PolicyDestinationStatus, add add) { at(d.LastPruneTime, add) }),
	perDestination("last_pruned_snapshots", "Snapshots that retention removed then.", func(_ *Source, d *v1.PolicyDestinationStatus, add add) {
		if d.LastPruned != nil {
			add(float64(*d.LastPruned))
		}
	}),
	perDestination("retention", "Whether a retention rule is set; 0 keeps everything.", func(_ *Source, d *v1.PolicyDestinationStatus, add add) {
		switch {
		case d.Retention == nil:
		case *d.Retention:
			add(1)
		default:
			add(0)
		}
	}),
	perLevel("verification_timestamp_seconds", "When a verification of this level was last made.", func(v *v1.PolicyVerificationStatus, add add) { at(&v.Time, add, v.Level) }),
	perLevel("verification_result", "How the last verification of this level ended: 1 for the result that it had, 0 for the other.", func(v *v1.PolicyVerificationStatus, add add) {
		states(v.Result, []string{v1.VerificationPassed, v1.VerificationFailed}, add, v.Level)
	}, "result"),
	perLevel("verification_passed_timestamp_seconds", "When a verification of this level last passed.", func(v *v1.PolicyVerificationStatus, add add) { at(v.PassedTime, add, v.Level) }),
	perLevel("verified_snapshot_timestamp_seconds", "When the newest snapshot was taken that passed a verification of this level.", func(v *v1.PolicyVerificationStatus, add add) { at(v.PassedSnapshotTime, add, v.Level) }),
}

// DefaultBudget is how long Report may take.
const DefaultBudget = 10 * time.Second
