package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/pmezard/go-difflib/difflib"
	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/catalog"
	"etcdsnapshot.dev/agent/inspect"
	"etcdsnapshot.dev/agent/object"
	"etcdsnapshot.dev/agent/restore"
)

type diffFlags struct {
	objectFlags
	all, live bool
	output    string
}

func newDiff(e *env) *cobra.Command {
	f := &diffFlags{}
	cmd := &cobra.Command{
		Use:   "diff FROM TO [KIND [NAME...]] | diff FROM --live [KIND [NAME...]]",
		Short: "Tell what changed between two snapshots, or since one",
		Long: `Compares two snapshots, or a snapshot and the live cluster (--live, with the kubeconfig's rights): which objects were added,
removed and changed, and which of their fields. -o yaml prints unified diffs.

FROM and TO are the name of a snapshot, "latest", a time (the newest snapshot taken then or before), or a file.

Left out unless --all is given, or the kind is named: Events, Leases, Endpoints, EndpointSlices, IPAddresses, and Pods,
ReplicaSets, ControllerRevisions and Jobs that a controller made; and of other objects status, generation and managedFields.
Exit code 0 whether there are differences or not.`,
		Example: `  etcd-snapshot-agent diff 2026-01-02T02:00:00Z 2026-01-02T03:00:00Z --policy-file policy.yaml
  etcd-snapshot-agent diff latest --live --policy-file policy.yaml -n shop
  etcd-snapshot-agent diff before.db after.db deploy web -n shop -o yaml`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), e, args) },
	}
	f.register(cmd, false)
	f.secretsFlag(cmd)
	fl := cmd.Flags()
	fl.BoolVar(&f.live, "live", false, "compare with the live cluster")
	fl.BoolVar(&f.all, "all", false, "leave nothing out")
	outputFlag(cmd, &f.output, "yaml")
	return cmd
}

func (f *diffFlags) run(ctx context.Context, e *env, args []string) error {
	if err := checkOutput(f.output, "table", "json", "yaml"); err != nil {
		return err
	}
	sides := 2
	if f.live {
		sides = 1
	}
	if len(args) < sides {
		return usageErrorf("say what to compare with: two snapshots, or one and --live")
	}
	q, err := f.query(args[sides:], "")
	if err != nil {
		return err
	}
	o := inspect.DiffOptions{Query: q, All: f.all}
	r, err := f.begin(e)
	if err != nil {
		return err
	}
	defer r.end()
	var snaps []*inspect.Snapshot
	for _, arg := range args[:sides] {
		s, err := f.side(ctx, r, arg)
		if err != nil {
			return err
		}
		snaps = append(snaps, s)
	}
	p := &diffPrinter{diffFlags: f, e: e, counts: map[string]*[3]int64{}}
	p.begin()
	var result *inspect.DiffResult
	if f.live {
		client, err := catalog.Connect(f.kubeconfig)
		if err != nil {
			return err
		}
		result, err = inspect.DiffLive(ctx, snaps[0], client.REST(), o, p.one)
		if err != nil {
			return fmt.Errorf("compare with the API server %s: %w", client, err)
		}
	} else if result, err = inspect.Diff(ctx, snaps[0], snaps[1], o, p.one); err != nil {
		return err
	}
	return p.end(result)
}

// side opens what an argument names.
func (f *diffFlags) side(ctx context.Context, r *reading, arg string) (*inspect.Snapshot, error) {
	var want restore.Selection
	at, isTime := parseTime(arg)
	_, isName := archive.ParseName(arg)
	switch {
	case arg == "latest":
		want.Latest = true
	case isTime:
		want.At = at
	case isName:
		want.Name = arg
	default:
		if _, err := os.Stat(arg); err != nil {
			return nil, usageErrorf("%q is no snapshot's name, no time, not \"latest\", and no file: %w", arg, err)
		}
		return r.file(ctx, arg, 0)
	}
	if err := f.checkPlace(true); err != nil {
		return nil, err
	}
	request, done, err := f.request(ctx, r.e, want, true)
	defer done()
	if err != nil {
		return nil, err
	}
	return r.copy(ctx, request, 0)
}

// diffPrinter prints differences as they are found, and counts them.
type diffPrinter struct {
	*diffFlags
	e      *env
	counts map[string]*[3]int64 // by kind: added, removed, changed
	rows   *blocks
	list   *jsonList
}

var changes = []string{inspect.Added, inspect.Removed, inspect.Changed}

func (p *diffPrinter) begin() {
	if p.output == "json" {
		p.list = newJSONList(p.e.stdout, `{"differences": [`, "]")
	}
}

func (p *diffPrinter) one(d inspect.Difference) error {
	kind := d.KindName()
	if p.counts[kind] == nil {
		p.counts[kind] = &[3]int64{}
	}
	p.counts[kind][slices.Index(changes, d.What)]++
	switch p.output {
	case "json":
		return p.list.add(d)
	case "yaml":
		if d.Note != "" {
			p.e.log.Warn(d.Note, "kind", kind, "namespace", d.Namespace, "name", d.Name)
			return nil
		}
		path := strings.Trim(d.Namespace+"/"+d.Name, "/")
		return printUnified(p.e.stdout, d.From, d.To, sideName(d.From, kind, path, d.Before), sideName(d.To, kind, path, d.After), p.showSecrets)
	}
	if p.rows == nil {
		p.rows = &blocks{table: newTable(p.e.stdout, "CHANGE", "KIND", "NAMESPACE", "NAME", "FIELDS")}
	}
	return p.rows.row(d.What, kind, orDash(d.Namespace), d.Name, summary(d.Fields, 0, d.Note))
}

func sideName(o *object.Object, kind, path string, revision int64) string {
	switch {
	case o == nil:
		return "/dev/null"
	case revision == 0:
		return fmt.Sprintf("%s %s live", kind, path)
	}
	return fmt.Sprintf("%s %s at revision %d", kind, path, revision)
}

// end prints what it comes to.
func (p *diffPrinter) end(result *inspect.DiffResult) error {
	type sum struct {
		Name    string `json:"name"`
		Added   int64  `json:"added"`
		Removed int64  `json:"removed"`
		Changed int64  `json:"changed"`
	}
	sums := []sum{}
	for _, kind := range slices.Sorted(maps.Keys(p.counts)) {
		c := p.counts[kind]
		sums = append(sums, sum{kind, c[0], c[1], c[2]})
	}
	switch p.output {
	case "json":
		if err := p.list.end(); err != nil {
			return err
		}
		// The list is printed as it is found: what it comes to is another member of the same object.
		rest, err := json.MarshalIndent(map[string]any{"kinds": sums, "leftOut": result}, "", "  ")
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(p.e.stdout, ",%s\n", rest[1:])
		return err
	case "yaml":
		return nil
	}
	if p.rows != nil {
		if err := p.rows.flush(); err != nil {
			return err
		}
		fmt.Fprintln(p.e.stdout)
		t := newTable(p.e.stdout, "KIND", "ADDED", "REMOVED", "CHANGED")
		for _, s := range sums {
			t.row(s.Name, s.Added, s.Removed, s.Changed)
		}
		if err := t.flush(); err != nil {
			return err
		}
	} else {
		fmt.Fprintln(p.e.stdout, "No differences.")
	}
	var left []string
	for _, kind := range slices.Sorted(maps.Keys(result.Noise)) {
		left = append(left, fmt.Sprintf("%d of %s", result.Noise[kind], kind))
	}
	if result.Quiet > 0 {
		left = append(left, fmt.Sprintf("%d objects that changed in nothing but status and the like", result.Quiet))
	}
	if len(left) > 0 {
		fmt.Fprintf(p.e.stdout, "\nLeft out (--all shows them): %s\n", strings.Join(left, ", "))
	}
	return nil
}

// printUnified prints a unified diff of two versions of an object as YAML; nil is none.
func printUnified(w io.Writer, a, b *object.Object, from, to string, showSecrets bool) error {
	if !showSecrets {
		switch {
		case a != nil && b != nil:
			object.RedactBoth(a, b)
		case a != nil:
			object.Redact(a)
		case b != nil:
			object.Redact(b)
		}
	}
	x, err1 := lines(a)
	y, err2 := lines(b)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	return difflib.WriteUnifiedDiff(w, difflib.UnifiedDiff{A: x, B: y, FromFile: from, ToFile: to, Context: 3})
}

func lines(o *object.Object) ([]string, error) {
	if o == nil {
		return nil, nil
	}
	text, err := yaml.Marshal(o.Object)
	if err != nil {
		return nil, err
	}
	return slices.Collect(strings.Lines(string(text))), nil
}
