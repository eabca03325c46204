package cli

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"etcdsnapshot.dev/agent/inspect"
	"etcdsnapshot.dev/agent/object"
)

type keysFlags struct {
	objectFlags
	prefix, by, output string
	revision           int64
}

func newKeys(e *env) *cobra.Command {
	f := &keysFlags{}
	cmd := &cobra.Command{
		Use:   "keys [KIND [NAME...]]",
		Short: "List what a snapshot holds, and what fills etcd",
		Long: `Lists the keys of a snapshot, or counts them by kind or namespace. Kinds are taken from the objects themselves; their names
are kubectl's: plural, singular, short, with or without the group (deploy, deployments.apps). Custom resources are known
from the snapshot's CustomResourceDefinitions. No values are shown.

--by kind tells what fills etcd: OLD are versions that were overwritten or deleted and not compacted yet.`,
		Example: `  etcd-snapshot-agent keys --policy-file policy.yaml --by kind
  etcd-snapshot-agent keys configmaps -n shop --from-dir /var/lib/etcd-snapshots/prod-eu --at 2026-01-02T03:00:00Z
  etcd-snapshot-agent keys --from snapshot.db --prefix /registry/leases -o name`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), e, args) },
	}
	f.register(cmd, true)
	fl := cmd.Flags()
	fl.StringVar(&f.prefix, "prefix", "", "only keys that begin so")
	fl.StringVar(&f.by, "by", "", "count instead of listing: kind or namespace")
	fl.Int64Var(&f.revision, "revision", 0, "as it was at this revision (default: the snapshot's last)")
	outputFlag(cmd, &f.output, "wide", "name")
	return cmd
}

func (f *keysFlags) run(ctx context.Context, e *env, args []string) error {
	if err := checkOutput(f.output, "table", "json", "wide", "name"); err != nil {
		return err
	}
	if f.by != "" && f.by != "kind" && f.by != "namespace" {
		return usageErrorf("--by: %q is none of kind, namespace", f.by)
	}
	if f.by != "" && f.output != "table" && f.output != "json" {
		return usageErrorf("--by goes with --output table or json")
	}
	q, err := f.query(args, "")
	if err != nil {
		return err
	}
	q.Prefix = []byte(f.prefix)
	r, err := f.begin(e)
	if err != nil {
		return err
	}
	defer r.end()
	s, err := r.one(ctx, f.revision)
	if err != nil {
		return err
	}
	if f.by != "" {
		shares, err := s.Shares(ctx, q, f.by == "namespace")
		if err != nil {
			return err
		}
		return f.printShares(e, s, shares)
	}
	found, err := s.Find(ctx, q)
	if err != nil {
		return err
	}
	if err := f.print(ctx, e, found); err != nil {
		return err
	}
	if len(found.Missing) > 0 {
		return fmt.Errorf("not in the snapshot: %s", wantedNames(found.Missing))
	}
	return nil
}

func (f *keysFlags) printShares(e *env, s *inspect.Snapshot, shares []inspect.Share) error {
	if f.output == "json" {
		return printJSON(e.stdout, map[string]any{"by": f.by, "revision": s.At, "keys": s.Keys(), "entries": s.Entries, "databaseBytes": s.Size(), "shares": shares})
	}
	header := "KIND"
	if f.by == "namespace" {
		header = "NAMESPACE"
	}
	t := newTable(e.stdout, header, "COUNT", "SIZE", "OLD", "OLD SIZE")
	for _, s := range shares {
		t.row(s.Name, s.Count, humanBytes(s.Bytes), s.OldCount, humanBytes(s.OldBytes))
	}
	if err := t.flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(e.stdout, "\n%d keys at revision %d; the database has %s\n", s.Keys(), s.At, humanBytes(s.Size()))
	return err
}

// keyRow is a key in JSON.
type keyRow struct {
	Key string `json:"key"`
	object.Type
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// Revision of the last change, CreateRevision of the creation, Version: how often it was written since.
	Revision       int64  `json:"revision"`
	CreateRevision int64  `json:"createRevision"`
	Version        int64  `json:"version"`
	Size           int    `json:"size"`
	Message        string `json:"message,omitempty"`
}

func (f *keysFlags) print(ctx context.Context, e *env, found *inspect.Found) error {
	switch f.output {
	case "name":
		return found.Each(ctx, func(it inspect.Item) error {
			_, err := fmt.Fprintf(e.stdout, "%s\n", it.Key)
			return err
		})
	case "json":
		list := newJSONList(e.stdout, "[", "]\n")
		err := found.Each(ctx, func(it inspect.Item) error {
			namespace, name := it.Location()
			row := keyRow{string(it.Key), it.Type, namespace, name, it.Revision, it.Created, it.Version, len(it.Value), ""}
			if it.Err != nil {
				row.Message = oneLine(it.Err)
			}
			return list.add(row)
		})
		if err != nil {
			return err
		}
		return list.end()
	}
	header := []string{"KIND", "NAMESPACE", "NAME", "REVISION", "SIZE"}
	if f.output == "wide" {
		header = append(header, "CREATED", "WRITES", "KEY")
	}
	t := &blocks{table: newTable(e.stdout, header...)}
	err := found.Each(ctx, func(it inspect.Item) error {
		namespace, name := it.Location()
		if name == "" {
			name = fmt.Sprintf("%.100q", it.Key)
		}
		cells := []any{it.KindName(), orDash(namespace), name, it.Revision, humanBytes(int64(len(it.Value)))}
		if f.output == "wide" {
			cells = append(cells, it.Created, it.Version, string(it.Key))
		}
		return t.row(cells...)
	})
	if err != nil {
		return err
	}
	return t.flush()
}

// jsonList prints a list of any length, one element at a time.
type jsonList struct {
	w     *errWriter
	close string
	n     int
}

func newJSONList(w interface{ Write([]byte) (int, error) }, open, close string) *jsonList {
	l := &jsonList{w: &errWriter{w: w}, close: close}
	fmt.Fprint(l.w, open)
	return l
}

func (l *jsonList) add(v any) error {
	sep := ",\n  "
	if l.n++; l.n == 1 {
		sep = "\n  "
	}
	b, err := json.MarshalIndent(v, "  ", "  ")
	if err != nil {
		return err
	}
	fmt.Fprintf(l.w, "%s%s", sep, b)
	return l.w.err
}

func (l *jsonList) end() error {
	fmt.Fprint(l.w, "\n"+l.close)
	return l.w.err
}

// errWriter remembers the first error.
type errWriter struct {
	w   interface{ Write([]byte) (int, error) }
	err error
}

func (e *errWriter) Write(p []byte) (int, error) {
	if e.err != nil {
		return 0, e.err
	}
	n, err := e.w.Write(p)
	e.err = err
	return n, err
}
