package verify

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"filippo.io/age"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/destination"
	"etcdsnapshot.dev/agent/extras"
	"etcdsnapshot.dev/agent/store"
)

// ExtrasResult is what is known of a snapshot's extras.
type ExtrasResult struct {
	Files int `json:"files"`
	// Opened says that they were decrypted and read whole. Otherwise no identity that was given opens them, and they are
	// only known to be what was stored.
	Opened bool `json:"opened"`
}

// storedExtras proves the extras of a copy: that they are what was stored and, above LevelChecksum where an identity opens
// them, that every file can be read.
func storedExtras(ctx context.Context, d *destination.Destination, m *v1.Manifest, r Request) (*ExtrasResult, error) {
	ids := r.Identities
	if r.Level == LevelChecksum {
		ids = nil
	}
	want := m.Extras.Object
	object := store.OpenResumable(ctx, d.Store, want.Key, want.Size, r.StallTimeout, store.RetryPolicy{})
	defer object.Close()
	entries, err := Extras(ctx, object, &want, ids)
	res := &ExtrasResult{Files: len(m.Extras.Files), Opened: err == nil}
	if errors.Is(err, archive.ErrNoIdentity) || errors.Is(err, archive.ErrWrongIdentity) {
		return res, nil
	}
	if err == nil {
		err = sameFiles(m, entries)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.URI(want.Key), err)
	}
	return res, nil
}

// Extras decrypts and reads an archive of extras. Where the error is nil, archive.ErrNoIdentity or archive.ErrWrongIdentity
// it is what want says, if that is not nil; what is wrong with it otherwise is archive.ErrCorrupt.
func Extras(ctx context.Context, object io.Reader, want *v1.ObjectFacts, ids []age.Identity) ([]extras.Entry, error) {
	in := &storedReader{ctx: ctx, r: object, hash: sha256.New()}
	entries, err := readExtras(in, ids)
	switch {
	case in.err != nil:
		err = storeError(in.err)
	case want != nil:
		if serr := in.finish(*want); serr != nil {
			err = serr // damage explains whatever decoding said
		}
	}
	if err != nil {
		return nil, missing(err)
	}
	return entries, nil
}

func readExtras(in *storedReader, ids []age.Identity) ([]extras.Entry, error) {
	dec, err := archive.NewExtrasDecoder(in, ids...)
	if err != nil {
		return nil, err
	}
	entries, err := extras.Read(dec)
	return entries, errors.Join(err, dec.Close())
}

// sameFiles compares what is in the archive with what its manifest says.
func sameFiles(m *v1.Manifest, entries []extras.Entry) error {
	files := map[string]bool{}
	for _, e := range entries {
		if !e.Mode.IsDir() {
			files["/"+e.Path] = true
		}
	}
	for _, f := range m.Extras.Files {
		if !files[f] {
			return corruptf("archive of extras", "it lacks %s, which its manifest lists", f)
		}
	}
	return nil
}
