package restore_test

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// controlPlaneNode is a node as kubeadm makes it, with a stand-in for the kubelet that runs a real etcd and a server for the
// API server's /readyz, as long as their manifests are in the folder.
type controlPlaneNode struct {
	*member
	dir, manifests string
	apiServer      string // host:port

	closed atomic.Bool  // the API server tells nobody whether it is ready
	asked  atomic.Int64 // how often it was asked since it started

	mu      sync.Mutex
	broken  bool // the kubelet does nothing
	etcd    *exec.Cmd
	api     *httptest.Server
	etcdLog lockedBuffer
}

func newNode(t *testing.T, version string) *controlPlaneNode {
	t.Helper()
	n := &controlPlaneNode{member: newMember(t, version, "cp1"), dir: t.TempDir(), apiServer: freePort(t)}
	n.manifests = filepath.Join(n.dir, "kubernetes", "manifests")
	n.DataDir = filepath.Join(n.dir, "lib", "etcd")
	require.NoError(t, os.MkdirAll(n.manifests, 0o700))
	require.NoError(t, os.MkdirAll(n.DataDir, 0o700))
	return n
}

// install writes the manifests and starts the kubelet.
func (n *controlPlaneNode) install(t *testing.T) {
	t.Helper()
	_, port, err := net.SplitHostPort(n.apiServer)
	require.NoError(t, err)
	etcd := n.command(etcdBinary(t, n.version))
	n.manifest(t, "etcd", "registry.k8s.io/etcd:"+n.version+".1-0", etcd)
	n.manifest(t, "kube-apiserver", "registry.k8s.io/kube-apiserver:v1.34.0", []string{"kube-apiserver", "--secure-port=" + port, "--advertise-address=127.0.0.1"})
	n.manifest(t, "kube-controller-manager", "registry.k8s.io/kube-controller-manager:v1.34.0", []string{"kube-controller-manager", "--secure-port=0"})
	n.manifest(t, "kube-scheduler", "registry.k8s.io/kube-scheduler:v1.34.0", []string{"kube-scheduler", "--secure-port=0"})
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			n.sync()
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		n.set(false, false)
		if t.Failed() {
			t.Logf("etcd printed:\n%s", n.etcdLog.tail())
		}
	})
}

func (n *controlPlaneNode) manifest(t *testing.T, name, image string, command []string) {
	t.Helper()
	kind := corev1.HostPathDirectoryOrCreate
	pod := corev1.Pod{Spec: corev1.PodSpec{HostNetwork: true,
		Containers: []corev1.Container{{Name: name, Image: image, Command: command}}}}
	pod.APIVersion, pod.Kind, pod.Name, pod.Namespace = "v1", "Pod", name, "kube-system"
	if name == "etcd" {
		pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "etcd-data", MountPath: n.DataDir}}
		pod.Spec.Volumes = []corev1.Volume{{Name: "etcd-data", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: n.DataDir, Type: &kind}}}}
	}
	data, err := yaml.Marshal(pod)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(n.manifests, name+".yaml"), data, 0o600))
}

// sync is what the kubelet does over and over.
func (n *controlPlaneNode) sync() {
	_, err := os.Stat(filepath.Join(n.manifests, "etcd.yaml"))
	wantEtcd := err == nil
	_, err = os.Stat(filepath.Join(n.manifests, "kube-apiserver.yaml"))
	n.mu.Lock()
	broken := n.broken
	n.mu.Unlock()
	if !broken {
		n.set(wantEtcd, err == nil)
	}
}

func (n *controlPlaneNode) set(wantEtcd, wantAPI bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.etcd != nil && !wantEtcd {
		_ = n.etcd.Process.Signal(syscall.SIGTERM)
		_ = n.etcd.Wait()
		n.etcd = nil
	}
	if n.etcd == nil && wantEtcd {
		data, err := os.ReadFile(filepath.Join(n.manifests, "etcd.yaml"))
		var pod corev1.Pod
		if err != nil || yaml.Unmarshal(data, &pod) != nil {
			return
		}
		words := pod.Spec.Containers[0].Command
		_ = os.MkdirAll(n.DataDir, 0o700) // DirectoryOrCreate
		cmd := exec.Command(words[0], words[1:]...)
		cmd.Stdout, cmd.Stderr = &n.etcdLog, &n.etcdLog
		cmd.SysProcAttr = dieWithParent()
		if cmd.Start() == nil {
			n.etcd = cmd
		}
	}
	if n.api != nil && !wantAPI {
		n.api.Close()
		n.api = nil
	}
	if n.api == nil && wantAPI {
		l, err := net.Listen("tcp", n.apiServer)
		if err != nil {
			return
		}
		n.asked.Store(0)
		n.api = httptest.NewUnstartedServer(http.HandlerFunc(n.readyz))
		n.api.Config.ErrorLog = log.New(io.Discard, "", 0)
		_ = n.api.Listener.Close()
		n.api.Listener = l
		n.api.StartTLS()
	}
}

func (n *controlPlaneNode) readyz(w http.ResponseWriter, r *http.Request) {
	if n.asked.Add(1) <= 2 || n.closed.Load() { // it has not read its roles yet
		http.Error(w, "forbidden", http.StatusForbidden)
		return
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{n.clientURL}, DialTimeout: time.Second})
	if err == nil {
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		_, err = client.Get(ctx, "ready")
		client.Close()
	}
	if r.URL.Path != "/readyz" || err != nil {
		http.Error(w, "[-]etcd failed: reason withheld", http.StatusInternalServerError)
	}
}

// mark writes a key and gives the data directory as it is now.
func (n *controlPlaneNode) mark(t *testing.T, value string) os.FileInfo {
	t.Helper()
	client := n.client(t)
	ready(t, client)
	_, err := client.Put(t.Context(), "marker", value)
	require.NoError(t, err)
	fi, err := os.Stat(n.DataDir)
	require.NoError(t, err)
	return fi
}

// marker reads it, empty where it is not there.
func (n *controlPlaneNode) marker(t *testing.T) string {
	t.Helper()
	client := n.client(t)
	ready(t, client)
	got, err := client.Get(t.Context(), "marker")
	require.NoError(t, err)
	if got.Count == 0 {
		return ""
	}
	return string(got.Kvs[0].Value)
}

// requireKept requires that the old data directory is still there, live or renamed.
func (n *controlPlaneNode) requireKept(t *testing.T, old os.FileInfo) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(n.DataDir))
	require.NoError(t, err)
	for _, e := range entries {
		fi, err := os.Stat(filepath.Join(filepath.Dir(n.DataDir), e.Name()))
		require.NoError(t, err)
		if os.SameFile(fi, old) && (e.Name() == "etcd" || strings.HasPrefix(e.Name(), "etcd.before-restore-")) {
			_, err := os.Stat(filepath.Join(filepath.Dir(n.DataDir), e.Name(), "member", "snap", "db"))
			require.NoError(t, err)
			return
		}
	}
	require.Fail(t, "the old data directory is gone", "%v", entries)
}

// requireInPlace requires that the manifests are where they were and nothing else is left.
func (n *controlPlaneNode) requireInPlace(t *testing.T) {
	t.Helper()
	for _, pod := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		require.FileExists(t, filepath.Join(n.manifests, pod+".yaml"))
	}
	require.NoDirExists(t, n.manifests+".restore")
	require.NoDirExists(t, n.DataDir+".restore")
}

// tidy removes what restores kept: each has a write-ahead log of 64 MB.
func (n *controlPlaneNode) tidy(t *testing.T) {
	t.Helper()
	kept, err := filepath.Glob(n.DataDir + ".*")
	require.NoError(t, err)
	for _, dir := range kept {
		require.NoError(t, os.RemoveAll(dir))
	}
}
