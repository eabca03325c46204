package etcddb

import (
	"encoding/binary"
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
)

// Names of what etcd keeps where (go.etcd.io/etcd/server/v3/storage/schema: bucket.go).
const (
	KeyBucket     = "key"
	MetaBucket    = "meta"
	ClusterBucket = "cluster"

	StorageVersionKey = "storageVersion"
	ClusterVersionKey = "clusterVersion"
	// FinishedCompactKey and ScheduledCompactKey hold a revision as an entry's key does: up to it all but the latest
	// version of each key is removed, or is about to be.
	FinishedCompactKey  = "finishedCompactRev"
	ScheduledCompactKey = "scheduledCompactRev"
)

// Entry is one change of a key, as the key bucket holds it.
type Entry struct {
	Revision
	// Tombstone says that the key was deleted; then only Key is set.
	Tombstone  bool
	Key, Value []byte
	// CreateRevision is the revision of the key's creation, Version how often it was written since.
	CreateRevision, Version int64
}

// Revision of a change: Main counts transactions, Sub the changes within one.
type Revision struct{ Main, Sub int64 }

// ParseRevision reads the key of an entry: the revision's main part, an underscore, its sub part, and a t where the entry
// is a deletion (go.etcd.io/etcd/server/v3/storage/mvcc: revision.go).
func ParseRevision(k []byte) (r Revision, tombstone bool, err error) {
	switch {
	case len(k) != 17 && len(k) != 18, k[8] != '_', len(k) == 18 && k[17] != 't':
		return Revision{}, false, errors.New("it is not a revision")
	}
	r = Revision{int64(binary.BigEndian.Uint64(k)), int64(binary.BigEndian.Uint64(k[9:]))}
	if r.Main < 0 || r.Sub < 0 {
		return Revision{}, false, errors.New("its revision is negative")
	}
	return r, len(k) == 18, nil
}

// ParseEntry reads an element of the key bucket: a revision, and a mvccpb.KeyValue, of which every field is checked to be
// well-formed. Errors are archive.ErrCorrupt.
func ParseEntry(key, value []byte) (e Entry, err error) {
	if e.Revision, e.Tombstone, err = ParseRevision(key); err != nil {
		return Entry{}, corruptf("the entry with the key %q: %w", Clip(key), err)
	}
	if err := e.parse(value); err != nil {
		return Entry{}, corruptf("the entry of revision %d: it is not well-formed: %w", e.Main, err)
	}
	return e, nil
}

// parse reads a mvccpb.KeyValue: 1 key, 2 create_revision, 3 mod_revision, 4 version, 5 value, 6 lease.
func (e *Entry) parse(b []byte) error {
	for len(b) > 0 {
		number, wire, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		switch {
		case number == 1 && wire == protowire.BytesType:
			e.Key, n = protowire.ConsumeBytes(b)
		case number == 5 && wire == protowire.BytesType:
			e.Value, n = protowire.ConsumeBytes(b)
		case number == 2 && wire == protowire.VarintType:
			e.CreateRevision, n = varint(b)
		case number == 4 && wire == protowire.VarintType:
			e.Version, n = varint(b)
		default:
			n = protowire.ConsumeFieldValue(number, wire, b)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
	}
	return nil
}

func varint(b []byte) (int64, int) {
	v, n := protowire.ConsumeVarint(b)
	return int64(v), n
}

// Entry gives the entry at the position of an element of the key bucket that Walk gave and ParseEntry took.
func (f *File) Entry(position int64) (Entry, error) { return ParseEntry(f.At(position)) }

// EntryKey is the key of Entry, and cheaper: the first field of the value is read, where etcd writes it.
func (f *File) EntryKey(position int64) []byte {
	key, value := f.At(position)
	if len(value) > 0 && value[0] == 1<<3|byte(protowire.BytesType) {
		if k, n := protowire.ConsumeBytes(value[1:]); n >= 0 {
			return k
		}
	}
	e, err := ParseEntry(key, value)
	if err != nil {
		return nil
	}
	return e.Key
}
