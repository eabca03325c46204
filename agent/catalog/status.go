package catalog

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

// StatusAfter is the policy's status after what a report tells, where it was before; no API server is asked. known are the
// policy's destinations. Its condition Verified is left as it was.
func StatusAfter(r *Report, before *v1.EtcdSnapshotPolicyStatus, known []string) v1.EtcdSnapshotPolicyStatus {
	return policyStatus(r, newView(r, known), before, 0, nil)
}

// policyStatus gives the status that the policy ought to have, made of the one that it has. generation is the policy's,
// for a report that does not know which one it followed. verification is the newest snapshot's.
func policyStatus(r *Report, v *view, old *v1.EtcdSnapshotPolicyStatus, generation int64, verification *v1.VerificationStatus) v1.EtcdSnapshotPolicyStatus {
	status := *old.DeepCopy()
	if r.Policy.Generation != 0 {
		generation = r.Policy.Generation
	}
	status.ClusterName = cmp.Or(r.Owner.ClusterName, status.ClusterName)
	status.ClusterUID = cmp.Or(r.Owner.ClusterUID, status.ClusterUID)
	if r.Run != nil {
		runStatus(r, &status, generation)
	}
	for level, done := range r.byLevel() {
		levelStatus(&status, level, done)
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
		*status.Snapshots = int32(len(v.order)) //nolint:gosec // as many snapshots have no room anywhere
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
	status.LastDurationSeconds = strconv.FormatFloat(status.LastDuration.Seconds(), 'f', -1, 64)
	if run.Interval != 0 {
		status.ScheduleIntervalSeconds = int64(run.Interval.Seconds())
	}
	if len(run.Certificates) > 0 {
		status.Certificates = run.Certificates
	}
	reason, stored := r.outcome()
	status.LastResult = results[reason]
	if m := run.Manifest; m != nil && len(stored) > 0 {
		status.PreviousDatabaseBytes, status.PreviousRevision = status.DatabaseBytes, status.Revision
		status.DatabaseBytes, status.StoredBytes, status.Revision = m.Database.Size, m.Object.Size, m.Etcd.Revision
	}
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

// results are the ways that a run can end, in the words of the status.
var results = map[string]string{ReasonStored: v1.ResultSucceeded, ReasonPartial: v1.ResultPartial, ReasonFailed: v1.ResultFailed}

// levelStatus enters the verifications of one level.
func levelStatus(status *v1.EtcdSnapshotPolicyStatus, level string, done []verification) {
	i := slices.IndexFunc(status.Verifications, func(v v1.PolicyVerificationStatus) bool { return v.Level == level })
	if i < 0 {
		i = len(status.Verifications)
		status.Verifications = append(status.Verifications, v1.PolicyVerificationStatus{Level: level})
	}
	now := &status.Verifications[i]
	told := done[0]
	for _, v := range done { // newest first
		if v.Result == v1.VerificationFailed {
			told = v
			break
		}
	}
	now.Time, now.Snapshot, now.Result, now.Message = *seconds(told.Time.Time), told.snapshot, told.Result, shorten(told.Message, maxMessage)
	for _, v := range done {
		if v.Result != v1.VerificationPassed {
			continue
		}
		now.PassedTime = seconds(v.Time.Time)
		if taken := seconds(v.taken); now.PassedSnapshotTime == nil || !taken.Before(now.PassedSnapshotTime) {
			now.PassedSnapshot, now.PassedSnapshotTime = v.snapshot, taken
		}
		break
	}
	slices.SortFunc(status.Verifications, func(a, b v1.PolicyVerificationStatus) int { return strings.Compare(a.Level, b.Level) })
}

func destinationStatus(r *Report, d *Destination, status v1.PolicyDestinationStatus) v1.PolicyDestinationStatus {
	if i := slices.IndexFunc(r.Policy.Spec.Destinations, func(spec v1.Destination) bool { return spec.Name == d.Name }); i >= 0 {
		spec := &r.Policy.Spec.Destinations[i]
		required, retention := spec.IsRequired(), spec.Retention != nil
		status.Backend, status.Required, status.Retention = spec.Backend(), &required, &retention
	}
	if d.KeptBecause != nil && d.PruneErr == nil {
		pruned := int32(len(d.Pruned)) //nolint:gosec // as many snapshots have no room anywhere
		status.LastPruneTime, status.LastPruned = seconds(r.now()), &pruned
	}
	if d.Listed {
		left := d.left()
		status.Snapshots, status.Bytes = int32(len(left)), 0 //nolint:gosec // as many snapshots have no room anywhere
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
