package etcdtest

import (
	"context"
	"net"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// FakeMaintenance answers like one member of etcd and sends a snapshot that a real member cannot be made to send: a
// bit flipped under gRPC's own framing, the checksum left out, the stream ended early as if all were well. It serves
// Status and Snapshot of etcd's Maintenance service and an empty Range of its KV service, without TLS.
type FakeMaintenance struct {
	// Snapshot is a real one, checksum included.
	Snapshot []byte
	// Tamper gives what is sent instead of Snapshot, which it must not change. Nil sends it as it is.
	Tamper func(snapshot []byte) []byte
	// Endless has it go on for ever, with messages without content in place of the checksum, as etcd does when it
	// cannot read its own database.
	Endless bool
	// Err ends the stream after everything was sent; nil ends it well.
	Err error
	// Status is the member's status; nil is that of a member alone that leads.
	Status *pb.StatusResponse
}

const (
	// chunk is how much etcd puts into one message.
	chunk    = 32 << 10
	checksum = 32
)

// Serve listens on a free port of 127.0.0.1 and gives its client URL.
func (f *FakeMaintenance) Serve() (url string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := grpc.NewServer()
	pb.RegisterMaintenanceServer(server, &fakeMaintenance{fake: f})
	pb.RegisterKVServer(server, &fakeKV{fake: f})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l) // ends with Stop
	}()
	return "http://" + l.Addr().String(), func() { server.Stop(); <-done }, nil
}

func (f *FakeMaintenance) status() *pb.StatusResponse {
	if f.Status != nil {
		return f.Status
	}
	const member = 0x8e9e05c52164694d
	return &pb.StatusResponse{
		Header:  &pb.ResponseHeader{ClusterId: 0xcdf818194e3a8c32, MemberId: member, Revision: 100, RaftTerm: 2},
		Version: "3.6.0", StorageVersion: "3.6.0", DbSize: int64(len(f.Snapshot)), DbSizeInUse: int64(len(f.Snapshot)),
		Leader: member, RaftIndex: 100, RaftAppliedIndex: 100, RaftTerm: 2,
	}
}

type fakeMaintenance struct {
	pb.UnimplementedMaintenanceServer
	fake *FakeMaintenance
}

func (s *fakeMaintenance) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	return s.fake.status(), nil
}

func (s *fakeMaintenance) Snapshot(_ *pb.SnapshotRequest, stream grpc.ServerStreamingServer[pb.SnapshotResponse]) error {
	data := s.fake.Snapshot
	if s.fake.Tamper != nil {
		data = s.fake.Tamper(data)
	}
	// As etcd does it: messages of the database, each with what remains of it, then one of the checksum.
	database := len(s.fake.Snapshot) - checksum
	for sent := 0; sent < len(data); {
		end := min(sent+chunk, len(data))
		if sent < database {
			end = min(end, database)
		}
		response := &pb.SnapshotResponse{Blob: data[sent:end], RemainingBytes: uint64(max(0, database-end)), Version: s.fake.status().StorageVersion}
		if err := stream.Send(response); err != nil {
			return err
		}
		sent = end
		for s.fake.Endless && sent == database {
			if err := stream.Send(&pb.SnapshotResponse{RemainingBytes: 1}); err != nil {
				return err
			}
		}
	}
	return s.fake.Err
}

type fakeKV struct {
	pb.UnimplementedKVServer
	fake *FakeMaintenance
}

func (s *fakeKV) Range(context.Context, *pb.RangeRequest) (*pb.RangeResponse, error) {
	return &pb.RangeResponse{Header: s.fake.status().Header}, nil
}

// FlipBit is a Tamper that flips the lowest bit of the byte at offset, counted from the end if it is negative.
func FlipBit(offset int) func([]byte) []byte {
	return func(data []byte) []byte {
		flipped := append([]byte(nil), data...)
		if offset < 0 {
			offset += len(data)
		}
		flipped[offset] ^= 1
		return flipped
	}
}

// DropChecksum is a Tamper that leaves the checksum out.
func DropChecksum(data []byte) []byte { return data[:len(data)-checksum] }

// Truncate is a Tamper that ends the stream, without an error, after n bytes.
func Truncate(n int) func([]byte) []byte {
	return func(data []byte) []byte { return data[:min(n, len(data))] }
}
