package object

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// Type is what is known of an object at first sight.
type Type struct {
	// APIVersion and Kind are what the object says; empty where it is encrypted at rest.
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind,omitempty"`
	// Resource is what the key says of an object that is encrypted at rest (secrets), and Encryption with what (aescbc,
	// secretbox, kms). Whether it can be read depends on the cluster's encryption configuration.
	Resource   string `json:"resource,omitempty"`
	Encryption string `json:"encryption,omitempty"`
}

// String gives the name of a type as people write it: apps/v1 Deployment.
func (t Type) String() string {
	if t.Encryption != "" {
		return fmt.Sprintf("%s (encrypted with %s)", t.Resource, t.Encryption)
	}
	return t.APIVersion + " " + t.Kind
}

// Group is the API group: empty for Kubernetes' core.
func (t Type) Group() string {
	group, _, ok := strings.Cut(t.APIVersion, "/")
	if !ok {
		return ""
	}
	return group
}

const (
	// maxName bounds what is taken for a name of a kind.
	maxName = 253
	// maxPath is how much of a key is looked at.
	maxPath = 1024
)

// The API server's storage encoding: k8s.io/apimachinery/pkg/runtime/serializer/protobuf (protoEncodingPrefix) and
// k8s.io/apiserver/pkg/storage/value/encrypt (k8s:enc:<provider>:v1:<key>:).
var (
	protobufPrefix  = []byte("k8s\x00")
	encryptedPrefix = []byte("k8s:enc:")
)

// ErrNotObject says that a value is nothing of Kubernetes.
var ErrNotObject = errors.New("no Kubernetes object")

// Sniff tells what a value is. ErrNotObject is what it is where it is nothing of Kubernetes.
func Sniff(key, value []byte) (Type, error) {
	switch {
	case bytes.HasPrefix(value, encryptedPrefix):
		provider, _, ok := bytes.Cut(value[len(encryptedPrefix):], []byte(":"))
		if !ok || !isName(provider) {
			return Type{}, errors.New("no provider of encryption is named")
		}
		return Type{Resource: resourceOf(key), Encryption: string(provider)}, nil
	case bytes.HasPrefix(value, protobufPrefix):
		u, err := parseUnknown(value[len(protobufPrefix):])
		if err != nil {
			return Type{}, err
		}
		return named(u.apiVersion, u.kind)
	case bytes.HasPrefix(value, []byte("{")):
		return sniffJSON(value)
	}
	return Type{}, ErrNotObject
}

func named(apiVersion, kind []byte) (Type, error) {
	if !isName(apiVersion) || !isName(kind) {
		return Type{}, errors.New("its kind is not named")
	}
	return Type{APIVersion: string(apiVersion), Kind: string(kind)}, nil
}

func isName(b []byte) bool {
	return len(b) > 0 && len(b) <= maxName && bytes.IndexFunc(b, func(r rune) bool { return r <= ' ' || r > '~' }) < 0
}

// resourceOf reads a resource out of the key of an object: /registry/<resource>/... or /registry/<group>/<resource>/...,
// where a group has a dot.
func resourceOf(key []byte) string {
	parts := strings.Split(strings.TrimPrefix(string(key[:min(len(key), maxPath)]), "/"), "/")
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
type unknown struct{ apiVersion, kind, raw, encoding []byte }

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
		case 3:
			u.encoding = value
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
func sniffJSON(value []byte) (Type, error) {
	dec := json.NewDecoder(bytes.NewReader(value))
	if _, err := dec.Token(); err != nil {
		return Type{}, ErrNotObject
	}
	var found Type
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return Type{}, ErrNotObject
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
			return Type{}, ErrNotObject
		}
		if found.APIVersion != "" && found.Kind != "" {
			return named([]byte(found.APIVersion), []byte(found.Kind))
		}
	}
	return Type{}, ErrNotObject
}

// WellFormed checks a value that Sniff knows, and that is not encrypted, to the end: the object itself is well-formed.
func WellFormed(value []byte) error {
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
