package verify

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"filippo.io/age"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/destination"
	"etcdsnapshot.dev/agent/member"
	"etcdsnapshot.dev/agent/store"
)

// Level is how much is proven. Each level includes those below.
type Level string

// Levels, from the lowest.
const (
	// LevelChecksum: the object is the one that was stored: its size and SHA-256 are those of its manifest.
	LevelChecksum Level = "checksum"
	// LevelDatabase: what Database proves.
	LevelDatabase Level = "database"
	// LevelRestore: an etcd starts from it and serves all that it holds.
	LevelRestore Level = "restore"
)

// Levels in their order.
var Levels = []Level{LevelChecksum, LevelDatabase, LevelRestore}

// Request says how copies are verified.
type Request struct {
	Level Level
	// Lower lets Stored stop at LevelChecksum where a snapshot is encrypted and there are no Identities.
	Lower      bool
	Identities []age.Identity
	// Scratch is needed above LevelChecksum.
	Scratch *Scratch
	// DrillCommand is this program and the arguments with which it calls DrillMain; for LevelRestore.
	DrillCommand []string
	// StallTimeout ends a download that makes no progress for this long; 0 means store.DefaultStall.
	StallTimeout time.Duration
	// Progress, if not nil, is told how many bytes of how many were read.
	Progress func(read, total int64)
	Log      *slog.Logger
}

// Result is what is known of one copy. It is filled in as far as the verification came.
type Result struct {
	// Level that was reached, or at which it failed.
	Level Level
	// Lowered says that Level is lower than was asked for because the snapshot is encrypted and there is no identity.
	Lowered bool
	// Key of the object; empty where not even that is known.
	Key string
	// Facts from LevelDatabase on, Drill at LevelRestore; nil before.
	Facts *Facts
	Drill *Drill
	// Extras says how well the files of the node that go with it are proven; nil where there are none.
	Extras *ExtrasResult
}

// Stored verifies the copy of a snapshot in a destination. Whatever is wrong with the snapshot is archive.ErrCorrupt: also
// a manifest that is missing, unreadable or another snapshot's, and data that is missing. Other errors say that it could
// not be verified: the store did not answer, no identity opens it, there is too little room (*SpaceError), the cause of
// ctx. The scratch folder is empty afterwards.
func Stored(ctx context.Context, d *destination.Destination, name string, r Request) (res Result, err error) {
	res.Level = LevelChecksum
	m, err := d.Manifest(ctx, name)
	if errors.Is(err, store.ErrNotExist) {
		return res, corruptf("snapshot", "its manifest is missing, without which it is not known what it should be: %w", err)
	}
	if err != nil {
		return res, err
	}
	if m.Extras == nil {
		return stored(ctx, d, m, r, res)
	}
	x, xerr := storedExtras(ctx, d, m, r)
	res, err = stored(ctx, d, m, r, res)
	res.Extras = x
	switch {
	case xerr == nil:
	case err == nil:
		err = fmt.Errorf("extras, which go with a snapshot that is good itself: %w", xerr)
	default:
		err = errors.Join(err, fmt.Errorf("extras: %w", xerr))
	}
	return res, err
}

// stored verifies the snapshot itself.
func stored(ctx context.Context, d *destination.Destination, m *v1.Manifest, r Request, res Result) (_ Result, err error) {
	res.Key = m.Object.Key
	level := r.Level
	if m.Encryption != nil && len(r.Identities) == 0 && r.Lower && level != LevelChecksum {
		level, res.Lowered = LevelChecksum, true
	}
	need := int64(0)
	switch level {
	case LevelDatabase:
		need = m.Database.Size
	case LevelRestore:
		need = DrillSpace(m.Database.Size)
	}
	if need > 0 {
		if err := CheckSpace(r.Scratch.Path(), need, ""); err != nil {
			return res, err
		}
		defer func() { err = errors.Join(err, r.Scratch.Empty()) }()
	}
	in := store.OpenResumable(ctx, d.Store, m.Object.Key, m.Object.Size, r.StallTimeout, store.RetryPolicy{})
	defer in.Close()
	progress := func(read int64) {
		if r.Progress != nil {
			r.Progress(read, m.Object.Size)
		}
	}
	uri := d.URI(m.Object.Key)
	if level == LevelChecksum {
		whole := &storedReader{ctx: ctx, r: in, hash: sha256.New(), progress: progress}
		if err := whole.finish(m.Object); err != nil {
			return res, missing(fmt.Errorf("%s: %w", uri, err))
		}
		return res, nil
	}
	res.Level = LevelDatabase
	// Where the drill needs it.
	if err := member.MakeRoom(drillDir(r.Scratch)); err != nil {
		return res, err
	}
	db := member.Database(drillDir(r.Scratch))
	facts, err := Database(ctx, Source{Name: uri, Reader: in, Manifest: m}, db, Options{Identities: r.Identities, Progress: progress})
	if err != nil {
		return res, missing(err)
	}
	res.Facts = &facts
	if level == LevelDatabase {
		return res, nil
	}
	res.Level = LevelRestore
	res.Drill, err = runDrill(ctx, r.Scratch, facts, r.DrillCommand, r.Log)
	if err != nil {
		return res, fmt.Errorf("%s: %w", uri, err)
	}
	return res, nil
}

// missing makes damage of an object that is gone while its manifest is there.
func missing(err error) error {
	if errors.Is(err, store.ErrNotExist) {
		return fmt.Errorf("snapshot is %w: its manifest is there, but not its data: %w", archive.ErrCorrupt, err)
	}
	return err
}
