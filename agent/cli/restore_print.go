package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"etcdsnapshot.dev/agent/restore"
	"etcdsnapshot.dev/agent/verify"
)

// runPlan proves the snapshot and prints one command for each member.
func (f *restoreFlags) runPlan(ctx context.Context, e *env, want restore.Selection) error {
	var members []restore.Member
	if f.plan != "snapshot" {
		var err error
		if members, err = restore.ReadMembers(f.plan); err != nil {
			return &usageError{err}
		}
	}
	if f.from == "-" {
		return usageErrorf("--plan needs a snapshot that every node can read, not stdin")
	}
	scratch, err := verify.OpenScratch(f.scratchDir, e.log)
	if err != nil {
		return err
	}
	defer scratch.Close()
	r, done, err := f.request(ctx, e, want)
	defer done()
	if err != nil {
		return err
	}
	r.Room = func(size int64, decoded bool) error {
		if decoded {
			return nil
		}
		return verify.CheckSpace(scratch.Path(), size, "choose another folder with --scratch-dir")
	}
	p, err := restore.Prove(ctx, r, filepath.Join(scratch.Path(), "snapshot.db"))
	e.status.clear()
	if err != nil {
		return err
	}
	plan, err := restore.Plan(p, members, restore.PlanOptions{Args: f.sourceArgs(p), Bump: f.bump, DataDir: f.dataDir, WALDir: f.walDir, ManifestsDir: f.manifestsDir})
	if err != nil {
		return err
	}
	if f.output == "json" {
		return printJSON(e.stdout, plan)
	}
	fmt.Fprintf(e.stdout, "Snapshot %s from %s was checked: revision %d, %d keys, sha256 %s.\n", p.Snapshot, p.URI, p.Revision, p.Keys, p.SHA256)
	fmt.Fprintf(e.stdout, "\n1. On every node, before any is restored, stop the control plane (a member that still runs would serve the old state):\n\n   %s\n", f.stopCommand(plan))
	fmt.Fprintf(e.stdout, "\n2. On each node its own command. The API server answers once %d of %d are done.\n", len(plan.Commands)/2+1, len(plan.Commands))
	for _, c := range plan.Commands {
		fmt.Fprintf(e.stdout, "\n   # %s (%s)\n   %s\n", c.Name, strings.Join(c.PeerURLs, ", "), c.Command)
	}
	last := restore.Follow(plan.Bump)
	if f.dataDir != "" {
		last = "Start etcd on every node, then everything that talks to it."
	}
	fmt.Fprintf(e.stdout, "\n3. %s\n", last)
	return nil
}

func (f *restoreFlags) stopCommand(p *restore.ClusterPlan) string {
	if p.Stop == "" {
		return "systemctl stop etcd   # and the API servers"
	}
	return p.Stop
}

// sourceArgs are the arguments that choose the same snapshot again, on any node.
func (f *restoreFlags) sourceArgs(p *restore.Proven) []string {
	var args []string
	switch {
	case f.from != "":
		args = append(args, "--from", f.from)
	case f.fromDir != "":
		args = append(args, p.Snapshot, "--from-dir", f.fromDir)
	case f.file != "":
		args = append(args, p.Snapshot, "--policy-file", f.file)
	default:
		args = append(args, p.Snapshot, "--policy", f.name)
		if f.namespace != "" {
			args = append(args, "--namespace", f.namespace)
		}
	}
	if len(f.destinations) > 0 {
		args = append(args, "--destination", strings.Join(f.destinations, ","))
	}
	for _, id := range f.identities {
		args = append(args, "--identity", id)
	}
	args = append(args, f.trustFlags.args()...)
	if f.skipHashCheck {
		args = append(args, "--skip-hash-check")
	}
	for _, flag := range []struct {
		name string
		set  bool
	}{{"--allow-other-cluster", f.allowOtherCluster}, {"--allow-newer-storage", f.allowNewerStorage}} {
		if flag.set {
			args = append(args, flag.name)
		}
	}
	return args
}

// runFile writes the proven database to a file and, for a distribution, says what to do with it.
func (f *restoreFlags) runFile(ctx context.Context, e *env, want restore.Selection) error {
	r, done, err := f.request(ctx, e, want)
	defer done()
	if err != nil {
		return err
	}
	file := f.dbFile
	if file == "" {
		file = restore.DatabaseFileName(r.Sources[0].Name)
	}
	if file, err = filepath.Abs(file); err != nil {
		return err
	}
	if f.dryRun {
		steps := []string{fmt.Sprintf("Fetch %s, check it, and write its database to %s.", r.Sources[0].URI, file)}
		if f.distribution != "" {
			more, err := restore.Guide(f.distribution, file, nil)
			if err != nil {
				return err
			}
			steps = append(steps, more...)
		}
		return f.printSteps(e, steps)
	}
	if _, err := os.Lstat(file); err == nil {
		return usageErrorf("%s is there already: name another file with --db-file", file)
	}
	r.SpaceHint = "choose another file with --db-file"
	r.Room = func(size int64, decoded bool) error {
		if decoded {
			return nil
		}
		return verify.CheckSpace(filepath.Dir(file), size, r.SpaceHint)
	}
	p, err := restore.WriteDatabase(ctx, r, file)
	e.status.clear()
	if err != nil {
		return err
	}
	var steps []string
	if f.distribution != "" {
		if steps, err = restore.Guide(f.distribution, file, p); err != nil {
			return err
		}
	}
	if f.output == "json" {
		return printJSON(e.stdout, struct {
			*restore.Proven
			Next []string `json:"next,omitempty"`
		}{p, steps})
	}
	fmt.Fprintf(e.stdout, "Snapshot %s from %s was checked: revision %d, %d keys. Its database is in %s (sha256 %s).\n", p.Snapshot, p.URI, p.Revision, p.Keys, file, p.SHA256)
	if len(steps) > 0 {
		fmt.Fprintf(e.stdout, "\nOn %s:\n", f.distribution)
	}
	for i, s := range steps {
		fmt.Fprintf(e.stdout, "\n%d. %s\n", i+1, strings.ReplaceAll(s, "\n", "\n   "))
	}
	return nil
}
