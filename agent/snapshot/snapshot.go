// Package snapshot is one run of a policy: take a snapshot, prove it, store it in every destination side by side,
// and say what came of it.
//
// A snapshot passes through three hands, and each must be content before the next one sees it: etcd's own checksum
// is compared while the stream is drained into the spool; only then is anything published, and each store is asked
// whether what it holds is what was sent; only then is the manifest written that makes the snapshot exist.
package snapshot

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/destination"
	"etcdsnapshot.dev/agent/etcd"
	"etcdsnapshot.dev/agent/store"
)

// Request is what a run needs.
type Request struct {
	Policy     *v1.EtcdSnapshotPolicy
	Owner      destination.Owner
	Etcd       *etcd.Cluster
	Recipients []archive.Recipient
	// ExtrasRecipients open the extras of the policy, where it has some.
	ExtrasRecipients []archive.Recipient
	Destinations     []*destination.Destination
	// Unusable are the policy's destinations that could not be opened, by name.
	Unusable map[string]error
	// SpoolDir is the folder for the one local file of the run.
	SpoolDir string
	// Verified tells which snapshots passed their last verification; nil knows of none.
	Verified func(name string) bool
	// Node, AgentVersion and KubernetesVersion go into the manifest.
	Node, AgentVersion, KubernetesVersion string

	Log *slog.Logger
	// Progress is told how far a phase is, often and from several goroutines; nil is silence.
	Progress func(Progress)
	// Now and Random are the clock and the randomness of names; nil means the real ones.
	Now    func() time.Time
	Random io.Reader
}

// Progress says how far the run is.
type Progress struct {
	// Phase is "stream" or "store".
	Phase string
	// Done and Total are bytes: of the database while streaming, of all destinations together while storing.
	Done, Total int64
}

// Result is what a run made.
type Result struct {
	Manifest     *v1.Manifest `json:"manifest"`
	Endpoint     string       `json:"endpoint"`
	Destinations []Outcome    `json:"destinations"`
	// ExtrasErr is why the policy's extras could not be collected: the snapshot is stored without them.
	ExtrasErr error         `json:"-"`
	Took      time.Duration `json:"-"`
	// StreamTook is how long etcd had to hold its read transaction open.
	StreamTook time.Duration `json:"-"`
}

// Outcome is what became of the snapshot in one destination.
type Outcome struct {
	Name     string `json:"name"`
	URI      string `json:"uri,omitempty"`
	Required bool   `json:"required"`
	// Err is why it is not there; nil means that it is stored and checked.
	Err error `json:"-"`
	// Inventory is what the destination holds now, nil where it is not known.
	Inventory *destination.Inventory `json:"-"`
	// Pruned is what retention removed after the snapshot was stored, PruneErr why it could not remove the rest.
	Pruned   destination.Pruned `json:"-"`
	PruneErr error              `json:"-"`
	// KeptBecause are the rules that keep a snapshot, by its name; nil where there is no retention.
	KeptBecause map[string][]string `json:"-"`
}

// PartialError says that the snapshot is stored and checked somewhere, but not in every required destination.
type PartialError struct {
	Name   string
	Failed []Outcome
}

func (e *PartialError) Error() string {
	return fmt.Sprintf("snapshot %s is stored, but not in every required destination: %s", e.Name, describe(e.Failed))
}

func (e *PartialError) Unwrap() []error { return causes(e.Failed) }

// ExtrasError says that the snapshot is stored and checked, but without the policy's extras.
type ExtrasError struct {
	Name string
	Err  error
}

func (e *ExtrasError) Error() string {
	return fmt.Sprintf("snapshot %s is stored, but without its extras: %v", e.Name, e.Err)
}

func (e *ExtrasError) Unwrap() error { return e.Err }

// UnstoredError says that the snapshot is in no destination.
type UnstoredError struct{ Failed []Outcome }

func (e *UnstoredError) Error() string {
	return "no destination took the snapshot: " + describe(e.Failed)
}

func (e *UnstoredError) Unwrap() []error { return causes(e.Failed) }

func describe(os []Outcome) string {
	text := ""
	for i, o := range os {
		if i > 0 {
			text += "; "
		}
		text += o.Name + ": " + o.Err.Error()
	}
	return text
}

func causes(os []Outcome) []error {
	var errs []error
	for _, o := range os {
		errs = append(errs, o.Err)
	}
	return errs
}

// Run takes one snapshot. The result is not nil once the snapshot was proven, also when storing it failed somewhere.
// Errors: *destination.ForeignError and *etcd.ConfigError before anything was asked of etcd, *etcd.UnavailableError,
// *PartialError, *ExtrasError, *UnstoredError, the cause of ctx.
func Run(ctx context.Context, q Request) (*Result, error) {
	if q.Now == nil {
		q.Now = time.Now
	}
	if q.Random == nil {
		q.Random = rand.Reader
	}
	if q.Progress == nil {
		q.Progress = func(Progress) {}
	}
	begin := q.Now()
	outcomes, err := claim(ctx, q)
	if err != nil {
		return nil, err
	}
	if removed, err := archive.SweepSpool(q.SpoolDir); err != nil {
		q.Log.Warn("could not remove what a killed run left in the spool", "error", err)
	} else if len(removed) > 0 {
		q.Log.Info("removed what a killed run left in the spool", "files", removed)
	}

	res, spool, err := take(ctx, q, begin)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err := spool.Close(); err != nil {
			q.Log.Warn("could not remove the spool file; the next run does", "error", err)
		}
	}()
	res.Destinations = outcomes
	var extras store.Blob
	if wantsExtras(q, outcomes) {
		if res.Manifest.Extras, extras, res.ExtrasErr = collect(ctx, q, res.Manifest.Name); res.ExtrasErr != nil {
			q.Log.Error("extras cannot be collected; the snapshot is stored without them", "error", res.ExtrasErr)
		}
	}
	publish(ctx, q, res, spool, extras)
	res.Took = q.Now().Sub(begin)
	return res, verdict(ctx, res)
}

// claim opens each destination's folder as ours. What cannot be reached now is not tried again after the stream;
// the run goes on as long as one destination is left.
func claim(ctx context.Context, q Request) ([]Outcome, error) {
	outcomes := make([]Outcome, len(q.Policy.Spec.Destinations))
	byName := map[string]*destination.Destination{}
	for _, d := range q.Destinations {
		byName[d.Spec.Name] = d
	}
	var wg sync.WaitGroup
	for i, spec := range q.Policy.Spec.Destinations {
		o := &outcomes[i]
		o.Name, o.Required = spec.Name, spec.IsRequired()
		d, ok := byName[spec.Name]
		if !ok {
			o.Err = q.Unusable[spec.Name]
			continue
		}
		wg.Go(func() { o.Err = d.Claim(ctx, q.Owner) })
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	usable := 0
	for _, o := range outcomes {
		var foreign *destination.ForeignError
		if errors.As(o.Err, &foreign) {
			return nil, fmt.Errorf("destination %s: %w", o.Name, foreign)
		}
		if o.Err == nil {
			usable++
			continue
		}
		q.Log.Error("destination cannot be used", "destination", o.Name, "error", o.Err)
	}
	if usable == 0 {
		return nil, &UnstoredError{Failed: outcomes}
	}
	return outcomes, nil
}

// take streams a proven snapshot into the spool, from the first member that delivers one.
func take(ctx context.Context, q Request, begin time.Time) (*Result, *spooled, error) {
	members, err := q.Etcd.Members(ctx)
	if err != nil {
		return nil, nil, err
	}
	name, err := archive.NewName(q.Policy.Name, begin, q.Random)
	if err != nil {
		return nil, nil, err
	}
	var failed []error
	for _, m := range members {
		q.Log.Info("streaming snapshot", "endpoint", m.Endpoint, "member", fmt.Sprintf("%x", m.MemberID), "version", m.Version, "revision", m.Revision, "leader", m.Leader, "databaseBytes", m.DBSize)
		start := q.Now()
		spool, err := stream(ctx, q, name, m)
		if err == nil {
			took := q.Now().Sub(start)
			manifest, err := manifestOf(q, name, m, spool)
			if err != nil {
				spool.Close()
				return nil, nil, err
			}
			q.Log.Info("proven: etcd's checksum matches", "endpoint", m.Endpoint, "databaseBytes", spool.db.Size, "storedBytes", spool.blob.Size, "took", took.Round(time.Millisecond))
			return &Result{Manifest: manifest, Endpoint: m.Endpoint, StreamTook: took}, spool, nil
		}
		if cause := context.Cause(ctx); cause != nil {
			return nil, nil, cause
		}
		var local *localError
		if errors.As(err, &local) {
			return nil, nil, err // another member would not help
		}
		failed = append(failed, err)
		q.Log.Error("no snapshot from this member", "endpoint", m.Endpoint, "error", err)
	}
	return nil, nil, fmt.Errorf("take snapshot: %w", errors.Join(failed...))
}

// localError is a failure on our side of the stream: encoding, or writing the spool.
type localError struct{ err error }

func (e *localError) Error() string { return e.err.Error() }
func (e *localError) Unwrap() error { return e.err }

// IsLocal says that a run failed on this side of the stream: while encoding, or while writing the spool.
func IsLocal(err error) bool {
	var local *localError
	return errors.As(err, &local)
}

// localWriter marks the errors of w as ours, and counts.
type localWriter struct {
	w    io.Writer
	done int64
	tell func(done int64)
}

func (l *localWriter) Write(p []byte) (int, error) {
	n, err := l.w.Write(p)
	l.done += int64(n)
	l.tell(l.done)
	if err != nil {
		err = &localError{err}
	}
	return n, err
}

// spooled is a proven snapshot in the spool.
type spooled struct {
	*archive.Spool
	blob store.Blob
	db   etcd.Database
}

// stream drains one member's snapshot into the spool. The goroutine that reads from etcd only hashes; another one
// compresses, encrypts and writes, so that etcd's read transaction ends as soon as can be. A plain database has nothing
// to wait for but the system's memory: it is written as it comes.
func stream(ctx context.Context, q Request, name string, m etcd.Member) (_ *spooled, err error) {
	s := &spooled{}
	if s.Spool, err = archive.CreateSpool(q.SpoolDir, name); err != nil {
		return nil, &localError{err}
	}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	c := q.Policy.Spec.Compression
	plain := c.Algorithm == v1.CompressionNone && len(q.Recipients) == 0
	if plain {
		s.SkipHash() // the object is the database, whose hash is taken on the way
	}
	enc, err := archive.NewEncoder(s.Spool, archive.Options{Algorithm: c.Algorithm, Level: c.Level, Recipients: q.Recipients})
	if err != nil {
		return nil, &localError{err}
	}
	layers := []io.WriteCloser{enc}
	if !plain {
		layers = []io.WriteCloser{archive.NewPipe(ctx, enc, 0, 0), enc}
	}
	s.db, err = q.Etcd.Snapshot(ctx, m, &localWriter{w: layers[0], tell: func(done int64) {
		q.Progress(Progress{Phase: "stream", Done: done, Total: m.DBSize})
	}})
	for _, end := range layers {
		if cerr := end.Close(); err == nil && cerr != nil {
			err = &localError{cerr}
		}
	}
	if err != nil {
		return nil, err
	}
	if s.blob, err = s.Finish(); err != nil {
		return nil, &localError{err}
	}
	if plain {
		s.blob.SHA256 = s.db.SHA256
	}
	return s, nil
}

func manifestOf(q Request, name string, m etcd.Member, s *spooled) (*v1.Manifest, error) {
	parsed, ok := archive.ParseName(name)
	if !ok {
		return nil, fmt.Errorf("snapshot name %q is not well formed", name)
	}
	compression := q.Policy.Spec.Compression.Algorithm
	return &v1.Manifest{SchemaVersion: v1.ManifestSchemaVersion, Name: name, SnapshotFacts: v1.SnapshotFacts{
		Policy: q.Policy.Name, ClusterName: q.Owner.ClusterName, ClusterUID: q.Owner.ClusterUID,
		CreatedAt: metav1.NewTime(parsed.Time), Node: q.Node, AgentVersion: q.AgentVersion, KubernetesVersion: q.KubernetesVersion,
		Etcd: v1.SnapshotEtcd{
			ClusterID: fmt.Sprintf("%x", m.ClusterID), MemberID: fmt.Sprintf("%x", m.MemberID),
			Version: m.Version, StorageVersion: m.StorageVersion, Revision: m.Revision, RaftTerm: int64(m.RaftTerm), //nolint:gosec // terms are counted from 1
		},
		Database:    v1.DatabaseFacts{Size: s.db.Size, SHA256: fmt.Sprintf("%x", s.db.SHA256)},
		Object:      v1.ObjectFacts{Key: name + archive.Suffix(compression, len(q.Recipients) > 0), Size: s.blob.Size, SHA256: fmt.Sprintf("%x", s.blob.SHA256)},
		Compression: compression,
		Encryption:  archive.Facts(q.Recipients),
	}}, nil
}
