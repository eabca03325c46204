package restore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"etcdsnapshot.dev/agent/member"
)

// Kubeadm replaces the etcd of a control plane node that kubeadm made. All is read from the static pod manifests.
type Kubeadm struct {
	// ManifestsDir is the kubelet's folder of static pods.
	ManifestsDir string
	// Config overrides name, peer URLs and initial cluster of etcd.yaml. Its Token and Bump count as they are.
	Config Config
	// Alone restores this node as a cluster of one although the snapshot is of a cluster of several.
	Alone bool
	// Selection is how the snapshot was asked for; empty to go on with what is under way.
	Selection string
	// Request gives the sources; it is called only if nothing is under way. EtcdVersion is filled in from the manifest.
	Request func(ctx context.Context) (Request, error)
	// StopTimeout bounds the wait for the control plane to end, ReadyTimeout the one for the API server to answer; 0 does
	// not wait for it.
	StopTimeout, ReadyTimeout time.Duration
	Log                       *slog.Logger
	// Say, if not nil, is told of each step, for people.
	Say func(text string)
	// Before, if not nil, is called before each single change to the disk.
	Before func(change string)
}

func (k *Kubeadm) say(format string, args ...any) {
	if k.Say != nil {
		k.Say(fmt.Sprintf(format, args...))
	}
}

func (k *Kubeadm) before(change string) {
	if k.Before != nil {
		k.Before(change)
	}
}

// aside is where manifests are moved: on the same file system, and not where the kubelet looks.
func (k *Kubeadm) aside() string { return filepath.Clean(k.ManifestsDir) + ".restore" }

// node is what is known of this node before anything is done.
type node struct {
	cp        *controlPlane
	config    Config
	data, wal place
}

func (k *Kubeadm) look() (*node, error) {
	cp, err := readControlPlane(k.ManifestsDir, k.aside())
	if err != nil {
		return nil, err
	}
	n := &node{cp: cp, config: cp.Config}
	over := k.Config
	n.config.Token, n.config.Bump, n.config.BumpGiven = over.Token, over.Bump, over.BumpGiven
	if k.Alone {
		n.config.InitialCluster = InitialCluster([]Member{{Name: n.config.Name, PeerURLs: n.config.PeerURLs}})
	}
	if over.Name != "" {
		n.config.Name = over.Name
	}
	if over.InitialCluster != "" {
		n.config.InitialCluster = over.InitialCluster
	}
	if over.PeerURLs != nil {
		n.config.PeerURLs = over.PeerURLs
	}
	if err := n.config.check(); err != nil {
		return nil, err
	}
	if n.data, err = look(n.config.DataDir); err != nil {
		return nil, err
	}
	if n.config.WALDir != "" {
		if n.wal, err = look(n.config.WALDir); err != nil {
			return nil, err
		}
		if n.wal.mount {
			return nil, refusedf("etcd's --wal-dir %s is a mount point, which cannot be swapped by renaming: stop the control plane, empty it, and restore with --data-dir and --wal-dir", n.wal.dir)
		}
		if n.wal.dir == n.data.dir || strings.HasPrefix(n.wal.dir, n.data.dir+"/") {
			return nil, refusedf("etcd's --wal-dir %s lies in its --data-dir %s: restore with --data-dir and --wal-dir", n.wal.dir, n.data.dir)
		}
	}
	return n, nil
}

// Run restores, or goes on with a restore that was interrupted. Until the end the old data directory is there, and Abort
// leads back to it. Errors before anything was touched are those of Prove; later ones say how to go on or back.
func (k *Kubeadm) Run(ctx context.Context) (*Result, error) {
	n, err := k.look()
	if err != nil {
		return nil, err
	}
	w, err := openWorkDir(n.data)
	if err != nil {
		return nil, err
	}
	defer w.close()
	j, err := w.load()
	if err != nil {
		return nil, err
	}
	if j != nil && j.Finished && k.Selection != "" && k.Selection != j.Selection {
		// All but the folder of the last restore is done.
		if err := os.Remove(w.journalFile()); err != nil {
			return nil, err
		}
		j = nil
	}
	switch {
	case j == nil:
		if j, err = k.begin(ctx, n, w); err != nil {
			return nil, errors.Join(err, w.clear())
		}
	case j.Aborting:
		return nil, refusedf("a restore of %s is on its way back: run the command with --abort to end that first", n.data.dir)
	case k.Selection != "" && k.Selection != j.Selection:
		return nil, refusedf("a restore of %s from %s (asked for as %s) is under way since %s, at the step %q: run that command again to go on, or the command with --abort to go back", n.data.dir, j.Proven.Snapshot, j.Selection, j.Started.Local().Format(time.DateTime), j.Step)
	default:
		k.say("Going on with the restore from %s that was begun at %s and interrupted at the step %q.", j.Proven.Snapshot, j.Started.Local().Format(time.DateTime), j.Step)
	}
	if err := k.forward(ctx, w, j); err != nil {
		return nil, fmt.Errorf("at the step %q: %w\nThe old data is safe. To go on, run the same command again; to go back to how it was, run: etcd-snapshot-agent restore --kubeadm --abort%s", j.Step, err, k.flags())
	}
	res := &Result{Proven: j.Proven, Config: j.Config, RestoredRevision: j.Revision}
	res.Path = "" // it goes with the work folder
	for _, s := range j.Swaps {
		if s.HadLive {
			res.Kept = append(res.Kept, s.Old)
		}
	}
	res.Next = k.next(j)
	k.before("remove " + w.path)
	return res, w.remove()
}

// flags that the command needs to find the same node again.
func (k *Kubeadm) flags() string {
	if k.ManifestsDir == DefaultManifestsDir {
		return ""
	}
	return " --manifests-dir " + shellQuote(k.ManifestsDir)
}

// begin proves the snapshot and writes the journal. Nothing but the work folder was touched when it returns.
func (k *Kubeadm) begin(ctx context.Context, n *node, w *workDir) (*journal, error) {
	if k.Selection == "" {
		return nil, refusedf("no restore is under way on this node: say which snapshot to restore: its name, --latest, --at TIME or --from FILE")
	}
	if err := w.clear(); err != nil {
		return nil, fmt.Errorf("remove what an interrupted download left: %w", err)
	}
	r, err := k.Request(ctx)
	if err != nil {
		return nil, err
	}
	if r.EtcdVersion == "" {
		r.EtcdVersion = n.cp.EtcdVersion
	}
	if r.EtcdVersion == "" {
		k.Log.Warn("the version of etcd is not known from the image's tag in etcd.yaml; that it can read the snapshot is not checked (give it as --etcd-version)")
	}
	r.Room, r.SpaceHint = room(w.path, 2), spaceHint
	k.say("Fetching and checking the snapshot. Nothing is touched meanwhile.")
	p, err := WriteDatabase(ctx, r, w.database())
	if err != nil {
		return nil, err
	}
	if ours := len(n.config.members()); len(p.Members) > ours && !k.Alone && k.Config.InitialCluster == "" {
		return nil, refusedf("the snapshot is of a cluster of %d members (%s), and etcd.yaml here lists %d: restored like this, the others would not belong to it. To restore all of them, see the commands of: etcd-snapshot-agent restore --plan snapshot (and the same choice of snapshot). To restore this node as a cluster of one that the others join anew (kubeadm reset, kubeadm join), add --alone", len(p.Members), names(p.Members), ours)
	}
	j := &journal{
		Version: journalVersion, Step: "stop the control plane", Started: time.Now().UTC(), Selection: k.Selection, Proven: p, Config: n.config,
		ManifestsDir: k.ManifestsDir, AsideDir: k.aside(), Manifests: n.cp.Manifests, Listeners: n.cp.Listeners, ReadyURL: n.cp.ReadyURL,
		UID: n.data.uid, GID: n.data.gid, NewData: filepath.Join(w.path, "data"),
	}
	if j.Config.Token == "" && j.Config.Bump > 0 && len(j.Config.members()) > 1 {
		j.Config.Token = p.Token(j.Config.Bump)
	}
	from, to := n.data.swapped(j.NewData)
	pairs := [][2]string{{from, to}}
	if j.Config.WALDir != "" {
		j.Config.WALDir = n.wal.dir
		j.NewWAL = n.wal.dir + ".restore"
		pairs = append(pairs, [2]string{j.NewWAL, n.wal.dir})
	}
	for _, pair := range pairs {
		s, err := newSwap(pair[0], pair[1], j.Started.Format("20060102t150405z"))
		if err != nil {
			return nil, err
		}
		j.Swaps = append(j.Swaps, s)
	}
	k.before("write the journal")
	return j, w.save(j)
}

// newSwap chooses names that nothing has yet.
func newSwap(from, to, stamp string) (swap, error) {
	live, err := exists(to)
	for n := 1; err == nil; n++ {
		s := swap{New: from, Live: to, Old: to + ".before-restore-" + stamp, Rejected: to + ".restored-" + stamp, HadLive: live}
		if n > 1 {
			s.Old, s.Rejected = fmt.Sprintf("%s-%d", s.Old, n), fmt.Sprintf("%s-%d", s.Rejected, n)
		}
		old, err1 := exists(s.Old)
		rejected, err2 := exists(s.Rejected)
		if err = errors.Join(err1, err2); err == nil && !old && !rejected {
			return s, nil
		}
	}
	return swap{}, err
}

func names(ms []Member) string {
	var list []string
	for _, m := range ms {
		list = append(list, m.Name)
	}
	return strings.Join(list, ", ")
}

// step writes down that a step begins.
func (k *Kubeadm) step(w *workDir, j *journal, name string) error {
	j.Step = name
	return w.save(j)
}

// forward does all that is left to do. What was done already is seen on the disk and in the journal.
func (k *Kubeadm) forward(ctx context.Context, w *workDir, j *journal) error {
	if !j.Swapped {
		if err := k.stop(ctx, w, j); err != nil {
			return err
		}
		if err := k.build(ctx, w, j); err != nil {
			return err
		}
		if err := k.swap(w, j); err != nil {
			return err
		}
	}
	if !j.Finished {
		if err := k.start(w, j); err != nil {
			return err
		}
		if err := k.ready(ctx, w, j); err != nil {
			return err
		}
		j.Finished = true
		k.before("write down that it is finished")
		return k.step(w, j, "finished")
	}
	return nil
}

// stop takes the manifests out of the kubelet's sight and waits until what they started is gone.
func (k *Kubeadm) stop(ctx context.Context, w *workDir, j *journal) error {
	if err := k.step(w, j, "stop the control plane"); err != nil {
		return err
	}
	k.say("Stopping the control plane: moving %s from %s to %s.", strings.Join(j.Manifests, ", "), j.ManifestsDir, j.AsideDir)
	if err := moveManifests(j.ManifestsDir, j.AsideDir, backwards(j.Manifests), k.before); err != nil {
		return err
	}
	if err := k.step(w, j, "wait until the control plane is gone"); err != nil {
		return err
	}
	return k.waitGone(ctx, j)
}

// build makes the new data directory beside the old one.
func (k *Kubeadm) build(ctx context.Context, w *workDir, j *journal) error {
	if j.Built {
		return nil
	}
	if err := k.step(w, j, "restore beside the old data directory"); err != nil {
		return err
	}
	k.before("remove an unfinished data directory")
	if err := errors.Join(removeAll(j.NewData), removeAll(j.NewWAL)); err != nil {
		return err
	}
	if err := j.Config.adaptBump(j.Proven.Revision, liveRevision(ctx, j.Config.DataDir)); err != nil {
		return err
	}
	k.say("Restoring into %s.", j.NewData)
	k.before("make the new data directory")
	if err := copyDatabase(j.Proven.Path, j.NewData); err != nil {
		return err
	}
	res, err := build(ctx, j.Proven, j.Config, j.NewData, j.NewWAL, place{uid: j.UID, gid: j.GID}, k.Log)
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	j.Config, j.Revision, j.Built = res.Config, res.RestoredRevision, true
	k.before("write down that the new data directory is complete")
	return k.step(w, j, "swap the data directories")
}

// copyDatabase puts the database into a new data directory, and keeps it where it is for when this is interrupted. Where the
// file system can, both share their blocks (copy_file_range, by os.File.ReadFrom).
func copyDatabase(from, dataDir string) error {
	if err := member.MakeRoom(dataDir); err != nil {
		return err
	}
	src, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("read the fetched database: %w", err)
	}
	defer src.Close()
	dst, err := os.OpenFile(member.Database(dataDir), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("copy the fetched database: %w", err)
	}
	_, err = dst.ReadFrom(src)
	if err = errors.Join(err, dst.Close()); err != nil {
		return fmt.Errorf("copy the fetched database: %w", err)
	}
	return nil
}

// swap renames the old away and the new in its place.
func (k *Kubeadm) swap(w *workDir, j *journal) error {
	if err := k.step(w, j, "swap the data directories"); err != nil {
		return err
	}
	for _, s := range j.Swaps {
		made, err1 := exists(s.New)
		live, err2 := exists(s.Live)
		old, err3 := exists(s.Old)
		if err := errors.Join(err1, err2, err3); err != nil {
			return err
		}
		switch {
		case !made && live:
			continue // done before an interruption
		case !made:
			return fmt.Errorf("neither %s nor %s is there", s.New, s.Live)
		case live && old:
			return fmt.Errorf("%s came back after it had been renamed to %s: does an etcd run? Move it away", s.Live, s.Old)
		}
		if live {
			k.say("Keeping %s as %s.", s.Live, s.Old)
			k.before("rename " + s.Live + " to " + s.Old)
			if err := renameDurably(s.Live, s.Old); err != nil {
				return err
			}
		}
		k.before("rename " + s.New + " to " + s.Live)
		if err := renameDurably(s.New, s.Live); err != nil {
			return err
		}
	}
	j.Swapped = true
	k.before("write down that the data directories are swapped")
	return k.step(w, j, "start the control plane")
}

// start gives the manifests back to the kubelet.
func (k *Kubeadm) start(w *workDir, j *journal) error {
	j.Launched = true
	if err := k.step(w, j, "start the control plane"); err != nil {
		return err
	}
	k.say("Starting the control plane: moving its manifests back to %s.", j.ManifestsDir)
	if err := moveManifests(j.AsideDir, j.ManifestsDir, j.Manifests, k.before); err != nil {
		return err
	}
	return removeEmpty(j.AsideDir)
}

// ready waits until the API server answers. Of several members the first ones cannot.
func (k *Kubeadm) ready(ctx context.Context, w *workDir, j *journal) error {
	if err := k.step(w, j, "wait until the API server answers"); err != nil {
		return err
	}
	if k.ReadyTimeout == 0 || len(j.Config.members()) > 1 {
		return nil
	}
	return k.waitReady(ctx, j)
}

// next is what is left to do after a restore.
func (k *Kubeadm) next(j *journal) (steps []string) {
	if ms := j.Config.members(); len(ms) > 1 {
		var others []Member
		for _, m := range ms {
			if m.Name != j.Config.Name {
				others = append(others, m)
			}
		}
		steps = append(steps, fmt.Sprintf("Restore the other members (%s) from the same snapshot, with --initial-cluster %s --bump-revision %d --expect-sha256 %s. The API server answers once %d of %d are there.",
			names(others), shellQuote(j.Config.InitialCluster), j.Config.Bump, j.Proven.SHA256, len(ms)/2+1, len(ms)))
	} else if len(j.Proven.Members) > 1 {
		steps = append(steps, "This node is now a cluster of one. On each of the other control plane nodes: kubeadm reset --force, then kubeadm join --control-plane (kubeadm token create --print-join-command; kubeadm init phase upload-certs --upload-certs).")
	}
	return append(steps, Follow(j.Config.Bump))
}

// Follow says what becomes of who watched the cluster from before, workers' kubelets for one.
func Follow(bump uint64) string {
	if bump == 0 {
		return "Without a raised revision nobody notices: on every node, workers too, systemctl restart kubelet, and restart every controller"
	}
	return "Kubelets and controllers notice by themselves, because the revision was raised. On a node that does not follow within minutes: systemctl restart kubelet"
}
