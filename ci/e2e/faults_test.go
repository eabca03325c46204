//go:build e2e

package e2e_test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/ci/cluster"
	"etcdsnapshot.dev/ci/e2e"
	"etcdsnapshot.dev/ci/emulator"
)

// faults is a release with two destinations, whose ways to etcd and to the bucket pass through the test.
type faults struct {
	node    *cluster.Node
	release e2e.Release
	etcd    *wire
	offsite *bucket
	// disk and bucketDir are this cluster's folders, as we see them.
	disk, bucketDir string
	table           strings.Builder
	rows            *tabwriter.Writer
}

const faultValues = `
etcd: {endpoints: [%q]}
backoffLimit: 0
failedJobsHistoryLimit: 100
destinations:
  node: {retention: {last: 1000}}
  offsite: {s3: %s}
nodeSelector: {kubernetes.io/hostname: %s}
extraArgs: [--stall-timeout=5s, --catalog-timeout=20s]
`

// A run that a fault hits: nothing half-written is listed, nothing that was there is lost, the next run succeeds, and status
// tells the truth. The clock is not among the faults, since a node has no clock of its own here: the tests of
// agent/retention have clocks that jump.
func TestFaults(t *testing.T) {
	f := newFaults(t)
	t.Run("killed", f.killed)
	t.Run("disk full", f.diskFull)
	t.Run("spool full", f.spoolFull)
	t.Run("API server killed", f.apiServerKilled)
	t.Run("etcd killed", f.etcdKilled)
	t.Run("etcd stopped", f.etcdStopped)
	t.Run("NOSPACE", f.noSpace)
	t.Run("bucket cut", f.bucketCut)
	t.Run("bucket slow", f.bucketSlow)
	t.Run("bucket cut for good", f.bucketGone)
	t.Run("clock", f.clock)
	f.print(t)
}

// leaderChanges is the one of the faults that takes several members.
func leaderChanges(t *testing.T, three *e2e.Cluster) {
	one := c
	c = three
	t.Cleanup(func() { c = one })
	f := newFaults(t)
	f.leaderChanged(t)
	f.print(t)
}

// newFaults installs the release and has a first snapshot taken.
func newFaults(t *testing.T) *faults {
	t.Helper()
	node := ownNode(t)
	f := &faults{node: node, etcd: newWire(t, node, "127.0.0.1:2379"), offsite: newBucket(t, "offsite")}
	f.rows = tabwriter.NewWriter(&f.table, 0, 0, 3, ' ', 0)
	fmt.Fprintln(f.rows, "FAULT\tWHAT WAS SEEN\tLEFT UNLISTED\tLOST")
	f.ballast(t)
	f.release = e2e.Release{Values: fmt.Sprintf(faultValues, "https://"+f.etcd.address, f.offsite.values, node.Name)}
	f.disk, f.bucketDir = node.Path(c.Folder(t, "/var/lib/etcd-snapshots")), f.offsite.dir+c.Folder(t, "/")
	c.Install(t, f.release)
	c.RunNow(t, system, "etcd-snapshot")
	return f
}

func (f *faults) print(t *testing.T) {
	t.Helper()
	require.NoError(t, f.rows.Flush())
	t.Log("\n" + f.table.String())
}

// stored is what is listed in either destination; all of it is whole.
func (f *faults) stored(t *testing.T) []string {
	t.Helper()
	names := append(listed(t, f.disk), listed(t, f.bucketDir)...)
	slices.Sort(names)
	return slices.Compact(names)
}

// after is what holds after each fault. before is what was stored before it, seen what the run did.
func (f *faults) after(t *testing.T, fault string, before []string, seen string) {
	t.Helper()
	stored := f.stored(t)
	require.Subset(t, stored, before, "lost")
	f.truthful(t, stored)

	c.RunNow(t, system, "etcd-snapshot")
	now := f.stored(t)
	require.Subset(t, now, stored, "lost")
	require.Greater(t, len(now), len(stored))
	require.Len(t, f.truthful(t, now), len(now), "a snapshot has no row")
	policy := c.Policy(t, system, "etcd-snapshot")
	requireReady(t, policy, metav1.ConditionTrue)
	require.Zero(t, policy.Status.ConsecutiveFailures)
	require.EqualValues(t, len(now), *policy.Status.Snapshots)
	require.Contains(t, listed(t, f.disk), policy.Status.LastSnapshot)
	require.Contains(t, listed(t, f.bucketDir), policy.Status.LastSnapshot)
	fmt.Fprintf(f.rows, "%s\t%s\t%s\t%s\n", fault, seen, f.unlisted(t), "nothing")
}

// truthful demands that each copy which a row calls stored is there, and gives the rows.
func (f *faults) truthful(t *testing.T, stored []string) map[string]v1.EtcdSnapshot {
	t.Helper()
	in := map[string][]string{"node": listed(t, f.disk), "offsite": listed(t, f.bucketDir)}
	rows := c.Rows(t, system, "etcd-snapshot")
	for name, row := range rows {
		require.Contains(t, stored, name)
		for _, d := range row.Status.Destinations {
			if d.Phase == v1.PhaseStored {
				require.Contains(t, in[d.Name], name)
			} else {
				require.NotContains(t, in[d.Name], name, d.Message)
			}
		}
	}
	return rows
}

// unlisted counts what lies about without a manifest: a later run removes it, once it is a day old.
func (f *faults) unlisted(t *testing.T) string {
	t.Helper()
	count := func(dir string) (n int) {
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		whole := listed(t, dir)
		for _, e := range entries {
			name, _, _ := strings.Cut(e.Name(), ".")
			if name != "cluster" && !slices.Contains(whole, name) {
				n++
			}
		}
		return n
	}
	if n, b := count(f.disk), count(f.bucketDir); n+b > 0 {
		return fmt.Sprintf("%d on disk, %d in the bucket", n, b)
	}
	return "-"
}

// run starts a run, does something once at says so, and waits for the run to end.
func (f *faults) run(t *testing.T, at <-chan struct{}, do func(job string)) *e2e.Run {
	t.Helper()
	job := c.Start(t, system, "etcd-snapshot")
	select {
	case <-at:
	case <-time.After(e2e.Timeout):
		require.Fail(t, "the run did not get there")
	}
	do(job)
	return c.Finish(t, system, job)
}

func ended(t *testing.T, r *e2e.Run) string {
	t.Helper()
	end := r.End(t)
	word, _, _ := strings.Cut(end.Message, "\n")
	return fmt.Sprintf("%.110s (%d)", word, end.ExitCode)
}

// agentProcess is what the kernel calls it.
const agentProcess = "etcd-snapshot-a"

func (f *faults) killed(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := mathrand.New(mathrand.NewPCG(seed, 0))
	// Slow enough that each part of a run takes a while.
	f.offsite.Add(emulator.Rule{Method: http.MethodPut, Path: ".db", Request: emulator.Fault{Rate: 8 << 20}})
	defer f.offsite.Clear()
	c.RunNow(t, system, "etcd-snapshot")
	whole := c.Policy(t, system, "etcd-snapshot").Status.LastDuration.Duration + time.Second // to start before, and to record after
	for i := range 10 {
		before := f.stored(t)
		delay := time.Duration(random.Int64N(int64(whole)))
		job := c.Start(t, system, "etcd-snapshot")
		out := c.OnNode(t, f.node.Name, "sh", "-c", fmt.Sprintf(
			"until p=$(pgrep -x %s); do sleep 0.01; done; sleep %f; kill -KILL $p && echo killed || echo it had ended", agentProcess, delay.Seconds()))
		run := c.Finish(t, system, job)
		log := strings.Split(strings.TrimSpace(c.Kubectl(t, "logs", "-n", system, "job/"+job)), "\n")
		_, last, _ := strings.Cut(log[len(log)-1], `"msg":"`)
		last, _, _ = strings.Cut(last, `"`)
		if strings.HasPrefix(out, "killed") {
			require.EqualValues(t, 137, run.End(t).ExitCode)
		}
		f.after(t, fmt.Sprintf("SIGKILL %d/10 after %v of %v", i+1, delay.Round(time.Millisecond), whole.Round(time.Millisecond)), before, strings.TrimSpace(out)+", last word: "+last)
	}
}

func (f *faults) diskFull(t *testing.T) {
	before := f.stored(t)
	c.OnNode(t, f.node.Name, "mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", "/var/lib/etcd-snapshots")
	full := true
	free := func() {
		if full {
			full = false
			_, err := c.Exec(context.Background(), f.node.Name, "umount", "/var/lib/etcd-snapshots")
			require.NoError(t, err)
		}
	}
	defer free()
	run := c.Finish(t, system, c.Start(t, system, "etcd-snapshot"))
	require.EqualValues(t, 3, run.End(t).ExitCode, run.End(t).Message)
	require.Contains(t, run.End(t).Message, "no space left on device")
	require.Empty(t, listed(t, f.disk))
	require.Equal(t, "-", f.unlistedIn(t, f.disk), "the full disk was not tidied up")
	policy := c.Policy(t, system, "etcd-snapshot")
	require.Contains(t, requireReady(t, policy, metav1.ConditionFalse).Message, "no space left on device")
	require.EqualValues(t, 1, policy.Status.ConsecutiveFailures)
	free()
	require.Len(t, f.stored(t), len(before)+1, "the bucket has it")
	f.after(t, "node's disk full", before, ended(t, run))
}

func (f *faults) unlistedIn(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		if e.Name() != "cluster.json" {
			names = append(names, e.Name())
		}
	}
	if len(names) == 0 {
		return "-"
	}
	return strings.Join(names, " ")
}

func (f *faults) spoolFull(t *testing.T) {
	before := f.stored(t)
	small := f.release
	small.Set = []string{"spool.medium=Memory", "spool.sizeLimit=1Mi"}
	c.Upgrade(t, small)
	run := c.Finish(t, system, c.Start(t, system, "etcd-snapshot"))
	require.EqualValues(t, 1, run.End(t).ExitCode)
	require.Contains(t, run.End(t).Message, "/spool")
	require.Contains(t, run.End(t).Message, "no space left on device")
	require.Equal(t, before, f.stored(t))
	requireReady(t, c.Policy(t, system, "etcd-snapshot"), metav1.ConditionFalse)
	c.Upgrade(t, f.release)
	f.after(t, "spool full", before, ended(t, run))
}

// duringUpload holds the next upload to the bucket until it is let go.
func (f *faults) duringUpload() (reached chan struct{}, letGo func()) {
	reached, held := make(chan struct{}), make(chan struct{})
	f.offsite.Add(emulator.Rule{Method: http.MethodPut, Path: ".db", Times: 1, Request: emulator.Fault{Rewrite: func(http.Header) {
		close(reached)
		<-held
	}}})
	return reached, sync.OnceFunc(func() { close(held) })
}

func (f *faults) apiServerKilled(t *testing.T) {
	before := f.stored(t)
	reached, letGo := f.duringUpload()
	defer f.offsite.Clear()
	defer letGo()
	run := f.run(t, reached, func(string) {
		c.OnNode(t, f.node.Name, "pkill", "-KILL", "-x", "kube-apiserver")
		letGo()
	})
	require.True(t, run.Succeeded(), run.End(t).Message)
	require.Len(t, f.stored(t), len(before)+1)
	f.after(t, "API server killed while storing", before, ended(t, run))
}

func (f *faults) etcdKilled(t *testing.T) {
	before := f.stored(t)
	reached, letGo := f.etcd.hold(4 << 20)
	defer letGo()
	run := f.run(t, reached, func(string) {
		c.OnNode(t, f.node.Name, "pkill", "-KILL", "-x", "etcd")
		letGo()
	})
	require.EqualValues(t, 1, run.End(t).ExitCode, run.End(t).Message)
	require.Equal(t, before, f.stored(t))
	f.after(t, "etcd killed in mid-stream", before, ended(t, run))
}

func (f *faults) etcdStopped(t *testing.T) {
	before := f.stored(t)
	reached, letGo := f.etcd.hold(4 << 20)
	defer letGo()
	// etcd goes on once the agent has given up.
	run := f.run(t, reached, func(job string) {
		c.OnNode(t, f.node.Name, "pkill", "-STOP", "-x", "etcd")
		letGo()
		c.OnNode(t, f.node.Name, "timeout", "120", "sh", "-c", "until grep -q 'no snapshot from this member' /var/log/pods/"+system+"_"+job+"*/agent/*.log; do sleep 0.2; done; pkill -CONT -x etcd")
	})
	require.EqualValues(t, 1, run.End(t).ExitCode, run.End(t).Message)
	require.Equal(t, before, f.stored(t))
	f.after(t, "etcd stops in mid-stream", before, ended(t, run))
}

func (f *faults) leaderChanged(t *testing.T) {
	before := f.stored(t)
	reached, letGo := f.etcd.hold(4 << 20)
	defer letGo()
	client := f.client(t)
	run := f.run(t, reached, func(string) {
		status, err := client.Status(t.Context(), etcdURL)
		require.NoError(t, err)
		members, err := client.MemberList(t.Context())
		require.NoError(t, err)
		other := slices.IndexFunc(members.Members, func(m *pb.Member) bool { return m.ID != status.Leader })
		_, err = client.MoveLeader(t.Context(), members.Members[other].ID)
		require.NoError(t, err)
		letGo()
	})
	require.True(t, run.Succeeded(), run.End(t).Message)
	f.after(t, "etcd's leader changed in mid-stream", before, ended(t, run))
}

// noSpace raises the alarm while a run is storing: with the alarm on no Job can be made, since etcd takes no writes. A
// snapshot is a read, so the one that is under way is stored; its row has to wait.
func (f *faults) noSpace(t *testing.T) {
	before := f.stored(t)
	client := f.client(t)
	alarm := func(action pb.AlarmRequest_AlarmAction) {
		_, err := pb.NewMaintenanceClient(client.ActiveConnection()).Alarm(context.Background(), &pb.AlarmRequest{Action: action, Alarm: pb.AlarmType_NOSPACE})
		require.NoError(t, err)
	}
	reached, letGo := f.duringUpload()
	defer f.offsite.Clear()
	defer letGo()
	disarm := sync.OnceFunc(func() { alarm(pb.AlarmRequest_DEACTIVATE) })
	defer disarm()
	run := f.run(t, reached, func(job string) {
		alarm(pb.AlarmRequest_ACTIVATE)
		letGo()
		c.OnNode(t, f.node.Name, "timeout", "120", "sh", "-c", "until grep -q 'the catalog is not up to date' /var/log/pods/"+system+"_"+job+"*/agent/*.log; do sleep 0.2; done")

		// What docs/data-path.md says to do meanwhile: a snapshot from the node itself.
		policy := f.policyFile(t)
		_, err := c.Exec(t.Context(), f.node.Name, e2e.Agent(), "snapshot", "--policy-file", policy, "--kubeconfig", "/etc/kubernetes/admin.conf", "--destination", "node", "--catalog-timeout", "1s", "--spool-dir", "/var/lib/root/spool")
		require.NoError(t, err)
		doctor, err := c.Exec(t.Context(), f.node.Name, e2e.Agent(), "doctor", "--policy-file", policy, "--kubeconfig", "/etc/kubernetes/admin.conf", "--destination", "node", "--spool-dir", "/var/lib/root/spool")
		require.Error(t, err, "the doctor overlooks the alarm")
		require.Contains(t, string(doctor), "NOSPACE")
		disarm()
	})
	require.True(t, run.Succeeded(), run.End(t).Message)
	require.Len(t, f.stored(t), len(before)+2)
	f.after(t, "NOSPACE raised while storing", before, ended(t, run))
}

func (f *faults) bucketCut(t *testing.T) {
	before := f.stored(t)
	defer f.offsite.Clear()
	f.offsite.Add(emulator.Rule{Method: http.MethodPut, Path: ".db", Times: 2, Request: emulator.Fault{Reset: true, After: 1 << 20}},
		emulator.Rule{Method: http.MethodPut, Path: ".db", Times: 1, Request: emulator.Fault{Stall: true, After: 1 << 20}})
	run := c.RunNow(t, system, "etcd-snapshot")
	f.after(t, "bucket cut twice, then silent", before, ended(t, run))
}

func (f *faults) bucketSlow(t *testing.T) {
	before := f.stored(t)
	defer f.offsite.Clear()
	f.offsite.Add(emulator.Rule{Method: http.MethodPut, Path: ".db", Request: emulator.Fault{Rate: 1 << 20}})
	run := c.RunNow(t, system, "etcd-snapshot")
	f.offsite.Clear()
	policy := c.Policy(t, system, "etcd-snapshot")
	require.Greater(t, policy.Status.LastDuration.Duration, 5*time.Second, "it was not slow, or longer than --stall-timeout is not allowed")
	f.after(t, "bucket at 1 MiB/s", before, fmt.Sprintf("%s; took %v", ended(t, run), policy.Status.LastDuration.Duration))
}

// bucketGone has Kubernetes end the run, by its deadline: the copy on the node's disk is whole and listed.
func (f *faults) bucketGone(t *testing.T) {
	before := f.stored(t)
	defer f.offsite.Clear()
	short := f.release
	short.Set = []string{"activeDeadlineSeconds=30"}
	c.Upgrade(t, short)
	f.offsite.Add(emulator.Rule{Method: http.MethodPut, Path: ".db", Request: emulator.Fault{Reset: true, After: 1 << 20}})
	run := c.Finish(t, system, c.Start(t, system, "etcd-snapshot"))
	require.False(t, run.Succeeded())
	f.offsite.Clear()
	require.Len(t, f.stored(t), len(before)+1, "the node's disk has it")
	condition := requireReady(t, c.Policy(t, system, "etcd-snapshot"), metav1.ConditionFalse)
	c.Upgrade(t, f.release)
	f.after(t, "bucket cut for good, deadline", before, "Job: DeadlineExceeded; Ready: "+condition.Reason)
}

// clock has runs on a node whose clock is wrong, and then one by the right clock. Retention counts days, so that whoever
// believed the wrong clock would remove all that was there before.
func (f *faults) clock(t *testing.T) {
	require.NoError(t, c.LoadWrongClock(t.Context()))
	wrong := func(t *testing.T, ahead time.Duration) *e2e.Run {
		r := f.release
		r.Set = []string{
			"destinations.node.retention.last=null", "destinations.node.retention.within=7d", "image.tag=" + e2e.WrongClockTag,
			"extraEnv[0].name=" + e2e.WrongClockEnv, "extraEnv[0].value=" + ahead.String(),
		}
		c.Upgrade(t, r)
		run := c.Finish(t, system, c.Start(t, system, "etcd-snapshot"))
		r.Set = r.Set[:2]
		c.Upgrade(t, r) // the right clock, and the retention that the wrong one had
		return run
	}
	taken := func(t *testing.T, before []string) time.Time {
		names := slices.DeleteFunc(f.stored(t), func(name string) bool { return slices.Contains(before, name) })
		require.Len(t, names, 1)
		name, ok := archive.ParseName(names[0])
		require.True(t, ok)
		return name.Time
	}
	const day = 24 * time.Hour

	// The bucket's certificate has expired, and it would refuse the signature; the node's disk does not care.
	t.Run("ahead", func(t *testing.T) {
		before := f.stored(t)
		run := wrong(t, 30*day)
		require.EqualValues(t, 3, run.End(t).ExitCode, run.End(t).Message)
		require.Contains(t, run.End(t).Message, "clock")
		require.WithinDuration(t, time.Now().Add(30*day), taken(t, before), time.Hour)
		f.after(t, "clock 30 days ahead", before, ended(t, run))
		policy := c.Policy(t, system, "etcd-snapshot")
		require.WithinDuration(t, time.Now(), policy.Status.LastSuccessTime.Time, time.Hour, "status goes by the wrong clock")
		f.latest(t, policy.Status.LastSnapshot)
	})
	// Within what a bucket tolerates.
	t.Run("a little ahead", func(t *testing.T) {
		before := f.stored(t)
		run := wrong(t, 10*time.Minute)
		require.True(t, run.Succeeded(), run.End(t).Message)
		require.True(t, taken(t, before).After(time.Now()))
		f.after(t, "clock 10 minutes ahead", before, ended(t, run))
	})
	// No certificate is valid yet, not even the API server's.
	t.Run("behind", func(t *testing.T) {
		before := f.stored(t)
		run := wrong(t, -30*day)
		require.EqualValues(t, 2, run.End(t).ExitCode, run.End(t).Message)
		require.Contains(t, run.End(t).Message, "clock")
		require.Equal(t, before, f.stored(t))
		f.after(t, "clock 30 days behind", before, ended(t, run))
	})
	c.Upgrade(t, f.release)
}

// latest demands that the snapshot which is verified, listed first and restored is this one, and not one from the future.
func (f *faults) latest(t *testing.T, name string) {
	t.Helper()
	file := f.policyFile(t)
	for _, args := range [][]string{
		{"verify", "--level", "checksum"},
		{"list"},
		{"restore", "--latest", "--data-dir", "/var/lib/root/restored"},
	} {
		out, err := c.Exec(t.Context(), f.node.Name, append([]string{e2e.Agent(), args[0], "--policy-file", file, "--kubeconfig", "/etc/kubernetes/admin.conf", "--destination", "node", "-o", "json"}, args[1:]...)...)
		require.NoError(t, err, args[0])
		_, first, _ := strings.Cut(string(out), "etcd-snapshot-2")
		require.True(t, strings.HasPrefix("etcd-snapshot-2"+first, name), "%s: %.300s", args[0], out)
	}
	c.OnNode(t, f.node.Name, "rm", "-r", "/var/lib/root/restored")
}

// policyFile saves the policy on the node, as docs/data-path.md says.
func (f *faults) policyFile(t *testing.T) (path string) {
	t.Helper()
	path = "/var/lib/root/policy.yaml"
	manifest := c.Kubectl(t, "get", "esp", "-n", system, "etcd-snapshot", "-o", "yaml")
	require.NoError(t, os.WriteFile(f.node.Path(path), []byte(manifest), 0o600))
	return path
}

const etcdURL = "https://127.0.0.1:2379"

// client is a client of the node's etcd.
func (f *faults) client(t *testing.T) *clientv3.Client {
	t.Helper()
	pki := f.node.Path("/etc/kubernetes/pki/")
	certificate, err := tls.LoadX509KeyPair(pki+"/apiserver-etcd-client.crt", pki+"/apiserver-etcd-client.key")
	require.NoError(t, err)
	ca, err := os.ReadFile(pki + "/etcd/ca.crt")
	require.NoError(t, err)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(ca))
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{etcdURL}, TLS: &tls.Config{Certificates: []tls.Certificate{certificate}, RootCAs: roots, MinVersion: tls.VersionTLS12},
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return f.node.Dial(ctx, "127.0.0.1:2379")
		})},
	})
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	return client
}

// ballast fills etcd beside Kubernetes' keys, with what does not compress, so that a stream has a middle.
func (f *faults) ballast(t *testing.T) {
	t.Helper()
	client := f.client(t)
	value := make([]byte, 1<<20)
	for i := range 8 {
		_, _ = rand.Read(value)
		_, err := client.Put(t.Context(), fmt.Sprintf("/ballast/%d", i), string(value))
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		ctx, cancel := e2e.Deadline(t)
		defer cancel()
		_, err := client.Delete(ctx, "/ballast/", clientv3.WithPrefix())
		require.NoError(t, err)
	})
}

// wire hands connections in a node's network on to another address there, and can hold one in its middle.
type wire struct {
	address string
	next    atomic.Pointer[hold]
}

type hold struct {
	after         int64
	reached, held chan struct{}
}

func newWire(t *testing.T, node *cluster.Node, target string) *wire {
	t.Helper()
	l, err := node.Listen("127.0.0.1:0")
	require.NoError(t, err)
	w := &wire{address: l.Addr().String()}
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	running.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer client.Close()
				server, err := node.Dial(ctx, target)
				if err != nil {
					return
				}
				defer server.Close()
				defer context.AfterFunc(ctx, func() { client.Close(); server.Close() })()
				running.Go(func() {
					_, _ = io.Copy(server, client)
					server.Close()
				})
				_, _ = io.Copy(&held{w: w, to: client}, server)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		cancel()
		running.Wait()
	})
	return w
}

// hold stops the next connection that brings so many bytes until it is let go.
func (w *wire) hold(after int64) (reached chan struct{}, letGo func()) {
	h := &hold{after, make(chan struct{}), make(chan struct{})}
	w.next.Store(h)
	return h.reached, sync.OnceFunc(func() { close(h.held) })
}

type held struct {
	w    *wire
	to   io.Writer
	done int64
}

func (h *held) Write(p []byte) (int, error) {
	n, err := h.to.Write(p)
	h.done += int64(n)
	if next := h.w.next.Load(); next != nil && h.done >= next.after && h.w.next.CompareAndSwap(next, nil) {
		close(next.reached)
		<-next.held
	}
	return n, err
}
