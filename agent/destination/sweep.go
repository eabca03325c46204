package destination

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/store"
)

// orphanAge is how old, by the store's own clock, unfinished work must be before it is taken for abandoned: longer
// than any upload takes.
const orphanAge = 24 * time.Hour

// Sweep removes data objects without a manifest that nobody works on any more, from the folder and from inv, which is
// what the folder was just seen to hold, and returns their keys. What counts
// is the store's clock, read off the newest object in the folder, never this machine's: a clock that is ahead must
// not take a running upload for an old one.
func (d *Destination) Sweep(ctx context.Context, inv *Inventory) (removed []string, err error) {
	var now time.Time
	for _, e := range slices.Concat(inv.Snapshots, inv.Orphans) {
		if e.Stored.After(now) {
			now = e.Stored
		}
	}
	var errs []error
	inv.Orphans = slices.DeleteFunc(inv.Orphans, func(e Entry) bool {
		if now.Sub(e.Stored) < orphanAge {
			return false
		}
		if err := d.Store.Delete(ctx, e.Key); err != nil {
			errs = append(errs, fmt.Errorf("delete %s: %w", d.URI(e.Key), err))
			return false
		}
		removed = append(removed, e.Key)
		return true
	})
	if now.IsZero() { // an empty folder has no clock
		now = time.Now()
	}
	n, err := store.SweepUploads(ctx, d.Store, "", now.Add(-orphanAge), func(key string) bool {
		_, _, ok := archive.ParseKey(key)
		return ok
	})
	if err != nil {
		errs = append(errs, fmt.Errorf("abandon unfinished uploads in %s: %w", d.Store, err))
	}
	if n > 0 {
		removed = append(removed, fmt.Sprintf("%d unfinished uploads", n))
	}
	return removed, errors.Join(errs...)
}
