package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/destination"
)

type listFlags struct {
	policyFlags
	all    bool
	output string
}

func newList(e *env) *cobra.Command {
	f := &listFlags{}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List what is stored where",
		Long: `Lists the snapshots of the policy that its destinations hold, newest first. A snapshot is listed only where its
manifest is, that is, where it was stored whole and checked. A hostPath destination shows this node's disk only.`,
		Example: `  etcd-snapshot-agent list --policy etcd -n kube-system
  etcd-snapshot-agent list --policy-file etcd.yaml -o wide`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), e) },
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&f.all, "all-policies", false, "also snapshots that other policies left in this cluster's folders")
	outputFlag(cmd, &f.output, "wide", "yaml", "name")
	return cmd
}

func (f *listFlags) run(ctx context.Context, e *env) error {
	if err := checkOutput(f.output, "table", "json", "wide", "yaml", "name"); err != nil {
		return err
	}
	l, err := f.load(ctx, e)
	if err != nil {
		return err
	}
	opened, unusable, done := l.open(ctx, destination.Options{Log: e.log})
	defer done()
	survey := destination.Look(ctx, opened)
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if !f.all {
		survey.Snapshots = slices.DeleteFunc(survey.Snapshots, func(r destination.Row) bool { return r.Policy != l.policy.Name })
	}
	if err := f.print(ctx, e, survey); err != nil {
		return err
	}
	errs := l.unusableErrors(unusable)
	for _, d := range survey.Destinations {
		if d.Err != nil {
			errs = append(errs, fmt.Errorf("destination %s: %w", d.Destination.Spec.Name, d.Err))
		}
	}
	return errors.Join(errs...)
}

// listed is one snapshot in the machine-readable forms.
type listed struct {
	Name      string       `json:"name"`
	Policy    string       `json:"policy"`
	CreatedAt time.Time    `json:"createdAt"`
	Copies    []listedCopy `json:"copies"`
	// Manifest is nil where it could not be read; the error is logged.
	Manifest *v1.Manifest `json:"manifest,omitempty"`
}

type listedCopy struct {
	Destination string    `json:"destination"`
	URI         string    `json:"uri"`
	Size        int64     `json:"size"`
	StoredAt    time.Time `json:"storedAt"`
}

func (f *listFlags) print(ctx context.Context, e *env, s *destination.Survey) error {
	switch f.output {
	case "name":
		for _, r := range s.Snapshots {
			fmt.Fprintln(e.stdout, r.Name)
		}
		return nil
	case "json", "yaml":
		out := struct {
			Snapshots []listed `json:"snapshots"`
		}{f.listed(ctx, e, s)}
		if f.output == "json" {
			return printJSON(e.stdout, out)
		}
		data, err := yaml.Marshal(out)
		if err == nil {
			_, err = e.stdout.Write(data)
		}
		return err
	}
	if len(s.Snapshots) == 0 {
		fmt.Fprintln(e.stdout, "No snapshots.")
	} else if err := f.table(ctx, e, s); err != nil {
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

func (f *listFlags) table(ctx context.Context, e *env, s *destination.Survey) error {
	header := []string{"NAME", "AGE", "SIZE", "DESTINATIONS"}
	if f.output == "wide" {
		header = append(header, "NODE", "REVISION", "DATABASE", "ETCD", "WHERE")
	}
	t := newTable(e.stdout, header...)
	now := time.Now()
	for _, r := range s.Snapshots {
		var names, uris []string
		size := int64(0)
		var m *v1.Manifest
		for _, d := range s.Destinations {
			c, ok := r.Copies[d.Destination.Spec.Name]
			if !ok {
				continue
			}
			names, uris, size = append(names, d.Destination.Spec.Name), append(uris, d.Destination.URI(c.Key)), c.Size
			if f.output == "wide" && m == nil {
				m = f.manifest(ctx, e, d.Destination, r.Name)
			}
		}
		cells := []any{r.Name, humanAge(now.Sub(r.Time)), humanBytes(size), strings.Join(names, ",")}
		if f.output == "wide" {
			if m == nil {
				m = &v1.Manifest{}
			}
			cells = append(cells, orDash(m.Node), m.Etcd.Revision, humanBytes(m.Database.Size), orDash(m.Etcd.Version), strings.Join(uris, ","))
		}
		t.row(cells...)
	}
	return t.flush()
}

func (f *listFlags) listed(ctx context.Context, e *env, s *destination.Survey) []listed {
	out := []listed{}
	for _, r := range s.Snapshots {
		l := listed{Name: r.Name, Policy: r.Policy, CreatedAt: r.Time, Copies: []listedCopy{}}
		for _, d := range s.Destinations {
			c, ok := r.Copies[d.Destination.Spec.Name]
			if !ok {
				continue
			}
			l.Copies = append(l.Copies, listedCopy{Destination: d.Destination.Spec.Name, URI: d.Destination.URI(c.Key), Size: c.Size, StoredAt: c.Stored.UTC()})
			if l.Manifest == nil {
				l.Manifest = f.manifest(ctx, e, d.Destination, r.Name)
			}
		}
		out = append(out, l)
	}
	return out
}

// manifest reads a manifest for the table; a damaged one is told and does not hide the others.
func (f *listFlags) manifest(ctx context.Context, e *env, d *destination.Destination, name string) *v1.Manifest {
	m, err := d.Manifest(ctx, name)
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
