package catalog

import (
	"cmp"
	"context"
	"slices"
	"time"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/destination"
)

// DefaultBudget bounds all that Record does. The snapshot is safe by then, and what is left over the next run does.
const DefaultBudget = time.Minute

// Report is what a verb has to write down. What it does not tell of stays as it was.
type Report struct {
	// Policy as the verb followed it: namespace, name, UID and generation are used.
	Policy *v1.EtcdSnapshotPolicy
	// Owner is whose folders the destinations are; what is empty in it is not known.
	Owner destination.Owner
	// Node that the verb ran on. Copies on other nodes' disks cannot be seen from here.
	Node string
	// Run is the run of the verb snapshot; nil of any other verb.
	Run *Run
	// Destinations that were worked on, in the policy's order.
	Destinations []Destination
	// Verifications that were made, by snapshot.
	Verifications map[string]v1.VerificationStatus
	// Manifest reads the manifest of a snapshot in a destination (given by name), for a row that is missing.
	Manifest func(ctx context.Context, destination, name string) (*v1.Manifest, error)
	// Budget is the time that Record may take; 0 means DefaultBudget.
	Budget time.Duration
}

// Run is one run of the verb snapshot.
type Run struct {
	// Schedule that started it, for people; "" keeps what the status says.
	Schedule string
	// Interval is the longest time between two runs of that schedule; 0 keeps what the status says.
	Interval   time.Duration
	Begin, End time.Time
	// Certificates that etcd was reached with; nil keeps what the status says.
	Certificates []v1.CertificateStatus
	// Manifest of the snapshot that was taken; nil where there is none.
	Manifest *v1.Manifest
	// Err is why the run did not reach every required destination; nil says that it did.
	Err error
}

// now is when what the report tells was done.
func (r *Report) now() time.Time {
	if r.Run != nil {
		return r.Run.End
	}
	return time.Now()
}

// verification is one entry of Report.Verifications.
type verification struct {
	v1.VerificationStatus
	snapshot string
	taken    time.Time
}

// byLevel gives the verifications of each level, the newest snapshot's first.
func (r *Report) byLevel() map[string][]verification {
	levels := map[string][]verification{}
	for name, done := range r.Verifications {
		parsed, _ := archive.ParseName(name)
		levels[done.Level] = append(levels[done.Level], verification{done, name, parsed.Time})
	}
	for _, vs := range levels {
		slices.SortFunc(vs, func(a, b verification) int {
			return cmp.Or(b.taken.Compare(a.taken), cmp.Compare(b.snapshot, a.snapshot))
		})
	}
	return levels
}

// Destination is what a verb did and saw in one destination.
type Destination struct {
	Name string
	// URI of the cluster's folder, without a slash at its end.
	URI      string
	Required bool
	// NodeLocal says that each node has a destination of its own under this name.
	NodeLocal bool
	// Err is why the run's snapshot is not here; nil says that it is stored and checked. It means nothing without a
	// Run with a Manifest.
	Err error

	// Listed says that Snapshots is what the destination holds of this policy, or held before Pruned were removed; false
	// where it was not asked or did not answer.
	Listed    bool
	Snapshots []destination.Entry
	// Pruned are the names of the snapshots that retention removed.
	Pruned []string
	// PruneErr is why retention could not remove all that it should have.
	PruneErr error
	// KeptBecause are the rules that keep a snapshot, by its name; nil where retention was not asked.
	KeptBecause map[string][]string
}

// left are the snapshots that are there now.
func (d *Destination) left() []destination.Entry {
	return slices.DeleteFunc(slices.Clone(d.Snapshots), func(e destination.Entry) bool { return slices.Contains(d.Pruned, e.Name) })
}

// outcome tells the three ways that a run can end by the words that Events and conditions use.
func (r *Report) outcome() (reason string, stored []string) {
	if r.Run.Manifest != nil {
		for _, d := range r.Destinations {
			if d.Err == nil {
				stored = append(stored, d.Name)
			}
		}
	}
	switch {
	case r.Run.Err == nil:
		return ReasonStored, stored
	case len(stored) > 0:
		return ReasonPartial, stored
	}
	return ReasonFailed, nil
}

// Reasons of Events and of the condition Ready.
const (
	ReasonStored             = "SnapshotStored"
	ReasonFailed             = "SnapshotFailed"
	ReasonPartial            = "SnapshotPartial"
	ReasonPruned             = "SnapshotsPruned"
	ReasonVerificationFailed = "VerificationFailed"
)

// Further reasons of conditions.
const (
	reasonCopyStored  = "Stored"
	reasonCopyFailed  = "Failed"
	reasonCopyMissing = "Missing"
	reasonVerified    = "VerificationPassed"
	reasonNotVerified = "NotVerified"
)
