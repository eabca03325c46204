package restore

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcdsnapshot.dev/agent/destination"
	"etcdsnapshot.dev/agent/retention"
)

// TestChooseDespiteAWrongClock: what a clock that was a month ahead has named is not the latest for a month, and is found
// by when it was really taken.
func TestChooseDespiteAWrongClock(t *testing.T) {
	now := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	row := func(name string, taken, stored time.Time) destination.Row {
		return destination.Row{Name: name, Policy: "etcd", Time: taken, Stored: stored}
	}
	survey := &destination.Survey{Snapshots: []destination.Row{
		row("ahead", now.AddDate(0, 1, -2), now.AddDate(0, 0, -2)),
		row("three days ago", now.AddDate(0, 0, -3), now.AddDate(0, 0, -3)),
		row("today", now, now),
	}}
	slices.SortFunc(survey.Snapshots, func(a, b destination.Row) int { return retention.NewestFirst(a.Snapshot(), b.Snapshot()) })
	for want, s := range map[string]Selection{
		"today":          {Latest: true},
		"ahead":          {At: now.AddDate(0, 0, -1)},
		"three days ago": {At: now.AddDate(0, 0, -2).Add(-time.Minute)},
	} {
		got, err := Choose(survey, "etcd", s)
		require.NoError(t, err)
		require.Equal(t, want, got.Name, s.String())
	}
	_, err := Choose(survey, "etcd", Selection{At: now.AddDate(0, 0, -9)})
	require.ErrorContains(t, err, "the oldest is of 2026-11-28")
}
