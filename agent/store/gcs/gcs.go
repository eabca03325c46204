// Package gcs keeps snapshots in a bucket of Google Cloud Storage.
//
// # Protocol
//
// The JSON API is spoken over net/http, with credentials by Google's own library (cloud.google.com/go/auth). The
// client library, cloud.google.com/go/storage, is left out on purpose: it sends its requests without credentials
// wherever the environment has STORAGE_EMULATOR_HOST, does not heed Retry-After, sends a part again from its start
// instead of from where the service asks for it, and links gRPC's xDS and OpenTelemetry, which made the agent 22 MB
// larger (9 MB with the tag disable_grpc_modules, against less than 2 MB).
//
// # Create-only
//
// Every object is a resumable upload that was begun with ifGenerationMatch=0, so the service itself lets exactly one
// of several writers win, and shows nothing before the last byte. It is one stream: parts side by side would take
// either XML multipart uploads, which know no preconditions and so replace what is there, or composition, which takes
// the right to delete and leaves its parts behind when that is missing. A stream needs no memory either: it is read
// from the file, and taken up after a failure at the byte that the service asks for. Uploads that failed are
// cancelled; those of a killed process are dropped by the service after a week. An answer that gets lost is no
// mystery: the upload is asked what has become of it and, once that is gone, the object.
//
// # Integrity
//
// The CRC32C of the whole is computed beforehand and sent with the first request: the service refuses, and does not
// store, what arrives differently. Check compares it with what the service has computed.
//
// Formats: https://cloud.google.com/storage/docs/json_api/v1/objects,
// https://cloud.google.com/storage/docs/performing-resumable-uploads
package gcs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/wire"
)

// Options is what does not come from a policy. The zero value is right for a run.
type Options struct {
	// Logger tells about retries and leftovers; slog.Default() if nil.
	Logger *slog.Logger
	// StallTimeout is how long a request may show no progress; store.DefaultStall if 0. Total time has no limit.
	StallTimeout time.Duration
	// Retry says how failed requests are tried again.
	Retry store.RetryPolicy
	// ChunkSize is the most that is sent with one request, in bytes and a multiple of 256 KiB. It takes no memory: it
	// is what a service that keeps nothing of a request that broke makes us send again. If 0, all is sent with one
	// request, and 64 MiB with each once one broke of which nothing was kept.
	ChunkSize int64
}

const (
	defaultEndpoint = "https://storage.googleapis.com"
	smallChunkSize  = 64 << 20
	// chunkUnit is what the service wants a request's size to be a multiple of, but for the last.
	chunkUnit = 256 << 10
	// graceTime is how long an answer is awaited that decides whether the object is there, once ctx has ended.
	graceTime = 5 * time.Second
	// cleanupTime bounds finding out, and removing, what a failed Put has left.
	cleanupTime = 15 * time.Second
	// tokenTime is how long a first token is tried for: the run has other destinations to fail for.
	tokenTime = 30 * time.Second
)

// Bucket is a store in a bucket.
type Bucket struct {
	name      string
	endpoint  *url.URL
	client    *http.Client
	transport *http.Transport
	creds     *credential
	log       *slog.Logger

	stall time.Duration
	retry store.RetryPolicy
	chunk int64 // 0: see Options.ChunkSize
	// small is what stands for a chunk of 0 once a service has kept nothing of a request.
	small int64
	// pageSize is how many objects are listed with one request.
	pageSize int

	kmsKeyName   string
	storageClass string
	metadata     map[string]string

	mu sync.Mutex
	// sums are the CRC32C of contents that Put has read, by SHA-256.
	sums map[[32]byte]string
}

var _ store.Store = (*Bucket)(nil)

// New gives the bucket of spec; its prefix is not applied (see store.Prefixed). Nothing is asked of the bucket yet,
// but credentials are read and a first token is fetched. store.ErrConfig names the field of spec that cannot work, and
// store.ErrAccessDenied says that Google refused us. Close the bucket after use.
func New(ctx context.Context, spec *v1.GCSDestination, o Options) (*Bucket, error) {
	b := &Bucket{
		name: spec.Bucket, log: o.Logger, stall: o.StallTimeout, retry: o.Retry, chunk: o.ChunkSize, small: smallChunkSize, pageSize: 1000,
		kmsKeyName: spec.KMSKeyName, storageClass: spec.StorageClass, metadata: spec.Metadata,
		sums: map[[32]byte]string{},
	}
	if b.log == nil {
		b.log = slog.Default()
	}
	if b.stall <= 0 {
		b.stall = store.DefaultStall
	}
	if err := b.open(ctx, spec); err != nil {
		b.Close()
		return nil, fmt.Errorf("gcs bucket %s: %w", spec.Bucket, err)
	}
	return b, nil
}

func (b *Bucket) open(ctx context.Context, spec *v1.GCSDestination) (err error) {
	if b.chunk%chunkUnit != 0 {
		return fmt.Errorf("%w: chunk size of %d bytes is no multiple of 256 KiB", store.ErrConfig, b.chunk)
	}
	size := 0
	for k, v := range b.metadata {
		size += len(k) + len(v)
	}
	if size > 8<<10 { // https://cloud.google.com/storage/quotas#objects
		return bad("metadata", fmt.Errorf("its names and values have %d bytes, and Cloud Storage takes 8 KiB", size))
	}
	if b.endpoint, err = parseEndpoint(cmp.Or(spec.Endpoint, defaultEndpoint)); err != nil {
		return err
	}
	if b.transport, err = wire.NewTransport(spec.EndpointSpec, 2); err != nil {
		return err
	}
	b.client = &http.Client{
		Transport: b.transport,
		// The service never redirects: its 308 means something else. Whoever does is not to be handed our token.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if b.creds, err = b.newCredential(spec.Auth); err != nil {
		return err
	}
	if b.creds == nil {
		return nil
	}
	if spec.Endpoint == "" && b.creds.universe != "" {
		b.endpoint.Host = "storage." + b.creds.universe
	}
	if b.endpoint.Scheme != "https" {
		return bad("endpoint", errors.New("tokens are sent over https only; an emulator takes auth.method anonymous"))
	}
	if err := b.firstToken(ctx); err != nil {
		return fmt.Errorf("auth: method %s: %w", cmp.Or(spec.Auth.Method, v1.GCSAuthDefault), err)
	}
	return nil
}

func bad(field string, err error) error { return fmt.Errorf("%w: %s: %w", store.ErrConfig, field, err) }

func parseEndpoint(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		// The message of url.Parse repeats the whole, which may hold what was pasted by mistake.
		return nil, bad("endpoint", errors.New("it is not a URL"))
	case u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return nil, bad("endpoint", errors.New("it must be http:// or https://, a host, and at most a path"))
	}
	// People copy the URL of the API as well as that of the service.
	u.Path = strings.TrimSuffix(strings.TrimSuffix(u.Path, "/"), "/storage/v1")
	return u, nil
}

// String gives gs://bucket.
func (b *Bucket) String() string { return "gs://" + b.name }

// Close closes the connections that were kept.
func (b *Bucket) Close() error {
	if b.transport != nil {
		b.transport.CloseIdleConnections()
	}
	if b.creds != nil {
		b.creds.transport.CloseIdleConnections()
	}
	return nil
}

// where is the object as messages name it.
func (b *Bucket) where(key string) string {
	if key == "" {
		return b.String()
	}
	return b.String() + "/" + key
}

// policy is how requests of one kind are tried again.
func (b *Bucket) policy(o op) store.RetryPolicy {
	p := b.retry
	if p.OnRetry == nil {
		p.OnRetry = func(err error, delay time.Duration) {
			b.log.Warn("trying again", "action", o.verb, "in", delay.Round(time.Millisecond), "error", err)
		}
	}
	return p
}

// do makes one request until it succeeds or fails for good.
func (b *Bucket) do(ctx context.Context, o op, key string, f func(ctx context.Context) error) error {
	return b.tries(ctx, b.policy(o), func(ctx context.Context) error { return b.once(ctx, o, key, f) })
}

// tries is store.Retry, but a try that stalls is given a second chance on a new connection, and no third unless there
// was progress in between.
func (b *Bucket) tries(ctx context.Context, p store.RetryPolicy, f func(ctx context.Context) error) error {
	stalls, done := 0, int64(0)
	return store.Retry(ctx, p, func(ctx context.Context) error {
		err := f(ctx)
		if errors.Is(err, store.ErrStalled) && ctx.Err() == nil {
			b.transport.CloseIdleConnections()
			if p.Progress != nil && p.Progress() > done {
				stalls, done = 0, p.Progress()
			}
			if stalls++; stalls > 1 {
				return store.Permanent(err)
			}
		}
		return err
	})
}

// once makes one try of one request. It ends when it stalls.
func (b *Bucket) once(ctx context.Context, o op, key string, f func(ctx context.Context) error) error {
	try, _, stop := store.WithStall(ctx, b.stall)
	defer stop()
	err := f(try)
	switch cause := context.Cause(try); {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		err = store.CtxErr(ctx)
	case cause != nil:
		err = cause
	default:
		err = b.explain(o, err)
	}
	return fmt.Errorf("%s %s: %w", o.verb, b.where(key), err)
}
