package etcd

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// cut gives data in pieces of any size, as frames of HTTP/2 may cut it.
func cut(rnd *rand.Rand, data []byte) (s mem.BufferSlice) {
	for len(data) > 0 {
		n := min(len(data), 1+rnd.IntN(1+rnd.IntN(20_000)))
		s = append(s, mem.SliceBuffer(data[:n]))
		data = data[n:]
	}
	return s
}

// TestMessage reads what protobuf's own library writes, wherever it is cut.
func TestMessage(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	var m message
	for range 300 {
		want := &pb.SnapshotResponse{RemainingBytes: rnd.Uint64() >> rnd.IntN(64), Blob: make([]byte, rnd.IntN(40_000)), Version: "3.6.0"}
		if rnd.IntN(2) == 0 {
			want.Header = &pb.ResponseHeader{ClusterId: rnd.Uint64(), Revision: 7}
		}
		for i := range want.Blob {
			want.Blob[i] = byte(rnd.Uint32())
		}
		data, err := proto.Marshal(want)
		require.NoError(t, err)
		// Fields of a later etcd are passed by.
		data = protowire.AppendVarint(protowire.AppendTag(data, 9, protowire.VarintType), rnd.Uint64())
		data = protowire.AppendFixed64(protowire.AppendTag(data, 10, protowire.Fixed64Type), 1)
		data = protowire.AppendFixed32(protowire.AppendTag(data, 11, protowire.Fixed32Type), 1)
		data = protowire.AppendBytes(protowire.AppendTag(data, 12, protowire.BytesType), []byte("more"))

		require.NoError(t, snapshotCodec.Unmarshal(cut(rnd, data), &m))
		require.Equal(t, want.RemainingBytes, m.remaining)
		require.Equal(t, want.Version, m.version)
		require.True(t, bytes.Equal(want.Blob, bytes.Join(m.blob, nil)))
		require.Equal(t, len(want.Blob), m.size())
	}
	require.NoError(t, snapshotCodec.Unmarshal(nil, &m))
	require.Zero(t, m.remaining)
	require.Zero(t, m.size())
	require.Equal(t, "3.6.0", m.version, "the last one told")

	other := &pb.StatusResponse{}
	data, err := proto.Marshal(&pb.StatusResponse{Version: "3.6.1"})
	require.NoError(t, err)
	require.NoError(t, snapshotCodec.Unmarshal(cut(rnd, data), other))
	require.Equal(t, "3.6.1", other.Version)
}

// FuzzMessage: whatever comes, it is read as protobuf's own library reads it, or is an error.
func FuzzMessage(f *testing.F) {
	data, err := proto.Marshal(&pb.SnapshotResponse{RemainingBytes: 5, Blob: []byte("blob"), Version: "3.6.0", Header: &pb.ResponseHeader{Revision: 1}})
	require.NoError(f, err)
	f.Add(data)
	f.Add(data[:len(data)-3])
	f.Add(data[:1])
	f.Add([]byte{0x1b})                                     // a group
	f.Add([]byte{0x1a, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}) // a blob longer than all there is
	f.Fuzz(func(t *testing.T, data []byte) {
		rnd := rand.New(rand.NewPCG(5, 6))
		var m message
		err := m.read(cut(rnd, data))
		want := &pb.SnapshotResponse{}
		if proto.Unmarshal(data, want) != nil || err != nil {
			return // protobuf's library also minds UTF-8 and what is in a header, and takes groups
		}
		require.Equal(t, want.RemainingBytes, m.remaining)
		require.Equal(t, want.Version, m.version)
		require.True(t, bytes.Equal(want.Blob, bytes.Join(m.blob, nil)))
	})
}

// TestMessageIsNotCopied: reading a message takes no memory that depends on its size.
func TestMessageIsNotCopied(t *testing.T) {
	data, err := proto.Marshal(&pb.SnapshotResponse{Header: &pb.ResponseHeader{Revision: 1}, RemainingBytes: 1 << 30, Blob: make([]byte, 32<<10), Version: "3.6.0"})
	require.NoError(t, err)
	frames := mem.BufferSlice{mem.SliceBuffer(data[:16<<10]), mem.SliceBuffer(data[16<<10 : 32<<10]), mem.SliceBuffer(data[32<<10:])}
	var m message
	n := testing.AllocsPerRun(100, func() {
		if err := m.read(frames); err != nil {
			t.Error(err)
		}
	})
	require.Zero(t, n)
}
