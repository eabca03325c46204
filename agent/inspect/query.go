package inspect

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"etcdsnapshot.dev/agent/object"
)

// All as a kind is every kind.
const All = "all"

// Query says which objects are meant.
type Query struct {
	// Wanted kinds and names; an item matches one of them. Empty is everything, other values than objects among them.
	Wanted []Wanted
	// Namespace of the objects that lie in namespaces; empty is all.
	Namespace string
	// Selector on labels; nil takes all.
	Selector labels.Selector
	// Prefix of the key.
	Prefix []byte
}

// Wanted is a kind, in any of its names, and a name; empty is all of the kind.
type Wanted struct{ Kind, Name string }

// String is how it is written on the command line.
func (w Wanted) String() string {
	if w.Name == "" {
		return w.Kind
	}
	return w.Kind + "/" + w.Name
}

// UsageError says that a query cannot be understood, or names nothing.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

func usagef(format string, args ...any) error { return &UsageError{fmt.Errorf(format, args...)} }

// ParseWanted reads kubectl's grammar: KIND, KIND NAME..., KIND,KIND, KIND/NAME...
func ParseWanted(args []string) (wanted []Wanted, err error) {
	if len(args) == 0 {
		return nil, nil
	}
	if strings.Contains(args[0], "/") {
		for _, a := range args {
			kind, name, ok := strings.Cut(a, "/")
			if !ok || kind == "" || name == "" || strings.Contains(kind, ",") {
				return nil, usagef("%q is not KIND/NAME as the others are", a)
			}
			wanted = append(wanted, Wanted{kind, name})
		}
		return wanted, nil
	}
	for _, kind := range strings.Split(args[0], ",") {
		if kind == "" {
			return nil, usagef("%q names no kind", args[0])
		}
		if len(args) == 1 {
			wanted = append(wanted, Wanted{Kind: kind})
		}
		for _, name := range args[1:] {
			if strings.Contains(name, "/") {
				return nil, usagef("%q: either KIND NAME... or KIND/NAME..., not both", name)
			}
			wanted = append(wanted, Wanted{kind, name})
		}
	}
	return wanted, nil
}

// names tells whether a resource is named, in any of its names: what is named is never noise.
func (q Query) names(r object.Resource) bool {
	return slices.ContainsFunc(q.Wanted, func(w Wanted) bool { return w.Kind != All && r.Is(w.Kind) })
}

// matcher decides for one snapshot.
type matcher struct {
	Query
	// kinds remembers which of Wanted a type is meant by.
	kinds map[object.Type][]Wanted
	// groups in which each word for a kind was found.
	groups map[string][]object.Resource
	// hits are the names that were found.
	hits map[Wanted]bool
}

func newMatcher(q Query) *matcher {
	return &matcher{Query: q, kinds: map[object.Type][]Wanted{}, groups: map[string][]object.Resource{}, hits: map[Wanted]bool{}}
}

// match tells whether the item is meant.
func (m *matcher) match(it Item) bool {
	if !bytes.HasPrefix(it.Key, m.Prefix) {
		return false
	}
	var wanted []Wanted
	if len(m.Wanted) > 0 {
		if wanted = m.wants(it); len(wanted) == 0 {
			return false
		}
	}
	if m.Namespace != "" && !m.inNamespace(it, wanted) {
		return false
	}
	if m.Selector != nil && !m.Selector.Empty() {
		o, err := it.Meta()
		if err != nil || !m.Selector.Matches(labels.Set(o.GetLabels())) {
			return false
		}
	}
	for _, w := range wanted {
		m.hits[w] = true
	}
	return true
}

// inNamespace: a namespace belongs to all that is in it, and what lies in none is meant where its kind is named.
func (m *matcher) inNamespace(it Item, wanted []Wanted) bool {
	namespace, name := it.Location()
	if namespace != "" {
		return namespace == m.Namespace
	}
	if it.Kind == "Namespace" && it.Group() == "" && name == m.Namespace {
		return true
	}
	return slices.ContainsFunc(wanted, func(w Wanted) bool { return w.Kind != All })
}

// wants gives which of Wanted the item's kind and name are meant by.
func (m *matcher) wants(it Item) (hits []Wanted) {
	if it.Type == (object.Type{}) {
		return nil
	}
	wanted, ok := m.kinds[it.Type]
	if !ok {
		r := it.Resource()
		for _, w := range m.Wanted {
			if w.Kind == All || r.Is(w.Kind) {
				wanted = append(wanted, w)
				m.groups[w.Kind] = append(m.groups[w.Kind], r)
			}
		}
		m.kinds[it.Type] = wanted
	}
	if len(wanted) == 0 {
		return nil
	}
	_, name, _ := cutLast(it.Key)
	for _, w := range wanted {
		if w.Name == "" || w.Name == string(name) {
			hits = append(hits, w)
		}
	}
	return hits
}

// foreign gives the groups that are not meant where a word names kinds of several: Kubernetes' own are meant then. Where
// none is, the word is ambiguous.
func (m *matcher) foreign() (map[string]bool, error) {
	drop := map[string]bool{}
	for word, resources := range m.groups {
		if word == All {
			continue
		}
		var own bool
		others := map[string]bool{}
		for _, r := range resources {
			if r.Builtin() {
				own = true
			} else {
				others[r.String()] = true
			}
		}
		switch {
		case own:
			for _, r := range resources {
				if !r.Builtin() {
					drop[r.String()] = true
				}
			}
		case len(others) > 1:
			return nil, usagef("%q is the name of several kinds: say which one of %s", word, strings.Join(slices.Sorted(maps.Keys(others)), ", "))
		}
	}
	return drop, nil
}

// Found are items of a snapshot, in the order of their keys.
type Found struct {
	snap      *Snapshot
	positions []int64
	// Missing are the names that were asked for and are not there.
	Missing []Wanted
}

// Find looks for the items that are meant. A *UsageError says that a word names several kinds, or none.
func (s *Snapshot) Find(ctx context.Context, q Query) (*Found, error) {
	m := newMatcher(q)
	f := &Found{snap: s}
	err := s.each(ctx, func(position int64, it Item) error {
		if m.match(it) {
			f.positions = append(f.positions, position)
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
	if len(drop) > 0 {
		kept := f.positions[:0]
		err := f.each(ctx, func(position int64, it Item) error {
			if !drop[it.Resource().String()] {
				kept = append(kept, position)
			}
			return nil
		})
		if f.positions = kept; err != nil {
			return nil, err
		}
	}
	for _, w := range q.Wanted {
		if w.Name != "" && !m.hits[w] {
			f.Missing = append(f.Missing, w)
		}
	}
	return f, q.checkKinds(func(word string) bool { return len(m.groups[word]) > 0 || s.names.Has(word) })
}

// checkKinds makes sure that each word for a kind names one: a misspelt one would find nothing.
func (q Query) checkKinds(known func(word string) bool) error {
	for _, w := range q.Wanted {
		if w.Kind != All && !known(w.Kind) {
			return usagef("%q is no kind that the snapshot or Kubernetes knows (see etcd-snapshot-agent keys --by kind)", w.Kind)
		}
	}
	return nil
}

// Len is how many there are.
func (f *Found) Len() int { return len(f.positions) }

// Each calls fn for the items.
func (f *Found) Each(ctx context.Context, fn func(Item) error) error {
	return f.each(ctx, func(_ int64, it Item) error { return fn(it) })
}

func (f *Found) each(ctx context.Context, fn func(int64, Item) error) error {
	return f.snap.eachOf(ctx, f.positions, fn)
}

// Sort orders the items as they can be applied: namespaces before what is in them, what is used before what uses it.
func (f *Found) Sort(ctx context.Context) error {
	ranks := map[int64]int{}
	err := f.each(ctx, func(position int64, it Item) error {
		ranks[position] = rank(it.Type)
		return nil
	})
	slices.SortStableFunc(f.positions, func(a, b int64) int { return ranks[a] - ranks[b] })
	return err
}

// order of kinds that others need.
var order = strings.Fields(`Namespace CustomResourceDefinition PriorityClass StorageClass VolumeAttributesClass RuntimeClass IngressClass
	ServiceAccount Secret ConfigMap PersistentVolume PersistentVolumeClaim ClusterRole ClusterRoleBinding Role RoleBinding
	ResourceQuota LimitRange NetworkPolicy PodDisruptionBudget Service`)

// last are the kinds that can keep others from being made.
var last = strings.Fields(`APIService MutatingWebhookConfiguration ValidatingWebhookConfiguration`)

func rank(t object.Type) int {
	if i := slices.Index(order, t.Kind); i >= 0 && (object.Resource{Group: t.Group()}).Builtin() {
		return i
	}
	if i := slices.Index(last, t.Kind); i >= 0 {
		return 2*len(order) + i
	}
	return len(order)
}
