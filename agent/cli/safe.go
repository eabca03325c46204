package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/safety"
	"etcdsnapshot.dev/agent/schedule"
)

type safeFlags struct {
	policyFlags
	zone, output string
}

func newStatus(e *env) *cobra.Command {
	f := &safeFlags{}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Are we safe: last good, last proven, next run, copies, warnings",
		Long: `Says by the policy's status in the API server whether this cluster could be brought back today. No store is asked.

Exit codes are those of Nagios' plugins: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN (the status could not be read).`,
		Example: `  etcd-snapshot-agent status --policy etcd -n kube-system`,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), e) },
	}
	f.register(cmd)
	f.readOnly = true
	cmd.Flags().StringVar(&f.zone, "schedule-time-zone", "", "IANA name of the schedule's time zone, for the next run (default: UTC)")
	outputFlag(cmd, &f.output)
	return cmd
}

// unsafeError ends status with a code of Nagios' plugins.
type unsafeError struct {
	code int
	err  error
}

func (e *unsafeError) Error() string { return e.err.Error() }
func (e *unsafeError) Unwrap() error { return e.err }
func (e *unsafeError) exitCode() int { return e.code }

// statusUnknown is what plugins of Nagios end with where they cannot tell.
const statusUnknown = 3

func (f *safeFlags) run(ctx context.Context, e *env) error {
	if err := checkOutput(f.output, "table", "json"); err != nil {
		return &unsafeError{statusUnknown, err}
	}
	if f.name == "" {
		return &unsafeError{statusUnknown, usageErrorf("--policy is needed: the status is the one that the API server keeps")}
	}
	l, err := f.load(ctx, e)
	if err != nil {
		return &unsafeError{statusUnknown, err}
	}
	status, err := l.client.PolicyStatus(ctx, l.policy.Namespace, l.policy.Name)
	if err != nil {
		return &unsafeError{statusUnknown, err}
	}
	now := time.Now()
	found := safety.Judge(status, l.policy.CreationTimestamp.Time, now)
	worst := safety.OK
	if len(found) > 0 {
		worst = found[0].Severity
	}
	var next *metav1.Time
	if s, err := schedule.Parse(status.Schedule, f.zone); err == nil {
		if t := s.Next(now); !t.IsZero() {
			next = &metav1.Time{Time: t}
		}
	} else if f.zone != "" {
		e.log.Warn("when the next run is due cannot be told", "error", err)
	}
	if f.output == "json" {
		texts := []map[string]string{}
		for _, one := range found {
			texts = append(texts, map[string]string{"severity": one.Severity.String(), "text": one.Text})
		}
		err = printJSON(e.stdout, map[string]any{"severity": worst.String(), "findings": texts, "nextRun": next, "status": status})
	} else {
		err = printSafety(e.stdout, l.policy, status, worst, found, next, now)
	}
	if err != nil {
		return &unsafeError{statusUnknown, err}
	}
	if worst != safety.OK {
		return &unsafeError{int(worst), fmt.Errorf("%s: %s", worst, found[0].Text)}
	}
	return nil
}

func printSafety(w io.Writer, p *v1.EtcdSnapshotPolicy, s *v1.EtcdSnapshotPolicyStatus, worst safety.Severity, found []safety.Finding, next *metav1.Time, now time.Time) error {
	age := func(t *metav1.Time) string {
		if t == nil {
			return "never"
		}
		return humanAge(now.Sub(t.Time)) + " ago"
	}
	fmt.Fprintf(w, "%s  %s/%s\n", worst, p.Namespace, p.Name)
	for _, one := range found {
		fmt.Fprintf(w, "  %-8s  %s\n", one.Severity, one.Text)
	}
	fmt.Fprintln(w)
	t := newTable(w, "LAST GOOD", "LAST PROVEN", "LAST RUN", "NEXT RUN", "SNAPSHOTS")
	proven, due, snapshots := "never", "unknown", "unknown"
	if v := safety.Proven(s); v != nil {
		proven = age(v.PassedSnapshotTime) + " (" + v.Level + ")"
	}
	if next != nil {
		due = "in " + humanAge(next.Sub(now))
	}
	if s.Snapshots != nil {
		snapshots = fmt.Sprint(*s.Snapshots)
	}
	t.row(age(s.LastSuccessTime), proven, age(s.LastRunTime), due, snapshots)
	if err := t.flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	t = newTable(w, "DESTINATION", "KIND", "LAST COPY", "SNAPSHOTS", "SIZE", "RETENTION")
	for _, d := range s.Destinations {
		retention := "unknown"
		if d.Retention != nil {
			retention = map[bool]string{true: "applied " + age(d.LastPruneTime), false: "keeps everything"}[*d.Retention]
		}
		t.row(d.Name, d.Backend, age(d.LastSuccessTime), d.Snapshots, humanBytes(d.Bytes), retention)
	}
	return t.flush()
}
