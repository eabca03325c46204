package verify

import (
	"cmp"
	"errors"
	"slices"

	"etcdsnapshot.dev/agent/etcddb"
	"etcdsnapshot.dev/agent/object"
)

// Kind is how many objects of one Kubernetes kind a database holds.
type Kind struct {
	object.Type
	Count int64 `json:"count"`
	// Bytes of all their values.
	Bytes int64 `json:"bytes"`
}

// Kinds counts values by what they are.
type Kinds struct {
	// List of the kinds, sorted by name once all is counted.
	List []Kind `json:"kinds"`
	// Other values are no Kubernetes objects.
	Other int64 `json:"other"`
	// Undecodable values begin like a Kubernetes object, and are none. Example is the key of the first of them.
	Undecodable int64  `json:"undecodable"`
	Example     string `json:"example,omitempty"`

	index map[object.Type]int
}

const (
	// maxKinds bounds memory: a cluster has some hundreds.
	maxKinds = 10_000
	// samples of each kind are decoded to the end.
	samples = 5
)

// add counts one value.
func (k *Kinds) add(key, value []byte) {
	what, err := object.Sniff(key, value)
	if errors.Is(err, object.ErrNotObject) {
		k.Other++
		return
	}
	if err == nil {
		err = k.count(what, value)
	}
	if err != nil {
		k.Undecodable++
		if k.Example == "" {
			k.Example = string(etcddb.Clip(key))
		}
	}
}

func (k *Kinds) count(what object.Type, value []byte) error {
	if k.index == nil {
		k.index = map[object.Type]int{}
	}
	i, ok := k.index[what]
	if !ok {
		if len(k.List) == maxKinds {
			return errors.New("too many kinds")
		}
		i = len(k.List)
		k.index[what] = i
		k.List = append(k.List, Kind{Type: what})
	}
	if k.List[i].Count < samples && what.Encryption == "" {
		if err := object.WellFormed(value); err != nil {
			return err
		}
	}
	k.List[i].Count++
	k.List[i].Bytes += int64(len(value))
	return nil
}

// finish sorts, and drops kinds without a single object that could be decoded.
func (k *Kinds) finish() {
	k.List = slices.DeleteFunc(k.List, func(one Kind) bool { return one.Count == 0 })
	slices.SortFunc(k.List, func(a, b Kind) int { return cmp.Compare(a.String(), b.String()) })
	k.index = nil
}

// Objects is how many Kubernetes objects there are, encrypted ones among them.
func (k *Kinds) Objects() (n int64) {
	for _, one := range k.List {
		n += one.Count
	}
	return n
}
