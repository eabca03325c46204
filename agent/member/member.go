// Package member makes etcd members of databases: what `etcdutl snapshot restore` does, in place. The database is not
// copied, which is what takes the time of a restore and half of the room for it.
//
// What etcd expects of a data directory is in go.etcd.io/etcd/server/v3/etcdserver/bootstrap.go; what a restored one holds,
// in go.etcd.io/etcd/etcdutl/v3/snapshot, with whose result the tests compare ours.
package member

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/etcdserver/api/snap"
	"go.etcd.io/etcd/server/v3/etcdserver/cindex"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/protobuf/proto"
)

// Config says which member it becomes, in the terms of etcd's flags.
type Config struct {
	// DataDir of the member. WALDir is empty where the write-ahead log lies in it.
	DataDir, WALDir string
	Name            string
	// InitialCluster lists all members, this one too: name=url, comma-separated. Token is the new cluster's.
	InitialCluster, Token string
	// Bump is how far the revision is raised above Revision, which is the database's own; what was before counts as
	// compacted then. 0 leaves it.
	Bump, Revision int64
}

// term in which the new cluster's members are written to its log.
const term = 1

// Database is where in a data directory the database lies.
func Database(dataDir string) string { return filepath.Join(snapDir(dataDir), "db") }

func snapDir(dataDir string) string { return filepath.Join(dataDir, "member", "snap") }

// MakeRoom makes the folders of a data directory for the database, mode 0700.
func MakeRoom(dataDir string) error { return os.MkdirAll(snapDir(dataDir), 0o700) }

// TrimChecksum removes etcd's checksum from the end of the database in its place, whose size with it is given.
func TrimChecksum(dataDir string, size int64) error {
	if err := os.Truncate(Database(dataDir), size-sha256.Size); err != nil {
		return fmt.Errorf("remove etcd's checksum from the end of the database: %w", err)
	}
	return nil
}

// Make makes the first state of a member of the database that lies in its place (see Database), without etcd's checksum
// at its end, and that was checked: etcd's library may end the process over a damaged one. Where it fails, the database
// is of no use any more. What etcd's library cannot live with is an error.
func Make(c Config, log *zap.Logger) (err error) {
	log = log.WithOptions(zap.WithFatalHook(zapcore.WriteThenPanic))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("make a member of %s: etcd's library gave up: %v", Database(c.DataDir), r)
		}
	}()
	urls, err := types.NewURLsMap(c.InitialCluster)
	if err != nil {
		return fmt.Errorf("make a member: initial cluster: %w", err)
	}
	cluster, err := membership.NewClusterFromURLsMap(log, c.Token, urls)
	if err != nil {
		return fmt.Errorf("make a member: initial cluster: %w", err)
	}
	own := cluster.MemberByName(c.Name)
	if own == nil {
		return fmt.Errorf("make a member: %q is none of %s", c.Name, c.InitialCluster)
	}
	// One entry for each member, all of them committed.
	index := uint64(len(cluster.MemberIDs()))
	if err := enter(c, cluster, index, log); err != nil {
		return fmt.Errorf("make a member of %s: %w", Database(c.DataDir), err)
	}
	if err := writeLog(c, cluster, own.ID, index, log); err != nil {
		return fmt.Errorf("make a member of %s: write-ahead log: %w", Database(c.DataDir), err)
	}
	return nil
}

// enter writes the new cluster into the database in place of the old one, and raises the revision.
func enter(c Config, cluster *membership.RaftCluster, index uint64, log *zap.Logger) (err error) {
	be := backend.NewDefaultBackend(log, Database(c.DataDir))
	defer func() {
		// Close commits, and waits until it is on the disk.
		err = errors.Join(err, be.Close())
	}()
	members := schema.NewMembershipBackend(log, be)
	if err := members.TrimMembershipFromBackend(); err != nil {
		return fmt.Errorf("remove the old members: %w", err)
	}
	cluster.SetBackend(members)
	for _, m := range cluster.Members() {
		cluster.AddMember(m, true)
	}
	tx := be.BatchTx()
	if c.Bump > 0 {
		raise(tx, c.Revision+c.Bump)
	}
	cindex.UpdateConsistentIndexForce(tx, index, term)
	return nil
}

// raise makes revision the database's own, by an entry that no client sees, and has etcd compact what was before: whoever
// watches from an older one is told to list anew.
func raise(tx backend.BatchTx, revision int64) {
	tx.LockOutsideApply()
	defer tx.Unlock()
	tx.UnsafePut(schema.Key, mvcc.RevToBytes(mvcc.Revision{Main: revision}, mvcc.NewRevBytes()), nil)
	mvcc.UnsafeSetScheduledCompact(tx, revision)
}

// writeLog makes the write-ahead log and the snapshot that goes with it: they say that the members were added.
func writeLog(c Config, cluster *membership.RaftCluster, own types.ID, index uint64, log *zap.Logger) (err error) {
	dir := c.WALDir
	if dir == "" {
		dir = filepath.Join(c.DataDir, "member", "wal")
	}
	metadata, err := proto.Marshal(&etcdserverpb.Metadata{NodeID: new(uint64(own)), ClusterID: new(uint64(cluster.ID()))})
	if err != nil {
		return err
	}
	var entries []*raftpb.Entry
	voters := &raftpb.ConfState{}
	for i, id := range cluster.MemberIDs() {
		added, err := json.Marshal(cluster.Member(id))
		if err != nil {
			return err
		}
		change, err := proto.Marshal(&raftpb.ConfChange{Type: raftpb.ConfChangeAddNode.Enum(), NodeId: new(uint64(id)), Context: added})
		if err != nil {
			return err
		}
		entries = append(entries, &raftpb.Entry{Type: raftpb.EntryConfChange.Enum(), Term: new(uint64(term)), Index: new(uint64(i + 1)), Data: change})
		voters.Voters = append(voters.Voters, uint64(id))
	}
	w, err := wal.Create(log, dir, metadata)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if err := w.Save(&raftpb.HardState{Term: new(uint64(term)), Vote: new(voters.Voters[0]), Commit: &index}, entries); err != nil {
		return err
	}
	state := &raftpb.Snapshot{
		Data:     etcdserver.GetMembershipInfoInV2Format(log, cluster),
		Metadata: &raftpb.SnapshotMetadata{Index: &index, Term: new(uint64(term)), ConfState: voters},
	}
	if err := snap.New(log, snapDir(c.DataDir)).SaveSnap(state); err != nil {
		return err
	}
	return w.SaveSnapshot(&walpb.Snapshot{Index: &index, Term: new(uint64(term)), ConfState: voters})
}
