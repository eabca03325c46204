package inspect

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"etcdsnapshot.dev/agent/object"
)

// Difference is an object that two sides do not have alike.
type Difference struct {
	object.Type
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// What happened from the first side to the second: added, removed or changed.
	What string `json:"change"`
	// Revisions of both sides; 0 where there is none.
	Before int64 `json:"revisionBefore,omitempty"`
	After  int64 `json:"revisionAfter,omitempty"`
	// Fields that changed.
	Fields []string `json:"fields,omitempty"`
	// Note says why it is not known what changed.
	Note string `json:"note,omitempty"`

	// From and To are both sides as they were compared; nil where there is none, or where it cannot be decoded.
	From, To *object.Object `json:"-"`
}

// KindName is what differs, for people.
func (d Difference) KindName() string { return kindName(d.Type, nil) }

// What a Difference says.
const (
	Added   = "added"
	Removed = "removed"
	Changed = "changed"
)

// DiffOptions say what counts.
type DiffOptions struct {
	Query
	// All counts also what changes by itself: kinds that are noise and not named, objects that follow from others, and
	// fields such as status.
	All bool
}

// leavesOut tells whether an item does not count whatever it says.
func (o *DiffOptions) leavesOut(it Item) bool {
	switch {
	case o.All || !it.IsNoise() && !it.CanFollow() || o.names(it.Resource()):
		return false
	case it.IsNoise():
		return true
	}
	meta, err := it.Meta()
	return err == nil && meta.Controller() != nil
}

// DiffResult sums up a comparison.
type DiffResult struct {
	// Noise and Quiet are objects that differ and do not count: by kind where the kind is noise, and how many differ in nothing
	// but what changes by itself.
	Noise map[string]int64 `json:"kinds,omitempty"`
	Quiet int64            `json:"changedByItself"`
}

// Diff tells what the second snapshot has otherwise than the first, key by key. Only values that differ are decoded.
func Diff(ctx context.Context, from, to *Snapshot, o DiffOptions, fn func(Difference) error) (*DiffResult, error) {
	d := &differ{DiffOptions: o, fn: fn, result: &DiffResult{Noise: map[string]int64{}}}
	a, b := newMatcher(o.Query), newMatcher(o.Query)
	err := o.checkKinds(func(word string) bool { return from.names.Has(word) || to.names.Has(word) })
	if err != nil {
		return nil, err
	}
	// Faults of either file are errors.
	err = from.file.Guard(func() error {
		i := 0
		next := func() (Item, bool, error) {
			if i == len(from.live) {
				return Item{}, false, nil
			}
			e, err := from.file.Entry(from.live[i])
			return from.item(e), true, err
		}
		have, ok, err := next()
		if err != nil {
			return err
		}
		step := func() (err error) {
			i++
			have, ok, err = next()
			return err
		}
		err = to.each(ctx, func(_ int64, it Item) error {
			for ok && bytes.Compare(have.Key, it.Key) < 0 {
				if err := d.one(a, have, b, Item{}); err != nil {
					return err
				}
				if err := step(); err != nil {
					return err
				}
			}
			if !ok || !bytes.Equal(have.Key, it.Key) {
				return d.one(a, Item{}, b, it)
			}
			if err := d.one(a, have, b, it); err != nil {
				return err
			}
			return step()
		})
		for err == nil && ok {
			if err = d.one(a, have, b, Item{}); err == nil {
				err = step()
			}
		}
		return err
	})
	return d.result, err
}

type differ struct {
	DiffOptions
	fn     func(Difference) error
	result *DiffResult
}

// one compares the two sides of one key; an Item without a key is a side that has none.
func (d *differ) one(am *matcher, a Item, bm *matcher, b Item) error {
	inA, inB := a.Key != nil, b.Key != nil
	if inA && inB && bytes.Equal(a.Value, b.Value) {
		return nil
	}
	if (!inA || !am.match(a)) && (!inB || !bm.match(b)) {
		return nil
	}
	it := b
	if !inB {
		it = a
	}
	if d.leavesOut(it) {
		d.result.Noise[it.Type.String()]++
		return nil
	}
	out := Difference{Type: it.Type, Before: a.Revision, After: b.Revision, What: Changed}
	if out.Namespace, out.Name = it.Location(); out.Name == "" {
		out.Name = clip(it.Key)
	}
	switch {
	case !inA:
		out.What = Added
	case !inB:
		out.What = Removed
	}
	d.fill(&out, a, b)
	if out.What == Changed && out.Note == "" && len(out.Fields) == 0 {
		d.result.Quiet++
		return nil
	}
	return d.fn(out)
}

// fill decodes what there is of both sides and compares it.
func (d *differ) fill(out *Difference, a, b Item) {
	var err error
	decode := func(it Item) *object.Object {
		if it.Key == nil {
			return nil
		}
		o, oerr := it.Object()
		if oerr == nil {
			oerr = it.snap.names.Serve(o)
		}
		if oerr != nil {
			err = oerr
			return nil
		}
		if !d.All {
			object.Quiet(o)
		}
		return o
	}
	out.From, out.To = decode(a), decode(b)
	switch {
	case errors.Is(err, object.ErrNotObject):
		out.From, out.To, out.Note = nil, nil, "its value is nothing of Kubernetes: its fields are not known"
		return
	case err != nil:
		out.From, out.To, out.Note = nil, nil, fmt.Sprintf("what is in it cannot be compared: %v", err)
		return
	}
	if out.From != nil && out.To != nil {
		out.Fields = object.Differences(out.From.Object, out.To.Object)
	}
}
