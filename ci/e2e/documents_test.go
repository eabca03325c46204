//go:build e2e

package e2e_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/ci/docs"
	"etcdsnapshot.dev/ci/e2e"
	"etcdsnapshot.dev/ci/parts"
)

// The commands of the documents that say so are run as they stand there, on the node, with names put in for those in
// capitals.
func TestDocumentedCommands(t *testing.T) {
	identity, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "identity.txt"), []byte(identity.String()+"\n"), 0o600))
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "age-identity", Namespace: "kube-system"}, StringData: map[string]string{"identity.txt": identity.String()}}
	_, err = c.Client.CoreV1().Secrets("kube-system").Create(t.Context(), secret, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, c.Client.CoreV1().Secrets("kube-system").Delete(context.Background(), secret.Name, metav1.DeleteOptions{}))
	})
	c.Install(t, e2e.Release{
		Set:    []string{"runOnInstall=true", "encryption.age.recipients={" + identity.Recipient().String() + "}"},
		Values: "verification: {schedule: '30 3 * * *', level: restore, identitySecret: age-identity}",
	})
	c.Kubectl(t, "create", "job", "-n", "kube-system", "--from=cronjob/etcd-snapshot-verify", "verify-now")
	e2e.Await(t, c, e2e.Jobs, "kube-system", "verify-now", func(j *batchv1.Job) bool { return j.Status.Succeeded == 1 })
	policy := e2e.Await(t, c, e2e.Policies, "kube-system", "etcd-snapshot", func(p *v1.EtcdSnapshotPolicy) bool { return p.Status.LastSnapshot != "" })

	// What an operator has at hand: the agent, kubectl, etcd's tools, the policy and the key.
	require.NoError(t, os.WriteFile(filepath.Join(dir, "policy.yaml"), []byte(c.Kubectl(t, "get", "esp", "etcd-snapshot", "-n", "kube-system", "-o", "yaml")), 0o600))
	require.NoError(t, os.Symlink(e2e.Agent(), filepath.Join(dir, "etcd-snapshot-agent")))
	path := dir
	for _, name := range []string{"kubernetes", "kubernetes-node", "etcd-3.6"} {
		tools, err := parts.Dir(t.Context(), name)
		require.NoError(t, err)
		path += ":" + tools
	}
	names := strings.NewReplacer("NAME_OF_THE_LAST_JOB", "etcd-snapshot-install", "NAME_OF_THE_LAST_VERIFICATION", "verify-now",
		"NAME_OF_THE_DESTINATION", "node", "NAME", policy.Status.LastSnapshot)
	pages, err := docs.Pages(e2e.Root())
	require.NoError(t, err)
	blocks := 0
	for _, p := range pages {
		for _, b := range p.Blocks {
			if !slices.Contains(b.RunBy(), t.Name()) {
				continue
			}
			blocks++
			out, err := c.Exec(t.Context(), c.ControlPlane(t)[0], "env", "PATH="+path+":"+os.Getenv("PATH"), "KUBECONFIG=/etc/kubernetes/admin.conf",
				"bash", "-euc", "cd "+dir+"\nset -x\n"+names.Replace(b.Text))
			assert.NoError(t, err, "%s:%d\n%s", p.File, b.Line, out)
		}
	}
	require.Greater(t, blocks, 10)
}
