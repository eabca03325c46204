package restore

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"etcdsnapshot.dev/agent/verify"
)

// Abort goes back to how it was before the restore that is under way. It can be interrupted and run again as well. What
// was restored is kept beside only where the control plane had been started on it.
func (k *Kubeadm) Abort(ctx context.Context) (kept []string, err error) {
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
	if j == nil {
		return nil, refusedf("no restore of %s is under way. To take back one that is done, stop the control plane, rename its %s.before-restore-... to %s, and start the control plane", n.data.dir, n.data.dir, n.data.dir)
	}
	if j.Finished {
		return nil, refusedf("the restore of %s is done; run the same command again to clear up. To take it back stop the control plane and rename %s to %s", n.data.dir, j.Swaps[0].Old, j.Swaps[0].Live)
	}
	kept, err = k.back(ctx, w, j)
	if err != nil {
		return nil, fmt.Errorf("go back, at the step %q: %w\nRun the same command again to go on", j.Step, err)
	}
	k.before("remove " + w.path)
	return kept, w.remove()
}

func (k *Kubeadm) back(ctx context.Context, w *workDir, j *journal) (kept []string, err error) {
	j.Aborting = true
	k.before("write down that it goes back")
	if err := k.step(w, j, "put the old data directory back"); err != nil {
		return nil, err
	}
	// Before the swap nothing has to stop: also where the kubelet does not do what it is told, there is a way back.
	if j.Built {
		if err := k.stop(ctx, w, j); err != nil {
			return nil, err
		}
	}
	if err := k.step(w, j, "put the old data directory back"); err != nil {
		return nil, err
	}
	for _, s := range j.Swaps {
		made, err1 := exists(s.New)
		live, err2 := exists(s.Live)
		old, err3 := exists(s.Old)
		if err := errors.Join(err1, err2, err3); err != nil {
			return nil, err
		}
		// What is live is the restored one where the old one was renamed, or where there was none.
		if restored := j.Built && !made && live && (old || !s.HadLive); restored {
			to := s.New
			if j.Launched {
				to = s.Rejected
			}
			k.before("rename " + s.Live + " to " + to)
			if err := renameDurably(s.Live, to); err != nil {
				return nil, err
			}
		}
		if old {
			k.say("Putting %s back as %s.", s.Old, s.Live)
			k.before("rename " + s.Old + " to " + s.Live)
			if err := renameDurably(s.Old, s.Live); err != nil {
				return nil, err
			}
		}
		if there, err := exists(s.Rejected); err == nil && there {
			kept = append(kept, s.Rejected)
		}
	}
	if err := removeAll(j.NewWAL); err != nil {
		return nil, err
	}
	if err := k.step(w, j, "start the control plane"); err != nil {
		return nil, err
	}
	k.say("Starting the control plane: moving its manifests back to %s.", j.ManifestsDir)
	if err := moveManifests(j.AsideDir, j.ManifestsDir, j.Manifests, k.before); err != nil {
		return nil, err
	}
	return kept, removeEmpty(j.AsideDir)
}

// Describe gives the steps of a restore without doing anything.
func (k *Kubeadm) Describe(snapshot string) ([]string, error) {
	n, err := k.look()
	if err != nil {
		return nil, err
	}
	from, to := n.data.swapped("the new one")
	work := workPath(n.data)
	if j, err := (&workDir{path: work}).load(); err != nil || j != nil {
		return nil, errors.Join(err, refusedf("a restore of %s is under way (journal %s): without --dry-run the command goes on with it, with --abort it goes back", n.data.dir, filepath.Join(work, "journal.json")))
	}
	version := n.cp.EtcdVersion
	if version == "" {
		version = "unknown"
	}
	if err := verify.CheckSpace(n.data.beside(), walSpace, ""); err != nil {
		k.Log.Warn("there is too little room", "error", err)
	}
	steps := []string{
		fmt.Sprintf("Fetch %s into %s and check it: checksums, every page, etcd's version (%s here), room for twice its size.", snapshot, filepath.Join(work, "snapshot.db"), version),
		fmt.Sprintf("Stop the control plane: move %s from %s to %s, and wait at most %s until %s are closed and the database is free.", strings.Join(n.cp.Manifests, ", "), k.ManifestsDir, k.aside(), k.StopTimeout, addresses(n.cp.Listeners)),
		fmt.Sprintf("Restore into %s as member %s of %s, revision raised by %d.", filepath.Join(work, "data"), n.config.Name, n.config.InitialCluster, n.config.Bump),
		fmt.Sprintf("Rename %s to %s.before-restore-<time>, and %s to %s.", to, to, from, to),
		fmt.Sprintf("Start the control plane: move its manifests back to %s.", k.ManifestsDir),
	}
	if n.cp.ReadyURL != "" && k.ReadyTimeout > 0 && len(n.config.members()) == 1 {
		steps = append(steps, fmt.Sprintf("Wait at most %s until %s answers.", k.ReadyTimeout, n.cp.ReadyURL))
	}
	return steps, nil
}

func addresses(ls []listener) string {
	var list []string
	for _, l := range ls {
		list = append(list, fmt.Sprintf("%s (%s)", l.Address, l.What))
	}
	return strings.Join(list, ", ")
}
