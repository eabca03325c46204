// Package safety judges by a policy's status whether a cluster could be brought back today. It asks what the chart's alerts
// ask, with their thresholds.
package safety

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

// Severity is how bad it is. The values are the exit codes of Nagios' plugins.
type Severity int

// Severities.
const (
	OK Severity = iota
	Warning
	Critical
)

func (s Severity) String() string { return [...]string{"OK", "WARNING", "CRITICAL"}[s] }

// Finding is one thing that is not as it should be.
type Finding struct {
	Severity Severity
	Text     string
}

// Thresholds of the alerts of the same names.
const (
	latePeriods       = 2
	neverRan          = 90000 * time.Second
	verificationStale = 691200 * time.Second
	certificateSoon   = 1209600 * time.Second
)

// Judge gives what is wrong, the worst first; nothing if all is well. created is when the policy was made.
func Judge(s *v1.EtcdSnapshotPolicyStatus, created, now time.Time) []Finding {
	var found []Finding
	add := func(severity Severity, format string, args ...any) {
		found = append(found, Finding{severity, fmt.Sprintf(format, args...)})
	}
	if s.LastRunTime == nil {
		if now.Sub(created) > neverRan {
			add(Critical, "no run was ever recorded")
		} else {
			add(Warning, "no run was recorded yet")
		}
		return found
	}
	limit := latePeriods * time.Duration(s.ScheduleIntervalSeconds) * time.Second
	late := func(t *metav1.Time) bool {
		since := created
		if t != nil {
			since = t.Time
		}
		return limit > 0 && now.Sub(since) > limit
	}
	if late(s.LastSuccessTime) {
		add(Critical, "no snapshot reached every required destination within %d periods of the schedule", latePeriods)
	}
	switch s.LastResult {
	case v1.ResultFailed:
		add(Warning, "the last run failed (%d in a row did)", s.ConsecutiveFailures)
	case v1.ResultPartial:
		add(Warning, "the last snapshot did not reach every required destination")
	}
	for _, d := range s.Destinations {
		switch {
		case d.Backend != "" && d.Backend != "hostPath" && late(d.LastSuccessTime):
			add(Critical, "destination %s got no copy within %d periods of the schedule", d.Name, latePeriods)
		case d.Message != "":
			add(Warning, "destination %s: %s", d.Name, d.Message)
		}
	}
	for _, v := range s.Verifications {
		if v.Result == v1.VerificationFailed {
			add(Critical, "verification at level %s failed: %s", v.Level, v.Snapshot)
		}
	}
	if p := Proven(s); p != nil && now.Sub(p.PassedTime.Time) > verificationStale {
		add(Warning, "no snapshot was proven to open as a database for more than %d days", int(verificationStale.Hours()/24))
	}
	for _, c := range s.Certificates {
		if left := c.NotAfter.Sub(now); left < 0 {
			add(Critical, "certificate %s has expired", c.File)
		} else if left < certificateSoon {
			add(Warning, "certificate %s expires in %d days", c.File, int(left.Hours()/24))
		}
	}
	if s.PreviousDatabaseBytes > 0 && s.DatabaseBytes*2 < s.PreviousDatabaseBytes {
		add(Warning, "the database shrank by more than half between two snapshots")
	}
	if s.PreviousRevision > 0 && s.Revision <= s.PreviousRevision {
		add(Warning, "the revision did not grow between two snapshots")
	}
	slices.SortStableFunc(found, func(a, b Finding) int { return cmp.Compare(b.Severity, a.Severity) })
	return found
}

// Proven is the verification of level database or restore with the newest snapshot that passed; nil where none did.
func Proven(s *v1.EtcdSnapshotPolicyStatus) (newest *v1.PolicyVerificationStatus) {
	for i := range s.Verifications {
		v := &s.Verifications[i]
		if v.Level == "checksum" || v.PassedTime == nil || v.PassedSnapshotTime == nil {
			continue
		}
		if newest == nil || newest.PassedSnapshotTime.Before(v.PassedSnapshotTime) {
			newest = v
		}
	}
	return newest
}
