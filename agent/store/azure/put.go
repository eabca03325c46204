package azure

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/streaming"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"
	"golang.org/x/sync/errgroup"

	"etcdsnapshot.dev/agent/store"
)

// Put is store.Store's. The content is read once, in order, a block at a time, and the blocks are sent in parallel.
func (b *Bucket) Put(ctx context.Context, key string, content store.Blob) error {
	if err := checkKey(key); err != nil {
		return err
	}
	if err := store.CheckPut(ctx, key, content); err != nil {
		return err
	}
	u := b.newUpload(key, content)
	if len(u.ids) > 1 {
		// Spares sending much for nothing. What decides is the condition of the commit.
		_, err := b.look(ctx, key)
		switch {
		case err == nil:
			return fmt.Errorf("put %s: %w", b.where(key), store.ErrExists)
		case hasCode(err, bloberror.ContainerNotFound):
			return err
		case errors.Is(err, store.ErrNotExist), errors.Is(err, store.ErrAccessDenied):
		default:
			return err
		}
	}
	if err := u.stage(ctx); err != nil {
		return err
	}
	if u.sha256 != content.SHA256 {
		return fmt.Errorf("put %s: %w: content has sha256 %x, expected %x", b.where(key), store.ErrMismatch, u.sha256, content.SHA256)
	}
	if err := u.commit(ctx); err != nil {
		return err
	}
	b.remember(u.sha256, u.headers.BlobContentMD5)
	return nil
}

// upload is one Put.
type upload struct {
	b       *Bucket
	key     string
	content store.Blob
	client  *blockblob.Client

	blockSize int64
	// ids of the blocks, in base64. All IDs of a blob have the same length, says the service.
	ids []string
	// acknowledged is how many bytes the service has.
	acknowledged atomic.Int64

	headers blob.HTTPHeaders
	sha256  [sha256.Size]byte
}

func (b *Bucket) newUpload(key string, content store.Blob) *upload {
	u := &upload{b: b, key: key, content: content, client: b.container.NewBlockBlobClient(key), blockSize: b.blockSize}
	if u.blockSize <= 0 {
		u.blockSize = max(defaultBlockSize, (content.Size+maxBlocks-1)/maxBlocks)
	}
	contentType := content.ContentType
	if contentType == "" {
		contentType = "application/octet-stream"
	}
	u.headers.BlobContentType = &contentType
	var id [12]byte
	rand.Read(id[:8]) // never fails
	u.ids = make([]string, (content.Size+u.blockSize-1)/u.blockSize)
	for i := range u.ids {
		binary.BigEndian.PutUint32(id[8:], uint32(i))
		u.ids[i] = base64.StdEncoding.EncodeToString(id[:])
	}
	return u
}

// block is one block in memory.
type block struct {
	id  string
	buf []byte
}

// stage sends all blocks, and computes the sums of the whole on the way. Memory is one block for each that is sent
// at the same time.
func (u *upload) stage(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	senders := min(u.b.parallelism, len(u.ids))
	free := make(chan []byte, senders)
	for range senders {
		free <- nil
	}
	blocks := make(chan block)
	g.Go(func() error {
		defer close(blocks)
		return u.read(gctx, free, blocks)
	})
	for range senders {
		g.Go(func() error {
			for bl := range blocks {
				if err := u.send(gctx, bl); err != nil {
					return err
				}
				free <- bl.buf
			}
			return nil
		})
	}
	err := g.Wait()
	if ctxErr := store.CtxErr(ctx); ctxErr != nil {
		return fmt.Errorf("put %s: %w", u.b.where(u.key), ctxErr)
	}
	return err
}

// read reads the content, in order, into buffers that are free.
func (u *upload) read(ctx context.Context, free <-chan []byte, blocks chan<- block) error {
	m, s := md5.New(), sha256.New()
	for i, id := range u.ids {
		var buf []byte
		select {
		case buf = <-free:
		case <-ctx.Done():
			return ctx.Err()
		}
		off := int64(i) * u.blockSize
		size := min(u.blockSize, u.content.Size-off)
		if buf == nil {
			buf = make([]byte, size)
		}
		buf = buf[:size]
		if n, err := u.content.ReadAt(buf, off); n < len(buf) {
			if err == nil || errors.Is(err, io.EOF) {
				return fmt.Errorf("put %s: %w: content ends after %d bytes, expected %d", u.b.where(u.key), store.ErrMismatch, off+int64(n), u.content.Size)
			}
			return fmt.Errorf("put %s: read content at offset %d: %w", u.b.where(u.key), off+int64(n), err)
		}
		m.Write(buf)
		s.Write(buf)
		select {
		case blocks <- block{id, buf}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	u.headers.BlobContentMD5 = m.Sum(nil)
	s.Sum(u.sha256[:0])
	return nil
}

func (u *upload) send(ctx context.Context, bl block) error {
	sum := md5.Sum(bl.buf)
	p := u.b.policy(opPut)
	p.Progress = u.acknowledged.Load
	err := u.b.do(ctx, opPut, u.key, p, func(ctx context.Context) error {
		body := newBody(ctx, bl.buf)
		defer body.release()
		_, err := u.client.StageBlock(ctx, bl.id, body, &blockblob.StageBlockOptions{
			TransactionalValidation: blob.TransferValidationTypeMD5(sum[:]), CPKScopeInfo: u.b.scope,
		})
		return err
	})
	if err == nil {
		u.acknowledged.Add(int64(len(bl.buf)))
	}
	return err
}

// commit makes the blob of the staged blocks. When the answer that says so gets lost, the blob itself is asked.
func (u *upload) commit(ctx context.Context) error {
	open := false
	err := u.b.tries(ctx, u.b.policy(opPut), func(ctx context.Context) error {
		// An answer that is under way is worth waiting for: it spares finding out.
		ctx, cancel := outlive(ctx, u.b.grace)
		defer cancel()
		err := u.b.once(ctx, opPut, u.key, u.write)
		open = open || err != nil && undecided(err)
		return err
	})
	if err == nil || !open && !hasCode(err, bloberror.InvalidBlockList) {
		return err
	}
	return u.settle(ctx, err)
}

// write is the one request that makes the blob visible. An empty blob has no blocks.
func (u *upload) write(ctx context.Context) error {
	none := azcore.ETagAny
	conditions := &blob.AccessConditions{ModifiedAccessConditions: &blob.ModifiedAccessConditions{IfNoneMatch: &none}}
	if len(u.ids) == 0 {
		_, err := u.client.Upload(ctx, streaming.NopCloser(bytes.NewReader(nil)), &blockblob.UploadOptions{
			HTTPHeaders: &u.headers, Metadata: u.b.metadata, Tier: u.b.tier, CPKScopeInfo: u.b.scope, AccessConditions: conditions,
		})
		return err
	}
	_, err := u.client.CommitBlockList(ctx, u.ids, &blockblob.CommitBlockListOptions{
		HTTPHeaders: &u.headers, Metadata: u.b.metadata, Tier: u.b.tier, CPKScopeInfo: u.b.scope, AccessConditions: conditions,
	})
	return err
}

// settle finds out what has become of a commit that seems to have failed. A blob that is ours is a success or, when
// ctx has ended, is removed again.
func (u *upload) settle(ctx context.Context, failure error) error {
	look, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	ours, etag, err := u.stored(look)
	switch {
	case err != nil:
		u.b.log.Warn("cannot tell whether a failed upload has left its blob", "blob", u.b.where(u.key), "error", err)
		return failure
	case ours && ctx.Err() == nil:
		return nil
	case ours && etag != nil:
		if err := u.b.remove(look, u.key, etag); err != nil {
			u.b.log.Warn("a blob was left behind by an upload that was interrupted", "blob", u.b.where(u.key), "error", err)
		}
	case etag != nil && hasCode(failure, bloberror.InvalidBlockList):
		// The commit of another writer drops what all others have staged.
		return fmt.Errorf("put %s: %w", u.b.where(u.key), store.ErrExists)
	}
	return failure
}

// stored says whether there is a blob, by its ETag, and whether it is the one of this upload. An empty blob looks
// like any other empty one, and is therefore never said to be ours to remove.
func (u *upload) stored(ctx context.Context) (ours bool, etag *azcore.ETag, err error) {
	if len(u.ids) == 0 {
		props, err := u.b.look(ctx, u.key)
		if errors.Is(err, store.ErrNotExist) {
			return false, nil, nil
		}
		return err == nil && props.size == 0, nil, err
	}
	var resp blockblob.GetBlockListResponse
	err = u.b.do(ctx, opLook, u.key, u.b.policy(opLook), func(ctx context.Context) (err error) {
		resp, err = u.client.GetBlockList(ctx, blockblob.BlockListTypeCommitted, nil)
		return err
	})
	if errors.Is(err, store.ErrNotExist) {
		return false, nil, nil
	}
	if err != nil {
		return false, nil, err
	}
	committed := resp.CommittedBlocks
	if len(committed) == 0 {
		return false, nil, nil // staged blocks alone are no blob
	}
	ours = len(committed) == len(u.ids) && committed[0].Name != nil && *committed[0].Name == u.ids[0]
	return ours, resp.ETag, nil
}

// outlive gives a ctx that ends some time after parent does.
func outlive(parent context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(parent))
	stop := context.AfterFunc(parent, func() {
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		cancel(context.Cause(parent))
	})
	return ctx, func() {
		stop()
		cancel(nil)
	}
}
