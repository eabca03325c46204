package gcs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/wire"
)

// resource is what the service says about an object (https://cloud.google.com/storage/docs/json_api/v1/objects).
type resource struct {
	Name        string    `json:"name"`
	Size        int64     `json:"size,string"`
	Generation  int64     `json:"generation,string"`
	CRC32C      string    `json:"crc32c"`
	TimeCreated time.Time `json:"timeCreated"`
}

// fields is what is asked for of a resource.
const fields = "name,size,generation,crc32c,timeCreated"

// request is one request. The answer is good if its status is 2xx, or one of also.
type request struct {
	method string
	url    string
	header http.Header
	body   io.Reader
	size   int64
	also   []int
}

// objectsURL is the API's URL of the objects in the bucket. media is "upload" where content is sent.
func (b *Bucket) objectsURL(media string, query url.Values) string {
	u := b.endpoint.JoinPath(media, "storage/v1/b", url.PathEscape(b.name), "o")
	u.RawQuery = query.Encode()
	return u.String()
}

// objectURL is the API's URL of an object, all of whose name is one segment.
func (b *Bucket) objectURL(key string, query url.Values) string {
	u := b.endpoint.JoinPath("storage/v1/b", url.PathEscape(b.name), "o")
	return u.String() + "/" + url.PathEscape(key) + "?" + query.Encode()
}

// send sends a request, with our token. The caller closes the answer's body, whose reads touch ctx. What is no good
// answer is a *ResponseError.
func (b *Bucket) send(ctx context.Context, r request) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, r.method, r.url, r.body)
	if err != nil {
		return nil, store.Permanent(err)
	}
	if r.body != nil {
		req.ContentLength = r.size
	}
	if r.header != nil {
		req.Header = r.header
	}
	req.Header.Set("User-Agent", "etcd-snapshot")
	if err := b.creds.authorize(ctx, req.Header); err != nil {
		return nil, err
	}
	resp, err := b.client.Do(req)
	if err != nil {
		return nil, err
	}
	store.Touch(ctx, 0)
	resp.Body = wire.Touching(ctx, resp.Body)
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	for _, status := range r.also {
		if resp.StatusCode == status {
			return resp, nil
		}
	}
	defer resp.Body.Close()
	return nil, readError(resp)
}

// call sends a request and decodes the JSON of its answer into v, unless that is nil.
func (b *Bucket) call(ctx context.Context, r request, v any) error {
	resp, err := b.send(ctx, r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return decode(resp, v)
}

// maxAnswer bounds what is read of an answer: a page of 1,000 objects, whose names have up to 1,024 bytes each.
const maxAnswer = 16 << 20

func decode(resp *http.Response, v any) error {
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil || v == nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return notOurs(fmt.Sprintf("the answer is not JSON: %v", err))
	}
	return nil
}

// notOurs is what to say about an answer that no Cloud Storage gives.
func notOurs(what string) error {
	return bad("endpoint", errors.New(what+": this is not the JSON API of Cloud Storage: check endpoint, and proxies on the way"))
}

// jsonBody is a request's body and header.
func jsonBody(v any) (io.Reader, int64, http.Header, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, 0, nil, store.Permanent(err)
	}
	return bytes.NewReader(data), int64(len(data)), http.Header{"Content-Type": {"application/json; charset=UTF-8"}}, nil
}

// stat asks about an object. ErrNotExist when there is none, or no bucket.
func (b *Bucket) stat(ctx context.Context, key string) (o resource, err error) {
	err = b.do(ctx, opStat, key, func(ctx context.Context) error {
		return b.call(ctx, request{method: http.MethodGet, url: b.objectURL(key, url.Values{"fields": {fields}})}, &o)
	})
	return o, err
}

// checkKey refuses what the service would refuse (https://cloud.google.com/storage/docs/objects#naming).
func checkKey(key string) error {
	if err := store.CheckKey(key); err != nil {
		return err
	}
	var why string
	switch {
	case len(key) > 1024:
		why = "is longer than 1,024 bytes"
	case strings.ContainsAny(key, "\r\n"):
		why = "holds a line break"
	case !utf8.ValidString(key):
		why = "is not UTF-8"
	case strings.HasPrefix(key, ".well-known/acme-challenge/"):
		why = "begins with .well-known/acme-challenge/"
	default:
		return nil
	}
	return fmt.Errorf("%w: key %q %s", store.ErrConfig, key, why)
}
