package catalog

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

// errBudget is the cause of a Record that ran out of time.
type errBudget time.Duration

func (b errBudget) Error() string {
	return fmt.Sprintf("given up after %s: the API server is away or too slow", time.Duration(b))
}

// maxConflicts bounds how often an object is read again because somebody else wrote it meanwhile.
const maxConflicts = 10

// Record writes down what a verb did: the row of the run's own snapshot first, then the policy's status and Events, then
// all other rows. It goes on as far as it can: the error tells all that could not be written. An API server that is away
// is waited for as long as the budget lasts. The error is for the log alone: what is stored is stored.
//
// Concurrent calls for one policy, also from several nodes, do not undo each other.
func (c *Client) Record(ctx context.Context, report Report) error {
	budget := report.Budget
	if budget == 0 {
		budget = DefaultBudget
	}
	ctx, cancel := context.WithTimeoutCause(ctx, budget, errBudget(budget))
	defer cancel()
	r := &recorder{Client: c, report: &report, namespace: report.Policy.Namespace}
	if r.namespace == "" {
		r.namespace = c.namespace
	}
	live, err := r.readPolicy(ctx)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("record in the catalog: %w", err)
	}
	var known []string
	if live != nil {
		for _, d := range live.Spec.Destinations {
			known = append(known, d.Name)
		}
	}
	r.view = newView(&report, known)

	var errs []error
	step := func(what string, do func() error) {
		if context.Cause(ctx) != nil && len(errs) > 0 {
			return // the reason is among the errors
		}
		if err := do(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		}
	}
	if run := report.Run; run != nil && run.Manifest != nil {
		if _, stored := report.outcome(); len(stored) > 0 {
			step("write the row of "+run.Manifest.Name, func() error { return r.settle(ctx, run.Manifest.Name, nil) })
		}
	}
	if live == nil {
		errs = append(errs, fmt.Errorf("the API server has no policy %s/%s (any more): its status is not written", r.namespace, report.Policy.Name))
	} else {
		step("write the policy's status", func() error { return r.writeStatus(ctx, live) })
		step("write Events", func() error { return r.writeEvents(ctx, live) })
	}
	step("write rows", func() error { return r.reconcile(ctx) })
	if len(errs) > 0 {
		return fmt.Errorf("record in the catalog: %w", errors.Join(errs...))
	}
	return nil
}

// recorder is one call of Record.
type recorder struct {
	*Client
	report    *Report
	namespace string
	view      *view
}

// policy is what Record needs to know of the policy as it is now. Fields that a newer CRD may have added do not matter
// here, so it is read without the strictness of Client.Policy.
type policy struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		Destinations []struct {
			Name string `json:"name"`
		} `json:"destinations"`
	} `json:"spec"`
	Status v1.EtcdSnapshotPolicyStatus `json:"status"`
}

// readPolicy gives the policy as it is now; ErrNotFound also where another one has taken its name.
func (r *recorder) readPolicy(ctx context.Context) (*policy, error) {
	t := target{resource: v1.PolicyResource, namespace: r.namespace, name: r.report.Policy.Name}
	p := &policy{}
	if err := patiently(ctx, unlessGone, func() error { return r.get(ctx, t, p) }); err != nil {
		return nil, err
	}
	if uid := r.report.Policy.UID; uid != "" && p.Metadata.UID != uid {
		return nil, fmt.Errorf("get %s: %w: another policy has its name now", t, ErrNotFound)
	}
	return p, nil
}

// writeStatus writes the policy's status on top of live, which it reads again when somebody else wrote it meanwhile.
func (r *recorder) writeStatus(ctx context.Context, live *policy) error {
	verification, err := r.newestVerification(ctx)
	if err != nil {
		return err
	}
	t := target{resource: v1.PolicyResource, namespace: r.namespace, name: r.report.Policy.Name}
	for range maxConflicts {
		status := policyStatus(r.report, r.view, &live.Status, live.Metadata.Generation, verification)
		if same(status, live.Status) {
			return nil
		}
		err = putStatus(ctx, r.Client, t, v1.PolicyKind, live.Metadata.ResourceVersion, status)
		if !apierrors.IsConflict(err) {
			return err
		}
		if live, err = r.readPolicy(ctx); err != nil {
			return err
		}
	}
	return err
}

// newestVerification is the last verification of the newest snapshot, nil where there was none.
func (r *recorder) newestVerification(ctx context.Context) (*v1.VerificationStatus, error) {
	newest := r.view.newest()
	if newest.name == "" {
		return nil, nil
	}
	if done, ok := r.report.Verifications[newest.name]; ok {
		return &done, nil
	}
	row, err := r.readRow(ctx, newest.name)
	if err != nil || row == nil {
		return nil, err
	}
	return row.Status.Verification, nil
}

// putStatus writes a status, if the object is still the one of this resourceVersion, by server-side apply. Apply leaves
// alone what somebody else added to a list; a status is ours whole, so it is then replaced.
func putStatus[S any](ctx context.Context, c *Client, t target, kind, resourceVersion string, status S) error {
	t.subresource = "status"
	var got struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
		Status   S                 `json:"status"`
	}
	meta := appliedMeta{Name: t.name, Namespace: t.namespace, ResourceVersion: resourceVersion}
	err := patiently(ctx, unlessGone, func() error {
		return c.apply(ctx, t, applied{TypeMeta: typeMeta(kind), Metadata: meta, Status: status}, &got)
	})
	if err != nil || same(got.Status, status) {
		return err
	}
	return patiently(ctx, unlessGone, func() error {
		return c.patch(ctx, t, types.JSONPatchType, c.rest.Patch(types.JSONPatchType), []map[string]any{
			{"op": "test", "path": "/metadata/resourceVersion", "value": got.Metadata.ResourceVersion},
			{"op": "replace", "path": "/status", "value": status},
		}, nil)
	})
}
