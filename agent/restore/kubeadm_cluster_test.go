package restore_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"etcdsnapshot.dev/agent/restore"
)

// The commands of a plan, on three nodes that kubeadm made: all stop, all are restored, and they are one cluster. Each
// etcd.yaml lists only its own node, as the one of the first node of a kubeadm cluster does.
func TestPlanOnThreeKubeadmNodes(t *testing.T) {
	t.Parallel()
	c := realOf(t, "3.6", 3)
	file := write(t, c.db)
	var nodes []*controlPlaneNode
	list := ""
	for i := range 3 {
		n := newNode(t, "3.6")
		n.Name = fmt.Sprintf("cp%d", i+1)
		n.InitialCluster = n.Name + "=" + n.PeerURLs[0]
		n.install(t)
		n.mark(t, "before")
		nodes = append(nodes, n)
		list += fmt.Sprintf("- {name: %s, peerURL: %q}\n", n.Name, n.PeerURLs[0])
	}
	members := filepath.Join(t.TempDir(), "members.yaml")
	require.NoError(t, os.WriteFile(members, []byte(list), 0o600))
	plans := make([]restore.ClusterPlan, 3)
	for i, n := range nodes {
		code, stdout, _ := agent(t, "restore", "--from", file, "--plan", members, "--manifests-dir", n.manifests, "--scratch-dir", t.TempDir(), "-o", "json")
		require.Zero(t, code)
		require.NoError(t, json.Unmarshal([]byte(stdout), &plans[i]))
		require.Equal(t, plans[0].Token, plans[i].Token)
	}
	for i, n := range nodes {
		out, err := exec.Command("sh", "-c", plans[i].Stop).CombinedOutput()
		require.NoError(t, err, string(out))
		require.NoFileExists(t, filepath.Join(n.manifests, "etcd.yaml"))
	}
	for i, n := range nodes {
		code, stdout, _ := agent(t, words(t, plans[i].Commands[i].Command)[1:]...)
		require.Zero(t, code)
		require.Contains(t, stdout, "Restore the other members")
		require.Contains(t, stdout, "KEPT")
		n.requireInPlace(t)
	}
	hashes := map[uint32]bool{}
	revision := int64(0)
	for _, n := range nodes {
		client := n.client(t)
		ready(t, client)
		if revision == 0 {
			put, err := client.Put(t.Context(), "after", "x")
			require.NoError(t, err)
			revision = put.Header.Revision
		}
		keys, _, _ := everything(t, client)
		delete(keys, "after")
		require.Equal(t, c.keys, keys)
		hash, err := client.HashKV(t.Context(), n.clientURL, revision)
		require.NoError(t, err)
		hashes[hash.Hash] = true
	}
	require.Len(t, hashes, 1)
}

func TestKubeadmCommandLine(t *testing.T) {
	c := real(t, "3.6")
	file := write(t, c.db)
	n := newNode(t, "3.6")
	n.install(t)
	n.mark(t, "before")
	args := []string{"restore", "--kubeadm", "--manifests-dir", n.manifests}
	code, stdout, _ := agent(t, append(args, "--from", file, "--dry-run")...)
	require.Zero(t, code)
	require.Contains(t, stdout, "  2. Stop the control plane: move etcd.yaml, kube-apiserver.yaml, kube-controller-manager.yaml, kube-scheduler.yaml")
	require.Equal(t, "before", n.marker(t))

	// What was interrupted goes on also without saying again which snapshot it was.
	_, killed := order(t, kubeadmOrder{ManifestsDir: n.manifests, File: file, KillAt: 10})
	require.True(t, killed)
	code, stdout, stderr := agent(t, append(args, "-o", "json")...)
	require.Zero(t, code)
	require.Contains(t, stderr, "Going on with the restore from snapshot.db")
	var res restore.Result
	require.NoError(t, json.Unmarshal([]byte(stdout), &res))
	require.Len(t, res.Kept, 1)
	require.Equal(t, c.revision+restore.DefaultBump, res.RestoredRevision)

	n.tidy(t)
	n.mark(t, "before")
	_, killed = order(t, kubeadmOrder{ManifestsDir: n.manifests, File: file, KillAt: 14})
	require.True(t, killed)
	code, _, stderr = agent(t, append(args, "--dry-run", "--from", file)...)
	require.Equal(t, 2, code)
	require.Contains(t, stderr, "journal.json): without --dry-run the command goes on with it")
	code, _, stderr = agent(t, append(args, "--latest", "--from-dir", t.TempDir())...)
	require.Equal(t, 2, code)
	require.Contains(t, stderr, "is under way since")
	code, stdout, _ = agent(t, append(args, "--abort")...)
	require.Zero(t, code)
	require.Contains(t, stdout, "All is as it was before the restore.")
	require.Contains(t, stdout, n.DataDir+".restored-")
	require.Equal(t, "before", n.marker(t))
}

// The API server does not come back: what is wrong is said, and there is a way on and a way back.
func TestKubeadmAPIServerDoesNotComeBack(t *testing.T) {
	c := real(t, "3.6")
	file := write(t, c.db)
	n := newNode(t, "3.6")
	n.install(t)
	n.mark(t, "before")
	args := []string{"restore", "--kubeadm", "--manifests-dir", n.manifests, "--from", file, "--wait", "1s"}
	apiServer := filepath.Join(n.manifests, "kube-apiserver.yaml")
	good, err := os.ReadFile(apiServer)
	require.NoError(t, err)
	_, port, _ := strings.Cut(freePort(t), ":")
	_, old, _ := strings.Cut(n.apiServer, ":")
	require.NoError(t, os.WriteFile(apiServer, []byte(strings.ReplaceAll(string(good), old, port)), 0o600)) // it listens elsewhere
	code, _, stderr := agent(t, args...)
	require.Equal(t, 1, code)
	for _, part := range []string{"the data is restored and the manifests are back", "connection refused", "crictl", "run the same command again", "--abort"} {
		require.Contains(t, stderr, part)
	}
	code, _, _ = agent(t, append(args, "--wait", "0")...)
	require.Zero(t, code)
	require.Empty(t, n.marker(t))
	n.requireInPlace(t)
}

// An API server that has just started refuses everybody: that is not ready yet. One that always does is taken at that.
func TestKubeadmReadyIsNotRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t, "3.6")
	n.install(t)
	n.mark(t, "before")
	args := []string{"restore", "--kubeadm", "--manifests-dir", n.manifests, "--from", write(t, real(t, "3.6").db)}
	code, _, stderr := agent(t, args...)
	require.Zero(t, code)
	require.NotContains(t, stderr, "tells nobody")
	require.Greater(t, n.asked.Load(), int64(2))
	n.closed.Store(true)
	code, _, stderr = agent(t, append(args, "--wait", "5s")...)
	require.Zero(t, code)
	require.Contains(t, stderr, "the API server answers, but tells nobody without credentials whether it is ready")
}
