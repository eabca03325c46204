package object

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/json"
)

// decoder makes of a protobuf message what the API server would print of it: the same names, the same defaults, the same
// omissions.
type decoder struct {
	// unknown counts fields that the schema does not have: a newer Kubernetes wrote them.
	unknown int
}

// maxNesting is far above what a kind needs, and bounds the stack.
const maxNesting = 64

var errTooDeep = errors.New("its messages are nested too deeply")

// object decodes a message into the fields of out. Where inline is set, out already holds its parent's.
func (d *decoder) object(m *message, b []byte, out map[string]any, depth int) error {
	if depth > maxNesting {
		return errTooDeep
	}
	seen := map[*field]bool{}
	for len(b) > 0 {
		number, wire, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		n = protowire.ConsumeFieldValue(number, wire, b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		value := b[:n]
		b = b[n:]
		f := m.byNumber[uint64(number)]
		if f == nil {
			d.unknown++
			continue
		}
		if err := d.field(f, wire, value, out, depth); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		seen[f] = true
	}
	for _, f := range m.fields {
		if err := d.complete(f, seen[f], out, depth); err != nil {
			return err
		}
	}
	return nil
}

// field puts one occurrence of a field into out.
func (d *decoder) field(f *field, wire protowire.Type, b []byte, out map[string]any, depth int) error {
	switch {
	case f.is('i'):
		content, err := content(wire, b)
		if err != nil {
			return err
		}
		return d.object(f.message, content, out, depth+1)
	case f.is('m'):
		entries, _ := out[f.name].(map[string]any)
		if entries == nil {
			entries = map[string]any{}
			out[f.name] = entries
		}
		return d.entry(f, wire, b, entries, depth)
	case f.is('r'):
		v, err := d.value(f, wire, b, depth)
		if err != nil {
			return err
		}
		list, _ := out[f.name].([]any)
		out[f.name] = append(list, v)
		return nil
	}
	v, err := d.value(f, wire, b, depth)
	out[f.name] = v
	return err
}

// entry puts one entry of a map, a message of 1 key and 2 value, into entries.
func (d *decoder) entry(f *field, wire protowire.Type, b []byte, entries map[string]any, depth int) error {
	b, err := content(wire, b)
	if err != nil {
		return err
	}
	var (
		key     string
		value   []byte
		valueOf = protowire.BytesType
		given   bool
	)
	for len(b) > 0 {
		number, wire, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(number, wire, b); n < 0 {
			return protowire.ParseError(n)
		}
		switch number {
		case 1:
			k, err := content(wire, b[:n])
			if err != nil {
				return err
			}
			key = string(k)
		case 2:
			value, valueOf, given = b[:n], wire, true
		}
		b = b[n:]
	}
	if !given {
		entries[key], err = d.zero(f, depth)
		return err
	}
	if f.is('w') {
		entries[key], err = d.wrapped(f, valueOf, value, depth)
		return err
	}
	entries[key], err = d.value(f, valueOf, value, depth)
	return err
}

// wrapped is a message around a list: 1 items.
func (d *decoder) wrapped(f *field, wire protowire.Type, b []byte, depth int) (any, error) {
	b, err := content(wire, b)
	if err != nil {
		return nil, err
	}
	list := []any{}
	for len(b) > 0 {
		number, wire, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(number, wire, b); n < 0 {
			return nil, protowire.ParseError(n)
		}
		if number != 1 {
			d.unknown++
		} else {
			v, err := d.value(f, wire, b[:n], depth)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		b = b[n:]
	}
	return list, nil
}

// complete does with a field what encoding/json does with the Go field: leaves it out, or adds it where it is missing.
func (d *decoder) complete(f *field, seen bool, out map[string]any, depth int) error {
	switch {
	case f.is('i') && seen:
		return nil
	case f.is('i'):
		return d.object(f.message, nil, out, depth+1)
	case f.is('p') && seen:
		return nil
	case f.is('p'), f.is('m') && !seen, f.is('r') && !seen:
		if !f.is('o') && !f.is('z') {
			out[f.name] = nil
		}
		return nil
	case f.is('m'), f.is('r'):
		return nil
	}
	v := out[f.name]
	if !seen {
		var err error
		if v, err = d.zero(f, depth); err != nil {
			return err
		}
	}
	if f.is('z') && isZero(f, v) || f.is('o') && f.of != "intorstring" && (isEmpty(v) || v == nil && f.of == "bytes") {
		delete(out, f.name)
		return nil
	}
	out[f.name] = v
	return nil
}

// isEmpty is encoding/json's rule for omitempty: a struct is never empty, and an IntOrString is one.
func isEmpty(v any) bool {
	switch v := v.(type) {
	case string:
		return v == ""
	case bool:
		return !v
	case int64:
		return v == 0
	case float64:
		return v == 0
	}
	return false
}

// isZero is encoding/json's rule for omitzero. All that is left of a zero struct are the zeros that it does not omit.
func isZero(f *field, v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case map[string]any:
		for _, inner := range f.message.fields {
			if have, ok := v[inner.name]; ok && !isZero(inner, have) {
				return false
			}
		}
		return true
	case string:
		return v == "" || f.of == "quantity" && v == "0"
	}
	return isEmpty(v)
}

// zero is the value of a field that the message does not have.
func (d *decoder) zero(f *field, depth int) (any, error) {
	switch f.of {
	case "string":
		return "", nil
	case "bytes":
		if f.is('m') { // Kubernetes' decoder makes an empty one
			return "", nil
		}
		return nil, nil
	case "bool":
		return false, nil
	case "int", "intorstring":
		return int64(0), nil
	case "double":
		return float64(0), nil
	case "quantity":
		return "0", nil
	case "duration":
		return time.Duration(0).String(), nil
	case "time", "microtime", "raw":
		return nil, nil
	}
	out := map[string]any{}
	return out, d.object(f.message, nil, out, depth+1)
}

var errWire = errors.New("it is of another type than it should be")

// content is what a field with a length holds.
func content(wire protowire.Type, b []byte) ([]byte, error) {
	if wire != protowire.BytesType {
		return nil, errWire
	}
	v, n := protowire.ConsumeBytes(b)
	if n < 0 {
		return nil, protowire.ParseError(n)
	}
	return v, nil
}

// value decodes one value of a field.
func (d *decoder) value(f *field, wire protowire.Type, b []byte, depth int) (any, error) {
	switch f.of {
	case "bool", "int":
		if wire != protowire.VarintType {
			return nil, errWire
		}
		v, _ := protowire.ConsumeVarint(b)
		if f.of == "bool" {
			return v != 0, nil
		}
		return int64(v), nil
	case "double":
		if wire != protowire.Fixed64Type {
			return nil, errWire
		}
		v, _ := protowire.ConsumeFixed64(b)
		if n := math.Float64frombits(v); !math.IsInf(n, 0) && !math.IsNaN(n) {
			return n, nil
		}
		return nil, errors.New("it is no finite number")
	}
	b, err := content(wire, b)
	if err != nil {
		return nil, err
	}
	switch f.of {
	case "string":
		return string(b), nil
	case "bytes":
		return base64.StdEncoding.EncodeToString(b), nil
	case "raw":
		return raw(b)
	case "time", "microtime":
		return timestamp(f.of, b)
	case "duration":
		v, _, err := numbers(b)
		return time.Duration(v).String(), err
	case "quantity":
		_, s, err := numbers(b)
		if s == "" {
			s = "0"
		}
		return s, err
	case "intorstring":
		return intOrString(b)
	}
	out := map[string]any{}
	return out, d.object(f.message, b, out, depth+1)
}

// raw is a message of 1 raw: JSON within.
func raw(b []byte) (any, error) {
	_, text, err := numbers(b)
	if err != nil || text == "" {
		return nil, err
	}
	return fromJSON([]byte(text))
}

// numbers reads a small message whose field 1 is a number or has a length.
func numbers(b []byte) (number int64, text string, err error) {
	for len(b) > 0 {
		id, wire, n := protowire.ConsumeTag(b)
		if n < 0 {
			return 0, "", protowire.ParseError(n)
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(id, wire, b); n < 0 {
			return 0, "", protowire.ParseError(n)
		}
		switch {
		case id == 1 && wire == protowire.VarintType:
			v, _ := protowire.ConsumeVarint(b)
			number = int64(v)
		case id == 1 && wire == protowire.BytesType:
			v, _ := protowire.ConsumeBytes(b)
			text = string(v)
		}
		b = b[n:]
	}
	return number, text, nil
}

// timestamp is a message of 1 seconds and 2 nanos. An empty one is no time.
func timestamp(of string, b []byte) (any, error) {
	if len(b) == 0 {
		return nil, nil
	}
	var values [3]int64
	if err := varints(b, values[:]); err != nil {
		return nil, err
	}
	// The parts of a second are in JSON only where it is a microtime.
	if of == "time" {
		return time.Unix(values[1], 0).UTC().Format(time.RFC3339), nil
	}
	at := time.Unix(values[1], time.Duration(values[2]).Truncate(time.Microsecond).Nanoseconds())
	return at.UTC().Format(metav1.RFC3339Micro), nil
}

// varints reads the numbers of a small message into values, by the number of their field.
func varints(b []byte, values []int64) error {
	for len(b) > 0 {
		id, wire, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(id, wire, b); n < 0 {
			return protowire.ParseError(n)
		}
		if wire == protowire.VarintType && int(id) < len(values) {
			v, _ := protowire.ConsumeVarint(b)
			values[id] = int64(v)
		}
		b = b[n:]
	}
	return nil
}

// intOrString is a message of 1 type (0: number), 2 intVal, 3 strVal.
func intOrString(b []byte) (any, error) {
	var values [3]int64
	if err := varints(b, values[:]); err != nil {
		return nil, err
	}
	if values[1] == 0 {
		return int64(int32(values[2])), nil
	}
	text := ""
	err := fields(b, func(number protowire.Number, value []byte) error {
		if number == 3 {
			text = string(value)
		}
		return nil
	})
	return text, err
}

// fromJSON keeps whole numbers whole.
func fromJSON(b []byte) (any, error) {
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		return nil, fmt.Errorf("its JSON is not well-formed: %w", err)
	}
	return v, nil
}
