package gcs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/wire"
)

// upload is one Put: a session of the service, or several when one gets lost.
type upload struct {
	b       *Bucket
	key     string
	content store.Blob
	crc32c  string

	// session is the URL that takes the content; empty before there is one. Who knows it may write: it is a secret.
	session string
	// begun is when the first session was begun, by the service's clock; zero if it did not say.
	begun time.Time
	// offset is how many bytes the service has. Where it is unknown the service must be asked first.
	offset  int64
	unknown bool
	// sentFrom is where the last request with content began.
	sentFrom int64
	// chunk is the most that is sent with one request; 0 as long as that is all that is left.
	chunk int64
	// suspect says that the service may have stored the object without our being told.
	suspect bool
	// progress is the highest offset so far.
	progress atomic.Int64

	stored resource
	done   bool
}

// errTheirs: the object is not what this upload has sent.
var errTheirs = errors.New("the object is somebody else's")

// statusIncomplete is what the service answers as long as it waits for more ("Resume Incomplete").
const statusIncomplete = http.StatusPermanentRedirect

// advance goes on from wherever the upload is until it is done or a request fails.
func (u *upload) advance(ctx context.Context) error {
	for !u.done {
		step := u.send
		switch {
		case u.session == "":
			step = u.begin
		case u.unknown:
			step = u.ask
		}
		if err := u.b.once(ctx, opPut, u.key, step); err != nil {
			return u.failed(ctx, err)
		}
	}
	return nil
}

// failed decides what a failed request means for the upload.
func (u *upload) failed(ctx context.Context, err error) error {
	switch status := statusOf(err); {
	case u.session != "" && (status == http.StatusNotFound || status == http.StatusGone):
		// The service has forgotten the session, as it does once the object is stored.
		u.session = ""
		if u.suspect {
			if o, findErr := u.find(ctx); findErr == nil {
				u.stored, u.done = o, true
				return nil
			}
		}
		return fmt.Errorf("put %s: the service has lost the upload, which begins anew (%d of %d bytes were stored)", u.b.where(u.key), u.offset, u.content.Size)
	case errors.Is(err, store.ErrExists) && u.suspect:
		if o, findErr := u.find(ctx); findErr == nil {
			u.stored, u.done = o, true
			return nil
		}
	}
	return err
}

// send sends the next chunk.
func (u *upload) send(ctx context.Context) error {
	size := u.content.Size - u.offset
	if u.chunk > 0 {
		size = min(u.chunk, size)
	}
	last := u.offset+size == u.content.Size
	header := http.Header{"Content-Range": {fmt.Sprintf("bytes %d-%d/%d", u.offset, u.offset+size-1, u.content.Size)}}
	if size == 0 {
		header.Set("Content-Range", fmt.Sprintf("bytes */%d", u.content.Size))
	}
	body := &chunk{ctx: ctx, section: io.NewSectionReader(u.content.ReaderAt, u.offset, size), size: size}
	if last {
		var cancel context.CancelFunc
		ctx, cancel = graceful(ctx, body.sent)
		defer cancel()
	}
	r := request{method: http.MethodPut, url: u.session, header: header, body: body, size: size, also: []int{statusIncomplete}}
	if size == 0 {
		r.body = http.NoBody
	}
	before := u.offset
	u.unknown, u.sentFrom = true, before
	err := u.answer(ctx, r)
	if err == nil && !u.done && u.offset <= before {
		err = fmt.Errorf("the service has kept nothing of what was sent from byte %d on", before)
	}
	// Once the last byte is out nobody but the service knows, until it says so.
	u.suspect = u.suspect || last && !u.done && body.sent() && undecided(err)
	if failure := body.end(); err != nil && failure != nil {
		return store.Permanent(fmt.Errorf("read content: %w", failure))
	}
	return err
}

// ask asks how many bytes the service has.
func (u *upload) ask(ctx context.Context) error {
	header := http.Header{"Content-Range": {fmt.Sprintf("bytes */%d", u.content.Size)}}
	return u.answer(ctx, request{method: http.MethodPut, url: u.session, header: header, body: http.NoBody, also: []int{statusIncomplete}})
}

// answer sends a request to the session and notes how far the upload is.
func (u *upload) answer(ctx context.Context, r request) error {
	resp, err := u.b.send(ctx, r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != statusIncomplete {
		var o resource
		if err := decode(resp, &o); err != nil {
			return err
		}
		u.stored, u.done = o, true
		return nil
	}
	if err := decode(resp, nil); err != nil {
		return err
	}
	offset, err := parseRange(resp.Header.Get("Range"))
	if err != nil || offset > u.content.Size {
		return notOurs(fmt.Sprintf("the upload's Range is %q", resp.Header.Get("Range")))
	}
	u.offset, u.unknown = offset, false
	if u.chunk == 0 && offset <= u.sentFrom {
		u.chunk = u.b.small // it keeps whole requests only
	}
	if offset > u.progress.Load() {
		u.progress.Store(offset)
	}
	return nil
}

// parseRange reads "bytes=0-N": the service has N+1 bytes. Without a header it has none.
func parseRange(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	last, ok := strings.CutPrefix(s, "bytes=0-")
	if !ok {
		return 0, strconv.ErrSyntax
	}
	n, err := strconv.ParseInt(last, 10, 64)
	if err != nil || n < 0 {
		return 0, strconv.ErrSyntax
	}
	return n + 1, nil
}

// undecided says that after err it is not known whether the service has acted on the request.
func undecided(err error) bool {
	status := statusOf(err)
	return status == 0 || status >= 500 || status == http.StatusRequestTimeout
}

// find gives the object if this upload has stored it. Otherwise it is ErrNotExist or errTheirs.
func (u *upload) find(ctx context.Context) (resource, error) {
	o, err := u.b.stat(ctx, u.key)
	if err != nil {
		return resource{}, err
	}
	// A copy that is older than our session is somebody else's. Dates of HTTP have no fractions.
	if o.Size != u.content.Size || o.CRC32C != u.crc32c || o.TimeCreated.Before(u.begun.Add(-time.Second)) {
		return resource{}, errTheirs
	}
	return o, nil
}

// cancel ends the session, so that what was sent so far is dropped at once.
func (u *upload) cancel(ctx context.Context) {
	// The service answers 499 where it did what it was asked to.
	err := u.b.once(ctx, opPut, u.key, func(ctx context.Context) error {
		return u.b.call(ctx, request{method: http.MethodDelete, url: u.session, body: http.NoBody, also: []int{499}}, nil)
	})
	if status := statusOf(err); err != nil && status != http.StatusNotFound && status != http.StatusGone {
		u.b.log.Warn("an unfinished upload was left behind; the service drops it after a week", "object", u.b.where(u.key), "error", err)
	}
}

// chunk is the body of one request. Its reads touch ctx. The transport may read on for a moment after a request has
// failed, until end is called.
type chunk struct {
	ctx     context.Context
	section *io.SectionReader
	size    int64
	read    atomic.Int64
	ended   atomic.Bool
	failure atomic.Pointer[error]
}

func (c *chunk) Read(p []byte) (int, error) {
	if c.ended.Load() {
		return 0, io.ErrClosedPipe
	}
	n, err := c.section.Read(p[:min(len(p), wire.WriteUnit)])
	done := c.read.Add(int64(n))
	store.Touch(c.ctx, int64(n))
	if err == io.EOF && done < c.size {
		err = io.ErrUnexpectedEOF
	}
	if err != nil && err != io.EOF {
		c.failure.Store(&err)
	}
	return n, err
}

// sent says that all of it was handed over, so that the service may have acted on it.
func (c *chunk) sent() bool { return c.read.Load() >= c.size }

// end ends the reading and gives the error of a read that failed.
func (c *chunk) end() error {
	c.ended.Store(true)
	if failure := c.failure.Load(); failure != nil {
		return *failure
	}
	return nil
}

// graceful gives a ctx that ends with parent, or graceTime later once all was sent.
func graceful(parent context.Context, sent func() bool) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(parent))
	stop := context.AfterFunc(parent, func() {
		if sent() {
			timer := time.NewTimer(graceTime)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
		}
		cancel(context.Cause(parent))
	})
	return ctx, func() {
		stop()
		cancel(nil)
	}
}
