package catalog

import (
	"fmt"
	"slices"
	"strings"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/destination"
	"etcdsnapshot.dev/agent/units"
)

// view is what a report shows of the stores, in the order in which rows want it.
type view struct {
	report *Report
	// known are the names of all destinations of the policy as it is now; nil where the policy is gone.
	known []string
	// seen are the copies: by snapshot, then by destination.
	seen map[string]map[string]destination.Entry
	// order of the snapshots, newest first.
	order []destination.Entry
}

func newView(r *Report, known []string) *view {
	v := &view{report: r, known: known, seen: map[string]map[string]destination.Entry{}}
	for _, d := range r.Destinations {
		for _, e := range d.left() {
			if v.seen[e.Name] == nil {
				v.seen[e.Name] = map[string]destination.Entry{}
				v.order = append(v.order, e)
			}
			v.seen[e.Name][d.Name] = e
		}
	}
	slices.SortFunc(v.order, destination.NewestFirst)
	return v
}

// newest is the newest snapshot that is stored somewhere; its name is "" where none is.
func (v *view) newest() (newest struct {
	name string
	size int64
}) {
	if run := v.report.Run; run != nil && run.Manifest != nil {
		if _, stored := v.report.outcome(); len(stored) > 0 {
			newest.name, newest.size = run.Manifest.Name, run.Manifest.Object.Size
			return newest
		}
	}
	if len(v.order) > 0 {
		newest.name, newest.size = v.order[0].Name, v.order[0].Size
	}
	return newest
}

// destination finds what the report tells of a destination; nil if nothing.
func (v *view) destination(name string) *Destination {
	for i := range v.report.Destinations {
		if d := &v.report.Destinations[i]; d.Name == name {
			return d
		}
	}
	return nil
}

// names of all destinations that a row may tell of.
func (v *view) names(old []v1.SnapshotDestinationStatus) []string {
	names := slices.Clone(v.known)
	add := func(name string) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, d := range v.report.Destinations {
		add(d.Name)
	}
	if v.known == nil {
		for _, s := range old {
			add(s.Name)
		}
	}
	return names
}

// row gives the status that a snapshot's row ought to have, made of the one that it has. keep is false where the
// snapshot is gone from everywhere, and so must be its row.
func (v *view) row(name string, facts *v1.SnapshotFacts, generation int64, old *v1.EtcdSnapshotStatus) (status v1.EtcdSnapshotStatus, keep bool) {
	status = v1.EtcdSnapshotStatus{
		DatabaseSize: formatBytes(facts.Database.Size),
		StoredSize:   formatBytes(facts.Object.Size),
		Verification: old.Verification,
		Conditions:   slices.Clone(old.Conditions),
	}
	var stored []string
	for _, dest := range v.names(old.Destinations) {
		now, there := v.copy(name, facts, v.destination(dest), find(old.Destinations, dest))
		keep = keep || there
		if now == nil {
			continue
		}
		now.Name = dest
		status.Destinations = append(status.Destinations, *now)
		if now.Phase == v1.PhaseStored {
			stored = append(stored, dest)
		}
	}
	status.DestinationNames = strings.Join(stored, ",")
	if done, ok := v.report.Verifications[name]; ok {
		done.Time = metav1.NewTime(done.Time.UTC().Truncate(1e9))
		status.Verification = &done
	}
	v.setConditions(&status, generation)
	return status, keep
}

func find(copies []v1.SnapshotDestinationStatus, name string) *v1.SnapshotDestinationStatus {
	for i := range copies {
		if copies[i].Name == name {
			return &copies[i]
		}
	}
	return nil
}

// copy gives what a row ought to say of one copy, nil being nothing, and whether there is one, or may be one as far as
// can be seen from here.
func (v *view) copy(name string, facts *v1.SnapshotFacts, d *Destination, old *v1.SnapshotDestinationStatus) (now *v1.SnapshotDestinationStatus, there bool) {
	ours := v.report.Run != nil && v.report.Run.Manifest != nil && v.report.Run.Manifest.Name == name
	if d == nil || !d.Listed && !ours {
		return old, old == nil || old.Phase == v1.PhaseStored
	}
	if e, ok := v.seen[name][d.Name]; ok {
		now = &v1.SnapshotDestinationStatus{URI: d.URI + "/" + e.Key, Size: e.Size, Phase: v1.PhaseStored}
		if d.KeptBecause != nil {
			now.KeptBecause = d.KeptBecause[name]
		} else if old != nil {
			now.KeptBecause = old.KeptBecause
		}
		if e.Size != facts.Object.Size {
			now.Phase, now.Message = v1.PhaseFailed, fmt.Sprintf("damaged: the object has %d bytes, and its manifest says %d", e.Size, facts.Object.Size)
		}
		return now, true
	}
	switch {
	case slices.Contains(d.Pruned, name):
		return &v1.SnapshotDestinationStatus{Phase: v1.PhasePruned}, false
	case ours && d.Err != nil:
		return &v1.SnapshotDestinationStatus{Phase: v1.PhaseFailed, Message: shorten(d.Err.Error(), maxMessage)}, false
	case ours: // it is there, whatever was listed before it was
		return &v1.SnapshotDestinationStatus{URI: d.URI + "/" + facts.Object.Key, Size: facts.Object.Size, Phase: v1.PhaseStored}, true
	case old == nil:
		return nil, false
	case old.Phase != v1.PhaseStored:
		return old, false
	case d.NodeLocal && facts.Node != v.report.Node:
		return old, true // on another node's disk
	}
	return &v1.SnapshotDestinationStatus{URI: old.URI, Phase: v1.PhaseMissing, Message: "it was here and is not any more; this run did not remove it"}, false
}

func (v *view) setConditions(status *v1.EtcdSnapshotStatus, generation int64) {
	stored := metav1.Condition{Type: v1.ConditionStored, Status: metav1.ConditionTrue, Reason: reasonCopyStored, Message: "stored in " + status.DestinationNames}
	for _, c := range status.Destinations {
		// A destination that was not worked on counts as it is: its copy was judged before.
		if d := v.destination(c.Name); d != nil && !d.Required {
			continue
		}
		switch c.Phase {
		case v1.PhaseFailed, v1.PhaseMissing:
			stored.Status, stored.Reason, stored.Message = metav1.ConditionFalse, reasonCopyFailed, c.Name+": "+c.Message
			if c.Phase == v1.PhaseMissing {
				stored.Reason = reasonCopyMissing
			}
		}
	}
	setCondition(&status.Conditions, stored, generation)
	if status.Verification != nil {
		setCondition(&status.Conditions, verified(status.Verification), generation)
	}
}

// verified is the condition Verified that a verification makes.
func verified(v *v1.VerificationStatus) metav1.Condition {
	if v.Result == v1.VerificationPassed {
		return metav1.Condition{Type: v1.ConditionVerified, Status: metav1.ConditionTrue, Reason: reasonVerified,
			Message: fmt.Sprintf("passed at level %s", v.Level)}
	}
	return metav1.Condition{Type: v1.ConditionVerified, Status: metav1.ConditionFalse, Reason: ReasonVerificationFailed,
		Message: shorten(fmt.Sprintf("failed at level %s: %s", v.Level, v.Message), maxMessage)}
}

// setCondition follows the API conventions: lastTransitionTime changes with the status alone.
func setCondition(conditions *[]metav1.Condition, c metav1.Condition, generation int64) {
	c.ObservedGeneration = generation
	c.Message = shorten(c.Message, maxMessage)
	apimeta.SetStatusCondition(conditions, c)
}

// maxMessage bounds messages in a status, in bytes; the API's own limit of a condition's is 32 KiB.
const maxMessage = 2048

// shorten cuts a text to at most limit bytes, between two characters.
func shorten(text string, limit int) string { return units.Shorten(text, limit) }

// formatBytes gives a size as people read it, in binary units: 12.3 MiB.
func formatBytes(n int64) string { return units.Bytes(n) }
