package cli

import (
	"context"
	"time"

	"github.com/spf13/pflag"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/catalog"
	"etcdsnapshot.dev/agent/metrics"
)

// metricsTimeFlag is how long a run may try to hand over its metrics.
func metricsTimeFlag(fl *pflag.FlagSet, value *time.Duration) {
	fl.DurationVar(value, "metrics-timeout", metrics.DefaultBudget, "how long to try to hand over metrics, where the policy says to (spec.metrics)")
}

// handover hands over the metrics of a run at its end.
type handover struct {
	l      *loaded
	e      *env
	budget time.Duration
	// before is the policy's status before the run; nil where nobody keeps one.
	before *v1.EtcdSnapshotPolicyStatus
}

// handover notes what the metrics build on, before the run changes it. It is nil where none are to be handed over.
func (l *loaded) handover(ctx context.Context, e *env, budget time.Duration) *handover {
	if l.policy.Spec.Metrics == nil {
		return nil
	}
	h := &handover{l: l, e: e, budget: budget}
	if l.client != nil {
		status, err := l.client.PolicyStatus(ctx, l.policy.Namespace, l.policy.Name)
		if err != nil {
			e.log.Warn("metrics will tell of this run alone: the policy's status could not be read", "error", err)
		}
		h.before = status
	}
	return h
}

// end hands the metrics over. It fails nothing.
func (h *handover) end(ctx context.Context, report catalog.Report) {
	if h == nil {
		return
	}
	budget := h.budget
	if ctx.Err() != nil {
		ctx, budget = context.WithoutCancel(ctx), min(budget, lastWordBudget)
	}
	source := &metrics.Source{Policy: h.l.policy, Complete: h.before != nil, Destinations: h.l.destinations, Node: report.Node}
	if h.before == nil {
		h.before = &v1.EtcdSnapshotPolicyStatus{}
	}
	status := catalog.StatusAfter(&report, h.before, h.l.destinations)
	source.Status = &status
	if err := metrics.Report(ctx, source, metrics.Options{Budget: budget, Version: Version().Version, Log: h.e.log}); err != nil {
		h.e.log.Warn("metrics were not handed over; what is stored is safe", "error", err)
	}
}
