// Package destination is one place of a policy, opened: a store seen as the table of one cluster's snapshots.
//
// A snapshot is two objects side by side, the data and its manifest, and what else goes with it (see package archive). The
// manifest is written last and removed first, so it is the commit marker: without it a snapshot does not exist.
package destination

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/store"
)

// ownerKey is the object that says whose folder this is.
const ownerKey = "cluster.json"

// cleanupTime bounds what is done to leave nothing behind after a failure or an interruption.
const cleanupTime = 20 * time.Second

// maxOwnerBytes and maxManifestBytes bound what is read into memory from a store that may hold anything.
const (
	maxOwnerBytes    = 64 << 10
	maxManifestBytes = archive.MaxManifestSize
)

// Destination is one cluster's folder in one store.
type Destination struct {
	// Name and the rest of what the policy says of it.
	Spec v1.Destination
	// Store is the cluster's folder.
	Store store.Store
	// Signer signs what is published; nil leaves it unsigned.
	Signer *archive.Signer
	// Trusted, if not nil, lets Manifest take only what one of these keys signed.
	Trusted archive.TrustedKeys
	// Log receives what went wrong without failing anything.
	Log *slog.Logger

	close func() error
}

// Owner says which cluster a folder belongs to.
type Owner struct {
	ClusterName string `json:"clusterName"`
	// ClusterUID is the UID of the namespace kube-system, or empty where it is not known.
	ClusterUID string `json:"clusterUID,omitempty"`
}

// ForeignError says that the folder belongs to another cluster. Nothing may be written to it or removed from it.
type ForeignError struct {
	URI          string
	Theirs, Ours Owner
}

func (e *ForeignError) Error() string {
	return fmt.Sprintf("%s belongs to the cluster with UID %s, not to this one (UID %s): give this cluster a spec.clusterName or a prefix of its own; if it is the same cluster, rebuilt, set spec.clusterUID to %s",
		e.URI, e.Theirs.ClusterUID, e.Ours.ClusterUID, e.Theirs.ClusterUID)
}

// URI of a key, for people.
func (d *Destination) URI(key string) string { return d.Store.String() + "/" + key }

// CheckOwner compares the folder's owner with ours. A folder without an owner is nobody's yet; an owner without a
// UID, or not knowing our own, is no contradiction. The error is a *ForeignError, or why the owner could not be read.
func (d *Destination) CheckOwner(ctx context.Context, ours Owner) error {
	_, err := d.checkOwner(ctx, ours)
	return err
}

func (d *Destination) checkOwner(ctx context.Context, ours Owner) (theirs Owner, err error) {
	theirs, err = d.owner(ctx)
	if err == nil && theirs.ClusterUID != "" && ours.ClusterUID != "" && theirs.ClusterUID != ours.ClusterUID {
		err = &ForeignError{URI: d.Store.String(), Theirs: theirs, Ours: ours}
	}
	return theirs, err
}

// ErrUnproven says that nothing may be removed from a folder because it may not be ours.
var ErrUnproven = errors.New("the folder names its cluster's UID, and this cluster's is not known")

// CheckMayRemove is CheckOwner for who is about to remove something: not knowing our own UID is no excuse then.
func (d *Destination) CheckMayRemove(ctx context.Context, ours Owner) error {
	theirs, err := d.checkOwner(ctx, ours)
	if err != nil {
		return err
	}
	if theirs.ClusterUID != "" && ours.ClusterUID == "" {
		return fmt.Errorf("%s: %w: set spec.clusterUID in the policy file to %s if it is this cluster", d.URI(ownerKey), ErrUnproven, theirs.ClusterUID)
	}
	return nil
}

// owner reads who the folder belongs to; the zero Owner is nobody yet.
func (d *Destination) owner(ctx context.Context) (o Owner, err error) {
	data, err := d.read(ctx, ownerKey, maxOwnerBytes)
	if errors.Is(err, store.ErrNotExist) {
		return Owner{}, nil
	}
	if err != nil {
		return Owner{}, fmt.Errorf("read %s: %w", d.URI(ownerKey), err)
	}
	if err := json.Unmarshal(data, &o); err != nil {
		return Owner{}, fmt.Errorf("read %s: it is not what this program writes (%w): move it away after you have made sure whose folder this is", d.URI(ownerKey), err)
	}
	return o, nil
}

// Claim marks the folder as ours, or checks that it is. Of two clusters that claim at once one wins, and the other
// gets a *ForeignError.
func (d *Destination) Claim(ctx context.Context, ours Owner) error {
	data, err := json.MarshalIndent(ours, "", "  ")
	if err != nil {
		return err
	}
	theirs, err := d.checkOwner(ctx, ours)
	if err != nil || theirs != (Owner{}) {
		return err
	}
	err = d.Store.Put(ctx, ownerKey, memory(append(data, '\n')))
	if errors.Is(err, store.ErrExists) {
		return d.CheckOwner(ctx, ours)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", d.URI(ownerKey), err)
	}
	return nil
}

// Publish stores a snapshot: the data and, where the manifest has some, the extras, each checked as afterStore says
// (v1.AfterStoreNone, ...), the signature of its manifest, then the manifest. On any error nothing is visible: what was
// stored is removed again.
func (d *Destination) Publish(ctx context.Context, m *v1.Manifest, data, extras store.Blob, afterStore string) (err error) {
	manifest, err := archive.EncodeManifest(m)
	if err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	var signature []byte
	if d.Signer != nil {
		if signature, err = d.Signer.Sign(manifest); err != nil {
			return err
		}
	}
	var stored []string
	defer func() {
		if err != nil {
			for _, key := range stored {
				d.undo(ctx, key)
			}
		}
	}()
	put := func(key string, b store.Blob, check string) error {
		if err := d.Store.Put(ctx, key, b); err != nil {
			return fmt.Errorf("put %s: %w", d.URI(key), err)
		}
		stored = append(stored, key)
		var err error
		switch check {
		case v1.AfterStoreFull:
			err = store.VerifyFull(ctx, d.Store, key, b, nil)
		case v1.AfterStoreChecksum:
			err = d.Store.Check(ctx, key, b)
		}
		if err != nil {
			return fmt.Errorf("check %s after storing: %w", d.URI(key), err)
		}
		return nil
	}
	if err := put(m.Object.Key, data, afterStore); err != nil {
		return err
	}
	if m.Extras != nil {
		if err := put(m.Extras.Object.Key, extras, afterStore); err != nil {
			return err
		}
	}
	if signature != nil {
		blob := memory(signature)
		blob.ContentType = "text/plain"
		if err := put(archive.SignatureKey(m.Name), blob, v1.AfterStoreNone); err != nil {
			return err
		}
	}
	return put(archive.ManifestKey(m.Name), memory(manifest), v1.AfterStoreNone)
}

// undo removes an object that must not stay, also when ctx has ended.
func (d *Destination) undo(ctx context.Context, key string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	if err := d.Store.Delete(ctx, key); err != nil {
		// Without a manifest it is not a snapshot; a later run sweeps it.
		d.Log.Warn("could not remove what was stored before the failure; it is not listed, and a later run removes it", "uri", d.URI(key), "error", err)
	}
}

// Manifest reads a snapshot's manifest. With Trusted keys, one that none of them signed is archive.ErrUntrusted.
func (d *Destination) Manifest(ctx context.Context, name string) (*v1.Manifest, error) {
	m, _, err := d.SignedManifest(ctx, name, d.Trusted)
	return m, err
}

// SignedManifest is Manifest with keys of its own, nil for none, and gives the fingerprint of the key that signed it.
func (d *Destination) SignedManifest(ctx context.Context, name string, trusted archive.TrustedKeys) (m *v1.Manifest, signedBy string, err error) {
	key := archive.ManifestKey(name)
	data, err := d.read(ctx, key, maxManifestBytes)
	if err != nil {
		return nil, "", fmt.Errorf("read %s: %w", d.URI(key), err)
	}
	if trusted != nil {
		signature, err := d.read(ctx, archive.SignatureKey(name), archive.MaxSignatureSize)
		if err != nil && !errors.Is(err, store.ErrNotExist) {
			return nil, "", fmt.Errorf("read %s: %w", d.URI(archive.SignatureKey(name)), err)
		}
		if signedBy, err = trusted.Verify(data, signature); err != nil {
			return nil, "", fmt.Errorf("%s: %w", d.URI(key), err)
		}
	}
	if m, err = archive.DecodeManifest(data); err != nil {
		return nil, "", fmt.Errorf("read %s: %w", d.URI(key), err)
	}
	if m.Name != name {
		return nil, "", fmt.Errorf("read %s: %w: it is the manifest of %s", d.URI(key), archive.ErrCorrupt, m.Name)
	}
	return m, signedBy, nil
}

// Remove deletes a snapshot: its manifest first, so that there is never a manifest without data. Where the data then
// cannot be deleted, the manifest is put back: what is still there stays listed. What lies beside the data goes last; where
// it stays, it belongs to nothing, and Sweep removes it.
func (d *Destination) Remove(ctx context.Context, e Entry) error {
	key := archive.ManifestKey(e.Name)
	manifest, readErr := d.read(ctx, key, maxManifestBytes)
	if err := d.Store.Delete(ctx, key); err != nil {
		return fmt.Errorf("delete %s: %w", d.URI(key), err)
	}
	err := d.Store.Delete(ctx, e.Key)
	if err == nil {
		for _, o := range e.Beside {
			if err := d.Store.Delete(ctx, o.Key); err != nil {
				d.Log.Warn("could not remove what went with a snapshot that was removed; a later run tries again", "uri", d.URI(o.Key), "error", err)
			}
		}
		return nil
	}
	if readErr == nil {
		back, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
		defer cancel()
		if perr := d.Store.Put(back, key, memory(manifest)); perr != nil {
			d.Log.Error("could not put the manifest back of a snapshot that could not be removed; it is not listed any more", "uri", d.URI(key), "error", perr)
		}
	}
	return fmt.Errorf("delete %s: %w", d.URI(e.Key), err)
}

func (d *Destination) read(ctx context.Context, key string, limit int64) ([]byte, error) {
	r, err := d.Store.Get(ctx, key, 0)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if cerr := r.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%w: larger than %d bytes", archive.ErrCorrupt, limit)
	}
	return data, nil
}

func memory(data []byte) store.Blob {
	return store.Blob{ReaderAt: bytes.NewReader(data), Size: int64(len(data)), SHA256: sha256.Sum256(data), ContentType: "application/json"}
}
