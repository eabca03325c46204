package destination

import (
	"context"
	"fmt"
	"slices"
	"time"

	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/retention"
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
	// Orphans are objects without a manifest: unfinished, or left over. They are not snapshots. Where there is no data
	// either, Key is that of another object.
	Orphans []Entry
	// Dangling are the names of manifests without data: somebody removed the data.
	Dangling []string
	// Claimed says that the folder has a cluster.json.
	Claimed bool
	// Foreign counts objects that are not ours by their names.
	Foreign int
}

// Inventory lists the folder. It costs list calls only.
func (d *Destination) Inventory(ctx context.Context) (*Inventory, error) {
	t := newTally()
	for o, err := range d.Store.List(ctx, "") {
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", d.Store, err)
		}
		t.add(o)
	}
	return t.inventory(), nil
}

// tally puts the objects of one folder together.
type tally struct {
	inv       Inventory
	manifests map[string]bool
	data      map[string]Entry
	beside    map[string][]store.Object
}

func newTally() *tally {
	return &tally{manifests: map[string]bool{}, data: map[string]Entry{}, beside: map[string][]store.Object{}}
}

// add takes an object with its key in the folder.
func (t *tally) add(o store.Object) {
	if o.Key == ownerKey {
		t.inv.Claimed = true
		return
	}
	name, kind, ok := archive.ParseKey(o.Key)
	if !ok {
		t.inv.Foreign++
		return
	}
	switch _, taken := t.data[name]; {
	case kind == archive.KindManifest:
		t.manifests[name] = true
	case kind != archive.KindData:
		t.beside[name] = append(t.beside[name], o)
	case taken:
		t.inv.Foreign++ // a second encoding of the same name is not ours
	default:
		t.data[name] = entry(name, o)
	}
}

// inventory is called once, last.
func (t *tally) inventory() *Inventory {
	inv := &t.inv
	for name, e := range t.data {
		e.Beside = t.beside[name]
		if t.manifests[name] {
			inv.Snapshots = append(inv.Snapshots, e)
		} else {
			inv.Orphans = append(inv.Orphans, e)
		}
	}
	for name, objects := range t.beside {
		if _, ok := t.data[name]; !ok && !t.manifests[name] {
			e := entry(name, objects[0])
			e.Beside = objects[1:]
			inv.Orphans = append(inv.Orphans, e)
		}
	}
	for name := range t.manifests {
		if _, ok := t.data[name]; !ok {
			inv.Dangling = append(inv.Dangling, name)
		}
	}
	slices.SortFunc(inv.Snapshots, NewestFirst)
	slices.SortFunc(inv.Orphans, NewestFirst)
	slices.Sort(inv.Dangling)
	return inv
}

func entry(name string, o store.Object) Entry {
	parsed, _ := archive.ParseName(name)
	return Entry{Name: name, Policy: parsed.Policy, Time: parsed.Time, Key: o.Key, Size: o.Size, Stored: o.ModTime}
}

// Encrypted tells, by the key, whether age protects the snapshot.
func (e Entry) Encrypted() bool { return archive.IsEncrypted(e.Key) }

// Signed tells whether there is a signature of its manifest. Whose it is, and whether it fits, SignedManifest says.
func (e Entry) Signed() bool { return e.has(archive.SignatureKey(e.Name)) }

// HasExtras tells whether files of the node lie beside the snapshot.
func (e Entry) HasExtras() bool { return e.has(archive.ExtrasKey(e.Name)) }

func (e Entry) has(key string) bool {
	return slices.ContainsFunc(e.Beside, func(o store.Object) bool { return o.Key == key })
}

// Snapshot is what retention orders and counts by.
func (e Entry) Snapshot() retention.Snapshot {
	return retention.Snapshot{Name: e.Name, Time: e.Time, Stored: e.Stored}
}

// Forget takes snapshots that were removed out of the inventory.
func (inv *Inventory) Forget(names []string) {
	inv.Snapshots = slices.DeleteFunc(inv.Snapshots, func(e Entry) bool { return slices.Contains(names, e.Name) })
}

// NewestFirst is retention's order.
func NewestFirst(a, b Entry) int { return retention.NewestFirst(a.Snapshot(), b.Snapshot()) }
