package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"etcdsnapshot.dev/agent/destination"
	"etcdsnapshot.dev/agent/restore"
)

// sourceFlags say which snapshot is read, and from where without a policy.
type sourceFlags struct {
	policyFlags
	trustFlags
	latest            bool
	at, from, fromDir string
	identities        []string
	stall             time.Duration
}

// registerSource registers all but the flags of the policy.
func (f *sourceFlags) registerSource(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.BoolVar(&f.latest, "latest", false, "the newest snapshot")
	fl.StringVar(&f.at, "at", "", "the newest snapshot taken at or before this time: 2026-01-02T03:04:05Z, or 2026-01-02 03:04 in UTC")
	fl.StringVar(&f.from, "from", "", "a file instead of a policy's destination (- is stdin)")
	f.registerPlace(cmd)
}

// registerPlace registers what does not pick one snapshot.
func (f *sourceFlags) registerPlace(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.fromDir, "from-dir", "", "a folder of one cluster's snapshots instead of a policy's destination")
	fl.StringSliceVar(&f.identities, "identity", nil, "file with the age or SSH private key that opens encrypted snapshots (repeatable)")
	fl.DurationVar(&f.stall, "stall-timeout", time.Minute, "give up a download that makes no progress for this long")
	f.registerTrust(cmd)
}

// parseTime reads a time as people write it, in UTC where they do not say.
func parseTime(text string) (time.Time, bool) {
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02T15:04", time.DateTime, "2006-01-02 15:04", "20060102t150405z"} {
		if at, err := time.Parse(layout, text); err == nil {
			return at, true
		}
	}
	return time.Time{}, false
}

// selection is the snapshot as it was asked for.
func (f *sourceFlags) selection(name string) (restore.Selection, error) {
	s := restore.Selection{Name: name, Latest: f.latest}
	if f.at == "" {
		return s, nil
	}
	var ok bool
	if s.At, ok = parseTime(f.at); !ok {
		return s, usageErrorf("--at: %q is no time like 2026-01-02T03:04:05Z (or without the Z, in UTC)", f.at)
	}
	return s, nil
}

// request finds the snapshot and its copies; done closes what it opened.
func (f *sourceFlags) request(ctx context.Context, e *env, want restore.Selection, allowOtherCluster bool) (r restore.Request, done func(), err error) {
	done = func() {}
	r.Log = e.log
	if r.Identities, err = e.loadIdentities(f.identities); err != nil {
		return r, done, err
	}
	r.Progress = e.readProgress()
	trusted, err := f.trusted(nil)
	if err != nil {
		return r, done, err
	}
	if f.from == "-" {
		if trusted != nil {
			return r, done, usageErrorf("--verify-key: a snapshot from stdin has no signature beside it: name its file with --from")
		}
		r.Sources = []*restore.Source{restore.FromReader("stdin", e.stdin)}
		return r, done, nil
	}
	if f.from != "" {
		src, err := restore.FromFile(f.from, trusted)
		if err != nil {
			return r, done, &usageError{err}
		}
		r.Sources = []*restore.Source{src}
		return r, done, nil
	}
	s, err := f.survey(ctx, e)
	if err != nil {
		return r, done, err
	}
	row, err := restore.Choose(s.Survey, s.policy, want)
	if err != nil {
		return r, s.done, errors.Join(append([]error{err}, s.failures...)...)
	}
	s.warn(e)
	r.ClusterUID = s.owner.ClusterUID
	r.Sources, err = s.copies(ctx, row, f.stall, allowOtherCluster)
	return r, s.done, err
}

// readProgress shows how far copies were read, on a terminal.
func (e *env) readProgress() func(uri string, read, total int64) {
	if !e.status.terminal {
		return nil
	}
	meters := map[string]*meter{}
	return func(uri string, read, total int64) {
		if meters[uri] == nil {
			meters[uri] = newMeter("reading " + uri)
		}
		meters[uri].show(e.status, read, total)
	}
}

// surveyed is what the destinations of a policy, or a folder, hold.
type surveyed struct {
	*destination.Survey
	// policy whose snapshots are meant; empty where all are.
	policy   string
	owner    destination.Owner
	opened   []*destination.Destination
	failures []error
	done     func()
}

// survey lists the policy's destinations, or the folder.
func (f *sourceFlags) survey(ctx context.Context, e *env) (*surveyed, error) {
	s := &surveyed{done: func() {}}
	if f.fromDir != "" {
		d, err := restore.OpenFolder(f.fromDir, e.log)
		if err != nil {
			return nil, fmt.Errorf("--from-dir: %w", err)
		}
		if d.Trusted, err = f.trusted(nil); err != nil {
			return nil, err
		}
		s.opened = append(s.opened, d)
	} else {
		l, err := f.load(ctx, e)
		if err != nil {
			return nil, err
		}
		trusted, err := f.trusted(l.policy)
		if err != nil {
			return nil, err
		}
		var unusable map[string]error
		s.opened, unusable, s.done = l.open(ctx, destination.Options{StallTimeout: f.stall, Trusted: trusted, Log: e.log})
		s.failures, s.policy, s.owner = l.unusableErrors(unusable), l.policy.Name, l.owner
	}
	s.Survey = destination.Look(ctx, s.opened)
	for _, part := range s.Destinations {
		if part.Err != nil {
			s.failures = append(s.failures, fmt.Errorf("destination %s: %w", part.Destination.Spec.Name, part.Err))
		}
	}
	return s, nil
}

// warn tells what could not be read.
func (s *surveyed) warn(e *env) {
	for _, failure := range s.failures {
		e.log.Warn("this destination cannot be read; there may be newer snapshots, or another copy, in it", "error", failure)
	}
}

// copies gives the copies of a snapshot.
func (s *surveyed) copies(ctx context.Context, row destination.Row, stall time.Duration, allowOtherCluster bool) (sources []*restore.Source, err error) {
	for _, d := range s.opened {
		if _, ok := row.Copies[d.Spec.Name]; !ok {
			continue
		}
		if err := d.CheckOwner(ctx, s.owner); err != nil && !allowOtherCluster {
			return nil, fmt.Errorf("destination %s: %w (to restore another cluster's snapshot here all the same: --allow-other-cluster)", d.Spec.Name, err)
		}
		sources = append(sources, restore.FromDestination(d, row.Name, stall))
	}
	return sources, nil
}
