package catalog

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/destination"
)

// TestCopy: what a row says of one copy, by what the row said before (the node of the snapshot is cp-1) and what was seen.
func TestCopy(t *testing.T) {
	const name = "etcd-20260102t030405z-aaaaa"
	facts := &v1.SnapshotFacts{Node: "cp-1", Object: v1.ObjectFacts{Key: name + ".db", Size: 10}}
	entry := destination.Entry{Name: name, Key: name + ".db", Size: 10}
	old := func(phase string) *v1.SnapshotDestinationStatus {
		return &v1.SnapshotDestinationStatus{Name: "d", Phase: phase}
	}
	ours := &Run{Manifest: &v1.Manifest{Name: name}}
	for title, c := range map[string]struct {
		d    *Destination
		node string
		run  *Run
		old  *v1.SnapshotDestinationStatus
		// want is the phase, "" being nothing; there says that the row must stay for it.
		want  string
		there bool
	}{
		"not worked on, stored":            {nil, "cp-1", nil, old("Stored"), "Stored", true},
		"not worked on, missing":           {nil, "cp-1", nil, old("Missing"), "Missing", false},
		"not worked on, unknown":           {nil, "cp-1", nil, nil, "", true},
		"not listed, stored":               {&Destination{}, "cp-1", nil, old("Stored"), "Stored", true},
		"not listed, unknown":              {&Destination{}, "cp-1", nil, nil, "", true},
		"not listed, just stored":          {&Destination{}, "cp-1", ours, nil, "Stored", true},
		"not listed, just failed":          {&Destination{Err: errors.New("x")}, "cp-1", ours, nil, "Failed", false},
		"listed before it was stored":      {&Destination{Listed: true}, "cp-1", ours, nil, "Stored", true},
		"seen":                             {&Destination{Listed: true, Snapshots: []destination.Entry{entry}}, "cp-1", nil, nil, "Stored", true},
		"seen again":                       {&Destination{Listed: true, Snapshots: []destination.Entry{entry}}, "cp-1", nil, old("Missing"), "Stored", true},
		"seen on a disk all nodes share":   {&Destination{Listed: true, NodeLocal: true, Snapshots: []destination.Entry{entry}}, "cp-2", nil, old("Stored"), "Stored", true},
		"damaged":                          {&Destination{Listed: true, Snapshots: []destination.Entry{{Name: name, Size: 9}}}, "cp-1", nil, nil, "Failed", true},
		"seen, then pruned":                {&Destination{Listed: true, Snapshots: []destination.Entry{entry}, Pruned: []string{name}}, "cp-1", nil, old("Stored"), "Pruned", false},
		"gone":                             {&Destination{Listed: true}, "cp-1", nil, old("Stored"), "Missing", false},
		"still gone":                       {&Destination{Listed: true}, "cp-1", nil, old("Missing"), "Missing", false},
		"pruned before":                    {&Destination{Listed: true}, "cp-1", nil, old("Pruned"), "Pruned", false},
		"failed before":                    {&Destination{Listed: true}, "cp-1", nil, old("Failed"), "Failed", false},
		"never there":                      {&Destination{Listed: true}, "cp-1", nil, nil, "", false},
		"gone from this node's disk":       {&Destination{Listed: true, NodeLocal: true}, "cp-1", nil, old("Stored"), "Missing", false},
		"on another node's disk":           {&Destination{Listed: true, NodeLocal: true}, "cp-2", nil, old("Stored"), "Stored", true},
		"gone from another node's disk":    {&Destination{Listed: true, NodeLocal: true}, "cp-2", nil, old("Missing"), "Missing", false},
		"perhaps on another node's disk":   {&Destination{Listed: true, NodeLocal: true}, "cp-2", nil, nil, "", false},
		"another node's disk, not listed":  {&Destination{NodeLocal: true}, "cp-2", nil, old("Stored"), "Stored", true},
		"another snapshot's failure":       {&Destination{Listed: true, Err: errors.New("x")}, "cp-1", &Run{Manifest: &v1.Manifest{Name: "y"}}, nil, "", false},
		"failed before, this run, as well": {&Destination{Listed: true, Err: errors.New("x")}, "cp-1", ours, old("Failed"), "Failed", false},
	} {
		t.Run(title, func(t *testing.T) {
			r := &Report{Policy: &v1.EtcdSnapshotPolicy{}, Node: c.node, Run: c.run}
			if c.d != nil {
				c.d.Name = "d"
				r.Destinations = []Destination{*c.d}
			}
			v := newView(r, []string{"d"})
			now, there := v.copy(name, facts, v.destination("d"), c.old)
			phase := ""
			if now != nil {
				phase = now.Phase
			}
			require.Equal(t, c.want, phase)
			require.Equal(t, c.there, there)
		})
	}
}

// TestNewest: one clock that was a year ahead once does not decide for a year what the newest snapshot is.
func TestNewest(t *testing.T) {
	now := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	at := func(name string, taken time.Time) destination.Entry {
		return destination.Entry{Name: name, Time: taken, Stored: now, Size: 1}
	}
	r := &Report{Policy: &v1.EtcdSnapshotPolicy{}, Destinations: []Destination{
		{Name: "a", Listed: true, Snapshots: []destination.Entry{at("future", now.AddDate(1, 0, 0)), at("old", now.Add(-time.Hour))}},
		{Name: "b", Listed: true, Snapshots: []destination.Entry{at("new", now.Add(time.Minute)), at("old", now.Add(-time.Hour))}},
	}}
	v := newView(r, []string{"a", "b"})
	require.Equal(t, "new", v.newest().name)
	var order []string
	for _, e := range v.order {
		order = append(order, e.Name)
	}
	require.Equal(t, []string{"new", "future", "old"}, order, "the one from the future was stored just now")

	r.Run = &Run{Manifest: &v1.Manifest{Name: "mine"}}
	require.Equal(t, "mine", newView(r, nil).newest().name)
	r.Destinations[0].Err, r.Destinations[1].Err = errors.New("x"), errors.New("x")
	require.Equal(t, "new", newView(r, nil).newest().name, "mine is nowhere")
	require.Equal(t, "", newView(&Report{}, nil).newest().name)
}

// TestRowLeavesItsArgument: the row that is there is compared with the one that ought to be, so it must not change.
func TestRowLeavesItsArgument(t *testing.T) {
	old := &v1.EtcdSnapshotStatus{Conditions: []metav1.Condition{{Type: v1.ConditionStored, Status: metav1.ConditionFalse, Reason: "Missing"}}}
	r := &Report{Policy: &v1.EtcdSnapshotPolicy{}, Destinations: []Destination{{Name: "d", Listed: true, Snapshots: []destination.Entry{{Name: "x"}}}}}
	status, keep := newView(r, []string{"d"}).row("x", &v1.SnapshotFacts{}, 1, old)
	require.True(t, keep)
	require.Equal(t, metav1.ConditionTrue, status.Conditions[0].Status)
	require.Equal(t, metav1.ConditionFalse, old.Conditions[0].Status)
	again, _ := newView(r, []string{"d"}).row("x", &v1.SnapshotFacts{}, 1, &status)
	require.True(t, same(status, again), "nothing changes by itself")
}

// TestOptionalDestination: a copy that is not required does not make a snapshot bad.
func TestOptionalDestination(t *testing.T) {
	r := &Report{Policy: &v1.EtcdSnapshotPolicy{}, Run: &Run{Manifest: &v1.Manifest{Name: "x"}}, Destinations: []Destination{
		{Name: "a", Required: true}, {Name: "b", Err: errors.New("bucket is gone")},
	}}
	v := newView(r, []string{"a", "b"})
	status, _ := v.row("x", &v1.SnapshotFacts{}, 1, &v1.EtcdSnapshotStatus{})
	require.Equal(t, "True/Stored: stored in a", condition(status.Conditions, v1.ConditionStored))
	require.Equal(t, []note{{eventNormal, ReasonStored, "stored x (revision 0, 0 B) in a; not in b, which is not required: bucket is gone"}}, r.notes(v))
}

func TestTexts(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1 << 20: "1.0 MiB", 1<<20 - 1: "1.0 MiB", 12900000: "12.3 MiB", 1<<63 - 1: "8.0 EiB"} {
		require.Equal(t, want, formatBytes(n))
	}
	require.Equal(t, "short", shorten("short", 10))
	require.Equal(t, "ää ...", shorten("äääääää", 9), "no half characters")
	require.LessOrEqual(t, len(shorten(strings.Repeat("ä", 5000), maxNote)), maxNote)
	require.Equal(t, "a, b, c, d, e and 2 more", someOf([]string{"a", "b", "c", "d", "e", "f", "g"}))
}

// TestStatusAfter: what programs read in a policy's status, run after run, without an API server.
func TestStatusAfter(t *testing.T) {
	begin := time.Date(2026, 12, 1, 6, 0, 0, 0, time.UTC)
	policy := &v1.EtcdSnapshotPolicy{Spec: v1.EtcdSnapshotPolicySpec{Destinations: []v1.Destination{
		{Name: "node", HostPath: &v1.HostPathDestination{Path: "/x"}, Retention: &v1.Retention{Last: 1}},
		{Name: "offsite", S3: &v1.S3Destination{Bucket: "b"}, Required: new(bool)},
	}}}
	snapshot := func(name string, size, revision int64) *v1.Manifest {
		parsed, ok := archive.ParseName(name)
		require.True(t, ok)
		return &v1.Manifest{Name: name, SnapshotFacts: v1.SnapshotFacts{CreatedAt: metav1.NewTime(parsed.Time),
			Database: v1.DatabaseFacts{Size: size}, Object: v1.ObjectFacts{Size: size / 4}, Etcd: v1.SnapshotEtcd{Revision: revision}}}
	}
	first, second := "etcd-20261201t060000z-aaaaa", "etcd-20261201t120000z-bbbbb"
	expiry := []v1.CertificateStatus{{File: "/ca.crt", NotAfter: metav1.NewTime(begin.AddDate(1, 0, 0))}}

	run := func(before v1.EtcdSnapshotPolicyStatus, r Run, more ...func(*Report)) v1.EtcdSnapshotPolicyStatus {
		report := &Report{Policy: policy, Run: &r, Destinations: []Destination{{Name: "node", Required: true}, {Name: "offsite"}}}
		for _, change := range more {
			change(report)
		}
		r.Begin, r.End = begin, begin.Add(1580*time.Millisecond)
		return StatusAfter(report, &before, []string{"node", "offsite"})
	}
	one := run(v1.EtcdSnapshotPolicyStatus{}, Run{Schedule: "0 */6 * * *", Interval: 6 * time.Hour, Manifest: snapshot(first, 4000, 10), Certificates: expiry}, func(r *Report) {
		r.Destinations[0].KeptBecause, r.Destinations[0].Pruned = map[string][]string{}, []string{"x", "y"}
	})
	require.Equal(t, "Succeeded", one.LastResult)
	require.Equal(t, "1.58", one.LastDurationSeconds)
	require.EqualValues(t, 6*3600, one.ScheduleIntervalSeconds)
	require.Equal(t, expiry, one.Certificates)
	require.Equal(t, []int64{4000, 0, 1000, 10, 0}, []int64{one.DatabaseBytes, one.PreviousDatabaseBytes, one.StoredBytes, one.Revision, one.PreviousRevision})
	node, offsite := one.Destinations[0], one.Destinations[1]
	require.Equal(t, []any{"hostPath", true, true, int32(2), begin.Add(time.Second)}, []any{node.Backend, *node.Required, *node.Retention, *node.LastPruned, node.LastPruneTime.Time})
	require.Equal(t, []any{"s3", false, false}, []any{offsite.Backend, *offsite.Required, *offsite.Retention})
	require.Nil(t, offsite.LastPruneTime, "nobody pruned there")

	two := run(one, Run{Manifest: snapshot(second, 1500, 12)})
	require.Equal(t, []int64{1500, 4000, 375, 12, 10}, []int64{two.DatabaseBytes, two.PreviousDatabaseBytes, two.StoredBytes, two.Revision, two.PreviousRevision})
	require.Equal(t, expiry, two.Certificates, "kept where they were not read")
	require.EqualValues(t, 6*3600, two.ScheduleIntervalSeconds)

	three := run(two, Run{Err: errors.New("etcd is away")})
	require.Equal(t, "Failed", three.LastResult)
	require.EqualValues(t, 1, three.ConsecutiveFailures)
	require.Equal(t, []int64{1500, 4000}, []int64{three.DatabaseBytes, three.PreviousDatabaseBytes}, "a run without a snapshot does not push the others out")
	require.Equal(t, second, three.LastSnapshot)

	four := run(three, Run{Manifest: snapshot(first, 1, 1), Err: errors.New("node: disk full")}, func(r *Report) { r.Destinations[0].Err = errors.New("disk full") })
	require.Equal(t, "Partial", four.LastResult)
	require.EqualValues(t, 2, four.ConsecutiveFailures)
	require.True(t, two.LastSuccessTime.Equal(four.LastSuccessTime))
}

// TestVerificationsByLevel: each level keeps its last verification, and the newest snapshot that ever passed.
func TestVerificationsByLevel(t *testing.T) {
	now := metav1.NewTime(time.Date(2026, 12, 2, 6, 0, 0, 0, time.UTC))
	older, newer := "etcd-20261201t060000z-aaaaa", "etcd-20261201t120000z-bbbbb"
	verify := func(before v1.EtcdSnapshotPolicyStatus, when metav1.Time, done map[string]v1.VerificationStatus) v1.EtcdSnapshotPolicyStatus {
		for name, v := range done {
			v.Time = when
			done[name] = v
		}
		return StatusAfter(&Report{Policy: &v1.EtcdSnapshotPolicy{}, Verifications: done}, &before, nil)
	}
	passed := func(level string) v1.VerificationStatus {
		return v1.VerificationStatus{Level: level, Result: v1.VerificationPassed}
	}
	one := verify(v1.EtcdSnapshotPolicyStatus{}, now, map[string]v1.VerificationStatus{older: passed("restore"), newer: passed("restore")})
	require.Len(t, one.Verifications, 1)
	v := one.Verifications[0]
	require.Equal(t, []string{"restore", "Passed", newer, newer}, []string{v.Level, v.Result, v.Snapshot, v.PassedSnapshot})
	require.Equal(t, "2026-12-01 12:00:00 +0000 UTC", v.PassedSnapshotTime.String())

	later := metav1.NewTime(now.Add(time.Hour))
	two := verify(one, later, map[string]v1.VerificationStatus{older: {Level: "restore", Result: v1.VerificationFailed, Message: "rotten"}, newer: passed("checksum")})
	require.Len(t, two.Verifications, 2)
	require.Equal(t, "checksum", two.Verifications[0].Level)
	v = two.Verifications[1]
	require.Equal(t, []string{"Failed", older, "rotten", newer}, []string{v.Result, v.Snapshot, v.Message, v.PassedSnapshot})
	require.True(t, v.Time.Equal(&later))
	require.True(t, v.PassedTime.Equal(&now))

	three := verify(two, later, map[string]v1.VerificationStatus{older: passed("restore")})
	require.Equal(t, newer, three.Verifications[1].PassedSnapshot, "an older one that passes later is not the newest that passed")
	require.True(t, three.Verifications[1].PassedTime.Equal(&later))
	require.Equal(t, "Passed", three.Verifications[1].Result)
}
