package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/restore"
)

type restoreFlags struct {
	sourceFlags
	skipHashCheck bool
	expectSHA256  string
	scratchDir    string

	// What it is restored to.
	dataDir, oldDataDir, walDir, member, initialCluster, token, etcdVersion string
	peerURLs                                                                []string
	bump                                                                    uint64
	markCompacted                                                           bool
	allowOtherCluster, allowNewerStorage                                    bool

	// Who does it.
	kubeadm, abort, alone, dryRun                    bool
	manifestsDir, distribution, plan, dbFile, output string
	extras                                           string
	force                                            bool
	stopTimeout, wait                                time.Duration

	changed func(flag string) bool
}

func newRestore(e *env) *cobra.Command {
	f := &restoreFlags{}
	cmd := &cobra.Command{
		Use:   "restore [NAME | --latest | --at TIME | --from FILE]",
		Short: "Bring a snapshot back",
		Long: `Rebuilds etcd's data directory from a snapshot. Everything is checked before anything is touched: checksums, decryption,
every page of the database, etcd's version, whose cluster it is, room on the disk. Nothing that is there is overwritten.

The snapshot comes from a policy's destinations (--policy-file needs no API server), from a folder of snapshots (--from-dir)
or from a file (--from; - is stdin): one of ours, encrypted or not, or a database as etcdctl, k3s or others save it.

  --kubeadm             on a control plane node that kubeadm made: stops the control plane, restores, swaps the data
                        directories, starts it again, and keeps the old one. Interrupted, the same command goes on, and
                        --abort goes back.
  --data-dir DIR        makes DIR, which must be missing or empty, for the member that the other flags describe.
  --plan FILE           prints one command for each member of a cluster of several.
  --distribution NAME   prints what to do on k3s, rke2, k0s, kops, openshift, talos, kubespray.
  --db-file FILE        only writes the checked, decrypted database, for etcdutl and other tools.
  --extras DIR          only extracts the node's files that were stored beside the snapshot, below DIR.

The revision is raised by 1,000,000,000 so that no client that watches sees it go back.`,
		Example: `  etcd-snapshot-agent restore --kubeadm --policy-file /etc/etcd-snapshot/policy.yaml --latest
  etcd-snapshot-agent restore --kubeadm --from-dir /var/lib/etcd-snapshots/prod-eu --at 2026-01-02T03:00:00Z
  etcd-snapshot-agent restore --from snapshot.db --data-dir /var/lib/etcd --name cp1 \
      --initial-cluster cp1=https://10.0.0.1:2380 --initial-advertise-peer-urls https://10.0.0.1:2380`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.changed = cmd.Flags().Changed
			name := ""
			if len(args) > 0 {
				name = args[0]
			}
			return f.run(cmd.Context(), e, name)
		},
	}
	f.register(cmd)
	f.registerSource(cmd)
	fl := cmd.Flags()
	fl.BoolVar(&f.skipHashCheck, "skip-hash-check", false, "also take a copied member/snap/db, which has no checksum of etcd's at its end; all else is checked")
	fl.StringVar(&f.expectSHA256, "expect-sha256", "", "refuse a snapshot whose database has another sha256; --plan prints it")
	fl.StringVar(&f.scratchDir, "scratch-dir", defaultScratchDir(), "folder for the decoded database with --plan")

	fl.StringVar(&f.dataDir, "data-dir", "", "data directory to make; it must be missing or empty")
	fl.StringVar(&f.oldDataDir, "old-data-dir", "", "the data directory from before, where it was moved: the new one gets its owner, and a revision above its own")
	fl.StringVar(&f.walDir, "wal-dir", "", "folder for the write-ahead log, where it is not in the data directory")
	fl.StringVar(&f.member, "name", "default", "name of the member")
	fl.StringVar(&f.initialCluster, "initial-cluster", "", "all members of the restored cluster: name=URL,... (default: this one alone)")
	fl.StringVar(&f.token, "initial-cluster-token", "", "token of the restored cluster (default: derived from the snapshot, the same on all members)")
	fl.StringSliceVar(&f.peerURLs, "initial-advertise-peer-urls", nil, "peer URLs of this member (default: http://localhost:2380)")
	fl.Uint64Var(&f.bump, "bump-revision", restore.DefaultBump, "how far to raise the revision; 0 leaves it. All members need the same")
	fl.BoolVar(&f.markCompacted, "mark-compacted", true, "mark the revisions before as compacted, as --bump-revision needs it")
	fl.StringVar(&f.etcdVersion, "etcd-version", "", "version of the etcd that will run on it (default with --kubeadm: its image's tag)")
	fl.BoolVar(&f.allowNewerStorage, "allow-newer-storage", false, "restore although a newer etcd wrote the snapshot")
	fl.BoolVar(&f.allowOtherCluster, "allow-other-cluster", false, "restore although the snapshot is another cluster's")

	fl.BoolVar(&f.kubeadm, "kubeadm", false, "replace the etcd of this control plane node, which kubeadm made")
	fl.BoolVar(&f.abort, "abort", false, "with --kubeadm: go back to how it was before the restore that is under way")
	fl.BoolVar(&f.alone, "alone", false, "with --kubeadm: restore this node as a cluster of one, which the other members join anew")
	fl.StringVar(&f.manifestsDir, "manifests-dir", restore.DefaultManifestsDir, "with --kubeadm: the kubelet's folder of static pods")
	fl.DurationVar(&f.stopTimeout, "stop-timeout", 2*time.Minute, "with --kubeadm: how long the control plane may take to stop")
	fl.DurationVar(&f.wait, "wait", 5*time.Minute, "with --kubeadm: how long the API server may take to answer; 0 does not wait")
	fl.StringVar(&f.plan, "plan", "", "print one command for each member listed in this file: a YAML list of {name, peerURL}, or etcd's static pod manifest; \"snapshot\" takes the members that the snapshot names")
	fl.StringVar(&f.distribution, "distribution", "", "print what to do on: "+strings.Join(restore.Distributions(), ", "))
	fl.StringVar(&f.dbFile, "db-file", "", "write the checked database to this new file, and restore nothing")
	fl.StringVar(&f.extras, "extras", "", "extract the extras of the snapshot below this folder (/ puts them where they were), and restore nothing")
	fl.BoolVar(&f.force, "force", false, "with --extras: replace files that differ")
	fl.BoolVar(&f.dryRun, "dry-run", false, "only tell what would be done")
	outputFlag(cmd, &f.output)
	// An error here would mean that the flag above does not exist.
	_ = cmd.RegisterFlagCompletionFunc("distribution", cobra.FixedCompletions(restore.Distributions(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// check finds contradictions between flags.
func (f *restoreFlags) check(name string) error {
	if err := checkOutput(f.output, "table", "json"); err != nil {
		return err
	}
	if name != "" {
		if _, ok := archive.ParseName(name); !ok {
			return usageErrorf("%q is not the name of a snapshot (see etcd-snapshot-agent list); a file is given with --from", name)
		}
	}
	picks := count(name != "", f.latest, f.at != "", f.from != "")
	places := count(f.name != "" || f.file != "", f.fromDir != "", f.from != "")
	ways := count(f.kubeadm, f.dataDir != "", f.plan != "", f.distribution != "" && f.distribution != "kubeadm", f.dbFile != "", f.extras != "")
	if f.plan != "" && f.dataDir != "" || f.distribution != "" && f.dbFile != "" || f.plan != "" && f.kubeadm {
		ways-- // what the commands that are printed are for; where the database goes
	}
	switch {
	case picks > 1:
		return usageErrorf("a name, --latest, --at and --from exclude each other")
	case places > 1:
		return usageErrorf("--policy or --policy-file, --from-dir and --from exclude each other")
	case ways == 0:
		return usageErrorf("say what to restore to: --kubeadm, --data-dir, --plan, --distribution, --db-file or --extras")
	case ways > 1:
		return usageErrorf("--kubeadm, --data-dir, --plan, --distribution, --db-file and --extras exclude each other")
	case f.force && f.extras == "":
		return usageErrorf("--force goes with --extras")
	case f.abort && !f.kubeadm:
		return usageErrorf("--abort goes with --kubeadm")
	case f.alone && !f.kubeadm:
		return usageErrorf("--alone goes with --kubeadm")
	case f.oldDataDir != "" && f.dataDir == "":
		return usageErrorf("--old-data-dir goes with --data-dir")
	case f.alone && f.initialCluster != "":
		return usageErrorf("--alone and --initial-cluster exclude each other")
	case f.changed("scratch-dir") && f.plan == "":
		return usageErrorf("--scratch-dir goes with --plan: otherwise the database is decoded beside where it is to be")
	case !f.markCompacted && f.changed("bump-revision") && f.bump > 0, f.markCompacted && f.changed("mark-compacted") && f.bump == 0:
		return usageErrorf("--bump-revision and --mark-compacted go together: etcd refuses one without the other")
	case picks == 0 && !f.kubeadm:
		return usageErrorf("say which snapshot: its name, --latest, --at TIME or --from FILE")
	case picks > 0 && places == 0:
		return usageErrorf("say where the snapshot is: --policy-file, --policy, --from-dir or --from")
	case f.abort && picks > 0:
		return usageErrorf("--abort goes back: it takes no snapshot")
	}
	if !f.markCompacted {
		f.bump = 0
	}
	return nil
}

func count(given ...bool) (n int) {
	for _, g := range given {
		if g {
			n++
		}
	}
	return n
}

func (f *restoreFlags) run(ctx context.Context, e *env, name string) error {
	if f.distribution == "kubeadm" {
		f.kubeadm = true
	}
	if err := f.check(name); err != nil {
		return err
	}
	if f.distribution != "" && !slices.Contains(restore.Distributions(), f.distribution) {
		return usageErrorf("--distribution: %q is none of %s", f.distribution, strings.Join(restore.Distributions(), ", "))
	}
	want, err := f.selection(name)
	if err != nil {
		return err
	}
	switch {
	case f.extras != "":
		return f.runExtras(ctx, e, want)
	case f.plan != "":
		return f.runPlan(ctx, e, want)
	case f.kubeadm:
		return f.runKubeadm(ctx, e, want)
	case f.distribution != "", f.dbFile != "":
		return f.runFile(ctx, e, want)
	}
	return f.runInto(ctx, e, want)
}

// request finds the snapshot and its copies; done closes what it opened.
func (f *restoreFlags) request(ctx context.Context, e *env, want restore.Selection) (r restore.Request, done func(), err error) {
	r, done, err = f.sourceFlags.request(ctx, e, want, f.allowOtherCluster)
	r.SkipHashCheck, r.ExpectSHA256, r.AllowOtherCluster = f.skipHashCheck, f.expectSHA256, f.allowOtherCluster
	r.AllowNewerStorage, r.EtcdVersion = f.allowNewerStorage, f.etcdVersion
	return r, done, err
}

// config is the member that the flags describe, with etcdutl's defaults.
func (f *restoreFlags) config() restore.Config {
	c := restore.Config{DataDir: f.dataDir, OldDataDir: f.oldDataDir, WALDir: f.walDir, Name: f.member, PeerURLs: f.peerURLs, InitialCluster: f.initialCluster,
		Token: f.token, Bump: f.bump, BumpGiven: f.changed("bump-revision")}
	if c.PeerURLs == nil {
		c.PeerURLs = []string{"http://localhost:2380"}
	}
	if c.InitialCluster == "" {
		c.InitialCluster = restore.InitialCluster([]restore.Member{{Name: c.Name, PeerURLs: c.PeerURLs}})
	}
	return c
}

func (f *restoreFlags) runInto(ctx context.Context, e *env, want restore.Selection) error {
	if f.dryRun {
		snapshot, err := f.describe(ctx, e, want)
		if err != nil {
			return err
		}
		steps, err := restore.Describe(f.config(), snapshot)
		if err != nil {
			return err
		}
		return f.printSteps(e, steps)
	}
	r, done, err := f.request(ctx, e, want)
	defer done()
	if err != nil {
		return err
	}
	res, err := restore.Into(ctx, r, f.config())
	e.status.clear()
	if err != nil {
		return err
	}
	return f.printResult(e, res)
}

// describe names the snapshot that would be restored, and where it is.
func (f *restoreFlags) describe(ctx context.Context, e *env, want restore.Selection) (string, error) {
	r, done, err := f.request(ctx, e, want)
	defer done()
	if err != nil {
		return "", err
	}
	var uris []string
	for _, s := range r.Sources {
		uris = append(uris, s.URI)
	}
	return strings.Join(uris, " or "), nil
}

func (f *restoreFlags) runKubeadm(ctx context.Context, e *env, want restore.Selection) error {
	k := &restore.Kubeadm{ManifestsDir: f.manifestsDir, Alone: f.alone, StopTimeout: f.stopTimeout, ReadyTimeout: f.wait, Log: e.log,
		Config: restore.Config{Token: f.token, Bump: f.bump, BumpGiven: f.changed("bump-revision"), InitialCluster: f.initialCluster, PeerURLs: f.peerURLs},
		Say:    func(text string) { e.status.clear(); fmt.Fprintln(e.stderr, text) },
	}
	if f.changed("name") {
		k.Config.Name = f.member
	}
	if f.abort {
		kept, err := k.Abort(ctx)
		if err != nil {
			return err
		}
		if f.output == "json" {
			return printJSON(e.stdout, map[string]any{"aborted": true, "kept": kept})
		}
		fmt.Fprintln(e.stdout, "All is as it was before the restore.")
		for _, path := range kept {
			fmt.Fprintf(e.stdout, "What was restored, and written since, is kept as %s: remove it when it is not needed.\n", path)
		}
		return nil
	}
	switch {
	case f.from != "":
		k.Selection = "--from " + f.from
	case want != (restore.Selection{}):
		k.Selection = want.String()
	}
	if f.dryRun {
		if k.Selection == "" {
			return usageErrorf("say which snapshot: its name, --latest, --at TIME or --from FILE")
		}
		snapshot, err := f.describe(ctx, e, want)
		if err != nil {
			return err
		}
		steps, err := k.Describe(snapshot)
		if err != nil {
			return err
		}
		return f.printSteps(e, steps)
	}
	closing := func() {}
	k.Request = func(ctx context.Context) (r restore.Request, err error) {
		r, closing, err = f.request(ctx, e, want)
		return r, err
	}
	defer func() { closing() }()
	res, err := k.Run(ctx)
	e.status.clear()
	if err != nil {
		return err
	}
	return f.printResult(e, res)
}

func (f *restoreFlags) printSteps(e *env, steps []string) error {
	if f.output == "json" {
		return printJSON(e.stdout, map[string]any{"dryRun": true, "steps": steps})
	}
	fmt.Fprintln(e.stdout, "This would be done (a dry run changes nothing):")
	for i, s := range steps {
		fmt.Fprintf(e.stdout, "%3d. %s\n", i+1, s)
	}
	return nil
}

func (f *restoreFlags) printResult(e *env, res *restore.Result) error {
	e.terminationMessage(fmt.Sprintf("restored %s into %s: revision %d, %d keys", res.Snapshot, res.DataDir, res.RestoredRevision, res.Keys))
	if f.output == "json" {
		return printJSON(e.stdout, res)
	}
	fmt.Fprintf(e.stdout, "Restored %s from %s.\n\n", res.Snapshot, res.URI)
	t := newTable(e.stdout, "  DATA DIRECTORY", res.DataDir)
	t.row("  REVISION", fmt.Sprintf("%d (the snapshot's %d, raised by %d)", res.RestoredRevision, res.Revision, res.Bump))
	t.row("  KEYS", res.Keys)
	t.row("  MEMBER", res.Name+" of "+res.InitialCluster)
	t.row("  TOKEN", res.Config.Token)
	t.row("  SHA256", res.SHA256)
	for _, kept := range res.Kept {
		t.row("  KEPT", kept)
	}
	if err := t.flush(); err != nil {
		return err
	}
	if len(res.Next) > 0 {
		fmt.Fprintln(e.stdout, "\nNext:")
	}
	for i, s := range res.Next {
		fmt.Fprintf(e.stdout, "%3d. %s\n", i+1, s)
	}
	return nil
}
