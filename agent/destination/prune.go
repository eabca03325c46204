package destination

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/retention"
	"etcdsnapshot.dev/agent/store"
)

// Plan says which of a policy's snapshots in this destination stay, newest first. Other policies' snapshots are not in
// it. verified tells which are known to be good, beside those that a note in the store says so of.
func (d *Destination) Plan(inv *Inventory, policy *v1.EtcdSnapshotPolicy, now time.Time, verified func(name string) bool) ([]retention.Decision, error) {
	loc, err := time.LoadLocation(policy.Spec.TimeZone)
	if err != nil {
		return nil, fmt.Errorf("%w: spec.timeZone: %w", store.ErrConfig, err)
	}
	var ss []retention.Snapshot
	for _, e := range inv.Snapshots {
		if e.Policy == policy.Name {
			proof := e.Proof()
			good := !proof.Corrupt && (proof.Level != "" || verified != nil && verified(e.Name))
			s := e.Snapshot()
			s.Verified = good
			ss = append(ss, s)
		}
	}
	return retention.Plan(ss, d.Spec.Retention, now, loc)
}

// Pruned is what a pruning did.
type Pruned struct {
	// Removed snapshots.
	Removed []string
	// Protected are those that the store does not let go yet: object lock, a hold, a retention policy.
	Protected []string
}

// Prune removes what the plan lets go, oldest first. What the store protects is told and is no failure. When the store
// denies the right to delete, the rest is not tried; the error is store.ErrAccessDenied.
func (d *Destination) Prune(ctx context.Context, inv *Inventory, plan []retention.Decision) (Pruned, error) {
	entries := map[string]Entry{}
	for _, e := range inv.Snapshots {
		entries[e.Name] = e
	}
	var done Pruned
	var errs []error
	for i := len(plan) - 1; i >= 0; i-- {
		if plan[i].Keep {
			continue
		}
		if err := context.Cause(ctx); err != nil {
			return done, errors.Join(append(errs, err)...)
		}
		err := d.Remove(ctx, entries[plan[i].Name])
		switch {
		case err == nil:
			done.Removed = append(done.Removed, plan[i].Name)
		case errors.Is(err, store.ErrProtected):
			done.Protected = append(done.Protected, plan[i].Name)
		case errors.Is(err, store.ErrAccessDenied):
			return done, errors.Join(append(errs, err)...)
		default:
			errs = append(errs, err)
		}
	}
	return done, errors.Join(errs...)
}
