// Package store says what the agent expects of a place that keeps snapshots.
//
// A Store is a flat map from keys to immutable objects: an object appears whole or not at all, is never replaced,
// and is never listed before it is complete. Every backend (file, gcs, azure, s3) is a package of its own below
// this one and passes the conformance suite in storetest whole, plain and behind a prefix (see Prefixed).
//
// Keys are slash-separated paths without a leading slash, without empty, "." or ".." segments; CheckKey tells.
// What cuts across backends (prefix, retry, stall detection) is a decorator or a helper here, not a feature of
// each backend.
package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"time"
)

// Errors that every backend maps its own to, so that errors.Is works across all of them. The wrapped text still
// says what the backend said.
var (
	// ErrNotExist: no object has this key, or the bucket or folder itself is missing.
	ErrNotExist = errors.New("does not exist")
	// ErrExists: an object already has this key; nothing was changed.
	ErrExists = errors.New("already exists")
	// ErrAccessDenied: the store knows us too little (401) or does not let us (403), or the file system does not.
	ErrAccessDenied = errors.New("access denied")
	// ErrMismatch: what is stored is not what was sent.
	ErrMismatch = errors.New("stored object differs from what was sent")
	// ErrProtected: the store refuses to delete the object now (object lock, retention policy, legal hold).
	ErrProtected = errors.New("protected by the store")
	// ErrConfig: the destination's configuration cannot work; trying again does not help.
	ErrConfig = errors.New("bad configuration")
)

// Store keeps objects. All methods are safe for concurrent use, return promptly with an error that wraps ctx.Err()
// when ctx ends, leave no goroutine behind, and refuse with ErrConfig a key that CheckKey refuses. String gives the
// store's location for people and as the base of URIs, without a trailing slash and without any secret:
// gs://bucket/prefix, file:///var/lib/etcd-snapshots.
type Store interface {
	fmt.Stringer

	// Put stores b under key: create-only, atomic, durable. ErrExists when key is taken, also when two writers
	// race: exactly one wins. ErrMismatch when b does not hold exactly b.Size bytes. On any error, a cancelled ctx
	// included, nothing is visible under key and what was uploaded so far is removed as far as it can be.
	Put(ctx context.Context, key string, b Blob) error

	// Get opens the object from byte offset on. ErrNotExist when there is no object; an offset at or beyond the
	// object's end gives an empty reader, a negative one is an error. The reader fails once ctx ends. The caller
	// closes it.
	Get(ctx context.Context, key string, offset int64) (io.ReadCloser, error)

	// List yields all objects whose key begins with prefix, in lexical order of their keys, one page of the
	// backend at a time; an incomplete upload is never among them. prefix is a plain string prefix: "a/" lists a
	// folder, "a/b" also a/bc, and "../" matches nothing. An error ends the sequence. Nothing matching is an empty
	// sequence and no error. The sequence can be ranged over again, and objects may be deleted meanwhile.
	List(ctx context.Context, prefix string) iter.Seq2[Object, error]

	// Delete removes the object. Deleting what is not there is no error. ErrProtected where the store holds it.
	Delete(ctx context.Context, key string) error

	// Check compares the stored object with b by what the store itself reports (size, and a checksum where the
	// backend has one) or, where the backend has none, by reading it back. ErrMismatch when they differ,
	// ErrNotExist when the object is gone.
	Check(ctx context.Context, key string, b Blob) error
}

// UploadSweeper is a store that keeps unfinished uploads which List does not show and which do not vanish by
// themselves.
type UploadSweeper interface {
	// SweepUploads abandons the unfinished uploads of keys that begin with prefix, are mine, and were begun before
	// the given time (by the store's clock), and tells how many.
	SweepUploads(ctx context.Context, prefix string, before time.Time, mine func(key string) bool) (removed int, err error)
}

// SweepUploads calls s.SweepUploads where s has it.
func SweepUploads(ctx context.Context, s Store, prefix string, before time.Time, mine func(key string) bool) (int, error) {
	if u, ok := s.(UploadSweeper); ok {
		return u.SweepUploads(ctx, prefix, before, mine)
	}
	return 0, nil
}

// Blob is what Put sends: a finished local file (or memory), read in parts, in parallel, and again on a retry. A read
// of ReaderAt is what counts as progress (see WithStall), so that backends read while they send and not far ahead.
type Blob struct {
	io.ReaderAt
	// Size in bytes.
	Size int64
	// SHA256 of the content.
	SHA256 [32]byte
	// File, if not nil, is a finished file that holds exactly this content, has no name that stays, and is written to by
	// nobody. A store on its file system may keep the file itself instead of a copy; it is given to one store at most.
	File *os.File
	// Flushed, if not nil, is told of progress by a store that keeps File and has no need to read: so many bytes more are
	// on their way to the disk.
	Flushed func(bytes int)
	// ContentType of the object, for stores that keep one; empty means application/octet-stream.
	ContentType string
}

// Object is one stored object as List reports it.
type Object struct {
	// Key as it was given to Put.
	Key string
	// Size in bytes.
	Size int64
	// ModTime is when the object was stored, by the store's clock.
	ModTime time.Time
}
