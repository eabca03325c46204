package s3_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"sync"
	"testing"

	"github.com/minio/minio-go/v7/pkg/signer"
	"github.com/stretchr/testify/require"

	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/s3"
	"etcdsnapshot.dev/agent/store/storetest"
	"etcdsnapshot.dev/ci/emulator"
)

// The two requests that make an object visible.
var (
	putWhole = emulator.Rule{Method: http.MethodPut, Path: "/key"}
	complete = emulator.Rule{Method: http.MethodPost, Path: "/key", Query: "uploadId="}
	headKey  = emulator.Rule{Method: http.MethodHead, Path: "/key"}
)

// sizes are those of an object sent in one request and of one sent in parts.
var sizes = map[string]int64{"whole": 1000, "parts": 2*minPartSize + 1}

func commitOf(name string) emulator.Rule {
	if name == "whole" {
		return putWhole
	}
	return complete
}

// buffer is a log that may be written to from several goroutines.
type buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func logTo(b *buffer) *slog.Logger {
	return slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// forgetCondition makes a server that does not know If-None-Match of one that does: the header is dropped and the
// request signed anew.
func forgetCondition(srv *emulator.S3, rule emulator.Rule) emulator.Rule {
	rule.Forward = func(r *http.Request) {
		r.Header.Del("If-None-Match")
		*r = *signer.SignV4(*r, srv.AccessKey, srv.SecretKey, "", srv.Region)
	}
	return rule
}

func TestServerHonoursCondition(t *testing.T) {
	srv := emulator.StartS3(t)
	for name, size := range sizes {
		t.Run(name, func(t *testing.T) {
			p := emulator.StartFaultProxy(t, srv.Endpoint, emulator.ProxyConfig{})
			spec := newSpec(t, srv, p.URL, emulator.S3BucketOptions{})
			var log buffer
			b := open(t, spec, s3.Options{Logger: logTo(&log)})
			first, second := storetest.Blob(1, size), storetest.Blob(2, size)

			// The other writer comes while ours is under way, after all looks: the condition alone stands between.
			rule := commitOf(name)
			rule.Times = 1
			rule.Forward = func(*http.Request) {
				other := open(t, spec, s3.Options{})
				require.NoError(t, other.Put(context.Background(), "key", first))
			}
			p.Add(rule)
			require.ErrorIs(t, b.Put(t.Context(), "key", second), store.ErrExists)
			require.NoError(t, b.Check(t.Context(), "key", first))
			require.Contains(t, log.String(), "create-only by If-None-Match and by looking first")
			for _, r := range p.Requests(commitOf(name)) {
				require.Equal(t, "*", r.Header.Get("If-None-Match"))
			}
		})
	}
}

func TestServerIgnoresCondition(t *testing.T) {
	srv := emulator.StartS3(t)
	for name, size := range sizes {
		t.Run(name, func(t *testing.T) {
			p := emulator.StartFaultProxy(t, srv.Endpoint, emulator.ProxyConfig{})
			b := open(t, newSpec(t, srv, p.URL, emulator.S3BucketOptions{}), s3.Options{})
			p.Add(forgetCondition(srv, commitOf(name)))
			first, second := storetest.Blob(1, size), storetest.Blob(2, size)
			require.NoError(t, b.Put(t.Context(), "key", first))
			before := p.Count(emulator.Rule{Method: http.MethodPut})
			require.ErrorIs(t, b.Put(t.Context(), "key", second), store.ErrExists)
			require.NoError(t, b.Check(t.Context(), "key", first))
			require.Equal(t, before, p.Count(emulator.Rule{Method: http.MethodPut}), "nothing was sent")
		})
	}
	t.Run("another writer is quicker", func(t *testing.T) {
		p := emulator.StartFaultProxy(t, srv.Endpoint, emulator.ProxyConfig{})
		spec := newSpec(t, srv, p.URL, emulator.S3BucketOptions{})
		b := open(t, spec, s3.Options{})
		first, second := storetest.Blob(1, 1000), storetest.Blob(2, sizes["parts"])
		other := open(t, spec, s3.Options{})
		p.Add(
			forgetCondition(srv, complete),
			emulator.Rule{Query: "partNumber=2", Times: 1, Forward: func(*http.Request) {
				require.NoError(t, other.Put(context.Background(), "key", first))
			}},
		)
		require.ErrorIs(t, b.Put(t.Context(), "key", second), store.ErrExists)
		require.NoError(t, b.Check(t.Context(), "key", first))
		require.Zero(t, p.Count(complete), "looked again before completing")
	})
}

func TestServerRefusesCondition(t *testing.T) {
	srv := emulator.StartS3(t)
	refusal := func(rule emulator.Rule) emulator.Rule {
		rule.Match = func(r *http.Request) bool { return r.Header.Get("If-None-Match") != "" }
		rule.Status, rule.Header = http.StatusNotImplemented, http.Header{"Content-Type": {"application/xml"}}
		rule.Body = `<Error><Code>NotImplemented</Code><Message>A header you provided implies functionality that is not implemented</Message></Error>`
		return rule
	}
	for name, size := range sizes {
		t.Run(name, func(t *testing.T) {
			p := emulator.StartFaultProxy(t, srv.Endpoint, emulator.ProxyConfig{})
			spec := newSpec(t, srv, p.URL, emulator.S3BucketOptions{})
			var log buffer
			b := open(t, spec, s3.Options{Logger: logTo(&log)})
			p.Add(refusal(commitOf(name)))
			first, second := storetest.Blob(1, size), storetest.Blob(2, size)
			require.NoError(t, b.Put(t.Context(), "key", first))
			require.NoError(t, b.Check(t.Context(), "key", first))
			require.Contains(t, log.String(), "the service refuses If-None-Match")
			require.ErrorIs(t, b.Put(t.Context(), "key", second), store.ErrExists)
			require.NoError(t, b.Check(t.Context(), "key", first))

			// It is not asked again.
			refused := p.Count(refusal(commitOf(name)))
			require.Equal(t, 1, refused)
			require.NoError(t, b.Put(t.Context(), "key2", second))
			require.Equal(t, refused, p.Count(refusal(commitOf(name))))
		})
	}
}

// TestLostAnswer: the server has stored the object and its answer does not arrive.
func TestLostAnswer(t *testing.T) {
	srv := emulator.StartS3(t)
	for name, size := range sizes {
		t.Run(name+", then found stored", func(t *testing.T) {
			p := emulator.StartFaultProxy(t, srv.Endpoint, emulator.ProxyConfig{})
			b := open(t, newSpec(t, srv, p.URL, emulator.S3BucketOptions{}), s3.Options{})
			rule := commitOf(name)
			rule.Times, rule.Response = 1, emulator.Fault{Reset: true}
			p.Add(rule)
			blob := storetest.Blob(1, size)
			require.NoError(t, b.Put(t.Context(), "key", blob), "our own object is no other writer's")
			require.NoError(t, b.Check(t.Context(), "key", blob))
			require.Equal(t, []string{"key"}, keys(t, b))
		})
		t.Run(name+", every time", func(t *testing.T) {
			p := emulator.StartFaultProxy(t, srv.Endpoint, emulator.ProxyConfig{})
			spec := newSpec(t, srv, p.URL, emulator.S3BucketOptions{})
			b := open(t, spec, s3.Options{Retry: store.RetryPolicy{GiveUp: 1, MinTries: 1}})
			rule := commitOf(name)
			rule.Response = emulator.Fault{Reset: true}
			p.Add(rule)
			require.Error(t, b.Put(t.Context(), "key", storetest.Blob(1, size)))
			noLeftovers(t, srv, spec.Bucket)
		})
		t.Run(name+", and the object is another writer's", func(t *testing.T) {
			p := emulator.StartFaultProxy(t, srv.Endpoint, emulator.ProxyConfig{})
			spec := newSpec(t, srv, p.URL, emulator.S3BucketOptions{})
			b, other := open(t, spec, s3.Options{}), open(t, spec, s3.Options{})
			first := storetest.Blob(1, size)
			rule := commitOf(name)
			rule.Times, rule.Response = 1, emulator.Fault{Reset: true}
			rule.Forward = func(*http.Request) { require.NoError(t, other.Put(context.Background(), "key", first)) }
			p.Add(rule)
			require.ErrorIs(t, b.Put(t.Context(), "key", storetest.Blob(2, size)), store.ErrExists)
			require.NoError(t, b.Check(t.Context(), "key", first))
		})
	}
}

// TestLostAnswerLookingDenied: it cannot be told whose the object is, and then it is not ours.
func TestLostAnswerLookingDenied(t *testing.T) {
	srv := emulator.StartS3(t)
	p := emulator.StartFaultProxy(t, srv.Endpoint, emulator.ProxyConfig{})
	b := open(t, newSpec(t, srv, p.URL, emulator.S3BucketOptions{}), s3.Options{})
	lost, denied := putWhole, headKey
	lost.Times, lost.Response = 1, emulator.Fault{Reset: true}
	denied.Skip, denied.Status = 1, http.StatusForbidden
	p.Add(lost, denied)
	blob := storetest.Text("content")
	require.ErrorIs(t, b.Put(t.Context(), "key", blob), store.ErrExists)
	p.Clear()
	require.NoError(t, b.Check(t.Context(), "key", blob))
}

// TestConflict: AWS could not tell which of two conditional writes came first.
func TestConflict(t *testing.T) {
	srv := emulator.StartS3(t)
	for name, size := range sizes {
		t.Run(name, func(t *testing.T) {
			p := emulator.StartFaultProxy(t, srv.Endpoint, emulator.ProxyConfig{})
			spec := newSpec(t, srv, p.URL, emulator.S3BucketOptions{})
			b := open(t, spec, s3.Options{})
			rule := commitOf(name)
			rule.Times, rule.Status, rule.Header = 1, http.StatusConflict, http.Header{"Content-Type": {"application/xml"}}
			rule.Body = `<Error><Code>ConditionalRequestConflict</Code><Message>The conditional request cannot succeed due to a conflicting operation against this resource.</Message></Error>`
			p.Add(rule)
			blob := storetest.Blob(1, size)
			require.NoError(t, b.Put(t.Context(), "key", blob))
			require.NoError(t, b.Check(t.Context(), "key", blob))
			for u := range admin(t, srv).ListIncompleteUploads(t.Context(), spec.Bucket, "", true) {
				t.Errorf("unfinished upload left behind: %s", u.Key)
			}
		})
	}
}
