package catalog

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "etcdsnapshot.dev/agent/api/v1"
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
	require.Equal(t, []string{"new", "old", "future"}, order)

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
