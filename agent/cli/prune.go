package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/catalog"
	"etcdsnapshot.dev/agent/destination"
	"etcdsnapshot.dev/agent/retention"
)

type pruneFlags struct {
	policyFlags
	dryRun          bool
	metrics, notify time.Duration
	output          string
}

func newPrune(e *env) *cobra.Command {
	f := &pruneFlags{}
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Apply retention now",
		Long: `Removes the snapshots of the policy that no retention rule keeps, in each of its destinations. The newest snapshot
and the newest verified one are always kept, and so is everything in a destination without retention.`,
		Example: `  etcd-snapshot-agent prune --policy etcd -n kube-system --dry-run`,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), e) },
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "only tell what would be kept and removed, and why")
	metricsTimeFlag(cmd.Flags(), &f.metrics)
	notifyTimeFlag(cmd.Flags(), &f.notify)
	outputFlag(cmd, &f.output)
	return cmd
}

// pruneRow is one snapshot in one destination.
type pruneRow struct {
	Destination string    `json:"destination"`
	Name        string    `json:"name"`
	CreatedAt   time.Time `json:"createdAt"`
	Size        int64     `json:"size"`
	// Action is keep, remove (a dry run), removed, protected or failed.
	Action  string   `json:"action"`
	Reasons []string `json:"reasons"`
}

func (f *pruneFlags) run(ctx context.Context, e *env) (err error) {
	if err := checkOutput(f.output, "table", "json"); err != nil {
		return err
	}
	l, err := f.load(ctx, e)
	if err != nil {
		return err
	}
	handover := l.handover(ctx, e, f.metrics)
	if !f.dryRun {
		told := l.tell(ctx, e, v1.RunPrune, f.notify, false)
		defer func() { told.end(ctx, err) }()
	}
	opened, unusable, done := l.open(ctx, destination.Options{Log: e.log})
	defer done()
	errs := l.unusableErrors(unusable)
	rows := []pruneRow{}
	report := catalog.Report{Policy: l.policy, Owner: l.owner, Node: nodeName(""), Manifest: manifests(opened)}
	verified := l.verified(ctx, e)
	for _, d := range opened {
		more, seen, err := f.prune(ctx, l, d, verified)
		rows = append(rows, more...)
		report.Destinations = append(report.Destinations, seen)
		if err != nil {
			errs = append(errs, fmt.Errorf("destination %s: %w", d.Spec.Name, err))
		}
	}
	if !f.dryRun {
		l.record(ctx, e, report)
		handover.end(ctx, report)
	}
	if err := f.print(e, rows); err != nil {
		errs = append(errs, err)
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return errors.Join(errs...)
}

// prune plans one destination and, unless it is a dry run, carries the plan out.
func (f *pruneFlags) prune(ctx context.Context, l *loaded, d *destination.Destination, verified func(string) bool) (rows []pruneRow, seen catalog.Destination, err error) {
	seen = reported(d)
	if err := d.CheckMayRemove(ctx, l.owner); err != nil {
		return nil, seen, err
	}
	inv, err := d.Inventory(ctx)
	if err != nil {
		return nil, seen, err
	}
	plan, err := d.Plan(inv, l.policy, time.Now(), verified)
	if err != nil {
		return nil, seen, err
	}
	var done destination.Pruned
	if !f.dryRun {
		done, err = d.Prune(ctx, inv, plan)
	}
	sizes := map[string]int64{}
	for _, entry := range inv.Snapshots {
		sizes[entry.Name] = entry.Size
	}
	seen.KeptBecause = map[string][]string{}
	for _, p := range plan {
		rows = append(rows, pruneRow{Destination: d.Spec.Name, Name: p.Name, CreatedAt: p.Time, Size: sizes[p.Name], Action: f.action(p, done), Reasons: append([]string{}, p.Reasons...)})
		seen.KeptBecause[p.Name] = p.Reasons
	}
	inv.Forget(done.Removed)
	seen.Listed, seen.Snapshots, seen.Pruned, seen.PruneErr = true, ofPolicy(inv, l.policy.Name), done.Removed, err
	return rows, seen, err
}

func (f *pruneFlags) action(p retention.Decision, done destination.Pruned) string {
	switch {
	case p.Keep:
		return "keep"
	case f.dryRun:
		return "remove"
	case slices.Contains(done.Removed, p.Name):
		return "removed"
	case slices.Contains(done.Protected, p.Name):
		return "protected"
	}
	return "failed"
}

func (f *pruneFlags) print(e *env, rows []pruneRow) error {
	if f.output == "json" {
		return printJSON(e.stdout, map[string]any{"dryRun": f.dryRun, "snapshots": rows})
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintln(e.stdout, "No snapshots.")
		return err
	}
	now := time.Now()
	t := newTable(e.stdout, "DESTINATION", "NAME", "AGE", "SIZE", "ACTION", "REASONS")
	counts, sizes := map[string]int{}, map[string]int64{}
	for _, r := range rows {
		reasons := strings.Join(r.Reasons, ", ")
		switch r.Action {
		case "keep":
		case "protected":
			reasons = "no rule keeps it, but the store does not let it go yet"
		default:
			reasons = "no rule keeps it"
		}
		t.row(r.Destination, r.Name, humanAge(now.Sub(r.CreatedAt)), humanBytes(r.Size), r.Action, reasons)
		counts[r.Action]++
		sizes[r.Action] += r.Size
	}
	if err := t.flush(); err != nil {
		return err
	}
	var sums []string
	for _, action := range []string{"keep", "remove", "removed", "protected", "failed"} {
		if counts[action] > 0 {
			sums = append(sums, fmt.Sprintf("%s %d (%s)", action, counts[action], humanBytes(sizes[action])))
		}
	}
	_, err := fmt.Fprintf(e.stdout, "\n%s\n", strings.Join(sums, ", "))
	return err
}
