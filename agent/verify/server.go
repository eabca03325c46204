package verify

import (
	"context"
	"fmt"
	"io"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/version"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/config"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/features"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"etcdsnapshot.dev/agent/etcddb"
	"etcdsnapshot.dev/agent/member"
)

// The one member of the throwaway cluster. Nothing listens at its URL and nothing is sent there: a cluster of one has
// nobody to talk to, and no listener is opened.
const (
	drillName = "drill"
	drillURL  = "http://127.0.0.1:2380"
)

const (
	// startTime bounds how long a cluster of one takes to elect itself.
	startTime = time.Minute
	// drillWAL is the size of the write-ahead log's files, in place of 64 MB: a throwaway etcd writes a few entries.
	drillWAL = 1 << 20
	// pageBytes is what a page of keys and values should come to. They are of very different sizes.
	pageBytes = 4 << 20
)

// drill restores, starts, and asks for everything. It runs in a process of its own, which etcd may end at any time.
func drill(request drillRequest, stderr io.Writer) (*Drill, error) {
	log := zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(stderr), zapcore.WarnLevel))
	wal.SegmentSizeBytes = drillWAL
	err := member.Make(member.Config{DataDir: request.DataDir, Name: drillName, InitialCluster: drillName + "=" + drillURL, Token: drillName}, log)
	if err != nil {
		return nil, fmt.Errorf("restore: %w", err)
	}
	urls, err := types.NewURLs([]string{drillURL})
	if err != nil {
		return nil, err
	}
	srv, err := etcdserver.NewServer(config.ServerConfig{
		Logger:                 log,
		Name:                   drillName,
		DataDir:                request.DataDir,
		PeerURLs:               urls,
		InitialPeerURLsMap:     types.URLsMap{drillName: urls},
		InitialClusterToken:    drillName,
		SnapshotCount:          etcdserver.DefaultSnapshotCount,
		SnapshotCatchUpEntries: etcdserver.DefaultSnapshotCatchUpEntries,
		BackendFreelistType:    bolt.FreelistMapType,
		TickMs:                 100,
		ElectionTicks:          10,
		PreVote:                true,
		QuotaBackendBytes:      -1, // none
		MaxTxnOps:              128,
		MaxRequestBytes:        1536 << 10,
		WarningApplyDuration:   time.Minute,
		AuthToken:              "simple",
		BcryptCost:             10,
		TokenTTL:               300,
		UnsafeNoFsync:          true, // nobody keeps it
		MaxLearners:            1,
		V2Deprecation:          config.V2DeprDefault,
		ServerFeatureGate:      features.NewDefaultServerFeatureGate(drillName, log),
	})
	if err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	// Before it starts: leases that expire while it runs change the revision.
	d := &Drill{EtcdVersion: version.Version, Revision: srv.KV().Rev()}
	srv.Start()
	defer srv.HardStop()
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	select {
	case <-srv.ReadyNotify():
	case <-srv.StopNotify():
		return nil, fmt.Errorf("start: it stopped by itself")
	case <-ctx.Done():
		return nil, fmt.Errorf("start: it has no leader after %s", startTime)
	}
	// A read that the member's log confirms, as every client's is.
	if err := srv.LinearizableReadNotify(ctx); err != nil {
		return nil, fmt.Errorf("ask for a consistent read: %w", err)
	}
	if err := readAll(srv.KV(), d); err != nil {
		return nil, err
	}
	hash, _, err := srv.KV().HashStorage().HashByRev(d.Revision)
	if err != nil {
		return nil, fmt.Errorf("ask for the hash at revision %d: %w", d.Revision, err)
	}
	d.HashKV = hash.Hash
	return d, nil
}

// readAll ranges over all keys, page by page, at the revision that the server began with.
func readAll(kv mvcc.KV, d *Drill) error {
	limit := int64(16)
	for from := []byte{0}; ; {
		page, err := kv.Range(context.Background(), from, []byte{}, mvcc.RangeOptions{Limit: limit, Rev: d.Revision})
		if err != nil {
			return fmt.Errorf("range from key %q at revision %d: %w", etcddb.Clip(from), d.Revision, err)
		}
		size := 0
		for _, pair := range page.KVs {
			d.Keys++
			d.add(pair.Key, pair.Value)
			size += len(pair.Key) + len(pair.Value)
		}
		if n := len(page.KVs); int64(n) < limit {
			d.finish()
			return nil
		} else {
			from = append(page.KVs[n-1].Key, 0)
		}
		switch {
		case size > pageBytes:
			limit = max(limit/2, 1)
		case size < pageBytes/4:
			limit = min(limit*2, 10_000)
		}
	}
}
