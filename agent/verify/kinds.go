package verify

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// Kind is how many objects of one Kubernetes kind a database holds.
type Kind struct {
	// APIVersion and Kind are what the objects say; empty where they are encrypted at rest.
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind,omitempty"`
	// Resource is what the keys say of objects that are encrypted at rest (secrets), and Encryption with what (aescbc,
	// secretbox, kms). Whether they can be read depends on the cluster's encryption configuration.
	Resource   string `json:"resource,omitempty"`
	Encryption string `json:"encryption,omitempty"`
	Count      int64  `json:"count"`
	// Bytes of all their values.
	Bytes int64 `json:"bytes"`
}

// String gives the name of a kind as people write it: apps/v1 Deployment.
func (k Kind) String() string {
	if k.Encryption != "" {
		return fmt.Sprintf("%s (encrypted with %s)", k.Resource, k.Encryption)
	}
	return k.APIVersion + " " + k.Kind
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

	index map[Kind]int
}

const (
	// maxKinds bounds memory: a cluster has some hundreds.
	maxKinds = 10_000
	// samples of each kind are decoded to the end.
	samples = 5
	// maxName bounds what is taken for a name of a kind.
	maxName = 253
)

// The API server's storage encoding: k8s.io/apimachinery/pkg/runtime/serializer/protobuf (protoEncodingPrefix) and
// k8s.io/apiserver/pkg/storage/value/encrypt (k8s:enc:<provider>:v1:<key>:).
var (
	protobufPrefix  = []byte("k8s\x00")
	encryptedPrefix = []byte("k8s:enc:")
)

var errNotObject = errors.New("no Kubernetes object")

// add counts one value.
func (k *Kinds) add(key, value []byte) {
	what, err := sniff(key, value)
	if errors.Is(err, errNotObject) {
		k.Other++
		return
	}
	if err == nil {
		err = k.count(what, value)
	}
	if err != nil {
		k.Undecodable++
		if k.Example == "" {
			k.Example = string(clip(key))
		}
	}
}

func (k *Kinds) count(what Kind, value []byte) error {
	if k.index == nil {
		k.index = map[Kind]int{}
	}
	i, ok := k.index[what]
	if !ok {
		if len(k.List) == maxKinds {
			return errors.New("too many kinds")
		}
		i = len(k.List)
		k.index[what] = i
		k.List = append(k.List, what)
	}
	if k.List[i].Count < samples && what.Encryption == "" {
		if err := decodeSample(value); err != nil {
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

// sniff tells what a value is. errNotObject is what it is where it is nothing of Kubernetes.
func sniff(key, value []byte) (Kind, error) {
	switch {
	case bytes.HasPrefix(value, encryptedPrefix):
		provider, _, ok := bytes.Cut(value[len(encryptedPrefix):], []byte(":"))
		if !ok || !isName(provider) {
			return Kind{}, errors.New("no provider of encryption is named")
		}
		return Kind{Resource: resourceOf(key), Encryption: string(provider)}, nil
	case bytes.HasPrefix(value, protobufPrefix):
		u, err := parseUnknown(value[len(protobufPrefix):])
		if err != nil {
			return Kind{}, err
		}
		return named(u.apiVersion, u.kind)
	case bytes.HasPrefix(value, []byte("{")):
		return sniffJSON(value)
	}
	return Kind{}, errNotObject
}

func named(apiVersion, kind []byte) (Kind, error) {
	if !isName(apiVersion) || !isName(kind) {
		return Kind{}, errors.New("its kind is not named")
	}
	return Kind{APIVersion: string(apiVersion), Kind: string(kind)}, nil
}

func isName(b []byte) bool {
	return len(b) > 0 && len(b) <= maxName && bytes.IndexFunc(b, func(r rune) bool { return r <= ' ' || r > '~' }) < 0
}

// resourceOf reads a resource out of the key of an object: /registry/<resource>/... or /registry/<group>/<resource>/...,
// where a group has a dot.
func resourceOf(key []byte) string {
	parts := strings.Split(strings.TrimPrefix(string(clip(key)), "/"), "/")
	if len(parts) < 2 {
		return "?"
	}
	name := parts[1]
	if strings.Contains(name, ".") && len(parts) > 2 {
		name = parts[2] + "." + name
	}
	if !isName([]byte(name)) {
		return "?"
	}
	return name
}

// unknown is the envelope of an object in protobuf: runtime.Unknown of k8s.io/apimachinery (generated.proto).
type unknown struct{ apiVersion, kind, raw []byte }

func parseUnknown(b []byte) (u unknown, err error) {
	err = fields(b, func(number protowire.Number, value []byte) error {
		switch number {
		case 1:
			return fields(value, func(number protowire.Number, value []byte) error {
				switch number {
				case 1:
					u.apiVersion = value
				case 2:
					u.kind = value
				}
				return nil
			})
		case 2:
			u.raw = value
		}
		return nil
	})
	return u, err
}

// fields walks a protobuf message and calls fn for each field that has a length; the others are only checked.
func fields(b []byte, fn func(number protowire.Number, value []byte) error) error {
	for len(b) > 0 {
		number, wire, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if wire != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, wire, b); n < 0 {
				return protowire.ParseError(n)
			}
			b = b[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		if err := fn(number, value); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// sniffJSON reads the names in a JSON object up to apiVersion and kind, which the API server writes first.
func sniffJSON(value []byte) (Kind, error) {
	dec := json.NewDecoder(bytes.NewReader(value))
	if _, err := dec.Token(); err != nil {
		return Kind{}, errNotObject
	}
	var found Kind
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return Kind{}, errNotObject
		}
		switch name {
		case "apiVersion":
			err = dec.Decode(&found.APIVersion)
		case "kind":
			err = dec.Decode(&found.Kind)
		default:
			var skipped json.RawMessage
			err = dec.Decode(&skipped)
		}
		if err != nil {
			return Kind{}, errNotObject
		}
		if found.APIVersion != "" && found.Kind != "" {
			return named([]byte(found.APIVersion), []byte(found.Kind))
		}
	}
	return Kind{}, errNotObject
}

// decodeSample decodes a value that sniff knows to the end: the object itself is well-formed.
func decodeSample(value []byte) error {
	if !bytes.HasPrefix(value, protobufPrefix) {
		if !json.Valid(value) {
			return errors.New("its JSON is not well-formed")
		}
		return nil
	}
	u, err := parseUnknown(value[len(protobufPrefix):])
	if err != nil {
		return err
	}
	return fields(u.raw, func(protowire.Number, []byte) error { return nil })
}
