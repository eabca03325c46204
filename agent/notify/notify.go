// Package notify tells how runs end: people, by webhooks in the forms of several services, and dead man's switches, by
// pings that they miss when nothing runs any more.
//
// A notification is the last and least part of a run. Nothing here fails one or holds it up for longer than a budget,
// and URLs, which are secrets, appear in no error and no log: only their hosts do.
package notify

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

// DefaultBudget bounds all tries of all notifications at the end of a run; they are sent side by side.
const DefaultBudget = 30 * time.Second

// tryTime bounds one try.
const tryTime = 10 * time.Second

// Options say how notifications are sent.
type Options struct {
	// Budget bounds all tries at the end of a run; DefaultBudget if 0.
	Budget time.Duration
	// Backoff is the most that is waited after a first failure; a second if 0. It doubles with each failure.
	Backoff time.Duration
	// Version of the agent, for the header User-Agent.
	Version string
	Log     *slog.Logger
}

// Notifier tells the notifications of one policy how one run goes.
type Notifier struct {
	o       Options
	targets []*target
}

// Result is what came of one notification.
type Result struct {
	Name string
	// Kind is webhook or ping, and Host the part of the URL that is no secret; empty where there is no URL.
	Kind, Host string
	// Plain says that the URL goes there without TLS.
	Plain bool
	// Tries that were made; 0 where the notification cannot be used.
	Tries int
	// Err is why it was not taken; nil says that the server took it. It wraps store.ErrConfig where trying again does not
	// help.
	Err error
}

// New reads the notifications' files. What cannot be used is told when there is something to send.
func New(specs []v1.Notification, o Options) *Notifier {
	if o.Budget == 0 {
		o.Budget = DefaultBudget
	}
	if o.Backoff == 0 {
		o.Backoff = time.Second
	}
	n := &Notifier{o: o}
	for _, spec := range specs {
		n.targets = append(n.targets, open(spec, o))
	}
	return n
}

// Start tells the switches that wait for this run that it begins, and does not wait for them. They are told once: a
// beginning that is missed raises no alarm.
func (n *Notifier) Start(ctx context.Context, run string) {
	for _, t := range n.targets {
		if t.spec.Ping == nil || t.spec.Ping.Run != run || t.err != nil {
			continue // what cannot be used is told at the end
		}
		t.started.Go(func() {
			if err := t.try(ctx, min(tryTime, n.o.Budget), t.start()); err != nil {
				n.o.Log.Warn("the beginning of the run could not be notified", "notification", t.spec.Name, "host", t.url.Host, "error", t.scrub(err))
			}
		})
	}
}

// End tells those who want to know that the run has ended as notice says, waits until they are told or the budget is
// used up, and gives up the connections. Its failures are logged.
func (n *Notifier) End(ctx context.Context, notice *v1.Notice) []Result {
	var wanting []*target
	for _, t := range n.targets {
		if t.wants(notice) {
			wanting = append(wanting, t)
		}
	}
	results := n.tell(ctx, wanting, notice)
	for _, r := range results {
		if r.Err != nil {
			n.o.Log.Warn("could not notify; what the run did stands", "notification", r.Name, "host", r.Host, "event", notice.Event, "tries", r.Tries, "error", r.Err)
		} else {
			n.o.Log.Info("notified", "notification", r.Name, "host", r.Host, "event", notice.Event, "tries", r.Tries)
		}
	}
	return results
}

// All tells every notification, whether it wants to know or not.
func (n *Notifier) All(ctx context.Context, notice *v1.Notice) []Result {
	return n.tell(ctx, n.targets, notice)
}

func (n *Notifier) tell(ctx context.Context, targets []*target, notice *v1.Notice) []Result {
	defer n.close()
	results := make([]Result, len(targets))
	var wg sync.WaitGroup
	for i, t := range targets {
		wg.Go(func() {
			t.started.Wait() // a beginning that comes after the end would be taken for another run's
			results[i] = t.send(ctx, n.o.Budget, t.end(notice))
		})
	}
	wg.Wait()
	return results
}

// Abandon ends what Start began, where no run is to be told of after all.
func (n *Notifier) Abandon() {
	n.close()
}

func (n *Notifier) close() {
	for _, t := range n.targets {
		t.started.Wait()
		if t.transport != nil {
			t.transport.CloseIdleConnections()
		}
	}
}

// Reach asks the server of each notification once for anything at all, without a word of the secret part of its URL.
func (n *Notifier) Reach(ctx context.Context) []Result {
	defer n.close()
	results := make([]Result, len(n.targets))
	var wg sync.WaitGroup
	for i, t := range n.targets {
		wg.Go(func() {
			results[i] = t.result()
			if t.err != nil {
				return
			}
			limit := tryTime
			if end, ok := ctx.Deadline(); ok {
				limit = min(limit, time.Until(end)*3/4) // there is to be time to say what is wrong
			}
			if err := t.try(ctx, limit, t.nothing()); err != nil {
				results[i].Err = t.scrub(err)
			}
		})
	}
	wg.Wait()
	return results
}

// result is what is known of a notification before anything is sent.
func (t *target) result() Result {
	r := Result{Name: t.spec.Name, Kind: t.kind(), Err: t.err}
	if t.url != nil {
		r.Host, r.Plain = t.url.Host, t.url.Scheme == "http"
	}
	return r
}

// wants says whether this notification is to be told.
func (t *target) wants(notice *v1.Notice) bool {
	if t.spec.Ping != nil {
		return t.spec.Ping.Run == notice.Run
	}
	return slices.Contains(t.spec.Webhook.Events, v1.EventEvery) || slices.Contains(t.spec.Webhook.Events, notice.Event)
}

// Summary says in a line what happened, for people.
func Summary(n *v1.Notice) string {
	text := summary(n)
	if n.Test {
		return "TEST, this did not happen: " + text
	}
	return text
}

func summary(n *v1.Notice) string {
	what := map[string]string{
		v1.RunSnapshot: "etcd snapshot of " + n.ClusterName,
		v1.RunVerify:   "verification of etcd snapshots of " + n.ClusterName,
		v1.RunPrune:    "pruning of etcd snapshots of " + n.ClusterName,
	}[n.Run]
	switch n.Event {
	case v1.EventTest:
		return "test of the notifications about etcd snapshots of " + n.ClusterName + ": they arrive"
	case v1.EventFailed:
		if n.ConsecutiveFailures != nil && *n.ConsecutiveFailures > 1 {
			return fmt.Sprintf("%s failed, for the %s time in a row", what, ordinal(int(*n.ConsecutiveFailures)))
		}
		return what + " failed"
	case v1.EventPartial:
		return what + " is stored, but not in every required destination"
	case v1.EventVerificationFailed:
		return "etcd snapshots of " + n.ClusterName + ": a stored copy is CORRUPT"
	case v1.EventRecovered:
		return what + " succeeded again"
	}
	return what + " succeeded"
}

func ordinal(n int) string {
	suffix := "th"
	if n%100 < 11 || n%100 > 13 {
		switch n % 10 {
		case 1:
			suffix = "st"
		case 2:
			suffix = "nd"
		case 3:
			suffix = "rd"
		}
	}
	return fmt.Sprint(n) + suffix
}
