// Package cluster runs a whole Kubernetes control plane as kubeadm makes it, of one node or of three with stacked etcd,
// on one machine without a container engine or a registry. It is for tests, and for trying things out by hand.
//
// A node is a process with namespaces of its own (files, network, processes, host name), in which it is process 1 and
// keeps containerd, kubelet and kube-proxy running: see ./node. /etc, /run, /var/lib and /var/log are the node's own, at
// their real paths; the rest is the machine's, so that Debian's containerd, runc and CNI plugins serve every node. The
// program kubeadm itself does the rest, `kubeadm init` and `kubeadm join --control-plane`, with Kubernetes and etcd built
// by ci/parts and put into images by ./image.
//
//	             127.0.0.1:PORT of the machine             in a node's /etc/hosts: control-plane = 127.0.0.1
//	kubectl ──▶ [process 1 of cp1: balances] ──▶ 10.0.0.1:6443, 10.0.0.2:6443, 10.0.0.3:6443
//
// Every two nodes are joined by a link. There is no way from a node to the machine's own network but what Listen and Dial
// make, and nothing of the machine is changed: with process 1 its namespaces end, and with them all that ran, all mounts
// and links. What is left is one folder, and a cgroup.
//
// A node's Service addresses are kube-proxy's, which runs beside kubelet and not as a pod. There is no DNS. Nodes keep
// the control plane's taint.
//
// It needs Linux with cgroup v1 (which kubelet 1.34 and Debian's containerd 1.6 agree on), root, and the packages that
// Up names when they are missing.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"etcdsnapshot.dev/ci/cluster/image"
	"etcdsnapshot.dev/ci/parts"
)

// ErrNotUp says that there is no running cluster in the folder.
var ErrNotUp = errors.New("no cluster is up")

// Options of a cluster.
type Options struct {
	// Dir is the cluster's folder, which also tells it from others on the machine. What was there before, running or not,
	// is ended and removed.
	Dir string
	// Nodes is 1 or 3, all of the control plane.
	Nodes int
	// Log is told of each step. It may be nil.
	Log io.Writer
}

// Cluster is a running cluster.
type Cluster struct {
	Nodes []*Node

	dir    string
	log    io.Writer
	parts  []string // folders of programs
	images []string // archives of what every node runs
	start  time.Time

	mu sync.Mutex // held while nodes are linked
}

const (
	upTime   = 15 * time.Minute
	pollTime = 100 * time.Millisecond
)

// Up brings a cluster up: its nodes are Ready, and pods can be made. ctx bounds that alone: the cluster goes on until Down,
// also after this process. If it fails what was begun is torn down, but for the logs, which the error quotes.
func Up(ctx context.Context, o Options) (_ *Cluster, err error) {
	if err := supported(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, upTime)
	defer cancel()
	c := &Cluster{dir: o.Dir, log: o.Log, start: time.Now()}
	if c.log == nil {
		c.log = io.Discard
	}
	if err := Down(ctx, c.dir); err != nil {
		return nil, err
	}
	c.say("building what the nodes run")
	if c.images, err = c.build(ctx); err != nil {
		return nil, err
	}
	for i := range o.Nodes {
		c.Nodes = append(c.Nodes, c.node(i))
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("bring up a cluster in %s: %w", c.dir, err), c.logTails(), c.stop())
		}
	}()
	c.say("starting %d node(s), loading the images", o.Nodes)
	var boot errgroup.Group
	for _, n := range c.Nodes {
		boot.Go(func() error { return n.Boot(ctx) })
	}
	if err := boot.Wait(); err != nil {
		return nil, err
	}
	if err := c.kubeadm(ctx); err != nil {
		return nil, err
	}
	c.say("the cluster is up")
	return c, nil
}

// Open gives the running cluster of the folder. Errors: ErrNotUp.
func Open(dir string) (*Cluster, error) {
	c := &Cluster{dir: dir, log: io.Discard, start: time.Now()}
	for i := 0; isDir(c.node(i).dir); i++ {
		n := c.node(i)
		if n.pid = processOf(n.dir); n.pid == 0 {
			return nil, fmt.Errorf("%w in %s: the node %s does not run", ErrNotUp, dir, n.Name)
		}
		n.up = true
		c.Nodes = append(c.Nodes, n)
	}
	kubeconfig, err := os.ReadFile(c.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("%w in %s", ErrNotUp, dir)
	}
	if m := outsideURL.FindSubmatch(kubeconfig); m != nil {
		c.Nodes[0].port, _ = strconv.Atoi(string(m[1]))
	}
	if c.images, err = filepath.Glob(filepath.Join(dir, "*.tar")); err != nil {
		return nil, err
	}
	return c, c.findParts(context.Background())
}

// Down ends the cluster of the folder, or what is left of it, and removes the folder. That there is none is no error.
func Down(ctx context.Context, dir string) error {
	c := &Cluster{dir: dir}
	for i := 0; isDir(c.node(i).dir); i++ {
		c.Nodes = append(c.Nodes, c.node(i))
	}
	if err := c.stop(); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// Down ends the cluster and removes its folder.
func (c *Cluster) Down(ctx context.Context) error { return Down(ctx, c.dir) }

func (c *Cluster) stop() error {
	for _, n := range c.Nodes {
		if err := n.Kill(); err != nil {
			return err
		}
	}
	return removeCgroups(c.cgroup())
}

// Kubeconfig is the file of an administrator, for use from outside the nodes.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.dir, "kubeconfig") }

// LoadImage loads the image in an archive of docker's kind, on every node.
func (c *Cluster) LoadImage(ctx context.Context, file string) error {
	for _, n := range c.Nodes {
		if err := n.load(ctx, file); err != nil {
			return err
		}
	}
	return nil
}

// DefaultDir is where the cluster of this checkout lies: two checkouts do not meet.
func DefaultDir() (string, error) {
	cache, err := parts.CacheDir()
	if err != nil {
		return "", err
	}
	here, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := here; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(cache, "clusters", short(dir)), nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%s does not lie in a checkout", here)
		}
	}
}

// repository of the control plane's images. It is nowhere: they are all loaded.
const repository = "cluster.test"

// programs of the control plane by the part that they are built by: each image runs its first, and has all.
var programs = []struct {
	part  string
	names []string
}{
	{"kubernetes", []string{"kube-apiserver"}},
	{"kubernetes-node", []string{"kube-controller-manager"}},
	{"kubernetes-node", []string{"kube-scheduler"}},
	{"etcd-3.6", []string{"etcd", "etcdctl", "etcdutl"}},
}

// build builds programs and images, and gives the images' files.
func (c *Cluster) build(ctx context.Context) (files []string, err error) {
	if err := c.findParts(ctx); err != nil {
		return nil, err
	}
	bin := filepath.Join(c.dir, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return nil, err
	}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", bin+string(filepath.Separator),
		"etcdsnapshot.dev/ci/cluster/node", "etcdsnapshot.dev/ci/cluster/pause")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if _, build.Dir, err = source(); err != nil {
		return nil, err
	}
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the node's programs: %w\n%s", err, out)
	}
	if err := os.Symlink("node", filepath.Join(bin, "systemctl")); err != nil {
		return nil, err
	}
	images := []image.Image{image.Programs(pauseImage, filepath.Join(bin, "pause"))}
	for _, p := range programs {
		dir, err := parts.Dir(ctx, p.part)
		if err != nil {
			return nil, err
		}
		var files []string
		for _, name := range p.names {
			files = append(files, filepath.Join(dir, name))
		}
		tag := kubernetesVersion
		if p.names[0] == "etcd" {
			if tag, err = etcdVersion(ctx); err != nil {
				return nil, err
			}
		}
		images = append(images, image.Programs(repository+"/"+p.names[0]+":"+tag, files...))
	}
	for _, i := range images {
		file := filepath.Join(c.dir, filepath.Base(i.Entrypoint[0])+".tar")
		if err := i.Save(file); err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

// findParts finds the programs that a node has in PATH, and builds those that are not in the cache.
func (c *Cluster) findParts(ctx context.Context) error {
	c.parts = []string{filepath.Join(c.dir, "bin")}
	for _, name := range []string{"kubernetes", "kubernetes-node", "etcd-3.6"} {
		dir, err := parts.Dir(ctx, name)
		if err != nil {
			return err
		}
		c.parts = append(c.parts, dir)
	}
	return nil
}

// source is this file and its folder.
func source() (file, dir string, err error) {
	_, file, _, ok := runtime.Caller(0)
	if !ok || !filepath.IsAbs(file) {
		return "", "", errors.New("ci/cluster must be built without -trimpath: it builds programs of its checkout")
	}
	return file, filepath.Dir(file), nil
}

func (c *Cluster) say(format string, args ...any) {
	fmt.Fprintf(c.log, "%5.1fs  %s\n", time.Since(c.start).Seconds(), fmt.Sprintf(format, args...))
}

// logTails gives the end of each log of the nodes, as an error to go with another.
func (c *Cluster) logTails() error {
	var b strings.Builder
	for _, n := range c.Nodes {
		logs, _ := filepath.Glob(filepath.Join(n.dir, "var/log/*.log"))
		for _, log := range append(logs, filepath.Join(n.dir, "node.log")) {
			data, err := os.ReadFile(log)
			if err != nil || len(data) == 0 {
				continue
			}
			fmt.Fprintf(&b, "--- %s\n%s\n", log, data[max(0, len(data)-3000):])
		}
	}
	return errors.New(b.String())
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
