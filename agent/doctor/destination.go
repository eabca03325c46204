package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/destination"
	"etcdsnapshot.dev/agent/store"
)

// checkDestination opens a destination as a run does, looks whose folder it is, and tries out what we may do there.
func (r *run) checkDestination(ctx context.Context, spec v1.Destination) []Finding {
	const name = "destination"
	d, err := destination.Open(ctx, spec, r.Owner.ClusterName, destination.Options{Create: true, Log: r.Log})
	if err != nil {
		return []Finding{r.unusable(spec, err)}
	}
	defer d.Close()
	if err := d.CheckOwner(ctx, r.Owner); err != nil {
		var foreign *destination.ForeignError
		if errors.As(err, &foreign) {
			return []Finding{failed("owner", spec.Name, err, "Give this cluster a clusterName or a prefix of its own. Nothing is written there until then.")}
		}
		if !errors.Is(err, store.ErrAccessDenied) {
			return []Finding{r.unusable(spec, err)}
		}
		// What else is denied is found out below.
	}
	t := store.TryOut(ctx, d.Store)
	var found []Finding
	if errs := t.Errs(); len(errs) > 0 {
		f := r.unusable(spec, &trialError{t, errs})
		if t.Left() && len(errs) == 1 && spec.Retention == nil {
			// A run works without the right to delete where it never prunes.
			f.Result, f.Err = Warn, nil
		}
		if t.Left() {
			f.Remedy += fmt.Sprintf(" Remove %s by hand.", d.URI(t.Key))
			if errors.Is(t.Delete, store.ErrProtected) {
				f = ok(name, spec.Name, "%s: list, put, read, check; the store protects what is there from being deleted for a while", d.Store)
			}
		}
		found = append(found, f)
	} else {
		found = append(found, ok(name, spec.Name, "%s: list, put, read, check and delete work", d.Store))
	}
	if !t.Stored.IsZero() {
		found = append(found, clock(spec.Name, ahead(t.Began, t.Ended, t.Stored)))
	}
	return found
}

// unusable words the failure of a destination, which only warns where the policy does not require it.
func (r *run) unusable(spec v1.Destination, err error) Finding {
	f := failed("destination", spec.Name, err, "Correct what the message names; what is missing is said there by the provider's own word for it.")
	if errors.Is(err, store.ErrAccessDenied) {
		f.Remedy = "Grant what is denied. Retention needs the right to delete."
	}
	if !spec.IsRequired() {
		f.Result, f.Err = Warn, nil
	}
	return f
}

// trialError tells what worked and what did not.
type trialError struct {
	t    *store.Trial
	errs []error
}

func (e *trialError) Error() string {
	var works, denied []string
	for _, step := range []struct {
		name string
		err  error
	}{{"list", e.t.List}, {"put", e.t.Put}, {"read", e.t.Get}, {"check", e.t.Check}, {"delete", e.t.Delete}} {
		switch {
		case step.err == nil:
			works = append(works, step.name)
		case !errors.Is(step.err, store.ErrNotTried):
			denied = append(denied, step.name)
		}
	}
	text := strings.Join(denied, ", ") + " failed"
	if len(works) > 0 {
		text += " (" + strings.Join(works, ", ") + " worked)"
	}
	var said []string
	for _, err := range e.errs {
		if !slices.Contains(said, err.Error()) {
			said = append(said, err.Error())
		}
	}
	return text + ": " + strings.Join(said, "; ")
}

func (e *trialError) Unwrap() []error { return e.errs }
