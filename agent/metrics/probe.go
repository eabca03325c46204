package metrics

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"

	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/store"
)

// Receiver is one of the places that a policy's metrics go to.
type Receiver struct {
	// Field of spec.metrics, and Where it leads: a folder or a URL.
	Field, Where string
	probe        func(ctx context.Context) error
}

// Receivers are those of a policy; there may be none.
func Receivers(spec *v1.MetricsSpec, version string) (all []Receiver) {
	if spec == nil {
		return nil
	}
	if t := spec.Textfile; t != nil {
		all = append(all, Receiver{"textfile", t.Directory, func(context.Context) error { return probeFolder(t.Directory) }})
	}
	if e := spec.Pushgateway; e != nil {
		all = append(all, Receiver{"pushgateway", e.URL, func(ctx context.Context) error { return probePushgateway(ctx, e, version) }})
	}
	if e := spec.OTLP; e != nil {
		all = append(all, Receiver{"otlp", e.URL, func(ctx context.Context) error { return probeOTLP(ctx, e, version) }})
	}
	return all
}

// Probe finds out whether the receiver would take metrics, as who we are, and gives it none: nobody sees a series of it.
// It tries once. The error names the field.
func (r Receiver) Probe(ctx context.Context) error {
	if err := r.probe(ctx); err != nil {
		return fmt.Errorf("spec.metrics.%s: %w", r.Field, err)
	}
	return nil
}

// probeFolder does what a write does, by a name that node-exporter does not read.
func probeFolder(directory string) error {
	f, err := os.CreateTemp(directory, ".etcd-snapshot-doctor-")
	if err != nil {
		return err
	}
	err = f.Close()
	if removed := os.Remove(f.Name()); err == nil {
		err = removed
	}
	return err
}

// probePushgateway asks it whether it is ready: whatever is pushed, and were it nothing, leaves a group behind.
func probePushgateway(ctx context.Context, e *v1.MetricsEndpoint, version string) error {
	ready, err := url.JoinPath(e.URL, "-", "ready")
	if err != nil {
		return fmt.Errorf("%w: url: %w", store.ErrConfig, err)
	}
	return once(ctx, e, version, func(ctx context.Context, client *http.Client) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, ready, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(r)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer))
		return err
	})
}

// probeOTLP exports nothing, which the protocol has receivers answer like any other request.
func probeOTLP(ctx context.Context, e *v1.MetricsEndpoint, version string) error {
	return once(ctx, e, version, func(ctx context.Context, client *http.Client) error {
		return exportTo(ctx, e, client, &metricdata.ResourceMetrics{})
	})
}
