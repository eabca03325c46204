package destination

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/store"
)

// Proof is what the notes beside a copy say of its verifications.
type Proof struct {
	// Level that it passed: the highest; empty where none is noted.
	Level string
	// Corrupt says that a verification found it so, and that none as strict has passed since.
	Corrupt bool
	// Time of the note, by the store's clock.
	Time time.Time
}

// Proof reads the notes off the list. They are for people and for retention: whoever may write to the store can write
// them, so nothing is restored on their word.
func (e Entry) Proof() (p Proof) {
	for _, o := range e.Beside {
		_, note, ok := archive.ParseProof(o.Key)
		switch {
		case !ok, p.Corrupt && note.Passed:
		case !note.Passed:
			p = Proof{Level: note.Level, Corrupt: true, Time: o.ModTime}
		case note.Proves(p.Level):
			p = Proof{Level: note.Level, Time: o.ModTime}
		}
	}
	return p
}

// Note leaves the outcome of a verification beside the copy, where a list shows it without the catalog that knows the
// same. What is noted stays; notes of corruption that the outcome refutes are removed.
func (d *Destination) Note(ctx context.Context, e Entry, outcome v1.VerificationStatus) error {
	note := archive.Proof{Level: outcome.Level, Passed: outcome.Result == v1.VerificationPassed}
	key := archive.ProofKey(e.Name, note)
	var refuted []string
	for _, o := range e.Beside {
		if _, old, ok := archive.ParseProof(o.Key); ok && !old.Passed && note.Proves(old.Level) {
			refuted = append(refuted, o.Key)
		}
	}
	if !slices.ContainsFunc(e.Beside, func(o store.Object) bool { return o.Key == key }) {
		data, err := json.MarshalIndent(outcome, "", "  ")
		if err != nil {
			return err
		}
		if err := d.Store.Put(ctx, key, memory(append(data, '\n'))); err != nil && !errors.Is(err, store.ErrExists) {
			return fmt.Errorf("put %s: %w", d.URI(key), err)
		}
	}
	var errs []error
	for _, key := range refuted {
		if err := d.Store.Delete(ctx, key); err != nil {
			errs = append(errs, fmt.Errorf("delete %s: %w", d.URI(key), err))
		}
	}
	return errors.Join(errs...)
}
