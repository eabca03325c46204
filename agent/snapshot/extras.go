package snapshot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/extras"
	"etcdsnapshot.dev/agent/store"
)

// collect makes the archive of the policy's extras, encrypted, in memory: extras.MaxBytes bounds it, and no disk sees it.
func collect(ctx context.Context, q Request, name string) (*v1.ExtrasFacts, store.Blob, error) {
	if len(q.ExtrasRecipients) == 0 {
		return nil, store.Blob{}, fmt.Errorf("spec.extras: there is nobody to encrypt them to") // the policy's rules forbid it
	}
	var buf bytes.Buffer
	enc, err := archive.NewEncoder(&buf, archive.Options{Algorithm: v1.CompressionZstd, Recipients: q.ExtrasRecipients, Concurrency: 1})
	if err != nil {
		return nil, store.Blob{}, err
	}
	files, err := extras.Collect(ctx, enc, q.Policy.Spec.Extras.Paths, q.Log)
	if cerr := enc.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, store.Blob{}, fmt.Errorf("spec.extras.paths: %w", err)
	}
	b := store.Blob{ReaderAt: bytes.NewReader(buf.Bytes()), Size: int64(buf.Len()), SHA256: sha256.Sum256(buf.Bytes())}
	q.Log.Info("collected extras", "files", len(files), "bytes", b.Size)
	return &v1.ExtrasFacts{
		Object:     v1.ObjectFacts{Key: archive.ExtrasKey(name), Size: b.Size, SHA256: fmt.Sprintf("%x", b.SHA256)},
		Encryption: *archive.Facts(q.ExtrasRecipients), Files: files,
	}, b, nil
}

// wantsExtras tells whether any destination that can be stored in gets extras.
func wantsExtras(q Request, outcomes []Outcome) bool {
	x := q.Policy.Spec.Extras
	return x != nil && slices.ContainsFunc(outcomes, func(o Outcome) bool { return o.Err == nil && getsExtras(x, o.Name) })
}

// manifestFor gives the manifest of the copy in a destination, which need not be one that gets the extras.
func manifestFor(q Request, m *v1.Manifest, destination string) *v1.Manifest {
	if m.Extras == nil || getsExtras(q.Policy.Spec.Extras, destination) {
		return m
	}
	without := *m
	without.Extras = nil
	return &without
}

func getsExtras(x *v1.ExtrasSpec, destination string) bool {
	return len(x.Destinations) == 0 || slices.Contains(x.Destinations, destination)
}
