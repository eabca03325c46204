package destination

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/file"
)

// Options say how destinations are opened.
type Options struct {
	// Create makes the folder of a hostPath destination where it is missing. Its parent must be there.
	Create bool
	// StallTimeout ends a transfer that makes no progress for this long.
	StallTimeout time.Duration
	Log          *slog.Logger
}

// Open opens a destination of a policy: the folder of clusterName in it. Configuration that cannot work, such as a
// missing credentials file, is an error that wraps store.ErrConfig; no request is made yet. The error does not name the
// destination: who opens several says which.
func Open(ctx context.Context, spec v1.Destination, clusterName string, o Options) (*Destination, error) {
	var s store.Store
	prefix := ""
	var err error
	switch {
	case spec.HostPath != nil:
		s, err = file.New(spec.HostPath.Path, file.Options{Create: o.Create})
	default:
		err = fmt.Errorf("%w: no backend is set", store.ErrConfig)
	}
	if err != nil {
		return nil, err
	}
	if s, err = store.Prefixed(s, prefix); err != nil {
		return nil, err
	}
	if s, err = store.Prefixed(s, clusterName); err != nil {
		return nil, err
	}
	return &Destination{Spec: spec, Store: s, Log: o.Log.With("destination", spec.Name)}, nil
}

// Backends names the kinds of store that Open knows.
func Backends() []string { return []string{"hostPath", "gcs", "azure", "s3"} }
