package restore

import (
	"context"
	"errors"
	"fmt"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/extras"
	"etcdsnapshot.dev/agent/verify"
)

// Extras fetches the extras of a snapshot from the first copy that has them and is whole. Errors are those of Prove, and
// ErrRefused where no copy has any.
func Extras(ctx context.Context, r Request) (entries []extras.Entry, from *Source, err error) {
	var errs []error
	for _, src := range r.Sources {
		entries, err := fetchExtras(ctx, r, src)
		if err == nil && entries != nil {
			return entries, src, nil
		}
		if ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
		if sameForAll(err) {
			return nil, nil, err
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) == 0 {
		return nil, nil, refusedf("this snapshot has no extras: the policy had no spec.extras when it was taken, or its extras went to a destination that was not asked")
	}
	return nil, nil, errors.Join(errs...)
}

// fetchExtras gives nil where the copy has none.
func fetchExtras(ctx context.Context, r Request, src *Source) ([]extras.Entry, error) {
	if src.OpenExtras == nil {
		return nil, nil
	}
	in, m, err := src.OpenExtras(ctx)
	if err != nil || in == nil {
		return nil, err
	}
	defer in.Close()
	var want *v1.ObjectFacts
	if m != nil {
		if err := checkCluster(r, src, m); err != nil {
			return nil, err
		}
		want = extrasOf(m)
	}
	entries, err := verify.Extras(ctx, in, want, r.Identities)
	if err != nil {
		return nil, fmt.Errorf("extras of %s: %w", src.URI, err)
	}
	return entries, nil
}
