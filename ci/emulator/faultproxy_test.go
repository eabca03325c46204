package emulator_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"etcdsnapshot.dev/ci/emulator"
)

// echo answers with the request's body and headers, and counts.
func echo(t *testing.T) (url string, served func() int) {
	n := make(chan struct{}, 1000)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		n <- struct{}{}
		w.Header().Set("X-Echo", r.Header.Get("X-Test"))
		w.Header().Set("X-Host", r.Host)
		_, _ = w.Write(body)
	}))
	t.Cleanup(srv.Close)
	return srv.URL, func() int { return len(n) }
}

func send(client *http.Client, url, body string) (status int, header http.Header, answer string, err error) {
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return 0, nil, "", err
	}
	req.Header.Set("X-Test", "as sent")
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, "", err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header, string(data), err
}

func TestFaultProxy(t *testing.T) {
	target, served := echo(t)
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	p, err := emulator.RunFaultProxy(target, emulator.ProxyConfig{})
	require.NoError(t, err)
	defer p.Close()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	url := p.URL + "/some/path?a=b"

	t.Run("passes what no rule matches", func(t *testing.T) {
		p.Clear()
		p.Add(emulator.Rule{Method: http.MethodGet, Status: 500}, emulator.Rule{Path: "other", Status: 500}, emulator.Rule{Query: "x=", Status: 500})
		status, header, answer, err := send(client, url, "hello")
		require.NoError(t, err)
		require.Equal(t, 200, status)
		require.Equal(t, "hello", answer)
		require.Equal(t, "as sent", header.Get("X-Echo"))
		require.Equal(t, strings.TrimPrefix(p.URL, "http://"), header.Get("X-Host"))
		require.Equal(t, 1, p.Count(emulator.Rule{Method: http.MethodPost, Path: "/some/path", Query: "a=b"}))
		require.Zero(t, p.Count(emulator.Rule{Method: http.MethodGet}))
	})
	t.Run("answers itself, the second and third time", func(t *testing.T) {
		p.Clear()
		p.Add(emulator.Rule{Skip: 1, Times: 2, Status: 503, Header: http.Header{"Retry-After": {"7"}}, Body: "busy"})
		before := served()
		var got []int
		for range 4 {
			status, header, answer, err := send(client, url, "hello")
			require.NoError(t, err)
			got = append(got, status)
			if status == 503 {
				require.Equal(t, "busy", answer)
				require.Equal(t, "7", header.Get("Retry-After"))
			}
		}
		require.Equal(t, []int{200, 503, 503, 200}, got)
		require.Equal(t, 2, served()-before)
	})
	t.Run("resets in the middle of a request", func(t *testing.T) {
		p.Clear()
		p.Add(emulator.Rule{Request: emulator.Fault{Reset: true, After: 1000}})
		before := served()
		_, _, _, err := send(client, url, strings.Repeat("x", 10<<20))
		require.Error(t, err)
		require.Equal(t, before, served())
	})
	t.Run("loses the answer", func(t *testing.T) {
		p.Clear()
		p.Add(emulator.Rule{Response: emulator.Fault{Reset: true}})
		before := served()
		_, _, _, err := send(client, url, "hello")
		require.Error(t, err)
		require.Equal(t, 1, served()-before)
	})
	t.Run("cuts the answer", func(t *testing.T) {
		p.Clear()
		p.Add(emulator.Rule{Response: emulator.Fault{Reset: true, After: 3}})
		_, _, answer, err := send(client, url, "hello")
		require.Error(t, err)
		require.Equal(t, "hel", answer)
	})
	t.Run("stalls until the client gives up", func(t *testing.T) {
		p.Clear()
		p.Add(emulator.Rule{Request: emulator.Fault{Stall: true, After: 2}})
		impatient := &http.Client{Transport: client.Transport, Timeout: 200 * time.Millisecond}
		_, _, _, err := send(impatient, url, "hello")
		require.ErrorContains(t, err, "Timeout")
	})
	t.Run("slows down", func(t *testing.T) {
		p.Clear()
		p.Add(emulator.Rule{Request: emulator.Fault{Rate: 1000}})
		start := time.Now()
		_, _, answer, err := send(client, url, strings.Repeat("x", 500))
		require.NoError(t, err)
		require.Len(t, answer, 500)
		require.GreaterOrEqual(t, time.Since(start), 450*time.Millisecond)
	})
	t.Run("rewrites", func(t *testing.T) {
		p.Clear()
		p.Add(emulator.Rule{
			Request:  emulator.Fault{Rewrite: func(h http.Header) { h.Set("X-Test", "rewritten") }},
			Response: emulator.Fault{Rewrite: func(h http.Header) { h.Set("X-More", "more") }},
			Forward:  func(r *http.Request) { r.Host = "elsewhere" },
		})
		_, header, _, err := send(client, url, "hello")
		require.NoError(t, err)
		require.Equal(t, "rewritten", header.Get("X-Echo"))
		require.Equal(t, "more", header.Get("X-More"))
		require.Equal(t, "elsewhere", header.Get("X-Host"))
		require.Equal(t, "as sent", p.Requests(emulator.Rule{})[0].Header.Get("X-Test"))
	})
}

func TestFaultProxyTLS(t *testing.T) {
	target, _ := echo(t)
	p := emulator.StartFaultProxy(t, target, emulator.ProxyConfig{TLS: true, ReadBuffer: 4096})
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: x509.NewCertPool()}, DisableKeepAlives: true}
	_, _, _, err := send(&http.Client{Transport: transport}, p.URL, "hello")
	var unknown x509.UnknownAuthorityError
	require.ErrorAs(t, err, &unknown)
	require.True(t, transport.TLSClientConfig.RootCAs.AppendCertsFromPEM(p.CA))
	_, _, answer, err := send(&http.Client{Transport: transport}, p.URL, strings.Repeat("hello", 10000))
	require.NoError(t, err)
	require.Len(t, answer, 50000)
	p.Add(emulator.Rule{Request: emulator.Fault{Reset: true, After: 1}})
	_, _, _, err = send(&http.Client{Transport: transport}, p.URL, "hello")
	require.Error(t, err)
}

func TestS3ServerOutlivesACrash(t *testing.T) {
	srv := emulator.StartS3(t)
	bucket, err := srv.NewBucket(t.Context(), emulator.S3BucketOptions{})
	require.NoError(t, err)
	require.NoError(t, srv.Kill())
	c, closeIdle, err := srv.Client()
	require.NoError(t, err)
	defer closeIdle()
	require.NoError(t, srv.Start(t.Context()))
	there, err := c.BucketExists(t.Context(), bucket)
	require.NoError(t, err)
	require.True(t, there)
}
