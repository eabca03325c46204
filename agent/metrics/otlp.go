package metrics

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

// export hands the metrics over once. There is no reader that would do so at intervals: this process ends.
func (s *Source) export(ctx context.Context, e *v1.MetricsEndpoint, o Options) error {
	families, err := s.registry(s.identity()).Gather()
	if err != nil {
		return err
	}
	all := resourceMetrics(families, time.Now(), o.Version)
	return send(ctx, e, o, func(ctx context.Context, client *http.Client) error { return exportTo(ctx, e, client, all) })
}

// exportTo is one try, for which ctx has the time.
func exportTo(ctx context.Context, e *v1.MetricsEndpoint, client *http.Client, all *metricdata.ResourceMetrics) error {
	exporter, err := otlpmetrichttp.New(ctx, otlpmetrichttp.WithEndpointURL(e.URL), otlpmetrichttp.WithHTTPClient(client),
		otlpmetrichttp.WithCompression(otlpmetrichttp.GzipCompression),
		otlpmetrichttp.WithRetry(otlpmetrichttp.RetryConfig{})) // send tries again
	if err != nil {
		return fmt.Errorf("url: %w", err)
	}
	if err := exporter.Export(ctx, all); err != nil {
		return err
	}
	return exporter.Shutdown(ctx)
}

// resourceMetrics are Prometheus' gauges in OpenTelemetry's terms.
func resourceMetrics(families []*dto.MetricFamily, now time.Time, version string) *metricdata.ResourceMetrics {
	scope := metricdata.ScopeMetrics{Scope: instrumentation.Scope{Name: "etcdsnapshot.dev/agent/metrics", Version: version}}
	for _, f := range families {
		gauge := metricdata.Gauge[float64]{}
		for _, m := range f.Metric {
			var labels []attribute.KeyValue
			for _, l := range m.Label {
				labels = append(labels, attribute.String(l.GetName(), l.GetValue()))
			}
			gauge.DataPoints = append(gauge.DataPoints, metricdata.DataPoint[float64]{Attributes: attribute.NewSet(labels...), Time: now, Value: m.GetGauge().GetValue()})
		}
		scope.Metrics = append(scope.Metrics, metricdata.Metrics{Name: f.GetName(), Description: f.GetHelp(), Unit: unit(f.GetName()), Data: gauge})
	}
	return &metricdata.ResourceMetrics{
		Resource:     resource.NewSchemaless(attribute.String("service.name", Job), attribute.String("service.version", version)),
		ScopeMetrics: []metricdata.ScopeMetrics{scope},
	}
}

// unit is what a name ends with, in UCUM's code, so that a receiver which makes Prometheus' names of both ends at the same.
func unit(name string) string {
	switch {
	case strings.HasSuffix(name, "_seconds"):
		return "s"
	case strings.HasSuffix(name, "_bytes"):
		return "By"
	}
	return ""
}
