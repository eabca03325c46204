package restore

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzStaticPod: the manifests of a broken control plane may hold anything.
func FuzzStaticPod(f *testing.F) {
	for _, text := range []string{
		"apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - command: [etcd, --data-dir=/var/lib/etcd, --name, cp1]\n    image: registry.k8s.io/etcd:3.5.21-0\n    volumeMounts: [{name: d, mountPath: /var/lib/etcd}]\n  volumes: [{name: d, hostPath: {path: /data}}]\n",
		"kind: Pod\nspec: {containers: [{command: ['-', '--', '--data-dir'], image: ':', volumeMounts: [{name: d}]}], volumes: [{name: d, hostPath: {}}]}",
		"kind: Pod", "", "[]", "kind: Pod\nspec: {containers: [null]}", "\x00", "kind: Pod\nspec: {containers: [{image: 'a@b:c'}]}",
	} {
		f.Add([]byte(text), "/var/lib/etcd/member")
	}
	f.Fuzz(func(t *testing.T, data []byte, path string) {
		dir := t.TempDir()
		for _, name := range controlPlanePods {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
		}
		if pod, err := readStaticPod(filepath.Join(dir, controlPlanePods[0])); err == nil {
			pod.flag("data-dir")
			pod.version()
			require.Equal(t, path == "", pod.onHost(path) == "")
		}
		_, _ = readControlPlane(dir, filepath.Join(dir, "aside"))
	})
}
