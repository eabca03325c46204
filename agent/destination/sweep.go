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

// Sweep removes objects without a manifest that nobody works on any more, from the folder and from inv, which is
// what the folder was just seen to hold, and returns their keys. What counts is the store's clock, read off the newest
// object in the folder, never this machine's: a clock that is ahead must not take a running upload for an old one.
func (d *Destination) Sweep(ctx context.Context, inv *Inventory) (removed []string, err error) {
	var now time.Time
	for _, e := range slices.Concat(inv.Snapshots, inv.Orphans) {
		if t := e.newest(); t.After(now) {
			now = t
		}
	}
	var errs []error
	inv.Orphans = slices.DeleteFunc(inv.Orphans, func(e Entry) bool {
		if now.Sub(e.newest()) < orphanAge {
			return false
		}
		gone := true
		for _, key := range e.keys() {
			if err := d.Store.Delete(ctx, key); err != nil {
				if gone = false; !errors.Is(err, store.ErrProtected) { // a later run removes it
					errs = append(errs, fmt.Errorf("delete %s: %w", d.URI(key), err))
				}
				continue
			}
			removed = append(removed, key)
		}
		return gone
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

// newest is when the last of its objects was stored.
func (e Entry) newest() time.Time {
	t := e.Stored
	for _, o := range e.Beside {
		if o.ModTime.After(t) {
			t = o.ModTime
		}
	}
	return t
}

func (e Entry) keys() []string {
	keys := []string{e.Key}
	for _, o := range e.Beside {
		keys = append(keys, o.Key)
	}
	return keys
}
