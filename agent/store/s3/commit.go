package s3

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"

	"etcdsnapshot.dev/agent/store"
)

// codeConflict: two conditional writes of one key met.
const codeConflict = "ConditionalRequestConflict"

// lookFirst is ErrExists when the key is taken. It asks nothing where the service is known to check that itself.
func (b *Bucket) lookFirst(ctx context.Context, key string) error {
	if b.aws && !b.noCondition.Load() {
		return nil
	}
	_, err := b.head(ctx, key)
	switch {
	case err == nil:
		return fmt.Errorf("put %s/%s: %w", b, key, store.ErrExists)
	case errors.Is(err, store.ErrNotExist):
		return nil
	}
	return fmt.Errorf("put %s/%s: the key may be taken: %w", b, key, err)
}

// commit is the one request of a Put that makes the object visible. Its answer may get lost after the service has
// acted, so what happened has to be found out before it is sent again, or given up.
type commit struct {
	b       *Bucket
	op      op
	key     string
	blob    store.Blob
	started time.Time
	// open says that the last try may have stored the object.
	open bool
}

// run sends until the service has decided. Once ctx has ended it waits graceTime for the answer to a request that
// was sent whole.
func (c *commit) run(ctx context.Context, send func(ctx context.Context, conditional bool, sent *atomic.Pointer[upload]) error) error {
	b := c.b
	suspect := false
	once := func(ctx context.Context) error {
		var sent atomic.Pointer[upload]
		ctx, cancel := graceful(ctx, func() bool { u := sent.Load(); return u == nil || u.sent() })
		defer cancel()
		return b.once(ctx, c.op, c.key, func(ctx context.Context) error {
			return send(ctx, !b.noCondition.Load(), &sent)
		})
	}
	return b.tries(ctx, b.policy("put"), func(ctx context.Context) error {
		if c.open {
			ours, err := c.stored(ctx)
			switch {
			case err == nil && ours:
				c.open = false
				return nil
			case err == nil:
				c.open = false
				return fmt.Errorf("put %s/%s: %w", b, c.key, store.ErrExists)
			case errors.Is(err, store.ErrNotExist), errors.Is(err, store.ErrAccessDenied):
				// Not there, or not ours to know: the condition decides.
			default:
				return err
			}
		}
		c.open = true
		err := once(ctx)
		if refusesCondition(err) && b.noCondition.CompareAndSwap(false, true) {
			b.log.Info("the service refuses If-None-Match: create-only by looking first, so two writers that race are not told apart", "bucket", b.String(), "endpoint", b.endpoint, "error", err)
		}
		if refusesCondition(err) {
			if err := b.lookFirst(ctx, c.key); err != nil {
				c.open = false
				return err
			}
			err = once(ctx)
		}
		if c.open = err != nil && undecided(err); c.open {
			suspect = true
		}
		if suspect && (errors.Is(err, store.ErrExists) || hasCode(err, "NoSuchUpload")) {
			// An earlier try may have been the one that stored it.
			if ours, storedErr := c.stored(ctx); storedErr == nil && ours {
				return nil
			}
		}
		if hasCode(err, codeConflict) {
			return store.Permanent(err)
		}
		return err
	})
}

// stored says whether the object is there and is the one that this commit has sent. ErrNotExist when there is none.
func (c *commit) stored(ctx context.Context) (ours bool, err error) {
	st, err := c.b.head(ctx, c.key)
	if err != nil {
		return false, err
	}
	// Both times are the server's. A copy that is older than our first try is somebody else's.
	if st.date.Sub(st.LastModified) > time.Since(c.started)+2*time.Second {
		return false, nil
	}
	v, err := c.b.compare(ctx, st, c.blob)
	return v == same, err
}

// cleanup removes the object when the last try may have stored it although Put fails.
func (c *commit) cleanup(ctx context.Context) {
	if !c.open {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	ours, err := c.stored(ctx)
	if err == nil && ours {
		err = c.b.Delete(ctx, c.key)
	}
	if err != nil && !errors.Is(err, store.ErrNotExist) {
		c.b.log.Warn("cannot tell whether a failed upload has left its object", "object", c.b.String()+"/"+c.key, "error", err)
	}
}

// graceful gives a ctx that ends with parent, or graceTime later once all was sent.
func graceful(parent context.Context, sent func() bool) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(parent))
	stop := context.AfterFunc(parent, func() {
		if sent() {
			wait(ctx, graceTime)
		}
		cancel(context.Cause(parent))
	})
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// refusesCondition says that the service does not know If-None-Match here.
func refusesCondition(err error) bool {
	var re *ResponseError
	if !errors.As(err, &re) {
		return false
	}
	return re.StatusCode == http.StatusNotImplemented || re.Code == "NotImplemented" ||
		re.StatusCode == http.StatusBadRequest && strings.Contains(strings.ToLower(re.Message), "if-none-match")
}

// statusOf is the status of the answer that err is, or 0.
func statusOf(err error) int {
	var re *ResponseError
	if errors.As(err, &re) {
		return re.StatusCode
	}
	return 0
}

// object is what the service says about an object.
type object struct {
	minio.ObjectInfo
	// header of the answer, and the server's date in it.
	header http.Header
	date   time.Time
}

// head asks about an object. ErrNotExist when there is none, or no bucket.
func (b *Bucket) head(ctx context.Context, key string) (o object, err error) {
	err = b.do(ctx, opHead, key, b.policy("look up"), func(ctx context.Context) (err error) {
		o.ObjectInfo, err = b.client.StatObject(ctx, b.name, key, minio.StatObjectOptions{
			ServerSideEncryption: b.customerSSE(), Checksum: b.checksums,
		})
		_, o.header, _ = exchangeOf(ctx).answer()
		return err
	})
	if err == nil {
		if o.date, err = http.ParseTime(o.header.Get("Date")); err != nil {
			o.date, err = time.Now(), nil
		}
	}
	return o, err
}
