package cluster

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
	"time"
)

// Node is one machine of a cluster.
type Node struct {
	Name    string // cp1, cp2, cp3
	Address string // 10.0.0.1 and so on, which only nodes can reach

	cluster *Cluster
	index   int
	dir     string
	pid     int // of its process 1, as the machine counts
	port    int // on the machine's loopback, leads to the API servers
	up      bool
}

func (c *Cluster) node(index int) *Node {
	n := &Node{Name: fmt.Sprintf("cp%d", index+1), Address: fmt.Sprintf("10.0.0.%d", index+1), cluster: c, index: index}
	n.dir = filepath.Join(c.dir, n.Name)
	return n
}

func (n *Node) podCIDR() string { return fmt.Sprintf("10.244.%d.0/24", n.index+1) }

func (c *Cluster) cgroup() string { return "/etcd-snapshot-" + short(c.dir) }
func (n *Node) cgroup() string    { return n.cluster.cgroup() + "/" + n.Name }

// short tells names apart in few letters.
func short(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:4])
}

// Path is where a file of the node is for us. It ends when the node does.
func (n *Node) Path(file string) string { return fmt.Sprintf("/proc/%d/root%s", n.pid, file) }

// ExecError is how a command on a node failed.
type ExecError struct {
	Node           string
	Command        []string
	Stdout, Stderr string
	Err            error
}

func (e *ExecError) Error() string {
	return fmt.Sprintf("%s: %s: %v\n%s%s", e.Node, strings.Join(e.Command, " "), e.Err, e.Stdout, e.Stderr)
}

func (e *ExecError) Unwrap() error { return e.Err }

// Exec runs a command on the node as root, and gives what it printed to stdout. PATH has Kubernetes' and etcd's programs, the
// node's systemctl and the machine's own; KUBECONFIG is the node's administrator. Errors: *ExecError. If ctx ends the
// command is killed.
func (n *Node) Exec(ctx context.Context, command ...string) ([]byte, error) {
	cmd := n.Command(ctx, command...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.Bytes(), &ExecError{n.Name, command, stdout.String(), stderr.String(), errors.Join(ctx.Err(), err)}
	}
	return stdout.Bytes(), nil
}

// Command is Exec for who wants to handle input and output.
func (n *Node) Command(ctx context.Context, command ...string) *exec.Cmd {
	args := append([]string{"--target", fmt.Sprint(n.pid), "--mount", "--net", "--uts", "--pid", "--"}, command...)
	cmd := exec.CommandContext(ctx, "nsenter", args...)
	cmd.Env = n.environ()
	killGroup(cmd) // nsenter's child, too
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

func (n *Node) environ() []string {
	path := append(slices.Clone(n.cluster.parts), "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
	return []string{"PATH=" + strings.Join(path, ":"), "HOME=/var/lib/root", "KUBECONFIG=" + adminConf, "LANG=C.UTF-8"}
}

// Boot switches the node on: its disk is as it was, or new if it is gone, with nothing but the images. On return containerd
// serves; the rest follows by itself.
func (n *Node) Boot(ctx context.Context) error {
	fresh := !isDir(n.dir)
	if fresh {
		if err := n.lay(); err != nil {
			return fmt.Errorf("lay out %s: %w", n.Name, err)
		}
	}
	if err := n.start(ctx); err != nil {
		return err
	}
	if err := n.link(ctx); err != nil {
		return err
	}
	if fresh {
		for _, file := range n.cluster.images {
			if err := n.load(ctx, file); err != nil {
				return err
			}
		}
	}
	return nil
}

func (n *Node) load(ctx context.Context, file string) error {
	if _, err := n.Exec(ctx, "ctr", "-n", "k8s.io", "images", "import", file); err != nil {
		return fmt.Errorf("load image %s: %w", file, err)
	}
	return nil
}

// Erase destroys the disk of a node that was killed.
func (n *Node) Erase() error { return os.RemoveAll(n.dir) }

// start starts process 1 and waits for containerd.
func (n *Node) start(ctx context.Context) error {
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", n.port)) // 0 at first: any
	if err != nil {
		return err
	}
	defer listener.Close()
	n.port = listener.Addr().(*net.TCPAddr).Port
	way, err := listener.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	defer way.Close()
	log, err := os.OpenFile(filepath.Join(n.dir, "node.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{n.dir, n.Address}
	for _, other := range n.cluster.Nodes {
		if other != n {
			args = append(args, other.Address)
		}
	}
	cmd := exec.Command(filepath.Join(n.cluster.dir, "bin", "node"), args...)
	cmd.Env, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = n.environ(), log, log, []*os.File{way}
	inNamespaces(cmd)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", n.Name, err)
	}
	n.pid = cmd.Process.Pid
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // why it ended is in its log
	}()
	for {
		_, err := n.Exec(ctx, "ctr", "version")
		if err == nil {
			return nil
		}
		select {
		case <-ended:
			return fmt.Errorf("%s ended", n.Name)
		case <-ctx.Done():
			return err
		case <-time.After(pollTime):
		}
	}
}

// lay lays out the node's folder.
func (n *Node) lay() error {
	for _, dir := range []string{"etc.work", "services", "var/lib/root", "var/lib/kubelet", "var/log"} {
		if err := os.MkdirAll(filepath.Join(n.dir, dir), 0o755); err != nil {
			return err
		}
	}
	// If the machine is a Kubernetes node itself, this one shall not see it.
	for _, dir := range []string{"kubernetes", "cni", "containerd"} {
		if err := opaque(filepath.Join(n.dir, "etc", dir)); err != nil {
			return err
		}
	}
	hosts, err := os.ReadFile("/etc/hosts")
	if err != nil {
		return err
	}
	hosts = fmt.Append(hosts, "\n127.0.0.1 control-plane\n")
	for _, other := range n.cluster.Nodes {
		hosts = fmt.Appendf(hosts, "%s %s\n", other.Address, other.Name)
	}
	values := map[string]string{"PodCIDR": n.podCIDR(), "PauseImage": pauseImage}
	for file, text := range nodeFiles {
		if err := n.writeFile(file, text, values); err != nil {
			return err
		}
	}
	return errors.Join(os.WriteFile(filepath.Join(n.dir, "etc/hosts"), hosts, 0o644), makeCgroups(n.cgroup()))
}

func (n *Node) writeFile(file, text string, values any) error {
	t, err := template.New(file).Parse(text)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := t.Execute(&b, values); err != nil {
		return err
	}
	file = filepath.Join(n.dir, file)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, b.Bytes(), 0o755)
}

// writeTemplate writes a file on the running node.
func (n *Node) writeTemplate(file string, t *template.Template, values any) error {
	var b bytes.Buffer
	if err := t.Execute(&b, values); err != nil {
		return err
	}
	return os.WriteFile(n.Path(file), b.Bytes(), 0o600)
}

const pauseImage = repository + "/pause:1"

// nodeFiles is what a node has from the start.
var nodeFiles = map[string]string{
	"etc/containerd/config.toml": `version = 2

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{{ .PauseImage }}"
  # Without CAP_SYS_RESOURCE runc may not lower it, and no pod would start.
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
`,
	"etc/cni/net.d/10-bridge.conflist": `{
  "cniVersion": "0.4.0",
  "name": "pods",
  "plugins": [
    {
      "type": "bridge",
      "bridge": "cni0",
      "isDefaultGateway": true,
      "hairpinMode": true,
      "ipam": {"type": "host-local", "ranges": [[{"subnet": "{{ .PodCIDR }}"}]]}
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`,
	"services/containerd": `#!/bin/sh
exec containerd --config /etc/containerd/config.toml
`,
	// A service that kubeadm has not configured yet ends, and is started again. The rest is as kubeadm's own drop-in for
	// systemd has it.
	"services/kubelet": `#!/bin/sh
[ -f /var/lib/kubelet/config.yaml ] || exit 0
. /var/lib/kubelet/kubeadm-flags.env
exec kubelet --bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf \
	--config=/var/lib/kubelet/config.yaml $KUBELET_KUBEADM_ARGS
`,
	"services/kube-proxy": `#!/bin/sh
[ -f ` + proxyYAML + ` ] || exit 0
exec kube-proxy --config=` + proxyYAML + `
`,
}

// link joins the node with those that are up.
func (n *Node) link(ctx context.Context) error {
	n.cluster.mu.Lock()
	defer n.cluster.mu.Unlock()
	for _, other := range n.cluster.Nodes {
		if other.up && other != n {
			if err := n.linkTo(ctx, other); err != nil {
				return err
			}
		}
	}
	n.up = true
	return nil
}

func (n *Node) linkTo(ctx context.Context, other *Node) error {
	// The link of a node that was killed goes with it, but not at once. That there is none is no error.
	_, _ = other.Exec(ctx, "ip", "link", "del", "to-"+n.Name)
	add := exec.CommandContext(ctx, "ip", "link", "add", "to-"+other.Name, "netns", fmt.Sprint(n.pid), "type", "veth",
		"peer", "name", "to-"+n.Name, "netns", fmt.Sprint(other.pid))
	if out, err := add.CombinedOutput(); err != nil {
		return fmt.Errorf("link %s with %s: %w: %s", n.Name, other.Name, err, out)
	}
	for _, ends := range [][2]*Node{{n, other}, {other, n}} {
		here, there := ends[0], ends[1]
		dev := "to-" + there.Name
		for _, args := range []string{
			"link set " + dev + " up",
			"route add " + there.Address + "/32 dev " + dev + " src " + here.Address,
			"route add " + there.podCIDR() + " via " + there.Address + " dev " + dev + " onlink",
		} {
			if _, err := here.Exec(ctx, append([]string{"ip"}, strings.Fields(args)...)...); err != nil {
				return err
			}
		}
	}
	return nil
}
