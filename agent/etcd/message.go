package etcd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Fields of etcdserverpb.SnapshotResponse.
const (
	remainingField = 2
	blobField      = 3
	versionField   = 4
)

// message is a SnapshotResponse whose blob lies where gRPC received it. The usual codec would gather its 32 KiB in one
// buffer, for which it clears one of 1 MiB, and copy them out of that into a new one.
type message struct {
	remaining uint64
	blob      [][]byte // until the next message is read, or free
	version   string   // the last one that a message told

	data   mem.BufferSlice // what blob lies in
	text   []byte          // version, to be compared
	reader mem.Reader
}

// size of the blob.
func (m *message) size() (n int) {
	for _, b := range m.blob {
		n += len(b)
	}
	return n
}

// free gives back the memory of the blob.
func (m *message) free() {
	m.blob = m.blob[:0]
	m.data.Free()
	m.data = nil
}

// read takes a message in place of the one before.
func (m *message) read(data mem.BufferSlice) error {
	m.free()
	data.Ref()
	m.data, m.remaining = data, 0
	m.reader.Reset(data)
	defer m.reader.Close()
	for m.reader.Remaining() > 0 {
		if err := m.field(); err != nil {
			return fmt.Errorf("read SnapshotResponse: %w", err)
		}
	}
	return nil
}

// field reads the next field, or passes it by.
func (m *message) field() error {
	tag, err := m.varint()
	if err != nil {
		return err
	}
	number, kind := protowire.DecodeTag(tag)
	switch kind {
	case protowire.VarintType:
		v, err := m.varint()
		if number == remainingField {
			m.remaining = v
		}
		return err
	case protowire.Fixed32Type:
		return m.skip(4)
	case protowire.Fixed64Type:
		return m.skip(8)
	case protowire.BytesType:
		n, err := m.varint()
		if err != nil {
			return err
		}
		if n > uint64(m.reader.Remaining()) {
			return io.ErrUnexpectedEOF
		}
		return m.bytes(number, int(n))
	}
	return errors.New("a field is of a type that nobody uses")
}

// bytes reads a field of n bytes, which are there.
func (m *message) bytes(number protowire.Number, n int) (err error) {
	switch number {
	case blobField:
		if m.blob, err = m.reader.Peek(n, m.blob[:0]); err != nil {
			return err
		}
	case versionField:
		m.text = slices.Grow(m.text[:0], n)[:n]
		if _, err := io.ReadFull(&m.reader, m.text); err != nil {
			return err
		}
		if string(m.text) != m.version {
			m.version = string(m.text)
		}
		return nil
	}
	return m.skip(n)
}

func (m *message) varint() (uint64, error) {
	v, err := binary.ReadUvarint(&m.reader)
	if err == io.EOF { //nolint:errorlint // the exact io.EOF is what ReadUvarint gives
		err = io.ErrUnexpectedEOF
	}
	return v, err
}

func (m *message) skip(n int) error {
	if _, err := m.reader.Discard(n); err != nil {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// codec is protobuf's, but for a message.
type codec struct{ encoding.CodecV2 }

var snapshotCodec = codec{encoding.GetCodecV2(proto.Name)}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if m, ok := v.(*message); ok {
		return m.read(data)
	}
	return c.CodecV2.Unmarshal(data, v)
}
