//go:build e2e

package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/ci/e2e"
)

// A node that lost its certificates, its static pods and its etcd comes back from what lies in one folder and two identities.
func TestDisasterBundle(t *testing.T) {
	node := ownNode(t)
	ids := t.TempDir()
	identity := func(name string) (recipient, file string) {
		id, err := age.GenerateX25519Identity()
		require.NoError(t, err)
		file = filepath.Join(ids, name)
		require.NoError(t, os.WriteFile(file, []byte(id.String()+"\n"), 0o600))
		return id.Recipient().String(), file
	}
	daily, dailyFile := identity("daily")
	bundle, bundleFile := identity("bundle")
	c.Install(t, e2e.Release{Values: fmt.Sprintf(`
schedule: "0 0 31 2 *"
encryption: {age: {recipients: [%s]}}
extras:
  enabled: true
  additionalPaths: [/etc/kubernetes/admin.conf]
  encryption: {age: {recipients: [%s]}}
`, daily, bundle)})
	c.RunNow(t, system, "etcd-snapshot")
	folder := c.Folder(t, "/var/lib/etcd-snapshots")
	name := listed(t, node.Path(folder))[0]
	archived := filepath.Join(folder, archive.ExtrasKey(name))
	require.Equal(t, "600 0:0", strings.TrimSpace(c.OnNode(t, node.Name, "stat", "-c", "%a %u:%g", archived)))

	const files = "find /etc/kubernetes/pki /etc/kubernetes/manifests -printf '%p %m %U:%G %s\\n' | sort"
	before := c.OnNode(t, node.Name, "sh", "-c", files)
	require.Contains(t, before, "/etc/kubernetes/pki/etcd/ca.key 600 0:0")
	c.OnNode(t, node.Name, "sh", "-ec", `
mkdir /var/lib/was
cp -a /etc/kubernetes/pki /etc/kubernetes/manifests /etc/kubernetes/admin.conf /var/lib/was/
rm -rf /etc/kubernetes/pki /etc/kubernetes/manifests/* /etc/kubernetes/admin.conf
pkill -9 -x etcd; pkill -9 -x kube-apiserver
rm -rf /var/lib/etcd`)
	t.Cleanup(func() {
		ctx, cancel := e2e.Deadline(t)
		defer cancel()
		_, err := c.Exec(ctx, node.Name, "rm", "-rf", "/var/lib/was")
		require.NoError(t, err)
	})

	restore := []string{e2e.Agent(), "restore", "--latest", "--from-dir", folder}
	extras := append(restore[:len(restore):len(restore)], "--identity", bundleFile, "--extras", "/")
	out, err := c.Exec(t.Context(), node.Name, append(restore[:len(restore):len(restore)], "--identity", dailyFile, "--extras", "/")...)
	require.Error(t, err, "the key of the snapshots does not open the bundle: %s", out)
	require.Contains(t, c.OnNode(t, node.Name, append(extras, "--dry-run")...), "/etc/kubernetes/pki/ca.key")
	require.Contains(t, c.OnNode(t, node.Name, extras...), "/etc/kubernetes/manifests/kube-apiserver.yaml")
	require.Equal(t, before, c.OnNode(t, node.Name, "sh", "-c", files))
	c.OnNode(t, node.Name, "sh", "-ec", "for f in pki manifests admin.conf; do diff -r /var/lib/was/$f /etc/kubernetes/$f; done")

	c.OnNode(t, node.Name, append(restore, "--identity", dailyFile, "--kubeadm")...)
	_, err = c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(t.Context())
	require.NoError(t, err)
	_, err = c.Client.BatchV1().CronJobs(system).Get(t.Context(), "etcd-snapshot", metav1.GetOptions{})
	require.NoError(t, err, "the state is the snapshot's, and the old certificates open it")
	c.RunNow(t, system, "etcd-snapshot")
}
