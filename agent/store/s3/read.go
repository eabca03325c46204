package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/wire"
)

// pageSize is how many keys a service gives at most at once.
const pageSize = 1000

// Get is store.Store's.
func (b *Bucket) Get(ctx context.Context, key string, offset int64) (io.ReadCloser, error) {
	if err := store.CheckKey(key); err != nil {
		return nil, err
	}
	if offset < 0 {
		return nil, fmt.Errorf("get %s/%s: %w: negative offset %d", b, key, store.ErrConfig, offset)
	}
	name := b.String() + "/" + key
	var r *wire.Reader
	err := b.tries(ctx, b.policy("get"), func(ctx context.Context) (err error) {
		r, err = wire.Open(ctx, b.stall, name, func(ctx context.Context) (io.ReadCloser, error) {
			return b.open(ctx, key, offset)
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// open makes one try to open an object. An offset beyond its end gives nothing.
func (b *Bucket) open(ctx context.Context, key string, offset int64) (io.ReadCloser, error) {
	o := minio.GetObjectOptions{ServerSideEncryption: b.customerSSE()}
	if offset > 0 {
		o.Set("Range", fmt.Sprintf("bytes=%d-", offset))
	}
	x := &exchange{}
	body, _, _, err := b.client.GetObject(context.WithValue(ctx, exchangeKey{}, x), b.name, key, o)
	status, _, _ := x.answer()
	switch {
	case status == http.StatusRequestedRangeNotSatisfiable:
		return http.NoBody, nil
	case err != nil:
		return nil, b.fail(opGet, key, x, err)
	case offset > 0 && status != http.StatusPartialContent:
		body.Close()
		return nil, store.Permanent(fmt.Errorf("get %s/%s: the service ignores Range and cannot read from an offset", b, key))
	}
	return body, nil
}

// List is store.Store's. In a versioned bucket it gives the current versions.
func (b *Bucket) List(ctx context.Context, prefix string) iter.Seq2[store.Object, error] {
	return func(yield func(store.Object, error) bool) {
		last := ""
		for {
			n := 0
			for o, err := range b.page(ctx, prefix, last, pageSize) {
				if err == nil && last != "" && o.Key <= last {
					err = store.Permanent(fmt.Errorf("list %s: the service gives %q after %q: it does not list in order", b, o.Key, last))
				}
				if !yield(o, err) || err != nil {
					return
				}
				last, n = o.Key, n+1
			}
			if n < pageSize {
				return
			}
		}
	}
}

// page gives up to limit objects whose keys begin with prefix and come after a key.
func (b *Bucket) page(ctx context.Context, prefix, after string, limit int) iter.Seq2[store.Object, error] {
	return func(yield func(store.Object, error) bool) {
		var objects []store.Object
		err := b.do(ctx, opList, prefix, b.policy("list"), func(ctx context.Context) error {
			objects = objects[:0]
			noOwner := false
			for o := range b.client.ListObjectsIter(ctx, b.name, minio.ListObjectsOptions{
				Prefix: prefix, Recursive: true, StartAfter: after, MaxKeys: limit, FetchOwner: &noOwner,
			}) {
				if o.Err != nil {
					return o.Err
				}
				objects = append(objects, store.Object{Key: o.Key, Size: o.Size, ModTime: o.LastModified})
				if len(objects) == limit {
					break
				}
			}
			// It says nothing when ctx ends between two requests.
			return ctx.Err()
		})
		if err != nil {
			yield(store.Object{}, err)
			return
		}
		for _, o := range objects {
			if !yield(o, nil) {
				return
			}
		}
	}
}

// Delete is store.Store's. In a versioned bucket the object becomes an older version behind a delete marker, which a
// lifecycle rule of the bucket removes. An object under a lock is ErrProtected: the service would hide it behind a
// delete marker and keep it all the same.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	if err := store.CheckKey(key); err != nil {
		return err
	}
	o, err := b.head(ctx, key)
	switch {
	case errors.Is(err, store.ErrNotExist):
		// Deleting once more would only leave a delete marker.
		return nil
	case errors.Is(err, store.ErrAccessDenied) && statusOf(err) == http.StatusForbidden:
		// An identity that may delete need not be one that may read.
	case err != nil:
		return err
	default:
		if why := o.locked(); why != "" {
			return fmt.Errorf("delete %s/%s: %w: %s", b, key, store.ErrProtected, why)
		}
	}
	return b.do(ctx, opDelete, key, b.policy("delete"), func(ctx context.Context) error {
		err := b.client.RemoveObject(ctx, b.name, key, minio.RemoveObjectOptions{})
		if status, _, _ := exchangeOf(ctx).answer(); status == http.StatusOK || status == http.StatusNotFound && isNoSuchKey(err) {
			return nil
		}
		return err
	})
}

func isNoSuchKey(err error) bool { return minio.ToErrorResponse(err).Code == minio.NoSuchKey }

// locked says what holds the object, if anything does. The service tells only those who may know.
func (o object) locked() string {
	if strings.EqualFold(o.header.Get("X-Amz-Object-Lock-Legal-Hold"), "ON") {
		return "it is under a legal hold"
	}
	until, err := time.Parse(time.RFC3339, o.header.Get("X-Amz-Object-Lock-Retain-Until-Date"))
	if err == nil && until.After(o.date) {
		return fmt.Sprintf("it is locked until %s (%s)", until.UTC().Format(time.RFC3339), o.header.Get("X-Amz-Object-Lock-Mode"))
	}
	return ""
}

// SweepUploads is store.UploadSweeper's.
func (b *Bucket) SweepUploads(ctx context.Context, prefix string, before time.Time, mine func(key string) bool) (removed int, err error) {
	keyMarker, idMarker := "", ""
	for {
		var page minio.ListMultipartUploadsResult
		err := b.do(ctx, opSweep, prefix, b.policy("list unfinished uploads"), func(ctx context.Context) (err error) {
			page, err = b.client.ListMultipartUploads(ctx, b.name, prefix, keyMarker, idMarker, "", pageSize)
			return err
		})
		if err != nil {
			return removed, err
		}
		for _, u := range page.Uploads {
			// Some services take the prefix for a hint.
			if !strings.HasPrefix(u.Key, prefix) || !u.Initiated.Before(before) || !mine(u.Key) {
				continue
			}
			if _, err := b.abort(ctx, u.Key, u.UploadID); err != nil {
				return removed, err
			}
			removed++
		}
		if !page.IsTruncated || page.NextKeyMarker == keyMarker && page.NextUploadIDMarker == idMarker {
			return removed, nil
		}
		keyMarker, idMarker = page.NextKeyMarker, page.NextUploadIDMarker
	}
}
