package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/catalog"
	"etcdsnapshot.dev/agent/destination"
)

type listFlags struct {
	policyFlags
	fleet  fleetFlags
	all    bool
	output string
}

func newList(e *env) *cobra.Command {
	f := &listFlags{}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List what is stored where",
		Long: `Lists the snapshots of the policy that its destinations hold, newest first. A snapshot is listed only where its
manifest is, that is, where it was stored whole and checked. A hostPath destination shows this node's disk only.

With --all-clusters it sums up every cluster's folder in the destinations, the stale ones first, and ends with exit code 3
if one is stale: if its last snapshot is older than --max-age or, without that, than twice the time between its own
snapshots and an hour.`,
		Example: `  etcd-snapshot-agent list --policy etcd -n kube-system
  etcd-snapshot-agent list --policy-file etcd.yaml -o wide
  etcd-snapshot-agent list --policy-file etcd.yaml -d offsite --all-clusters --max-proven-age 7d`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), e) },
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&f.all, "all-policies", false, "also snapshots that other policies left in this cluster's folders")
	cmd.Flags().BoolVar(&f.fleet.all, "all-clusters", false, "sum up each cluster in the destinations instead, the stale ones first")
	cmd.Flags().StringVar(&f.fleet.maxAge, "max-age", "", "with --all-clusters: stale is whose last snapshot is older (12h, 2d; default: by its own interval)")
	cmd.Flags().StringVar(&f.fleet.maxProvenAge, "max-proven-age", "", "with --all-clusters: stale is also whose last proven snapshot is older (7d; default: none is asked for)")
	outputFlag(cmd, &f.output, "wide", "yaml", "name")
	return cmd
}

func (f *listFlags) run(ctx context.Context, e *env) error {
	if err := checkOutput(f.output, "table", "json", "wide", "yaml", "name"); err != nil {
		return err
	}
	now := time.Now()
	limits, err := f.fleet.limits(now)
	if err != nil {
		return err
	}
	f.anyCluster = f.fleet.all
	l, err := f.load(ctx, e)
	if err != nil {
		return err
	}
	if f.fleet.all {
		return f.runFleet(ctx, e, l, limits, now)
	}
	opened, unusable, done := l.open(ctx, destination.Options{Log: e.log})
	defer done()
	survey := destination.Look(ctx, opened)
	if err := context.Cause(ctx); err != nil {
		return err
	}
	errs := l.unusableErrors(unusable)
	for _, d := range survey.Destinations {
		if d.Err != nil {
			errs = append(errs, fmt.Errorf("destination %s: %w", d.Destination.Spec.Name, d.Err))
		}
	}
	rows, err := f.collect(ctx, e, l, survey)
	if err != nil {
		errs = append(errs, err)
	}
	if err := f.print(e, rows, survey); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// listed is one snapshot.
type listed struct {
	taken time.Time // what rows are sorted by

	Name      string       `json:"name"`
	Policy    string       `json:"policy"`
	CreatedAt time.Time    `json:"createdAt"`
	Copies    []listedCopy `json:"copies"`
	// Verification is what the catalog knows or, without it, what is noted in the stores; nil where that is nothing.
	Verification *v1.VerificationStatus `json:"verification,omitempty"`
	// Manifest is nil where it was not asked for or could not be read; the error is logged.
	Manifest *v1.Manifest `json:"manifest,omitempty"`
}

type listedCopy struct {
	Destination string `json:"destination"`
	URI         string `json:"uri"`
	Size        int64  `json:"size"`
	// StoredAt is the store's time; nil for a copy that is known from the catalog only.
	StoredAt *time.Time `json:"storedAt,omitempty"`
	// Node whose disk holds the copy, where that is not this one: it is known from the catalog only.
	Node string `json:"node,omitempty"`
	// KeptBecause are the retention rules that keep the copy; none where the next run removes it.
	KeptBecause []string `json:"keptBecause"`
	// Signed says that there is a signature, SignedBy names the trusted key that made it, and Untrusted says why it does
	// not count. Without trusted keys signatures are not checked.
	Signed    bool   `json:"signed"`
	SignedBy  string `json:"signedBy,omitempty"`
	Untrusted string `json:"untrusted,omitempty"`
	// Extras says that files of the node lie beside the copy.
	Extras bool `json:"extras,omitempty"`
}

// collect puts together what the destinations hold, what retention makes of it, and what the catalog adds: verifications,
// and copies on other nodes' disks. Manifests are read only for the forms that show them.
func (f *listFlags) collect(ctx context.Context, e *env, l *loaded, s *destination.Survey) ([]listed, error) {
	catalogued := l.rows(ctx, e)
	verified := func(name string) bool {
		row, ok := catalogued[name]
		return ok && catalog.IsVerified(row)
	}
	kept := map[string]map[string][]string{} // by destination and snapshot
	for _, part := range s.Destinations {
		if part.Err != nil {
			continue
		}
		plan, err := part.Destination.Plan(part.Inventory, l.policy, time.Now(), verified)
		if err != nil {
			return nil, err
		}
		kept[part.Destination.Spec.Name] = map[string][]string{}
		for _, p := range plan {
			kept[part.Destination.Spec.Name][p.Name] = p.Reasons
		}
	}
	trusted, err := archive.PolicyTrustedKeys(l.policy)
	if err != nil {
		return nil, err
	}
	rows := []listed{}
	shown := map[string]*listed{}
	for _, r := range s.Snapshots {
		if !f.all && r.Policy != l.policy.Name {
			continue
		}
		row := listed{taken: r.Snapshot().Taken(), Name: r.Name, Policy: r.Policy, CreatedAt: r.Time, Copies: []listedCopy{}, Verification: noted(r.Copies)}
		for _, part := range s.Destinations {
			d := part.Destination
			c, ok := r.Copies[d.Spec.Name]
			if !ok {
				continue
			}
			stored := c.Stored.UTC()
			reasons, ours := kept[d.Spec.Name][r.Name]
			if !ours {
				reasons = []string{"of another policy"}
			}
			listed := listedCopy{Destination: d.Spec.Name, URI: d.URI(c.Key), Size: c.Size, StoredAt: &stored, KeptBecause: append([]string{}, reasons...), Signed: c.Signed(), Extras: c.HasExtras()}
			if f.detailed() && (row.Manifest == nil || trusted != nil) {
				m := f.manifest(ctx, e, d, r.Name, trusted, &listed)
				if row.Manifest == nil {
					row.Manifest = m
				}
			}
			row.Copies = append(row.Copies, listed)
		}
		rows = append(rows, row)
	}
	for i := range rows {
		shown[rows[i].Name] = &rows[i]
	}
	rows = append(rows, f.elsewhere(l, catalogued, shown)...)
	slices.SortStableFunc(rows, func(a, b listed) int { return b.taken.Compare(a.taken) })
	return rows, nil
}

// noted sums up what is noted beside the copies: one that is corrupt fails the snapshot.
func noted(copies map[string]destination.Entry) (v *v1.VerificationStatus) {
	for _, c := range copies {
		p := c.Proof()
		if p.Level == "" || v != nil && !p.Corrupt && (v.Result == v1.VerificationFailed || p.Time.Before(v.Time.Time)) {
			continue
		}
		v = &v1.VerificationStatus{Time: metav1.NewTime(p.Time.UTC()), Level: p.Level, Result: v1.VerificationPassed}
		if p.Corrupt {
			v.Result = v1.VerificationFailed
		}
	}
	return v
}

// elsewhere adds what the catalog knows and this node cannot see: to the rows that are shown, and as rows of their own.
func (f *listFlags) elsewhere(l *loaded, catalogued map[string]*v1.EtcdSnapshot, shown map[string]*listed) (more []listed) {
	here := nodeName("")
	nodeLocal := map[string]bool{}
	for _, d := range l.policy.Spec.Destinations {
		nodeLocal[d.Name] = d.HostPath != nil
	}
	for name, known := range catalogued {
		row, ok := shown[name]
		if ok {
			if known.Status.Verification != nil {
				row.Verification = known.Status.Verification
			}
		} else {
			row = &listed{taken: known.Spec.CreatedAt.Time, Name: name, Policy: known.Spec.Policy, CreatedAt: known.Spec.CreatedAt.UTC(), Verification: known.Status.Verification,
				Manifest: &v1.Manifest{SchemaVersion: v1.ManifestSchemaVersion, Name: name, SnapshotFacts: known.Spec}}
		}
		for _, c := range known.Status.Destinations {
			if c.Phase != v1.PhaseStored || !nodeLocal[c.Name] || known.Spec.Node == "" || known.Spec.Node == here {
				continue
			}
			if slices.ContainsFunc(row.Copies, func(have listedCopy) bool { return have.Destination == c.Name }) {
				continue
			}
			row.Copies = append(row.Copies, listedCopy{Destination: c.Name, URI: c.URI, Size: c.Size, Node: known.Spec.Node, KeptBecause: append([]string{}, c.KeptBecause...)})
		}
		if !ok && len(row.Copies) > 0 {
			more = append(more, *row)
		}
	}
	return more
}

func (f *listFlags) print(e *env, rows []listed, s *destination.Survey) error {
	switch f.output {
	case "name":
		for _, r := range rows {
			fmt.Fprintln(e.stdout, r.Name)
		}
		return nil
	case "json", "yaml":
		out := map[string]any{"snapshots": rows}
		if f.output == "json" {
			return printJSON(e.stdout, out)
		}
		data, err := yaml.Marshal(out)
		if err == nil {
			_, err = e.stdout.Write(data)
		}
		return err
	}
	if len(rows) == 0 {
		fmt.Fprintln(e.stdout, "No snapshots.")
	} else if err := f.table(e, rows); err != nil {
		return err
	}
	for _, d := range s.Destinations {
		if d.Err != nil {
			continue
		}
		for _, note := range notes(d.Inventory) {
			fmt.Fprintf(e.stdout, "%s: %s\n", d.Destination.Spec.Name, note)
		}
	}
	return nil
}

func notes(inv *destination.Inventory) []string {
	var out []string
	if n := len(inv.Orphans); n > 0 {
		out = append(out, fmt.Sprintf("%d without a manifest (unfinished or left over), not listed", n))
	}
	if n := len(inv.Dangling); n > 0 {
		out = append(out, fmt.Sprintf("%d manifests without data, not listed: %s", n, strings.Join(inv.Dangling, ", ")))
	}
	if inv.Foreign > 0 {
		out = append(out, fmt.Sprintf("%d foreign objects, not touched", inv.Foreign))
	}
	return out
}

func (f *listFlags) table(e *env, rows []listed) error {
	header := []string{"NAME", "AGE", "SIZE", "DESTINATIONS", "VERIFIED", "KEPT BECAUSE"}
	if f.output == "wide" {
		header = append(header, "NODE", "REVISION", "DATABASE", "ETCD", "SIGNED", "WHERE")
	}
	t := newTable(e.stdout, header...)
	now := time.Now()
	for _, r := range rows {
		var names, uris []string
		size := int64(0)
		for _, c := range r.Copies {
			name := c.Destination
			if c.Node != "" {
				name += " (" + c.Node + ")"
			}
			names, uris, size = append(names, name), append(uris, c.URI), c.Size
		}
		cells := []any{r.Name, humanAge(now.Sub(r.CreatedAt)), humanBytes(size), strings.Join(names, ","), r.verified(), r.kept()}
		if f.output == "wide" {
			m := r.Manifest
			if m == nil {
				m = &v1.Manifest{}
			}
			cells = append(cells, orDash(m.Node), m.Etcd.Revision, humanBytes(m.Database.Size), orDash(m.Etcd.Version), signatureCell(r.Copies), strings.Join(uris, ","))
		}
		t.row(cells...)
	}
	return t.flush()
}

// verified is the last verification as a cell.
func (r *listed) verified() string {
	switch {
	case r.Verification == nil:
		return "-"
	case r.Verification.Result == v1.VerificationPassed:
		return r.Verification.Level
	}
	return "FAILED"
}

// kept gives the reasons as a cell: once where all copies have the same, by destination where they differ.
func (r *listed) kept() string {
	var texts []string
	same := true
	for _, c := range r.Copies {
		text := strings.Join(c.KeptBecause, ", ")
		if text == "" {
			text = "nothing: the next run removes it"
		}
		texts = append(texts, text)
		same = same && text == texts[0]
	}
	if same && len(texts) > 0 {
		return texts[0]
	}
	for i, c := range r.Copies {
		texts[i] = c.Destination + ": " + texts[i]
	}
	return strings.Join(texts, "; ")
}

// detailed tells whether the form shows what stands in manifests.
func (f *listFlags) detailed() bool {
	return f.output == "json" || f.output == "yaml" || f.output == "wide"
}

// manifest reads a manifest for the table, and what there is to say of its signature; a damaged one is told and does not
// hide the others.
func (f *listFlags) manifest(ctx context.Context, e *env, d *destination.Destination, name string, trusted archive.TrustedKeys, c *listedCopy) *v1.Manifest {
	m, by, err := d.SignedManifest(ctx, name, trusted)
	c.SignedBy = by
	if errors.Is(err, archive.ErrUntrusted) {
		c.Untrusted = oneLine(err)
	}
	if err != nil {
		e.log.Error("manifest cannot be read", "destination", d.Spec.Name, "snapshot", name, "error", err)
		return nil
	}
	return m
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
