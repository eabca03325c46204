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
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcdsnapshot.dev/agent/restore"
)

// asKubeadm makes this test binary a process that restores, and that kills itself where it is told.
const asKubeadm = "ETCD_SNAPSHOT_TEST_AS_KUBEADM"

type kubeadmOrder struct {
	ManifestsDir, File string
	Abort              bool
	// KillAt is the change, counted from 1, before which the process is killed; 0 is never.
	KillAt int
}

// kubeadmMain ends with 0 after success.
func kubeadmMain() int {
	var o kubeadmOrder
	if err := json.Unmarshal([]byte(os.Getenv(asKubeadm)), &o); err != nil {
		fmt.Println(err)
		return 2
	}
	n := 0
	k := newKubeadm(o.ManifestsDir, o.File)
	k.Before = func(change string) {
		if n++; n == o.KillAt {
			fmt.Println("killed before:", change)
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	var err error
	if o.Abort {
		_, err = k.Abort(context.Background())
	} else {
		_, err = k.Run(context.Background())
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

func newKubeadm(manifestsDir, file string) *restore.Kubeadm {
	return &restore.Kubeadm{
		ManifestsDir: manifestsDir, Selection: "--from " + file, Config: restore.Config{Bump: restore.DefaultBump},
		StopTimeout: 30 * time.Second, ReadyTimeout: time.Minute, Log: discard(),
		Request: func(context.Context) (restore.Request, error) {
			src, err := restore.FromFile(file, nil)
			return restore.Request{Sources: []*restore.Source{src}, Log: discard()}, err
		},
	}
}

// order runs a process and gives what it printed; killed says how it ended.
func order(t *testing.T, o kubeadmOrder) (output string, killed bool) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asKubeadm+"="+string(mustJSON(t, o)))
	cmd.SysProcAttr = dieWithParent()
	out, err := cmd.CombinedOutput()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() && status.Signal() == syscall.SIGKILL {
		return string(out), true
	}
	require.NoError(t, err, string(out))
	return string(out), false
}

func TestKubeadm(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"3.4", "3.5", "3.6"} {
		t.Run(version, func(t *testing.T) {
			c := real(t, version)
			n := newNode(t, version)
			n.install(t)
			old := n.mark(t, "before")
			k := newKubeadm(n.manifests, write(t, c.db))
			before := tree(t, n.manifests)
			steps, err := k.Describe("snapshot")
			require.NoError(t, err)
			require.Contains(t, strings.Join(steps, "\n"), n.DataDir+".before-restore-")
			require.Equal(t, before, tree(t, n.manifests))
			require.NoDirExists(t, n.DataDir+".restore")

			res, err := k.Run(t.Context())
			require.NoError(t, err)
			require.Equal(t, "before", markerIn(t, n, res.Kept[0]))
			require.Equal(t, "", n.marker(t))
			require.Equal(t, c.revision+restore.DefaultBump, res.RestoredRevision)
			require.Len(t, res.Kept, 1)
			fi, err := os.Stat(res.Kept[0])
			require.NoError(t, err)
			require.True(t, os.SameFile(fi, old))
			n.requireInPlace(t)
			keys, leases, _ := everything(t, n.client(t))
			require.Equal(t, c.keys, keys)
			require.Equal(t, c.leases, leases)
			_, err = k.Abort(t.Context())
			require.ErrorIs(t, err, restore.ErrRefused)
			require.ErrorContains(t, err, "no restore of")
		})
	}
}

// markerIn starts an etcd on a kept data directory and reads the marker: it is whole.
func markerIn(t *testing.T, n *controlPlaneNode, dir string) string {
	t.Helper()
	m := *n.member
	m.DataDir, m.clientURL, m.PeerURLs = dir, "http://"+freePort(t), []string{"http://" + freePort(t)}
	stop := m.start(t)
	defer stop()
	client := m.client(t)
	ready(t, client)
	got, err := client.Get(t.Context(), "marker")
	require.NoError(t, err)
	return string(got.Kvs[0].Value)
}

// A restore that is killed before any of its changes goes on when it is run again; until then the old data is there.
func TestKubeadmKilledAtEachStepGoesOn(t *testing.T) {
	t.Parallel()
	c := real(t, "3.6")
	file := write(t, c.db)
	n := newNode(t, "3.6")
	n.install(t)
	for at := 1; ; at++ {
		old := n.mark(t, fmt.Sprint("before ", at))
		out, killed := order(t, kubeadmOrder{ManifestsDir: n.manifests, File: file, KillAt: at})
		n.requireKept(t, old)
		if !killed {
			require.Greater(t, at, 15, "not many steps")
			break
		}
		t.Log(at, strings.TrimSpace(out))
		_, killed = order(t, kubeadmOrder{ManifestsDir: n.manifests, File: file})
		require.False(t, killed)
		n.requireKept(t, old)
		n.requireInPlace(t)
		require.Empty(t, n.marker(t))
		keys, _, _ := everything(t, n.client(t))
		require.Equal(t, c.keys, keys)
		n.tidy(t)
	}
}

// From wherever it was killed there is a way back to exactly what was there, also if that is killed on its way.
func TestKubeadmKilledAtEachStepGoesBack(t *testing.T) {
	t.Parallel()
	c := real(t, "3.6")
	file := write(t, c.db)
	n := newNode(t, "3.6")
	n.install(t)
	finished := false
	for at := 2; !finished; at++ { // before the first there is no journal and nothing to go back from
		for back := 1; ; back++ {
			text := fmt.Sprint("before ", at, " ", back)
			old := n.mark(t, text)
			out, killed := order(t, kubeadmOrder{ManifestsDir: n.manifests, File: file, KillAt: at})
			require.True(t, killed)
			if finished = strings.Contains(out, "killed before: write down that it is finished"); back == 1 {
				t.Log(at, strings.TrimSpace(out))
			}
			_, killed = order(t, kubeadmOrder{ManifestsDir: n.manifests, File: file, Abort: true, KillAt: back})
			n.requireKept(t, old)
			if killed {
				// It is on its way back, and not to be taken for a restore; or it is all done but for the folder.
				_, killedAgain := order(t, kubeadmOrder{ManifestsDir: n.manifests, File: file, Abort: true})
				require.False(t, killedAgain)
			}
			fi, err := os.Stat(n.DataDir)
			require.NoError(t, err)
			require.True(t, os.SameFile(fi, old))
			require.Equal(t, text, n.marker(t))
			n.requireInPlace(t)
			n.tidy(t)
			// All ways back are walked where the most is to be undone, one way elsewhere.
			if !killed || !finished {
				break
			}
		}
	}
}

func TestKubeadmRefuses(t *testing.T) {
	t.Parallel()
	c := real(t, "3.6")
	n := newNode(t, "3.5")
	n.install(t)
	n.mark(t, "before")
	before := tree(t, n.manifests)
	unchanged := func(t *testing.T) {
		require.Equal(t, before, tree(t, n.manifests))
		require.NoDirExists(t, n.DataDir+".restore")
		require.Equal(t, "before", n.marker(t))
	}
	t.Run("newer etcd", func(t *testing.T) {
		_, err := newKubeadm(n.manifests, write(t, c.db)).Run(t.Context())
		require.ErrorIs(t, err, restore.ErrRefused)
		require.ErrorContains(t, err, "the snapshot is of etcd 3.6, and here runs etcd 3.5.1")
		unchanged(t)
	})
	t.Run("corrupt", func(t *testing.T) {
		db := bytes.Clone(real(t, "3.5").db)
		db[len(db)/2] ^= 1
		_, err := newKubeadm(n.manifests, write(t, db)).Run(t.Context())
		require.ErrorContains(t, err, "corrupt")
		unchanged(t)
	})
	t.Run("several members", func(t *testing.T) {
		_, err := newKubeadm(n.manifests, write(t, realOf(t, "3.5", 3).db)).Run(t.Context())
		require.ErrorIs(t, err, restore.ErrRefused)
		require.ErrorContains(t, err, "a cluster of 3 members (member-0, member-1, member-2), and etcd.yaml here lists 1")
		unchanged(t)
	})
	t.Run("no manifest", func(t *testing.T) {
		_, err := newKubeadm(t.TempDir(), write(t, c.db)).Run(t.Context())
		require.ErrorIs(t, err, restore.ErrRefused)
		require.ErrorContains(t, err, "there is no etcd.yaml")
	})
	t.Run("nothing to go on with", func(t *testing.T) {
		k := newKubeadm(n.manifests, "")
		k.Selection = ""
		_, err := k.Run(t.Context())
		require.ErrorContains(t, err, "no restore is under way")
		unchanged(t)
	})
	t.Run("alone", func(t *testing.T) {
		k := newKubeadm(n.manifests, write(t, realOf(t, "3.5", 3).db))
		k.Alone = true
		res, err := k.Run(t.Context())
		require.NoError(t, err)
		require.Contains(t, res.Next[0], "kubeadm join")
		keys, _, _ := everything(t, n.client(t))
		require.Equal(t, realOf(t, "3.5", 3).keys, keys)
	})
}

// A kubelet that does not stop anything is told, the etcd that still runs keeps its data, and there is a way back.
func TestKubeadmControlPlaneDoesNotStop(t *testing.T) {
	c := real(t, "3.6")
	n := newNode(t, "3.6")
	n.install(t)
	n.mark(t, "before")
	n.mu.Lock()
	n.broken = true
	n.mu.Unlock()
	file := write(t, c.db)
	k := newKubeadm(n.manifests, file)
	k.StopTimeout = time.Second
	_, err := k.Run(t.Context())
	require.ErrorContains(t, err, "etcd still answers at")
	require.ErrorContains(t, err, "still has "+filepath.Join(n.DataDir, "member", "snap", "db")+" open")
	require.ErrorContains(t, err, "does the kubelet run")
	require.ErrorContains(t, err, "--abort")
	require.Equal(t, "before", n.marker(t))
	// Another snapshot is not mixed into it.
	other := newKubeadm(n.manifests, write(t, c.db))
	_, err = other.Run(t.Context())
	require.ErrorIs(t, err, restore.ErrRefused)
	require.ErrorContains(t, err, "is under way since")
	_, err = k.Abort(t.Context())
	require.NoError(t, err)
	n.requireInPlace(t)
	require.Equal(t, "before", n.marker(t))
}

// A lost disk is no reason not to restore.
func TestKubeadmWithoutOldData(t *testing.T) {
	c := real(t, "3.6")
	n := newNode(t, "3.6")
	require.NoError(t, os.Remove(n.DataDir))
	n.mu.Lock()
	n.broken = true
	n.mu.Unlock()
	n.install(t)
	k := newKubeadm(n.manifests, write(t, c.db))
	k.Before = func(change string) {
		if strings.HasPrefix(change, "rename ") && strings.HasSuffix(change, n.manifests+"/etcd.yaml") {
			n.mu.Lock()
			n.broken = false
			n.mu.Unlock()
		}
	}
	res, err := k.Run(t.Context())
	require.NoError(t, err)
	require.Empty(t, res.Kept)
	keys, _, _ := everything(t, n.client(t))
	require.Equal(t, c.keys, keys)
	n.requireInPlace(t)
}

// An address in the manifests that this machine does not have, and that nobody refuses, is not waited for.
func TestKubeadmAddressOfAnotherMachine(t *testing.T) {
	n := newNode(t, "3.6")
	n.clientURL = "http://192.0.2.1:2379" // RFC 5737: nobody's
	n.broken = true
	n.install(t)
	k := newKubeadm(n.manifests, write(t, real(t, "3.6").db))
	k.ReadyTimeout, k.StopTimeout = 0, 2*time.Second
	_, err := k.Run(t.Context())
	require.NoError(t, err)
	n.requireInPlace(t)
}

// The live revision is far above the snapshot's: the restored one is above it all the same.
func TestKubeadmRaisesAboveTheLiveRevision(t *testing.T) {
	n := newNode(t, "3.6")
	ahead := newMember(t, "3.6", "cp1")
	ahead.Bump = 5 * restore.DefaultBump
	_, err := restore.Into(t.Context(), from(t, write(t, real(t, "3.6").db)), ahead.Config)
	require.NoError(t, err)
	require.NoError(t, os.Remove(n.DataDir))
	require.NoError(t, os.Rename(ahead.DataDir, n.DataDir))
	n.install(t)
	n.mark(t, "before")
	_, _, live := everything(t, n.client(t))
	res, err := newKubeadm(n.manifests, write(t, real(t, "3.6").db)).Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, live+restore.DefaultBump, res.RestoredRevision)
	_, _, revision := everything(t, n.client(t))
	require.Equal(t, res.RestoredRevision, revision)
}
