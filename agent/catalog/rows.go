package catalog

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

// Labels of rows.
const (
	// LabelPolicy is the name of the policy.
	LabelPolicy = "etcdsnapshot.dev/policy"
	// LabelNode is the name of the node that the snapshot was taken on, where it is short enough for a label.
	LabelNode = "etcdsnapshot.dev/node"
)

const (
	// pageSize is how many rows a list call asks for.
	pageSize = 500
	// writers is how many rows are written at once.
	writers = 4
)

// applied is an object of ours as it is sent.
type applied struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        appliedMeta       `json:"metadata"`
	Spec            *v1.SnapshotFacts `json:"spec,omitempty"`
	Status          any               `json:"status,omitempty"`
}

type appliedMeta struct {
	Name            string            `json:"name"`
	Namespace       string            `json:"namespace"`
	Labels          map[string]string `json:"labels,omitempty"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
}

func typeMeta(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: v1.GroupVersion.String(), Kind: kind}
}

func rowLabels(facts *v1.SnapshotFacts) map[string]string {
	labels := map[string]string{LabelPolicy: facts.Policy}
	if facts.Node != "" && len(validation.IsValidLabelValue(facts.Node)) == 0 {
		labels[LabelNode] = facts.Node
	}
	return labels
}

// Rows yields the rows of a policy, in no order. An API server that is away is an error at once.
func (c *Client) Rows(ctx context.Context, namespace, policy string) iter.Seq2[*v1.EtcdSnapshot, error] {
	if namespace == "" {
		namespace = c.namespace
	}
	return func(yield func(*v1.EtcdSnapshot, error) bool) {
		ctx, cancel := context.WithTimeoutCause(ctx, DefaultBudget, errBudget(DefaultBudget))
		defer cancel()
		for row, err := range c.rows(ctx, namespace, policy, isStatus) {
			if !yield(row, err) {
				return
			}
		}
	}
}

// IsVerified tells whether the snapshot of a row passed its last verification.
func IsVerified(row *v1.EtcdSnapshot) bool {
	return row.Status.Verification != nil && row.Status.Verification.Result == v1.VerificationPassed
}

// rows yields the rows of a policy, one page at a time. A row whose label somebody removed is found, too.
func (c *Client) rows(ctx context.Context, namespace, policy string, worth func(error) bool) iter.Seq2[*v1.EtcdSnapshot, error] {
	t := target{resource: v1.SnapshotResource, namespace: namespace}
	return func(yield func(*v1.EtcdSnapshot, error) bool) {
		for _, selector := range []string{LabelPolicy + "=" + policy, "!" + LabelPolicy} {
			for next := ""; ; {
				var page v1.EtcdSnapshotList
				err := patiently(ctx, worth, func() error {
					r := c.rest.Get().Param("labelSelector", selector).Param("limit", strconv.Itoa(pageSize))
					if next != "" {
						r = r.Param("continue", next)
					}
					return c.do(ctx, "list", t, r, &page)
				})
				if err != nil {
					yield(nil, err)
					return
				}
				for i := range page.Items {
					if row := &page.Items[i]; row.Spec.Policy == policy && !yield(row, nil) {
						return
					}
				}
				if next = page.Continue; next == "" {
					break
				}
			}
		}
	}
}

func (r *recorder) rowTarget(name string) target {
	return target{resource: v1.SnapshotResource, namespace: r.namespace, name: name}
}

// readRow gives a row; nil where there is none.
func (r *recorder) readRow(ctx context.Context, name string) (*v1.EtcdSnapshot, error) {
	row := &v1.EtcdSnapshot{}
	err := patiently(ctx, unlessGone, func() error { return r.get(ctx, r.rowTarget(name), row) })
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return row, nil
}

// reconcile brings all rows in line with what was seen: those that differ are written, those whose snapshot is gone are
// removed, and those that are missing are made of the manifests, newest first.
func (r *recorder) reconcile(ctx context.Context) error {
	listed := false
	for _, d := range r.report.Destinations {
		listed = listed || d.Listed
	}
	if !listed && len(r.report.Verifications) == 0 {
		return nil // nothing was seen that a row could differ from
	}
	crew := newCrew(ctx)
	has := map[string]bool{}
	for row, err := range r.rows(crew.ctx, r.namespace, r.report.Policy.Name, unlessGone) {
		if err != nil {
			crew.fail(err)
			break
		}
		has[row.Name] = true
		crew.do(func(ctx context.Context) error { return r.settle(ctx, row.Name, row) })
	}
	for _, e := range r.view.order {
		if !has[e.Name] {
			crew.do(func(ctx context.Context) error { return r.settle(ctx, e.Name, nil) })
		}
	}
	return crew.wait()
}

// settle brings one row in line. row is the one that is there, nil being none that is known of.
func (r *recorder) settle(ctx context.Context, name string, row *v1.EtcdSnapshot) error {
	var err error
	for range maxConflicts {
		if row, err = r.trueRow(ctx, name, row); err != nil || row == nil {
			return err
		}
		status, keep := r.view.row(name, &row.Spec, row.Generation, &row.Status)
		if !keep {
			err = patiently(ctx, unlessGone, func() error { return r.remove(ctx, r.rowTarget(name), row.ResourceVersion) })
		} else {
			err = r.writeRow(ctx, row, status)
		}
		if !apierrors.IsConflict(err) && !errors.Is(err, ErrNotFound) {
			return err
		}
		if row, err = r.readRow(ctx, name); err != nil {
			return err
		}
	}
	return err
}

// trueRow makes sure that there is a row and that it tells the truth about the snapshot: one is made of the manifest
// where there is none, and one that somebody made up is replaced. It gives nil where there is nothing to make one of.
func (r *recorder) trueRow(ctx context.Context, name string, row *v1.EtcdSnapshot) (*v1.EtcdSnapshot, error) {
	copies := r.view.seen[name]
	if row != nil {
		doubtful := false
		for _, e := range copies {
			doubtful = doubtful || e.Key != row.Spec.Object.Key || e.Size != row.Spec.Object.Size
		}
		if !doubtful {
			return row, nil
		}
	}
	m, err := r.manifest(ctx, name)
	if err != nil && row == nil {
		return nil, fmt.Errorf("make the row of %s: %w", name, err)
	}
	if m == nil || row != nil && same(m.SnapshotFacts, row.Spec) {
		return row, nil
	}
	t := r.rowTarget(name)
	made := &v1.EtcdSnapshot{}
	try := func() error {
		return r.apply(ctx, t, applied{TypeMeta: typeMeta(v1.SnapshotKind), Metadata: appliedMeta{Name: name, Namespace: r.namespace, Labels: rowLabels(&m.SnapshotFacts)}, Spec: &m.SnapshotFacts}, made)
	}
	err = patiently(ctx, unlessGone, try)
	if !apierrors.IsInvalid(err) {
		return made, err
	}
	// Facts do not change, so what is there under this name is not ours.
	there, rerr := r.readRow(ctx, name)
	if rerr != nil || there == nil {
		return nil, errors.Join(err, rerr)
	}
	if err := patiently(ctx, unlessGone, func() error { return r.remove(ctx, t, there.ResourceVersion) }); err != nil {
		return nil, err
	}
	*made = v1.EtcdSnapshot{}
	return made, patiently(ctx, unlessGone, try)
}

// manifest reads the manifest of a snapshot from the first destination that gives it; nil where no destination has it.
func (r *recorder) manifest(ctx context.Context, name string) (*v1.Manifest, error) {
	if run := r.report.Run; run != nil && run.Manifest != nil && run.Manifest.Name == name {
		return run.Manifest, nil
	}
	var errs []error
	for _, d := range r.report.Destinations {
		if _, ok := r.view.seen[name][d.Name]; !ok || r.report.Manifest == nil {
			continue
		}
		m, err := r.report.Manifest(ctx, d.Name, name)
		if err == nil {
			return m, nil
		}
		errs = append(errs, fmt.Errorf("destination %s: %w", d.Name, err))
	}
	return nil, errors.Join(errs...)
}

func (r *recorder) writeRow(ctx context.Context, row *v1.EtcdSnapshot, status v1.EtcdSnapshotStatus) error {
	t := r.rowTarget(row.Name)
	labels := rowLabels(&row.Spec)
	for k, v := range labels {
		if row.Labels[k] == v {
			continue
		}
		patch := map[string]any{"metadata": map[string]any{"labels": labels, "resourceVersion": row.ResourceVersion}}
		row = &v1.EtcdSnapshot{}
		if err := patiently(ctx, unlessGone, func() error { return r.merge(ctx, t, patch, row) }); err != nil {
			return err
		}
		break
	}
	if same(status, row.Status) {
		return nil
	}
	return putStatus(ctx, r.Client, t, v1.SnapshotKind, row.ResourceVersion, status)
}

// crew does jobs, a few at once. A job that fails does not stop the others, unless they would fail for the same reason.
type crew struct {
	ctx    context.Context
	stop   context.CancelFunc
	places chan struct{}
	group  sync.WaitGroup

	mu    sync.Mutex
	left  int
	first error
}

func newCrew(ctx context.Context) *crew {
	c := &crew{places: make(chan struct{}, writers)}
	c.ctx, c.stop = context.WithCancel(ctx)
	return c
}

func (c *crew) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left++
	if c.first == nil {
		c.first = err
	}
	var config *ConfigError
	if errors.As(err, &config) {
		c.stop()
	}
}

// do waits for a place and does job there.
func (c *crew) do(job func(ctx context.Context) error) {
	select {
	case <-c.ctx.Done():
		c.fail(context.Cause(c.ctx))
		return
	case c.places <- struct{}{}:
	}
	c.group.Go(func() {
		defer func() { <-c.places }()
		if err := job(c.ctx); err != nil {
			c.fail(err)
		}
	})
}

// wait gives the first failure, and how much is left undone.
func (c *crew) wait() error {
	c.group.Wait()
	c.stop()
	if c.first == nil {
		return nil
	}
	return fmt.Errorf("%d left for the next run: %w", c.left, c.first)
}
