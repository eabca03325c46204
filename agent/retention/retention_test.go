package retention

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

var now = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

func at(t *testing.T, s string) time.Time {
	t.Helper()
	v, err := time.Parse(time.RFC3339, s)
	require.NoError(t, err)
	return v
}

// every gives n snapshots, the newest at end, step apart.
func every(end time.Time, step time.Duration, n int) []Snapshot {
	var ss []Snapshot
	for i := range n {
		ss = append(ss, Snapshot{Name: fmt.Sprintf("s%05d", n-i), Time: end.Add(-time.Duration(i) * step)})
	}
	return ss
}

func plan(t *testing.T, ss []Snapshot, p *v1.Retention, loc *time.Location) []Decision {
	t.Helper()
	ds, err := Plan(ss, p, now, loc)
	require.NoError(t, err)
	require.Len(t, ds, len(ss))
	return ds
}

func kept(ds []Decision) []string {
	var times []string
	for _, d := range ds {
		if d.Keep {
			times = append(times, d.Time.UTC().Format("01-02T15:04"))
		}
	}
	return times
}

func TestRules(t *testing.T) {
	halfHourly := every(now, 30*time.Minute, 200)
	for name, c := range map[string]struct {
		policy v1.Retention
		want   []string
	}{
		"last":    {v1.Retention{Last: 3}, []string{"12-01T12:00", "12-01T11:30", "12-01T11:00"}},
		"hourly":  {v1.Retention{Hourly: 3}, []string{"12-01T12:00", "12-01T11:30", "12-01T10:30"}},
		"daily":   {v1.Retention{Daily: 3}, []string{"12-01T12:00", "11-30T23:30", "11-29T23:30"}},
		"weekly":  {v1.Retention{Weekly: 2}, []string{"12-01T12:00", "11-29T23:30"}}, // 2026-11-29 is a Sunday
		"monthly": {v1.Retention{Monthly: 5}, []string{"12-01T12:00", "11-30T23:30"}},
		"yearly":  {v1.Retention{Yearly: 2}, []string{"12-01T12:00"}},
		"within":  {v1.Retention{Within: "1h"}, []string{"12-01T12:00", "12-01T11:30", "12-01T11:00"}},
		"two rules": {v1.Retention{Last: 2, Daily: 2},
			[]string{"12-01T12:00", "12-01T11:30", "11-30T23:30"}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, kept(plan(t, halfHourly, &c.policy, time.UTC)))
		})
	}
}

func TestReasons(t *testing.T) {
	ds := plan(t, every(now, time.Hour, 5), &v1.Retention{Last: 2, Hourly: 3, Within: "1d"}, time.UTC)
	require.Equal(t, []string{"newest", "last 1/2", "hourly 2026-12-01T12Z", "within 1d"}, ds[0].Reasons)
	require.Equal(t, []string{"within 1d"}, ds[4].Reasons)
	ds = plan(t, every(now, time.Hour, 5), &v1.Retention{Last: 2}, time.UTC)
	require.Empty(t, ds[4].Reasons)
	require.False(t, ds[4].Keep)
}

func TestNoRetentionKeepsAll(t *testing.T) {
	require.Len(t, kept(plan(t, every(now, time.Minute, 500), nil, time.UTC)), 500)
}

func TestHundredInOneHour(t *testing.T) {
	ds := plan(t, every(now.Add(59*time.Minute-time.Hour), 30*time.Second, 100), &v1.Retention{Hourly: 24}, time.UTC)
	require.Len(t, kept(ds), 1)
	require.True(t, ds[0].Keep)
}

// TestSummerTimeEnds: in Berlin the hour from 2 to 3 comes twice on 2026-10-25, and both are hours.
func TestSummerTimeEnds(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	ss := []Snapshot{
		{Name: "a", Time: at(t, "2026-10-25T02:30:00+02:00")},
		{Name: "b", Time: at(t, "2026-10-25T02:30:00+01:00")},
		{Name: "c", Time: at(t, "2026-10-25T03:30:00+01:00")},
	}
	require.Len(t, kept(plan(t, ss, &v1.Retention{Hourly: 3}, berlin)), 3)
	require.Len(t, kept(plan(t, ss, &v1.Retention{Daily: 3}, berlin)), 1)
	// And the day is the policy's day, not UTC's.
	late := []Snapshot{{Name: "a", Time: at(t, "2026-10-24T23:30:00+02:00")}, {Name: "b", Time: at(t, "2026-10-25T00:30:00+02:00")}}
	require.Len(t, kept(plan(t, late, &v1.Retention{Daily: 3}, berlin)), 2)
	require.Len(t, kept(plan(t, late, &v1.Retention{Daily: 3}, time.UTC)), 1)
}

func TestLeapDay(t *testing.T) {
	ss := []Snapshot{{Name: "a", Time: at(t, "2024-02-28T12:00:00Z")}, {Name: "b", Time: at(t, "2024-02-29T12:00:00Z")}, {Name: "c", Time: at(t, "2024-03-01T12:00:00Z")}}
	require.Len(t, kept(plan(t, ss, &v1.Retention{Daily: 3}, time.UTC)), 3)
	require.Len(t, kept(plan(t, ss, &v1.Retention{Within: "1d"}, time.UTC)), 2)
	require.Len(t, kept(plan(t, ss, &v1.Retention{Monthly: 2}, time.UTC)), 2)
}

// TestISOWeek: 2027-01-01 lies in the last week of 2026, together with 2026-12-31.
func TestISOWeek(t *testing.T) {
	ss := []Snapshot{{Name: "a", Time: at(t, "2026-12-31T12:00:00Z")}, {Name: "b", Time: at(t, "2027-01-01T12:00:00Z")}}
	ds, err := Plan(ss, &v1.Retention{Weekly: 2}, at(t, "2027-01-02T00:00:00Z"), time.UTC)
	require.NoError(t, err)
	require.Len(t, kept(ds), 1)
	require.Contains(t, ds[0].Reasons, "weekly 2026-W53")
}

func TestFuture(t *testing.T) {
	ss := append(every(now, time.Hour, 5), Snapshot{Name: "future", Time: now.AddDate(1, 0, 0)})
	ds := plan(t, ss, &v1.Retention{Last: 2}, time.UTC)
	require.True(t, ds[0].Keep)
	require.Equal(t, []string{"in the future: not counted"}, ds[0].Reasons)
	require.Len(t, kept(ds), 3, "the future one and the two newest of now")
}

// TestClockAheadOfTheStore: a run whose clock was a year ahead must not make `within` remove all the others, where the
// store's own clock tells.
func TestClockAheadOfTheStore(t *testing.T) {
	ahead := now.AddDate(1, 0, 0)
	ss := append(every(now, time.Hour, 5), Snapshot{Name: "ahead", Time: ahead, Stored: now})
	ds, err := Plan(ss, &v1.Retention{Within: "1d"}, ahead, time.UTC)
	require.NoError(t, err)
	require.Len(t, kept(ds), 6)
}

// TestNewestFirst: a name that is ahead of the store's clock does not make a snapshot the newest for a year.
func TestNewestFirst(t *testing.T) {
	in := func(name string, taken, stored time.Duration) Snapshot {
		return Snapshot{Name: name, Time: now.Add(taken), Stored: now.Add(stored)}
	}
	want := []Snapshot{
		in("newest", 0, time.Minute),
		in("same second, stored later", -time.Hour, -50*time.Minute),
		in("same second, stored first", -time.Hour, -55*time.Minute),
		in("named a year ahead", 365*24*time.Hour, -2*time.Hour),
		in("a little ahead of the store", -3*time.Hour, -3*time.Hour-30*time.Minute),
		in("copied here today", -100*time.Hour, 0),
		{Name: "of an unknown store", Time: now.Add(-101 * time.Hour)},
	}
	got := slices.Clone(want)
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(got), func(i, j int) { got[i], got[j] = got[j], got[i] })
	slices.SortFunc(got, NewestFirst)
	require.Equal(t, want, got)
}

// TestClockAheadOnce: the same where no other clock is at hand. Afterwards the one from the future does not count.
func TestClockAheadOnce(t *testing.T) {
	ahead := now.AddDate(1, 0, 0)
	ss := append(every(now, time.Hour, 48), Snapshot{Name: "ahead", Time: ahead})
	for name, p := range map[string]*v1.Retention{"within": {Within: "1d"}, "last": {Last: 24}, "daily": {Daily: 2}} {
		before := plan(t, every(now, time.Hour, 48), p, time.UTC)
		during, err := Plan(ss, p, ahead, time.UTC)
		require.NoError(t, err)
		require.GreaterOrEqual(t, len(kept(during)), len(kept(before)), name)
		var left []Snapshot
		for _, d := range during {
			if d.Keep {
				left = append(left, d.Snapshot)
			}
		}
		require.GreaterOrEqual(t, len(kept(plan(t, left, p, time.UTC))), len(kept(before)), name)
	}
}

func TestNewestVerifiedIsKept(t *testing.T) {
	ss := every(now, time.Hour, 10)
	ss[7].Verified, ss[8].Verified = true, true
	ds := plan(t, ss, &v1.Retention{Last: 1}, time.UTC)
	require.Equal(t, []string{"newest verified"}, ds[7].Reasons)
	require.False(t, ds[8].Keep)
}

func TestSpan(t *testing.T) {
	s, err := ParseSpan("1y6m3d12h")
	require.NoError(t, err)
	require.Equal(t, Span{1, 6, 3, 12}, s)
	require.Equal(t, at(t, "2025-05-29T00:00:00Z"), s.Before(at(t, "2026-12-01T12:00:00Z")).UTC())
	s, err = ParseSpan("7m")
	require.NoError(t, err)
	require.Equal(t, Span{Months: 7}, s)
	for _, bad := range []string{"x", "1", "1w", "3d1y", "1d ", "-1d", "1234567d", "1.5d", "d"} {
		_, err := ParseSpan(bad)
		require.Error(t, err, bad)
		_, err = Plan(every(now, time.Hour, 3), &v1.Retention{Within: bad}, now, time.UTC)
		require.ErrorContains(t, err, "retention.within", "a policy that cannot be read decides nothing")
	}
}

// random makes a policy and snapshots: dense and sparse, doubled times, some verified, some from the future.
func random(r *rand.Rand) ([]Snapshot, *v1.Retention) {
	n := func(max int) int32 {
		if r.IntN(2) == 0 {
			return 0
		}
		return int32(1 + r.IntN(max))
	}
	p := &v1.Retention{Last: n(10), Hourly: n(30), Daily: n(10), Weekly: n(6), Monthly: n(6), Yearly: n(3)}
	if r.IntN(3) == 0 {
		p.Within = []string{"5h", "3d", "2m", "1y1m"}[r.IntN(4)]
	}
	var ss []Snapshot
	t := now.Add(time.Duration(r.IntN(100)-20) * time.Hour)
	for i := range r.IntN(120) {
		t = t.Add(-time.Duration(r.Int64N(int64([]time.Duration{time.Minute, time.Hour, 24 * time.Hour, 400 * time.Hour}[r.IntN(4)]))))
		t = t.Truncate(time.Second)
		ss = append(ss, Snapshot{Name: fmt.Sprintf("s%03d", i), Time: t, Verified: r.IntN(8) == 0})
	}
	r.Shuffle(len(ss), func(i, j int) { ss[i], ss[j] = ss[j], ss[i] })
	return ss, p
}

func TestInvariants(t *testing.T) {
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 1))
		ss, p := random(r)
		ds, err := Plan(ss, p, now, time.UTC)
		require.NoError(t, err)
		check(t, seed, ss, ds)

		// Running again on what is left removes nothing more.
		var left []Snapshot
		for _, d := range ds {
			if d.Keep {
				left = append(left, d.Snapshot)
			}
		}
		again, err := Plan(left, p, now, time.UTC)
		require.NoError(t, err)
		for _, d := range again {
			require.True(t, d.Keep, "seed %d: a second run would remove %s", seed, d.Name)
		}

		// A new snapshot displaces what the rules let it displace, and no rule keeps fewer than before.
		next := append(slices.Clone(ss), Snapshot{Name: "zz-new", Time: now})
		after, err := Plan(next, p, now, time.UTC)
		require.NoError(t, err)
		check(t, seed, next, after)
		for _, rule := range []string{"last", "hourly", "daily", "weekly", "monthly", "yearly"} {
			require.GreaterOrEqual(t, count(after, rule), count(ds, rule), "seed %d: rule %s keeps fewer with one snapshot more", seed, rule)
		}

		none, err := Plan(ss, nil, now, time.UTC)
		require.NoError(t, err)
		require.Len(t, kept(none), len(ss))
	}
}

// check tests what holds for every plan.
func check(t *testing.T, seed uint64, ss []Snapshot, ds []Decision) {
	t.Helper()
	require.Len(t, ds, len(ss))
	seenNewest, seenVerified := false, false
	for i, d := range ds {
		require.Equal(t, d.Keep, len(d.Reasons) > 0, "seed %d: what is kept has a reason, and only that", seed)
		if i > 0 {
			require.False(t, d.Time.After(ds[i-1].Time), "seed %d: newest first", seed)
		}
		if d.Time.After(now) {
			require.True(t, d.Keep, "seed %d: the future is not removed", seed)
			continue
		}
		if !seenNewest {
			require.True(t, d.Keep, "seed %d: the newest is kept", seed)
			seenNewest = true
		}
		if d.Verified && !seenVerified {
			require.True(t, d.Keep, "seed %d: the newest verified one is kept", seed)
			seenVerified = true
		}
	}
}

func count(ds []Decision, rule string) int {
	n := 0
	for _, d := range ds {
		for _, reason := range d.Reasons {
			if strings.HasPrefix(reason, rule+" ") {
				n++
			}
		}
	}
	return n
}

func FuzzParseSpan(f *testing.F) {
	for _, s := range []string{"", "1y6m3d12h", "7m", "x", "1d1d"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSpan(text)
		if err == nil && text != "" {
			require.NotEqual(t, "", strings.Trim(text, "0123456789"), "a span names units")
			require.False(t, s.Before(now).After(now))
		}
	})
}
