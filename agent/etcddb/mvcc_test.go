package etcddb

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"etcdsnapshot.dev/agent/archive"
)

// FuzzParseEntry compares with etcd's own decoder what it takes, and wants archive.ErrCorrupt for the rest.
func FuzzParseEntry(f *testing.F) {
	kv := &mvccpb.KeyValue{Key: []byte("/registry/pods/a/b"), Value: []byte("v"), CreateRevision: 3, ModRevision: 7, Version: 2, Lease: 9}
	value, err := proto.Marshal(kv)
	require.NoError(f, err)
	revision := []byte("\x00\x00\x00\x00\x00\x00\x00\x07_\x00\x00\x00\x00\x00\x00\x00\x01")
	f.Add(revision, value)
	f.Add(append(revision, 't'), value)
	f.Add(revision[:16], value)
	f.Add(revision, value[:7])
	f.Fuzz(func(t *testing.T, key, value []byte) {
		e, err := ParseEntry(key, value)
		if err != nil {
			require.ErrorIs(t, err, archive.ErrCorrupt)
			return
		}
		require.Equal(t, len(key) == 18, e.Tombstone)
		require.GreaterOrEqual(t, e.Main, int64(0))
		var theirs mvccpb.KeyValue
		if proto.Unmarshal(value, &theirs) == nil {
			require.Equal(t, []any{string(theirs.Key), string(theirs.Value), theirs.CreateRevision, theirs.Version},
				[]any{string(e.Key), string(e.Value), e.CreateRevision, e.Version})
		}
	})
}
