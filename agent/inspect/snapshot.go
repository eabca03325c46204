// Package inspect looks into an etcd database for single Kubernetes objects: finds them, shows them as they were at a
// revision, tells what changed between two databases, and which versions of an object are still there.
//
// The database is a file that was checked before (verify, restore.Prove) or is checked by Open. It is read where it lies;
// what is kept in memory is an index of 8 bytes a slot: up to 22 bytes for each key, of whatever length, and twice that
// while it grows. Values are looked at one at a time.
package inspect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"

	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/etcddb"
	"etcdsnapshot.dev/agent/object"
)

// Options of Open.
type Options struct {
	// Revision to look at, as etcd would answer at it; 0 is the last one.
	Revision int64
	// Keys that open what is encrypted at rest; nil for none.
	Keys *object.Keys
}

// Snapshot is an open database, seen at one revision.
type Snapshot struct {
	file  *etcddb.File
	keys  *object.Keys
	names *object.Names
	// live are the positions of the entries that count, in the order of their keys.
	live []int64
	// exact says that only changes of the very revision count: older ones are compacted.
	exact bool

	// Revision of the last change, whichever one is looked at, and At, the one that is.
	Revision, At int64
	// Compacted is the revision up to which only the latest version of each key is there.
	Compacted int64
	// Entries is how many changes the database holds.
	Entries int64
}

// Open checks every page of the database at path, and makes the index. Damage is archive.ErrCorrupt; the error of a bbolt
// database that is not etcd's is archive.ErrUnknownFormat, too.
func Open(ctx context.Context, path string, o Options) (s *Snapshot, err error) {
	s = &Snapshot{keys: o.Keys, names: object.NewNames(), At: o.Revision}
	if s.keys == nil {
		s.keys = &object.Keys{}
	}
	file, err := etcddb.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, file.Close())
		}
	}()
	s.file = file
	ix := &index{file: s.file, seed: maphash.MakeSeed(), slots: make([]uint64, minSlots)}
	isEtcd := false
	err = s.file.Walk(ctx, func(e etcddb.Element) error {
		switch string(e.Bucket) {
		case etcddb.KeyBucket:
			isEtcd = true
			if e.Key != nil {
				return s.add(ix, e)
			}
		case etcddb.MetaBucket:
			if k := string(e.Key); k == etcddb.FinishedCompactKey || k == etcddb.ScheduledCompactKey {
				if r, _, err := etcddb.ParseRevision(e.Value); err == nil {
					s.Compacted = max(s.Compacted, r.Main)
				}
			}
		}
		return nil
	})
	if err == nil && !isEtcd {
		err = fmt.Errorf("%w: it is a bbolt database, but no etcd's: it has no bucket %q: %w", archive.ErrUnknownFormat, etcddb.KeyBucket, archive.ErrCorrupt)
	}
	if err != nil {
		return nil, err
	}
	if s.At == 0 {
		s.At = s.Revision
	}
	s.exact = s.At < s.Compacted
	err = s.file.Guard(func() error {
		s.live = ix.sorted(s.exact, s.At)
		return s.learnNames(ctx)
	})
	return s, err
}

// Close closes the database. No Item may be used after it.
func (s *Snapshot) Close() error { return s.file.Close() }

// Size of the database's file in bytes.
func (s *Snapshot) Size() int64 { return s.file.Size() }

// Keys is how many keys there are.
func (s *Snapshot) Keys() int { return len(s.live) }

// Names knows what the kinds are called, those of the snapshot's CRDs among them.
func (s *Snapshot) Names() *object.Names { return s.names }

func (s *Snapshot) add(ix *index, e etcddb.Element) error {
	entry, err := etcddb.ParseEntry(e.Key, e.Value)
	if err != nil {
		return err
	}
	s.Entries++
	s.Revision = entry.Main
	if s.At == 0 || entry.Main <= s.At {
		ix.put(entry.Key, e.Position, entry.Tombstone)
	}
	return nil
}

// index has the position of the latest entry of each key: a hash table of open addressing whose slots hold the entry's
// position, whether it is a deletion, and some bits of the key's hash. The keys themselves are read from the file.
type index struct {
	file  *etcddb.File
	seed  maphash.Seed
	slots []uint64
	used  int
}

const (
	minSlots      = 1 << 10
	positionBits  = 47 // 128 TiB
	positionMask  = 1<<positionBits - 1
	tombstoneFlag = 1 << positionBits
	tagShift      = positionBits + 1
)

func (ix *index) put(key []byte, position int64, tombstone bool) {
	if 4*ix.used >= 3*len(ix.slots) {
		ix.grow()
	}
	h := maphash.Bytes(ix.seed, key)
	slot := uint64(position) | h>>tagShift<<tagShift
	if tombstone {
		slot |= tombstoneFlag
	}
	for i := h & uint64(len(ix.slots)-1); ; i = (i + 1) & uint64(len(ix.slots)-1) {
		switch have := ix.slots[i]; {
		case have == 0:
			ix.slots[i] = slot
			ix.used++
			return
		case have>>tagShift == slot>>tagShift && bytes.Equal(ix.file.EntryKey(int64(have&positionMask)), key):
			ix.slots[i] = slot
			return
		}
	}
}

func (ix *index) grow() {
	old := ix.slots
	ix.slots = make([]uint64, 2*len(old))
	mask := uint64(len(ix.slots) - 1)
	for _, slot := range old {
		if slot == 0 {
			continue
		}
		i := maphash.Bytes(ix.seed, ix.file.EntryKey(int64(slot&positionMask))) & mask
		for ix.slots[i] != 0 {
			i = (i + 1) & mask
		}
		ix.slots[i] = slot
	}
}

// sorted gives the positions of the keys that are there in the order of the keys. The index cannot be used any more.
func (ix *index) sorted(exact bool, at int64) []int64 {
	live := make([]int64, 0, ix.used)
	for _, slot := range ix.slots {
		position := int64(slot & positionMask)
		if slot == 0 || slot&tombstoneFlag != 0 {
			continue
		}
		if exact {
			if e, err := ix.file.Entry(position); err != nil || e.Main != at {
				continue
			}
		}
		live = append(live, position)
	}
	ix.slots = nil
	slices.SortFunc(live, func(a, b int64) int { return bytes.Compare(ix.file.EntryKey(a), ix.file.EntryKey(b)) })
	return live
}

// Item is one key at one revision.
type Item struct {
	object.Type
	// Err says why it cannot be decoded; Type is empty or what the key says then. It is object.ErrNotObject where the value
	// is nothing of Kubernetes, and a *object.EncryptedError where it is encrypted.
	Err error
	// Key, and Value as etcd holds it.
	Key, Value []byte
	Revision   int64
	// Created is the revision of the key's creation, Version how often it was written since.
	Created, Version int64
	// Deleted says that the key was deleted at Revision; there is no value then.
	Deleted bool

	clear []byte // the value, decrypted
	snap  *Snapshot
}

func (s *Snapshot) item(e etcddb.Entry) Item {
	it := Item{Key: e.Key, Value: e.Value, Revision: e.Main, Created: e.CreateRevision, Version: e.Version, Deleted: e.Tombstone, snap: s}
	if e.Tombstone {
		return it
	}
	it.clear, it.Err = s.keys.Open(e.Key, e.Value)
	value := it.clear
	if it.Err != nil {
		value = e.Value
	}
	t, err := object.Sniff(e.Key, value)
	if it.Type = t; err != nil {
		it.Err = err
	}
	return it
}

// Object decodes the item. Errors are those of object.Decode and object.Keys.Open, and say which key it is.
func (it Item) Object() (*object.Object, error) {
	return it.decoded(object.Decode)
}

// Meta decodes the item's metadata only.
func (it Item) Meta() (*object.Object, error) {
	return it.decoded(object.DecodeMeta)
}

func (it Item) decoded(decode func([]byte) (*object.Object, error)) (*object.Object, error) {
	if it.Err != nil {
		return nil, fmt.Errorf("%s: %w", clip(it.Key), it.Err)
	}
	o, err := decode(it.clear)
	if err != nil {
		err = fmt.Errorf("%s: %w", clip(it.Key), err)
	}
	return o, err
}

// clip keeps what is no name short, and harmless on a terminal.
func clip(key []byte) string {
	if text := fmt.Sprintf("%q", etcddb.Clip(key)); len(key) > len(etcddb.Clip(key)) || text != `"`+string(key)+`"` {
		return text
	}
	return string(key)
}

// Resource is what the item's kind is called.
func (it Item) Resource() object.Resource {
	r, _ := it.snap.names.Of(it.Type)
	return r
}

// Location is the namespace and the name of the item, as its key says: the API server makes it of them.
func (it Item) Location() (namespace, name string) {
	rest, last, ok := cutLast(it.Key)
	if !ok || it.Type == (object.Type{}) {
		return "", ""
	}
	r, known := it.snap.names.Of(it.Type)
	if !known && it.Err == nil {
		// Whether there are namespaces can only be said by the object.
		if o, err := it.Meta(); err == nil {
			return o.GetNamespace(), o.GetName()
		}
	}
	if known && !r.Namespaced {
		return "", string(last)
	}
	_, namespaceBytes, _ := cutLast(rest)
	return string(namespaceBytes), string(last)
}

func cutLast(key []byte) (before, last []byte, ok bool) {
	i := bytes.LastIndexByte(key, '/')
	if i < 0 {
		return nil, key, false
	}
	return key[:i], key[i+1:], true
}

// each calls fn for the items in the order of their keys.
func (s *Snapshot) each(ctx context.Context, fn func(position int64, it Item) error) error {
	return s.eachOf(ctx, s.live, fn)
}

func (s *Snapshot) eachOf(ctx context.Context, positions []int64, fn func(position int64, it Item) error) error {
	return s.file.Guard(func() error {
		for n, position := range positions {
			if n%1024 == 0 && ctx.Err() != nil {
				return context.Cause(ctx)
			}
			e, err := s.file.Entry(position)
			if err != nil {
				return err
			}
			if err := fn(position, s.item(e)); err != nil {
				return err
			}
		}
		return nil
	})
}

// learnNames reads the CRDs and the APIServices.
func (s *Snapshot) learnNames(ctx context.Context) error {
	return s.each(ctx, func(_ int64, it Item) error {
		if !it.IsCRD() && !it.IsAPIService() {
			return nil
		}
		switch o, err := it.Object(); {
		case err != nil: // it is told where it is asked for
		case it.IsCRD():
			_ = s.names.AddCRD(o) // one that names no kind defines none
		default:
			s.names.AddAPIService(o)
		}
		return nil
	})
}
