// Package e2e runs tests against a whole cluster, with the agent's image loaded into it. By default that is one that
// ci/cluster makes for the tests; with $E2E_KUBECONFIG it is the user's own, such as kind's. The tests have the build
// tag e2e, because they need more than Go: see CONTRIBUTING.md.
package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"etcdsnapshot.dev/ci/cluster"
	"etcdsnapshot.dev/ci/cluster/image"
)

// Environment of the tests, for a cluster of the user's own.
const (
	// KubeconfigEnv names the kubeconfig of an administrator.
	KubeconfigEnv = "E2E_KUBECONFIG"
	// LoadImageEnv is a command that loads an image's archive, whose path is added to it: kind load image-archive.
	LoadImageEnv = "E2E_LOAD_IMAGE"
	// NodeExecEnv is a command that runs a command on a node, both of which are added to it: docker exec.
	NodeExecEnv = "E2E_NODE_EXEC"
)

// Cluster is what the tests run against.
type Cluster struct {
	Kubeconfig string
	Config     *rest.Config
	Client     kubernetes.Interface
	Dynamic    dynamic.Interface
	// Own is the cluster if it is one of ci/cluster, and nil otherwise.
	Own *cluster.Cluster
}

// Main runs a package's tests against a cluster of that many nodes, which use is told of first. It gives the code that
// TestMain exits with. A cluster that is up from `make cluster-up` is taken, and stays; one that is made here is torn
// down in the end, or by the next run.
func Main(m *testing.M, nodes int, use func(*Cluster)) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	code, err := run(ctx, m, nodes, use)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	return code
}

func run(ctx context.Context, m *testing.M, nodes int, use func(*Cluster)) (code int, err error) {
	c, down, err := Open(ctx, nodes)
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, down()) }()
	use(c)
	done := make(chan int)
	go func() { done <- m.Run() }()
	select {
	case code = <-done:
		return search.Report(os.Stderr, code), nil
	case <-ctx.Done():
		return 1, ctx.Err()
	}
}

// Open is Main's part for a test that wants a cluster of its own. down must be called in the end.
func Open(ctx context.Context, nodes int) (c *Cluster, down func() error, err error) {
	c, down = &Cluster{Kubeconfig: os.Getenv(KubeconfigEnv)}, func() error { return nil }
	if c.Kubeconfig == "" {
		if down, err = c.own(ctx, nodes); err != nil {
			return nil, nil, err
		}
	}
	if err := c.connect(ctx); err != nil {
		return nil, nil, errors.Join(err, down())
	}
	return c, down, nil
}

func (c *Cluster) connect(ctx context.Context) (err error) {
	if c.Config, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig); err != nil {
		return err
	}
	c.Config.QPS = -1
	if c.Client, err = kubernetes.NewForConfig(c.Config); err != nil {
		return err
	}
	if c.Dynamic, err = dynamic.NewForConfig(c.Config); err != nil {
		return err
	}
	if err := c.loadAgent(ctx); err != nil {
		return fmt.Errorf("load the agent's image: %w", err)
	}
	return nil
}

// own takes the cluster of `make cluster-up`, or makes one of our own and says how to end it.
func (c *Cluster) own(ctx context.Context, nodes int) (down func() error, err error) {
	dir, err := cluster.DefaultDir()
	if err != nil {
		return nil, err
	}
	down = func() error { return nil }
	c.Own, err = cluster.Open(dir)
	if errors.Is(err, cluster.ErrNotUp) || err == nil && len(c.Own.Nodes) != nodes {
		c.Own, err = cluster.Up(ctx, cluster.Options{Dir: fmt.Sprintf("%s-e2e-%d", dir, nodes), Nodes: nodes, Log: os.Stderr})
		down = func() error { return c.Own.Down(context.Background()) }
	}
	if err != nil {
		return nil, err
	}
	c.Kubeconfig = c.Own.Kubeconfig()
	return down, nil
}

// loadAgent builds the agent as `make image` does, and loads it under the name that the chart asks for.
func (c *Cluster) loadAgent(ctx context.Context) error {
	if out, err := exec.CommandContext(ctx, "make", "-C", Root(), "image-files").CombinedOutput(); err != nil {
		return fmt.Errorf("make image-files: %w\n%s", err, out)
	}
	img, err := agentImage("")
	if err != nil {
		return err
	}
	return c.load(ctx, img)
}

// agentImage is the agent's image, of files that are made already. Without a tag it has the one that the chart asks for.
func agentImage(tag string) (image.Image, error) {
	ch, err := Chart()
	if err != nil {
		return image.Image{}, err
	}
	if tag == "" {
		tag = ch.AppVersion()
	}
	values := ch.Values["image"].(map[string]any)
	name := fmt.Sprintf("%s/%s:%s", values["registry"], values["repository"], tag)
	return image.FromDockerfile(filepath.Join(Root(), "Dockerfile"), name, map[string]string{"TARGETARCH": runtime.GOARCH})
}

// load loads an image on every node.
func (c *Cluster) load(ctx context.Context, img image.Image) error {
	dir, err := os.MkdirTemp("", "e2e")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "image.tar")
	if err := img.Save(file); err != nil {
		return err
	}
	if c.Own != nil {
		return c.Own.LoadImage(ctx, file)
	}
	return c.loadByUser(ctx, file)
}

func (c *Cluster) loadByUser(ctx context.Context, file string) error {
	load := strings.Fields(os.Getenv(LoadImageEnv))
	if len(load) == 0 {
		return fmt.Errorf("%s is set, so %s must be, too: a command that loads an image's archive", KubeconfigEnv, LoadImageEnv)
	}
	out, err := exec.CommandContext(ctx, load[0], append(load[1:], file)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w\n%s", os.Getenv(LoadImageEnv), file, err, out)
	}
	return nil
}

// Agent is the agent's binary for Linux, as it is in the image.
func Agent() string {
	return filepath.Join(Root(), "bin", "etcd-snapshot-agent-linux-"+runtime.GOARCH)
}

// Chart reads the chart. Helm writes into what it renders, so each caller has its own.
func Chart() (*chart.Chart, error) {
	return loader.LoadDir(filepath.Join(Root(), "charts", "etcd-snapshot"))
}

// Root is the checkout.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}

// Exec runs a command on a node as root, and gives what it printed to stdout.
func (c *Cluster) Exec(ctx context.Context, node string, command ...string) ([]byte, error) {
	if c.Own != nil {
		for _, n := range c.Own.Nodes {
			if n.Name == node {
				return n.Exec(ctx, command...)
			}
		}
		return nil, fmt.Errorf("there is no node %s", node)
	}
	prefix := strings.Fields(os.Getenv(NodeExecEnv))
	if len(prefix) == 0 {
		return nil, fmt.Errorf("this test looks at a node's disk: set %s to a command that runs a command on a node", NodeExecEnv)
	}
	args := append(append(prefix[1:], node), command...)
	out, err := exec.CommandContext(ctx, prefix[0], args...).Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", node, strings.Join(command, " "), err)
	}
	return out, nil
}
