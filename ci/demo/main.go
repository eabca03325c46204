// Command demo runs the main job on a machine without a cluster, with nothing faked: a real etcd server with TLS and
// client certificates, filled with Kubernetes-shaped objects; the policy as `helm install` would render it; the
// static agent; and etcd's own tool as the judge of what was stored.
//
// It keeps everything under -dir and leaves the snapshots there, so that the reader can look at them.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/releaseutil"
	batchv1 "k8s.io/api/batch/v1"
	"sigs.k8s.io/yaml"

	"etcdsnapshot.dev/ci/etcdtest"
	"etcdsnapshot.dev/ci/parts"
)

func main() {
	agent := flag.String("agent", "bin/etcd-snapshot-agent", "the agent to run")
	dir := flag.String("dir", ".demo", "folder for everything the demo makes")
	chart := flag.String("chart", "charts/etcd-snapshot", "the chart")
	fill := flag.Int64("fill", 64, "MiB of objects to write to etcd")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	d := &demo{agent: abs(*agent), dir: abs(*dir), chart: abs(*chart), fill: *fill << 20, out: os.Stdout}
	if err := d.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

type demo struct {
	agent, dir, chart string
	// fill is how many bytes are written to etcd.
	fill  int64
	out   io.Writer
	steps int
}

func (d *demo) run(ctx context.Context) error {
	if err := os.RemoveAll(d.dir); err != nil {
		return err
	}
	if err := os.MkdirAll(d.path("store"), 0o700); err != nil {
		return err
	}
	cluster, err := d.startEtcd(ctx)
	if err != nil {
		return err
	}
	defer cluster.Stop()
	identity, err := d.makeIdentity()
	if err != nil {
		return err
	}
	if err := d.renderPolicy(cluster, identity.Recipient()); err != nil {
		return err
	}

	d.step("Take a snapshot: streamed, its checksum compared, compressed, encrypted, stored twice, checked again")
	if err := d.runAgent(ctx, "snapshot", "--policy-file", d.path("policy.yaml"), "--spool-dir", d.path("spool"), "--node", "demo"); err != nil {
		return err
	}
	d.step("List what is stored")
	if err := d.runAgent(ctx, "list", "--policy-file", d.path("policy.yaml")); err != nil {
		return err
	}
	d.step("Prove that it can be restored, by restoring it: an etcd starts from each copy and serves every key")
	if err := d.runAgent(ctx, "verify", "--policy-file", d.path("policy.yaml"), "--level", "restore", "--identity", d.path("identity.txt"), "--scratch-dir", d.path("scratch")); err != nil {
		return err
	}
	if err := d.judge(ctx, identity); err != nil {
		return err
	}
	d.say(`
That was the main job. On a real cluster (kubeadm; see README.md for the others) it is:

  helm install etcd-snapshot charts/etcd-snapshot -n kube-system
  kubectl -n kube-system create job --from=cronjob/etcd-snapshot first
  kubectl -n kube-system get esp,esnap

The snapshots of this demo are under %s.`, d.rel("store"))
	return nil
}

func (d *demo) startEtcd(ctx context.Context) (*etcdtest.Cluster, error) {
	d.step("Start a real etcd with TLS and client certificates")
	cluster, err := etcdtest.New(ctx, d.path("etcd"), etcdtest.Options{Version: "3.6", TLS: true})
	if err != nil {
		return nil, err
	}
	d.say("etcd %s answers at %s", "3.6", cluster.Members[0].ClientURL)
	d.step("Fill it with Kubernetes-shaped objects")
	begin := time.Now()
	n, err := cluster.Fill(ctx, d.fill)
	if err != nil {
		cluster.Stop()
		return nil, err
	}
	d.say("%d objects, %d MB, in %s", n, d.fill>>20, time.Since(begin).Round(100*time.Millisecond))
	return cluster, nil
}

// makeIdentity makes the key pair that the snapshots are encrypted to.
func (d *demo) makeIdentity() (*age.X25519Identity, error) {
	d.step("Make an age key pair: the public half goes into the chart's values, the other half stays with you")
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, err
	}
	d.say("public key %s, identity in %s", id.Recipient(), d.rel("identity.txt"))
	return id, os.WriteFile(d.path("identity.txt"), []byte(id.String()+"\n"), 0o600)
}

// renderPolicy renders the chart as helm install would and keeps the policy out of it.
func (d *demo) renderPolicy(cluster *etcdtest.Cluster, recipient *age.X25519Recipient) error {
	d.step("Render the chart as `helm install` would, and take the policy out of it")
	values := map[string]any{
		"clusterName": "demo",
		"etcd": map[string]any{
			"endpoints": []any{cluster.Members[0].ClientURL},
			"caFile":    cluster.Certs.CAFile, "certFile": cluster.Certs.ClientCertFile, "keyFile": cluster.Certs.ClientKeyFile,
		},
		"encryption": map[string]any{"age": map[string]any{"recipients": []any{recipient.String()}}},
		"destinations": map[string]any{
			"node": map[string]any{"hostPath": map[string]any{"path": d.path("store/node")}},
			"nfs":  map[string]any{"hostPath": map[string]any{"path": d.path("store/nfs")}, "retention": map[string]any{"daily": 14, "weekly": 8}},
		},
	}
	text, err := yaml.Marshal(values)
	if err != nil {
		return err
	}
	if err := os.WriteFile(d.path("values.yaml"), text, 0o600); err != nil {
		return err
	}
	d.say("$ helm install etcd-snapshot charts/etcd-snapshot -n kube-system -f %s\n", d.rel("values.yaml"))
	objects, err := render(d.chart, values)
	if err != nil {
		return err
	}
	for _, o := range objects {
		var head struct {
			Kind     string
			Metadata struct{ Name string }
		}
		if err := yaml.Unmarshal([]byte(o), &head); err != nil {
			return err
		}
		line := head.Kind + "/" + head.Metadata.Name
		switch head.Kind {
		case "EtcdSnapshotPolicy":
			if err := os.WriteFile(d.path("policy.yaml"), []byte(o), 0o600); err != nil {
				return err
			}
			line += "   → " + d.rel("policy.yaml")
		case "CronJob":
			var job batchv1.CronJob
			if err := yaml.UnmarshalStrict([]byte(o), &job); err != nil {
				return err
			}
			line += fmt.Sprintf("   schedule %q, on nodes with %v", job.Spec.Schedule, job.Spec.JobTemplate.Spec.Template.Spec.NodeSelector)
		}
		d.say("  %s", line)
	}
	if _, err := os.Stat(d.path("policy.yaml")); err != nil {
		return errors.New("the chart rendered no EtcdSnapshotPolicy")
	}
	return nil
}

// render gives the objects that the chart renders, in the order Helm installs them.
func render(dir string, values map[string]any) ([]string, error) {
	c, err := loader.Load(dir)
	if err != nil {
		return nil, fmt.Errorf("load chart: %w", err)
	}
	install := action.NewInstall(&action.Configuration{Capabilities: chartutil.DefaultCapabilities})
	install.DryRun, install.ClientOnly, install.IncludeCRDs = true, true, true
	install.ReleaseName, install.Namespace = "etcd-snapshot", "kube-system"
	install.KubeVersion = &chartutil.KubeVersion{Version: "v1.34.0", Major: "1", Minor: "34"}
	release, err := install.Run(c, values)
	if err != nil {
		return nil, fmt.Errorf("render chart: %w", err)
	}
	_, objects, err := releaseutil.SortManifests(releaseutil.SplitManifests(release.Manifest), nil, releaseutil.InstallOrder)
	if err != nil {
		return nil, err
	}
	var texts []string
	for _, o := range objects {
		texts = append(texts, o.Content)
	}
	return texts, nil
}

// judge opens the stored file without the agent and asks etcd's own tool about it.
func (d *demo) judge(ctx context.Context, identity age.Identity) error {
	d.step("Prove it without us: open the stored file with age and zstd, and ask etcd's own etcdutl")
	files, err := filepath.Glob(d.path("store/node/demo/*.db.zst.age"))
	if err != nil {
		return err
	}
	if len(files) != 1 {
		return fmt.Errorf("one snapshot is expected in %s, found %v", d.rel("store/node/demo"), files)
	}
	if err := open(files[0], d.path("restored.db"), identity); err != nil {
		return fmt.Errorf("open %s: %w", d.rel(files[0]), err)
	}
	d.say("$ age -d -i %s %s | zstd -d > %s", d.rel("identity.txt"), d.rel(files[0]), d.rel("restored.db"))
	etcd, err := parts.Dir(ctx, "etcd-3.6")
	if err != nil {
		return err
	}
	etcdutl := filepath.Join(etcd, "etcdutl")
	d.say("$ etcdutl snapshot status %s -w table", d.rel("restored.db"))
	if err := d.command(ctx, etcdutl, "snapshot", "status", d.path("restored.db"), "-w", "table"); err != nil {
		return err
	}
	// The status command reads the database; that the checksum at its end is checked is what restore adds.
	d.say("\n$ etcdutl snapshot restore %s --data-dir %s", d.rel("restored.db"), d.rel("restored"))
	var quiet bytes.Buffer
	restore := exec.CommandContext(ctx, etcdutl, "snapshot", "restore", d.path("restored.db"), "--data-dir", d.path("restored"))
	restore.Stderr = &quiet
	if err := restore.Run(); err != nil {
		return fmt.Errorf("etcdutl snapshot restore: %w\n%s", err, quiet.String())
	}
	d.say("restored: etcd's checksum matched and the data directory is whole")
	return nil
}

// open decrypts and decompresses by the two libraries that are the command-line tools' own.
func open(from, to string, identity age.Identity) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	plain, err := age.Decrypt(in, identity)
	if err != nil {
		return err
	}
	dec, err := zstd.NewReader(plain)
	if err != nil {
		return err
	}
	defer dec.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, dec); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

func (d *demo) runAgent(ctx context.Context, args ...string) error {
	var shown []string
	for _, a := range args {
		if filepath.IsAbs(a) {
			a = d.relPath(a)
		}
		shown = append(shown, a)
	}
	d.say("$ etcd-snapshot-agent %s\n", strings.Join(shown, " "))
	return d.command(ctx, d.agent, append(args, "--log-format", "text")...)
}

func (d *demo) command(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = d.out, d.out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(name), err)
	}
	return nil
}

func (d *demo) step(title string) {
	d.steps++
	fmt.Fprintf(d.out, "\n\x1b[1m%d. %s\x1b[0m\n", d.steps, title)
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.out, format+"\n", args...) }

func (d *demo) path(name string) string { return filepath.Join(d.dir, name) }

// rel shows a path as seen from the current folder.
func (d *demo) rel(name string) string {
	if !filepath.IsAbs(name) {
		name = d.path(name)
	}
	return d.relPath(name)
}

func (d *demo) relPath(name string) string {
	wd, err := os.Getwd()
	if err != nil {
		return name
	}
	if rel, err := filepath.Rel(wd, name); err == nil {
		return rel
	}
	return name
}

func abs(p string) string {
	a, err := filepath.Abs(p)
	if err != nil {
		panic(err) // only where the current folder is gone
	}
	return a
}
