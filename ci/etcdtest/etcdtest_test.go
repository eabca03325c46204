package etcdtest_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"etcdsnapshot.dev/ci/etcdtest"
	"etcdsnapshot.dev/ci/parts"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "-orphan" {
		orphan(os.Args[2])
	}
	goleak.VerifyTestMain(m)
}

func TestEveryVersionAndWayToConnect(t *testing.T) {
	options := map[string]etcdtest.Options{
		"plain":   {},
		"tls":     {TLS: true},
		"any":     {TLS: true, AnyClient: true},
		"ipv6":    {TLS: true, IPv6: true},
		"unix":    {UnixSocket: true},
		"unixs":   {UnixSocket: true, TLS: true},
		"three":   {Members: 3, TLS: true},
		"learner": {Learner: true},
	}
	for _, version := range etcdtest.Versions {
		for name, o := range options {
			t.Run(version+"/"+name, func(t *testing.T) {
				t.Parallel()
				if o.IPv6 && !hasIPv6() {
					t.Skip("this machine has no IPv6 loopback")
				}
				o.Version = version
				c := etcdtest.Start(t, o)
				client, err := c.Client(0)
				require.NoError(t, err)
				defer client.Close()
				for _, m := range c.Members {
					status, err := client.Status(t.Context(), m.ClientURL)
					require.NoError(t, err)
					require.True(t, strings.HasPrefix(status.Version, version+"."), status.Version)
					require.Equal(t, m.Learner, status.IsLearner)
				}
			})
		}
	}
}

func TestFillIsLikeKubernetes(t *testing.T) {
	const size = 20 << 20
	c := etcdtest.Start(t, etcdtest.Options{})
	begin := time.Now()
	objects := c.MustFill(t, size)
	t.Logf("%d objects in %s", objects, time.Since(begin))

	client, err := c.Client(0)
	require.NoError(t, err)
	defer client.Close()
	got, err := client.Get(t.Context(), "/registry/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	require.NoError(t, err)
	require.EqualValues(t, objects, got.Count)

	file := filepath.Join(t.TempDir(), "snapshot.db")
	require.NoError(t, c.SaveSnapshot(t.Context(), 0, file))
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Greater(t, len(data), size)
	var packed bytes.Buffer
	w, err := zstd.NewWriter(&packed, zstd.WithEncoderLevel(zstd.SpeedFastest))
	require.NoError(t, err)
	_, err = w.Write(data)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	ratio := float64(len(data)) / float64(packed.Len())
	t.Logf("%d bytes, compressed %.1f times", len(data), ratio)
	require.InDelta(t, 5, ratio, 1)

	out, err := exec.Command(filepath.Join(parts.Require(t, "etcd-3.6"), "etcdutl"), "snapshot", "status", file).CombinedOutput()
	require.NoError(t, err, string(out))
}

func TestObjectsAreTheSameEveryTime(t *testing.T) {
	for i := range 32 {
		key, value := etcdtest.Object(i)
		againKey, againValue := etcdtest.Object(i)
		require.Equal(t, key, againKey)
		require.Equal(t, value, againValue)
		require.Regexp(t, `^/registry/[a-z./]+/team-\d\d/[a-z0-9-]+$`, key)
	}
}

func TestStopRestartPause(t *testing.T) {
	c := etcdtest.Start(t, etcdtest.Options{TLS: true})
	m := c.Members[0]
	client, err := c.Client(0)
	require.NoError(t, err)
	defer client.Close()
	_, err = client.Put(t.Context(), "a", "1")
	require.NoError(t, err)

	pid := m.PID()
	m.Stop()
	require.Zero(t, m.PID())
	require.ErrorIs(t, syscall.Kill(pid, 0), syscall.ESRCH)
	require.NoError(t, m.Restart(t.Context()))
	got, err := client.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Len(t, got.Kvs, 1)

	require.NoError(t, m.Pause(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = client.Get(ctx, "a")
	require.Error(t, err)
	require.NoError(t, m.Resume())
	_, err = client.Get(t.Context(), "a")
	require.NoError(t, err)
}

func TestIsolateAndHeal(t *testing.T) {
	c := etcdtest.Start(t, etcdtest.Options{Members: 3, Partitionable: true})
	leader, err := c.Leader(t.Context())
	require.NoError(t, err)
	alone, other := (leader+1)%3, (leader+2)%3
	clients := make([]*clientv3.Client, 3)
	for i := range clients {
		clients[i], err = c.Client(i)
		require.NoError(t, err)
		defer clients[i].Close()
	}
	local := func(i int) int {
		got, err := clients[i].Get(t.Context(), "k", clientv3.WithSerializable())
		require.NoError(t, err)
		return len(got.Kvs)
	}
	require.NoError(t, c.Isolate(t.Context(), alone))
	_, err = clients[leader].Put(t.Context(), "k", "v")
	require.NoError(t, err)
	require.Eventually(t, func() bool { return local(other) == 1 }, 10*time.Second, 20*time.Millisecond)
	require.Zero(t, local(alone))
	c.Heal()
	require.Eventually(t, func() bool { return local(alone) == 1 }, 30*time.Second, 20*time.Millisecond)
}

func TestProxyCutsAndStalls(t *testing.T) {
	c := etcdtest.Start(t, etcdtest.Options{})
	c.MustFill(t, 4<<20)
	p := etcdtest.StartProxy(t, c.Members[0].ClientURL)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{p.URL()}, Logger: zap.NewNop()})
	require.NoError(t, err)
	defer client.Close()
	read := func() (int64, error) {
		stream, err := client.Snapshot(t.Context())
		if err != nil {
			return 0, err
		}
		defer stream.Close()
		return io.Copy(io.Discard, stream)
	}
	whole, err := read()
	require.NoError(t, err)
	require.Greater(t, whole, int64(4<<20))

	p.CutAfter(whole / 2)
	n, err := read()
	require.Error(t, err)
	require.LessOrEqual(t, n, whole/2)

	p.Pass()
	require.Eventually(t, func() bool { n, err := read(); return err == nil && n > 4<<20 }, 30*time.Second, 50*time.Millisecond)

	p.StallAfter(whole / 2)
	done := make(chan error, 1)
	go func() { _, err := read(); done <- err }()
	require.Never(t, func() bool { return len(done) > 0 }, 300*time.Millisecond, 50*time.Millisecond)
	p.Pass()
	require.NoError(t, <-done)
}

func TestFakeReplaysAndTampers(t *testing.T) {
	c := etcdtest.Start(t, etcdtest.Options{})
	c.MustFill(t, 1<<20)
	file := filepath.Join(t.TempDir(), "snapshot.db")
	require.NoError(t, c.SaveSnapshot(t.Context(), 0, file))
	real, err := os.ReadFile(file)
	require.NoError(t, err)
	for name, tamper := range map[string]func([]byte) []byte{
		"as it is": nil, "flipped": etcdtest.FlipBit(-1), "no checksum": etcdtest.DropChecksum, "short": etcdtest.Truncate(100_000),
	} {
		t.Run(name, func(t *testing.T) {
			f := &etcdtest.FakeMaintenance{Snapshot: real, Tamper: tamper}
			want := real
			if tamper != nil {
				want = tamper(real)
			}
			client, err := clientv3.New(clientv3.Config{Endpoints: []string{etcdtest.StartFake(t, f)}, Logger: zap.NewNop()})
			require.NoError(t, err)
			defer client.Close()
			stream, err := client.Snapshot(t.Context())
			require.NoError(t, err)
			defer stream.Close()
			got, err := io.ReadAll(stream)
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, got))
		})
	}
}

// orphan starts a cluster, tells its process, and waits to be killed.
func orphan(dir string) {
	c, err := etcdtest.New(context.Background(), dir, etcdtest.Options{})
	if err != nil {
		fmt.Fprintln(os.Stdout, err)
		os.Exit(1)
	}
	fmt.Fprintln(os.Stdout, c.Members[0].PID())
	select {}
}

func TestProcessesDieWithTheirParent(t *testing.T) {
	parts.Require(t, "etcd-3.6") // not within the child's time
	child := exec.Command(os.Args[0], "-orphan", t.TempDir())
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	var line [16]byte
	n, err := out.Read(line[:])
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(line[:n])))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, 0))
	require.NoError(t, child.Process.Kill())
	_ = child.Wait() // killed
	// Nobody may reap it here, so a zombie counts as dead.
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		return err != nil || bytes.Contains(stat, []byte(") Z "))
	}, 10*time.Second, 20*time.Millisecond)
}

func hasIPv6() bool {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		return false
	}
	l.Close()
	return true
}
