package azure

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"

	"etcdsnapshot.dev/agent/store"
)

// Get is store.Store's.
func (b *Bucket) Get(ctx context.Context, key string, offset int64) (io.ReadCloser, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	if offset < 0 {
		return nil, fmt.Errorf("%w: negative offset %d in %q", store.ErrConfig, offset, key)
	}
	r := &reader{parent: ctx, b: b, key: key}
	err := b.tries(ctx, b.policy(opGet), func(ctx context.Context) error { return r.open(ctx, offset) })
	if err != nil {
		return nil, err
	}
	return r, nil
}

// reader is the body of one answer. It outlives its request by far, so what ends it is not the request's time but a
// read that stalls. Whoever reads may take their time.
type reader struct {
	parent context.Context
	b      *Bucket
	key    string

	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	body   io.ReadCloser
}

func (r *reader) open(ctx context.Context, offset int64) error {
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	cancel := r.cancel
	r.timer = time.AfterFunc(r.b.stall, func() { cancel(&store.StalledError{After: r.b.stall}) })
	resp, err := r.b.container.NewBlobClient(r.key).DownloadStream(r.ctx, &blob.DownloadStreamOptions{Range: blob.HTTPRange{Offset: offset}})
	r.timer.Stop()
	if err == nil {
		r.body = resp.Body
		return nil
	}
	if err = r.failure(err); hasCode(err, bloberror.InvalidRange) {
		// At or beyond the end.
		r.body, err = io.NopCloser(bytes.NewReader(nil)), nil
		return err
	}
	r.cancel(nil)
	return err
}

// failure says why a read failed.
func (r *reader) failure(err error) error {
	if ctxErr := store.CtxErr(r.parent); ctxErr != nil {
		return fmt.Errorf("get %s: %w", r.b.where(r.key), ctxErr)
	}
	if cause := context.Cause(r.ctx); cause != nil {
		return fmt.Errorf("get %s: %w", r.b.where(r.key), cause)
	}
	return r.b.fail(r.ctx, opGet, r.key, err)
}

func (r *reader) Read(p []byte) (int, error) {
	r.timer.Reset(r.b.stall)
	n, err := r.body.Read(p)
	r.timer.Stop()
	if err != nil && !errors.Is(err, io.EOF) {
		err = r.failure(err)
	}
	return n, err
}

func (r *reader) Close() error {
	r.timer.Stop()
	// What is left unread is not worth reading: the connection is given up with it.
	r.cancel(nil)
	return r.body.Close()
}

// List is store.Store's. Versions and deleted blobs that the account may keep are not asked for.
func (b *Bucket) List(ctx context.Context, prefix string) iter.Seq2[store.Object, error] {
	return func(yield func(store.Object, error) bool) {
		for marker := optional(""); ; {
			page, err := b.page(ctx, prefix, marker, b.pageSize)
			if err != nil {
				yield(store.Object{}, err)
				return
			}
			for _, item := range page.Segment.BlobItems {
				if o, ok := object(item); ok && !yield(o, nil) {
					return
				}
			}
			if marker = page.NextMarker; marker == nil || *marker == "" {
				return
			}
		}
	}
}

// page gives one page of a listing. The SDK's pager is done for with its first error, so each try has its own.
func (b *Bucket) page(ctx context.Context, prefix string, marker *string, size *int32) (page container.ListBlobsFlatResponse, err error) {
	err = b.do(ctx, opList, prefix, b.policy(opList), func(ctx context.Context) (err error) {
		page, err = b.container.NewListBlobsFlatPager(&container.ListBlobsFlatOptions{
			Prefix: optional(prefix), Marker: marker, MaxResults: size,
			// What says that an entry is a folder of an account with a hierarchical namespace.
			Include: container.ListBlobsInclude{Metadata: true},
		}).NextPage(ctx)
		if err == nil && page.Segment == nil {
			err = store.Permanent(errors.New("the answer is no list of blobs"))
		}
		return err
	})
	return page, err
}

// object reads one entry of a listing. Folders are no objects.
func object(item *container.BlobItem) (o store.Object, ok bool) {
	if item == nil || item.Name == nil || item.Properties == nil || isFolder(item.Metadata) {
		return o, false
	}
	o.Key = *item.Name
	if n := item.Properties.ContentLength; n != nil {
		o.Size = *n
	}
	if t := item.Properties.LastModified; t != nil {
		o.ModTime = *t
	}
	return o, true
}

// isFolder: https://learn.microsoft.com/azure/storage/blobs/data-lake-storage-known-issues
func isFolder(metadata map[string]*string) bool {
	for k, v := range metadata {
		if strings.EqualFold(k, "hdi_isfolder") && v != nil && strings.EqualFold(*v, "true") {
			return true
		}
	}
	return false
}

// Delete is store.Store's. Where the account keeps versions or deleted blobs, it keeps this one so.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	return b.remove(ctx, key, nil)
}

// remove deletes the blob, if it is still the one with the ETag.
func (b *Bucket) remove(ctx context.Context, key string, etag *azcore.ETag) error {
	var o *blob.DeleteOptions
	if etag != nil {
		o = &blob.DeleteOptions{AccessConditions: &blob.AccessConditions{ModifiedAccessConditions: &blob.ModifiedAccessConditions{IfMatch: etag}}}
	}
	err := b.do(ctx, opDelete, key, b.policy(opDelete), func(ctx context.Context) error {
		_, err := b.container.NewBlobClient(key).Delete(ctx, o)
		return err
	})
	if errors.Is(err, store.ErrNotExist) && !hasCode(err, bloberror.ContainerNotFound) {
		return nil
	}
	return err
}

// properties is what the service says about a blob.
type properties struct {
	size int64
	md5  []byte // nil if the blob has none
}

// look asks about a blob. ErrNotExist when there is none, or no container.
func (b *Bucket) look(ctx context.Context, key string) (p properties, err error) {
	err = b.do(ctx, opLook, key, b.policy(opLook), func(ctx context.Context) error {
		resp, err := b.container.NewBlobClient(key).GetProperties(ctx, nil)
		if err != nil {
			return err
		}
		if isFolder(resp.Metadata) {
			return fmt.Errorf("%w: it is a folder", store.ErrNotExist)
		}
		if resp.ContentLength == nil {
			return store.Permanent(errors.New("the answer has no Content-Length"))
		}
		p = properties{*resp.ContentLength, resp.ContentMD5}
		return nil
	})
	return p, err
}

// Check is store.Store's: the size and the Content-MD5 that Put has set. A blob that was stored without one is read
// back, and so is one that there is no content to compare with.
func (b *Bucket) Check(ctx context.Context, key string, content store.Blob) error {
	if err := checkKey(key); err != nil {
		return err
	}
	p, err := b.look(ctx, key)
	if err != nil {
		return err
	}
	if p.size != content.Size {
		return fmt.Errorf("check %s: %w: it has %d bytes, expected %d", b.where(key), store.ErrMismatch, p.size, content.Size)
	}
	want := b.recall(content.SHA256)
	if p.md5 == nil || want == nil && content.ReaderAt == nil {
		return store.VerifyFull(ctx, b, key, content, nil)
	}
	if want == nil {
		if want, err = sumMD5(ctx, content); err != nil {
			return fmt.Errorf("check %s: %w", b.where(key), err)
		}
	}
	if !bytes.Equal(p.md5, want) {
		return fmt.Errorf("check %s: %w: it has Content-MD5 %x, expected %x", b.where(key), store.ErrMismatch, p.md5, want)
	}
	return nil
}

// sumMD5 reads the content. ErrMismatch when it is not what its own SHA-256 says.
func sumMD5(ctx context.Context, content store.Blob) ([]byte, error) {
	m, s := md5.New(), sha256.New()
	r := io.NewSectionReader(content.ReaderAt, 0, content.Size)
	buf := make([]byte, 256<<10)
	for {
		if err := store.CtxErr(ctx); err != nil {
			return nil, err
		}
		n, err := r.Read(buf)
		m.Write(buf[:n])
		s.Write(buf[:n])
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read content: %w", err)
		}
	}
	if sum := [32]byte(s.Sum(nil)); sum != content.SHA256 {
		return nil, fmt.Errorf("%w: the content to compare with has sha256 %x, expected %x", store.ErrMismatch, sum, content.SHA256)
	}
	return m.Sum(nil), nil
}

// remember keeps the MD5 of a content that Put has read, so that Check need not read it again.
func (b *Bucket) remember(content [32]byte, sum []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.md5s) >= 16 {
		clear(b.md5s)
	}
	b.md5s[content] = sum
}

func (b *Bucket) recall(content [32]byte) []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.md5s[content]
}
