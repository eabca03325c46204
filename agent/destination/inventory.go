package destination

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/store"
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
	// Beside are the objects that go with it, other than its manifest, by their keys.
	Beside []store.Object
}

// Inventory is what a folder holds.
type Inventory struct {
	// Snapshots, newest first (of the same second, the one stored last).
	Snapshots []Entry
	// Orphans are data objects without a manifest: unfinished, or left over. They are not snapshots.
	Orphans []Entry
	// Leftovers went with a snapshot of which neither manifest nor data is there: Key is that of one such object.
	Leftovers []Entry
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
	beside := map[string][]store.Object{}
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
		switch _, taken := data[name]; {
		case kind == archive.KindManifest:
			manifests[name] = true
		case kind != archive.KindData:
			beside[name] = append(beside[name], o)
		case taken:
			inv.Foreign++ // a second encoding of the same name is not ours
		default:
			data[name] = entry(name, o)
		}
	}
	for name, e := range data {
		e.Beside = beside[name]
		if manifests[name] {
			inv.Snapshots = append(inv.Snapshots, e)
		} else {
			inv.Orphans = append(inv.Orphans, e)
		}
	}
	for name, objects := range beside {
		if _, ok := data[name]; !ok && !manifests[name] {
			e := entry(name, objects[0])
			e.Beside = objects[1:]
			inv.Leftovers = append(inv.Leftovers, e)
		}
	}
	for name := range manifests {
		if _, ok := data[name]; !ok {
			inv.Dangling = append(inv.Dangling, name)
		}
	}
	newestFirst(inv.Snapshots)
	newestFirst(inv.Orphans)
	newestFirst(inv.Leftovers)
	slices.Sort(inv.Dangling)
	return &inv, nil
}

func entry(name string, o store.Object) Entry {
	parsed, _ := archive.ParseName(name)
	return Entry{Name: name, Policy: parsed.Policy, Time: parsed.Time, Key: o.Key, Size: o.Size, Stored: o.ModTime}
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
