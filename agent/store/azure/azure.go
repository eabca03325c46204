// Package azure keeps snapshots in a container of Azure Blob Storage.
//
// # Create-only
//
// An object is a block blob whose blocks are staged in parallel and then committed with If-None-Match: *. Staged
// blocks are invisible, so nothing half-written ever shows, and of two writers that race exactly one wins: the IDs of
// the blocks begin with random bytes of each Put, so that writers do not mix, and so that after a lost answer the
// blob itself tells whose it is. Blocks of a Put that failed cannot be removed; the service drops them after a week.
//
// # Integrity
//
// Each block carries its MD5, which the service verifies before it stores the block. The service does not compute a
// checksum of a blob that is made of blocks: the MD5 of the whole is set with the commit (Content-MD5), and Check
// compares it. A blob without one is read back.
//
// Formats: https://learn.microsoft.com/rest/api/storageservices/put-block and .../put-block-list
package azure

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"

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
	// BlockSize is the size in bytes of the blocks of an upload; if 0 it is chosen from the object's size: 8 MiB, or
	// more where that would make more than 45,000 blocks.
	BlockSize int64
	// Parallelism is how many blocks are held in memory and sent side by side; 4 if 0.
	Parallelism int
}

const (
	defaultBlockSize   = 8 << 20
	maxBlocks          = 45_000 // the service takes 50,000
	defaultParallelism = 4
	// graceTime is how long the answer to a commit is awaited once ctx has ended.
	graceTime = 5 * time.Second
	// cleanupTime bounds finding out, and removing, what a failed Put has left.
	cleanupTime = 15 * time.Second
)

// Bucket is a store in a container.
type Bucket struct {
	url       string
	container *container.Client
	transport *http.Transport
	log       *slog.Logger

	stall       time.Duration
	retry       store.RetryPolicy
	blockSize   int64
	parallelism int
	grace       time.Duration
	pageSize    *int32 // of listings; nil is the service's own
	dial        func(ctx context.Context, network, addr string) (net.Conn, error)

	tier     *blob.AccessTier
	scope    *blob.CPKScopeInfo
	metadata map[string]*string

	mu sync.Mutex
	// md5s of contents that Put has read, by SHA-256.
	md5s map[[32]byte][]byte
}

var _ store.Store = (*Bucket)(nil)

// New gives the container of spec; its prefix is not applied (see store.Prefixed). Nothing is asked of the container
// yet, but secrets are read and, where the method takes one, a first token is fetched. store.ErrConfig names the field
// of spec that cannot work, and store.ErrAccessDenied says that Entra ID refused us. Close the bucket after use.
func New(ctx context.Context, spec *v1.AzureDestination, o Options) (*Bucket, error) {
	b := newBucket(o)
	if err := b.open(ctx, spec); err != nil {
		b.Close()
		return nil, fmt.Errorf("azure container %s: %w", spec.Container, err)
	}
	return b, nil
}

func newBucket(o Options) *Bucket {
	b := &Bucket{
		log: o.Logger, stall: o.StallTimeout, retry: o.Retry, blockSize: o.BlockSize, parallelism: o.Parallelism,
		dial: dial, grace: graceTime, md5s: map[[32]byte][]byte{},
	}
	if b.log == nil {
		b.log = slog.Default()
	}
	if b.stall <= 0 {
		b.stall = store.DefaultStall
	}
	if b.parallelism <= 0 {
		b.parallelism = defaultParallelism
	}
	return b
}

func (b *Bucket) open(ctx context.Context, spec *v1.AzureDestination) error {
	service, err := serviceURL(spec)
	if err != nil {
		return err
	}
	b.url = service.JoinPath(spec.Container).String()
	if err := b.configure(spec); err != nil {
		return err
	}
	if b.transport, err = newTransport(spec.EndpointSpec, b.parallelism, b.dial); err != nil {
		return err
	}
	cred, err := newCredential(spec, service, b.transport)
	if err != nil {
		return err
	}
	if cred.token != nil {
		if err := b.firstToken(ctx, cred.token); err != nil {
			return fmt.Errorf("auth: method %s: %w", cmp.Or(spec.Auth.Method, v1.AzureAuthDefault), err)
		}
	}
	o := &container.ClientOptions{}
	o.Transport = newHTTPClient(b.transport, cred.sas)
	o.Telemetry.ApplicationID = "etcd-snapshot"
	// Tries are ours: the SDK's are counted and know no progress, and it tries again what cannot succeed.
	o.Retry = policy.RetryOptions{MaxRetries: -1}
	switch {
	case cred.token != nil:
		b.container, err = container.NewClient(b.url, cred.token, o)
	case cred.key != nil:
		b.container, err = container.NewClientWithSharedKeyCredential(b.url, cred.key, o)
	default:
		b.container, err = container.NewClientWithNoCredential(b.url, o)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", store.ErrConfig, err)
	}
	return nil
}

// String gives the container's URL, without a SAS.
func (b *Bucket) String() string { return b.url }

// Close closes the connections that were kept.
func (b *Bucket) Close() error {
	if b.transport != nil {
		b.transport.CloseIdleConnections()
	}
	return nil
}

// where is the object as messages name it.
func (b *Bucket) where(key string) string {
	if key == "" {
		return b.url
	}
	return b.url + "/" + key
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
func (b *Bucket) do(ctx context.Context, o op, key string, p store.RetryPolicy, f func(ctx context.Context) error) error {
	return b.tries(ctx, p, func(ctx context.Context) error { return b.once(ctx, o, key, f) })
}

// tries is wire.Retry on this bucket's connections.
func (b *Bucket) tries(ctx context.Context, p store.RetryPolicy, f func(ctx context.Context) error) error {
	return wire.Retry(ctx, b.transport, p, f)
}

// once makes one try of one request. It ends when it stalls.
func (b *Bucket) once(ctx context.Context, o op, key string, f func(ctx context.Context) error) error {
	try, _, stop := store.WithStall(ctx, b.stall)
	defer stop()
	try = context.WithValue(try, noteKey{}, &note{})
	err := f(try)
	if err == nil {
		return nil
	}
	if ctxErr := store.CtxErr(ctx); ctxErr != nil {
		return fmt.Errorf("%s %s: %w", o.verb, b.where(key), ctxErr)
	}
	if cause := context.Cause(try); cause != nil {
		return fmt.Errorf("%s %s: %w", o.verb, b.where(key), cause)
	}
	return b.fail(try, o, key, err)
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
