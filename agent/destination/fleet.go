package destination

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/store"
)

// Cluster is one cluster's folder, summed up.
type Cluster struct {
	// Name of the folder, which is the cluster's spec.clusterName.
	Name string
	// Snapshots that are stored whole, and the bytes of their data.
	Snapshots int
	Bytes     int64
	// Last is the newest of them that is not known to be corrupt; Proven the newest that passed a verification.
	Last, Proven *Entry
	// Corrupt names those that a verification found so, newest first.
	Corrupt []string
	// Unencrypted counts snapshots that age does not protect.
	Unencrypted int
	// Interval between two snapshots, as a rule; 0 where there are too few to tell.
	Interval time.Duration
	// Err is why the folder could not be listed. All but Name is then unknown.
	Err error
}

// folderReaders is how many clusters' folders are read at once. The time goes into a network file system's round trips.
const folderReaders = 8

// folderLister is a store whose folders can be read, and fail, each on its own.
type folderLister interface {
	Folders(ctx context.Context) ([]string, error)
}

// Clusters sums up the folder of every cluster in a place that was opened for no cluster, in lexical order of the keys.
// What is not a cluster's folder is passed by. It costs list calls only: a bucket is listed once from its beginning to
// its end, one cluster at a time in memory, which is far fewer requests than one list a cluster. An error ends the
// sequence; what came before it stands. A folder that cannot be read is told in its own Cluster.
func (d *Destination) Clusters(ctx context.Context) iter.Seq2[*Cluster, error] {
	if f, ok := d.Store.(folderLister); ok {
		return d.byFolder(ctx, f)
	}
	return d.inOneList(ctx)
}

func (d *Destination) inOneList(ctx context.Context) iter.Seq2[*Cluster, error] {
	return func(yield func(*Cluster, error) bool) {
		name, t := "", newTally()
		for o, err := range d.Store.List(ctx, "") {
			if err != nil {
				yield(nil, fmt.Errorf("list %s from %q on: %w", d.Store, name, err))
				return
			}
			folder, file, ok := strings.Cut(o.Key, "/")
			if !ok || !archive.IsClusterName(folder) {
				continue
			}
			if folder != name {
				if c := sumUp(name, t.inventory()); c != nil && !yield(c, nil) {
					return
				}
				name, t = folder, newTally()
			}
			o.Key = file
			t.add(o)
		}
		if c := sumUp(name, t.inventory()); c != nil {
			yield(c, nil)
		}
	}
}

func (d *Destination) byFolder(ctx context.Context, f folderLister) iter.Seq2[*Cluster, error] {
	return func(yield func(*Cluster, error) bool) {
		names, err := f.Folders(ctx)
		if err != nil {
			yield(nil, fmt.Errorf("list %s: %w", d.Store, err))
			return
		}
		// Such as lost+found, which only root may read.
		names = slices.DeleteFunc(names, func(name string) bool { return !archive.IsClusterName(name) })
		for names := range slices.Chunk(names, folderReaders) {
			clusters := make([]*Cluster, len(names))
			var wg sync.WaitGroup
			for i, name := range names {
				wg.Go(func() { clusters[i] = d.cluster(ctx, name) })
			}
			wg.Wait()
			if err := store.CtxErr(ctx); err != nil {
				yield(nil, fmt.Errorf("list %s: %w", d.Store, err))
				return
			}
			for _, c := range clusters {
				if c != nil && !yield(c, nil) {
					return
				}
			}
		}
	}
}

func (d *Destination) cluster(ctx context.Context, name string) *Cluster {
	folder, err := store.Prefixed(d.Store, name)
	if err != nil {
		return &Cluster{Name: name, Err: err}
	}
	inv, err := (&Destination{Spec: d.Spec, Store: folder, Log: d.Log}).Inventory(ctx)
	if err != nil {
		return &Cluster{Name: name, Err: err}
	}
	return sumUp(name, inv)
}

// sumUp gives nil for a folder that is no cluster's.
func sumUp(name string, inv *Inventory) *Cluster {
	if !inv.Claimed && len(inv.Snapshots)+len(inv.Orphans)+len(inv.Dangling) == 0 {
		return nil
	}
	c := &Cluster{Name: name, Snapshots: len(inv.Snapshots)}
	for _, e := range inv.Snapshots {
		c.Bytes += e.Size
		if !e.Encrypted() {
			c.Unencrypted++
		}
		switch p := e.Proof(); {
		case p.Corrupt:
			c.Corrupt = append(c.Corrupt, e.Name)
			continue
		case p.Level != "" && c.Proven == nil:
			c.Proven = &e
		}
		if c.Last == nil {
			c.Last = &e
		}
	}
	if c.Last != nil {
		c.Interval = interval(inv.Snapshots, c.Last.Policy)
	}
	return c
}

// recentGaps is how many of the newest gaps between snapshots tell how often a policy takes them.
const recentGaps = 8

// interval is the median of a policy's newest gaps, so that neither a missed run nor one by hand counts for much.
func interval(newestFirst []Entry, policy string) time.Duration {
	var gaps []time.Duration
	var later time.Time
	for _, e := range newestFirst {
		if e.Policy != policy {
			continue
		}
		taken := e.Snapshot().Taken()
		if !later.IsZero() {
			gaps = append(gaps, later.Sub(taken))
		}
		if later = taken; len(gaps) == recentGaps {
			break
		}
	}
	if len(gaps) < 2 {
		return 0
	}
	slices.Sort(gaps)
	return gaps[len(gaps)/2]
}

// Age of a snapshot. A node whose clock is ahead must not make it look fresh for ever, so the store's clock counts where
// it says that the snapshot is older than its name does.
func (e Entry) Age(now time.Time) time.Duration {
	at := e.Time
	if !e.Stored.IsZero() && e.Stored.Before(at) {
		at = e.Stored
	}
	return now.Sub(at)
}

// Limits say which cluster is stale.
type Limits struct {
	// MaxAge of the last snapshot; 0 takes it from the cluster's own interval.
	MaxAge time.Duration
	// MaxProvenAge of the last proven snapshot; 0 does not ask for one.
	MaxProvenAge time.Duration
}

// Where a cluster's own interval is what counts, one run may be missed and the next may take an hour.
const (
	missedRuns  = 2
	runTime     = time.Hour
	unknownPace = 25 * time.Hour
)

// maxAge is the age at which the cluster's last snapshot is too old.
func (l Limits) maxAge(c *Cluster) time.Duration {
	switch {
	case l.MaxAge > 0:
		return l.MaxAge
	case c.Interval > 0:
		return missedRuns*c.Interval + runTime
	}
	return unknownPace
}

// Stale says why the cluster's backups are too old; nothing where they are not, or where Err says that nobody knows.
func (c *Cluster) Stale(l Limits, now time.Time) (reasons []string) {
	if c.Err != nil {
		return nil
	}
	limit := l.maxAge(c).Round(time.Minute)
	switch {
	case c.Last == nil:
		return []string{"no good snapshot"}
	case c.Last.Age(now) > limit:
		reasons = append(reasons, fmt.Sprintf("the last snapshot is older than %s", span(limit)))
	}
	switch {
	case l.MaxProvenAge == 0:
	case c.Proven == nil:
		reasons = append(reasons, "none is proven")
	case c.Proven.Age(now) > l.MaxProvenAge:
		reasons = append(reasons, fmt.Sprintf("the last proven snapshot is older than %s", span(l.MaxProvenAge)))
	}
	return reasons
}

// span writes 25h0m0s as 25h.
func span(d time.Duration) string {
	text := strings.TrimSuffix(d.String(), "0s")
	if text != d.String() && strings.HasSuffix(text, "h0m") {
		return strings.TrimSuffix(text, "0m")
	}
	return text
}
