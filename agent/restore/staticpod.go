package restore

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// The static pods of a control plane that kubeadm made (kubernetes: cmd/kubeadm/app/constants/constants.go), etcd first:
// in this order they are started.
var controlPlanePods = []string{"etcd.yaml", "kube-apiserver.yaml", "kube-controller-manager.yaml", "kube-scheduler.yaml"}

// DefaultManifestsDir is where the kubelet of a kubeadm node finds its static pods.
const DefaultManifestsDir = "/etc/kubernetes/manifests"

// staticPod is a static pod's manifest: its one container's flags.
type staticPod struct {
	path string
	pod  corev1.Pod
}

func readStaticPod(path string) (*staticPod, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read static pod manifest: %w", err)
	}
	s := &staticPod{path: path}
	if err := yaml.Unmarshal(data, &s.pod); err != nil {
		return nil, fmt.Errorf("read static pod manifest %s: %w", path, err)
	}
	if s.pod.Kind != "Pod" || len(s.pod.Spec.Containers) == 0 {
		return nil, refusedf("%s is not the manifest of a pod", path)
	}
	return s, nil
}

// flag gives the value of a flag of the first container; empty where it is not set. The last one counts.
func (s *staticPod) flag(name string) (value string) {
	c := s.pod.Spec.Containers[0]
	words := append(append([]string{}, c.Command...), c.Args...)
	for i, w := range words {
		w, dashed := strings.CutPrefix(w, "-")
		w = strings.TrimPrefix(w, "-")
		if !dashed {
			continue
		}
		switch key, v, ok := strings.Cut(w, "="); {
		case key != name:
		case ok:
			value = v
		case i+1 < len(words):
			value = words[i+1]
		}
	}
	return value
}

// onHost translates a path in the container to the node's.
func (s *staticPod) onHost(path string) string {
	if path == "" {
		return ""
	}
	volumes := map[string]string{}
	for _, v := range s.pod.Spec.Volumes {
		if v.HostPath != nil {
			volumes[v.Name] = v.HostPath.Path
		}
	}
	best, host := "", path
	for _, m := range s.pod.Spec.Containers[0].VolumeMounts {
		root, ok := volumes[m.Name]
		rel, err := filepath.Rel(m.MountPath, path)
		if !ok || err != nil || rel == ".." || strings.HasPrefix(rel, "../") || len(m.MountPath) < len(best) {
			continue
		}
		best, host = m.MountPath, filepath.Join(root, rel)
	}
	return host
}

var imageVersion = regexp.MustCompile(`^v?(\d+\.\d+\.\d+)`)

// version is what the tag of the image says: 3.5.21 of registry.k8s.io/etcd:3.5.21-0.
func (s *staticPod) version() string {
	image, _, _ := strings.Cut(s.pod.Spec.Containers[0].Image, "@")
	i := strings.LastIndex(image, ":")
	if i < 0 || strings.Contains(image[i:], "/") {
		return ""
	}
	if m := imageVersion.FindStringSubmatch(image[i+1:]); m != nil {
		return m[1]
	}
	return ""
}

// listener is an address that answers as long as a part of the control plane runs.
type listener struct {
	What    string `json:"what"`
	Address string `json:"address"`
}

// controlPlane is what the manifests say of this node.
type controlPlane struct {
	Config      Config
	EtcdVersion string
	// Manifests that are there, of controlPlanePods.
	Manifests []string
	Listeners []listener
	// ReadyURL of the API server; empty where there is none here.
	ReadyURL string
}

// readControlPlane reads the manifests in dir, or in aside where somebody has moved them out of the kubelet's sight.
func readControlPlane(dir, aside string) (*controlPlane, error) {
	cp := &controlPlane{}
	pods := map[string]*staticPod{}
	for _, name := range controlPlanePods {
		s, err := readStaticPod(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			s, err = readStaticPod(filepath.Join(aside, name))
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		pods[name] = s
		cp.Manifests = append(cp.Manifests, name)
	}
	etcd := pods["etcd.yaml"]
	if etcd == nil {
		return nil, refusedf("there is no etcd.yaml in %s: this is not a control plane node that kubeadm made with an etcd of its own. If the manifests are elsewhere name their folder with --manifests-dir; on a new machine restore with --data-dir before kubeadm init (docs/restore.md, Another machine); for other distributions see --distribution", dir)
	}
	cp.EtcdVersion = etcd.version()
	cp.Config = Config{
		DataDir:        etcd.onHost(etcd.flag("data-dir")),
		WALDir:         etcd.onHost(etcd.flag("wal-dir")),
		Name:           etcd.flag("name"),
		InitialCluster: etcd.flag("initial-cluster"),
	}
	if urls := etcd.flag("initial-advertise-peer-urls"); urls != "" {
		cp.Config.PeerURLs = strings.Split(urls, ",")
	}
	for _, need := range []struct{ flag, value string }{{"data-dir", cp.Config.DataDir}, {"name", cp.Config.Name},
		{"initial-cluster", cp.Config.InitialCluster}, {"initial-advertise-peer-urls", etcd.flag("initial-advertise-peer-urls")}} {
		if need.value == "" {
			return nil, refusedf("%s has no --%s: it is not as kubeadm writes it; restore with --data-dir and the other flags instead", etcd.path, need.flag)
		}
	}
	for u := range strings.SplitSeq(etcd.flag("listen-client-urls"), ",") {
		if parsed, err := url.Parse(u); err == nil && parsed.Port() != "" {
			cp.Listeners = append(cp.Listeners, listener{"etcd", parsed.Host})
		}
	}
	for _, part := range []struct{ file, what, port, bind string }{
		{"kube-apiserver.yaml", "kube-apiserver", "6443", "0.0.0.0"},
		{"kube-controller-manager.yaml", "kube-controller-manager", "10257", "0.0.0.0"},
		{"kube-scheduler.yaml", "kube-scheduler", "10259", "0.0.0.0"},
	} {
		s := pods[part.file]
		if s == nil {
			continue
		}
		if port := s.flag("secure-port"); port != "" {
			part.port = port
		}
		if bind := s.flag("bind-address"); bind != "" {
			part.bind = bind
		}
		if part.port == "0" {
			continue
		}
		at := net.JoinHostPort(reachable(part.bind), part.port)
		cp.Listeners = append(cp.Listeners, listener{part.what, at})
		if part.what == "kube-apiserver" {
			cp.ReadyURL = "https://" + at + "/readyz"
		}
	}
	return cp, nil
}

// reachable is where a server on this node that binds to the address is reached.
func reachable(bind string) string {
	ip := net.ParseIP(bind)
	switch {
	case ip == nil || !ip.IsUnspecified():
		return bind
	case ip.To4() == nil:
		return "::1"
	}
	return "127.0.0.1"
}
