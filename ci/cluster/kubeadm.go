package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"text/template"

	"etcdsnapshot.dev/ci/parts"
)

const kubernetesVersion = "v1.34.4"

const (
	kubeadmYAML = "/etc/kubernetes/kubeadm.yaml"
	proxyYAML   = "/etc/kubernetes/kube-proxy.yaml"
	adminConf   = "/etc/kubernetes/admin.conf"
	endpoint    = "https://control-plane:8443"
)

// kubeadmConfig is what kubeadm is told, for the first node and for those that join it.
var kubeadmConfig = template.Must(template.New("kubeadm.yaml").Parse(`
{{- define "registration" }}
nodeRegistration:
  name: {{ .Node.Name }}
  criSocket: unix:///run/containerd/containerd.sock
  kubeletExtraArgs:
  - {name: node-ip, value: {{ .Node.Address }}}
  - {name: cgroup-root, value: {{ .Cgroup }}} # each node's own: a kubelet removes what is not of its pods
{{- end -}}
apiVersion: kubeadm.k8s.io/v1beta4
{{- if .First }}
kind: JoinConfiguration
{{- template "registration" . }}
discovery:
  bootstrapToken: {token: {{ .Token }}, apiServerEndpoint: "{{ .First.Address }}:6443", unsafeSkipCAVerification: true}
controlPlane:
  certificateKey: {{ .Key }}
  localAPIEndpoint: {advertiseAddress: {{ .Node.Address }}}
{{- else }}
kind: InitConfiguration
{{- template "registration" . }}
localAPIEndpoint: {advertiseAddress: {{ .Node.Address }}}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: {{ .Version }}
imageRepository: {{ .Repository }}
controlPlaneEndpoint: control-plane:8443
apiServer: {certSANs: [localhost, 127.0.0.1]}
controllerManager:
  extraArgs: [{name: flex-volume-plugin-dir, value: /var/lib/kubelet/volume-plugins}]
etcd:
  local:
    imageTag: {{ .EtcdVersion }}
    # A busy test machine makes everything late.
    extraArgs: [{name: heartbeat-interval, value: "300"}, {name: election-timeout, value: "3000"}]
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
failSwapOn: false
volumePluginDir: /var/lib/kubelet/volume-plugins
# The disk is the machine's, and so is what fills it.
evictionHard: {memory.available: 50Mi, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%, imagefs.inodesFree: 0%}
imageGCHighThresholdPercent: 100
{{- end }}
`))

// kubeadm makes the nodes a cluster.
func (c *Cluster) kubeadm(ctx context.Context) error {
	version, err := etcdVersion(ctx)
	if err != nil {
		return err
	}
	first := c.Nodes[0]
	c.say("%s: kubeadm init", first.Name)
	values := map[string]any{"Node": first, "Cgroup": first.cgroup(), "Version": kubernetesVersion, "Repository": repository, "EtcdVersion": version}
	if err := first.writeTemplate(kubeadmYAML, kubeadmConfig, values); err != nil {
		return err
	}
	if _, err := first.Exec(ctx, "kubeadm", "init", "--config", kubeadmYAML, "--skip-phases=preflight,addon,show-join-command"); err != nil {
		return err
	}
	if err := errors.Join(c.writeKubeconfig(), first.proxy(ctx)); err != nil {
		return err
	}
	for _, n := range c.Nodes[1:] {
		if err := n.Join(ctx); err != nil {
			return err
		}
	}
	c.say("waiting for the nodes to be Ready")
	if _, err := first.Exec(ctx, "kubectl", "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=5m"); err != nil {
		return err
	}
	// Made by a controller a moment after the namespace: without it there are no pods.
	_, err = first.Exec(ctx, "kubectl", "wait", "--for=create", "serviceaccount/default", "--timeout=5m")
	return err
}

// Join makes a node that was booted one of the cluster's, as `kubeadm join --control-plane` on a new machine does.
func (n *Node) Join(ctx context.Context) error {
	first := n.cluster.Nodes[0]
	n.cluster.say("%s: kubeadm join", n.Name)
	token, err := first.Exec(ctx, "kubeadm", "token", "create")
	if err != nil {
		return err
	}
	key, err := first.Exec(ctx, "kubeadm", "init", "phase", "upload-certs", "--upload-certs", "--config", kubeadmYAML)
	if err != nil {
		return err
	}
	said := strings.Fields(string(key)) // a sentence or two, and the key
	values := map[string]any{
		"Node": n, "Cgroup": n.cgroup(), "First": first, "Token": strings.TrimSpace(string(token)), "Key": said[len(said)-1],
	}
	if err := n.writeTemplate(kubeadmYAML, kubeadmConfig, values); err != nil {
		return err
	}
	if _, err := n.Exec(ctx, "kubeadm", "join", "--config", kubeadmYAML, "--skip-phases=preflight"); err != nil {
		return err
	}
	return n.proxy(ctx)
}

var proxyConfig = template.Must(template.New("kube-proxy.yaml").Parse(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: /etc/kubernetes/kube-proxy.conf}
hostnameOverride: {{ .Name }}
mode: iptables
clusterCIDR: 10.244.0.0/16
bindAddress: {{ .Address }}
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s} # the machine's: leave it alone
`))

// proxy gives kube-proxy what it waits for.
func (n *Node) proxy(ctx context.Context) error {
	// The user that Kubernetes has a role for.
	kubeconfig, err := n.cluster.Nodes[0].Exec(ctx, "kubeadm", "kubeconfig", "user", "--client-name=system:kube-proxy", "--config="+kubeadmYAML)
	if err != nil {
		return err
	}
	if err := os.WriteFile(n.Path("/etc/kubernetes/kube-proxy.conf"), kubeconfig, 0o600); err != nil {
		return err
	}
	return n.writeTemplate(proxyYAML, proxyConfig, n)
}

var outsideURL = regexp.MustCompile(`https://127\.0\.0\.1:([0-9]+)`)

// writeKubeconfig writes the administrator's kubeconfig with the address that leads in from outside.
func (c *Cluster) writeKubeconfig() error {
	data, err := os.ReadFile(c.Nodes[0].Path(adminConf))
	if err != nil {
		return err
	}
	outside := fmt.Sprintf("https://127.0.0.1:%d", c.Nodes[0].port)
	return os.WriteFile(c.Kubeconfig(), []byte(strings.ReplaceAll(string(data), endpoint, outside)), 0o600)
}

// etcdVersion is the tag of etcd's image: the version that the part really is.
func etcdVersion(ctx context.Context) (string, error) {
	dir, err := parts.Dir(ctx, "etcd-3.6")
	if err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "etcd"), "--version").Output()
	if err != nil {
		return "", fmt.Errorf("ask etcd for its version: %w", err)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	version, ok := strings.CutPrefix(line, "etcd Version: ")
	if !ok {
		return "", fmt.Errorf("etcd --version says %q", line)
	}
	return version + "-0", nil
}
