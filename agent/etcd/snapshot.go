package etcd

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// The end of a snapshot is etcd's sha256 of all that comes before it. A database is a whole number of pages, so a
// size that leaves this remainder tells that the checksum is there (as etcdutl's restore does).
const (
	trailerSize = sha256.Size
	trailerMod  = 512
)

// Database is a snapshot that was received whole and matched its checksum.
type Database struct {
	// Size in bytes, with the checksum at its end.
	Size int64
	// SHA256 of all of it, with the checksum at its end.
	SHA256 [sha256.Size]byte
	// Version is the storage version that etcd told in the stream, from 3.6 on.
	Version string
}

// Snapshot streams one snapshot of the member m into w, in one pass, the checksum at its end included. Only if the
// error is nil is what w received a snapshot. There is no limit on the whole time, but a stream without a byte for
// Config.StallTimeout is given up; time in w.Write does not count. Errors: ErrStreamCut, ErrTrailerMissing,
// ErrTrailerMismatch, *StallError, that of w, the cause of ctx, or what etcd answered.
func (c *Cluster) Snapshot(ctx context.Context, m Member, w io.Writer) (Database, error) {
	for _, l := range c.links {
		if l.endpoint == m.Endpoint {
			db, err := c.stream(ctx, l, w)
			if err != nil {
				return Database{}, fmt.Errorf("snapshot of %s: %w", m, err)
			}
			return db, nil
		}
	}
	return Database{}, fmt.Errorf("snapshot of %s: no such endpoint is configured", m)
}

// errStalled is the cause with which a stream is cancelled that makes no progress.
var errStalled = errors.New("stalled")

func (c *Cluster) stream(parent context.Context, l *link, w io.Writer) (Database, error) {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	stall := c.config.StallTimeout
	watch := time.AfterFunc(stall, func() { cancel(errStalled) })
	defer watch.Stop()

	t := &tap{w: w, hash: sha256.New()}
	var m message
	defer m.free()
	failed := func(err error) (Database, error) {
		switch {
		case parent.Err() != nil:
			return Database{}, context.Cause(parent)
		case errors.Is(context.Cause(ctx), errStalled):
			return Database{}, &StallError{Received: t.size, For: stall}
		case t.size == 0:
			return Database{}, c.hint(l.cause(err, stall))
		}
		return Database{}, fmt.Errorf("%w after %d bytes: %w", ErrStreamCut, t.size, err)
	}
	stream, err := l.maintenance.Snapshot(ctx, &pb.SnapshotRequest{}, grpc.ForceCodecV2(snapshotCodec))
	if err != nil {
		return failed(err)
	}
	for {
		err := stream.RecvMsg(&m)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return failed(err)
		}
		if m.size() == 0 {
			continue // no progress: etcd sends these without end if it cannot read its own database
		}
		watch.Stop()
		for _, b := range m.blob {
			if _, err := t.Write(b); err != nil {
				return Database{}, fmt.Errorf("write after %d bytes: %w", t.size, err)
			}
		}
		watch.Reset(stall)
	}
	if m.remaining > 0 || t.size == 0 {
		return Database{}, fmt.Errorf("%w after %d bytes: etcd ended it with %d bytes to come", ErrStreamCut, t.size, m.remaining)
	}
	return t.finish(m.version)
}

// tap passes a snapshot on and takes its hashes: that of all but the last 32 bytes, and of all.
type tap struct {
	w    io.Writer
	hash hash.Hash // of what came before held
	held []byte    // the last bytes, at most trailerSize
	size int64     // of what w took
}

func (t *tap) Write(p []byte) (int, error) {
	n, err := t.w.Write(p)
	t.size += int64(n)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return n, err
	}
	if len(p) >= trailerSize {
		t.hash.Write(t.held)
		t.hash.Write(p[:len(p)-trailerSize])
		t.held = append(t.held[:0], p[len(p)-trailerSize:]...)
		return n, nil
	}
	t.held = append(t.held, p...)
	if over := len(t.held) - trailerSize; over > 0 {
		t.hash.Write(t.held[:over])
		t.held = append(t.held[:0], t.held[over:]...)
	}
	return n, nil
}

// finish compares the checksum.
func (t *tap) finish(version string) (Database, error) {
	if t.size%trailerMod != trailerSize {
		return Database{}, fmt.Errorf("%w: %d bytes are not a number of pages and a checksum", ErrTrailerMissing, t.size)
	}
	if sum := t.hash.Sum(nil); !bytes.Equal(sum, t.held) {
		return Database{}, fmt.Errorf("%w: etcd's is %x, that of the %d bytes received is %x", ErrTrailerMismatch, t.held, t.size-trailerSize, sum)
	}
	t.hash.Write(t.held)
	db := Database{Size: t.size, Version: version}
	t.hash.Sum(db.SHA256[:0])
	return db, nil
}
