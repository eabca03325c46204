package gcs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/wire"
)

// Get is store.Store's.
func (b *Bucket) Get(ctx context.Context, key string, offset int64) (io.ReadCloser, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	if offset < 0 {
		return nil, fmt.Errorf("get %s: %w: negative offset %d", b.where(key), store.ErrConfig, offset)
	}
	var r *wire.Reader
	err := b.tries(ctx, b.policy(opGet), func(ctx context.Context) (err error) {
		r, err = wire.Open(ctx, b.stall, b.where(key), func(ctx context.Context) (io.ReadCloser, error) {
			return b.openMedia(ctx, key, offset)
		})
		return err
	})
	if re := answerOf(err); re != nil && !re.json && re.StatusCode < 500 {
		// What the service says about content has no form. About the object itself it has.
		if _, err := b.stat(ctx, key); err != nil {
			return nil, err
		}
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// openMedia makes one try to open an object's content. An offset beyond its end gives nothing.
func (b *Bucket) openMedia(ctx context.Context, key string, offset int64) (io.ReadCloser, error) {
	r := request{method: http.MethodGet, url: b.objectURL(key, url.Values{"alt": {"media"}}), header: http.Header{}}
	if offset > 0 {
		r.header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
		r.also = []int{http.StatusRequestedRangeNotSatisfiable}
	}
	resp, err := b.send(ctx, r)
	switch {
	case err != nil:
		return nil, fmt.Errorf("get %s: %w", b.where(key), b.explain(opGet, err))
	case resp.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		resp.Body.Close()
		return http.NoBody, nil
	case offset > 0 && resp.StatusCode != http.StatusPartialContent:
		resp.Body.Close()
		return nil, store.Permanent(fmt.Errorf("get %s: the service ignores Range and cannot read from an offset", b.where(key)))
	}
	return resp.Body, nil
}

// List is store.Store's, in the service's own order. In a versioned bucket it gives the live versions.
func (b *Bucket) List(ctx context.Context, prefix string) iter.Seq2[store.Object, error] {
	return func(yield func(store.Object, error) bool) {
		token := ""
		for {
			p, err := b.page(ctx, prefix, token, b.pageSize)
			if err != nil {
				yield(store.Object{}, err)
				return
			}
			for _, o := range p.Items {
				if !yield(store.Object{Key: o.Name, Size: o.Size, ModTime: o.TimeCreated}, nil) {
					return
				}
			}
			if token = p.NextPageToken; token == "" {
				return
			}
		}
	}
}

// page is one answer of a list.
type page struct {
	Items         []resource `json:"items"`
	NextPageToken string     `json:"nextPageToken"`
}

func (b *Bucket) page(ctx context.Context, prefix, token string, limit int) (p page, err error) {
	query := url.Values{"maxResults": {strconv.Itoa(limit)}, "fields": {"items(name,size,timeCreated),nextPageToken"}}
	if prefix != "" {
		query.Set("prefix", prefix)
	}
	if token != "" {
		query.Set("pageToken", token)
	}
	err = b.do(ctx, opList, prefix, func(ctx context.Context) error {
		p = page{}
		return b.call(ctx, request{method: http.MethodGet, url: b.objectsURL("", query), header: http.Header{}}, &p)
	})
	return p, err
}

// Delete is store.Store's. In a versioned bucket the object becomes a noncurrent version, and in one with soft delete
// it can be restored for a while: the bucket's own rules remove both.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	return b.remove(ctx, key, 0)
}

// remove deletes an object, if it is still of the given generation; 0 is any.
func (b *Bucket) remove(ctx context.Context, key string, generation int64) error {
	query := url.Values{}
	if generation != 0 {
		query.Set("ifGenerationMatch", strconv.FormatInt(generation, 10))
	}
	err := b.do(ctx, opDelete, key, func(ctx context.Context) error {
		return b.call(ctx, request{method: http.MethodDelete, url: b.objectURL(key, query), header: http.Header{}}, nil)
	})
	if re := answerOf(err); re != nil && errors.Is(err, store.ErrNotExist) && !re.noBucket() {
		return nil
	}
	return err
}

// Check is store.Store's. It compares the size, and the CRC32C that the service has computed.
func (b *Bucket) Check(ctx context.Context, key string, content store.Blob) error {
	if err := checkKey(key); err != nil {
		return err
	}
	o, err := b.stat(ctx, key)
	if err != nil {
		return err
	}
	if o.Size != content.Size {
		return fmt.Errorf("check %s: %w: it has %d bytes, expected %d", b.where(key), store.ErrMismatch, o.Size, content.Size)
	}
	if o.CRC32C == "" {
		return store.VerifyFull(ctx, b, key, content, nil)
	}
	sum, err := b.sum(ctx, content)
	if err != nil {
		return fmt.Errorf("check %s: %w", b.where(key), err)
	}
	if o.CRC32C != sum {
		return fmt.Errorf("check %s: %w: it has the crc32c %s (created %s), expected %s", b.where(key), store.ErrMismatch, o.CRC32C, o.TimeCreated.UTC().Format(time.RFC3339), sum)
	}
	return nil
}
