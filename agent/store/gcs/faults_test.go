package gcs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/storetest"
	"etcdsnapshot.dev/ci/emulator"
)

const mib = 1 << 20

// rig is a bucket whose requests pass a proxy that breaks them on demand, and then what does all of resumable uploads.
type rig struct {
	*Bucket
	srv     *emulator.GCS
	uploads *emulator.GCSUploads
	proxy   *emulator.FaultProxy
	spec    *v1.GCSDestination
}

func newRig(t *testing.T, srv *emulator.GCS, config emulator.ProxyConfig, o Options) *rig {
	t.Helper()
	current := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		require.NoError(t, goleak.Find(current, goleak.IgnoreAnyFunction("net/http.(*conn).serve")), "goroutines left behind")
	})
	r := &rig{srv: srv, uploads: emulator.StartGCSUploads(t, srv)}
	r.proxy = emulator.StartFaultProxy(t, r.uploads.URL, config)
	r.spec = newSpec(t, srv, r.proxy.URL, emulator.GCSBucketOptions{})
	r.Bucket = open(t, r.spec, o)
	return r
}

// empty requires that nothing is left of anything that was sent.
func (r *rig) empty(t *testing.T) {
	t.Helper()
	objects, err := r.srv.Objects(t.Context(), r.name, "versions=true")
	require.NoError(t, err)
	require.Empty(t, objects)
	require.Zero(t, r.uploads.Open(), "unfinished uploads left behind")
}

// ranges are what was sent, and asked for, in this order.
func (r *rig) ranges() (all []string) {
	for _, req := range r.proxy.Requests(emulator.Rule{Method: "PUT"}) {
		all = append(all, req.Header.Get("Content-Range"))
	}
	return all
}

// google is an error as the service writes it.
func google(status int, reason, message string) emulator.Rule {
	return emulator.Rule{
		Status: status, Header: http.Header{"Content-Type": {"application/json"}},
		Body: fmt.Sprintf(`{"error":{"code":%d,"message":%q,"errors":[{"domain":"global","reason":%q,"message":%q}]}}`, status, message, reason, message),
	}
}

func on(method, path string, r emulator.Rule) emulator.Rule {
	r.Method, r.Path = method, path
	return r
}

func hasBody(r *http.Request) bool { return r.ContentLength > 0 }

func TestErrors(t *testing.T) {
	srv := emulator.StartGCS(t)
	ctx := t.Context()
	put := func(b *Bucket) error { return b.Put(ctx, "a/b", storetest.Text("content")) }
	get := func(b *Bucket) error {
		rc, err := b.Get(ctx, "a/b", 0)
		if err == nil {
			rc.Close()
		}
		return err
	}
	list := func(b *Bucket) error { return storetest.CheckList(ctx, b, "a/") }
	del := func(b *Bucket) error { return b.Delete(ctx, "a/b") }
	check := func(b *Bucket) error { return b.Check(ctx, "a/b", storetest.Text("content")) }
	forbidden := func(permission string) emulator.Rule {
		return google(403, "forbidden", "agent@p.iam.gserviceaccount.com does not have "+permission+" access to the Google Cloud Storage object.")
	}
	html := emulator.Rule{Status: 404, Header: http.Header{"Content-Type": {"text/html"}}, Body: "<h1>404 page not found</h1>"}
	for name, c := range map[string]struct {
		rule emulator.Rule
		do   func(*Bucket) error
		is   error
		says []string
	}{
		"put 401":                   {on("POST", "/upload/", google(401, "authError", "Invalid Credentials")), put, store.ErrAccessDenied, []string{"put gs://", "a/b", "401 authError: Invalid Credentials", "auth.method"}},
		"put 403":                   {on("POST", "/upload/", forbidden("storage.objects.create")), put, store.ErrAccessDenied, []string{"needs storage.objects.create"}},
		"list 403":                  {on("GET", "/o", forbidden("storage.objects.list")), list, store.ErrAccessDenied, []string{"list gs://", "needs storage.objects.list"}},
		"get 403":                   {on("GET", "/o/", forbidden("storage.objects.get")), get, store.ErrAccessDenied, []string{"needs storage.objects.get"}},
		"check 403":                 {on("GET", "/o/", forbidden("storage.objects.get")), check, store.ErrAccessDenied, []string{"needs storage.objects.get"}},
		"delete 403":                {on("DELETE", "/o/", forbidden("storage.objects.delete")), del, store.ErrAccessDenied, []string{"needs storage.objects.delete"}},
		"kms 403":                   {on("POST", "/upload/", google(403, "forbidden", "Permission denied on Cloud KMS key. Please ensure that your Cloud Storage service account has been authorized to use this key.")), put, store.ErrAccessDenied, []string{"cryptoKeyEncrypterDecrypter"}},
		"kms 400":                   {on("POST", "/upload/", google(400, "invalid", "Bucket location us does not match Cloud KMS key location eu")), put, store.ErrConfig, []string{"kmsKeyName"}},
		"requester":                 {on("POST", "/upload/", google(400, "userProjectMissing", "Bucket is a requester pays bucket but no user project provided.")), put, store.ErrConfig, []string{"GOOGLE_CLOUD_QUOTA_PROJECT"}},
		"retention":                 {on("DELETE", "/o/", google(403, "retentionPolicyNotMet", "Object 'b/a' is subject to bucket's retention policy and cannot be deleted or overwritten until 2027-01-01T00:00:00Z.")), del, store.ErrProtected, []string{"until 2027-01-01"}},
		"hold":                      {on("DELETE", "/o/", google(403, "objectUnderActiveHold", "Object 'b/a' is under active Temporary hold and cannot be deleted, overwritten or archived until hold is removed.")), del, store.ErrProtected, []string{"Temporary hold"}},
		"delete, 404 of the bucket": {on("DELETE", "/o/", google(404, "notFound", "The specified bucket does not exist.")), del, store.ErrNotExist, []string{"make the bucket"}},
		"put, not Cloud Storage":    {on("POST", "/upload/", html), put, store.ErrConfig, []string{"404", "check endpoint"}},
		"list, not Cloud Storage":   {on("GET", "/o", html), list, store.ErrConfig, []string{"check endpoint"}},
		"get, not Cloud Storage":    {on("GET", "/o/", html), get, store.ErrConfig, []string{"check endpoint"}},
		"delete, not Cloud Storage": {on("DELETE", "/o/", html), del, store.ErrConfig, []string{"check endpoint"}},
		"portal":                    {on("GET", "/o", emulator.Rule{Status: 200, Body: "<h1>Welcome to our hotel</h1>"}), list, store.ErrConfig, []string{"not JSON", "check endpoint"}},
		"no session":                {on("POST", "/upload/", emulator.Rule{Status: 200, Body: "{}"}), put, store.ErrConfig, []string{"names no session"}},
		"redirect":                  {on("GET", "/o", emulator.Rule{Status: 302, Header: http.Header{"Location": {"https://elsewhere.invalid/"}}}), list, store.ErrConfig, []string{"302"}},
		"429 for good":              {on("GET", "/o", google(429, "rateLimitExceeded", "The project exceeded the rate limit.")), list, nil, []string{"429 rateLimitExceeded", "throttled", "gave up after"}},
		"503 for good":              {on("POST", "/upload/", google(503, "backendError", "Backend Error")), put, nil, []string{"503 backendError", "gave up after"}},
	} {
		t.Run(name, func(t *testing.T) {
			o := quick()
			o.Retry.GiveUp = 200 * time.Millisecond
			r := newRig(t, srv, emulator.ProxyConfig{}, o)
			r.proxy.Add(c.rule)
			err := c.do(r.Bucket)
			require.Error(t, err)
			t.Log(err)
			if c.is != nil {
				require.ErrorIs(t, err, c.is)
				require.True(t, store.IsPermanent(err))
			}
			for _, s := range c.says {
				require.ErrorContains(t, err, s)
			}
			r.proxy.Clear()
			r.empty(t)
		})
	}
}

func TestBucketMissing(t *testing.T) {
	srv := emulator.StartGCS(t)
	b := open(t, &v1.GCSDestination{Bucket: "no-such-bucket", Endpoint: srv.Endpoint, Auth: v1.GCSAuth{Method: v1.GCSAuthAnonymous}}, quick())
	err := storetest.CheckList(t.Context(), b, "")
	require.ErrorIs(t, err, store.ErrNotExist)
	require.ErrorContains(t, err, "list gs://no-such-bucket: does not exist: 404")
	require.ErrorContains(t, err, "make the bucket")
	for _, content := range []store.Blob{storetest.Text("content"), storetest.Blob(1, 3*mib)} {
		require.ErrorIs(t, b.Put(t.Context(), "a/b", content), store.ErrNotExist)
	}
	_, err = b.Get(t.Context(), "a/b", 0)
	require.ErrorIs(t, err, store.ErrNotExist)
}

// TestTransientFailures: whatever fails once, the second try succeeds and leaves one object.
func TestTransientFailures(t *testing.T) {
	srv := emulator.StartGCS(t)
	busy := google(503, "backendError", "Backend Error")
	for name, rule := range map[string]emulator.Rule{
		"429 at the start":          on("POST", "", google(429, "rateLimitExceeded", "slow down")),
		"403 rate limit":            on("POST", "", google(403, "rateLimitExceeded", "slow down")),
		"503 at the start":          on("POST", "", busy),
		"408 on a chunk":            on("PUT", "", google(408, "", "Request Timeout")),
		"503 on a chunk":            {Method: "PUT", Skip: 1, Status: 503, Body: "busy"},
		"500 on the last chunk":     {Method: "PUT", Skip: 3, Status: 500},
		"reset at the start":        {Method: "POST", Request: emulator.Fault{Reset: true}},
		"start's answer lost":       {Method: "POST", Response: emulator.Fault{Reset: true}},
		"reset in a chunk":          {Method: "PUT", Skip: 1, Request: emulator.Fault{Reset: true, After: 700 << 10}},
		"reset in the last chunk":   {Method: "PUT", Skip: 3, Request: emulator.Fault{Reset: true, After: 300 << 10}},
		"chunk's answer lost":       {Method: "PUT", Skip: 1, Response: emulator.Fault{Reset: true}},
		"last chunk's answer lost":  {Method: "PUT", Skip: 3, Response: emulator.Fault{Reset: true}},
		"stall in a chunk":          {Method: "PUT", Skip: 1, Request: emulator.Fault{Stall: true, After: 600 << 10}},
		"last chunk's answer stuck": {Method: "PUT", Skip: 3, Response: emulator.Fault{Stall: true}},
	} {
		t.Run(name, func(t *testing.T) {
			o := quick()
			var logged log
			o.Logger = slog.New(slog.NewTextHandler(&logged, nil))
			r := newRig(t, srv, emulator.ProxyConfig{}, o)
			rule.Times = 1
			r.proxy.Add(rule)
			content := storetest.Blob(1, 3*mib+mib/2)
			require.NoError(t, r.Put(t.Context(), "a/b", content))
			require.NoError(t, store.VerifyFull(t.Context(), r, "a/b", content, nil))
			require.Equal(t, []string{"a/b"}, keys(t, r))
			require.Less(t, r.uploads.Received(), content.Size+2*mib, "only what was lost is sent again")
			require.Contains(t, strings.Join(logged.all(), ""), "trying again")
			require.NotContains(t, strings.Join(logged.all(), ""), "upload_id", "who knows the session may write")
			if rule.Method == http.MethodPut {
				require.Zero(t, r.uploads.Open())
			}
		})
	}
}

// TestResume: an upload goes on at the byte that the service asks for, and not at the start of a chunk.
func TestResume(t *testing.T) {
	o := quick()
	o.ChunkSize = 0 // all of it with one request
	r := newRig(t, emulator.StartGCS(t), emulator.ProxyConfig{}, o)
	for _, after := range []int64{3 * mib, 5*mib + 100, mib} {
		r.proxy.Add(emulator.Rule{Method: "PUT", Match: hasBody, Times: 1, Request: emulator.Fault{Reset: true, After: after}})
	}
	content := storetest.Blob(1, 12*mib)
	require.NoError(t, r.Put(t.Context(), "a/b", content))
	require.NoError(t, r.Check(t.Context(), "a/b", content))
	ranges := r.ranges()
	require.Len(t, ranges, 7)
	const question = "bytes */12582912"
	require.Equal(t, "bytes 0-12582911/12582912", ranges[0])
	for _, i := range []int{1, 3, 5} {
		require.Equal(t, question, ranges[i])
		require.True(t, strings.HasSuffix(ranges[i+1], "-12582911/12582912"))
		require.False(t, strings.HasPrefix(ranges[i+1], "bytes 0-"), "begins anew: %s", ranges[i+1])
	}
	require.Less(t, r.uploads.Received(), content.Size+3*256<<10, "less than a unit of each that broke is sent again")
}

// TestNothingKept: where nothing is kept of a request that broke, less is sent with each.
func TestNothingKept(t *testing.T) {
	o := quick()
	o.ChunkSize = 0
	r := newRig(t, emulator.StartGCS(t), emulator.ProxyConfig{}, o)
	r.small = 2 * mib
	// Less than the service's unit.
	r.proxy.Add(emulator.Rule{Method: "PUT", Match: hasBody, Times: 1, Request: emulator.Fault{Reset: true, After: 100 << 10}})
	content := storetest.Blob(1, 5*mib)
	require.NoError(t, r.Put(t.Context(), "a/b", content))
	require.NoError(t, r.Check(t.Context(), "a/b", content))
	require.Equal(t, []string{
		"bytes 0-5242879/5242880", "bytes */5242880",
		"bytes 0-2097151/5242880", "bytes 2097152-4194303/5242880", "bytes 4194304-5242879/5242880",
	}, r.ranges())
}

func TestUploadLost(t *testing.T) {
	srv := emulator.StartGCS(t)
	large := storetest.Blob(1, 3*mib)
	t.Run("in the middle", func(t *testing.T) {
		r := newRig(t, srv, emulator.ProxyConfig{}, quick())
		var once sync.Once
		r.proxy.Add(emulator.Rule{Method: "PUT", Skip: 1, Times: 1, Forward: func(*http.Request) { once.Do(r.uploads.Forget) }})
		require.NoError(t, r.Put(t.Context(), "a/b", large))
		require.NoError(t, r.Check(t.Context(), "a/b", large))
		require.Equal(t, 2, r.proxy.Count(emulator.Rule{Method: "POST"}))
	})
	// The object is stored, the answer lost, and the service remembers no upload: only the object can tell.
	t.Run("after the end", func(t *testing.T) {
		r := newRig(t, srv, emulator.ProxyConfig{}, quick())
		r.proxy.Add(
			emulator.Rule{Method: "PUT", Skip: 2, Times: 1, Response: emulator.Fault{Reset: true}},
			emulator.Rule{Method: "PUT", Skip: 2, Forward: func(*http.Request) { r.uploads.Forget() }},
		)
		require.NoError(t, r.Put(t.Context(), "a/b", large))
		require.NoError(t, r.Check(t.Context(), "a/b", large))
		require.Equal(t, 1, r.proxy.Count(emulator.Rule{Method: "POST"}), "is not sent again")
	})
	t.Run("after the end, and the service cannot be asked", func(t *testing.T) {
		r := newRig(t, srv, emulator.ProxyConfig{}, quick())
		r.proxy.Add(
			emulator.Rule{Method: "PUT", Skip: 2, Times: 1, Response: emulator.Fault{Reset: true}},
			emulator.Rule{Method: "PUT", Status: 503, Skip: 2},
		)
		require.NoError(t, r.Put(t.Context(), "a/b", large), "the object is there and is ours")
		require.NoError(t, r.Check(t.Context(), "a/b", large))
	})
	t.Run("and somebody else was quicker", func(t *testing.T) {
		r := newRig(t, srv, emulator.ProxyConfig{}, quick())
		r.proxy.Add(
			emulator.Rule{Method: "PUT", Skip: 2, Times: 1, Request: emulator.Fault{Rewrite: func(http.Header) {
				// Before the last byte has arrived.
				require.NoError(t, srv.PutObject(context.Background(), r.name, "a/b", []byte("theirs")))
			}}, Response: emulator.Fault{Reset: true}},
		)
		require.ErrorIs(t, r.Put(t.Context(), "a/b", large), store.ErrExists)
		require.Equal(t, "theirs", content(t, r, "a/b"))
	})
}

// TestOlderTwin: an object with our content that was there before is not taken for ours.
func TestOlderTwin(t *testing.T) {
	r := newRig(t, emulator.StartGCS(t), emulator.ProxyConfig{}, quick())
	require.NoError(t, r.Put(t.Context(), "a/b", storetest.Text("twin")))
	// Later by the service's clock.
	r.proxy.Add(emulator.Rule{Method: "POST", Response: emulator.Fault{Rewrite: func(h http.Header) {
		h.Set("Date", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))
	}}}, emulator.Rule{Method: "PUT", Times: 1, Response: emulator.Fault{Reset: true}})
	require.ErrorIs(t, r.Put(t.Context(), "a/b", storetest.Text("twin")), store.ErrExists)
}

func TestRetryAfter(t *testing.T) {
	for name, h := range map[string]string{"seconds": "1", "none": ""} {
		t.Run(name, func(t *testing.T) {
			o := quick()
			var delays []time.Duration
			o.Retry.OnRetry = func(_ error, d time.Duration) { delays = append(delays, d) }
			r := newRig(t, emulator.StartGCS(t), emulator.ProxyConfig{}, o)
			for _, rule := range []emulator.Rule{google(429, "rateLimitExceeded", "slow down"), google(503, "backendError", "Backend Error")} {
				rule.Method, rule.Times = "PUT", 1
				if h != "" {
					rule.Header.Set("Retry-After", h)
				}
				r.proxy.Add(rule)
			}
			require.NoError(t, r.Put(t.Context(), "a/b", storetest.Text("content")))
			require.NotEmpty(t, delays)
			for _, d := range delays {
				if h == "" {
					require.LessOrEqual(t, d, o.Retry.Max)
				} else {
					require.Equal(t, time.Second, d)
				}
			}
		})
	}
}

// TestDenied: an upload that is refused in the middle leaves nothing.
func TestDenied(t *testing.T) {
	r := newRig(t, emulator.StartGCS(t), emulator.ProxyConfig{}, quick())
	rule := on("PUT", "", google(403, "forbidden", "no more"))
	rule.Skip = 2
	r.proxy.Add(rule)
	err := r.Put(t.Context(), "a/b", storetest.Blob(1, 4*mib))
	require.ErrorIs(t, err, store.ErrAccessDenied)
	require.ErrorContains(t, err, "403 forbidden: no more")
	require.Equal(t, 3, r.proxy.Count(emulator.Rule{Method: "PUT"}))
	r.empty(t)
}

// TestDamaged: the service refuses what was damaged on its way, and what one has stored that does not look is removed.
func TestDamaged(t *testing.T) {
	srv := emulator.StartGCS(t)
	damage := func(r *http.Request) {
		body := r.Body
		r.Body = struct {
			io.Reader
			io.Closer
		}{flip{body}, body}
	}
	t.Run("refused", func(t *testing.T) {
		r := newRig(t, srv, emulator.ProxyConfig{}, quick())
		r.proxy.Add(emulator.Rule{Method: "PUT", Match: hasBody, Times: 1, Forward: damage})
		err := r.Put(t.Context(), "a/b", storetest.Blob(1, 3*mib))
		require.ErrorIs(t, err, store.ErrMismatch)
		require.ErrorContains(t, err, "damaged on its way")
		r.empty(t)
	})
	t.Run("stored", func(t *testing.T) {
		// This server forgets the checksum when there is more than one request.
		proxy := emulator.StartFaultProxy(t, srv.Endpoint, emulator.ProxyConfig{})
		b := open(t, newSpec(t, srv, proxy.URL, emulator.GCSBucketOptions{}), quick())
		proxy.Add(emulator.Rule{Method: "PUT", Times: 1, Forward: damage})
		err := b.Put(t.Context(), "a/b", storetest.Blob(1, 3*mib))
		require.ErrorIs(t, err, store.ErrMismatch)
		require.ErrorContains(t, err, "3145728 bytes with crc32c")
		require.Empty(t, keys(t, b))
	})
}

type flip struct{ io.Reader }

func (f flip) Read(p []byte) (int, error) {
	n, err := f.Reader.Read(p)
	if n > 0 {
		p[0] ^= 1
	}
	return n, err
}

// TestSlow: a line on which everything takes longer than the stall time is no failure.
func TestSlow(t *testing.T) {
	o := quick()
	o.StallTimeout = 4 * time.Second // as much as the default one is at 1 KiB/s
	r := newRig(t, emulator.StartGCS(t), emulator.ProxyConfig{ReadBuffer: 4 << 10}, o)
	r.proxy.Add(
		emulator.Rule{Method: "PUT", Request: emulator.Fault{Rate: 16 << 10}},
		emulator.Rule{Method: "GET", Query: "alt=media", Response: emulator.Fault{Rate: 64 << 10}},
	)
	content := storetest.Blob(1, 150<<10)
	start := time.Now()
	require.NoError(t, store.PutWithStall(t.Context(), r, "a/b", content, o.StallTimeout, nil))
	require.Greater(t, time.Since(start), o.StallTimeout, "slow enough to prove something")
	require.Equal(t, 1, r.proxy.Count(emulator.Rule{Method: "PUT"}))
	require.NoError(t, store.VerifyFull(t.Context(), r, "a/b", content, nil))
}

func TestStalled(t *testing.T) {
	srv := emulator.StartGCS(t)
	for name, rule := range map[string]emulator.Rule{
		"at the start":      {Method: "POST", Response: emulator.Fault{Stall: true}},
		"in a chunk":        {Method: "PUT", Skip: 1, Match: hasBody, Request: emulator.Fault{Stall: true, After: 100 << 10}},
		"before the answer": {Method: "PUT", Skip: 2, Response: emulator.Fault{Stall: true}},
	} {
		t.Run(name, func(t *testing.T) {
			o := quick()
			o.StallTimeout = 200 * time.Millisecond
			r := newRig(t, srv, emulator.ProxyConfig{}, o)
			r.proxy.Add(rule)
			err := r.Put(t.Context(), "a/b", storetest.Blob(1, 3*mib))
			if name == "before the answer" {
				require.NoError(t, err, "it was stored, and that is found out")
				return
			}
			require.ErrorIs(t, err, store.ErrStalled)
			require.ErrorContains(t, err, "put gs://"+r.name+"/a/b: no progress for 200ms")
			if name == "at the start" {
				// Uploads that we were not told of cannot be cancelled. They hold nothing.
				require.Equal(t, 2, r.uploads.Open())
				require.Zero(t, r.uploads.Received())
				r.uploads.Forget()
			}
			r.empty(t)
		})
	}
	t.Run("while reading", func(t *testing.T) {
		r := newRig(t, srv, emulator.ProxyConfig{}, quick())
		content := storetest.Blob(1, mib)
		require.NoError(t, r.Put(t.Context(), "a/b", content))
		r.proxy.Add(emulator.Rule{Method: "GET", Query: "alt=media", Response: emulator.Fault{Stall: true, After: 100 << 10}})
		rc, err := r.Get(t.Context(), "a/b", 0)
		require.NoError(t, err)
		defer rc.Close()
		_, err = io.Copy(io.Discard, rc)
		require.ErrorIs(t, err, store.ErrStalled)
	})
}

func TestCancel(t *testing.T) {
	srv := emulator.StartGCS(t)
	put := func(t *testing.T, r *rig, rule emulator.Rule) error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		rule.Method, rule.Times = "PUT", 1
		rule.Request.Rewrite = func(http.Header) { cancel() }
		r.proxy.Add(rule)
		start := time.Now()
		err := r.Put(ctx, "a/b", storetest.Blob(1, 3*mib))
		require.Less(t, time.Since(start), 20*time.Second)
		return err
	}
	t.Run("in the middle", func(t *testing.T) {
		r := newRig(t, srv, emulator.ProxyConfig{}, quick())
		require.ErrorIs(t, put(t, r, emulator.Rule{Skip: 1}), context.Canceled)
		r.empty(t)
		require.Equal(t, 1, r.proxy.Count(emulator.Rule{Method: "DELETE", Path: "/upload/"}))
	})
	t.Run("while the last answer is under way", func(t *testing.T) {
		// The two may meet in any order: what counts is that they agree.
		r := newRig(t, srv, emulator.ProxyConfig{}, quick())
		if err := put(t, r, emulator.Rule{Skip: 2}); err != nil {
			require.ErrorIs(t, err, context.Canceled)
			r.empty(t)
			return
		}
		require.NoError(t, r.Check(t.Context(), "a/b", storetest.Blob(1, 3*mib)))
	})
	t.Run("when the last answer is lost", func(t *testing.T) {
		r := newRig(t, srv, emulator.ProxyConfig{}, quick())
		require.ErrorIs(t, put(t, r, emulator.Rule{Skip: 2, Response: emulator.Fault{Reset: true}}), context.Canceled)
		r.empty(t)
	})
}

func TestUnreachable(t *testing.T) {
	srv := emulator.StartGCS(t)
	at := func(endpoint string) *v1.GCSDestination {
		return &v1.GCSDestination{Bucket: "bucket", Endpoint: endpoint, Auth: v1.GCSAuth{Method: v1.GCSAuthAnonymous}}
	}
	o := quick()
	o.Retry.GiveUp = 200 * time.Millisecond
	tls := emulator.StartFaultProxy(t, srv.Endpoint, emulator.ProxyConfig{TLS: true})
	dead := emulator.StartFaultProxy(t, srv.Endpoint, emulator.ProxyConfig{})
	dead.Close()
	for name, c := range map[string]struct {
		endpoint string
		says     []string
	}{
		"DNS":               {"https://nope.invalid", []string{"nope.invalid", "no such host", "check endpoint"}},
		"nothing listens":   {dead.URL, []string{"connection refused", "check endpoint"}},
		"unknown CA":        {tls.URL, []string{"x509: ", "caBundleFile"}},
		"TLS to plain":      {strings.Replace(srv.Endpoint, "http://", "https://", 1), []string{"http://"}},
		"plain HTTP to TLS": {strings.Replace(tls.URL, "https://", "http://", 1), []string{"400", "HTTP request to an HTTPS server", "check endpoint"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := storetest.CheckList(t.Context(), open(t, at(c.endpoint), o), "")
			require.Error(t, err)
			t.Log(err)
			require.NotErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorContains(t, err, "list gs://bucket: ")
			for _, s := range c.says {
				require.ErrorContains(t, err, s)
			}
		})
	}
	t.Run("CA bundle", func(t *testing.T) {
		spec := newSpec(t, srv, tls.URL, emulator.GCSBucketOptions{})
		spec.CABundleFile = filepath.Join(t.TempDir(), "ca.crt")
		require.NoError(t, os.WriteFile(spec.CABundleFile, tls.CA, 0o600))
		b := open(t, spec, o)
		require.NoError(t, b.Put(t.Context(), "a/b", storetest.Text("content")))
		require.Equal(t, "content", content(t, b, "a/b"))
	})
	t.Run("no verification", func(t *testing.T) {
		spec := newSpec(t, srv, tls.URL, emulator.GCSBucketOptions{})
		spec.InsecureSkipTLSVerify = true
		require.NoError(t, storetest.CheckList(t.Context(), open(t, spec, o), ""))
	})
	for name, pem := range map[string]string{"missing": "", "empty": "no certificate"} {
		t.Run("CA bundle "+name, func(t *testing.T) {
			spec := at(tls.URL)
			spec.CABundleFile = filepath.Join(t.TempDir(), "ca.crt")
			if pem != "" {
				require.NoError(t, os.WriteFile(spec.CABundleFile, []byte(pem), 0o600))
			}
			_, err := New(t.Context(), spec, o)
			require.ErrorIs(t, err, store.ErrConfig)
			require.ErrorContains(t, err, "caBundleFile")
			require.ErrorContains(t, err, spec.CABundleFile)
		})
	}
}

func TestSpoolFails(t *testing.T) {
	r := newRig(t, emulator.StartGCS(t), emulator.ProxyConfig{}, quick())
	content := storetest.Blob(1, 3*mib)
	good := content.ReaderAt
	// Only once it is being sent.
	content.ReaderAt = readerAt(func(p []byte, off int64) (int, error) {
		if off > 2*mib && r.proxy.Count(emulator.Rule{Method: "PUT"}) > 1 {
			return 0, errors.New("bad sector in the spool file")
		}
		return good.ReadAt(p, off)
	})
	err := r.Put(t.Context(), "a/b", content)
	require.ErrorContains(t, err, "bad sector in the spool file")
	require.True(t, store.IsPermanent(err))
	r.empty(t)
}

type readerAt func(p []byte, off int64) (int, error)

func (f readerAt) ReadAt(p []byte, off int64) (int, error) { return f(p, off) }
