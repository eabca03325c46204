package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"filippo.io/age"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/catalog"
	"etcdsnapshot.dev/agent/destination"
	"etcdsnapshot.dev/agent/retention"
	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/verify"
)

type verifyFlags struct {
	policyFlags
	trustFlags
	latest, all        bool
	level, since       string
	scratchDir, output string
	span               retention.Span
	identities         []string
	stall              time.Duration
	metrics, notify    time.Duration
}

func newVerify(e *env) *cobra.Command {
	f := &verifyFlags{}
	cmd := &cobra.Command{
		Use:   "verify [NAME... | --latest | --all]",
		Short: "Prove stored snapshots",
		Long: `Reads stored snapshots back and proves them, each copy in each destination. Levels, each with those before:

  checksum   the object is the one that was stored: its size and SHA-256
  database   it decrypts and decompresses; etcd's own checksum; every page of the database; its revision, keys and hash
  restore    an etcd starts from it, on no network, and serves every key; its Kubernetes objects are counted by kind

Without an identity an encrypted snapshot can be verified at level checksum only. Levels database and restore write the
decoded database to --scratch-dir (restore: 1.2 times its size and 64 MiB) and remove it again.`,
		Example: `  etcd-snapshot-agent verify --policy etcd -n kube-system
  etcd-snapshot-agent verify --policy-file etcd.yaml --all --since 7d --level restore --identity key.txt`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd.Context(), e, args, cmd.Flags().Changed("level"))
		},
	}
	f.register(cmd)
	fl := cmd.Flags()
	fl.BoolVar(&f.latest, "latest", false, "the newest snapshot of the policy (the default)")
	fl.BoolVar(&f.all, "all", false, "all snapshots of the policy")
	fl.StringVar(&f.since, "since", "", "only snapshots not older than this (12h, 7d, 1m); without --latest it means --all")
	fl.StringVar(&f.level, "level", string(verify.LevelDatabase), "how much to prove: checksum, database or restore")
	fl.StringSliceVar(&f.identities, "identity", nil, "file with the age or SSH private key that opens encrypted snapshots (repeatable)")
	f.registerTrust(cmd)
	fl.StringVar(&f.scratchDir, "scratch-dir", defaultScratchDir(), "folder for the decoded database; not on etcd's disk")
	fl.DurationVar(&f.stall, "stall-timeout", time.Minute, "give up a download that makes no progress for this long")
	metricsTimeFlag(fl, &f.metrics)
	notifyTimeFlag(fl, &f.notify)
	outputFlag(cmd, &f.output)
	// An error here would mean that the flag above does not exist.
	_ = cmd.RegisterFlagCompletionFunc("level", cobra.FixedCompletions([]string{"checksum", "database", "restore"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func defaultScratchDir() string { return os.TempDir() + "/etcd-snapshot-scratch" }

// newDrill is the child's side of verify's level restore.
func newDrill(e *env) *cobra.Command {
	return &cobra.Command{
		Use: drillVerb, Hidden: true, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if code := verify.DrillMain(e.stdin, e.stdout, e.stderr); code != 0 {
				return usageErrorf("%s is a part of verify --level restore", drillVerb)
			}
			return nil
		},
	}
}

const drillVerb = "verify-drill"

func (f *verifyFlags) check(names []string) error {
	if err := checkOutput(f.output, "table", "json"); err != nil {
		return err
	}
	if !slices.Contains(verify.Levels, verify.Level(f.level)) {
		return usageErrorf("--level: %q is none of checksum, database, restore", f.level)
	}
	for _, name := range names {
		if _, ok := archive.ParseName(name); !ok {
			return usageErrorf("%q is not the name of a snapshot (see etcd-snapshot-agent list)", name)
		}
	}
	ways := 0
	for _, given := range []bool{len(names) > 0, f.latest, f.all} {
		if given {
			ways++
		}
	}
	if ways > 1 {
		return usageErrorf("names, --latest and --all exclude each other")
	}
	if len(names) > 0 && f.since != "" {
		return usageErrorf("--since goes with --latest or --all, not with names")
	}
	var err error
	if f.span, err = retention.ParseSpan(f.since); err != nil {
		return usageErrorf("--since: %w", err)
	}
	return nil
}

// verifyRow is what is known of one copy after its verification.
type verifyRow struct {
	Snapshot    string `json:"snapshot"`
	Destination string `json:"destination"`
	URI         string `json:"uri,omitempty"`
	Level       string `json:"level"`
	// Result is Passed, Failed (the copy is corrupt) or Unknown (it could not be checked).
	Result         string        `json:"result"`
	Revision       int64         `json:"revision,omitempty"`
	TotalKeys      int64         `json:"totalKeys,omitempty"`
	Hash           uint32        `json:"hash,omitempty"`
	StorageVersion string        `json:"storageVersion,omitempty"`
	DatabaseSize   int64         `json:"databaseSize,omitempty"`
	Drill          *verify.Drill `json:"drill,omitempty"`
	// Extras says how well the extras are proven, where there are some.
	Extras  *verify.ExtrasResult `json:"extras,omitempty"`
	Seconds float64              `json:"seconds"`
	Message string               `json:"message,omitempty"`

	err error
}

// resultUnknown stands beside v1.VerificationPassed and v1.VerificationFailed.
const resultUnknown = "Unknown"

func (f *verifyFlags) run(ctx context.Context, e *env, names []string, levelGiven bool) (err error) {
	if err := f.check(names); err != nil {
		return err
	}
	stepBack()
	ids, err := e.loadIdentities(f.identities)
	if err != nil {
		return err
	}
	l, err := f.load(ctx, e)
	if err != nil {
		return err
	}
	trusted, err := f.trusted(l.policy)
	if err != nil {
		return err
	}
	handover := l.handover(ctx, e, f.metrics)
	told := l.tell(ctx, e, v1.RunVerify, f.notify, false)
	defer func() { told.end(ctx, err) }()
	request := verify.Request{Level: verify.Level(f.level), Lower: !levelGiven, Identities: ids, StallTimeout: f.stall, Log: e.log}
	if request.Level != verify.LevelChecksum {
		scratch, err := verify.OpenScratch(f.scratchDir, e.log)
		if err != nil {
			return err
		}
		defer func() {
			if err := scratch.Close(); err != nil {
				e.log.Warn("the scratch folder could not be removed; the next verify removes it", "error", err)
			}
		}()
		request.Scratch = scratch
	}
	if request.Level == verify.LevelRestore {
		exe, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find this program to start it again: %w", err)
		}
		request.DrillCommand = []string{exe, drillVerb}
	}

	opened, unusable, done := l.open(ctx, destination.Options{StallTimeout: f.stall, Trusted: trusted, Log: e.log})
	defer done()
	survey := destination.Look(ctx, opened)
	failures := l.unusableErrors(unusable)
	report := catalog.Report{Policy: l.policy, Owner: l.owner, Node: nodeName(""), Manifest: manifests(opened)}
	for _, part := range survey.Destinations {
		seen := reported(part.Destination)
		if part.Err != nil {
			failures = append(failures, fmt.Errorf("destination %s: %w", part.Destination.Spec.Name, part.Err))
		} else {
			seen.Listed, seen.Snapshots = true, ofPolicy(part.Inventory, l.policy.Name)
		}
		report.Destinations = append(report.Destinations, seen)
	}
	copies, err := f.choose(e, l, survey, names, time.Now())
	if err != nil {
		return &unverifiedError{append(failures, err)}
	}
	rows := []verifyRow{}
	for _, c := range copies {
		row := f.verify(ctx, e, c, request)
		if cause := context.Cause(ctx); cause != nil {
			break // what was interrupted is not known to be anything
		}
		rows = append(rows, row)
		note(ctx, e, c, row)
		if row.err != nil {
			failures = append(failures, fmt.Errorf("%s in destination %s: %w", row.Snapshot, row.Destination, row.err))
		}
	}
	e.status.clear()
	report.Verifications = verifications(rows)
	told.verified(f.level, rows)
	l.record(ctx, e, report)
	handover.end(ctx, report)
	if err := f.print(e, rows); err != nil {
		failures = append(failures, err)
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if len(failures) > 0 {
		return &unverifiedError{failures}
	}
	e.terminationMessage(fmt.Sprintf("verified %d copies at level %s", len(rows), f.level))
	return nil
}

// loadIdentities reads the files of --identity.
func (e *env) loadIdentities(paths []string) (ids []age.Identity, err error) {
	for _, path := range paths {
		more, warning, err := archive.LoadIdentityFile(path)
		if err != nil {
			return nil, usageErrorf("--identity: %w", err)
		}
		if warning != "" {
			e.log.Warn(warning)
		}
		ids = append(ids, more...)
	}
	return ids, nil
}

// copyToVerify is one snapshot in one destination.
type copyToVerify struct {
	name string
	d    *destination.Destination
	// entry is nil where the list does not show the snapshot whole.
	entry *destination.Entry
}

// choose picks the copies. A snapshot without data counts where its manifest says that there should be some; data without
// a manifest may be a snapshot that is just being stored, so it counts where it was named, and is logged otherwise.
func (f *verifyFlags) choose(e *env, l *loaded, survey *destination.Survey, names []string, now time.Time) (copies []copyToVerify, err error) {
	var all []string // newest first
	where := map[string][]copyToVerify{}
	add := func(name string, d *destination.Destination, entry *destination.Entry) {
		parsed, _ := archive.ParseName(name)
		if len(names) > 0 && !slices.Contains(names, name) || len(names) == 0 && parsed.Policy != l.policy.Name {
			return
		}
		if f.since != "" && parsed.Time.Before(f.span.Before(now)) {
			return
		}
		if !slices.Contains(all, name) {
			all = append(all, name)
		}
		where[name] = append(where[name], copyToVerify{name, d, entry})
	}
	unlisted := false
	for _, part := range survey.Destinations {
		if part.Err != nil {
			unlisted = true
			continue
		}
		for _, s := range part.Inventory.Snapshots {
			add(s.Name, part.Destination, &s)
		}
		for _, name := range part.Inventory.Dangling {
			add(name, part.Destination, nil)
		}
		for _, o := range part.Inventory.Orphans {
			if slices.Contains(names, o.Name) {
				add(o.Name, part.Destination, nil)
			} else {
				e.log.Warn("data without a manifest is not a snapshot: it is being stored just now, was left over, or lost its manifest", "uri", part.Destination.URI(o.Key))
			}
		}
	}
	for _, name := range names {
		switch {
		case where[name] != nil:
		case unlisted:
			err = errors.Join(err, fmt.Errorf("no destination that answered has a snapshot %s", name))
		default:
			err = errors.Join(err, usageErrorf("no destination has a snapshot %s (see etcd-snapshot-agent list)", name))
		}
	}
	if err != nil {
		return nil, err
	}
	listed := map[string]retention.Snapshot{}
	for _, row := range survey.Snapshots {
		listed[row.Name] = row.Snapshot()
	}
	order := func(name string) retention.Snapshot {
		if s, ok := listed[name]; ok {
			return s
		}
		parsed, _ := archive.ParseName(name)
		return retention.Snapshot{Name: name, Time: parsed.Time}
	}
	slices.SortFunc(all, func(a, b string) int { return retention.NewestFirst(order(a), order(b)) })
	if len(names) == 0 && !f.all && (f.latest || f.since == "") {
		all = all[:min(len(all), 1)]
	}
	for _, name := range all {
		copies = append(copies, where[name]...)
	}
	if len(copies) == 0 && !unlisted {
		return nil, errors.New("there is no snapshot to verify: none is stored, or none within --since")
	}
	return copies, nil
}

func (f *verifyFlags) verify(ctx context.Context, e *env, c copyToVerify, r verify.Request) verifyRow {
	if e.status.terminal {
		m := newMeter("reading " + c.name + " from " + c.d.Spec.Name)
		r.Progress = func(read, total int64) { m.show(e.status, read, total) }
	}
	begin := time.Now()
	res, err := verify.Stored(ctx, c.d, c.name, r)
	row := verifyRow{Snapshot: c.name, Destination: c.d.Spec.Name, Level: string(res.Level), Result: v1.VerificationPassed,
		Drill: res.Drill, Extras: res.Extras, Seconds: time.Since(begin).Round(time.Millisecond).Seconds(), err: err}
	if res.Key != "" {
		row.URI = c.d.URI(res.Key)
	}
	if facts := res.Facts; facts != nil {
		row.Revision, row.TotalKeys, row.Hash, row.StorageVersion, row.DatabaseSize = facts.Revision, facts.TotalKeys, facts.Hash, facts.StorageVersion, facts.Size
	}
	switch {
	case errors.Is(err, archive.ErrCorrupt):
		row.Result, row.Message = v1.VerificationFailed, oneLine(err)
	case err != nil:
		row.Result, row.Message = resultUnknown, oneLine(err)
	case res.Lowered:
		row.Message = "encrypted: without --identity only its checksum can be verified"
	case res.Extras != nil && !res.Extras.Opened && row.Level != string(verify.LevelChecksum):
		row.Message = "no --identity opens the extras: only their checksum was verified"
	case res.Drill != nil && res.Drill.Undecodable > 0:
		row.Message = fmt.Sprintf("%d values begin like a Kubernetes object and cannot be decoded, such as %s; etcd held them so", res.Drill.Undecodable, res.Drill.Example)
	}
	return row
}

// note leaves the outcome beside the copy, for list --all-clusters. A verification is good without: its identity may well
// not be allowed to write.
func note(ctx context.Context, e *env, c copyToVerify, row verifyRow) {
	if c.entry == nil || row.Result == resultUnknown {
		return
	}
	err := c.d.Note(ctx, *c.entry, row.outcome())
	switch {
	case errors.Is(err, store.ErrAccessDenied), errors.Is(err, store.ErrProtected):
		e.log.Info("the outcome is not noted in the destination, which may not be written to; list --all-clusters does not know of it",
			"snapshot", c.name, "destination", c.d.Spec.Name, "error", err)
	case err != nil:
		e.log.Warn("the outcome could not be noted in the destination; list --all-clusters does not know of it",
			"snapshot", c.name, "destination", c.d.Spec.Name, "error", err)
	}
}

func (r *verifyRow) outcome() v1.VerificationStatus {
	return v1.VerificationStatus{Time: metav1.Now(), Level: r.Level, Result: r.Result, Revision: r.Revision, TotalKeys: r.TotalKeys, Message: r.Message}
}

// verifications sums up the copies of each snapshot: one that is corrupt fails it, and one that could not be checked leaves
// it as it was, unless another passed.
func verifications(rows []verifyRow) map[string]v1.VerificationStatus {
	all := map[string]v1.VerificationStatus{}
	messages := map[string][]string{}
	for _, r := range rows {
		if r.Message != "" {
			messages[r.Snapshot] = append(messages[r.Snapshot], r.Destination+": "+r.Message)
		}
		before, ok := all[r.Snapshot]
		if r.Result == resultUnknown || ok && before.Result == v1.VerificationFailed {
			continue
		}
		done := r.outcome()
		if done.Revision == 0 {
			done.Revision, done.TotalKeys = before.Revision, before.TotalKeys
		}
		all[r.Snapshot] = done
	}
	for name, done := range all {
		done.Message = strings.Join(messages[name], "; ")
		all[name] = done
	}
	return all
}

func (f *verifyFlags) print(e *env, rows []verifyRow) error {
	if f.output == "json" {
		return printJSON(e.stdout, map[string]any{"level": f.level, "copies": rows})
	}
	if len(rows) == 0 {
		return nil
	}
	t := newTable(e.stdout, "SNAPSHOT", "DESTINATION", "LEVEL", "RESULT", "REVISION", "KEYS", "TOOK", "MESSAGE")
	for _, r := range rows {
		revision, keys := "-", "-"
		if r.DatabaseSize > 0 {
			revision, keys = fmt.Sprint(r.Revision), fmt.Sprint(r.TotalKeys)
		}
		took := time.Duration(r.Seconds * float64(time.Second)).Round(10 * time.Millisecond)
		t.row(r.Snapshot, r.Destination, r.Level, r.Result, revision, keys, took, orDash(r.Message))
	}
	if err := t.flush(); err != nil {
		return err
	}
	for _, r := range rows {
		if r.Drill != nil {
			if err := printDrill(e, r); err != nil {
				return err
			}
		}
	}
	return nil
}

func printDrill(e *env, r verifyRow) error {
	fmt.Fprintf(e.stdout, "\n%s from %s: etcd %s started from it and served %d keys, %d of them Kubernetes objects:\n",
		r.Snapshot, r.Destination, r.Drill.EtcdVersion, r.Drill.Keys, r.Drill.Objects())
	t := newTable(e.stdout, "  KIND", "COUNT", "SIZE")
	for _, k := range r.Drill.List {
		t.row("  "+k.String(), k.Count, humanBytes(k.Bytes))
	}
	return t.flush()
}

// unverifiedError is all that a verification found wrong.
type unverifiedError struct{ errs []error }

func (e *unverifiedError) Error() string   { return errors.Join(e.errs...).Error() }
func (e *unverifiedError) Unwrap() []error { return e.errs }

// exitCode puts what is known to be bad before what could not be checked.
func (e *unverifiedError) exitCode() int {
	code := exitConfig
	for _, err := range e.errs {
		switch {
		case errors.Is(err, archive.ErrCorrupt):
			return exitCorrupt
		case !isConfig(err):
			code = exitFailed
		}
	}
	return code
}
