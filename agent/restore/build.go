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

	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

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
// there and on the disk. The snapshot is decoded in scratchDir, beside the data directory if that is empty. Errors are
// those of Prove, and ErrRefused for a data directory that is not empty.
func Into(ctx context.Context, r Request, c Config, scratchDir string) (res *Result, err error) {
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
	decoded := made
	if scratchDir != "" {
		if decoded, err = verify.OpenScratch(scratchDir, r.Log); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, decoded.Close()) }()
	}
	r.Room = room(decoded.Path(), made.Path())
	p, err := Prove(ctx, r, filepath.Join(decoded.Path(), "snapshot.db"))
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
	newData, newWAL := filepath.Join(made.Path(), "data"), ""
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
	res.Path = "" // the database is gone with the scratch folder
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

// build makes a new data directory at newData, which must not be there, and checks it. It is on the disk afterwards, with
// the owner of the place it is for.
func build(ctx context.Context, p *Proven, c Config, newData, newWAL string, owner place, log *slog.Logger) (*Result, error) {
	if c.Token == "" {
		c.Token = p.Token(c.Bump)
	}
	err := etcdutl(log, snapshot.RestoreConfig{
		SnapshotPath:        p.Path,
		Name:                c.Name,
		OutputDataDir:       newData,
		OutputWALDir:        newWAL,
		PeerURLs:            c.PeerURLs,
		InitialCluster:      c.InitialCluster,
		InitialClusterToken: c.Token,
		SkipHashCheck:       true, // Prove has checked it, or was asked not to
		RevisionBump:        c.Bump,
		MarkCompacted:       c.Bump > 0,
	})
	if err != nil {
		return nil, fmt.Errorf("restore %s: %w", p.Snapshot, err)
	}
	for _, dir := range []string{newData, newWAL} {
		if dir == "" {
			continue
		}
		if err := errors.Join(settle(dir, owner.uid, owner.gid), syncDir(filepath.Dir(dir))); err != nil {
			return nil, fmt.Errorf("restore %s: %w", p.Snapshot, err)
		}
	}
	status, err := verify.Inspect(ctx, databaseIn(newData))
	if err != nil {
		return nil, fmt.Errorf("check the restored data directory: %w", err)
	}
	keys := status.TotalKeys
	if status.Bumped {
		keys--
	}
	if want := p.Revision + int64(c.Bump); status.Revision != want || keys != p.Keys {
		return nil, fmt.Errorf("check the restored data directory: it is at revision %d with %d keys, and should be at %d with %d", status.Revision, keys, want, p.Keys)
	}
	return &Result{Proven: p, Config: c, RestoredRevision: status.Revision}, nil
}

// etcdutl restores with etcd's own library, which panics where it cannot go on.
func etcdutl(log *slog.Logger, c snapshot.RestoreConfig) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("etcd's library gave up: %v", r)
		}
	}()
	core := zapcore.NewCore(zapcore.NewConsoleEncoder(zapcore.EncoderConfig{MessageKey: "msg"}), zapcore.AddSync(logWriter{log}), zapcore.WarnLevel)
	return snapshot.NewV3(zap.New(core, zap.WithFatalHook(zapcore.WriteThenPanic))).Restore(c)
}

// logWriter passes on what etcd's library warns of.
type logWriter struct{ log *slog.Logger }

var _ io.Writer = logWriter{}

func (w logWriter) Write(p []byte) (int, error) {
	w.log.Warn("etcdutl", "says", strings.TrimSpace(string(p)))
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
		fmt.Sprintf("Fetch %s and check it: checksums, every page, room for twice its size in %s.", snapshot, data.beside()),
		fmt.Sprintf("Restore it beside %s as member %s of %s, revision raised by %d.", data.dir, c.Name, c.InitialCluster, c.Bump),
		fmt.Sprintf("Rename it to %s.", data.dir),
	}, nil
}
