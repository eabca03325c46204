// Package retention decides which snapshots of one destination are kept. It is a pure function: it deletes nothing
// and asks nobody for the time.
//
// The rules are restic's (`restic forget --keep-last ... --keep-within`): each rule keeps what it keeps, and a
// snapshot goes only when no rule keeps it. Three things hold whatever the rules are: the newest snapshot is kept,
// the newest verified one is kept, and a snapshot from the future is neither counted nor removed.
package retention

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

// Snapshot is what retention needs to know of a snapshot.
type Snapshot struct {
	Name string
	// Time it was taken, as its name says.
	Time time.Time
	// Stored is when the store got it, by the store's clock; zero where that is not known.
	Stored time.Time
	// Verified tells whether its last verification passed.
	Verified bool
}

// Decision is what becomes of one snapshot.
type Decision struct {
	Snapshot
	Keep bool
	// Reasons name what keeps it, such as "last 3/24" or "daily 2026-12-01"; none where it goes.
	Reasons []string
}

// Taken is when it was taken: the time in its name, or, where a wrong clock made that, when the store got it.
func (s Snapshot) Taken() time.Time {
	if s.ahead() {
		return s.Stored
	}
	return s.Time
}

// ahead says that the name is ahead of the store's clock.
func (s Snapshot) ahead() bool { return !s.Stored.IsZero() && s.Time.Sub(s.Stored) > clockTolerance }

// clockTolerance is how far a name's time may be ahead of the store's clock before it is taken for wrong.
const clockTolerance = time.Hour

// NewestFirst orders snapshots: by when they were taken, of the same second by when the store got them, then by name.
func NewestFirst(a, b Snapshot) int {
	return cmp.Or(b.Taken().Compare(a.Taken()), b.Stored.Compare(a.Stored), cmp.Compare(b.Name, a.Name))
}

// Plan decides for each snapshot, in the order of NewestFirst. A nil policy keeps all.
// Calendar rules count in loc. A policy that cannot be read is an error and no decision.
func Plan(snapshots []Snapshot, policy *v1.Retention, now time.Time, loc *time.Location) ([]Decision, error) {
	plan := make([]Decision, len(snapshots))
	for i, s := range snapshots {
		plan[i] = Decision{Snapshot: s}
	}
	slices.SortFunc(plan, func(a, b Decision) int { return NewestFirst(a.Snapshot, b.Snapshot) })
	if policy == nil {
		for i := range plan {
			plan[i].keep("no retention is set")
		}
		return plan, nil
	}
	within, err := ParseSpan(policy.Within)
	if err != nil {
		return nil, fmt.Errorf("retention.within: %w", err)
	}

	var counted []*Decision // newest first
	for i := range plan {
		d := &plan[i]
		switch {
		case d.Time.After(now):
			d.keep("in the future: not counted")
		case d.ahead():
			d.keep("named ahead of the store's clock: not counted")
		default:
			counted = append(counted, d)
		}
	}
	if len(counted) == 0 {
		return plan, nil
	}
	counted[0].keep("newest")
	for _, d := range counted {
		if d.Verified {
			d.keep("newest verified")
			break
		}
	}
	for i, d := range counted {
		if i < int(policy.Last) {
			d.keep(fmt.Sprintf("last %d/%d", i+1, policy.Last))
		}
	}
	for _, rule := range calendar(policy) {
		kept, period := 0, ""
		for _, d := range counted {
			if p := rule.period(d.Time.In(loc)); p != period && kept < int(rule.count) {
				kept, period = kept+1, p
				d.keep(rule.name + " " + p)
			}
		}
	}
	if policy.Within != "" {
		keepWithin(counted, within, "within "+policy.Within, loc)
	}
	return plan, nil
}

// keepWithin keeps what is younger than the span, counted from the newest. Where that is the newest alone, the span
// is counted from the one before it, too: a single run with a clock far ahead must not make all the others go.
func keepWithin(counted []*Decision, within Span, reason string, loc *time.Location) {
	from := within.Before(counted[0].Time.In(loc))
	before := from
	if len(counted) > 1 && counted[1].Time.Before(from) {
		before = within.Before(counted[1].Time.In(loc))
	}
	for _, d := range counted {
		switch {
		case !d.Time.Before(from):
			d.keep(reason)
		case !d.Time.Before(before):
			d.keep(reason + " of the one before the newest")
		}
	}
}

func (d *Decision) keep(reason string) {
	d.Keep = true
	d.Reasons = append(d.Reasons, reason)
}

// calendarRule keeps the newest snapshot of each of the last count periods that have one.
type calendarRule struct {
	name   string
	count  int32
	period func(t time.Time) string
}

func calendar(p *v1.Retention) []calendarRule {
	return []calendarRule{
		// The offset tells the two hours apart that have the same name when summer time ends.
		{"hourly", p.Hourly, func(t time.Time) string { return t.Format("2006-01-02T15Z07:00") }},
		{"daily", p.Daily, func(t time.Time) string { return t.Format(time.DateOnly) }},
		{"weekly", p.Weekly, func(t time.Time) string {
			year, week := t.ISOWeek()
			return fmt.Sprintf("%d-W%02d", year, week)
		}},
		{"monthly", p.Monthly, func(t time.Time) string { return t.Format("2006-01") }},
		{"yearly", p.Yearly, func(t time.Time) string { return t.Format("2006") }},
	}
}

// Span is a stretch of time in calendar units, as restic writes it: 1y6m3d12h.
type Span struct{ Years, Months, Days, Hours int }

// Before gives the time that lies the span before t: years, months and days by the calendar of t's location.
func (s Span) Before(t time.Time) time.Time {
	return t.AddDate(-s.Years, -s.Months, -s.Days).Add(-time.Duration(s.Hours) * time.Hour)
}

// ParseSpan reads a span; the empty text is the empty span. The units y, m, d and h come in this order.
func ParseSpan(text string) (Span, error) {
	var s Span
	units := []struct {
		unit  byte
		value *int
	}{{'y', &s.Years}, {'m', &s.Months}, {'d', &s.Days}, {'h', &s.Hours}}
	rest := text
	for _, u := range units {
		digits := 0
		for digits < len(rest) && rest[digits] >= '0' && rest[digits] <= '9' {
			digits++
		}
		if digits == 0 || digits > 6 || digits == len(rest) || rest[digits] != u.unit {
			continue
		}
		n, err := strconv.Atoi(rest[:digits])
		if err != nil {
			return Span{}, fmt.Errorf("%q: %w", text, err)
		}
		*u.value, rest = n, rest[digits+1:]
	}
	if rest != "" {
		return Span{}, fmt.Errorf("%q is no span of years, months, days and hours such as 1y6m3d12h", text)
	}
	return s, nil
}
