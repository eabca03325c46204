package s3

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"
	"golang.org/x/sync/errgroup"

	"etcdsnapshot.dev/agent/store"
)

// The headers of checksums that minio-go leaves to the caller when the sums are known beforehand.
const (
	headerChecksumAlgorithm = "X-Amz-Checksum-Algorithm"
	headerChecksumSHA256    = "X-Amz-Checksum-Sha256"
)

// Put is store.Store's. A large object is a multipart upload, whose parts are read from b in parallel.
func (b *Bucket) Put(ctx context.Context, key string, blob store.Blob) error {
	if err := store.CheckPut(ctx, key, blob); err != nil {
		return err
	}
	b.tellCreateOnly()
	for try := 1; ; try++ {
		l := b.layout(blob.Size)
		var err error
		if l.count() == 1 {
			err = b.putWhole(ctx, key, blob)
		} else {
			err = b.putParts(ctx, key, blob, l)
		}
		// AWS could not tell which of two writers was first. The upload is void and must be made anew:
		// https://docs.aws.amazon.com/AmazonS3/latest/API/API_CompleteMultipartUpload.html
		if !hasCode(err, codeConflict) || try == 3 {
			return err
		}
		b.log.Warn("another writer of the same key was under way, uploading again", "object", b.String()+"/"+key)
	}
}

// tellCreateOnly says once how create-only is kept.
func (b *Bucket) tellCreateOnly() {
	b.told.Do(func() {
		if b.aws {
			b.log.Info("create-only by If-None-Match", "bucket", b.String())
		} else {
			b.log.Info("create-only by If-None-Match and by looking first, since not every service honours the header", "bucket", b.String(), "endpoint", b.endpoint)
		}
	})
}

// options are the headers of one object, as it is now.
func (b *Bucket) options(contentType string) minio.PutObjectOptions {
	o := b.put
	o.ContentType = contentType
	// The sums are ours; minio-go would send chunks that are signed one by one, which fewer services take.
	o.DisableContentSha256 = true
	if b.lockDays > 0 {
		o.RetainUntilDate = time.Now().AddDate(0, 0, b.lockDays)
	}
	return o
}

// with gives options with more headers.
func with(o minio.PutObjectOptions, headers map[string]string) minio.PutObjectOptions {
	meta := map[string]string{}
	for _, m := range []map[string]string{o.UserMetadata, headers} {
		for k, v := range m {
			meta[k] = v
		}
	}
	o.UserMetadata = meta
	return o
}

// putWhole stores a small object with one request.
func (b *Bucket) putWhole(ctx context.Context, key string, blob store.Blob) error {
	d, err := sum(ctx, io.NewSectionReader(blob.ReaderAt, 0, blob.Size), blob.Size, b.contentMD5)
	if err != nil {
		return fmt.Errorf("put %s/%s: %w", b, key, err)
	}
	if d.sha256 != blob.SHA256 {
		return fmt.Errorf("put %s/%s: %w: the content has sha256 %x, expected %x", b, key, store.ErrMismatch, d.sha256, blob.SHA256)
	}
	if err := b.lookFirst(ctx, key); err != nil {
		return err
	}
	o := b.options(blob.ContentType)
	if b.checksums {
		o = with(o, map[string]string{headerChecksumSHA256: d.sha256Base64()})
	}
	c := &commit{b: b, op: opPut, key: key, blob: blob, started: time.Now()}
	err = c.run(ctx, func(ctx context.Context, conditional bool, sent *atomic.Pointer[upload]) error {
		o := o
		if conditional {
			o.SetMatchETagExcept("*")
		}
		u := newUpload(ctx, io.NewSectionReader(blob.ReaderAt, 0, blob.Size))
		sent.Store(u)
		_, err := b.client.PutObject(ctx, b.name, key, u, blob.Size, d.md5Base64(), d.sha256Hex(), o)
		return u.result(err)
	})
	if err != nil {
		c.cleanup(ctx)
	}
	return err
}

// putParts stores a large object as a multipart upload.
func (b *Bucket) putParts(ctx context.Context, key string, blob store.Blob, l parts) (err error) {
	if err := b.lookFirst(ctx, key); err != nil {
		return err
	}
	o := b.options(blob.ContentType)
	if b.checksums {
		o = with(o, map[string]string{headerChecksumAlgorithm: "SHA256"})
	}
	var id string
	err = b.tries(ctx, b.policy("begin upload"), func(ctx context.Context) error {
		// An upload that was begun must be known, or it cannot be abandoned.
		ctx, cancel := graceful(ctx, func() bool { return true })
		defer cancel()
		return b.once(ctx, opPut, key, func(ctx context.Context) (err error) {
			id, err = b.client.NewMultipartUpload(ctx, b.name, key, o)
			return err
		})
	})
	if err != nil {
		return err
	}
	c := &commit{b: b, op: opComplete, key: key, blob: blob, started: time.Now()}
	defer func() {
		if err != nil {
			b.abandon(ctx, key, id)
			c.cleanup(ctx)
		}
	}()
	done, err := b.sendParts(ctx, key, id, blob, l)
	if err != nil {
		return err
	}
	// An upload takes its time: somebody else may have been quicker.
	if err := b.lookFirst(ctx, key); err != nil {
		return err
	}
	return c.run(ctx, func(ctx context.Context, conditional bool, _ *atomic.Pointer[upload]) error {
		o := minio.PutObjectOptions{ServerSideEncryption: b.customerSSE()}
		if conditional {
			o.SetMatchETagExcept("*")
		}
		_, err := b.client.CompleteMultipartUpload(ctx, b.name, key, id, done, o)
		return err
	})
}

// sendParts sends all parts, some side by side. The first that fails for good ends the others.
func (b *Bucket) sendParts(ctx context.Context, key, id string, blob store.Blob, l parts) ([]minio.CompletePart, error) {
	done := make([]minio.CompletePart, l.count())
	// Bytes that the service has acknowledged.
	var stored atomic.Int64
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(b.parallelism)
	for i := range done {
		if gctx.Err() != nil {
			break
		}
		g.Go(func() error {
			p := b.policy(fmt.Sprintf("send part %d of %d", i+1, len(done)))
			p.Progress = stored.Load
			part, err := b.sendPart(gctx, key, id, i+1, l.part(blob, i), p)
			if err != nil {
				return fmt.Errorf("part %d of %d: %w", i+1, len(done), err)
			}
			stored.Add(part.Size)
			done[i] = minio.CompletePart{PartNumber: i + 1, ETag: part.ETag}
			if b.checksums {
				done[i].ChecksumSHA256 = part.ChecksumSHA256
			}
			return nil
		})
	}
	err := g.Wait()
	if ctxErr := store.CtxErr(ctx); ctxErr != nil {
		return nil, fmt.Errorf("put %s/%s: %w", b, key, ctxErr)
	}
	return done, err
}

func (b *Bucket) sendPart(ctx context.Context, key, id string, number int, section *io.SectionReader, p store.RetryPolicy) (part minio.ObjectPart, err error) {
	d, err := sum(ctx, section, section.Size(), b.contentMD5)
	if err != nil {
		return part, fmt.Errorf("put %s/%s: %w", b, key, err)
	}
	o := minio.PutObjectPartOptions{
		Md5Base64: d.md5Base64(), Sha256Hex: d.sha256Hex(), SSE: b.customerSSE(), DisableContentSha256: true,
	}
	err = b.do(ctx, opPut, key, p, func(ctx context.Context) (err error) {
		o.CustomHeader = http.Header{}
		if b.checksums {
			o.CustomHeader.Set(headerChecksumSHA256, d.sha256Base64())
		}
		u := newUpload(ctx, io.NewSectionReader(section, 0, section.Size()))
		part, err = b.client.PutObjectPart(ctx, b.name, key, id, number, u, section.Size(), o)
		return u.result(err)
	})
	if b.checksums {
		part.ChecksumSHA256 = d.sha256Base64()
	}
	return part, err
}

// abandon removes the parts of an upload that failed. A part that the service was still working on may turn up after
// that, so it is asked again until it knows of no upload, or a few times
// (https://docs.aws.amazon.com/AmazonS3/latest/API/API_AbortMultipartUpload.html). Where all that is in vain
// SweepUploads will help.
func (b *Bucket) abandon(ctx context.Context, key, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	var gone bool
	var err error
	for pause := 100 * time.Millisecond; pause <= 800*time.Millisecond && !gone && ctx.Err() == nil; pause *= 2 {
		if gone, err = b.abort(ctx, key, id); !gone {
			wait(ctx, pause)
		}
	}
	if err != nil {
		b.log.Warn("unfinished upload left behind", "object", b.String()+"/"+key, "uploadID", id, "error", err)
	}
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// abort abandons an upload. gone says that there was none, which is no error.
func (b *Bucket) abort(ctx context.Context, key, id string) (gone bool, err error) {
	err = b.do(ctx, opAbort, key, b.policy("abandon upload"), func(ctx context.Context) error {
		return b.client.AbortMultipartUpload(ctx, b.name, key, id)
	})
	if hasCode(err, "NoSuchUpload") || statusOf(err) == http.StatusNotFound {
		return true, nil
	}
	return false, err
}
