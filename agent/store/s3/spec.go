package s3

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/encrypt"
	"github.com/minio/minio-go/v7/pkg/s3utils"
	"github.com/minio/minio-go/v7/pkg/tags"
	"golang.org/x/net/http/httpguts"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/store"
)

// configure reads what spec says about objects. The wait for a server's complaint would be the wait for a snapshot.
func (b *Bucket) configure(spec *v1.S3Destination) error {
	bad := func(field string, err error) error { return fmt.Errorf("%w: %s: %w", store.ErrConfig, field, err) }
	if err := s3utils.CheckValidBucketNameStrict(spec.Bucket); err != nil {
		return bad("bucket", err)
	}
	if strings.HasSuffix(spec.Bucket, "--x-s3") {
		return bad("bucket", errors.New("directory buckets (S3 Express One Zone) list their keys in no order and are not supported"))
	}
	switch b.put.StorageClass = spec.StorageClass; spec.StorageClass {
	case "GLACIER", "DEEP_ARCHIVE":
		return bad("storageClass", fmt.Errorf("objects in %s cannot be read for hours, manifests included: use GLACIER_IR, or another class", spec.StorageClass))
	}
	if lock := spec.ObjectLock; lock != nil {
		b.put.Mode, b.lockDays = minio.RetentionMode(lock.Mode), int(lock.Days)
		if b.put.Mode != "" && !b.put.Mode.IsValid() || (lock.Mode == "") != (lock.Days == 0) || lock.Days < 0 {
			return bad("objectLock", errors.New("mode GOVERNANCE or COMPLIANCE and days go together"))
		}
		if lock.LegalHold {
			b.put.LegalHold = minio.LegalHoldEnabled
		}
	}
	locked := b.lockDays > 0 || b.put.LegalHold != ""
	switch spec.Checksums {
	case v1.S3ChecksumsAlways:
		b.checksums = true
	case v1.S3ChecksumsAuto, "":
		b.checksums = locked || spec.Endpoint == "" || isAWS(spec.Endpoint)
	case v1.S3ChecksumsNever:
	default:
		return bad("checksums", fmt.Errorf("%q is none of auto, always and never", spec.Checksums))
	}
	// Object lock wants Content-MD5 or a checksum, and without a signature nothing else would protect the content.
	b.contentMD5 = locked || spec.Auth.Method == v1.S3AuthAnonymous

	if len(spec.Tags) > 0 {
		if _, err := tags.NewTags(spec.Tags, true); err != nil {
			return bad("tags", err)
		}
		b.put.UserTags = spec.Tags
	}
	for _, k := range slices.Sorted(maps.Keys(spec.Metadata)) {
		v := spec.Metadata[k]
		switch {
		case !httpguts.ValidHeaderFieldName(k):
			return bad("metadata", fmt.Errorf("%q cannot be the name of a header", k))
		case !httpguts.ValidHeaderFieldValue(v) || strings.TrimSpace(v) != v:
			return bad("metadata", fmt.Errorf("the value of %q cannot be that of a header", k))
		case v == "":
			// Some services fail to verify the signature of an empty header.
			continue
		}
		if b.put.UserMetadata == nil {
			b.put.UserMetadata = map[string]string{}
		}
		// Spelled out, or minio-go would take some names for headers of their own.
		b.put.UserMetadata["X-Amz-Meta-"+k] = v
	}
	return b.configureEncryption(spec.ServerSideEncryption)
}

func (b *Bucket) configureEncryption(spec *v1.S3ServerSideEncryption) (err error) {
	if spec == nil {
		return nil
	}
	switch spec.Type {
	case v1.S3SSES3:
		b.sse = encrypt.NewSSE()
	case v1.S3SSEKMS:
		b.sse, err = encrypt.NewSSEKMS(spec.KMSKeyID, nil)
	case v1.S3SSEC:
		var key []byte
		if key, err = customerKey(spec.KeyDir); err == nil {
			b.sse, err = encrypt.NewSSEC(key)
		}
	default:
		err = fmt.Errorf("type %q is none of SSE-S3, SSE-KMS and SSE-C", spec.Type)
	}
	if err != nil {
		return fmt.Errorf("%w: serverSideEncryption: %w", store.ErrConfig, err)
	}
	b.put.ServerSideEncryption = b.sse
	return nil
}

// customerKey reads the key for SSE-C: 32 bytes, raw or in base64.
func customerKey(dir string) ([]byte, error) {
	if dir == "" {
		return nil, errors.New("keyDir is needed")
	}
	file := filepath.Join(dir, v1.S3FileSSECKey)
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("keyDir: %w", err)
	}
	if len(data) == 32 {
		return data, nil
	}
	if key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(data))); err == nil && len(key) == 32 {
		return key, nil
	}
	return nil, fmt.Errorf("keyDir: %s holds neither 32 bytes nor their base64, but %d bytes", file, len(data))
}

// customerSSE is what every later request about an object takes too: the key of SSE-C, and nothing otherwise.
func (b *Bucket) customerSSE() encrypt.ServerSide {
	if b.sse != nil && b.sse.Type() == encrypt.SSEC {
		return b.sse
	}
	return nil
}
