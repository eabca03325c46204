package etcd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcdsnapshot.dev/agent/etcd"
	"etcdsnapshot.dev/ci/etcdtest"
)

func TestFollowersComeBeforeTheLeader(t *testing.T) {
	server := etcdtest.Start(t, etcdtest.Options{TLS: true, Members: 3})
	cluster := connect(t, configFor(server))
	ms := members(t, cluster)
	require.Len(t, ms, 3)
	require.Equal(t, []bool{false, false, true}, []bool{ms[0].Leader, ms[1].Leader, ms[2].Leader})
	for _, m := range ms {
		require.Equal(t, ms[0].ClusterID, m.ClusterID)
		require.Empty(t, m.Warnings)
	}
	// The member that was chosen is the one that is asked, whatever became of the others.
	for _, s := range server.Members {
		if s.ClientURL != ms[1].Endpoint {
			s.Stop()
		}
	}
	var got bytes.Buffer
	db, err := cluster.Snapshot(t.Context(), ms[1], &got)
	require.NoError(t, err)
	requireProven(t, db, got.Bytes())
	_, err = cluster.Snapshot(t.Context(), ms[0], &got)
	require.ErrorContains(t, err, "connection refused")
	require.ErrorContains(t, err, ms[0].Endpoint)
}

func TestSnapshotWithoutQuorum(t *testing.T) {
	server := etcdtest.Start(t, etcdtest.Options{Members: 3})
	leader, err := server.Leader(t.Context())
	require.NoError(t, err)
	left := (leader + 1) % 3
	for i, m := range server.Members {
		if i != left {
			m.Stop()
		}
	}
	var log logged
	config := configFor(server)
	config.Logger = log.logger()
	cluster := connect(t, config)
	var ms []etcd.Member
	require.Eventually(t, func() bool {
		ms, err = cluster.Members(t.Context())
		return err == nil && len(ms) == 1 && len(ms[0].Warnings) > 0
	}, 20*time.Second, 50*time.Millisecond)
	require.Equal(t, server.Members[left].ClientURL, ms[0].Endpoint)
	require.Contains(t, ms[0].Warnings[0], "knows no leader")
	require.Contains(t, log.String(), "knows no leader")
	require.Contains(t, log.String(), "connection refused")
	var got bytes.Buffer
	db, err := cluster.Snapshot(t.Context(), ms[0], &got)
	require.NoError(t, err)
	requireProven(t, db, got.Bytes())
}

func TestLearnersAreSkipped(t *testing.T) {
	server := etcdtest.Start(t, etcdtest.Options{Learner: true})
	learner := server.Members[1]
	ms, skipped, err := connect(t, configFor(server)).Survey(t.Context())
	require.NoError(t, err)
	require.Len(t, ms, 1)
	require.Equal(t, server.Members[0].ClientURL, ms[0].Endpoint)
	require.Len(t, skipped, 1)
	require.Equal(t, learner.ClientURL, skipped[0].Endpoint)
	require.ErrorIs(t, skipped[0], etcd.ErrLearner)

	only := unavailable(t, configFor(server, learner.ClientURL))
	require.ErrorIs(t, only, etcd.ErrLearner)
	require.ErrorContains(t, only, "no etcd member can give a snapshot: "+learner.ClientURL+": it is a learner")
}

func TestLaggingMembersAreSkipped(t *testing.T) {
	server := etcdtest.Start(t, etcdtest.Options{Members: 3, Partitionable: true})
	leader, err := server.Leader(t.Context())
	require.NoError(t, err)
	behind := (leader + 1) % 3
	require.NoError(t, server.Isolate(t.Context(), behind))
	client, err := server.Client(leader)
	require.NoError(t, err)
	defer client.Close()
	put := func(n int) {
		var failed error
		done := make(chan error)
		const side = 100
		for range side {
			go func() {
				var err error
				for range n / side {
					if _, err = client.Put(t.Context(), "k", "v"); err != nil {
						break
					}
				}
				done <- err
			}()
		}
		for range side {
			failed = errors.Join(failed, <-done)
		}
		require.NoError(t, failed)
	}
	cluster := connect(t, configFor(server))
	put(1000)
	// A little behind is no reason to refuse it, but it knows no leader, so it comes last.
	require.Eventually(t, func() bool {
		ms, err := cluster.Members(t.Context())
		return err == nil && len(ms) == 3 && ms[2].Endpoint == server.Members[behind].ClientURL && len(ms[2].Warnings) == 1
	}, 20*time.Second, 50*time.Millisecond)
	put(etcd.MaxLag)
	ms, skipped, err := cluster.Survey(t.Context())
	require.NoError(t, err)
	require.Len(t, ms, 2)
	require.Len(t, skipped, 1)
	require.Equal(t, server.Members[behind].ClientURL, skipped[0].Endpoint)
	require.ErrorIs(t, skipped[0], etcd.ErrLagging)
	require.ErrorContains(t, skipped[0], "at most 5000 behind are accepted")

	server.Heal()
	require.Eventually(t, func() bool {
		// It catches up by a raft snapshot, and etcd tells the index of that one only with the next entry.
		put(100)
		ms, err := cluster.Members(t.Context())
		return err == nil && len(ms) == 3
	}, 30*time.Second, 50*time.Millisecond)
}

func TestAlarms(t *testing.T) {
	for _, version := range etcdtest.Versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			server := etcdtest.Start(t, etcdtest.Options{Version: version, Members: 3})
			cluster := connect(t, configFor(server))
			all := members(t, cluster)
			client, err := server.Client(0)
			require.NoError(t, err)
			defer client.Close()
			raise := func(member uint64, kind pb.AlarmType) {
				_, err := pb.NewMaintenanceClient(client.ActiveConnection()).Alarm(t.Context(), &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: member, Alarm: kind})
				require.NoError(t, err)
			}
			raise(all[2].MemberID, pb.AlarmType_NOSPACE)
			raise(all[0].MemberID, pb.AlarmType_CORRUPT)
			var (
				ms      []etcd.Member
				skipped []*etcd.EndpointError
			)
			require.Eventually(t, func() bool {
				ms, skipped, err = cluster.Survey(t.Context())
				return err == nil && len(ms) == 2
			}, 10*time.Second, 20*time.Millisecond)
			require.Equal(t, all[0].Endpoint, skipped[0].Endpoint)
			require.ErrorIs(t, skipped[0], etcd.ErrCorrupt)
			require.Eventually(t, func() bool {
				ms = members(t, cluster)
				return len(ms[0].Warnings) == 2 && len(ms[1].Warnings) == 2
			}, 10*time.Second, 20*time.Millisecond)
			require.Contains(t, ms[0].Warnings[0], "NOSPACE")
			require.Contains(t, ms[0].Warnings[1], "CORRUPT for another member")
			var got bytes.Buffer
			db, err := cluster.Snapshot(t.Context(), ms[0], &got)
			require.NoError(t, err)
			requireProven(t, db, got.Bytes())
		})
	}
}

func TestCorruptionThatIsNobodysInParticular(t *testing.T) {
	server := etcdtest.Start(t, etcdtest.Options{})
	client, err := server.Client(0)
	require.NoError(t, err)
	defer client.Close()
	_, err = pb.NewMaintenanceClient(client.ActiveConnection()).Alarm(t.Context(), &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, Alarm: pb.AlarmType_CORRUPT})
	require.NoError(t, err)
	ms := members(t, connect(t, configFor(server)))
	require.Len(t, ms, 1)
	require.Contains(t, ms[0].Warnings[0], "CORRUPT for the whole cluster")
}

func TestEndpointsOfDifferentClusters(t *testing.T) {
	one, other := etcdtest.Start(t, etcdtest.Options{}), etcdtest.Start(t, etcdtest.Options{})
	_, err := connect(t, configFor(one, one.Members[0].ClientURL, other.Members[0].ClientURL)).Members(t.Context())
	var config *etcd.ConfigError
	require.ErrorAs(t, err, &config)
	require.Equal(t, "spec.etcd.endpoints", config.Field)
	require.ErrorContains(t, err, "different clusters")
	require.ErrorContains(t, err, one.Members[0].ClientURL)
	require.ErrorContains(t, err, other.Members[0].ClientURL)
}

func TestOneMemberBehindTwoEndpoints(t *testing.T) {
	server := etcdtest.Start(t, etcdtest.Options{})
	url := server.Members[0].ClientURL
	other := etcdtest.StartProxy(t, url).URL()
	ms, skipped, err := connect(t, configFor(server, url, other)).Survey(t.Context())
	require.NoError(t, err)
	require.Len(t, ms, 1)
	require.Equal(t, url, ms[0].Endpoint)
	require.ErrorIs(t, skipped[0], etcd.ErrDuplicate)
	require.EqualError(t, skipped[0], other+": it is the same member as behind "+url)
}

func TestMembersStopsWithItsContext(t *testing.T) {
	server := etcdtest.Start(t, etcdtest.Options{})
	require.NoError(t, server.Members[0].Pause(t.Context()))
	gone := errors.New("signal: terminated")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(50*time.Millisecond, func() { cancel(gone) })
	_, err := connect(t, configFor(server)).Members(ctx)
	require.ErrorIs(t, err, gone)
}

// TestNextMember is how a caller goes on when the first member fails in the middle.
func TestNextMember(t *testing.T) {
	server := etcdtest.Start(t, etcdtest.Options{Members: 3})
	server.MustFill(t, 8<<20)
	var (
		endpoints []string
		proxies   = map[string]*etcdtest.Proxy{}
	)
	for _, m := range server.Members {
		p := etcdtest.StartProxy(t, m.ClientURL)
		proxies[p.URL()] = p
		endpoints = append(endpoints, p.URL())
	}
	cluster := connect(t, configFor(server, endpoints...))
	ms := members(t, cluster)
	require.Len(t, ms, 3)
	proxies[ms[0].Endpoint].CutAfter(4 << 20)
	var tried []error
	for _, m := range ms {
		var got bytes.Buffer
		db, err := cluster.Snapshot(t.Context(), m, &got)
		tried = append(tried, err)
		if err == nil {
			requireProven(t, db, got.Bytes())
			break
		}
	}
	require.Len(t, tried, 2, fmt.Sprint(tried))
	require.ErrorIs(t, tried[0], etcd.ErrStreamCut)
}

func TestAuthentication(t *testing.T) {
	server := etcdtest.Start(t, etcdtest.Options{TLS: true})
	client, err := server.Client(0)
	require.NoError(t, err)
	defer client.Close()
	enableAuth(t, client)

	// The client certificate's common name is root.
	cluster := connect(t, configFor(server))
	var got bytes.Buffer
	db, err := cluster.Snapshot(t.Context(), members(t, cluster)[0], &got)
	require.NoError(t, err)
	requireProven(t, db, got.Bytes())

	plain := etcdtest.Start(t, etcdtest.Options{})
	client, err = plain.Client(0)
	require.NoError(t, err)
	defer client.Close()
	enableAuth(t, client)
	cluster = connect(t, configFor(plain))
	ms, err := cluster.Members(t.Context())
	if err == nil {
		_, err = cluster.Snapshot(t.Context(), ms[0], &got)
	}
	require.ErrorContains(t, err, "user name is empty")
	require.ErrorContains(t, err, "must be a user with the role root")
}

func enableAuth(t *testing.T, client *clientv3.Client) {
	t.Helper()
	_, err := client.UserAddWithOptions(t.Context(), "root", "secret", &clientv3.UserAddOptions{})
	require.NoError(t, err)
	_, err = client.RoleAdd(t.Context(), "root")
	require.NoError(t, err)
	_, err = client.UserGrantRole(t.Context(), "root", "root")
	require.NoError(t, err)
	_, err = client.AuthEnable(t.Context())
	require.NoError(t, err)
}
