package destination

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"etcdsnapshot.dev/agent/archive"
)

// Entry is one snapshot as list calls alone show it.
type Entry struct {
	// Name of the snapshot.
	Name string
	// Policy and Time are what the name says.
	Policy string
	Time   time.Time
	// Key of the data object and its size in bytes.
	Key  string
	Size int64
	// Stored is when the data object was stored, by the store's clock.
	Stored time.Time
}

// Inventory is what a folder holds.
type Inventory struct {
	// Snapshots, newest first (of the same second, the one stored last).
	Snapshots []Entry
	// Orphans are data objects without a manifest: unfinished, or left over. They are not snapshots.
	Orphans []Entry
	// Dangling are the names of manifests without data: somebody removed the data.
	Dangling []string
	// Foreign counts objects that are not ours by their names.
	Foreign int
}

// Inventory lists the folder. It costs list calls only.
func (d *Destination) Inventory(ctx context.Context) (*Inventory, error) {
	var inv Inventory
	manifests := map[string]bool{}
	data := map[string]Entry{}
	for o, err := range d.Store.List(ctx, "") {
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", d.Store, err)
		}
		if o.Key == ownerKey {
			continue
		}
		name, kind, ok := archive.ParseKey(o.Key)
		if !ok {
			inv.Foreign++
			continue
		}
		if kind == archive.KindManifest {
			manifests[name] = true
			continue
		}
		if _, taken := data[name]; taken {
			inv.Foreign++ // a second encoding of the same name is not ours
			continue
		}
		parsed, _ := archive.ParseName(name)
		data[name] = Entry{Name: name, Policy: parsed.Policy, Time: parsed.Time, Key: o.Key, Size: o.Size, Stored: o.ModTime}
	}
	for name, e := range data {
		if manifests[name] {
			inv.Snapshots = append(inv.Snapshots, e)
		} else {
			inv.Orphans = append(inv.Orphans, e)
		}
	}
	for name := range manifests {
		if _, ok := data[name]; !ok {
			inv.Dangling = append(inv.Dangling, name)
		}
	}
	newestFirst(inv.Snapshots)
	newestFirst(inv.Orphans)
	slices.Sort(inv.Dangling)
	return &inv, nil
}

// Forget takes snapshots that were removed out of the inventory.
func (inv *Inventory) Forget(names []string) {
	inv.Snapshots = slices.DeleteFunc(inv.Snapshots, func(e Entry) bool { return slices.Contains(names, e.Name) })
}

func newestFirst(es []Entry) {
	slices.SortFunc(es, func(a, b Entry) int {
		return cmp.Or(b.Time.Compare(a.Time), b.Stored.Compare(a.Stored), cmp.Compare(b.Name, a.Name))
	})
}
