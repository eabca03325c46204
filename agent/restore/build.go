package restore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"etcdsnapshot.dev/agent/member"
	"etcdsnapshot.dev/agent/verify"
)

// Result is what was restored.
type Result struct {
	*Proven
	Config
	// RestoredRevision is the revision that the restored member begins with.
	RestoredRevision int64 `json:"restoredRevision"`
	// Kept are the paths under which what was replaced still is.
	Kept []string `json:"kept,omitempty"`
	// Steps that are left for the operator, in their order.
	Next []string `json:"next,omitempty"`
}

// Into restores a snapshot into a data directory that is missing or empty. Nothing of it is visible before all of it is
// there and on the disk. The database is decoded where it stays, in a folder beside the data directory that is renamed in the
// end. Errors are those of Prove, and ErrRefused for a data directory that is not empty.
func Into(ctx context.Context, r Request, c Config) (res *Result, err error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	data, wal, err := vacant(c)
	if err != nil {
		return nil, err
	}
	made, err := verify.OpenScratch(data.beside(), r.Log)
	if err != nil {
		return nil, fmt.Errorf("make a folder beside the data directory %s: %w", data.dir, err)
	}
	defer func() { err = errors.Join(err, made.Close()) }()
	newData, newWAL := filepath.Join(made.Path(), "data"), ""
	if err := member.MakeRoom(newData); err != nil {
		return nil, err
	}
	r.Room, r.SpaceHint = room(made.Path(), 1), spaceHint
	p, err := Prove(ctx, r, member.Database(newData))
	if err != nil {
		return nil, err
	}
	if c.OldDataDir != "" {
		old, err := look(c.OldDataDir)
		if err != nil {
			return nil, err
		}
		if !old.exists {
			return nil, refusedf("--old-data-dir: there is no %s", c.OldDataDir)
		}
		data.uid, data.gid = old.uid, old.gid
		if err := c.adaptBump(p.Revision, liveRevision(ctx, old.dir)); err != nil {
			return nil, err
		}
	}
	if c.WALDir != "" {
		w, err := verify.OpenScratch(wal.beside(), r.Log)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, w.Close()) }()
		newWAL = filepath.Join(w.Path(), "wal")
	}
	res, err = build(ctx, p, c, newData, newWAL, data, r.Log)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	// The log first: a data directory without its log would start as a new member.
	if newWAL != "" {
		if err := renameDurably(newWAL, wal.dir); err != nil {
			return nil, fmt.Errorf("put the write-ahead log in its place: %w", err)
		}
	}
	from, to := data.swapped(newData)
	if err := renameDurably(from, to); err != nil {
		if newWAL != "" {
			err = errors.Join(err, os.Rename(wal.dir, newWAL))
		}
		return nil, fmt.Errorf("put the restored data directory in its place: %w", err)
	}
	if ours := c.members(); len(p.Members) > len(ours) {
		res.Next = append(res.Next, fmt.Sprintf("The snapshot is of a cluster of %d members (%s), and this is one of %d: let the others join it anew with empty data directories (etcdctl member add), never with their old ones.", len(p.Members), names(p.Members), len(ours)))
	}
	res.Path = "" // it is the member's now
	return res, nil
}

// vacant requires that nothing is where the member is to be.
func vacant(c Config) (data, wal place, err error) {
	if data, err = look(c.DataDir); err != nil {
		return data, wal, err
	}
	if data.exists && data.mount {
		if _, err := verify.SweepScratch(data.dir); err != nil {
			return data, wal, err
		}
		if data, err = look(c.DataDir); err != nil {
			return data, wal, err
		}
	}
	if data.exists && !data.empty {
		return data, wal, refusedf("data directory %s is not empty, and nothing that is there is ever overwritten: name another one, move this one away (mv %s %s.old), or on a node that kubeadm made use --kubeadm, which keeps the old one", data.dir, data.dir, data.dir)
	}
	if c.WALDir == "" {
		return data, wal, nil
	}
	if wal, err = look(c.WALDir); err != nil {
		return data, wal, err
	}
	switch {
	case wal.exists && !wal.empty:
		return data, wal, refusedf("folder %s for the write-ahead log is not empty: name another one (--wal-dir) or move this one away", wal.dir)
	case wal.mount:
		return data, wal, refusedf("%s is a mount point: name a folder in it as --wal-dir, such as %s", wal.dir, filepath.Join(wal.dir, "wal"))
	}
	return data, wal, nil
}

// build makes a member of the proven database, which lies in its place in the new data directory newData, and checks the
// result. It is on the disk afterwards, with the owner of the place it is for.
func build(ctx context.Context, p *Proven, c Config, newData, newWAL string, owner place, log *slog.Logger) (*Result, error) {
	if c.Token == "" {
		c.Token = p.Token(c.Bump)
	}
	if p.HasTrailer {
		if err := member.TrimChecksum(newData, p.Size); err != nil {
			return nil, fmt.Errorf("restore %s: %w", p.Snapshot, err)
		}
	}
	err := member.Make(member.Config{
		DataDir:        newData,
		WALDir:         newWAL,
		Name:           c.Name,
		InitialCluster: c.InitialCluster,
		Token:          c.Token,
		Bump:           int64(c.Bump), //nolint:gosec // check keeps it below maxBump
		Revision:       p.Revision,
	}, etcdLog(log))
	if err != nil {
		return nil, fmt.Errorf("restore %s: %w", p.Snapshot, err)
	}
	// The disk is waited for while the result is looked at.
	settled := make(chan error, 1)
	go func() {
		var err error
		for _, dir := range []string{newData, newWAL} {
			if dir != "" && err == nil {
				err = errors.Join(settle(dir, owner.uid, owner.gid), syncDir(filepath.Dir(dir)))
			}
		}
		settled <- err
	}()
	status, err := verify.Inspect(ctx, member.Database(newData))
	if serr := <-settled; serr != nil {
		return nil, fmt.Errorf("restore %s: %w", p.Snapshot, serr)
	}
	if err != nil {
		return nil, fmt.Errorf("check the restored data directory: %w", err)
	}
	keys := status.TotalKeys
	if status.Bumped {
		keys--
	}
	if want := p.Revision + int64(c.Bump); status.Revision != want || keys != p.Keys { //nolint:gosec // it is at most maxBump
		return nil, fmt.Errorf("check the restored data directory: it is at revision %d with %d keys, and should be at %d with %d", status.Revision, keys, want, p.Keys)
	}
	return &Result{Proven: p, Config: c, RestoredRevision: status.Revision}, nil
}

// etcdLog passes on what etcd's library warns of.
func etcdLog(log *slog.Logger) *zap.Logger {
	return zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(zapcore.EncoderConfig{MessageKey: "msg"}), zapcore.AddSync(logWriter{log}), zapcore.WarnLevel))
}

type logWriter struct{ log *slog.Logger }

var _ io.Writer = logWriter{}

func (w logWriter) Write(p []byte) (int, error) {
	w.log.Warn("etcd", "says", strings.TrimSpace(string(p)))
	return len(p), nil
}

// Describe gives the steps of Into without doing anything.
func Describe(c Config, snapshot string) ([]string, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	data, _, err := vacant(c)
	if err != nil {
		return nil, err
	}
	return []string{
		fmt.Sprintf("Fetch %s into a new folder in %s and check it: room, checksums, every page.", snapshot, data.beside()),
		fmt.Sprintf("Make it beside %s member %s of %s, revision raised by %d.", data.dir, c.Name, c.InitialCluster, c.Bump),
		fmt.Sprintf("Rename it to %s.", data.dir),
	}, nil
}
