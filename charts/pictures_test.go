package charts

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"html"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"etcdsnapshot.dev/agent/api"
	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/ci/etcdtest"
	"etcdsnapshot.dev/ci/kubetest"
	"etcdsnapshot.dev/ci/parts"
	"etcdsnapshot.dev/ci/promtest"
)

var makePictures = flag.Bool("pictures", false, "make the pictures in docs/pictures anew (make pictures)")

const (
	pictures = "../docs/pictures/"
	// pictured is how many snapshots are taken for the pictures. On a machine that does nothing else it takes a minute or two.
	pictured = 48
)

// TestPictures keeps the pictures in step with what they show; with -pictures it makes them anew, of real runs: the agent
// takes snapshots of a real etcd that is written to, and records them in a real API server; kube-state-metrics and
// Prometheus make of it what the dashboard asks for.
func TestPictures(t *testing.T) {
	if *makePictures {
		makeAll(t)
	}
	sum, err := os.ReadFile(pictures + "dashboard.sha256")
	require.NoError(t, err)
	require.Equal(t, dashboardSum(t), strings.TrimSpace(string(sum)), "the dashboard was changed after its picture was made: run `make pictures`")
	info, err := os.Stat(pictures + "dashboard.png")
	require.NoError(t, err)
	require.Less(t, info.Size(), int64(400<<10))

	// What terminals show has the columns that kubectl prints by the CRD, and those that status prints.
	table := readSVG(t, "snapshots.svg")
	crd, err := api.CRD(v1.SnapshotResource)
	require.NoError(t, err)
	require.Equal(t, strings.Join(columnsOf(t, crd), " "), strings.Join(strings.Fields(table[1]), " "), "the CRD's columns were changed: run `make pictures`")
	require.Greater(t, len(table), 3)
	verb, err := os.ReadFile("../agent/cli/safe.go")
	require.NoError(t, err)
	headers := 0
	for _, line := range readSVG(t, "status.svg")[1:] {
		if line == strings.ToUpper(line) && !strings.ContainsAny(line, "0123456789") { // a line of headers
			headers++
			for _, h := range regexp.MustCompile(` {2,}`).Split(line, -1) {
				require.Contains(t, string(verb), `"`+h+`"`, "status prints other columns: run `make pictures`")
			}
		}
	}
	require.Equal(t, 2, headers)
}

func dashboardSum(t *testing.T) string {
	return fmt.Sprintf("%x", sha256.Sum256(chartFile(t, "monitoring/dashboard.json")))
}

// columnsOf are the headers that kubectl prints.
func columnsOf(t *testing.T, crd []byte) []string {
	t.Helper()
	var c struct {
		Spec struct {
			Versions []struct {
				AdditionalPrinterColumns []struct {
					Name     string
					Priority int
				}
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(crd, &c))
	columns := []string{"NAME"}
	for _, col := range c.Spec.Versions[0].AdditionalPrinterColumns {
		if col.Priority == 0 {
			columns = append(columns, strings.ToUpper(col.Name))
		}
	}
	return columns
}

func makeAll(t *testing.T) {
	require.NoError(t, os.MkdirAll(pictures, 0o755))
	dir := t.TempDir()
	agent := filepath.Join(dir, "etcd-snapshot-agent")
	command(t, "", "go", "build", "-o", agent, "../agent")

	s := kubetest.New(t)
	for _, resource := range []string{v1.PolicyResource, v1.SnapshotResource} {
		crd, err := api.CRD(resource)
		require.NoError(t, err)
		require.NoError(t, s.Apply(t.Context(), "", crd))
	}
	cluster := etcdtest.Start(t, etcdtest.Options{TLS: true, CertLifetime: 365 * 24 * time.Hour})
	values, err := json.Marshal(map[string]any{
		"fullnameOverride": "etcd", "clusterName": "prod-eu", "schedule": "* * * * *",
		"etcd": map[string]any{"endpoints": cluster.Endpoints(), "caFile": cluster.Certs.CAFile, "certFile": cluster.Certs.ClientCertFile, "keyFile": cluster.Certs.ClientKeyFile},
		"destinations": map[string]any{
			"node": map[string]any{"hostPath": map[string]any{"path": filepath.Join(dir, "node")}, "retention": map[string]any{"last": 6}},
			"nfs":  map[string]any{"hostPath": map[string]any{"path": filepath.Join(dir, "nfs")}, "retention": map[string]any{"last": 12}},
		},
		"monitoring": map[string]any{"prometheusRule": map[string]any{"enabled": true}},
	})
	require.NoError(t, err)
	o := render(t, rendering{release: "etcd", values: string(values)})
	policy, err := json.Marshal(o.policy(t))
	require.NoError(t, err)
	require.NoError(t, s.Apply(t.Context(), "kube-system", policy))
	kubeconfig := filepath.Join(dir, "kubeconfig")
	require.NoError(t, kubetest.WriteKubeconfig(kubeconfig, s.Admin(), "kube-system"))
	ksm := startKubeStateMetrics(t, s)
	prometheus := startPrometheus(t, ksm, prometheusRule(t, o).Object["spec"].(map[string]any))

	from := []string{"--policy", "etcd", "-n", "kube-system", "--kubeconfig", kubeconfig}
	begin := time.Now()
	for i := range pictured {
		cluster.MustFill(t, int64(1+i%3)<<20)
		command(t, "", agent, append([]string{"snapshot", "--node", "cp1", "--schedule", "* * * * *", "--spool-dir", filepath.Join(dir, "spool")}, from...)...)
		if i%4 == 3 {
			command(t, "", agent, append([]string{"verify", "--latest", "--level", "database", "--scratch-dir", dir}, from...)...)
		}
	}
	// What the last run left is to be scraped.
	promtest.Eventually(t, func() error {
		if n := len(prometheus.Query(`etcd_snapshot_snapshot_info`)); n == 0 || len(prometheus.Query(`etcd_snapshot_destination_snapshots == 12`)) == 0 {
			return fmt.Errorf("%d snapshots are known", n)
		}
		return nil
	})
	end := time.Now()
	kubectl := filepath.Join(parts.Require(t, "kubernetes"), "kubectl")
	writeSVG(t, "snapshots.svg", "kubectl get etcdsnapshots -n kube-system", command(t, "", kubectl, "--kubeconfig", kubeconfig, "get", "etcdsnapshots", "-n", "kube-system"))
	writeSVG(t, "status.svg", "etcd-snapshot-agent status --policy etcd -n kube-system", statusOf(t, agent, from))
	drawDashboard(t, prometheus, begin, end)
}

// statusOf is what the verb prints; its exit code is a judgement and no failure.
func statusOf(t *testing.T, agent string, from []string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), agent, append([]string{"status"}, from...)...).Output()
	if exit := new(exec.ExitError); !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	require.NotEmpty(t, out)
	return string(out)
}

// drawDashboard asks Prometheus what the dashboard asks, and has Grafana's components draw the answers.
func drawDashboard(t *testing.T, prometheus *promtest.Program, from, to time.Time) {
	t.Helper()
	var d struct {
		Panels []struct {
			ID      int
			Targets []struct {
				RefID   string `json:"refId"`
				Expr    string
				Instant bool
			}
		}
	}
	source := chartFile(t, "monitoring/dashboard.json")
	require.NoError(t, json.Unmarshal(source, &d))
	answers := map[int]map[string]json.RawMessage{}
	for _, p := range d.Panels {
		answers[p.ID] = map[string]json.RawMessage{}
		for _, target := range p.Targets {
			expr := strings.NewReplacer("$namespace", ".*", "$policy", ".*", "$__range", "1m").Replace(target.Expr)
			query := url.Values{"query": {expr}}
			path := "/api/v1/query?time=" + fmt.Sprint(to.Unix()) + "&"
			if !target.Instant {
				path = fmt.Sprintf("/api/v1/query_range?start=%d&end=%d&step=1&", from.Unix(), to.Unix())
			}
			body, err := prometheus.Get(path + query.Encode())
			require.NoError(t, err)
			var answer struct {
				Data struct{ Result json.RawMessage }
			}
			require.NoError(t, json.Unmarshal(body, &answer))
			answers[p.ID][target.RefID] = answer.Data.Result
		}
	}
	data, err := json.Marshal(map[string]any{"dashboard": json.RawMessage(source), "answers": answers, "from": from.UnixMilli(), "to": to.UnixMilli()})
	require.NoError(t, err)

	modules := grafanaComponents(t)
	dir := t.TempDir()
	jsx, err := filepath.Abs("../ci/pictures/grafana/dashboard.jsx")
	require.NoError(t, err)
	bundle := exec.CommandContext(t.Context(), filepath.Join(modules, ".bin", "esbuild"), jsx, "--bundle", "--minify", "--outfile="+filepath.Join(dir, "out.js"),
		"--loader:.svg=dataurl", "--loader:.woff2=dataurl", "--loader:.ttf=empty", `--define:process.env.NODE_ENV="production"`, "--log-level=error")
	bundle.Env = append(os.Environ(), "NODE_PATH="+modules)
	out, err := bundle.CombinedOutput()
	require.NoError(t, err, "%s", out)
	page := `<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="out.css"><body style="margin:0;background:#111217">` +
		`<div id="dashboard"></div><script>window.picture=` + string(data) + `</script><script src="out.js"></script>`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "index.html"), []byte(page), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), promtest.Patience)
	defer cancel()
	png, err := filepath.Abs(pictures + "dashboard.png")
	require.NoError(t, err)
	out, err = exec.CommandContext(ctx, "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--user-data-dir="+filepath.Join(dir, "profile"), "--hide-scrollbars",
		"--window-size=1208,1420", "--allow-file-access-from-files", "--virtual-time-budget=8000", "--screenshot="+png, "file://"+filepath.Join(dir, "index.html")).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, os.WriteFile(pictures+"dashboard.sha256", []byte(dashboardSum(t)+"\n"), 0o644))
}

// grafanaComponents gives the node_modules of ci/pictures/grafana, which lies in the cache and is filled once for each lock file.
func grafanaComponents(t *testing.T) string {
	t.Helper()
	const source = "../ci/pictures/grafana/"
	lock, err := os.ReadFile(source + "package-lock.json")
	require.NoError(t, err)
	cache, err := parts.CacheDir()
	require.NoError(t, err)
	dir := filepath.Join(cache, fmt.Sprintf("grafana-components-%.12x", sha256.Sum256(lock)))
	modules := filepath.Join(dir, "node_modules")
	if _, err := os.Stat(filepath.Join(dir, "done")); err == nil {
		return modules
	}
	require.NoError(t, os.MkdirAll(dir, 0o755))
	for _, name := range []string{"package.json", "package-lock.json", ".npmrc"} {
		data, err := os.ReadFile(source + name)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o644))
	}
	command(t, dir, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "done"), nil, 0o644))
	return modules
}

func command(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s %v\n%s%s", name, args, out, stderr.String())
	return string(out)
}

// writeSVG draws what a command printed as a terminal shows it. Any font that is monospaced will do: each line is as
// wide as it says.
func writeSVG(t *testing.T, name, command, output string) {
	t.Helper()
	const cell, height, margin = 7.8, 20, 16
	lines := append([]string{"$ " + command}, strings.Split(strings.TrimRight(output, "\n"), "\n")...)
	columns := 0
	for _, l := range lines {
		columns = max(columns, utf8.RuneCountInString(l))
	}
	width, total := int(float64(columns)*cell)+2*margin, (len(lines)+1)*height+2*margin
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-labelledby="title desc">`+"\n", width, total, width, total)
	fmt.Fprintf(&b, "<title id=\"title\">%s</title>\n<desc id=\"desc\">What the command printed in a real run.</desc>\n", html.EscapeString(command))
	fmt.Fprintf(&b, `<rect width="%d" height="%d" rx="8" fill="#1b1f27" stroke="#57606a"/>`+"\n", width, total)
	for i, colour := range []string{"#ff5f57", "#febc2e", "#28c840"} {
		fmt.Fprintf(&b, `<circle cx="%d" cy="18" r="5" fill="%s"/>`+"\n", 20+i*18, colour)
	}
	b.WriteString(`<g font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace" font-size="13" fill="#e6edf3">` + "\n")
	for i, l := range lines {
		l = strings.TrimRight(l, " ")
		if l == "" {
			continue
		}
		fill := ""
		if i == 0 {
			fill = ` fill="#7ee787"`
		}
		fmt.Fprintf(&b, `<text x="%d" y="%d" textLength="%.1f" xml:space="preserve"%s>%s</text>`+"\n", margin, margin+(i+2)*height-6, float64(utf8.RuneCountInString(l))*cell, fill, html.EscapeString(l))
	}
	b.WriteString("</g>\n</svg>\n")
	require.NoError(t, os.WriteFile(pictures+name, []byte(b.String()), 0o644))
}

// readSVG gives the lines of a picture that writeSVG drew.
func readSVG(t *testing.T, name string) (lines []string) {
	t.Helper()
	data, err := os.ReadFile(pictures + name)
	require.NoError(t, err)
	for _, l := range strings.Split(string(data), "\n") {
		if text, ok := strings.CutSuffix(l, "</text>"); ok {
			lines = append(lines, html.UnescapeString(text[strings.Index(text, ">")+1:]))
		}
	}
	return lines
}
