package destination

import (
	"context"
	"slices"
	"sync"
	"time"

	"etcdsnapshot.dev/agent/retention"
)

// Survey is what all destinations of a policy hold, side by side.
type Survey struct {
	// Snapshots, newest first (of the same second, the one stored last).
	Snapshots []Row
	// Destinations, in the policy's order.
	Destinations []Surveyed
}

// Row is one snapshot and its copies.
type Row struct {
	Name   string
	Policy string
	Time   time.Time
	// Stored is when its first copy was.
	Stored time.Time
	// Copies by the destination's name.
	Copies map[string]Entry
}

// Surveyed is one destination's part of a survey.
type Surveyed struct {
	Destination *Destination
	// Inventory is nil where Err says why it could not be listed.
	Inventory *Inventory
	Err       error
}

// Look lists all destinations at once. A destination that cannot be listed is told in its own part.
func Look(ctx context.Context, ds []*Destination) *Survey {
	s := &Survey{Destinations: make([]Surveyed, len(ds))}
	var wg sync.WaitGroup
	for i, d := range ds {
		wg.Go(func() {
			inv, err := d.Inventory(ctx)
			s.Destinations[i] = Surveyed{Destination: d, Inventory: inv, Err: err}
		})
	}
	wg.Wait()
	rows := map[string]*Row{}
	for _, part := range s.Destinations {
		if part.Err != nil {
			continue
		}
		for _, e := range part.Inventory.Snapshots {
			r, ok := rows[e.Name]
			if !ok {
				r = &Row{Name: e.Name, Policy: e.Policy, Time: e.Time, Stored: e.Stored, Copies: map[string]Entry{}}
				rows[e.Name] = r
			}
			if e.Stored.Before(r.Stored) {
				r.Stored = e.Stored
			}
			r.Copies[part.Destination.Spec.Name] = e
		}
	}
	for _, r := range rows {
		s.Snapshots = append(s.Snapshots, *r)
	}
	slices.SortFunc(s.Snapshots, func(a, b Row) int { return retention.NewestFirst(a.Snapshot(), b.Snapshot()) })
	return s
}

// Snapshot is what retention orders by.
func (r Row) Snapshot() retention.Snapshot {
	return retention.Snapshot{Name: r.Name, Time: r.Time, Stored: r.Stored}
}
