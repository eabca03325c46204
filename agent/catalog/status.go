package catalog

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

// policyStatus gives the status that the policy ought to have, made of the one that it has. generation is the policy's,
// for a report that does not know which one it followed. verification is the newest snapshot's.
func policyStatus(r *Report, v *view, old *v1.EtcdSnapshotPolicyStatus, generation int64, verification *v1.VerificationStatus) v1.EtcdSnapshotPolicyStatus {
	status := *old.DeepCopy()
	if r.Policy.Generation != 0 {
		generation = r.Policy.Generation
	}
	if r.Run != nil {
		runStatus(r, &status, generation)
	}
	status.Destinations = nil
	listed := false
	for _, name := range v.known {
		before := v1.PolicyDestinationStatus{Name: name}
		if i := slices.IndexFunc(old.Destinations, func(d v1.PolicyDestinationStatus) bool { return d.Name == name }); i >= 0 {
			before = old.Destinations[i]
		}
		d := v.destination(name)
		if d != nil {
			listed = listed || d.Listed
			before = destinationStatus(r, d, before)
		}
		status.Destinations = append(status.Destinations, before)
	}
	if listed {
		status.Snapshots = new(int32)
		*status.Snapshots = int32(len(v.order))
	}
	newest := v.newest()
	if newest.name != "" {
		status.Size = formatBytes(newest.size)
	}
	switch {
	case verification != nil:
		c := verified(verification)
		c.Message = newest.name + " " + c.Message
		setCondition(&status.Conditions, c, generation)
	case newest.name != "":
		setCondition(&status.Conditions, metav1.Condition{Type: v1.ConditionVerified, Status: metav1.ConditionUnknown, Reason: reasonNotVerified,
			Message: newest.name + " was not verified yet"}, generation)
	}
	return status
}

// runStatus fills in what a run changes.
func runStatus(r *Report, status *v1.EtcdSnapshotPolicyStatus, generation int64) {
	run := r.Run
	if run.Schedule != "" {
		status.Schedule = run.Schedule
	}
	status.LastRunTime = seconds(run.Begin)
	status.LastDuration = &metav1.Duration{Duration: run.End.Sub(run.Begin).Round(10 * time.Millisecond)}
	reason, _ := r.outcome()
	ready := metav1.Condition{Type: v1.ConditionReady, Status: metav1.ConditionTrue, Reason: reason}
	if run.Err == nil {
		status.ConsecutiveFailures = 0
		if run.Manifest != nil {
			status.LastSuccessTime = seconds(run.Manifest.CreatedAt.Time)
			status.LastSnapshot = run.Manifest.Name
			ready.Message = run.Manifest.Name + " reached every required destination"
		}
	} else {
		status.ConsecutiveFailures++
		ready.Status, ready.Message = metav1.ConditionFalse, run.Err.Error()
	}
	setCondition(&status.Conditions, ready, generation)
}

func destinationStatus(r *Report, d *Destination, status v1.PolicyDestinationStatus) v1.PolicyDestinationStatus {
	if d.Listed {
		left := d.left()
		status.Snapshots, status.Bytes = int32(len(left)), 0
		for _, e := range left {
			status.Bytes += e.Size
		}
	}
	if r.Run != nil {
		status.Message = ""
		switch {
		case d.Err != nil:
			status.Message = d.Err.Error()
		case r.Run.Manifest != nil:
			status.LastSuccessTime = seconds(r.Run.Manifest.CreatedAt.Time)
		}
	}
	if d.PruneErr != nil && d.Err == nil {
		status.Message = fmt.Sprintf("stored, but old snapshots could not be removed: %v", d.PruneErr)
	}
	status.Message = shorten(status.Message, maxMessage)
	return status
}

// seconds is a time as the API server keeps it.
func seconds(t time.Time) *metav1.Time {
	s := metav1.NewTime(t.UTC().Truncate(time.Second))
	return &s
}

// same compares what would be written with what is there, as JSON: there, an empty list and none are one.
func same(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}
