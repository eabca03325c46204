package s3

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/minio/minio-go/v7/pkg/encrypt"

	"etcdsnapshot.dev/agent/store"
)

// verdict is the outcome of a comparison by what the service reports.
type verdict int

const (
	unknown verdict = iota
	same
	different
)

// Check is store.Store's. What the service reports is compared; where that tells nothing, every byte is read back.
func (b *Bucket) Check(ctx context.Context, key string, blob store.Blob) error {
	if err := store.CheckKey(key); err != nil {
		return err
	}
	o, err := b.head(ctx, key)
	if err != nil {
		return err
	}
	if o.Size != blob.Size {
		return fmt.Errorf("check %s/%s: %w: it has %d bytes, expected %d", b, key, store.ErrMismatch, o.Size, blob.Size)
	}
	v, err := b.compare(ctx, o, blob)
	if err != nil {
		return fmt.Errorf("check %s/%s: %w", b, key, err)
	}
	switch v {
	case same:
		return nil
	case different:
		return fmt.Errorf("check %s/%s: %w: the store reports sha256 %s, expected %s", b, key, store.ErrMismatch,
			o.ChecksumSHA256, base64.StdEncoding.EncodeToString(blob.SHA256[:]))
	}
	b.log.Debug("the store reports no checksum that can be compared: reading the object back", "object", b.String()+"/"+key, "etag", o.ETag)
	return store.VerifyFull(ctx, b, key, blob, nil)
}

// compare compares by size and checksum. A checksum that was made of other parts than ours, or is no checksum at all,
// tells nothing when it differs. Content that is not what its own SHA-256 says is ErrMismatch.
func (b *Bucket) compare(ctx context.Context, o object, blob store.Blob) (verdict, error) {
	if o.Size != blob.Size {
		return different, nil
	}
	if sha := o.ChecksumSHA256; sha != "" && !strings.Contains(sha, "-") && o.ChecksumMode != "COMPOSITE" {
		if sha == base64.StdEncoding.EncodeToString(blob.SHA256[:]) {
			return same, nil
		}
		return different, nil
	}
	etag := strings.ToLower(o.ETag)
	if b.opaqueETag(o) {
		etag = ""
	}
	if blob.ReaderAt == nil || etag == "" && o.ChecksumSHA256 == "" {
		return unknown, nil
	}
	l, err := b.layout(blob.Size).sums(ctx, blob)
	if err != nil {
		return unknown, err
	}
	if l.sha256 != blob.SHA256 {
		return unknown, fmt.Errorf("%w: the content to compare with has sha256 %x, expected %x", store.ErrMismatch, l.sha256, blob.SHA256)
	}
	composite := o.ChecksumSHA256
	if composite != "" && !strings.Contains(composite, "-") {
		// Some services leave the number of parts out.
		composite = fmt.Sprintf("%s-%d", composite, b.layout(blob.Size).count())
	}
	if etag == l.md5 || composite == l.composite && composite != "" {
		return same, nil
	}
	return unknown, nil
}

// opaqueETag says that the ETag is no MD5 of the content: the object is encrypted with a key of KMS or of ours.
func (b *Bucket) opaqueETag(o object) bool {
	return strings.HasPrefix(o.header.Get(encrypt.SseGenericHeader), "aws:kms") || o.header.Get(encrypt.SseCustomerAlgorithm) != "" || b.customerSSE() != nil
}
