package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/push"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/store"
)

// Job is the label job in a Pushgateway, and the name of the service in OTLP.
const Job = "etcd-snapshot"

// Options of Report.
type Options struct {
	// Budget is the time that all may take; 0 means DefaultBudget.
	Budget time.Duration
	// Version of this program.
	Version string
	// Log is told of tries that failed. It may be nil.
	Log *slog.Logger
}

// Report hands the metrics over to everywhere that the policy names, side by side, and returns when all is done or given
// up. The error tells of each place that did not take them, by its field.
func Report(ctx context.Context, s *Source, o Options) error {
	spec := s.Policy.Spec.Metrics
	if spec == nil {
		return nil
	}
	if o.Budget == 0 {
		o.Budget = DefaultBudget
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.Budget, fmt.Errorf("given up after %s", o.Budget))
	defer cancel()
	errs := make([]error, 3)
	var all sync.WaitGroup
	hand := func(i int, field string, do func() error) {
		all.Go(func() {
			if err := do(); err != nil {
				errs[i] = fmt.Errorf("metrics.%s: %w", field, err)
			}
		})
	}
	if t := spec.Textfile; t != nil {
		hand(0, "textfile", func() error { return s.write(t.Directory) })
	}
	if e := spec.Pushgateway; e != nil {
		hand(1, "pushgateway", func() error { return s.push(ctx, e, o) })
	}
	if e := spec.OTLP; e != nil {
		hand(2, "otlp", func() error { return s.export(ctx, e, o) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// push replaces the metrics of this policy in a Pushgateway, where its labels are the grouping key.
func (s *Source) push(ctx context.Context, e *v1.MetricsEndpoint, o Options) error {
	return send(ctx, e, o, func(ctx context.Context, client *http.Client) error {
		p := push.New(e.URL, Job).Gatherer(s.registry(nil)).Client(client)
		for name, value := range s.identity() {
			p.Grouping(name, value)
		}
		if s.Complete {
			return p.PushContext(ctx)
		}
		return p.AddContext(ctx)
	})
}

// send tries until it is done, decided, or ctx ends.
func send(ctx context.Context, e *v1.MetricsEndpoint, o Options, try func(ctx context.Context, client *http.Client) error) error {
	policy := store.RetryPolicy{Max: o.Budget, GiveUp: o.Budget, OnRetry: func(err error, delay time.Duration) {
		o.Log.Debug("metrics are handed over again", "url", e.URL, "in", delay, "error", err)
	}}
	t, err := newTransport(e, o.Version)
	if err != nil {
		return err
	}
	defer t.Close()
	return store.Retry(ctx, policy, func(ctx context.Context) error { return t.explain(try(ctx, t.client())) })
}

// once tries once.
func once(ctx context.Context, e *v1.MetricsEndpoint, version string, try func(ctx context.Context, client *http.Client) error) error {
	t, err := newTransport(e, version)
	if err != nil {
		return err
	}
	defer t.Close()
	return t.explain(try(ctx, t.client()))
}
