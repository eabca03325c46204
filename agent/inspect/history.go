package inspect

import (
	"bytes"
	"cmp"
	"context"
	"slices"

	"etcdsnapshot.dev/agent/etcddb"
)

// History gives all versions of the items that are meant that are still in the database, deletions among them: the keys in
// their order, the versions of each in theirs. The revision that the snapshot was opened at does not matter.
func (s *Snapshot) History(ctx context.Context, q Query) ([]Item, error) {
	m := newMatcher(q)
	var changes []Item
	keys := map[string]bool{}
	err := s.file.Walk(ctx, func(e etcddb.Element) error {
		if string(e.Bucket) != etcddb.KeyBucket || e.Key == nil {
			return nil
		}
		entry, err := etcddb.ParseEntry(e.Key, e.Value)
		if err != nil {
			return err
		}
		it := s.item(entry)
		// A deletion says nothing but the key: of which kind that was, a version before says.
		if it.Deleted && keys[string(it.Key)] || !it.Deleted && m.match(it) {
			keys[string(it.Key)] = true
			changes = append(changes, it)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	drop, err := m.foreign()
	if err != nil {
		return nil, err
	}
	if err := q.checkKinds(func(word string) bool { return len(m.groups[word]) > 0 || s.names.Has(word) }); err != nil {
		return nil, err
	}
	foreign := map[string]bool{}
	err = s.file.Guard(func() error {
		for _, c := range changes {
			if !c.Deleted && drop[c.Resource().String()] {
				foreign[string(c.Key)] = true
			}
		}
		changes = slices.DeleteFunc(changes, func(c Item) bool { return foreign[string(c.Key)] })
		slices.SortStableFunc(changes, func(a, b Item) int {
			return cmp.Or(bytes.Compare(a.Key, b.Key), cmp.Compare(a.Revision, b.Revision))
		})
		return nil
	})
	return changes, err
}
