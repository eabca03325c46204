package destination

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/azure"
	"etcdsnapshot.dev/agent/store/file"
	"etcdsnapshot.dev/agent/store/gcs"
	"etcdsnapshot.dev/agent/store/s3"
)

// Options say how destinations are opened.
type Options struct {
	// Create makes the folder of a hostPath destination where it is missing. Its parent must be there.
	Create bool
	// StallTimeout ends a transfer that makes no progress for this long; store.DefaultStall if 0.
	StallTimeout time.Duration
	// Signer signs what is published, and Trusted says whose signatures count; see Destination.
	Signer  *archive.Signer
	Trusted archive.TrustedKeys
	Log     *slog.Logger
}

// Backends names the kinds of store that Open knows.
func Backends() []string { return []string{"hostPath", "gcs", "azure", "s3"} }

// Open opens a destination of a policy: the folder of clusterName in it. Credentials are read and, where a token
// service gives them, fetched; nothing is asked of the store yet. Configuration that cannot work, such as a missing
// credentials file, is an error that wraps store.ErrConfig. The error does not name the destination: who opens several
// says which. Close it after use.
func Open(ctx context.Context, spec v1.Destination, clusterName string, o Options) (*Destination, error) {
	d := &Destination{Spec: spec, Signer: o.Signer, Trusted: o.Trusted, Log: o.Log.With("destination", spec.Name)}
	s, prefix, err := d.openStore(ctx, o)
	if err != nil {
		return nil, err
	}
	if c, ok := s.(io.Closer); ok {
		d.close = c.Close
	}
	for _, folder := range []string{prefix, clusterName} {
		if s, err = store.Prefixed(s, folder); err != nil {
			d.Close()
			return nil, err
		}
	}
	d.Store = s
	return d, nil
}

// openStore opens the backend that is set, and tells which folder of it the policy names.
func (d *Destination) openStore(ctx context.Context, o Options) (s store.Store, prefix string, err error) {
	switch spec := d.Spec; {
	case spec.HostPath != nil:
		s, err = file.New(spec.HostPath.Path, file.Options{Create: o.Create})
	case spec.GCS != nil:
		prefix = spec.GCS.Prefix
		s, err = gcs.New(ctx, spec.GCS, gcs.Options{Logger: d.Log, StallTimeout: o.StallTimeout})
	case spec.Azure != nil:
		prefix = spec.Azure.Prefix
		s, err = azure.New(ctx, spec.Azure, azure.Options{Logger: d.Log, StallTimeout: o.StallTimeout})
	case spec.S3 != nil:
		prefix = spec.S3.Prefix
		s, err = s3.New(ctx, spec.S3, s3.Options{Logger: d.Log, StallTimeout: o.StallTimeout})
	default:
		err = fmt.Errorf("%w: no backend is set", store.ErrConfig)
	}
	return s, prefix, err
}

// Close ends the connections to the store.
func (d *Destination) Close() {
	if d.close == nil {
		return
	}
	if err := d.close(); err != nil {
		d.Log.Debug("could not close the store", "error", err)
	}
}
