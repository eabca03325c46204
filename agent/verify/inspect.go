package verify

import (
	"context"
	"fmt"
	"hash/crc32"
	"hash/maphash"

	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/etcddb"
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

// Inspect checks the consistency of the etcd database in the file at path, which nobody may write to meanwhile, and reads
// its status. A checksum of etcd's behind it (see Database) is neither needed nor checked. Damage is archive.ErrCorrupt;
// the error of a bbolt database that is not etcd's is archive.ErrUnknownFormat, too.
func Inspect(ctx context.Context, path string) (Status, error) {
	f, err := etcddb.Open(path)
	if err != nil {
		return Status{}, fmt.Errorf("inspect %w", err)
	}
	defer f.Close()
	r := &reader{crc: crc32.New(crc32.MakeTable(crc32.Castagnoli)), live: map[uint64]struct{}{}, seed: maphash.MakeSeed()}
	if err := f.Walk(ctx, r.visit); err != nil {
		return Status{}, err
	}
	if !r.etcd {
		return Status{}, fmt.Errorf("%w: it is a bbolt database, but no etcd's: it has no bucket %q: %w", archive.ErrUnknownFormat, etcddb.KeyBucket, archive.ErrCorrupt)
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

func (r *reader) visit(e etcddb.Element) error {
	if e.Key == nil {
		r.etcd = r.etcd || string(e.Bucket) == etcddb.KeyBucket
		_, err := r.crc.Write(e.Bucket)
		return err
	}
	_, _ = r.crc.Write(e.Key) // a hash does not fail
	_, _ = r.crc.Write(e.Value)
	switch string(e.Bucket) {
	case etcddb.KeyBucket:
		return r.entry(e)
	case etcddb.MetaBucket:
		if string(e.Key) == etcddb.StorageVersionKey {
			r.status.StorageVersion = string(etcddb.Clip(e.Value))
		}
	case etcddb.ClusterBucket:
		if string(e.Key) == etcddb.ClusterVersionKey {
			r.status.ClusterVersion = string(etcddb.Clip(e.Value))
		}
	}
	return nil
}

// entry reads one change of a key.
func (r *reader) entry(element etcddb.Element) error {
	e, err := etcddb.ParseEntry(element.Key, element.Value)
	if err != nil {
		return err
	}
	r.status.Revision = e.Main // entries are in the order of revisions
	r.status.Entries++
	sum := maphash.Bytes(r.seed, e.Key)
	if e.Tombstone {
		delete(r.live, sum)
	} else {
		r.live[sum] = struct{}{}
	}
	return nil
}
