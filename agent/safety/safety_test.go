package safety_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/safety"
)

var now = time.Date(2026, 12, 2, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) *metav1.Time {
	t := metav1.NewTime(now.Add(-d))
	return &t
}

const day = 24 * time.Hour

// good is the status of a policy that runs every six hours and is verified every night.
func good() *v1.EtcdSnapshotPolicyStatus {
	return &v1.EtcdSnapshotPolicyStatus{
		ScheduleIntervalSeconds: 6 * 3600, LastRunTime: ago(time.Hour), LastResult: v1.ResultSucceeded, LastSuccessTime: ago(time.Hour),
		DatabaseBytes: 100, PreviousDatabaseBytes: 110, Revision: 20, PreviousRevision: 10,
		Certificates:  []v1.CertificateStatus{{File: "/ca.crt", NotAfter: *ago(-90 * day)}},
		Verifications: []v1.PolicyVerificationStatus{{Level: "database", Result: v1.VerificationPassed, PassedTime: ago(9 * time.Hour), PassedSnapshotTime: ago(13 * time.Hour)}},
		Destinations: []v1.PolicyDestinationStatus{
			{Name: "node", Backend: "hostPath", LastSuccessTime: ago(time.Hour)},
			{Name: "offsite", Backend: "s3", LastSuccessTime: ago(time.Hour)},
		},
	}
}

func TestJudge(t *testing.T) {
	for name, c := range map[string]struct {
		change   func(s *v1.EtcdSnapshotPolicyStatus)
		severity safety.Severity
		text     string
	}{
		"good":                  {func(*v1.EtcdSnapshotPolicyStatus) {}, safety.OK, ""},
		"late":                  {func(s *v1.EtcdSnapshotPolicyStatus) { s.LastSuccessTime = ago(12*time.Hour + 1) }, safety.Critical, "reached every required destination"},
		"not late yet":          {func(s *v1.EtcdSnapshotPolicyStatus) { s.LastSuccessTime = ago(12 * time.Hour) }, safety.OK, ""},
		"never succeeded":       {func(s *v1.EtcdSnapshotPolicyStatus) { s.LastSuccessTime = nil }, safety.Critical, "reached every required destination"},
		"schedule not known":    {func(s *v1.EtcdSnapshotPolicyStatus) { s.ScheduleIntervalSeconds, s.LastSuccessTime = 0, ago(99*day) }, safety.OK, ""},
		"never ran":             {func(s *v1.EtcdSnapshotPolicyStatus) { *s = v1.EtcdSnapshotPolicyStatus{} }, safety.Critical, "ever recorded"},
		"failed":                {func(s *v1.EtcdSnapshotPolicyStatus) { s.LastResult, s.ConsecutiveFailures = v1.ResultFailed, 3 }, safety.Warning, "3 in a row"},
		"partial":               {func(s *v1.EtcdSnapshotPolicyStatus) { s.LastResult = v1.ResultPartial }, safety.Warning, "did not reach every"},
		"off-site copy stale":   {func(s *v1.EtcdSnapshotPolicyStatus) { s.Destinations[1].LastSuccessTime = ago(day) }, safety.Critical, "destination offsite"},
		"this node's is older":  {func(s *v1.EtcdSnapshotPolicyStatus) { s.Destinations[0].LastSuccessTime = ago(day) }, safety.OK, ""},
		"destination's trouble": {func(s *v1.EtcdSnapshotPolicyStatus) { s.Destinations[0].Message = "disk full" }, safety.Warning, "destination node: disk full"},
		"corrupt":               {func(s *v1.EtcdSnapshotPolicyStatus) { s.Verifications[0].Result = v1.VerificationFailed }, safety.Critical, "level database failed"},
		"not proven for long":   {func(s *v1.EtcdSnapshotPolicyStatus) { s.Verifications[0].PassedTime = ago(9 * day) }, safety.Warning, "8 days"},
		"never proven":          {func(s *v1.EtcdSnapshotPolicyStatus) { s.Verifications = nil }, safety.OK, ""},
		"certificate soon":      {func(s *v1.EtcdSnapshotPolicyStatus) { s.Certificates[0].NotAfter = *ago(-13 * day) }, safety.Warning, "expires in 13 days"},
		"certificate expired":   {func(s *v1.EtcdSnapshotPolicyStatus) { s.Certificates[0].NotAfter = *ago(1) }, safety.Critical, "has expired"},
		"shrunk":                {func(s *v1.EtcdSnapshotPolicyStatus) { s.DatabaseBytes = 54 }, safety.Warning, "shrank"},
		"not moving":            {func(s *v1.EtcdSnapshotPolicyStatus) { s.Revision = 10 }, safety.Warning, "revision"},
	} {
		t.Run(name, func(t *testing.T) {
			s := good()
			c.change(s)
			found := safety.Judge(s, now.Add(-30*day), now)
			if c.severity == safety.OK {
				require.Empty(t, found)
				return
			}
			require.Len(t, found, 1)
			require.Equal(t, c.severity, found[0].Severity)
			require.Contains(t, found[0].Text, c.text)
		})
	}
	fresh := safety.Judge(&v1.EtcdSnapshotPolicyStatus{}, now.Add(-time.Hour), now)
	require.Equal(t, []safety.Finding{{Severity: safety.Warning, Text: "no run was recorded yet"}}, fresh)
	worst := good()
	worst.LastResult, worst.LastSuccessTime = v1.ResultFailed, ago(2*day)
	found := safety.Judge(worst, now, now)
	require.Len(t, found, 2)
	require.Equal(t, safety.Critical, found[0].Severity, "the worst comes first")
}
