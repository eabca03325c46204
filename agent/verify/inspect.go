package verify

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/maphash"
	"os"

	"google.golang.org/protobuf/encoding/protowire"

	"etcdsnapshot.dev/agent/archive"
)

// Status is what a database says of itself. Hash, Revision, TotalKeys and StorageVersion are what `etcdutl snapshot
// status` of etcd 3.7 prints of the same file.
type Status struct {
	// Revision of the last change; 0 in a database without any.
	Revision int64
	// TotalKeys that are there at that revision.
	TotalKeys int64
	// Entries are the keys in all revisions that are not compacted, deletions counted: what `etcdutl snapshot status` of
	// etcd before 3.6 counted, other buckets' entries aside.
	Entries int64
	// Hash is the CRC-32C of all buckets' names, keys and values.
	Hash uint32
	// StorageVersion is empty before etcd 3.6 (3.6.0).
	StorageVersion string
	// ClusterVersion is the version that the cluster's members agreed on (3.5.0); empty where none is written down.
	ClusterVersion string
	// Bumped says that the database was once restored with a higher revision: etcdutl's mark of that is an entry with an
	// empty key, which counts as one of TotalKeys and which no client can see.
	Bumped bool
}

// Names of what etcd keeps where (go.etcd.io/etcd/server/v3/storage/schema: bucket.go).
const (
	keyBucket         = "key"
	metaBucket        = "meta"
	clusterBucket     = "cluster"
	storageVersionKey = "storageVersion"
	clusterVersionKey = "clusterVersion"
)

// Inspect checks the consistency of the etcd database in the file at path, which nobody may write to meanwhile, and reads
// its status. A checksum of etcd's behind it (see Database) is neither needed nor checked. Damage is archive.ErrCorrupt;
// the error of a bbolt database that is not etcd's is archive.ErrUnknownFormat, too.
func Inspect(ctx context.Context, path string) (Status, error) {
	f, err := os.Open(path)
	if err != nil {
		return Status{}, fmt.Errorf("inspect database: %w", err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return Status{}, fmt.Errorf("inspect database: %w", err)
	}
	r := &reader{crc: crc32.New(crc32.MakeTable(crc32.Castagnoli)), live: map[uint64]struct{}{}, seed: maphash.MakeSeed()}
	if err := walkBolt(ctx, f, fi.Size(), r.visit); err != nil {
		return Status{}, err
	}
	if !r.etcd {
		return Status{}, fmt.Errorf("%w: it is a bbolt database, but no etcd's: it has no bucket %q: %w", archive.ErrUnknownFormat, keyBucket, archive.ErrCorrupt)
	}
	r.status.Hash, r.status.TotalKeys = r.crc.Sum32(), int64(len(r.live))
	_, r.status.Bumped = r.live[maphash.Bytes(r.seed, nil)]
	return r.status, nil
}

// reader makes a Status of a database's elements.
type reader struct {
	status Status
	etcd   bool
	crc    interface {
		Write([]byte) (int, error)
		Sum32() uint32
	}
	// live holds hashes in place of keys, which may be long: of a million keys, two have the same with a probability of
	// 3 in 10^8.
	live map[uint64]struct{}
	seed maphash.Seed
}

func (r *reader) visit(bucket, key, value []byte) error {
	if key == nil {
		r.etcd = r.etcd || string(bucket) == keyBucket
		_, err := r.crc.Write(bucket)
		return err
	}
	_, _ = r.crc.Write(key) // a hash does not fail
	_, _ = r.crc.Write(value)
	switch string(bucket) {
	case keyBucket:
		return r.entry(key, value)
	case metaBucket:
		if string(key) == storageVersionKey {
			r.status.StorageVersion = string(clip(value))
		}
	case clusterBucket:
		if string(key) == clusterVersionKey {
			r.status.ClusterVersion = string(clip(value))
		}
	}
	return nil
}

// entry reads one change of a key.
func (r *reader) entry(key, value []byte) error {
	main, tombstone, err := parseRevision(key)
	if err != nil {
		return corruptf("database", "the entry with the key %q: %w", clip(key), err)
	}
	name, err := keyOf(value)
	if err != nil {
		return corruptf("database", "the entry of revision %d: %w", main, err)
	}
	r.status.Revision = main // entries are in the order of revisions
	r.status.Entries++
	sum := maphash.Bytes(r.seed, name)
	if tombstone {
		delete(r.live, sum)
	} else {
		r.live[sum] = struct{}{}
	}
	return nil
}

// parseRevision reads the key of an entry: the revision's main part, an underscore, its sub part, and a t where the entry
// is a deletion (go.etcd.io/etcd/server/v3/storage/mvcc: revision.go).
func parseRevision(k []byte) (main int64, tombstone bool, err error) {
	switch {
	case len(k) != 17 && len(k) != 18, k[8] != '_', len(k) == 18 && k[17] != 't':
		return 0, false, errors.New("it is not a revision")
	}
	main = int64(binary.BigEndian.Uint64(k))
	if main < 0 || int64(binary.BigEndian.Uint64(k[9:])) < 0 {
		return 0, false, errors.New("its revision is negative")
	}
	return main, len(k) == 18, nil
}

// keyOf reads the key out of a mvccpb.KeyValue, whose first field it is, and checks that the rest is well-formed.
func keyOf(b []byte) (key []byte, err error) {
	for len(b) > 0 {
		number, wire, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil, fmt.Errorf("it is not well-formed: %w", protowire.ParseError(n))
		}
		b = b[n:]
		if number == 1 && wire == protowire.BytesType {
			key, n = protowire.ConsumeBytes(b)
		} else {
			n = protowire.ConsumeFieldValue(number, wire, b)
		}
		if n < 0 {
			return nil, fmt.Errorf("it is not well-formed: %w", protowire.ParseError(n))
		}
		b = b[n:]
	}
	return key, nil
}
