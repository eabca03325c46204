package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/yaml"

	"etcdsnapshot.dev/agent/destination"
	"etcdsnapshot.dev/agent/retention"
)

// fleetFlags are those of list --all-clusters.
type fleetFlags struct {
	all                  bool
	maxAge, maxProvenAge string
}

func (f *fleetFlags) limits(now time.Time) (l destination.Limits, err error) {
	if !f.all && (f.maxAge != "" || f.maxProvenAge != "") {
		return l, usageErrorf("--max-age and --max-proven-age go with --all-clusters")
	}
	for _, flag := range []struct {
		name, text string
		age        *time.Duration
	}{{"--max-age", f.maxAge, &l.MaxAge}, {"--max-proven-age", f.maxProvenAge, &l.MaxProvenAge}} {
		span, err := retention.ParseSpan(flag.text)
		if err == nil && flag.text != "" && span == (retention.Span{}) {
			err = errors.New("must be longer than nothing")
		}
		if err != nil {
			return l, usageErrorf("%s: %w", flag.name, err)
		}
		*flag.age = now.Sub(span.Before(now))
	}
	return l, nil
}

// States of a cluster in a destination, the worst first.
const (
	stateStale   = "Stale"
	stateCorrupt = "Corrupt"
	stateUnknown = "Unknown"
	stateFresh   = "Fresh"
)

var fleetStates = []string{stateStale, stateCorrupt, stateUnknown, stateFresh}

// fleetRow is one cluster in one destination.
type fleetRow struct {
	Cluster     string `json:"cluster"`
	Destination string `json:"destination"`
	URI         string `json:"uri"`
	State       string `json:"state"`
	// Reasons why it is not Fresh.
	Reasons    []string       `json:"reasons"`
	LastGood   *fleetSnapshot `json:"lastGood,omitempty"`
	LastProven *fleetSnapshot `json:"lastProven,omitempty"`
	// IntervalSeconds between two snapshots, as a rule; 0 where there are too few to tell.
	IntervalSeconds int64    `json:"intervalSeconds"`
	Snapshots       int      `json:"snapshots"`
	Bytes           int64    `json:"bytes"`
	Unencrypted     int      `json:"unencrypted"`
	Corrupt         []string `json:"corrupt"`
}

type fleetSnapshot struct {
	Name       string    `json:"name"`
	CreatedAt  time.Time `json:"createdAt"`
	AgeSeconds int64     `json:"ageSeconds"`
	Size       int64     `json:"size"`
	Encrypted  bool      `json:"encrypted"`
	// Level at which it is noted to have passed a verification, and when; empty where it is not.
	Level      string     `json:"verifiedLevel,omitempty"`
	VerifiedAt *time.Time `json:"verifiedAt,omitempty"`
}

// runFleet is list --all-clusters. Destinations are listed side by side, since each answers for itself.
func (f *listFlags) runFleet(ctx context.Context, e *env, l *loaded, limits destination.Limits, now time.Time) error {
	l.owner = destination.Owner{} // so that what is opened is the place and not this cluster's folder in it
	opened, unusable, done := l.open(ctx, destination.Options{Log: e.log})
	defer done()
	errs := l.unusableErrors(unusable)
	rows := []fleetRow{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, d := range opened {
		wg.Go(func() {
			for c, err := range d.Clusters(ctx) {
				mu.Lock()
				if err != nil {
					errs = append(errs, fmt.Errorf("destination %s: %w", d.Spec.Name, err))
				} else {
					rows = append(rows, newFleetRow(d, c, limits, now))
					if c.Err != nil {
						errs = append(errs, fmt.Errorf("destination %s: cluster %s: %w", d.Spec.Name, c.Name, c.Err))
					}
					if e.status.terminal {
						e.status.set(fmt.Sprintf("%d clusters", len(rows)))
					}
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	e.status.clear()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	slices.SortFunc(rows, func(a, b fleetRow) int {
		return cmp.Or(cmp.Compare(slices.Index(fleetStates, a.State), slices.Index(fleetStates, b.State)),
			b.age().compare(a.age()), cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Destination, b.Destination))
	})
	if err := f.printFleet(e, rows, len(l.policy.Spec.Destinations) > 1); err != nil {
		errs = append(errs, err)
	}
	return fleetOutcome(rows, errs)
}

func newFleetRow(d *destination.Destination, c *destination.Cluster, limits destination.Limits, now time.Time) fleetRow {
	r := fleetRow{Cluster: c.Name, Destination: d.Spec.Name, URI: d.URI(c.Name), State: stateFresh, Reasons: []string{},
		LastGood: newFleetSnapshot(c.Last, now), LastProven: newFleetSnapshot(c.Proven, now), IntervalSeconds: int64(c.Interval.Seconds()),
		Snapshots: c.Snapshots, Bytes: c.Bytes, Unencrypted: c.Unencrypted, Corrupt: append([]string{}, c.Corrupt...)}
	stale := c.Stale(limits, now)
	if len(stale) > 0 {
		r.State, r.Reasons = stateStale, stale
	}
	if len(c.Corrupt) > 0 {
		if r.State == stateFresh {
			r.State = stateCorrupt
		}
		r.Reasons = append(r.Reasons, "corrupt: "+strings.Join(c.Corrupt, ", "))
	}
	if c.Err != nil {
		r.State, r.Reasons = stateUnknown, []string{oneLine(c.Err)}
	}
	return r
}

func newFleetSnapshot(s *destination.Entry, now time.Time) *fleetSnapshot {
	if s == nil {
		return nil
	}
	out := &fleetSnapshot{Name: s.Name, CreatedAt: s.Time, AgeSeconds: int64(s.Age(now).Seconds()), Size: s.Size, Encrypted: s.Encrypted()}
	if p := s.Proof(); p.Level != "" {
		at := p.Time.UTC()
		out.Level, out.VerifiedAt = p.Level, &at
	}
	return out
}

// fleetAge sorts a cluster without a snapshot as the oldest of all.
type fleetAge struct {
	none bool
	secs int64
}

func (r *fleetRow) age() fleetAge {
	if r.LastGood == nil {
		return fleetAge{none: true}
	}
	return fleetAge{secs: r.LastGood.AgeSeconds}
}

func (a fleetAge) compare(b fleetAge) int {
	if a.none != b.none {
		if a.none {
			return 1
		}
		return -1
	}
	return cmp.Compare(a.secs, b.secs)
}

func (f *listFlags) printFleet(e *env, rows []fleetRow, several bool) error {
	switch f.output {
	case "name":
		for i, r := range rows {
			if !slices.ContainsFunc(rows[:i], func(before fleetRow) bool { return before.Cluster == r.Cluster }) {
				fmt.Fprintln(e.stdout, r.Cluster)
			}
		}
		return nil
	case "json":
		return printJSON(e.stdout, map[string]any{"clusters": rows})
	case "yaml":
		data, err := yaml.Marshal(map[string]any{"clusters": rows})
		if err == nil {
			_, err = e.stdout.Write(data)
		}
		return err
	}
	if len(rows) == 0 {
		fmt.Fprintln(e.stdout, "No clusters.")
		return nil
	}
	header := []string{"CLUSTER", "LAST GOOD", "LAST PROVEN", "EVERY", "SNAPSHOTS", "SIZE", "ENCRYPTED", "STATE"}
	if several {
		header = slices.Insert(header, 1, "DESTINATION")
	}
	if f.output == "wide" {
		header = append(header, "LAST SNAPSHOT", "WHERE")
	}
	t := newTable(e.stdout, header...)
	counts := map[string]int{}
	for _, r := range rows {
		counts[r.State]++
		cells := []any{r.Cluster}
		if several {
			cells = append(cells, r.Destination)
		}
		cells = append(cells, r.cells()...)
		if f.output == "wide" {
			last := "-"
			if r.LastGood != nil {
				last = r.LastGood.Name
			}
			cells = append(cells, last, r.URI)
		}
		t.row(cells...)
	}
	if err := t.flush(); err != nil {
		return err
	}
	var summary []string
	for _, state := range fleetStates {
		if n := counts[state]; n > 0 {
			summary = append(summary, fmt.Sprintf("%d %s", n, strings.ToLower(state)))
		}
	}
	_, err := fmt.Fprintf(e.stdout, "\n%s\n", strings.Join(summary, ", "))
	return err
}

func (r *fleetRow) cells() []any {
	if r.State == stateUnknown {
		return []any{"?", "?", "?", "?", "?", "?", r.state()}
	}
	age := func(s *fleetSnapshot) string {
		if s == nil {
			return "never"
		}
		return humanAge(time.Duration(s.AgeSeconds) * time.Second)
	}
	proven, every := age(r.LastProven), "-"
	if r.LastProven != nil {
		proven += " (" + r.LastProven.Level + ")"
	}
	if r.IntervalSeconds > 0 {
		every = humanAge(time.Duration(r.IntervalSeconds) * time.Second)
	}
	encrypted := "yes"
	switch {
	case r.Snapshots == 0:
		encrypted = "-"
	case r.Unencrypted == r.Snapshots:
		encrypted = "no"
	case r.Unencrypted > 0:
		encrypted = fmt.Sprintf("%d of %d", r.Snapshots-r.Unencrypted, r.Snapshots)
	}
	return []any{age(r.LastGood), proven, every, r.Snapshots, humanBytes(r.Bytes), encrypted, r.state()}
}

func (r *fleetRow) state() string {
	if len(r.Reasons) == 0 {
		return r.State
	}
	return r.State + ": " + strings.Join(r.Reasons, "; ")
}

// fleetError says that not all clusters are well.
type fleetError struct {
	code int
	errs []error
}

func (e *fleetError) Error() string   { return errors.Join(e.errs...).Error() }
func (e *fleetError) Unwrap() []error { return e.errs }
func (e *fleetError) exitCode() int   { return e.code }

// fleetOutcome puts what is known to be bad before what could not be seen.
func fleetOutcome(rows []fleetRow, errs []error) error {
	named := map[string][]string{}
	corrupt := false
	for _, r := range rows {
		if named[r.State] = append(named[r.State], r.Cluster+" in "+r.Destination); len(r.Corrupt) > 0 {
			corrupt = true
		}
	}
	out := &fleetError{}
	for _, bad := range []struct{ state, what string }{{stateStale, "are stale"}, {stateCorrupt, "have a corrupt snapshot"}} {
		if names := named[bad.state]; len(names) > 0 {
			out.errs = append(out.errs, fmt.Errorf("%d of %d clusters %s: %s", len(names), len(rows), bad.what, someNames(names)))
		}
	}
	switch {
	case corrupt:
		out.code = exitCorrupt
	case len(out.errs) > 0:
		out.code = exitPartial
	default:
		return errors.Join(errs...)
	}
	out.errs = append(out.errs, errs...)
	return out
}

// someNames keeps a message of a thousand names readable.
func someNames(names []string) string {
	const shown = 10
	if len(names) <= shown {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
}
