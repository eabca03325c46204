package s3_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/s3"
	"etcdsnapshot.dev/agent/store/storetest"
	"etcdsnapshot.dev/ci/emulator"
)

// every is each method of a store once, on the object "key" with the content "content".
var every = map[string]func(ctx context.Context, s store.Store) error{
	"put": func(ctx context.Context, s store.Store) error { return s.Put(ctx, "new", storetest.Text("content")) },
	"put in parts": func(ctx context.Context, s store.Store) error {
		return s.Put(ctx, "new", storetest.Blob(1, sizes["parts"]))
	},
	"get": func(ctx context.Context, s store.Store) error {
		rc, err := s.Get(ctx, "key", 0)
		if err != nil {
			return err
		}
		defer rc.Close()
		_, err = io.Copy(io.Discard, rc)
		return err
	},
	"list": func(ctx context.Context, s store.Store) error {
		for _, err := range s.List(ctx, "") {
			if err != nil {
				return err
			}
		}
		return nil
	},
	"delete": func(ctx context.Context, s store.Store) error { return s.Delete(ctx, "key") },
	"check":  func(ctx context.Context, s store.Store) error { return s.Check(ctx, "key", storetest.Text("content")) },
}

// fixture is a bucket behind a proxy, with "key" in it.
func fixture(t *testing.T, srv *emulator.S3, config emulator.ProxyConfig) (*emulator.FaultProxy, *v1.S3Destination) {
	t.Helper()
	p := emulator.StartFaultProxy(t, srv.Endpoint, config)
	spec := newSpec(t, srv, srv.Endpoint, emulator.S3BucketOptions{})
	require.NoError(t, open(t, spec, s3.Options{}).Put(t.Context(), "key", storetest.Text("content")))
	spec.Endpoint = p.URL
	return p, spec
}

func TestBucketMissing(t *testing.T) {
	srv := emulator.StartS3(t)
	_, spec := fixture(t, srv, emulator.ProxyConfig{})
	spec.Bucket = "not-there"
	b := open(t, spec, s3.Options{})
	for name, call := range every {
		t.Run(name, func(t *testing.T) {
			err := call(t.Context(), b)
			if name == "delete" {
				require.NoError(t, err, "deleting what is not there is no error")
				return
			}
			require.ErrorIs(t, err, store.ErrNotExist)
			require.ErrorContains(t, err, "s3://not-there")
			if name != "check" { // HEAD has no body that would say so
				require.ErrorContains(t, err, "404 NoSuchBucket")
				require.ErrorContains(t, err, "check bucket, endpoint and region")
			}
		})
	}
	require.ErrorIs(t, storetest.CheckList(t.Context(), b, ""), store.ErrNotExist)
}

func TestCredentialsRefused(t *testing.T) {
	srv := emulator.StartS3(t)
	_, spec := fixture(t, srv, emulator.ProxyConfig{})
	for what, auth := range map[string]v1.S3Auth{
		"wrong secret": staticAuth(t, srv.AccessKey, "wrong-secret-key"),
		"unknown key":  staticAuth(t, "somebody-else", srv.SecretKey),
	} {
		spec.Auth = auth
		b := open(t, spec, s3.Options{})
		for name, call := range every {
			t.Run(what+", "+name, func(t *testing.T) {
				err := call(t.Context(), b)
				require.ErrorIs(t, err, store.ErrAccessDenied)
				require.ErrorContains(t, err, "403")
				require.NotContains(t, err.Error(), "secret-key")
			})
		}
		err := storetest.CheckList(t.Context(), b, "")
		require.ErrorIs(t, err, store.ErrAccessDenied)
		require.ErrorContains(t, err, map[string]string{"wrong secret": "SignatureDoesNotMatch", "unknown key": "InvalidAccessKeyId"}[what])
	}
}

// TestForbidden: 401 and 403 on each method, also after some parts; nothing is tried again and nothing left behind.
func TestForbidden(t *testing.T) {
	srv := emulator.StartS3(t)
	for name, tt := range map[string]struct {
		rule       emulator.Rule
		permission string
	}{
		"put":          {emulator.Rule{Method: http.MethodPut, Path: "/new"}, "s3:PutObject"},
		"put in parts": {emulator.Rule{Method: http.MethodPut, Path: "/new", Query: "partNumber=3"}, "s3:PutObject"},
		"get":          {emulator.Rule{Method: http.MethodGet, Path: "/key"}, "s3:GetObject"},
		"list":         {emulator.Rule{Method: http.MethodGet, Query: "list-type=2"}, "s3:ListBucket"},
		"delete":       {emulator.Rule{Method: http.MethodDelete, Path: "/key"}, "s3:DeleteObject"},
		"check":        {emulator.Rule{Method: http.MethodHead, Path: "/key"}, "s3:GetObject"},
	} {
		for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden} {
			t.Run(fmt.Sprint(name, " ", status), func(t *testing.T) {
				p, spec := fixture(t, srv, emulator.ProxyConfig{})
				b := open(t, spec, s3.Options{})
				rule := tt.rule
				rule.Status = status
				p.Add(rule)
				err := every[name](t.Context(), b)
				require.ErrorIs(t, err, store.ErrAccessDenied)
				require.ErrorContains(t, err, fmt.Sprint(status))
				if status == http.StatusForbidden {
					require.ErrorContains(t, err, tt.permission)
				}
				require.Equal(t, 1, p.Count(tt.rule), "not tried again")
				p.Clear()
				require.Equal(t, []string{"key"}, keys(t, b))
				require.NoError(t, b.Delete(t.Context(), "key"))
				noLeftovers(t, srv, spec.Bucket)
			})
		}
	}
}

func TestWrongEndpoint(t *testing.T) {
	srv := emulator.StartS3(t)
	p, spec := fixture(t, srv, emulator.ProxyConfig{})
	p.Add(emulator.Rule{Status: http.StatusNotFound, Header: http.Header{"Content-Type": {"text/html; charset=utf-8"}}, Body: "<html>nginx</html>"})
	b := open(t, spec, s3.Options{})
	for _, name := range []string{"put", "put in parts", "get", "list"} {
		err := every[name](t.Context(), b)
		require.ErrorIs(t, err, store.ErrConfig, name)
		require.ErrorContains(t, err, p.URL+" is no S3 service: check endpoint", name)
	}
}

// TestBusy: 429 and 503, with and without Retry-After, pass; and when they do not, the error says so.
func TestBusy(t *testing.T) {
	srv := emulator.StartS3(t)
	busy := func(status int, header http.Header) emulator.Rule {
		return emulator.Rule{Status: status, Header: header, Body: `<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>`}
	}
	for name, call := range every {
		for _, status := range []int{429, 500, 502, 503, 504} {
			t.Run(fmt.Sprint(name, " ", status), func(t *testing.T) {
				p, spec := fixture(t, srv, emulator.ProxyConfig{})
				rule := busy(status, nil)
				rule.Times = 2
				p.Add(rule)
				require.NoError(t, call(t.Context(), open(t, spec, s3.Options{})))
			})
		}
		t.Run(name+" Retry-After", func(t *testing.T) {
			p, spec := fixture(t, srv, emulator.ProxyConfig{})
			rule := busy(503, http.Header{"Retry-After": {"1"}})
			rule.Times = 1
			p.Add(rule)
			start := time.Now()
			require.NoError(t, call(t.Context(), open(t, spec, s3.Options{})))
			require.GreaterOrEqual(t, time.Since(start), time.Second)
		})
		t.Run(name+" for ever", func(t *testing.T) {
			p, spec := fixture(t, srv, emulator.ProxyConfig{})
			p.Add(busy(503, nil))
			policy := quick
			policy.GiveUp = 100 * time.Millisecond
			err := call(t.Context(), open(t, spec, s3.Options{Retry: policy}))
			require.ErrorContains(t, err, "503")
			require.ErrorContains(t, err, "gave up after")
			require.NotErrorIs(t, err, store.ErrAccessDenied)
		})
	}
}

// TestReset: the connection is cut in the middle of a body, once.
func TestReset(t *testing.T) {
	srv := emulator.StartS3(t)
	cut := emulator.Fault{Reset: true, After: 100_000}
	large := storetest.Blob(1, sizes["parts"])
	t.Run("part", func(t *testing.T) {
		p, spec := fixture(t, srv, emulator.ProxyConfig{})
		b := open(t, spec, s3.Options{})
		p.Add(emulator.Rule{Query: "partNumber=2", Times: 1, Request: cut})
		require.NoError(t, b.Put(t.Context(), "new", large))
		require.NoError(t, b.Check(t.Context(), "new", large))
		require.Equal(t, 4, p.Count(emulator.Rule{Query: "partNumber="}), "only the broken part was sent again")
		require.Equal(t, 1, p.Count(emulator.Rule{Method: http.MethodPost, Query: "uploads="}), "one upload")
	})
	t.Run("part, every time", func(t *testing.T) {
		p, spec := fixture(t, srv, emulator.ProxyConfig{})
		b := open(t, spec, s3.Options{})
		p.Add(emulator.Rule{Query: "partNumber=2", Request: cut})
		err := b.Put(t.Context(), "new", large)
		require.ErrorContains(t, err, "part 2 of 3")
		require.ErrorContains(t, err, "gave up after")
		p.Clear()
		require.NoError(t, b.Delete(t.Context(), "key"))
		noLeftovers(t, srv, spec.Bucket)
		require.NoError(t, b.Put(t.Context(), "new", large), "the next run is free to store it")
	})
	t.Run("whole", func(t *testing.T) {
		p, spec := fixture(t, srv, emulator.ProxyConfig{})
		b := open(t, spec, s3.Options{})
		p.Add(emulator.Rule{Method: http.MethodPut, Times: 1, Request: cut})
		blob := storetest.Blob(1, 1<<20)
		require.NoError(t, b.Put(t.Context(), "new", blob))
		require.NoError(t, b.Check(t.Context(), "new", blob))
	})
	t.Run("get", func(t *testing.T) {
		p, spec := fixture(t, srv, emulator.ProxyConfig{})
		b := open(t, spec, s3.Options{})
		require.NoError(t, b.Put(t.Context(), "new", large))
		p.Add(emulator.Rule{Method: http.MethodGet, Path: "/new", Times: 1, Response: cut})
		rc, err := b.Get(t.Context(), "new", 0)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, rc)
		require.ErrorContains(t, err, "get s3://"+spec.Bucket+"/new: ", "a short object is no object")
		require.NoError(t, rc.Close())
		p.Add(emulator.Rule{Method: http.MethodGet, Path: "/new", Times: 3, Response: cut})
		require.NoError(t, store.VerifyFull(t.Context(), b, "new", large, nil), "goes on where it was cut")
	})
}

// TestDamaged: what is changed on its way is found by the server, and sent again.
func TestDamaged(t *testing.T) {
	srv := emulator.StartS3(t)
	p, spec := fixture(t, srv, emulator.ProxyConfig{})
	b := open(t, spec, s3.Options{})
	damage := func(r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		data[len(data)/2] ^= 1
		r.Body = io.NopCloser(bytes.NewReader(data))
	}
	blob := storetest.Blob(1, sizes["parts"])
	p.Add(emulator.Rule{Query: "partNumber=1", Times: 1, Forward: damage})
	require.NoError(t, b.Put(t.Context(), "new", blob))
	require.NoError(t, store.VerifyFull(t.Context(), b, "new", blob, nil))
	require.Equal(t, 2, p.Count(emulator.Rule{Query: "partNumber=1"}))
}

// TestSlow: an upload that takes several times the stall time goes on as long as bytes leave this machine. 8 KiB/s
// and 4 s are to the kernel's buffers what 1 KiB/s and half a minute are.
func TestSlow(t *testing.T) {
	srv := emulator.StartS3(t)
	p, spec := fixture(t, srv, emulator.ProxyConfig{ReadBuffer: 2048})
	const stall, rate, size = 4 * time.Second, 8 << 10, 100 << 10
	b := open(t, spec, s3.Options{StallTimeout: stall})
	p.Add(emulator.Rule{Method: http.MethodPut, Request: emulator.Fault{Rate: rate}})
	start := time.Now()
	blob := storetest.Blob(1, size)
	require.NoError(t, b.Put(t.Context(), "new", blob))
	require.Greater(t, time.Since(start), 2*stall)
	require.Equal(t, 1, p.Count(emulator.Rule{Method: http.MethodPut}), "in one try")
	require.NoError(t, b.Check(t.Context(), "new", blob))
}

func TestStalled(t *testing.T) {
	srv := emulator.StartS3(t)
	stall := 300 * time.Millisecond
	for name, rule := range map[string]emulator.Rule{
		"put":          {Method: http.MethodPut, Request: emulator.Fault{Stall: true}},
		"put in parts": {Method: http.MethodPut, Query: "partNumber=2", Request: emulator.Fault{Stall: true, After: 50_000}},
		"get":          {Method: http.MethodGet, Path: "/key", Response: emulator.Fault{Stall: true, After: 3}},
		"list":         {Method: http.MethodGet, Query: "list-type=2", Response: emulator.Fault{Stall: true}},
		"delete":       {Method: http.MethodDelete, Response: emulator.Fault{Stall: true}},
		"check":        {Method: http.MethodHead, Response: emulator.Fault{Stall: true}},
	} {
		t.Run(name, func(t *testing.T) {
			p, spec := fixture(t, srv, emulator.ProxyConfig{})
			b := open(t, spec, s3.Options{StallTimeout: stall})
			p.Add(rule)
			start := time.Now()
			err := every[name](t.Context(), b)
			require.ErrorIs(t, err, store.ErrStalled)
			require.ErrorContains(t, err, "no progress for 300ms")
			require.ErrorContains(t, err, "s3://"+spec.Bucket, "says which")
			require.Less(t, time.Since(start), 20*time.Second)
			p.Clear()
			if name == "put in parts" {
				require.NoError(t, b.Delete(t.Context(), "key"))
				noLeftovers(t, srv, spec.Bucket)
			}
		})
	}
	t.Run("once", func(t *testing.T) {
		p, spec := fixture(t, srv, emulator.ProxyConfig{})
		b := open(t, spec, s3.Options{StallTimeout: stall})
		p.Add(emulator.Rule{Method: http.MethodPut, Query: "partNumber=2", Times: 1, Request: emulator.Fault{Stall: true}})
		require.NoError(t, b.Put(t.Context(), "new", storetest.Blob(1, sizes["parts"])), "a dead connection has a second chance")
	})
}

func TestSlowConsumerIsNoStall(t *testing.T) {
	srv := emulator.StartS3(t)
	_, spec := fixture(t, srv, emulator.ProxyConfig{})
	b := open(t, spec, s3.Options{StallTimeout: 200 * time.Millisecond})
	rc, err := b.Get(t.Context(), "key", 0)
	require.NoError(t, err)
	defer rc.Close()
	pause := time.NewTimer(500 * time.Millisecond)
	<-pause.C
	data, err := io.ReadAll(rc)
	require.NoError(t, err)
	require.Equal(t, "content", string(data))
}

func TestUnreachable(t *testing.T) {
	spec := &v1.S3Destination{Bucket: "backups", Endpoint: "https://nope.invalid", Auth: staticAuth(t, "a", "b")}
	b := open(t, spec, s3.Options{})
	var dns *net.DNSError
	for name, call := range every {
		err := call(t.Context(), b)
		require.ErrorAs(t, err, &dns, name)
		require.ErrorContains(t, err, "nope.invalid", name)
		require.ErrorContains(t, err, "DNS of this node", name)
	}

	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	spec.Endpoint = "http://" + l.Addr().String()
	require.NoError(t, l.Close())
	err = storetest.CheckList(t.Context(), open(t, spec, s3.Options{}), "")
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.ErrorContains(t, err, "nothing listens at "+spec.Endpoint)
}

func TestTLS(t *testing.T) {
	srv := emulator.StartS3(t)
	p, spec := fixture(t, srv, emulator.ProxyConfig{TLS: true})
	t.Run("unknown certificate", func(t *testing.T) {
		b := open(t, spec, s3.Options{})
		for name, call := range every {
			err := call(t.Context(), b)
			var cert *tls.CertificateVerificationError
			require.ErrorAs(t, err, &cert, name)
			require.ErrorContains(t, err, "x509: ", name)
			require.ErrorContains(t, err, "caBundleFile", name)
			require.NotErrorIs(t, err, context.DeadlineExceeded, name)
		}
		require.Zero(t, p.Count(emulator.Rule{}))
	})
	t.Run("caBundleFile", func(t *testing.T) {
		spec := *spec
		spec.CABundleFile = writeFile(t, string(p.CA))
		b := open(t, &spec, s3.Options{})
		large := storetest.Blob(1, sizes["parts"])
		require.NoError(t, b.Put(t.Context(), "large", large))
		require.NoError(t, b.Check(t.Context(), "large", large))
	})
	t.Run("insecureSkipTLSVerify", func(t *testing.T) {
		spec := *spec
		spec.InsecureSkipTLSVerify = true
		require.Equal(t, "content", content(t, open(t, &spec, s3.Options{}), "key"))
	})
	t.Run("https where there is none", func(t *testing.T) {
		spec := *spec
		spec.Endpoint = "https" + srv.Endpoint[len("http"):]
		err := storetest.CheckList(t.Context(), open(t, &spec, s3.Options{}), "")
		require.ErrorContains(t, err, "does not speak TLS")
	})
}

// TestCancel: at each moment of an upload.
func TestCancel(t *testing.T) {
	srv := emulator.StartS3(t)
	for name, rule := range map[string]emulator.Rule{
		"looking first":     {Method: http.MethodHead, Path: "/new"},
		"beginning":         {Method: http.MethodPost, Path: "/new", Query: "uploads="},
		"sending a part":    {Method: http.MethodPut, Query: "partNumber=2"},
		"looking once more": {Method: http.MethodHead, Path: "/new", Skip: 1},
		"sending in one":    {Method: http.MethodPut, Path: "/small"},
	} {
		t.Run(name, func(t *testing.T) {
			p, spec := fixture(t, srv, emulator.ProxyConfig{})
			b := open(t, spec, s3.Options{})
			ctx, cancel := context.WithCancelCause(t.Context())
			why := errors.New("SIGTERM")
			rule.Match = func(*http.Request) bool { cancel(why); return true }
			rule.Request, rule.Response = emulator.Fault{}, emulator.Fault{Stall: true}
			if name == "beginning" {
				rule.Response = emulator.Fault{}
			}
			if rule.Path == "/small" {
				// It was sent whole: its fate is awaited for a moment, and here the server forgets to store it.
				rule.Response, rule.Status = emulator.Fault{}, http.StatusServiceUnavailable
			}
			p.Add(rule)
			key, blob := "new", storetest.Blob(1, sizes["parts"])
			if rule.Path == "/small" {
				key, blob = "small", storetest.Text("small")
			}
			start := time.Now()
			err := b.Put(ctx, key, blob)
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorContains(t, err, "SIGTERM")
			require.Less(t, time.Since(start), 15*time.Second)
			p.Clear()
			require.NoError(t, b.Delete(t.Context(), "key"))
			noLeftovers(t, srv, spec.Bucket)
		})
	}
	// Whoever is told of success has an object, also when ctx ended a moment before.
	for name, size := range sizes {
		t.Run("too late, "+name, func(t *testing.T) {
			p, spec := fixture(t, srv, emulator.ProxyConfig{})
			b := open(t, spec, s3.Options{})
			ctx, cancel := context.WithCancel(t.Context())
			rule := emulator.Rule{Method: http.MethodPut, Path: "/new"}
			if name == "parts" {
				rule = emulator.Rule{Method: http.MethodPost, Path: "/new", Query: "uploadId="}
			}
			rule.Response.Rewrite = func(http.Header) { cancel() }
			p.Add(rule)
			blob := storetest.Blob(1, size)
			require.NoError(t, b.Put(ctx, "new", blob))
			require.NoError(t, b.Check(t.Context(), "new", blob))
		})
	}
}

func TestClockSkew(t *testing.T) {
	srv := emulator.StartS3(t)
	p, spec := fixture(t, srv, emulator.ProxyConfig{})
	p.Add(emulator.Rule{
		Status: http.StatusForbidden,
		Header: http.Header{"Content-Type": {"application/xml"}, "Date": {time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat)}},
		Body:   `<Error><Code>RequestTimeTooSkewed</Code><Message>The difference between the request time and the server's time is too large.</Message></Error>`,
	})
	err := storetest.CheckList(t.Context(), open(t, spec, s3.Options{}), "")
	require.ErrorIs(t, err, store.ErrAccessDenied)
	require.ErrorContains(t, err, "RequestTimeTooSkewed")
	require.Regexp(t, `the clock here is (1h0m\d+s|59m\d+s) ahead of the server's; set the clock of this node right`, err.Error())
}
