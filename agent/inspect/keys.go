package inspect

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"etcdsnapshot.dev/agent/etcddb"
	"etcdsnapshot.dev/agent/object"
)

// Share is what one kind, or one namespace, takes of the database.
type Share struct {
	Name string `json:"name"`
	// Count of the keys that are there, and the bytes of these and their values.
	Count int64 `json:"count"`
	Bytes int64 `json:"bytes"`
	// OldCount and OldBytes are versions that were overwritten or deleted, and that compaction has not removed yet.
	OldCount int64 `json:"oldCount"`
	OldBytes int64 `json:"oldBytes"`
}

// NotObjects is the name of what is nothing of Kubernetes.
const NotObjects = "(other values)"

// Undecodable is the name of what begins like a Kubernetes object and is none.
const Undecodable = "(undecodable)"

// ClusterScoped is the name of what lies in no namespace.
const ClusterScoped = "(cluster)"

// maxShares bounds memory.
const maxShares = 100_000

// Shares tells what fills the database, the largest first: of the items that are meant, what each kind takes, or each
// namespace.
func (s *Snapshot) Shares(ctx context.Context, q Query, byNamespace bool) ([]Share, error) {
	m := newMatcher(q)
	by := map[string]*Share{}
	get := func(it Item) *Share {
		name := it.KindName()
		if byNamespace {
			if name, _ = it.Location(); name == "" {
				name = ClusterScoped
			}
		}
		share := by[name]
		if share == nil {
			if len(by) == maxShares {
				name = "(others)"
				if share = by[name]; share != nil {
					return share
				}
			}
			share = &Share{Name: name}
			by[name] = share
		}
		return share
	}
	err := s.each(ctx, func(_ int64, it Item) error {
		if m.match(it) {
			share := get(it)
			share.Count++
			share.Bytes += int64(len(it.Key) + len(it.Value))
			// All entries are counted below: this one is not old.
			share.OldCount--
			share.OldBytes -= int64(len(it.Key) + len(it.Value))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = s.file.Walk(ctx, func(e etcddb.Element) error {
		if string(e.Bucket) != etcddb.KeyBucket || e.Key == nil {
			return nil
		}
		entry, err := etcddb.ParseEntry(e.Key, e.Value)
		if err != nil || entry.Tombstone {
			return err
		}
		if it := s.item(entry); m.match(it) {
			share := get(it)
			share.OldCount++
			share.OldBytes += int64(len(it.Key) + len(it.Value))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	shares := make([]Share, 0, len(by))
	for _, share := range by {
		shares = append(shares, *share)
	}
	slices.SortFunc(shares, func(a, b Share) int {
		return cmp.Or(cmp.Compare(b.Bytes+b.OldBytes, a.Bytes+a.OldBytes), cmp.Compare(a.Name, b.Name))
	})
	return shares, nil
}

// KindName is what the item is, for people.
func (it Item) KindName() string { return kindName(it.Type, it.Err) }

func kindName(t object.Type, err error) string {
	switch {
	case t != (object.Type{}):
		return t.String()
	case err == nil || errors.Is(err, object.ErrNotObject):
		return NotObjects
	}
	return Undecodable
}
