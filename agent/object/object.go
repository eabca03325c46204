package object

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"
)

// ErrUnknownKind says that an object is stored in protobuf and that its fields are not known here: of its kind, only its
// metadata can be printed.
var ErrUnknownKind = errors.New("it is stored in protobuf, and the fields of its kind are not known here")

// Object is an object that was decoded.
type Object struct {
	Type
	unstructured.Unstructured
	// UnknownFields is how many fields were left out because a newer Kubernetes wrote them.
	UnknownFields int
}

// Decode decodes a value that is not encrypted. With ErrUnknownKind there is an object, which has its type and its metadata
// only. ErrNotObject says that it is nothing of Kubernetes; other errors, that it is damaged.
func Decode(value []byte) (*Object, error) {
	return decode(value, false)
}

// DecodeMeta is Decode for the metadata alone, and cheaper.
func DecodeMeta(value []byte) (*Object, error) {
	o, err := decode(value, true)
	if errors.Is(err, ErrUnknownKind) {
		err = nil
	}
	return o, err
}

func decode(value []byte, metaOnly bool) (*Object, error) {
	t, err := Sniff(nil, value)
	if err != nil {
		return nil, err
	}
	o := &Object{Type: t}
	if t.Encryption != "" {
		return nil, fmt.Errorf("it is encrypted at rest with %s", t.Encryption)
	}
	if !bytes.HasPrefix(value, protobufPrefix) {
		if err := json.Unmarshal(value, &o.Object); err != nil {
			return nil, fmt.Errorf("its JSON is not well-formed: %w", err)
		}
		return o, o.check()
	}
	u, err := parseUnknown(value[len(protobufPrefix):])
	if err != nil {
		return nil, err
	}
	if len(u.encoding) > 0 {
		return nil, fmt.Errorf("it is encoded as %q, which is not known here", u.encoding[:min(len(u.encoding), maxName)])
	}
	o.Object = map[string]any{"apiVersion": t.APIVersion, "kind": t.Kind}
	m, known := schema().kinds[t]
	if !known || metaOnly {
		m = metaOf
	}
	d := &decoder{}
	if err := d.object(m, u.raw, o.Object, 0); err != nil {
		if !known {
			err = fmt.Errorf("%w, not even where its metadata is (%w)", ErrUnknownKind, err)
		}
		return nil, err
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	if !known {
		return o, ErrUnknownKind
	}
	if !metaOnly {
		o.UnknownFields = d.unknown
	}
	return o, nil
}

// metaOf is any object, of which nothing but the metadata is known.
var metaOf = &message{fields: []*field{metaField}, byNumber: map[uint64]*field{1: metaField}}

var metaField = &field{number: 1, name: "metadata", of: metaMessage, flags: "-", message: schema().messages[metaMessage]}

// check makes sure that the methods of Unstructured find what they expect.
func (o *Object) check() error {
	meta, ok := o.Object["metadata"].(map[string]any)
	if !ok {
		return errors.New("it has no metadata")
	}
	for _, name := range []string{"name", "namespace"} {
		if v, ok := meta[name]; ok {
			if _, ok := v.(string); !ok {
				return fmt.Errorf("its metadata.%s is no text", name)
			}
		}
	}
	return nil
}

// WrittenAt is when the object was written last, as far as its metadata tells: etcd keeps no times. It is the newest time
// of metadata.managedFields, or else that of its creation; the zero time where neither is there.
func (o *Object) WrittenAt() time.Time {
	at := o.GetCreationTimestamp().Time
	managed, _, _ := unstructured.NestedSlice(o.Object, "metadata", "managedFields")
	for _, m := range managed {
		entry, _ := m.(map[string]any)
		text, _ := entry["time"].(string)
		if t, err := time.Parse(time.RFC3339, text); err == nil && t.After(at) {
			at = t
		}
	}
	return at
}

// Controller is the owner that makes this object, and makes it again; nil where there is none.
func (o *Object) Controller() *metav1.OwnerReference {
	return metav1.GetControllerOfNoCopy(&o.Unstructured)
}

// Copy is a deep copy.
func (o *Object) Copy() *Object {
	return &Object{Type: o.Type, Unstructured: *o.DeepCopy(), UnknownFields: o.UnknownFields}
}
