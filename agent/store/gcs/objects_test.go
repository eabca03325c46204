package gcs

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/storetest"
	"etcdsnapshot.dev/ci/emulator"
)

// TestVersioned: what was deleted in a versioned bucket is not listed, and its key is free.
func TestVersioned(t *testing.T) {
	srv := emulator.StartGCS(t)
	b := open(t, newSpec(t, srv, srv.Endpoint, emulator.GCSBucketOptions{Versioned: true}), quick())
	require.NoError(t, b.Put(t.Context(), "a/b", storetest.Text("first")))
	require.NoError(t, b.Put(t.Context(), "a/c", storetest.Text("other")))
	require.NoError(t, b.Delete(t.Context(), "a/b"))
	require.Equal(t, []string{"a/c"}, keys(t, b))
	require.NoError(t, b.Put(t.Context(), "a/b", storetest.Text("second")))
	require.Equal(t, []string{"a/b", "a/c"}, keys(t, b))
	require.Equal(t, "second", content(t, b, "a/b"))
	objects, err := srv.Objects(t.Context(), b.name, "versions=true")
	require.NoError(t, err)
	require.Len(t, objects, 3, "the bucket keeps the first")
}

func TestPages(t *testing.T) {
	srv := emulator.StartGCS(t)
	proxy := emulator.StartFaultProxy(t, srv.Endpoint, emulator.ProxyConfig{})
	b := open(t, newSpec(t, srv, proxy.URL, emulator.GCSBucketOptions{}), quick())
	b.pageSize = 2
	for _, key := range []string{"a", "b", "c", "d", "e"} {
		require.NoError(t, b.Put(t.Context(), key, storetest.Text(key)))
	}
	proxy.Clear()
	proxy.Add(emulator.Rule{Method: "GET", Query: "pageToken", Times: 1, Status: 503})
	require.Equal(t, []string{"a", "b", "c", "d", "e"}, keys(t, b), "a page that fails is asked for again")
	require.Equal(t, 4, proxy.Count(emulator.Rule{Method: "GET"}))
}

// TestAttributes: what a policy asks for is sent, and what it does not is not.
func TestAttributes(t *testing.T) {
	srv := emulator.StartGCS(t)
	proxy := emulator.StartFaultProxy(t, srv.Endpoint, emulator.ProxyConfig{})
	var sent map[string]any
	proxy.Add(emulator.Rule{Method: "POST", Forward: func(r *http.Request) {
		data, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.Unmarshal(data, &sent)
		}
		r.Body = io.NopCloser(strings.NewReader(string(data)))
		if err != nil {
			t.Error(err)
		}
	}})
	spec := newSpec(t, srv, proxy.URL, emulator.GCSBucketOptions{})
	require.NoError(t, open(t, spec, quick()).Put(t.Context(), "a/plain", storetest.Text("123456789")))
	// The check value of RFC 3720, appendix B.4, and of every catalogue of CRCs: 0xe3069283.
	require.Equal(t, map[string]any{"name": "a/plain", "contentType": "application/octet-stream", "crc32c": "4waSgw=="}, sent)

	spec.KMSKeyName = "projects/p/locations/eu/keyRings/r/cryptoKeys/k"
	spec.StorageClass = "NEARLINE"
	spec.Metadata = map[string]string{"Team": "storage & säfes"}
	content := storetest.Text("x")
	content.ContentType = "application/json"
	require.NoError(t, open(t, spec, quick()).Put(t.Context(), "b/full", content))
	objects, err := srv.Objects(t.Context(), spec.Bucket, "prefix=b/")
	require.NoError(t, err)
	require.Len(t, objects, 1)
	require.Equal(t, "application/json", objects[0].ContentType)
	require.Equal(t, "NEARLINE", objects[0].StorageClass)
	require.Equal(t, spec.Metadata, objects[0].Metadata)
	requests := proxy.Requests(emulator.Rule{Method: "POST", Query: "kmsKeyName"})
	require.Len(t, requests, 1)
	require.Equal(t, spec.KMSKeyName, requests[0].URL.Query().Get("kmsKeyName"))

	spec.Metadata = map[string]string{"big": strings.Repeat("x", 8<<10)}
	_, err = New(t.Context(), spec, quick())
	require.ErrorIs(t, err, store.ErrConfig)
	require.ErrorContains(t, err, "metadata")
}

func TestKeys(t *testing.T) {
	for key, why := range map[string]string{
		strings.Repeat("k", 1025): "1,024", "a\nb": "line break", "a\rb": "line break", "a\xffb": "UTF-8", ".well-known/acme-challenge/x": "acme", "a//b": "",
	} {
		err := checkKey(key)
		require.ErrorIs(t, err, store.ErrConfig)
		require.ErrorContains(t, err, why)
	}
	require.NoError(t, checkKey(strings.Repeat("k", 1024)))
}

func TestEndpoint(t *testing.T) {
	for in, want := range map[string]string{
		"https://storage.googleapis.com": "https://storage.googleapis.com", "http://127.0.0.1:4443/": "http://127.0.0.1:4443",
		"https://gw.example.com/gcs/": "https://gw.example.com/gcs", "https://storage.googleapis.com/storage/v1/": "https://storage.googleapis.com",
	} {
		u, err := parseEndpoint(in)
		require.NoError(t, err)
		require.Equal(t, want, u.String())
	}
	for _, in := range []string{"storage.googleapis.com", "ftp://x", "https://user:secret@x", "https://x/?key=secret", "https://", "https://x/%zz-secret"} {
		_, err := parseEndpoint(in)
		require.ErrorIs(t, err, store.ErrConfig)
		require.NotContains(t, err.Error(), "secret")
	}
	// A path of the endpoint is kept, in the session too.
	srv := emulator.StartGCS(t)
	proxy := emulator.StartFaultProxy(t, srv.Endpoint, emulator.ProxyConfig{})
	proxy.Add(emulator.Rule{Path: "/gw/", Forward: func(r *http.Request) {
		r.URL.Path, r.URL.RawPath = strings.TrimPrefix(r.URL.Path, "/gw"), strings.TrimPrefix(r.URL.RawPath, "/gw")
	}})
	b := open(t, newSpec(t, srv, proxy.URL+"/gw", emulator.GCSBucketOptions{}), quick())
	require.NoError(t, b.Put(t.Context(), "a/b", storetest.Text("content")))
	require.Equal(t, "content", content(t, b, "a/b"))
	require.Equal(t, []string{"a/b"}, keys(t, b))
	require.Equal(t, proxy.Count(emulator.Rule{}), proxy.Count(emulator.Rule{Path: "/gw/"}))
	// Only what the policy says counts.
	t.Setenv("STORAGE_EMULATOR_HOST", "nope.invalid")
	require.NoError(t, storetest.CheckList(t.Context(), open(t, newSpec(t, srv, srv.Endpoint, emulator.GCSBucketOptions{}), quick()), ""))
}
