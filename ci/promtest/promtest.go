// Package promtest starts the real programs that metrics are handed to: Prometheus, Pushgateway, kube-state-metrics,
// OpenTelemetry Collector.
package promtest

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"etcdsnapshot.dev/ci/parts"
)

// Patience bounds everything that is waited for, on a machine that is busy with other tests.
const Patience = 2 * time.Minute

// Program is a server of somebody else's on a loopback port, which ends with the test.
type Program struct {
	URL string

	tb     testing.TB
	log    string
	config Config
	client *http.Client
}

// Config is how a server wants to be spoken to.
type Config struct {
	// CA of its certificate (PEM); empty where it speaks plain HTTP.
	CA []byte
	// Username and Password that it asks for, if any.
	Username, Password string
	// Args are further arguments.
	Args []string
}

// Start starts a program of a part and waits until it answers the path ready. args gives its arguments.
func Start(tb testing.TB, part, name, ready string, c Config, args func(port int) []string) *Program {
	tb.Helper()
	p := &Program{tb: tb, log: filepath.Join(tb.TempDir(), "log"), config: c, client: &http.Client{Timeout: Patience}}
	scheme := "http"
	if len(c.CA) > 0 {
		scheme = "https"
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(c.CA)
		p.client.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	}
	log, err := os.Create(p.log)
	must(tb, err)
	defer log.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(tb, err)
	port := l.Addr().(*net.TCPAddr).Port
	must(tb, l.Close())
	p.URL = fmt.Sprintf("%s://127.0.0.1:%d", scheme, port)
	cmd := exec.CommandContext(tb.Context(), filepath.Join(parts.Require(tb, part), name), append(args(port), c.Args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	must(tb, cmd.Start())
	tb.Cleanup(func() {
		p.client.CloseIdleConnections()
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // killed
	})
	Eventually(tb, func() error {
		if _, err := p.Get(ready); err != nil {
			return fmt.Errorf("%w\n%s", err, p.Output())
		}
		return nil
	})
	return p
}

// Pushgateway starts one.
func Pushgateway(tb testing.TB, c Config) *Program {
	tb.Helper()
	return Start(tb, "pushgateway", "pushgateway", "/-/ready", c, func(port int) []string {
		return []string{fmt.Sprintf("--web.listen-address=127.0.0.1:%d", port)}
	})
}

// Prometheus starts one with a configuration, as YAML has it.
func Prometheus(tb testing.TB, c Config, config map[string]any) *Program {
	tb.Helper()
	dir := tb.TempDir()
	data, err := yaml.Marshal(config)
	must(tb, err)
	must(tb, os.WriteFile(filepath.Join(dir, "prometheus.yaml"), data, 0o600))
	return Start(tb, "prometheus", "prometheus", "/-/ready", c, func(port int) []string {
		return []string{"--config.file=" + filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path=" + filepath.Join(dir, "data"),
			fmt.Sprintf("--web.listen-address=127.0.0.1:%d", port)}
	})
}

// Collector starts an OpenTelemetry Collector that takes OTLP over HTTP at the URL that it gives, and exposes the last
// value of each series to Prometheus, at its own URL.
func Collector(tb testing.TB) (collector *Program, otlp string) {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(tb, err)
	receiver := l.Addr().String()
	must(tb, l.Close())
	file := filepath.Join(tb.TempDir(), "collector.yaml")
	collector = Start(tb, "opentelemetry-collector", "opentelemetry-collector", "/metrics", Config{}, func(port int) []string {
		data, err := yaml.Marshal(map[string]any{
			"receivers": map[string]any{"otlp": map[string]any{"protocols": map[string]any{"http": map[string]any{"endpoint": receiver}}}},
			"exporters": map[string]any{"prometheus": map[string]any{"endpoint": fmt.Sprintf("127.0.0.1:%d", port), "metric_expiration": "12h"}},
			"service": map[string]any{
				"telemetry": map[string]any{"metrics": map[string]any{"level": "none"}}, // its own would want a port
				"pipelines": map[string]any{"metrics": map[string]any{"receivers": []string{"otlp"}, "exporters": []string{"prometheus"}}},
			},
		})
		must(tb, err)
		must(tb, os.WriteFile(file, data, 0o600))
		return []string{"--config=file:" + file}
	})
	return collector, "http://" + receiver + "/v1/metrics"
}

// Get gives what the server answers with 200.
func (p *Program) Get(path string) ([]byte, error) {
	r, err := http.NewRequestWithContext(p.tb.Context(), http.MethodGet, p.URL+path, nil)
	if err != nil {
		return nil, err
	}
	if p.config.Username != "" {
		r.SetBasicAuth(p.config.Username, p.config.Password)
	}
	resp, err := p.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, resp.Status, body)
	}
	return body, err
}

// Metrics are those of the path /metrics, as text.
func (p *Program) Metrics() string {
	p.tb.Helper()
	body, err := p.Get("/metrics")
	must(p.tb, err)
	return string(body)
}

// Output is the end of what the server wrote.
func (p *Program) Output() string {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-4000):])
}

// Sample is one of an instant query.
type Sample struct {
	Metric map[string]string
	Value  float64
}

// Query asks a Prometheus.
func (p *Program) Query(expr string) []Sample {
	p.tb.Helper()
	body, err := p.Get("/api/v1/query?query=" + url.QueryEscape(expr))
	must(p.tb, err)
	var answer struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	must(p.tb, json.Unmarshal(body, &answer))
	var samples []Sample
	for _, r := range answer.Data.Result {
		s := Sample{Metric: r.Metric}
		_, err := fmt.Sscan(fmt.Sprint(r.Value[1]), &s.Value)
		must(p.tb, err)
		samples = append(samples, s)
	}
	return samples
}

// Eventually tries until there is no error.
func Eventually(tb testing.TB, try func() error) {
	tb.Helper()
	deadline := time.Now().Add(Patience)
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			tb.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
