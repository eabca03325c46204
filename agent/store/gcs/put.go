package gcs

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"etcdsnapshot.dev/agent/store"
)

// Put is store.Store's. The content is read twice: once for its checksums, and once while it is sent.
func (b *Bucket) Put(ctx context.Context, key string, content store.Blob) error {
	if err := checkKey(key); err != nil {
		return err
	}
	if err := store.CheckPut(ctx, key, content); err != nil {
		return err
	}
	sum, err := b.sum(ctx, content)
	if err != nil {
		return fmt.Errorf("put %s: %w", b.where(key), err)
	}
	u := &upload{b: b, key: key, content: content, crc32c: sum, chunk: b.chunk}
	p := b.policy(opPut)
	p.Progress = u.progress.Load
	if err := b.tries(ctx, p, u.advance); err != nil {
		return u.settle(ctx, err)
	}
	return u.verify(ctx)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sum reads content and gives its CRC32C as the service writes it: big-endian, in base64. ErrMismatch when it is not
// what its SHA-256 says.
func (b *Bucket) sum(ctx context.Context, content store.Blob) (string, error) {
	b.mu.Lock()
	known, ok := b.sums[content.SHA256]
	b.mu.Unlock()
	if ok {
		return known, nil
	}
	s, c := sha256.New(), crc32.New(castagnoli)
	buf := make([]byte, 256<<10)
	for off := int64(0); off < content.Size; {
		if err := store.CtxErr(ctx); err != nil {
			return "", err
		}
		n, err := content.ReadAt(buf[:min(int64(len(buf)), content.Size-off)], off)
		s.Write(buf[:n])
		c.Write(buf[:n])
		off += int64(n)
		store.Touch(ctx, int64(n))
		if err != nil && (!errors.Is(err, io.EOF) || off < content.Size) {
			return "", fmt.Errorf("read content at offset %d: %w", off, err)
		}
	}
	if sum := [32]byte(s.Sum(nil)); sum != content.SHA256 {
		return "", fmt.Errorf("%w: the content has sha256 %x, expected %x", store.ErrMismatch, sum, content.SHA256)
	}
	known = base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, c.Sum32()))
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sums[content.SHA256] = known
	return known, nil
}

// begin asks for a session. Nothing is visible before all of the content was sent to it.
func (u *upload) begin(ctx context.Context) error {
	contentType := u.content.ContentType
	if contentType == "" {
		contentType = "application/octet-stream"
	}
	body, size, header, err := jsonBody(struct {
		Name         string            `json:"name"`
		ContentType  string            `json:"contentType"`
		CRC32C       string            `json:"crc32c"`
		StorageClass string            `json:"storageClass,omitempty"`
		Metadata     map[string]string `json:"metadata,omitempty"`
	}{u.key, contentType, u.crc32c, u.b.storageClass, u.b.metadata})
	if err != nil {
		return err
	}
	header.Set("X-Upload-Content-Type", contentType)
	header.Set("X-Upload-Content-Length", strconv.FormatInt(u.content.Size, 10))
	query := url.Values{"uploadType": {"resumable"}, "name": {u.key}, "ifGenerationMatch": {"0"}, "fields": {fields}}
	if u.b.kmsKeyName != "" {
		query.Set("kmsKeyName", u.b.kmsKeyName)
	}
	resp, err := u.b.send(ctx, request{method: http.MethodPost, url: u.b.objectsURL("upload", query), header: header, body: body, size: size})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := decode(resp, nil); err != nil {
		return err
	}
	// Where the service says it is may not be where we find it, behind a proxy or a private endpoint. It answers where
	// it was asked.
	location, err := url.Parse(resp.Header.Get("Location"))
	if err != nil || location.RawQuery == "" {
		return notOurs("the answer to a new upload names no session")
	}
	session := u.b.endpoint.JoinPath("upload/storage/v1/b", url.PathEscape(u.b.name), "o")
	session.RawQuery = location.RawQuery
	u.session, u.offset, u.unknown = session.String(), 0, false
	if u.begun.IsZero() {
		// Of the first session: a later one may find what an earlier one has stored.
		u.begun, _ = http.ParseTime(resp.Header.Get("Date"))
	}
	return nil
}

// verify compares what the service says it has stored. It has compared the CRC32C already, unless it is one of those
// that do not.
func (u *upload) verify(ctx context.Context) error {
	o := u.stored
	if o.Size == u.content.Size && o.CRC32C == u.crc32c {
		return nil
	}
	err := fmt.Errorf("put %s: %w: the service has stored %d bytes with crc32c %s, expected %d bytes with crc32c %s",
		u.b.where(u.key), store.ErrMismatch, o.Size, o.CRC32C, u.content.Size, u.crc32c)
	u.remove(ctx, o)
	return err
}

// remove deletes an object that this upload has stored and nobody is to see.
func (u *upload) remove(ctx context.Context, o resource) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	if err := u.b.remove(ctx, u.key, o.Generation); err != nil {
		u.b.log.Warn("an object was left behind by an upload that failed", "object", u.b.where(u.key), "error", err)
	}
}

// settle is what Put ends with when it has failed: the session is cancelled, and where the service may have stored the
// object all the same, that is found out. What is ours is a success or, when ctx has ended, is removed again.
func (u *upload) settle(ctx context.Context, failure error) error {
	look, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	if u.session != "" {
		u.cancel(look)
	}
	if !u.suspect || errors.Is(failure, store.ErrExists) {
		return failure
	}
	o, err := u.find(look)
	switch {
	case errors.Is(err, store.ErrNotExist), errors.Is(err, errTheirs):
	case err != nil:
		u.b.log.Warn("cannot tell whether a failed upload has left its object", "object", u.b.where(u.key), "error", err)
	case ctx.Err() == nil:
		return nil
	default:
		u.remove(ctx, o)
	}
	return failure
}
