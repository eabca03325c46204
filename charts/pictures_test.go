package charts

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"etcdsnapshot.dev/agent/api"
	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/ci/etcdtest"
	"etcdsnapshot.dev/ci/kubetest"
	"etcdsnapshot.dev/ci/parts"
	"etcdsnapshot.dev/ci/pictures"
	"etcdsnapshot.dev/ci/promtest"
)

var makePictures = flag.Bool("pictures", false, "make the pictures in docs/pictures anew (make pictures)")

const (
	dashboardPicture = "dashboard.png"
	dashboardChecked = "dashboard.sha256"
	// pictured is how many snapshots are taken for the pictures. On a machine that does nothing else it takes a minute or two.
	pictured = 48
)

// TestPictures keeps the pictures in step with what they show; with -pictures it makes them anew, of real runs: the agent
// takes snapshots of a real etcd that is written to, and records them in a real API server; kube-state-metrics and
// Prometheus make of it what the dashboard asks for. That of a restore is of TestDisaster's cluster (ci/e2e).
func TestPictures(t *testing.T) {
	if *makePictures {
		makeAll(t)
	}
	sum, err := os.ReadFile(pictures.File(dashboardChecked))
	require.NoError(t, err)
	require.Equal(t, dashboardSum(t), strings.TrimSpace(string(sum)), "the dashboard was changed after its picture was made: run `make pictures`")
	info, err := os.Stat(pictures.File(dashboardPicture))
	require.NoError(t, err)
	require.Less(t, info.Size(), int64(400<<10))

	// What terminals show has the columns that kubectl prints by the CRD, and those that status prints.
	table := terminal(t, "snapshots.svg")
	crd, err := api.CRD(v1.SnapshotResource)
	require.NoError(t, err)
	require.Equal(t, strings.Join(columnsOf(t, crd), " "), strings.Join(strings.Fields(table[1]), " "), "the CRD's columns were changed: run `make pictures`")
	require.Greater(t, len(table), 3)
	verb, err := os.ReadFile("../agent/cli/safe.go")
	require.NoError(t, err)
	headers := 0
	for _, line := range terminal(t, "status.svg")[1:] {
		if line == strings.ToUpper(line) && !strings.ContainsAny(line, "0123456789") { // a line of headers
			headers++
			for _, h := range regexp.MustCompile(` {2,}`).Split(line, -1) {
				require.Contains(t, string(verb), `"`+h+`"`, "status prints other columns: run `make pictures`")
			}
		}
	}
	require.Equal(t, 2, headers)

	verb, err = os.ReadFile("../agent/cli/doctor.go")
	require.NoError(t, err)
	require.Contains(t, string(verb), `"`+strings.Join(strings.Fields(terminal(t, "doctor.svg")[1]), `", "`)+`"`, "doctor prints other columns: run `make pictures`")
	verb, err = os.ReadFile("../agent/cli/restore.go")
	require.NoError(t, err)
	labels := 0
	for _, line := range terminal(t, "restore.svg") {
		if m := regexp.MustCompile(`^  ([A-Z][A-Z0-9 ]+?) {2,}`).FindStringSubmatch(line); m != nil {
			labels++
			require.Contains(t, string(verb), `"  `+m[1]+`"`, "restore prints other lines: run `make e2e TESTFLAGS='-run TestDisaster$$ -pictures'`")
		}
	}
	require.GreaterOrEqual(t, labels, 7)
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
	draw(t, "snapshots.svg", "kubectl get etcdsnapshots -n kube-system", command(t, "", kubectl, "--kubeconfig", kubeconfig, "get", "etcdsnapshots", "-n", "kube-system"))
	draw(t, "status.svg", "etcd-snapshot-agent status --policy etcd -n kube-system", statusOf(t, agent, from))
	doctor := []string{"doctor", "--node", "cp1", "--spool-dir", filepath.Join(dir, "spool")}
	draw(t, "doctor.svg", "etcd-snapshot-agent doctor --policy etcd -n kube-system", shortened(command(t, "", agent, append(doctor, from...)...),
		cluster.Certs.CAFile, "/etc/etcd/pki/ca.crt", cluster.Certs.ClientCertFile, "/etc/etcd/pki/client.crt", cluster.Certs.ClientKeyFile, "/etc/etcd/pki/client.key",
		filepath.Join(dir, "node"), "/var/lib/etcd-snapshots", filepath.Join(dir, "nfs"), "/mnt/nfs/etcd", filepath.Join(dir, "spool"), "/var/tmp/spool"))
	if _, err := exec.LookPath("chromium"); err != nil {
		t.Log("the dashboard's picture is left as it is: ", err)
		return
	}
	drawDashboard(t, prometheus, begin, end)
}

// shortened puts short paths in the cells of a table, and sets its last column beside them.
func shortened(table string, paths ...string) string {
	r := strings.NewReplacer(paths...)
	lines := strings.Split(table, "\n")
	last, widest := strings.LastIndex(lines[0], " ")+1, 0
	cells := func(l string) string { return strings.TrimRight(r.Replace(l[:last]), " ") }
	for _, l := range lines {
		if len(l) > last {
			widest = max(widest, len(cells(l)))
		}
	}
	for i, l := range lines {
		if len(l) > last {
			lines[i] = fmt.Sprintf("%-*s   %s", widest, cells(l), r.Replace(l[last:]))
		}
	}
	return strings.Join(lines, "\n")
}

func draw(t *testing.T, name, command, output string) {
	t.Helper()
	require.NoError(t, pictures.DrawTerminal(name, command, output))
}

func terminal(t *testing.T, name string) []string {
	t.Helper()
	lines, err := pictures.TerminalLines(name)
	require.NoError(t, err)
	return lines
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
	out, err = exec.CommandContext(ctx, "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--user-data-dir="+filepath.Join(dir, "profile"), "--hide-scrollbars",
		"--window-size=1208,1420", "--allow-file-access-from-files", "--virtual-time-budget=8000", "--screenshot="+pictures.File(dashboardPicture), "file://"+filepath.Join(dir, "index.html")).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, os.WriteFile(pictures.File(dashboardChecked), []byte(dashboardSum(t)+"\n"), 0o644))
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
