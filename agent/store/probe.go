package store

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// probePrefix begins the keys of the objects that TryOut makes. They are nobody's snapshots.
const probePrefix = "doctor-probe-"

const (
	// probeCleanup bounds the removal of the probe, which goes on after ctx has ended.
	probeCleanup = 20 * time.Second
	// probeAge is how old a probe must be to be somebody's who was killed.
	probeAge = time.Hour
)

// ErrNotTried says that something was not tried because an earlier step failed.
var ErrNotTried = errors.New("not tried")

// Trial is what a store let us do.
type Trial struct {
	// Key of the object that it was tried out on.
	Key string
	// Why not, for each of what a run does; nil says that it worked, ErrNotTried that it was not tried.
	List, Put, Get, Check, Delete error
	// Began and Ended are when the object was stored by the clock here, and Stored is when by the store's own; zero where
	// it did not tell.
	Began, Ended, Stored time.Time
}

// Left says that the object is still there, because it could not be removed.
func (t *Trial) Left() bool { return t.Put == nil && t.Delete != nil }

// Errs gives what failed, in the order of the steps, without what was not tried.
func (t *Trial) Errs() (errs []error) {
	for _, err := range []error{t.List, t.Put, t.Get, t.Check, t.Delete} {
		if err != nil && !errors.Is(err, ErrNotTried) {
			errs = append(errs, err)
		}
	}
	return errs
}

// TryOut does in s what a run does: it lists, stores a small object of its own, reads it, has it checked and removes it.
// Where the store denies one of these it goes on, so that all rights that are missing are found at once; any other failure
// ends it. Whatever happens, and also when ctx ends, the object is removed if it can be, and so are those that a killed
// TryOut left an hour ago or more.
func TryOut(ctx context.Context, s Store) *Trial {
	t := &Trial{Key: probePrefix + strings.ToLower(rand.Text()[:12])}
	content := []byte("etcd-snapshot-agent doctor tries out what it may do here. This object can be removed.\n")
	blob := Blob{ReaderAt: bytes.NewReader(content), Size: int64(len(content)), SHA256: sha256.Sum256(content), ContentType: "text/plain"}
	t.Put, t.Get, t.Check, t.Delete = ErrNotTried, ErrNotTried, ErrNotTried, ErrNotTried

	if _, t.List = t.find(ctx, s); !goesOn(t.List) {
		return t
	}
	t.Began = time.Now()
	t.Put = s.Put(ctx, t.Key, blob)
	t.Ended = time.Now()
	defer func() { t.Delete = remove(ctx, s, t.Key) }()
	if !goesOn(t.Put) {
		return t
	}
	if t.List == nil && t.Put == nil {
		t.Stored, t.List = t.find(ctx, s)
		if t.List == nil && t.Stored.IsZero() {
			t.List = fmt.Errorf("list %s: the object that was just stored is not in the list", s)
		}
	}
	t.Get = t.read(ctx, s, content)
	if t.Put != nil && errors.Is(t.Get, ErrNotExist) {
		t.Get = nil // to be told so is to be let in
	}
	if t.Put == nil && goesOn(t.Get) {
		t.Check = s.Check(ctx, t.Key, blob)
	}
	return t
}

// goesOn says that after err the other steps still tell something.
func goesOn(err error) bool { return err == nil || errors.Is(err, ErrAccessDenied) }

// find looks for the probe in the list, and removes old ones on the way.
func (t *Trial) find(ctx context.Context, s Store) (stored time.Time, err error) {
	var old []string
	for o, err := range s.List(ctx, probePrefix) {
		switch {
		case err != nil:
			return time.Time{}, err
		case o.Key == t.Key:
			stored = o.ModTime
		case time.Since(o.ModTime) > probeAge:
			old = append(old, o.Key)
		}
	}
	for _, key := range old {
		_ = s.Delete(ctx, key) // that we may not is found out with our own
	}
	return stored, nil
}

func (t *Trial) read(ctx context.Context, s Store, content []byte) error {
	r, err := s.Get(ctx, t.Key, 0)
	if err != nil {
		return err
	}
	defer r.Close()
	got, err := io.ReadAll(io.LimitReader(r, int64(len(content))+1))
	if err == nil && !bytes.Equal(got, content) {
		err = fmt.Errorf("get %s/%s: %w: %d bytes came back", s, t.Key, ErrMismatch, len(got))
	}
	return err
}

// remove deletes the probe, also when ctx has ended. Where there is none it tells whether we may delete.
func remove(ctx context.Context, s Store, key string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeCleanup)
	defer cancel()
	return s.Delete(ctx, key)
}
