package cli

import (
	"context"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/catalog"
	"etcdsnapshot.dev/agent/destination"
	"etcdsnapshot.dev/agent/snapshot"
	"etcdsnapshot.dev/agent/verify"
)

// lastWordBudget bounds what an interrupted run still writes down: the kubelet kills the pod soon after.
const lastWordBudget = 5 * time.Second

// record writes down what a verb did, where there is an API server. It fails nothing: the next run repairs it.
func (l *loaded) record(ctx context.Context, e *env, report catalog.Report) {
	if l.client == nil {
		return
	}
	if ctx.Err() != nil {
		report.Budget = lastWordBudget
		ctx = context.WithoutCancel(ctx)
	}
	if err := l.client.Record(ctx, report); err != nil {
		e.log.Warn("the catalog is not up to date; what is stored is safe, and the next run repairs it", "error", err)
	}
}

// runReport says what a run of the verb snapshot did; res is nil where nothing was proven.
func runReport(l *loaded, opened []*destination.Destination, node string, res *snapshot.Result, run *catalog.Run) catalog.Report {
	report := catalog.Report{Policy: l.policy, Owner: l.owner, Node: node, Run: run, Manifest: manifests(opened)}
	byName := map[string]*destination.Destination{}
	for _, d := range opened {
		byName[d.Spec.Name] = d
	}
	outcomes := map[string]snapshot.Outcome{}
	if res != nil {
		run.Manifest = res.Manifest
		for _, o := range res.Destinations {
			outcomes[o.Name] = o
		}
	}
	for _, spec := range l.policy.Spec.Destinations {
		seen := catalog.Destination{Name: spec.Name, Required: spec.IsRequired(), NodeLocal: spec.HostPath != nil}
		if d, ok := byName[spec.Name]; ok {
			seen = reported(d)
		}
		if o, ok := outcomes[spec.Name]; ok {
			seen.Err, seen.Pruned, seen.PruneErr, seen.KeptBecause = o.Err, o.Pruned.Removed, o.PruneErr, o.KeptBecause
			if o.Inventory != nil {
				seen.Listed, seen.Snapshots = true, ofPolicy(o.Inventory, l.policy.Name)
			}
		}
		report.Destinations = append(report.Destinations, seen)
	}
	if res != nil && l.policy.Spec.Verification.AfterStore == v1.AfterStoreFull && slices.ContainsFunc(res.Destinations, func(o snapshot.Outcome) bool { return o.Err == nil }) {
		// Every byte was read back, which is what verify calls its first level.
		report.Verifications = map[string]v1.VerificationStatus{res.Manifest.Name: {
			Time: metav1.NewTime(run.End), Level: string(verify.LevelChecksum), Result: v1.VerificationPassed,
		}}
	}
	return report
}

// reported is what the catalog is told of every destination.
func reported(d *destination.Destination) catalog.Destination {
	return catalog.Destination{Name: d.Spec.Name, URI: d.Store.String(), Required: d.Spec.IsRequired(), NodeLocal: d.Spec.HostPath != nil}
}

func ofPolicy(inv *destination.Inventory, policy string) []destination.Entry {
	var es []destination.Entry
	for _, e := range inv.Snapshots {
		if e.Policy == policy {
			es = append(es, e)
		}
	}
	return es
}

// manifests reads manifests for rows that are missing.
func manifests(opened []*destination.Destination) func(ctx context.Context, destination, name string) (*v1.Manifest, error) {
	return func(ctx context.Context, destination, name string) (*v1.Manifest, error) {
		for _, d := range opened {
			if d.Spec.Name == destination {
				return d.Manifest(ctx, name)
			}
		}
		return nil, fmt.Errorf("destination %s is not open", destination)
	}
}
