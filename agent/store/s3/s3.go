// Package s3 keeps snapshots in a bucket of AWS S3, or of anything that speaks its protocol.
//
// # Create-only
//
// AWS S3 is asked with If-None-Match: * on PutObject and CompleteMultipartUpload, so of two writers that race exactly
// one wins. Other services may refuse that header, honour it on one of the two requests only, or ignore it without a
// word, and there is no harmless way to find out. There every Put also looks first whether the key is taken, before
// it sends anything and again before it completes a multipart upload: no writer that comes later replaces anything on
// any service, and two that race are told apart where the service can. Which of these holds is logged.
//
// # Integrity
//
// Each request carries the SHA-256 of its body (X-Amz-Content-Sha256), which services verify as part of the
// signature. Where checksums are on, it is kept with the object too (x-amz-checksum-sha256), and Check compares it:
// the SHA-256 of an object sent in one request, the SHA-256 of the parts' SHA-256 otherwise. Where they are off Check
// compares the ETag, which is the MD5 of the content, or of the parts' MD5 with "-" and their number, unless the
// object is encrypted with SSE-KMS or SSE-C. An ETag that says nothing is no sign of damage: the object is read back.
// Formats: https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity-upload.html
package s3

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/encrypt"
	"github.com/minio/minio-go/v7/pkg/s3utils"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/wire"
)

// Options is what does not come from a policy. The zero value is right for a run.
type Options struct {
	// Logger tells how writing create-only works with this service, retries and leftovers; slog.Default() if nil.
	Logger *slog.Logger
	// StallTimeout is how long a request may show no progress; store.DefaultStall if 0. Total time has no limit.
	StallTimeout time.Duration
	// Retry says how failed requests are tried again.
	Retry store.RetryPolicy
	// PartSize is the size in bytes of the parts of an upload; if 0 it is chosen from the object's size: 16 MiB, or
	// more where that would make more than 9,000 parts. A smaller object is sent in one request.
	PartSize int64
	// Parallelism is how many parts are sent side by side; 4 if 0.
	Parallelism int
}

const (
	defaultRegion      = "us-east-1"
	defaultPartSize    = 16 << 20
	maxParts           = 9000 // S3 takes 10,000
	defaultParallelism = 4
	// graceTime is how long an answer is awaited that decides whether the object is there, once ctx has ended.
	graceTime = 5 * time.Second
	// cleanupTime bounds the removal of what a failed upload has left.
	cleanupTime = 15 * time.Second
)

// Bucket is a store in an S3 bucket.
type Bucket struct {
	name     string
	region   string
	endpoint string
	aws      bool

	client    *minio.Core
	transport *http.Transport
	log       *slog.Logger

	stall       time.Duration
	retry       store.RetryPolicy
	partSize    int64
	parallelism int

	// put is what every object is stored with; its metadata, tags, lock and encryption.
	put        minio.PutObjectOptions
	lockDays   int
	sse        encrypt.ServerSide
	checksums  bool
	contentMD5 bool

	// noCondition says that the service has refused If-None-Match.
	noCondition atomic.Bool
	told        sync.Once
}

var (
	_ store.Store         = (*Bucket)(nil)
	_ store.UploadSweeper = (*Bucket)(nil)
)

// New gives the bucket of spec; its prefix is not applied (see store.Prefixed). Nothing is asked of the bucket yet,
// but credentials are read or fetched. store.ErrConfig names the field of spec that cannot work, and
// store.ErrAccessDenied says that the token service refused us. Close the bucket after use.
func New(ctx context.Context, spec *v1.S3Destination, o Options) (*Bucket, error) {
	b := &Bucket{
		name: spec.Bucket, region: spec.Region, log: o.Logger, stall: o.StallTimeout, retry: o.Retry,
		partSize: o.PartSize, parallelism: o.Parallelism,
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
	if b.region == "" {
		b.region = defaultRegion
	}
	if err := b.configure(spec); err != nil {
		return nil, fmt.Errorf("s3 bucket %s: %w", spec.Bucket, err)
	}
	endpoint, lookup, err := b.address(spec)
	if err != nil {
		return nil, fmt.Errorf("s3 bucket %s: %w", spec.Bucket, err)
	}
	if b.transport, err = wire.NewTransport(spec.EndpointSpec, b.parallelism+1); err != nil {
		return nil, fmt.Errorf("s3 bucket %s: %w", spec.Bucket, err)
	}
	policy := b.policy("fetch credentials")
	creds, src, err := newCredentials(ctx, spec, &http.Client{Transport: b.transport, Timeout: credentialsTime}, policy)
	if err != nil {
		b.Close()
		return nil, fmt.Errorf("s3 bucket %s: %w", spec.Bucket, err)
	}
	b.log.Debug("credentials found", "bucket", b.name, "method", src.method, "from", src.from)
	b.client, err = minio.NewCore(endpoint.Host, &minio.Options{
		Creds: creds, Secure: endpoint.Scheme == "https", Transport: observer{b.transport}, Region: b.region, BucketLookup: lookup,
		// Tries are ours: minio-go knows no Retry-After, no progress and no reason.
		MaxRetries: 1,
	})
	if err != nil {
		b.Close()
		return nil, fmt.Errorf("s3 bucket %s: %w: endpoint: %w", spec.Bucket, store.ErrConfig, err)
	}
	// The plain names are the ones that firewalls and VPC endpoints know.
	b.client.SetS3EnableDualstack(false)
	b.client.SetAppInfo("etcd-snapshot", "1")
	return b, nil
}

// address says where the service is and how its URLs look.
func (b *Bucket) address(spec *v1.S3Destination) (*url.URL, minio.BucketLookupType, error) {
	b.endpoint, b.aws = strings.TrimSuffix(spec.Endpoint, "/"), true
	if spec.Endpoint == "" {
		b.endpoint = "https://s3." + b.region + ".amazonaws.com"
		if strings.HasPrefix(b.region, "cn-") {
			b.endpoint += ".cn"
		}
	}
	u, err := url.Parse(b.endpoint)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil {
		return nil, 0, fmt.Errorf("%w: endpoint: it must be http:// or https:// and a host", store.ErrConfig)
	}
	b.aws = isAWS(b.endpoint)
	if spec.ServerSideEncryption != nil && spec.ServerSideEncryption.Type == v1.S3SSEC && u.Scheme != "https" {
		return nil, 0, fmt.Errorf("%w: endpoint: SSE-C sends its key with each request and needs https", store.ErrConfig)
	}
	switch spec.AddressingStyle {
	case v1.S3AddressingPath:
		return u, minio.BucketLookupPath, nil
	case v1.S3AddressingVirtualHost:
		return u, minio.BucketLookupDNS, nil
	}
	return u, minio.BucketLookupAuto, nil
}

func isAWS(endpoint string) bool {
	u, err := url.Parse(endpoint)
	return err == nil && s3utils.IsAmazonEndpoint(*u)
}

// String gives s3://bucket.
func (b *Bucket) String() string { return "s3://" + b.name }

// Close closes the connections that were kept.
func (b *Bucket) Close() error {
	b.transport.CloseIdleConnections()
	return nil
}

// policy is how requests of one kind are tried again.
func (b *Bucket) policy(what string) store.RetryPolicy {
	p := b.retry
	if p.OnRetry == nil {
		p.OnRetry = func(err error, delay time.Duration) {
			b.log.Warn("trying again", "action", what, "in", delay.Round(time.Millisecond), "error", err)
		}
	}
	return p
}

// decided is an error that once hands on as it is.
type decided struct{ error }

func (d decided) Unwrap() error { return d.error }

// do makes one request until it succeeds or fails for good.
func (b *Bucket) do(ctx context.Context, o op, key string, p store.RetryPolicy, f func(ctx context.Context) error) error {
	return b.tries(ctx, p, func(ctx context.Context) error { return b.once(ctx, o, key, f) })
}

// tries is wire.Retry on this bucket's connections.
func (b *Bucket) tries(ctx context.Context, p store.RetryPolicy, f func(ctx context.Context) error) error {
	return wire.Retry(ctx, b.transport, p, f)
}

// once makes one try of one request, with an exchange of its own. It ends when it stalls.
func (b *Bucket) once(ctx context.Context, o op, key string, f func(ctx context.Context) error) error {
	ctx, _, stop := store.WithStall(ctx, b.stall*time.Duration(o.patience))
	defer stop()
	x := &exchange{}
	err := f(context.WithValue(ctx, exchangeKey{}, x))
	var verdict decided
	switch {
	case err == nil || errors.As(err, &verdict):
		return err
	case errors.Is(context.Cause(ctx), store.ErrStalled):
		return fmt.Errorf("%s %s/%s: %w", o.verb, b, key, context.Cause(ctx))
	}
	return b.fail(o, key, x, err)
}
