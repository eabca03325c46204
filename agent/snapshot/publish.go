package snapshot

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"etcdsnapshot.dev/agent/destination"
	"etcdsnapshot.dev/agent/store"
)

// publish stores the proven snapshot in every destination that was claimed, side by side.
func publish(ctx context.Context, q Request, res *Result, spool *spooled, extras store.Blob) {
	byName := map[string]*destination.Destination{}
	for _, d := range q.Destinations {
		byName[d.Spec.Name] = d
	}
	blob := spool.blob
	total := int64(0)
	for _, o := range res.Destinations {
		if o.Err == nil {
			total += blob.Size
		}
	}
	// One folder may keep the spool file itself. A second copy must be a copy: a damaged file would be damaged in both.
	keeper := slices.IndexFunc(res.Destinations, func(o Outcome) bool { return o.Err == nil && byName[o.Name].Spec.HostPath != nil })
	var done atomic.Int64
	var wg sync.WaitGroup
	for i := range res.Destinations {
		o := &res.Destinations[i]
		if o.Err != nil {
			continue
		}
		d := byName[o.Name]
		wg.Go(func() {
			b := blob
			tell := func(n int) {
				q.Progress(Progress{Phase: "store", Done: min(done.Add(int64(n)), total), Total: total})
			}
			b.ReaderAt, b.Flushed = &countedReader{r: blob.ReaderAt, tell: tell}, tell
			if i != keeper {
				b.File = nil
			}
			begin := time.Now()
			if o.Err = d.Publish(ctx, manifestFor(q, res.Manifest, o.Name), b, extras, q.Policy.Spec.Verification.AfterStore); o.Err != nil {
				q.Log.Error("destination did not take the snapshot", "destination", o.Name, "error", o.Err)
				return
			}
			o.URI = d.URI(res.Manifest.Object.Key)
			q.Log.Info("stored and checked", "destination", o.Name, "uri", o.URI, "bytes", blob.Size, "took", time.Since(begin).Round(time.Millisecond))
			tidy(ctx, q, d, o, res.Manifest.Name)
		})
	}
	wg.Wait()
}

// verdict is the error that a run with these outcomes ends with.
func verdict(ctx context.Context, res *Result) error {
	var failed, missed []Outcome
	for _, o := range res.Destinations {
		if o.Err != nil {
			failed = append(failed, o)
			if o.Required {
				missed = append(missed, o)
			}
		}
	}
	if len(failed) > 0 {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
	}
	switch {
	case len(failed) == len(res.Destinations):
		return &UnstoredError{Failed: failed}
	case len(missed) > 0:
		return &PartialError{Name: res.Manifest.Name, Failed: missed}
	case res.ExtrasErr != nil:
		return &ExtrasError{Name: res.Manifest.Name, Err: res.ExtrasErr}
	}
	return nil
}

// countedReader tells how much was read through it.
type countedReader struct {
	r    io.ReaderAt
	tell func(n int)
}

func (c *countedReader) ReadAt(p []byte, off int64) (int, error) {
	n, err := c.r.ReadAt(p, off)
	c.tell(n)
	return n, err
}

// tidy is what a run does in a destination that has the new snapshot: it lists it, removes what failed runs left, and
// prunes. Nothing here fails the run.
func tidy(ctx context.Context, q Request, d *destination.Destination, o *Outcome, name string) {
	log := q.Log.With("destination", d.Spec.Name)
	var err error
	if o.Inventory, err = d.Inventory(ctx); err != nil {
		log.Warn("could not list what is stored; nothing is pruned", "error", err)
		return
	}
	removed, err := d.Sweep(ctx, o.Inventory)
	if err != nil {
		log.Warn("could not remove what earlier runs left unfinished; it is not listed, and a later run tries again", "error", err)
	}
	if len(removed) > 0 {
		log.Info("removed what earlier runs left unfinished", "objects", removed)
	}
	if d.Spec.Retention == nil {
		return
	}
	if o.PruneErr = prune(ctx, q, d, o, name); o.PruneErr != nil {
		log.Warn("could not prune; a later run tries again", "error", o.PruneErr)
	}
	if len(o.Pruned.Protected) > 0 {
		log.Info("the store protects snapshots that retention lets go", "snapshots", o.Pruned.Protected)
	}
	if len(o.Pruned.Removed) > 0 {
		log.Info("pruned", "snapshots", o.Pruned.Removed)
		o.Inventory.Forget(o.Pruned.Removed)
	}
}

// prune applies retention. The new snapshot must be in the list: a store whose lists lag, or a folder that was
// exchanged under us, is no ground to remove anything on.
func prune(ctx context.Context, q Request, d *destination.Destination, o *Outcome, name string) error {
	if !slices.ContainsFunc(o.Inventory.Snapshots, func(e destination.Entry) bool { return e.Name == name }) {
		return fmt.Errorf("the list of %s does not show the snapshot that was just stored", d.Store)
	}
	if err := d.CheckMayRemove(ctx, q.Owner); err != nil {
		return err
	}
	plan, err := d.Plan(o.Inventory, q.Policy, q.Now(), q.Verified)
	if err != nil {
		return err
	}
	o.KeptBecause = map[string][]string{}
	for _, p := range plan {
		o.KeptBecause[p.Name] = p.Reasons
	}
	o.Pruned, err = d.Prune(ctx, o.Inventory, plan)
	return err
}
