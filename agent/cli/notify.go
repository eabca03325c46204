package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/notify"
	"etcdsnapshot.dev/agent/snapshot"
	"etcdsnapshot.dev/agent/units"
)

type notifyFlags struct {
	policyFlags
	notifications []string
	event, output string
	timeout       time.Duration
}

// exitCodes are those that the events come with.
var exitCodes = map[string]int{
	v1.EventTest: exitOK, v1.EventSucceeded: exitOK, v1.EventRecovered: exitOK,
	v1.EventFailed: exitFailed, v1.EventPartial: exitPartial, v1.EventVerificationFailed: exitCorrupt,
}

func newNotify(e *env) *cobra.Command {
	f := &notifyFlags{}
	events := slices.Sorted(maps.Keys(exitCodes))
	cmd := &cobra.Command{
		Use:   "notify",
		Short: "Try out the policy's notifications",
		Long: `Sends a message to the policy's notifications, whatever events they ask for, and says what came of it. It is marked as a
test. A ping with the event test goes to /log, which changes nothing at Healthchecks; other events make a switch believe
what they say.`,
		Example: `  etcd-snapshot-agent notify --policy etcd -n kube-system
  etcd-snapshot-agent notify --policy-file etcd.yaml --notification ops --event failed`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), e) },
	}
	f.register(cmd)
	f.readOnly = true
	fl := cmd.Flags()
	fl.StringSliceVar(&f.notifications, "notification", nil, "only these notifications of the policy (default: all)")
	fl.StringVar(&f.event, "event", v1.EventTest, "what to pretend: "+strings.Join(events, ", "))
	fl.DurationVar(&f.timeout, "timeout", notify.DefaultBudget, "how long to try")
	outputFlag(cmd, &f.output)
	// An error here would mean that the flag above does not exist.
	_ = cmd.RegisterFlagCompletionFunc("event", cobra.FixedCompletions(events, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// untoldError says which notifications were not taken.
type untoldError struct{ errs []error }

func (e *untoldError) Error() string   { return errors.Join(e.errs...).Error() }
func (e *untoldError) Unwrap() []error { return e.errs }

func (e *untoldError) exitCode() int {
	for _, err := range e.errs {
		if !isConfig(err) {
			return exitFailed
		}
	}
	return exitConfig
}

func (f *notifyFlags) run(ctx context.Context, e *env) error {
	if err := checkOutput(f.output, "table", "json"); err != nil {
		return err
	}
	code, ok := exitCodes[f.event]
	switch {
	case !ok:
		return usageErrorf("--event: %q is none of %s", f.event, strings.Join(slices.Sorted(maps.Keys(exitCodes)), ", "))
	case f.timeout <= 0:
		return usageErrorf("--timeout: %s is no time to try in", f.timeout)
	}
	l, err := f.load(ctx, e)
	if err != nil {
		return err
	}
	specs := l.policy.Spec.Notifications
	for _, name := range f.notifications {
		if !slices.ContainsFunc(specs, func(n v1.Notification) bool { return n.Name == name }) {
			return usageErrorf("--notification: the policy has no notification %q", name)
		}
	}
	if len(f.notifications) > 0 {
		specs = slices.DeleteFunc(specs, func(n v1.Notification) bool { return !slices.Contains(f.notifications, n.Name) })
	}
	if len(specs) == 0 {
		return usageErrorf("the policy has no notifications: set spec.notifications (the chart's notifications)")
	}
	notice := l.notice(v1.RunSnapshot, time.Now())
	if f.event == v1.EventVerificationFailed {
		notice.Run = v1.RunVerify
	}
	notice.Event, notice.Test, notice.ExitCode, notice.EndTime = f.event, f.event != v1.EventTest, code, metav1.Now()
	if code != exitOK {
		notice.Message = "etcd-snapshot-agent notify --event " + f.event
	}
	notice.Summary = notify.Summary(notice)
	results := notify.New(specs, notify.Options{Budget: f.timeout, Version: Version().Version, Log: e.log}).All(ctx, notice)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err := f.print(e, results); err != nil {
		return err
	}
	failed := &untoldError{}
	for _, r := range results {
		if r.Err != nil {
			failed.errs = append(failed.errs, fmt.Errorf("notification %s: %w", r.Name, r.Err))
		}
	}
	if len(failed.errs) > 0 {
		return failed
	}
	return nil
}

func (f *notifyFlags) print(e *env, results []notify.Result) error {
	type row struct {
		Name   string `json:"name"`
		Kind   string `json:"kind"`
		Host   string `json:"host,omitempty"`
		Result string `json:"result"`
		Tries  int    `json:"tries"`
		Error  string `json:"error,omitempty"`
	}
	rows := []row{}
	t := newTable(e.stdout, "NOTIFICATION", "KIND", "HOST", "RESULT", "TRIES", "MESSAGE")
	for _, r := range results {
		one := row{Name: r.Name, Kind: r.Kind, Host: r.Host, Result: "sent", Tries: r.Tries}
		if r.Err != nil {
			one.Result, one.Error = "failed", oneLine(r.Err)
		}
		rows = append(rows, one)
		t.row(one.Name, one.Kind, orDash(one.Host), one.Result, one.Tries, orDash(one.Error))
	}
	if f.output == "json" {
		return printJSON(e.stdout, map[string]any{"event": f.event, "notifications": rows})
	}
	return t.flush()
}

// notifyTimeFlag is how long a run may try to tell how it ended.
func notifyTimeFlag(fl *pflag.FlagSet, value *time.Duration) {
	fl.DurationVar(value, "notify-timeout", notify.DefaultBudget, "how long to try to send the policy's notifications, once the run has ended; 0 sends none")
}

// telling is what the policy's notifications are told of one run. Nil tells nobody anything.
type telling struct {
	e        *env
	notifier *notify.Notifier
	notice   *v1.Notice
	// before is what the catalog knows of the runs before this one; nil where it does not tell.
	before *v1.EtcdSnapshotPolicyStatus
	// onlyFailures is for one of several runs, whose success is not the success of all.
	onlyFailures bool
}

// tell begins to tell the policy's notifications of a run. Its end must follow.
func (l *loaded) tell(ctx context.Context, e *env, run string, budget time.Duration, onlyFailures bool) *telling {
	specs := l.policy.Spec.Notifications
	if len(specs) == 0 || budget <= 0 {
		return nil
	}
	t := &telling{e: e, notice: l.notice(run, time.Now()), onlyFailures: onlyFailures}
	t.notifier = notify.New(specs, notify.Options{Budget: budget, Version: t.notice.AgentVersion, Log: e.log})
	if !onlyFailures {
		t.notifier.Start(ctx, run)
	}
	if l.client != nil {
		before, err := l.client.PolicyStatus(ctx, l.policy.Namespace, l.policy.Name)
		if err != nil {
			e.log.Warn("how the last run ended could not be read; that this one recovers is not notified", "error", err)
			return t
		}
		t.before, t.notice.LastSuccessTime = before, before.LastSuccessTime
	}
	return t
}

// recovers says whether a success is the first one after a failure.
func (t *telling) recovers() bool {
	switch {
	case t.before == nil:
		return false
	case t.notice.Run == v1.RunSnapshot:
		return t.before.ConsecutiveFailures > 0
	case t.notice.Verification != nil:
		return slices.ContainsFunc(t.before.Verifications, func(v v1.PolicyVerificationStatus) bool {
			return v.Level == t.notice.Verification.Level && v.Result == v1.VerificationFailed
		})
	}
	return false
}

func (l *loaded) notice(run string, begin time.Time) *v1.Notice {
	return &v1.Notice{
		SchemaVersion: v1.NoticeSchemaVersion, Run: run, StartTime: metav1.NewTime(begin),
		Policy:      v1.NoticePolicy{Name: l.policy.Name, Namespace: l.policy.Namespace},
		ClusterName: l.owner.ClusterName, ClusterUID: l.owner.ClusterUID, Node: nodeName(""), AgentVersion: Version().Version,
	}
}

// end tells that the run ended with err.
func (t *telling) end(ctx context.Context, err error) {
	if t == nil {
		return
	}
	if err == nil && t.onlyFailures {
		t.notifier.Abandon()
		return
	}
	n := t.notice
	n.EndTime = metav1.Now()
	n.ExitCode = exitCode(ctx, err)
	n.Event = t.event(err)
	if err != nil {
		n.Message = units.Shorten(err.Error(), maxTerminationMessage)
		n.Diagnosis = t.e.diagnosis
	}
	if t.before != nil && n.Run == v1.RunSnapshot {
		failures := t.before.ConsecutiveFailures + 1
		if err == nil {
			failures, n.LastSuccessTime = 0, &n.StartTime
		}
		n.ConsecutiveFailures = &failures
	}
	n.Summary = notify.Summary(n)
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(context.WithoutCancel(ctx), lastWordBudget, fmt.Errorf("given up after %s, because the run was interrupted", lastWordBudget))
		defer cancel()
	}
	t.notifier.End(ctx, n) // it has logged what went wrong
}

func (t *telling) event(err error) string {
	var (
		partial *snapshot.PartialError
		extras  *snapshot.ExtrasError
	)
	switch {
	case err == nil && t.recovers():
		return v1.EventRecovered
	case err == nil:
		return v1.EventSucceeded
	case errors.As(err, &partial), errors.As(err, &extras):
		return v1.EventPartial
	case t.notice.Run == v1.RunVerify && errors.Is(err, archive.ErrCorrupt):
		return v1.EventVerificationFailed
	}
	return v1.EventFailed
}

// took is told of the snapshot that a run took.
func (t *telling) took(res *snapshot.Result) {
	if t == nil || res == nil {
		return
	}
	m := res.Manifest
	s := &v1.NoticeSnapshot{Name: m.Name, Revision: m.Etcd.Revision, DatabaseBytes: m.Database.Size, StoredBytes: m.Object.Size}
	for _, o := range res.Destinations {
		d := v1.NoticeDestination{Name: o.Name, Required: o.Required, Result: v1.PhaseStored, URI: o.URI}
		switch {
		case o.Err != nil:
			d.Result, d.Message = v1.PhaseFailed, units.Shorten(o.Err.Error(), maxNoticeMessage)
		case o.PruneErr != nil:
			d.Message = units.Shorten("old snapshots could not be removed: "+o.PruneErr.Error(), maxNoticeMessage)
		}
		s.Destinations = append(s.Destinations, d)
	}
	t.notice.Snapshot, t.notice.Node = s, m.Node
}

const (
	// maxNoticeMessage bounds what a notice says of one copy, in bytes, and maxProblems how many it names.
	maxNoticeMessage = 1024
	maxProblems      = 20
)

// verified is told of the copies that a run verified.
func (t *telling) verified(level string, rows []verifyRow) {
	if t == nil {
		return
	}
	v := &v1.NoticeVerification{Level: level}
	for _, r := range rows {
		switch r.Result {
		case v1.VerificationPassed:
			v.Passed++
			continue
		case v1.VerificationFailed:
			v.Failed++
		default:
			v.Unknown++
		}
		if len(v.Problems) < maxProblems {
			v.Problems = append(v.Problems, v1.NoticeCopy{Snapshot: r.Snapshot, Destination: r.Destination, Result: r.Result, Message: units.Shorten(r.Message, maxNoticeMessage)})
		}
	}
	t.notice.Verification = v
}
