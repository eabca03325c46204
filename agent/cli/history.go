package cli

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"etcdsnapshot.dev/agent/destination"
	"etcdsnapshot.dev/agent/inspect"
	"etcdsnapshot.dev/agent/object"
	"etcdsnapshot.dev/agent/restore"
	"etcdsnapshot.dev/agent/retention"
)

type historyFlags struct {
	objectFlags
	allSnapshots  bool
	all           bool
	since, output string
	span          retention.Span
}

func newHistory(e *env) *cobra.Command {
	f := &historyFlags{}
	cmd := &cobra.Command{
		Use:   "history KIND NAME | KIND/NAME",
		Short: "Show the versions of an object that snapshots still hold",
		Long: `Shows each version of an object that is still in a snapshot, deletions among them, and what it changed: etcd keeps versions
until it is compacted, which Kubernetes does every five minutes. --all-snapshots, or --since, looks into all snapshots, the
oldest first; each of them is read as a whole. Versions that changed nothing but status and the like are left out unless
--all is given.

"get KIND NAME --snapshot SNAPSHOT --revision REVISION" shows a version. WRITTEN is what the object's metadata tells.`,
		Example: `  etcd-snapshot-agent history cm settings -n shop --policy-file policy.yaml --since 2d
  etcd-snapshot-agent history deploy/web -n shop --from snapshot.db -o diff`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), e, args) },
	}
	f.register(cmd, true)
	f.secretsFlag(cmd)
	fl := cmd.Flags()
	fl.BoolVar(&f.allSnapshots, "all-snapshots", false, "look into all snapshots of the policy, or of the folder")
	fl.StringVar(&f.since, "since", "", "look into all snapshots not older than this (12h, 7d, 1m)")
	fl.BoolVar(&f.all, "all", false, "leave nothing out: also versions that changed nothing but status and the like")
	outputFlag(cmd, &f.output, "diff")
	return cmd
}

// objectVersion is one row of a history.
type objectVersion struct {
	Key       string `json:"key"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Revision of the change; 0 where a deletion is known only from the object's absence in a later snapshot.
	Revision int64 `json:"revision,omitempty"`
	// Written is what the object tells; etcd keeps no times.
	Written string `json:"written,omitempty"`
	// Change is created, changed, deleted, or unknown where the version before is compacted.
	Change string `json:"change"`
	Size   int    `json:"size"`
	// Missing is how many versions between this one and the one before it are compacted.
	Missing  int64    `json:"missingBefore,omitempty"`
	Fields   []string `json:"fields,omitempty"`
	Snapshot string   `json:"snapshot,omitempty"`
	Message  string   `json:"message,omitempty"`
}

func (f *historyFlags) run(ctx context.Context, e *env, args []string) error {
	if err := checkOutput(f.output, "table", "json", "diff"); err != nil {
		return err
	}
	var err error
	if f.span, err = retention.ParseSpan(f.since); err != nil {
		return usageErrorf("--since: %w", err)
	}
	many := f.allSnapshots || f.since != ""
	if many && count(f.snapshot != "", f.latest, f.at != "", f.from != "") > 0 {
		return usageErrorf("--all-snapshots and --since exclude --snapshot, --latest, --at and --from")
	}
	q, err := f.query(args, "default")
	if err != nil {
		return err
	}
	if slices.ContainsFunc(q.Wanted, func(w inspect.Wanted) bool { return w.Name == "" }) {
		return usageErrorf("say which object: KIND NAME or KIND/NAME")
	}
	r, err := f.begin(e)
	if err != nil {
		return err
	}
	defer r.end()
	h := &historian{historyFlags: f, e: e, before: map[string]*before{}, seen: map[versionID]bool{}}
	if many {
		err = f.everySnapshot(ctx, r, h, q)
	} else {
		var s *inspect.Snapshot
		if s, err = r.one(ctx, 0); err == nil {
			err = h.add(ctx, s, q, "")
		}
	}
	if len(h.versions) == 0 && h.printed == 0 {
		if err != nil {
			return err
		}
		return fmt.Errorf("no version of %s is left in the snapshot: see --since for others, and keys -A for where it may be", wantedNames(q.Wanted))
	}
	return errors.Join(h.print(many), err)
}

// everySnapshot looks into the snapshots, the oldest first: what is in an older one need not be in the next. One that cannot
// be read does not keep the others from telling what they know.
func (f *historyFlags) everySnapshot(ctx context.Context, r *reading, h *historian, q inspect.Query) error {
	if err := f.checkPlace(true); err != nil {
		return err
	}
	s, err := f.survey(ctx, r.e)
	if err != nil {
		return err
	}
	defer s.done()
	s.warn(r.e)
	rows := slices.DeleteFunc(slices.Clone(s.Snapshots), func(row destination.Row) bool {
		return s.policy != "" && row.Policy != s.policy || f.since != "" && row.Time.Before(f.span.Before(time.Now()))
	})
	slices.Reverse(rows)
	ids, err := r.e.loadIdentities(f.identities)
	if err != nil {
		return err
	}
	var errs []error
	for _, row := range rows {
		sources, err := s.copies(ctx, row, f.stall, true)
		if err != nil {
			return err
		}
		snap, err := r.copy(ctx, restore.Request{Sources: sources, Identities: ids, Progress: r.e.readProgress(), Log: r.e.log}, 0)
		switch {
		case err != nil && ctx.Err() != nil:
			return err
		case err != nil:
			errs = append(errs, err)
			continue
		}
		if err := h.add(ctx, snap, q, row.Name); err != nil {
			return err
		}
		r.close(snap)
	}
	return errors.Join(errs...)
}

// historian makes rows of versions as they come.
type historian struct {
	*historyFlags
	e        *env
	versions []objectVersion
	printed  int
	before   map[string]*before
	seen     map[versionID]bool
	quiet    int // versions that are left out
	// upTo is the last revision of the snapshot before.
	upTo int64
}

// versionID tells the versions of an object apart: after a restore, a revision can come a second time with something else.
type versionID struct {
	key      string
	revision int64
	value    [sha256.Size]byte
}

// before is the version before, by key. Its object is nil where it was deleted, or cannot be decoded.
type before struct {
	row    objectVersion
	object *object.Object
	writes int64
}

func (h *historian) add(ctx context.Context, s *inspect.Snapshot, q inspect.Query, name string) error {
	changes, err := s.History(ctx, q)
	if err != nil {
		return err
	}
	if s.Revision < h.upTo {
		h.e.log.Warn("its revisions begin anew: the cluster was restored or made again", "snapshot", name, "revision", s.Revision, "before", h.upTo)
	}
	h.upTo = s.Revision
	there := map[string]bool{}
	for _, c := range changes {
		there[string(c.Key)] = true
		id := versionID{string(c.Key), c.Revision, sha256.Sum256(c.Value)}
		if h.seen[id] {
			continue
		}
		h.seen[id] = true
		if err := h.version(c, name); err != nil {
			return err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(h.before)) {
		if was := h.before[key]; !there[key] && was.row.Change != "deleted" {
			v := objectVersion{Key: key, Kind: was.row.Kind, Namespace: was.row.Namespace, Name: was.row.Name, Change: "deleted", Snapshot: name,
				Message: "since the snapshot before; the revision is compacted"}
			if err := h.row(v, was, &before{}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (h *historian) version(c inspect.Item, snapshot string) error {
	key := string(c.Key)
	was := h.before[key]
	v := objectVersion{Key: key, Kind: c.KindName(), Revision: c.Revision, Size: len(c.Value), Snapshot: snapshot}
	now := &before{writes: c.Version}
	switch {
	case c.Deleted:
		v.Change, v.Kind, v.Namespace, v.Name = "deleted", was.row.Kind, was.row.Namespace, was.row.Name
	default:
		v.Namespace, v.Name = c.Location()
		o, err := c.Object()
		if err != nil {
			v.Message = oneLine(err)
		} else if now.object = o; !o.WrittenAt().IsZero() {
			v.Written = o.WrittenAt().UTC().Format(time.RFC3339)
		}
		switch {
		case c.Version == 1:
			v.Change = "created"
		case was == nil || was.writes == 0 || was.writes >= c.Version:
			v.Change, v.Missing = "unknown", c.Version-1
		default:
			v.Change, v.Missing = "changed", c.Version-was.writes-1
		}
		if v.Change == "changed" && was.object != nil && now.object != nil {
			v.Fields = object.Differences(h.compared(was.object).Object, h.compared(o).Object)
			if len(v.Fields) == 0 {
				h.quiet++
				now.row = was.row
				h.before[key] = now
				return nil
			}
		}
	}
	return h.row(v, was, now)
}

func (h *historian) row(v objectVersion, was, now *before) error {
	now.row = v
	h.before[v.Key] = now
	if h.output == "diff" {
		return h.diff(v, was, now)
	}
	h.versions = append(h.versions, v)
	return nil
}

// compared is an object as it is compared with the version before.
func (h *historian) compared(o *object.Object) *object.Object {
	o = o.Copy()
	if h.all {
		delete(o.Object["metadata"].(map[string]any), "managedFields")
	} else {
		object.Quiet(o)
	}
	return o
}

// diff prints what a version changed.
func (h *historian) diff(v objectVersion, was, now *before) error {
	h.printed++
	var a, b *object.Object
	from := "/dev/null"
	if was != nil && was.object != nil && v.Change != "created" {
		a, from = h.compared(was.object), fmt.Sprintf("%s at revision %d", v.Key, was.row.Revision)
	}
	to := fmt.Sprintf("%s at revision %d (%s)", v.Key, v.Revision, v.Change)
	if v.Revision == 0 {
		to = fmt.Sprintf("%s (%s %s)", v.Key, v.Change, v.Message)
	}
	if now.object != nil {
		b = h.compared(now.object)
	}
	return printUnified(h.e.stdout, a, b, from, to, h.showSecrets)
}

func (h *historian) print(many bool) error {
	if h.quiet > 0 {
		h.e.log.Info("left out: versions that changed nothing but status and the like (--all shows them)", "versions", h.quiet)
	}
	switch h.output {
	case "json":
		return printJSON(h.e.stdout, map[string]any{"versions": h.versions})
	case "diff":
		return nil
	}
	slices.SortStableFunc(h.versions, func(a, b objectVersion) int { return bytes.Compare([]byte(a.Key), []byte(b.Key)) })
	header := []string{"KIND", "NAME", "REVISION", "WRITTEN", "CHANGE", "SIZE", "FIELDS"}
	if many {
		header = slices.Insert(header, 6, "SNAPSHOT")
	}
	t := newTable(h.e.stdout, header...)
	for _, v := range h.versions {
		name := v.Name
		if v.Namespace != "" {
			name = v.Namespace + "/" + name
		}
		size, revision := "-", "-"
		if v.Change != "deleted" {
			size = humanBytes(int64(v.Size))
		}
		if v.Revision > 0 {
			revision = strconv.FormatInt(v.Revision, 10)
		}
		cells := []any{v.Kind, name, revision, orDash(v.Written), v.Change, size, summary(v.Fields, v.Missing, v.Message)}
		if many {
			cells = slices.Insert(cells, 6, any(v.Snapshot))
		}
		t.row(cells...)
	}
	return t.flush()
}

// summary names the fields that changed, the first few of them.
func summary(fields []string, missing int64, message string) string {
	const most = 4
	var parts []string
	if len(fields) > most {
		parts = append(slices.Clone(fields[:most]), fmt.Sprintf("and %d more", len(fields)-most))
	} else {
		parts = fields
	}
	text := strings.Join(parts, ", ")
	if missing > 0 {
		text = strings.TrimSpace(text + fmt.Sprintf(" (compacted before it: %d)", missing))
	}
	if message != "" {
		text = strings.TrimSpace(text + " " + message)
	}
	return orDash(text)
}
