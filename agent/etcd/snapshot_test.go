package etcd_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"etcdsnapshot.dev/agent/etcd"
	"etcdsnapshot.dev/ci/etcdtest"
)

// realSnapshot is what the fake member replays.
func realSnapshot(t *testing.T) []byte {
	t.Helper()
	server := etcdtest.Start(t, etcdtest.Options{})
	server.MustFill(t, 1<<20)
	file := filepath.Join(t.TempDir(), "snapshot.db")
	require.NoError(t, server.SaveSnapshot(t.Context(), 0, file))
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	return data
}

func TestTamperedStreams(t *testing.T) {
	data := realSnapshot(t)
	half := len(data) / 2 / 512 * 512
	for name, test := range map[string]struct {
		fake   etcdtest.FakeMaintenance
		want   error
		phrase string
	}{
		"as it is":                     {},
		"trailer flipped":              {fake: etcdtest.FakeMaintenance{Tamper: etcdtest.FlipBit(-1)}, want: etcd.ErrTrailerMismatch, phrase: "does not match its checksum: etcd's is "},
		"first byte flipped":           {fake: etcdtest.FakeMaintenance{Tamper: etcdtest.FlipBit(0)}, want: etcd.ErrTrailerMismatch},
		"last page flipped":            {fake: etcdtest.FakeMaintenance{Tamper: etcdtest.FlipBit(-40)}, want: etcd.ErrTrailerMismatch},
		"trailer missing":              {fake: etcdtest.FakeMaintenance{Tamper: etcdtest.DropChecksum}, want: etcd.ErrTrailerMissing, phrase: "has no checksum at its end"},
		"trailer short":                {fake: etcdtest.FakeMaintenance{Tamper: etcdtest.Truncate(len(data) - 1)}, want: etcd.ErrTrailerMissing},
		"ended early":                  {fake: etcdtest.FakeMaintenance{Tamper: etcdtest.Truncate(half)}, want: etcd.ErrStreamCut, phrase: "cut short"},
		"ended early, size of a whole": {fake: etcdtest.FakeMaintenance{Tamper: etcdtest.Truncate(half + 32)}, want: etcd.ErrStreamCut},
		"nothing":                      {fake: etcdtest.FakeMaintenance{Tamper: etcdtest.Truncate(0)}, want: etcd.ErrStreamCut},
		"error in the middle": {
			fake: etcdtest.FakeMaintenance{Tamper: etcdtest.Truncate(half), Err: status.Error(codes.Internal, "disk on fire")}, want: etcd.ErrStreamCut, phrase: "disk on fire",
		},
		"error at the end": {
			fake: etcdtest.FakeMaintenance{Err: status.Error(codes.Internal, "disk on fire")}, want: etcd.ErrStreamCut, phrase: "disk on fire",
		},
	} {
		t.Run(name, func(t *testing.T) {
			test.fake.Snapshot = data
			cluster := connect(t, etcd.Config{Endpoints: []string{etcdtest.StartFake(t, &test.fake)}})
			var got bytes.Buffer
			db, err := cluster.Snapshot(t.Context(), members(t, cluster)[0], &got)
			if test.want == nil {
				require.NoError(t, err)
				require.Equal(t, data, got.Bytes())
				requireProven(t, db, got.Bytes())
				return
			}
			require.Zero(t, db)
			require.ErrorIs(t, err, test.want)
			require.ErrorContains(t, err, test.phrase)
			for _, other := range []error{etcd.ErrStreamCut, etcd.ErrTrailerMissing, etcd.ErrTrailerMismatch} {
				require.Equal(t, errors.Is(test.want, other), errors.Is(err, other))
			}
		})
	}
}

func TestStreamCutInTheMiddle(t *testing.T) {
	for name, o := range map[string]etcdtest.Options{"plain": {}, "tls": {TLS: true}} {
		t.Run(name, func(t *testing.T) {
			server := etcdtest.Start(t, o)
			server.MustFill(t, 4<<20)
			proxy := etcdtest.StartProxy(t, server.Members[0].ClientURL)
			cluster := connect(t, configFor(server, proxy.URL()))
			m := members(t, cluster)[0]
			proxy.CutAfter(m.DBSize / 2)
			var got bytes.Buffer
			_, err := cluster.Snapshot(t.Context(), m, &got)
			require.ErrorIs(t, err, etcd.ErrStreamCut)
			require.ErrorContains(t, err, proxy.URL())
			require.Less(t, int64(got.Len()), m.DBSize)
		})
	}
}

func TestMemberKilledInTheMiddle(t *testing.T) {
	server := etcdtest.Start(t, etcdtest.Options{TLS: true})
	server.MustFill(t, 16<<20) // more than is on its way at any time
	cluster := connect(t, configFor(server))
	kill := sync.OnceFunc(server.Members[0].Stop)
	_, err := cluster.Snapshot(t.Context(), members(t, cluster)[0], writerFunc(func(p []byte) (int, error) {
		kill()
		return len(p), nil
	}))
	require.ErrorIs(t, err, etcd.ErrStreamCut)
}

func TestStalledStream(t *testing.T) {
	server := etcdtest.Start(t, etcdtest.Options{TLS: true})
	server.MustFill(t, 4<<20)
	proxy := etcdtest.StartProxy(t, server.Members[0].ClientURL)
	config := configFor(server, proxy.URL())
	config.StallTimeout = time.Second
	cluster := connect(t, config)
	m := members(t, cluster)[0]
	proxy.StallAfter(m.DBSize / 2)
	var got bytes.Buffer
	_, err := cluster.Snapshot(t.Context(), m, &got)
	var stall *etcd.StallError
	require.ErrorAs(t, err, &stall)
	require.EqualValues(t, got.Len(), stall.Received)
	require.Positive(t, stall.Received)
	require.Equal(t, config.StallTimeout, stall.For)
	require.ErrorContains(t, err, "stalled: no byte for 1s after ")

	// Stalled before the first byte.
	proxy.StallAfter(0)
	_, err = cluster.Snapshot(t.Context(), m, &got)
	require.ErrorAs(t, err, &stall)
	require.Zero(t, stall.Received)
}

// etcd that cannot read its database sends messages without content, for ever.
func TestEmptyMessagesAreNoProgress(t *testing.T) {
	fake := &etcdtest.FakeMaintenance{Snapshot: realSnapshot(t), Endless: true}
	cluster := connect(t, etcd.Config{Endpoints: []string{etcdtest.StartFake(t, fake)}, StallTimeout: time.Second})
	var got bytes.Buffer
	_, err := cluster.Snapshot(t.Context(), members(t, cluster)[0], &got)
	var stall *etcd.StallError
	require.ErrorAs(t, err, &stall)
	require.EqualValues(t, len(fake.Snapshot)-32, stall.Received)
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestSlowWriterIsNoStall(t *testing.T) {
	server := etcdtest.Start(t, etcdtest.Options{})
	server.MustFill(t, 8<<20)
	config := configFor(server)
	config.StallTimeout = time.Second
	cluster := connect(t, config)
	var got bytes.Buffer
	blocked := 0
	db, err := cluster.Snapshot(t.Context(), members(t, cluster)[0], writerFunc(func(p []byte) (int, error) {
		if got.Len() > blocked*4<<20 && blocked < 2 {
			blocked++
			time.Sleep(config.StallTimeout * 3 / 2) // this is the slow writer
		}
		return got.Write(p)
	}))
	require.NoError(t, err)
	require.Equal(t, 2, blocked)
	requireProven(t, db, got.Bytes())
}

func TestWriterFails(t *testing.T) {
	server := etcdtest.Start(t, etcdtest.Options{})
	server.MustFill(t, 4<<20)
	cluster := connect(t, configFor(server))
	full := errors.New("no space left on device")
	left := 1 << 20
	_, err := cluster.Snapshot(t.Context(), members(t, cluster)[0], writerFunc(func(p []byte) (int, error) {
		if left -= len(p); left < 0 {
			return 0, full
		}
		return len(p), nil
	}))
	require.ErrorIs(t, err, full)
	require.NotErrorIs(t, err, etcd.ErrStreamCut)
}

func TestSnapshotStopsWithItsContext(t *testing.T) {
	server := etcdtest.Start(t, etcdtest.Options{})
	server.MustFill(t, 8<<20)
	cluster := connect(t, configFor(server))
	m := members(t, cluster)[0]
	gone := errors.New("signal: terminated")
	ctx, cancel := context.WithCancelCause(t.Context())
	_, err := cluster.Snapshot(ctx, m, writerFunc(func(p []byte) (int, error) {
		cancel(gone)
		return len(p), nil
	}))
	require.ErrorIs(t, err, gone)

	// Several at a time, of one member.
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			var got bytes.Buffer
			db, err := cluster.Snapshot(t.Context(), m, &got)
			if err != nil || db.Size != int64(got.Len()) {
				t.Errorf("%v: %d of %d bytes", err, got.Len(), db.Size)
			}
		})
	}
	wg.Wait()

	_, err = cluster.Snapshot(t.Context(), etcd.Member{Endpoint: "http://127.0.0.1:1"}, nil)
	require.ErrorContains(t, err, "no such endpoint is configured")
}

// TestStreamTakesLittleMemory: on our side a stream allocates buffers, not the database. The usual way to read it takes
// more than its size.
func TestStreamTakesLittleMemory(t *testing.T) {
	server := etcdtest.Start(t, etcdtest.Options{TLS: true})
	server.MustFill(t, 24<<20)
	cluster := connect(t, configFor(server))
	m := members(t, cluster)[0]
	_, err := cluster.Snapshot(t.Context(), m, io.Discard) // fills gRPC's pools
	require.NoError(t, err)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	db, err := cluster.Snapshot(t.Context(), m, io.Discard)
	require.NoError(t, err)
	runtime.ReadMemStats(&after)
	mib := float64(db.Size) / (1 << 20)
	kib, n := float64(after.TotalAlloc-before.TotalAlloc)/1024/mib, float64(after.Mallocs-before.Mallocs)/mib
	t.Logf("%.0f KiB and %.0f allocations for each MiB of %.0f", kib, n, mib)
	require.Less(t, kib, 512.0)
}
