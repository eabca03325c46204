package restore_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcdsnapshot.dev/agent/cli"
	"etcdsnapshot.dev/agent/restore"
)

// agent runs the program's command line in this process.
func agent(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = cli.Run(context.Background(), args, strings.NewReader(""), &out, &errs)
	t.Logf("etcd-snapshot-agent %s → %d\n%s%s", strings.Join(args, " "), code, &out, &errs)
	return code, out.String(), errs.String()
}

// words splits a command as a shell does, which is what an operator pastes it into.
func words(t *testing.T, command string) []string {
	t.Helper()
	out, err := exec.Command("sh", "-c", `printf '%s\n' `+command).Output()
	require.NoError(t, err)
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}

func statusOf(t *testing.T, m *member) *clientv3.StatusResponse {
	t.Helper()
	status, err := m.client(t).Status(t.Context(), m.clientURL)
	require.NoError(t, err)
	return status
}

// Three members that are restored with the commands of one plan are one cluster with the same data.
func TestPlanOfThreeMembers(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"3.4", "3.6"} {
		t.Run(version, func(t *testing.T) {
			c := realOf(t, version, 3)
			file := write(t, c.db)
			var ms []*member
			list := ""
			for i := range 3 {
				m := newMember(t, version, fmt.Sprintf("cp%d", i))
				ms = append(ms, m)
				list += fmt.Sprintf("- {name: %s, peerURL: %q}\n", m.Name, m.PeerURLs[0])
			}
			plan := makePlan(t, file, list)
			for i, m := range ms {
				require.Equal(t, m.Name, plan.Commands[i].Name)
				args := words(t, plan.Commands[i].Command)
				require.Equal(t, "etcd-snapshot-agent", args[0])
				// Each node has its own disk.
				args = append(args[1:], "--data-dir", m.DataDir)
				code, _, _ := agent(t, args...)
				require.Zero(t, code)
				m.InitialCluster = plan.InitialCluster
			}
			for _, m := range ms {
				m.start(t)
			}
			for _, m := range ms {
				ready(t, m.client(t))
			}
			hashes := map[uint32]bool{}
			clusters := map[uint64]bool{}
			// The revision that the restore left is compacted, and etcd 3.4 gives no hash of that one.
			put, err := ms[0].client(t).Put(t.Context(), "after", "x")
			require.NoError(t, err)
			revision := put.Header.Revision
			for _, m := range ms {
				client := m.client(t)
				keys, leases, _ := everything(t, client)
				delete(keys, "after")
				require.Equal(t, c.keys, keys)
				require.Equal(t, c.leases, leases)
				hash, err := client.HashKV(t.Context(), m.clientURL, revision)
				require.NoError(t, err)
				hashes[hash.Hash] = true
				clusters[hash.Header.ClusterId] = true
			}
			require.Len(t, hashes, 1, "the members differ")
			require.Len(t, clusters, 1)
			members, err := ms[0].client(t).MemberList(t.Context())
			require.NoError(t, err)
			require.Len(t, members.Members, 3)
		})
	}
}

func makePlan(t *testing.T, file, list string, more ...string) restore.ClusterPlan {
	t.Helper()
	members := filepath.Join(t.TempDir(), "members.yaml")
	require.NoError(t, os.WriteFile(members, []byte(list), 0o600))
	args := append([]string{"restore", "--from", file, "--plan", members, "--data-dir", "/var/lib/etcd", "--scratch-dir", t.TempDir()}, more...)
	code, text, _ := agent(t, args...)
	require.Zero(t, code)
	code, stdout, _ := agent(t, append(args, "-o", "json")...)
	require.Zero(t, code)
	var plan restore.ClusterPlan
	require.NoError(t, json.Unmarshal([]byte(stdout), &plan))
	require.Len(t, plan.Commands, strings.Count(list, "\n"))
	for _, c := range plan.Commands {
		require.Contains(t, text, c.Command)
	}
	return plan
}

// A member that is restored from another snapshot is caught by the plan's command, and by etcd where somebody leaves that
// check out: it has another cluster ID and is never let in.
func TestMemberOfAnotherSnapshotIsCaught(t *testing.T) {
	c, other := realOf(t, "3.6", 3), real(t, "3.6")
	var ms []*member
	list := ""
	for i := range 3 {
		m := newMember(t, "3.6", fmt.Sprintf("cp%d", i))
		ms = append(ms, m)
		list += fmt.Sprintf("- {name: %s, peerURLs: [%q]}\n", m.Name, m.PeerURLs[0])
	}
	plan := makePlan(t, write(t, c.db), list)
	args := words(t, plan.Commands[2].Command)[1:]
	for i, a := range args {
		if a == "--from" {
			args[i+1] = write(t, other.db)
		}
	}
	code, _, stderr := agent(t, append(args, "--data-dir", ms[2].DataDir)...)
	require.Equal(t, 2, code)
	require.Contains(t, stderr, "this is another snapshot than the one that is expected")
	untouched(t, ms[2].DataDir)

	for i, m := range ms {
		m.InitialCluster = plan.InitialCluster
		db := c.db
		if i == 2 {
			db = other.db
		}
		_, err := restore.Into(t.Context(), from(t, write(t, db)), m.Config)
		require.NoError(t, err)
	}
	for _, m := range ms {
		m.start(t)
	}
	ready(t, ms[0].client(t))
	ready(t, ms[1].client(t))
	require.NotEqual(t, clusterID(t, ms[0].DataDir), clusterID(t, ms[2].DataDir))
	// Two are a majority and go on; the third never has a leader.
	put, err := ms[0].client(t).Put(t.Context(), "x", "y")
	require.NoError(t, err)
	require.Eventually(t, func() bool { return statusOf(t, ms[1]).Header.Revision == put.Header.Revision }, 10*time.Second, 50*time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	_, err = ms[2].client(t).Get(ctx, "x")
	require.Error(t, err)
}

// clusterID is where etcd's own tools see it: the token and the members make it.
func clusterID(t *testing.T, dataDir string) string {
	t.Helper()
	wal, err := filepath.Glob(filepath.Join(dataDir, "member", "wal", "*.wal"))
	require.NoError(t, err)
	data, err := os.ReadFile(wal[0])
	require.NoError(t, err)
	return fmt.Sprintf("%x", data[:128])
}

func TestPlanForKubeadmNodes(t *testing.T) {
	c := realOf(t, "3.6", 3)
	file := write(t, c.db)
	code, stdout, _ := agent(t, "restore", "--from", file, "--plan", "snapshot", "--scratch-dir", t.TempDir(), "-o", "json")
	require.Zero(t, code)
	var plan restore.ClusterPlan
	require.NoError(t, json.Unmarshal([]byte(stdout), &plan))
	require.Len(t, plan.Commands, 3)
	require.Contains(t, plan.Stop, "/etc/kubernetes/manifests.restore")
	for i, cmd := range plan.Commands {
		require.Equal(t, fmt.Sprintf("member-%d", i), cmd.Name)
		requireArgs(t, words(t, cmd.Command), "--kubeadm", "--initial-cluster="+plan.InitialCluster, "--initial-cluster-token="+plan.Token, "--expect-sha256="+sha(c.db), "--bump-revision=1000000000")
	}
}

func requireArgs(t *testing.T, args []string, want ...string) {
	t.Helper()
	joined := strings.Join(args, " ")
	for _, w := range want {
		require.Contains(t, joined, strings.Replace(w, "=", " ", 1))
	}
}

func TestReadMembers(t *testing.T) {
	for text, says := range map[string]string{
		"":  "lists no member",
		"a": "a list of",
		"- {name: a, peerURL: 'http://1.1.1.1:1', port: 1}": "unknown field",
		"- {peerURL: 'http://1.1.1.1:1'}":                   "has no name",
		"- {name: a}":                                       "has no peerURL",
		"- {name: a, peerURL: '1.1.1.1'}":                   "member a",
		"- {name: 'a,b', peerURL: 'http://1.1.1.1:1'}":      "no comma",
		"- {name: a, peerURL: 'http://1.1.1.1:1'}\n- {name: a, peerURL: 'http://1.1.1.1:2'}": "both have a",
		"- {name: a, peerURL: 'http://1.1.1.1:1'}\n- {name: b, peerURL: 'http://1.1.1.1:1'}": "both have http://1.1.1.1:1",
		"kind: Pod\nspec: {containers: [{command: [etcd]}]}":                                 "no --initial-cluster",
	} {
		_, err := restore.ReadMembers(write(t, []byte(text)))
		require.ErrorIs(t, err, restore.ErrRefused, text)
		require.ErrorContains(t, err, says, text)
	}
	members, err := restore.ReadMembers(write(t, []byte("kind: Pod\nspec: {containers: [{command: [etcd, '--initial-cluster=b=https://2.2.2.2:2380,a=https://1.1.1.1:2380']}]}")))
	require.NoError(t, err)
	require.Equal(t, []restore.Member{{Name: "a", PeerURLs: []string{"https://1.1.1.1:2380"}}, {Name: "b", PeerURLs: []string{"https://2.2.2.2:2380"}}}, members)
}
