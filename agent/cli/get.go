package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"etcdsnapshot.dev/agent/inspect"
	"etcdsnapshot.dev/agent/object"
)

type getFlags struct {
	objectFlags
	output              string
	clean, includeOwned bool
	revision            int64
}

func newGet(e *env) *cobra.Command {
	f := &getFlags{}
	cmd := &cobra.Command{
		Use:   "get KIND [NAME...] | KIND/NAME... | all",
		Short: "Show objects out of a snapshot, as kubectl get does",
		Long: `Shows objects as they are in a snapshot, in kubectl's grammar. -o yaml and json print what kubectl apply -f - accepts: what the
API server and controllers added is left out (--clean=false prints it).

Kind "all" is everything: of a namespace, also the Namespace itself, in an order that can be applied. It leaves out what
controllers make again (Pods of a Deployment, Events, ...) and what is finished (--include-owned does not).

The data of Secrets are hidden, in a form that the API server refuses, unless --show-secrets is given.`,
		Example: `  etcd-snapshot-agent get cm settings -n shop --policy-file policy.yaml --at 2026-01-02T03:00:00Z
  etcd-snapshot-agent get deploy/web -n shop --policy-file policy.yaml -o yaml | kubectl apply -f -
  etcd-snapshot-agent get all -n shop --from snapshot.db --show-secrets -o yaml | kubectl apply -f -`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), e, args) },
	}
	f.register(cmd, true)
	f.secretsFlag(cmd)
	fl := cmd.Flags()
	fl.BoolVar(&f.clean, "clean", true, "leave out what the API server and controllers added")
	fl.BoolVar(&f.includeOwned, "include-owned", false, "with kind all: also what controllers make again")
	fl.Int64Var(&f.revision, "revision", 0, "as it was at this revision, which history shows (default: the snapshot's last)")
	outputFlag(cmd, &f.output, "wide", "yaml", "name", "raw")
	return cmd
}

func (f *getFlags) run(ctx context.Context, e *env, args []string) error {
	if err := checkOutput(f.output, "table", "json", "wide", "yaml", "name", "raw"); err != nil {
		return err
	}
	if f.revision < 0 {
		return usageErrorf("--revision: %d is no revision", f.revision)
	}
	q, err := f.query(args, "default")
	if err != nil {
		return err
	}
	r, err := f.begin(e)
	if err != nil {
		return err
	}
	defer r.end()
	s, err := r.one(ctx, f.revision)
	if err != nil {
		return err
	}
	found, err := s.Find(ctx, q)
	if err != nil {
		return err
	}
	all := slices.ContainsFunc(q.Wanted, func(w inspect.Wanted) bool { return w.Kind == inspect.All })
	if all {
		if err := found.Sort(ctx); err != nil {
			return err
		}
	}
	p := &objectPrinter{getFlags: f, e: e, snap: s, leaveOut: all && !f.includeOwned, single: len(q.Wanted) == 1 && q.Wanted[0].Name != ""}
	if err := p.print(ctx, found); err != nil {
		return err
	}
	p.tell()
	errs := p.errs
	for _, w := range found.Missing {
		errs = append(errs, f.notFound(ctx, s, q, w))
	}
	if found.Len() == 0 && len(errs) == 0 {
		where := "in any namespace"
		if q.Namespace != "" {
			where = "in namespace " + q.Namespace
		}
		errs = append(errs, fmt.Errorf("the snapshot has no such objects %s (revision %d, %d keys)", where, s.At, s.Keys()))
	}
	return errors.Join(errs...)
}

// notFound says what is known of an object that is not there.
func (f *getFlags) notFound(ctx context.Context, s *inspect.Snapshot, q inspect.Query, w inspect.Wanted) error {
	where := ""
	if q.Namespace != "" {
		where = " in namespace " + q.Namespace
	}
	text := fmt.Sprintf("%s is not in the snapshot%s", w, where)
	q.Wanted = []inspect.Wanted{w}
	if s.At < s.Compacted {
		return fmt.Errorf("%s, or was not changed at revision %d: revisions up to %d are compacted, so that only the very revision of a change, which history shows, can be told", text, s.At, s.Compacted)
	}
	changes, err := s.History(ctx, q)
	if err != nil {
		return err
	}
	changes = slices.DeleteFunc(changes, func(c inspect.Item) bool { return c.Revision > s.At })
	if n := len(changes); n > 1 && changes[n-1].Deleted {
		return fmt.Errorf("%s: it was deleted at revision %d; the version before is still there: --revision %d", text, changes[n-1].Revision, changes[n-2].Revision)
	}
	if q.Namespace == "" {
		return errors.New(text)
	}
	q.Namespace = ""
	elsewhere, err := s.Find(ctx, q)
	if err != nil {
		return err
	}
	var namespaces []string
	err = elsewhere.Each(ctx, func(it inspect.Item) error {
		if ns, _ := it.Location(); len(namespaces) < 10 {
			namespaces = append(namespaces, ns)
		}
		return nil
	})
	if err == nil && len(namespaces) > 0 {
		err = fmt.Errorf("%s; one of that name is in: %s (-n)", text, strings.Join(namespaces, ", "))
	} else if err == nil {
		err = errors.New(text)
	}
	return err
}

// objectPrinter prints objects and collects what is to be said of them.
type objectPrinter struct {
	*getFlags
	e        *env
	snap     *inspect.Snapshot
	leaveOut bool // what is made again
	single   bool // one object was asked for by its name

	errs    []error
	notes   []string
	hidden  int
	unknown []string
	left    map[string]int
	volumes map[string]string
}

// maxErrors is how many of many errors are told.
const maxErrors = 20

func (p *objectPrinter) fail(err error) {
	if len(p.errs) < maxErrors {
		p.errs = append(p.errs, err)
	}
}

func (p *objectPrinter) print(ctx context.Context, found *inspect.Found) error {
	p.left = map[string]int{}
	switch p.output {
	case "table", "wide":
		return p.table(ctx, found)
	case "name":
		return found.Each(ctx, func(it inspect.Item) error {
			if o, err := p.decode(it, inspect.Item.Object); o == nil {
				return err
			}
			_, name := it.Location()
			_, err := fmt.Fprintf(p.e.stdout, "%s/%s\n", singular(it.Resource()), name)
			return err
		})
	case "raw":
		if found.Len() > 1 {
			return usageErrorf("--output raw prints one value, and %d objects are meant", found.Len())
		}
		return found.Each(ctx, func(it inspect.Item) error {
			if it.Kind == "Secret" && !p.showSecrets {
				return usageErrorf("--output raw of a Secret needs --show-secrets")
			}
			_, err := p.e.stdout.Write(it.Value)
			return err
		})
	case "json":
		if p.single {
			return found.Each(ctx, func(it inspect.Item) error {
				o, err := p.final(ctx, it)
				if o == nil {
					return err
				}
				return printJSON(p.e.stdout, o.Object)
			})
		}
		list := newJSONList(p.e.stdout, `{"apiVersion": "v1", "kind": "List", "items": [`, "]}\n")
		err := found.Each(ctx, func(it inspect.Item) error {
			o, err := p.final(ctx, it)
			if o == nil {
				return err
			}
			return list.add(o.Object)
		})
		return errors.Join(err, list.end())
	}
	n := 0
	return found.Each(ctx, func(it inspect.Item) error {
		o, err := p.final(ctx, it)
		if o == nil {
			return err
		}
		text, err := yaml.Marshal(o.Object)
		if err != nil {
			return err
		}
		if n++; n > 1 {
			text = append([]byte("---\n"), text...)
		}
		_, err = p.e.stdout.Write(text)
		return err
	})
}

// singular is a resource as kubectl -o name prints it.
func singular(r object.Resource) string {
	r.Plural = r.Singular
	return r.String()
}

// decode decodes an item; without an object and an error it is left out, and counted.
func (p *objectPrinter) decode(it inspect.Item, how func(inspect.Item) (*object.Object, error)) (*object.Object, error) {
	o, err := how(it)
	if errors.Is(err, object.ErrUnknownKind) && o != nil && p.output == "name" {
		err = nil
	}
	if err != nil {
		if errors.Is(err, object.ErrUnknownKind) {
			err = fmt.Errorf("%w (-o raw gives what is stored)", err)
		}
		p.fail(err)
		return nil, nil
	}
	if p.leaveOut {
		if why, yes := o.IsRemade(); yes {
			p.left[o.Kind+" "+why]++
			return nil, nil
		}
	}
	return o, nil
}

// final is an object as it is printed.
func (p *objectPrinter) final(ctx context.Context, it inspect.Item) (*object.Object, error) {
	o, err := p.decode(it, inspect.Item.Object)
	if o == nil {
		return nil, err
	}
	if o.UnknownFields > 0 {
		p.unknown = append(p.unknown, fmt.Sprintf("%s/%s", o.Kind, o.GetName()))
	}
	if p.clean {
		if err := p.snap.Names().Serve(o); err != nil {
			p.fail(err)
			return nil, nil
		}
		p.notes = append(p.notes, object.Clean(o, func(name string) (string, bool) { return p.volume(ctx, name) })...)
	}
	if !p.showSecrets && o.IsSecret() {
		object.Redact(o)
		p.hidden++
	}
	return o, nil
}

// volume gives the reclaim policy of a PersistentVolume of the snapshot.
func (p *objectPrinter) volume(ctx context.Context, name string) (policy string, found bool) {
	if p.volumes == nil {
		p.volumes = map[string]string{}
		all, err := p.snap.Find(ctx, inspect.Query{Wanted: []inspect.Wanted{{Kind: "persistentvolumes"}}})
		if err == nil {
			err = all.Each(ctx, func(it inspect.Item) error {
				o, err := it.Object()
				if err == nil {
					p.volumes[o.GetName()], _, _ = unstructured.NestedString(o.Object, "spec", "persistentVolumeReclaimPolicy")
				}
				return nil // of one that cannot be read nothing is known
			})
		}
		if err != nil {
			p.fail(err)
		}
	}
	policy, found = p.volumes[name]
	return policy, found
}

// tell says on stderr what is not in the output.
func (p *objectPrinter) tell() {
	for _, n := range p.notes {
		p.e.log.Warn(n)
	}
	if p.hidden > 0 {
		p.e.log.Warn("the data of Secrets are hidden, and kubectl apply refuses these: --show-secrets shows them", "secrets", p.hidden)
	}
	if len(p.unknown) > 0 {
		p.e.log.Warn("a newer Kubernetes wrote fields that this version does not know, and that are missing in the output: a newer etcd-snapshot-agent prints them", "objects", p.unknown)
	}
	for what, n := range p.left {
		p.e.log.Info("left out (--include-owned prints them)", "what", what, "objects", n)
	}
}

func (p *objectPrinter) table(ctx context.Context, found *inspect.Found) error {
	var kinds []string
	err := found.Each(ctx, func(it inspect.Item) error {
		if name := it.KindName(); !slices.Contains(kinds, name) && len(kinds) < 2 {
			kinds = append(kinds, name)
		}
		return nil
	})
	if err != nil || len(kinds) == 0 {
		return err
	}
	header := []string{"NAME", "REVISION", "WRITTEN", "SIZE"}
	if p.allNamespaces {
		header = append([]string{"NAMESPACE"}, header...)
	}
	if len(kinds) > 1 {
		header = append([]string{"KIND"}, header...)
	}
	if p.output == "wide" {
		header = append(header, "CREATED", "WRITES", "LABELS", "KEY")
	}
	t := &blocks{table: newTable(p.e.stdout, header...)}
	err = found.Each(ctx, func(it inspect.Item) error {
		how := inspect.Item.Meta
		if p.leaveOut {
			how = inspect.Item.Object // whether it is finished is in its status
		}
		written, labels := "-", ""
		if it.Err == nil {
			o, err := p.decode(it, how)
			if o == nil {
				return err
			}
			if at := o.WrittenAt(); !at.IsZero() {
				written = at.UTC().Format(time.RFC3339)
			}
			var pairs []string
			for k, v := range o.GetLabels() {
				pairs = append(pairs, k+"="+v)
			}
			slices.Sort(pairs)
			labels = strings.Join(pairs, ",")
		} else {
			p.fail(fmt.Errorf("%s: %w", it.Key, it.Err))
		}
		namespace, name := it.Location()
		cells := []any{name, it.Revision, written, humanBytes(int64(len(it.Value)))}
		if p.allNamespaces {
			cells = append([]any{orDash(namespace)}, cells...)
		}
		if len(kinds) > 1 {
			cells = append([]any{it.KindName()}, cells...)
		}
		if p.output == "wide" {
			cells = append(cells, it.Created, it.Version, orDash(labels), string(it.Key))
		}
		return t.row(cells...)
	})
	return errors.Join(err, t.flush())
}
