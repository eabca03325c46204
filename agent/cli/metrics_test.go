package cli_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcdsnapshot.dev/ci/etcdtest"
)

// TestMetricsWithoutAPIServer: a run on a bare node tells of itself, and leaves what it does not know as it was.
func TestMetricsWithoutAPIServer(t *testing.T) {
	c := filled(t, etcdtest.Options{}, 1<<20)
	s := newSite(t, c.Endpoints(), "node")
	dir := t.TempDir()
	s.spec()["metrics"] = map[string]any{"cluster": "prod-eu", "perNode": true, "textfile": map[string]any{"directory": dir}}
	line := func(name string) string {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(dir, "etcd-snapshot__etcd.prom"))
		require.NoError(t, err)
		for l := range strings.Lines(string(data)) {
			if strings.HasPrefix(l, "etcd_snapshot_"+name+"{") && !strings.HasSuffix(l, " 0\n") {
				return l
			}
		}
		return ""
	}
	require.Zero(t, s.snapshot(t, "--schedule", "@daily", "--schedule-time-zone", "Europe/Berlin").code)
	requireContains(t, line("last_run_result"), `result="Succeeded"`, `cluster="prod-eu"`, `node="n1"`)
	require.True(t, strings.HasSuffix(line("schedule_interval_seconds"), " 90000\n"), "the day on which summer time ends is the longest")
	success, revision := line("last_success_timestamp_seconds"), line("revision")
	require.NotEmpty(t, success)
	require.NotEmpty(t, revision)

	s.etcd()["endpoints"] = []string{"http://127.0.0.1:1"}
	require.Equal(t, 1, s.snapshot(t).code)
	require.Contains(t, line("last_run_result"), `result="Failed"`)
	require.Equal(t, success, line("last_success_timestamp_seconds"))
	require.Equal(t, revision, line("revision"))
}

// TestMetricsTakeNoTime: a receiver that never answers costs no more than it may.
func TestMetricsTakeNoTime(t *testing.T) {
	asked := make(chan struct{}, 100)
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		_, _ = io.Copy(io.Discard, r.Body) // or the server would not notice that the client went away
		<-r.Context().Done()
	}))
	defer silent.Close()
	c := filled(t, etcdtest.Options{}, 1<<20)
	s := newSite(t, c.Endpoints(), "node")
	s.spec()["metrics"] = map[string]any{"otlp": map[string]any{"url": silent.URL + "/v1/metrics"}}
	begin := time.Now()
	o := s.snapshot(t, "--metrics-timeout", "500ms")
	require.Zero(t, o.code, o.stderr)
	requireContains(t, o.stderr, "metrics were not handed over; what is stored is safe", "metrics.otlp: ", "given up after 500ms")
	require.Less(t, time.Since(begin), time.Minute)
	require.NotEmpty(t, asked)
	require.Len(t, s.listed(t, "node"), 1)
}
