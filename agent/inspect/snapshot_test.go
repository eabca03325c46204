package inspect

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcdsnapshot.dev/ci/etcdtest"
)

// TestAsEtcdAnswers: keys are written, overwritten, deleted and made again at random, some within one transaction, and etcd is
// compacted in the middle. At each revision that etcd still answers for, a snapshot is seen as etcd answers.
func TestAsEtcdAnswers(t *testing.T) {
	for _, version := range etcdtest.Versions {
		t.Run(version, func(t *testing.T) {
			cluster := etcdtest.Start(t, etcdtest.Options{Version: version})
			client, err := cluster.Client(0)
			require.NoError(t, err)
			defer client.Close()
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			rnd := rand.New(rand.NewPCG(seed, 1))
			key := func() string { return fmt.Sprintf("/k/%d", rnd.IntN(40)) }
			var compacted int64
			for i := range 400 {
				switch rnd.IntN(10) {
				case 0:
					_, err = client.Txn(t.Context()).Then(clientv3.OpPut("/k/a", fmt.Sprint(i)), clientv3.OpPut("/k/b", fmt.Sprint(i)), clientv3.OpDelete(key())).Commit()
				case 1, 2, 3:
					_, err = client.Delete(t.Context(), key())
				default:
					_, err = client.Put(t.Context(), key(), fmt.Sprint(i))
				}
				require.NoError(t, err)
				if i == 200 {
					r, err := client.Get(t.Context(), "/k/a")
					require.NoError(t, err)
					compacted = r.Header.Revision
					_, err = client.Compact(t.Context(), compacted, clientv3.WithCompactPhysical())
					require.NoError(t, err)
				}
			}
			last, err := client.Get(t.Context(), "/k/a")
			require.NoError(t, err)
			path := filepath.Join(t.TempDir(), "snapshot.db")
			require.NoError(t, cluster.SaveSnapshot(t.Context(), 0, path))

			for at := compacted; at <= last.Header.Revision; at++ {
				want, err := client.Get(t.Context(), "", clientv3.WithPrefix(), clientv3.WithRev(at), clientv3.WithSort(clientv3.SortByKey, clientv3.SortAscend))
				require.NoError(t, err)
				s, err := Open(t.Context(), path, Options{Revision: at})
				require.NoError(t, err)
				require.Equal(t, last.Header.Revision, s.Revision)
				require.Equal(t, compacted, s.Compacted)
				require.Equal(t, len(want.Kvs), s.Keys())
				i := 0
				require.NoError(t, s.each(t.Context(), func(_ int64, it Item) error {
					kv := want.Kvs[i]
					i++
					require.Equal(t, []any{string(kv.Key), string(kv.Value), kv.ModRevision, kv.CreateRevision, kv.Version},
						[]any{string(it.Key), string(it.Value), it.Revision, it.Created, it.Version})
					return nil
				}))
				require.NoError(t, s.Close())
			}
			// Before it, what was written at a revision is known only where it was not overwritten until the compaction.
			s, err := Open(t.Context(), path, Options{Revision: compacted - 1})
			require.NoError(t, err)
			defer s.Close()
			require.NoError(t, s.each(t.Context(), func(_ int64, it Item) error {
				require.Equal(t, compacted-1, it.Revision)
				return nil
			}))
		})
	}
}
