package catalog

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

// maxNote bounds the text of an Event, in bytes (events.k8s.io/v1, field note).
const maxNote = 1024

// maxNames bounds how many snapshots an Event names.
const maxNames = 5

const (
	eventNormal  = "Normal"
	eventWarning = "Warning"
)

// note is one thing to tell.
type note struct{ kind, reason, text string }

// event is a core/v1 Event, as far as it is needed: the whole type would bring all of the API's types into the program.
type event struct {
	metav1.TypeMeta    `json:",inline"`
	Metadata           appliedMeta       `json:"metadata"`
	InvolvedObject     map[string]string `json:"involvedObject"`
	Type               string            `json:"type"`
	Reason             string            `json:"reason"`
	Message            string            `json:"message"`
	Count              int32             `json:"count"`
	FirstTimestamp     metav1.Time       `json:"firstTimestamp"`
	LastTimestamp      metav1.Time       `json:"lastTimestamp"`
	Source             map[string]string `json:"source"`
	ReportingComponent string            `json:"reportingComponent"`
	ReportingInstance  string            `json:"reportingInstance"`
}

// notes are the Events of a report.
func (r *Report) notes(v *view) []note {
	var notes []note
	if r.Run != nil {
		notes = append(notes, r.runNote())
	}
	var pruned, failed []string
	n := 0
	for _, d := range r.Destinations {
		if len(d.Pruned) > 0 {
			n += len(d.Pruned)
			pruned = append(pruned, d.Name+": "+someOf(d.Pruned))
		}
	}
	if n > 0 {
		notes = append(notes, note{eventNormal, ReasonPruned, fmt.Sprintf("removed %d that no retention rule keeps from %s", n, strings.Join(pruned, "; "))})
	}
	for _, name := range slices.Sorted(maps.Keys(r.Verifications)) {
		if done := r.Verifications[name]; done.Result == v1.VerificationFailed {
			failed = append(failed, fmt.Sprintf("%s at level %s: %s", name, done.Level, done.Message))
		}
	}
	if len(failed) > 0 {
		notes = append(notes, note{eventWarning, ReasonVerificationFailed, "did not pass its verification: " + someOf(failed)})
	}
	return notes
}

func (r *Report) runNote() note {
	reason, stored := r.outcome()
	if r.Run.Err != nil {
		return note{eventWarning, reason, r.Run.Err.Error()}
	}
	text := "the run ended without a snapshot to store"
	if m := r.Run.Manifest; m != nil {
		text = fmt.Sprintf("stored %s (revision %d, %s) in %s", m.Name, m.Etcd.Revision, formatBytes(m.Object.Size), strings.Join(stored, ", "))
	}
	for _, d := range r.Destinations {
		if d.Err != nil {
			text += fmt.Sprintf("; not in %s, which is not required: %v", d.Name, d.Err)
		}
	}
	return note{eventNormal, reason, text}
}

func someOf(all []string) string {
	if more := len(all) - maxNames; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:maxNames], ", "), more)
	}
	return strings.Join(all, ", ")
}

func (r *recorder) writeEvents(ctx context.Context, live *policy) error {
	var errs []error
	for _, n := range r.report.notes(r.view) {
		if err := r.writeEvent(ctx, live, n); err != nil {
			errs = append(errs, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// writeEvent makes an Event or, while there is one with this reason, counts it up and gives it the new text: a policy that
// fails each minute has one Event and not sixty. No right to read Events is needed.
func (r *recorder) writeEvent(ctx context.Context, live *policy, n note) error {
	now := metav1.NewTime(time.Now().UTC().Truncate(time.Second))
	text := shorten(n.text, maxNote)
	t := target{core: true, resource: "events", namespace: r.namespace, name: eventName(live, n.reason)}
	var there event
	err := patiently(ctx, unlessGone, func() error {
		return r.merge(ctx, t, map[string]any{"type": n.kind, "message": text, "lastTimestamp": now}, &there)
	})
	if err == nil {
		return patiently(ctx, unlessGone, func() error { return r.merge(ctx, t, map[string]any{"count": there.Count + 1}, nil) })
	}
	if !errors.Is(err, ErrNotFound) {
		return err
	}
	made := event{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		Metadata: appliedMeta{Name: t.name, Namespace: r.namespace},
		InvolvedObject: map[string]string{
			"apiVersion": v1.GroupVersion.String(), "kind": v1.PolicyKind, "namespace": r.namespace,
			"name": live.Metadata.Name, "uid": string(live.Metadata.UID),
		},
		Type: n.kind, Reason: n.reason, Message: text, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Source:             map[string]string{"component": fieldManager, "host": r.report.Node},
		ReportingComponent: fieldManager, ReportingInstance: r.report.Node,
	}
	return patiently(ctx, unlessGone, func() error {
		return r.create(ctx, target{core: true, resource: t.resource, namespace: t.namespace}, made)
	})
}

// eventName is the same for all Events of one policy and one reason.
func eventName(live *policy, reason string) string {
	h := fnv.New64a()
	h.Write([]byte(string(live.Metadata.UID) + "/" + reason))
	return fmt.Sprintf("%s.%016x", live.Metadata.Name, h.Sum64())
}
