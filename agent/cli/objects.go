package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"

	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/etcddb"
	"etcdsnapshot.dev/agent/inspect"
	"etcdsnapshot.dev/agent/object"
	"etcdsnapshot.dev/agent/restore"
	"etcdsnapshot.dev/agent/verify"
)

// objectFlags are those of the verbs that look into snapshots. --namespace is the objects' here, as it is kubectl's.
type objectFlags struct {
	sourceFlags
	snapshot                     string
	scratchDir, encryptionConfig string
	skipHashCheck                bool
	objectNamespace, selector    string
	allNamespaces, showSecrets   bool
}

// register registers what all of these verbs have; oneSnapshot also what picks a snapshot.
func (f *objectFlags) register(cmd *cobra.Command, oneSnapshot bool) {
	f.registerAs(cmd, "policy-namespace", "")
	fl := cmd.Flags()
	if oneSnapshot {
		f.registerSource(cmd)
		fl.StringVar(&f.snapshot, "snapshot", "", "name of the snapshot (default: the newest)")
		fl.Lookup("from").Usage = "a file instead of a policy's destination (- is stdin): a stored snapshot, a database as etcdctl and others save it, or a copy of a member's file snap/db"
	} else {
		f.registerPlace(cmd)
	}
	fl.StringVar(&f.scratchDir, "scratch-dir", defaultScratchDir(), "folder for the decoded database; not on etcd's disk")
	fl.BoolVar(&f.skipHashCheck, "skip-hash-check", false, "also read a database whose checksum at its end is wrong; its pages are checked all the same")
	fl.StringVar(&f.encryptionConfig, "encryption-config", "", "the API server's file of --encryption-provider-config, which opens what is encrypted at rest")
	fl.StringVarP(&f.objectNamespace, "namespace", "n", "", "namespace of the objects")
	fl.BoolVarP(&f.allNamespaces, "all-namespaces", "A", false, "objects of all namespaces")
	fl.StringVarP(&f.selector, "selector", "l", "", "only objects with these labels, in kubectl's form: app=web,tier!=cache")
}

// secretsFlag registers --show-secrets.
func (f *objectFlags) secretsFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.showSecrets, "show-secrets", false, "show the data of Secrets")
}

// query reads which objects are meant. Without -n or -A it is the namespace that is given here; empty is all.
func (f *objectFlags) query(args []string, namespace string) (q inspect.Query, err error) {
	if f.objectNamespace != "" && f.allNamespaces {
		return q, usageErrorf("--namespace and --all-namespaces exclude each other")
	}
	if q.Wanted, err = inspect.ParseWanted(args); err != nil {
		return q, err
	}
	if q.Selector, err = labels.Parse(f.selector); err != nil {
		return q, usageErrorf("--selector: %w", err)
	}
	if q.Namespace = f.objectNamespace; q.Namespace == "" && !f.allNamespaces {
		q.Namespace = namespace
	}
	return q, nil
}

// selected is the snapshot as it was asked for: the newest, if it was not.
func (f *objectFlags) selected() (restore.Selection, error) {
	if count(f.snapshot != "", f.latest, f.at != "", f.from != "") > 1 {
		return restore.Selection{}, usageErrorf("--snapshot, --latest, --at and --from exclude each other")
	}
	if f.snapshot != "" {
		if _, ok := archive.ParseName(f.snapshot); !ok {
			return restore.Selection{}, usageErrorf("--snapshot: %q is not the name of a snapshot (see etcd-snapshot-agent list); a file is given with --from", f.snapshot)
		}
	}
	if f.snapshot == "" && f.at == "" {
		f.latest = true
	}
	return f.selection(f.snapshot)
}

// checkPlace makes sure that it is said where snapshots are.
func (f *objectFlags) checkPlace(needed bool) error {
	places := count(f.name != "" || f.file != "", f.fromDir != "", f.from != "")
	if places > 1 {
		return usageErrorf("--policy or --policy-file, --from-dir and --from exclude each other")
	}
	if places == 0 && needed {
		return usageErrorf("say where the snapshot is: --policy-file, --policy, --from-dir or --from")
	}
	return nil
}

// reading are the databases that a verb reads.
type reading struct {
	f       *objectFlags
	e       *env
	keys    *object.Keys
	scratch *verify.Scratch
	n       int
	opened  []*inspect.Snapshot
}

// begin reads the keys; end must be called.
func (f *objectFlags) begin(e *env) (*reading, error) {
	r := &reading{f: f, e: e, keys: &object.Keys{}}
	if f.encryptionConfig != "" {
		var err error
		if r.keys, err = object.LoadKeys(f.encryptionConfig); err != nil {
			return nil, usageErrorf("--encryption-config: %w", err)
		}
	}
	return r, nil
}

func (r *reading) end() {
	for _, s := range r.opened {
		s.Close()
	}
	if r.scratch != nil {
		if err := r.scratch.Close(); err != nil {
			r.e.log.Warn("the scratch folder could not be removed; the next run removes it", "error", err)
		}
	}
}

// one opens the snapshot that the flags pick.
func (r *reading) one(ctx context.Context, revision int64) (*inspect.Snapshot, error) {
	if err := r.f.checkPlace(true); err != nil {
		return nil, err
	}
	want, err := r.f.selected()
	if err != nil {
		return nil, err
	}
	if r.f.from != "" && r.f.from != "-" {
		return r.file(ctx, r.f.from, revision)
	}
	request, done, err := r.f.request(ctx, r.e, want, true)
	defer done()
	if err != nil {
		return nil, err
	}
	return r.copy(ctx, request, revision)
}

// file opens a local file: a plain database where it lies, all else decoded.
func (r *reading) file(ctx context.Context, path string, revision int64) (*inspect.Snapshot, error) {
	trusted, err := r.f.trusted(nil)
	if err != nil {
		return nil, err
	}
	if f, err := etcddb.Open(path); err == nil && trusted == nil {
		f.Close()
		if !r.f.skipHashCheck {
			if err := verify.Trailer(ctx, path); err != nil {
				return nil, err
			}
		}
		return r.open(ctx, path, path, revision)
	}
	src, err := restore.FromFile(path, trusted)
	if err != nil {
		return nil, &usageError{err}
	}
	ids, err := r.e.loadIdentities(r.f.identities)
	if err != nil {
		return nil, err
	}
	return r.copy(ctx, restore.Request{Sources: []*restore.Source{src}, Identities: ids, Progress: r.e.readProgress(), Log: r.e.log}, revision)
}

// copy decodes a stored snapshot into the scratch folder, proves it, and opens it.
func (r *reading) copy(ctx context.Context, request restore.Request, revision int64) (*inspect.Snapshot, error) {
	if r.scratch == nil {
		var err error
		if r.scratch, err = verify.OpenScratch(r.f.scratchDir, r.e.log); err != nil {
			return nil, err
		}
	}
	request.SkipHashCheck, request.AllowNoChecksum, request.AllowOtherCluster = r.f.skipHashCheck, true, true
	r.n++
	p, err := restore.Prove(ctx, request, filepath.Join(r.scratch.Path(), fmt.Sprintf("snapshot-%d.db", r.n)))
	if err != nil {
		return nil, err
	}
	r.e.log.Info("reading", "snapshot", p.Snapshot, "uri", p.URI, "revision", p.Revision)
	s, err := r.open(ctx, p.Snapshot, p.Path, revision)
	// It is open: the name is not needed, and the room is free as soon as it is closed.
	return s, errors.Join(err, os.Remove(p.Path))
}

func (r *reading) open(ctx context.Context, name, path string, revision int64) (*inspect.Snapshot, error) {
	s, err := inspect.Open(ctx, path, inspect.Options{Revision: revision, Keys: r.keys})
	r.e.status.clear()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	r.opened = append(r.opened, s)
	if revision > s.Revision {
		return nil, usageErrorf("--revision: %s ends at revision %d", name, s.Revision)
	}
	return s, nil
}

// close closes one of them before the others.
func (r *reading) close(s *inspect.Snapshot) {
	r.opened = slices.DeleteFunc(r.opened, func(o *inspect.Snapshot) bool { return o == s })
	s.Close()
}

// blocks flushes a table now and then: it keeps what it has not printed in memory.
type blocks struct {
	*table
	n int
}

const blockRows = 1000

func (b *blocks) row(cells ...any) error {
	b.table.row(cells...)
	if b.n++; b.n%blockRows == 0 {
		return b.flush()
	}
	return nil
}

// wantedNames writes queries as they were given.
func wantedNames(ws []inspect.Wanted) string {
	var all []string
	for _, w := range ws {
		all = append(all, w.String())
	}
	return strings.Join(all, ", ")
}
