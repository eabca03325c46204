package azure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/lease"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/storetest"
	"etcdsnapshot.dev/ci/emulator"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Kinds of requests, as the proxy sees them.
var (
	stageBlock = emulator.Rule{Method: http.MethodPut, Match: func(r *http.Request) bool { return r.URL.Query().Get("comp") == "block" }}
	commitList = emulator.Rule{Method: http.MethodPut, Query: "comp=blocklist"}
	blockList  = emulator.Rule{Method: http.MethodGet, Query: "comp=blocklist"}
	listBlobs  = emulator.Rule{Method: http.MethodGet, Query: "comp=list"}
	head       = emulator.Rule{Method: http.MethodHead}
	remove     = emulator.Rule{Method: http.MethodDelete}
)

// with gives the rule for requests of a kind.
func with(kind emulator.Rule, change func(*emulator.Rule)) emulator.Rule {
	change(&kind)
	return kind
}

// refuse makes the proxy answer as the service does.
func refuse(r *emulator.Rule, status int, code, message string) {
	r.Status = status
	r.Header = http.Header{"X-Ms-Error-Code": {code}, "X-Ms-Request-Id": {"11111111-2222"}, "Content-Type": {"application/xml"}}
	r.Body = fmt.Sprintf("<?xml version=\"1.0\"?><Error><Code>%s</Code><Message>%s\nRequestId:1\nTime:2</Message></Error>", code, message)
}

// behind starts a proxy in front of az, and gives a store in a fresh container that goes through it.
func behind(t *testing.T, az *emulator.Azurite, config emulator.ProxyConfig, o Options) (*emulator.FaultProxy, *Bucket, *v1.AzureDestination) {
	t.Helper()
	proxy := emulator.StartFaultProxy(t, az.Endpoint, config)
	spec := newContainer(t, az)
	spec.ServiceURL = proxy.URL + "/" + az.Account
	return proxy, open(t, spec, o), spec
}

func keys(t *testing.T, s store.Store) []string {
	t.Helper()
	ks := []string{}
	for o, err := range s.List(t.Context(), "") {
		require.NoError(t, err)
		ks = append(ks, o.Key)
	}
	return ks
}

// requireWhole requires that b and nothing else is stored.
func requireWhole(t *testing.T, s store.Store, key string, b store.Blob) {
	t.Helper()
	require.Equal(t, []string{key}, keys(t, s))
	require.NoError(t, s.Check(t.Context(), key, b))
	require.NoError(t, store.VerifyFull(t.Context(), s, key, b, nil))
}

func TestFaults(t *testing.T) {
	az := emulator.StartAzurite(t, emulator.AzuriteConfig{})
	for _, c := range []struct {
		name string
		run  func(t *testing.T, az *emulator.Azurite)
	}{
		{"container missing", testContainerMissing},
		{"wrong key", testWrongKey},
		{"403 after some blocks", testForbiddenAfterBlocks},
		{"404 of the endpoint", testForeignEndpoint},
		{"busy with Retry-After", testRetryAfter},
		{"busy", testBusy},
		{"busy for good", testBusyForGood},
		{"reset in the middle of a block", testReset},
		{"block damaged on its way", testDamagedBlock},
		{"answer of the commit lost", testLostCommit},
		{"answer of an empty commit lost", testLostEmptyCommit},
		{"answer lost, and taken by another", testLostButTaken},
		{"answer lost, and may not look", testLostWriteOnly},
		{"cancelled at the commit", testCancelledCommit},
		{"cancelled while a block is sent", testCancelledBlock},
		{"blocks dropped by another writer", testBlocksDropped},
		{"slow line", testSlow},
		{"stalled upload", testStalledUpload},
		{"stalled once", testStalledOnce},
		{"stalled answers", testStalledAnswers},
		{"stalled download", testStalledDownload},
		{"download cut", testDownloadCut},
		{"server gone", testServerGone},
		{"name cannot be resolved", testDNS},
		{"protected", testProtected},
		{"foreign blob without MD5", testNoMD5},
		{"folders of a hierarchical namespace", testFolders},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, az) })
	}
}

func testContainerMissing(t *testing.T, az *emulator.Azurite) {
	spec := newContainer(t, az)
	spec.Container = "no-such-container"
	b := open(t, spec, quick())
	for what, err := range calls(t, b) {
		require.ErrorIs(t, err, store.ErrNotExist, what)
		require.ErrorContains(t, err, "ContainerNotFound", what)
		require.ErrorContains(t, err, az.ServiceURL+"/no-such-container", what)
		require.ErrorContains(t, err, "check account and container", what)
	}
}

// calls gives the error of each kind of call.
func calls(t *testing.T, b *Bucket) map[string]error {
	t.Helper()
	errs := map[string]error{
		"put":          b.Put(t.Context(), "a/b", storetest.Text("x")),
		"put in parts": b.Put(t.Context(), "a/c", storetest.Blob(1, 600<<10)),
		"delete":       b.Delete(t.Context(), "a/b"),
		"check":        b.Check(t.Context(), "a/b", storetest.Text("x")),
		"access":       storetest.CheckList(t.Context(), b, ""),
	}
	_, errs["get"] = b.Get(t.Context(), "a/b", 0)
	for _, err := range b.List(t.Context(), "") {
		errs["list"] = err
	}
	return errs
}

func testWrongKey(t *testing.T, az *emulator.Azurite) {
	spec := newContainer(t, az)
	spec.Auth.CredentialsDir = secrets(t, map[string]string{v1.AzureFileAccountKey: "d3Jvbmc="})
	for what, err := range calls(t, open(t, spec, quick())) {
		require.ErrorIs(t, err, store.ErrAccessDenied, what)
		require.ErrorContains(t, err, "403", what)
		require.ErrorContains(t, err, "check the key or SAS", what)
		require.NotContains(t, err.Error(), "d3Jvbmc", what)
	}
}

func testForbiddenAfterBlocks(t *testing.T, az *emulator.Azurite) {
	proxy, b, _ := behind(t, az, emulator.ProxyConfig{}, quick())
	proxy.Add(with(stageBlock, func(r *emulator.Rule) {
		r.Skip = 3
		refuse(r, http.StatusForbidden, "AuthorizationPermissionMismatch", "This request is not authorized to perform this operation using this permission.")
	}))
	err := b.Put(t.Context(), "a/b", storetest.Blob(1, 4<<20))
	require.ErrorIs(t, err, store.ErrAccessDenied)
	require.ErrorContains(t, err, "put "+b.String()+"/a/b: ")
	require.ErrorContains(t, err, "Storage Blob Data Contributor")
	require.ErrorContains(t, err, "request ID 11111111-2222")
	require.NotContains(t, err.Error(), "\n")
	require.Zero(t, proxy.Count(commitList))
	proxy.Clear()
	require.Empty(t, keys(t, b))
}

func testForeignEndpoint(t *testing.T, az *emulator.Azurite) {
	proxy, b, _ := behind(t, az, emulator.ProxyConfig{}, quick())
	require.NoError(t, b.Put(t.Context(), "a/b", storetest.Text("x")))
	proxy.Add(emulator.Rule{Status: http.StatusNotFound, Body: "<html>no such page</html>"})
	for what, err := range calls(t, b) {
		require.ErrorIs(t, err, store.ErrConfig, what)
		require.NotErrorIs(t, err, store.ErrNotExist, "whoever answers so knows nothing of the snapshot: "+what)
		require.ErrorContains(t, err, "check serviceURL", what)
	}
}

func testRetryAfter(t *testing.T, az *emulator.Azurite) {
	var mu sync.Mutex
	var delays []time.Duration
	o := quick()
	o.Retry.OnRetry = func(_ error, d time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		delays = append(delays, d)
	}
	for _, status := range []int{http.StatusTooManyRequests, http.StatusServiceUnavailable} {
		delays = nil
		proxy, b, _ := behind(t, az, emulator.ProxyConfig{}, o)
		proxy.Add(with(stageBlock, func(r *emulator.Rule) {
			r.Times = 1
			refuse(r, status, "ServerBusy", "The server is busy.")
			r.Header.Set("Retry-After", "1")
		}))
		blob := storetest.Text("x")
		require.NoError(t, b.Put(t.Context(), "a/b", blob))
		require.Equal(t, []time.Duration{time.Second}, delays)
		requireWhole(t, b, "a/b", blob)
	}
}

func testBusy(t *testing.T, az *emulator.Azurite) {
	proxy, b, _ := behind(t, az, emulator.ProxyConfig{}, quick())
	for _, kind := range []emulator.Rule{stageBlock, commitList, head, listBlobs, remove, {Method: http.MethodGet}} {
		for _, status := range []int{http.StatusInternalServerError, http.StatusServiceUnavailable} {
			proxy.Add(with(kind, func(r *emulator.Rule) { r.Times = 2; refuse(r, status, "InternalError", "Try again.") }))
		}
	}
	blob := storetest.Blob(1, 1<<20)
	require.NoError(t, b.Put(t.Context(), "a/b", blob))
	requireWhole(t, b, "a/b", blob)
	require.NoError(t, b.Delete(t.Context(), "a/b"))
	require.Empty(t, keys(t, b))
}

func testBusyForGood(t *testing.T, az *emulator.Azurite) {
	o := quick()
	o.Retry.GiveUp = 100 * time.Millisecond
	proxy, b, _ := behind(t, az, emulator.ProxyConfig{}, o)
	proxy.Add(emulator.Rule{Status: http.StatusServiceUnavailable})
	err := b.Put(t.Context(), "a/b", storetest.Text("x"))
	require.ErrorContains(t, err, "503")
	require.ErrorContains(t, err, "gave up after")
	require.NotErrorIs(t, err, context.DeadlineExceeded)
}

func testReset(t *testing.T, az *emulator.Azurite) {
	proxy, b, _ := behind(t, az, emulator.ProxyConfig{}, quick())
	proxy.Add(with(stageBlock, func(r *emulator.Rule) {
		r.Skip, r.Times, r.Request = 1, 3, emulator.Fault{Reset: true, After: 100 << 10}
	}))
	blob := storetest.Blob(1, 2<<20)
	require.NoError(t, b.Put(t.Context(), "a/b", blob))
	require.Equal(t, 8+3, proxy.Count(stageBlock))
	require.Equal(t, 1, proxy.Count(commitList))
	requireWhole(t, b, "a/b", blob)
}

// testDamagedBlock: the service compares each block with its MD5. With a SAS, no signature covers the header.
func testDamagedBlock(t *testing.T, az *emulator.Azurite) {
	proxy := emulator.StartFaultProxy(t, az.Endpoint, emulator.ProxyConfig{})
	spec := newContainer(t, az)
	withSAS(t, az, spec, "racwdl")
	spec.ServiceURL = proxy.URL + "/" + az.Account
	b := open(t, spec, quick())
	damage := func(h http.Header) { h.Set("Content-MD5", "AAAAAAAAAAAAAAAAAAAAAA==") }
	proxy.Add(with(stageBlock, func(r *emulator.Rule) { r.Skip, r.Times, r.Request.Rewrite = 1, 2, damage }))
	blob := storetest.Blob(1, 1<<20)
	require.NoError(t, b.Put(t.Context(), "a/b", blob))
	require.Equal(t, 4+2, proxy.Count(stageBlock))
	requireWhole(t, b, "a/b", blob)

	proxy.Clear()
	proxy.Add(with(stageBlock, func(r *emulator.Rule) { r.Request.Rewrite = damage }))
	require.ErrorContains(t, b.Put(t.Context(), "a/c", blob), "Md5Mismatch")
	require.Equal(t, []string{"a/b"}, keys(t, b))
}

func testLostCommit(t *testing.T, az *emulator.Azurite) {
	proxy, b, _ := behind(t, az, emulator.ProxyConfig{}, quick())
	proxy.Add(with(commitList, func(r *emulator.Rule) { r.Times, r.Response = 1, emulator.Fault{Reset: true} }))
	blob := storetest.Blob(1, 1<<20)
	require.NoError(t, b.Put(t.Context(), "a/b", blob), "the second try finds the blob of the first")
	require.Equal(t, 2, proxy.Count(commitList))
	require.Equal(t, 1, proxy.Count(blockList))
	requireWhole(t, b, "a/b", blob)
	require.ErrorIs(t, b.Put(t.Context(), "a/b", blob), store.ErrExists, "but another Put of the same content does not")
}

func testLostEmptyCommit(t *testing.T, az *emulator.Azurite) {
	proxy, b, _ := behind(t, az, emulator.ProxyConfig{}, quick())
	proxy.Add(emulator.Rule{Method: http.MethodPut, Times: 1, Response: emulator.Fault{Reset: true}})
	require.NoError(t, b.Put(t.Context(), "a/b", storetest.Text("")))
	requireWhole(t, b, "a/b", storetest.Text(""))
	require.ErrorIs(t, b.Put(t.Context(), "a/b", storetest.Text("")), store.ErrExists)
}

func testLostButTaken(t *testing.T, az *emulator.Azurite) {
	proxy, b, _ := behind(t, az, emulator.ProxyConfig{}, quick())
	theirs := storetest.Text("content")
	require.NoError(t, b.Put(t.Context(), "a/b", theirs))
	proxy.Add(with(commitList, func(r *emulator.Rule) { r.Times, r.Request = 1, emulator.Fault{Reset: true} }))
	require.ErrorIs(t, b.Put(t.Context(), "a/b", theirs), store.ErrExists, "also with the same content")
	requireWhole(t, b, "a/b", theirs)
}

// testLostWriteOnly: an identity that may not look cannot find out.
func testLostWriteOnly(t *testing.T, az *emulator.Azurite) {
	proxy := emulator.StartFaultProxy(t, az.Endpoint, emulator.ProxyConfig{})
	spec := newContainer(t, az)
	full := open(t, spec, quick())
	withSAS(t, az, spec, "w")
	spec.ServiceURL = proxy.URL + "/" + az.Account
	b := open(t, spec, quick())
	blob := storetest.Blob(1, 1<<20)
	require.NoError(t, b.Put(t.Context(), "a/b", blob))
	proxy.Add(with(commitList, func(r *emulator.Rule) { r.Times, r.Response = 1, emulator.Fault{Reset: true} }))
	require.ErrorIs(t, b.Put(t.Context(), "a/c", blob), store.ErrExists)
	require.Equal(t, []string{"a/b", "a/c"}, keys(t, full))
}

// testCancelledCommit: the service stores the blob, but nobody hears of it before the caller leaves.
func testCancelledCommit(t *testing.T, az *emulator.Azurite) {
	proxy, b, _ := behind(t, az, emulator.ProxyConfig{}, quick())
	b.grace = time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	proxy.Add(with(commitList, func(r *emulator.Rule) {
		r.Response = emulator.Fault{Stall: true, Rewrite: func(http.Header) { cancel() }}
	}))
	require.ErrorIs(t, b.Put(ctx, "a/b", storetest.Blob(1, 1<<20)), context.Canceled)
	require.Equal(t, 1, proxy.Count(remove), "it was there, and is removed")
	require.Empty(t, keys(t, b))

	// An answer that comes in time counts.
	b.grace = time.Minute
	proxy.Clear()
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	proxy.Add(with(commitList, func(r *emulator.Rule) { r.Response.Rewrite = func(http.Header) { cancel() } }))
	require.NoError(t, b.Put(ctx, "a/b", storetest.Text("x")))
	requireWhole(t, b, "a/b", storetest.Text("x"))
}

func testCancelledBlock(t *testing.T, az *emulator.Azurite) {
	proxy, b, _ := behind(t, az, emulator.ProxyConfig{}, quick())
	proxy.Add(with(stageBlock, func(r *emulator.Rule) { r.Skip, r.Request = 2, emulator.Fault{Stall: true, After: 1000} }))
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	left := errors.New("SIGTERM")
	done := make(chan error, 1)
	go func() { done <- b.Put(ctx, "a/b", storetest.Blob(1, 4<<20)) }()
	require.Eventually(t, func() bool { return proxy.Count(stageBlock) > 2 }, 30*time.Second, time.Millisecond)
	cancel(left)
	err := <-done
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, left)
	require.Zero(t, proxy.Count(commitList))
	require.Empty(t, keys(t, b))
	proxy.Clear()
	require.NoError(t, b.Put(t.Context(), "a/b", storetest.Text("x")), "what is staged is in nobody's way")
	requireWhole(t, b, "a/b", storetest.Text("x"))
}

// testBlocksDropped: the service says that blocks are missing because another writer's commit has dropped them.
func testBlocksDropped(t *testing.T, az *emulator.Azurite) {
	proxy, b, _ := behind(t, az, emulator.ProxyConfig{}, quick())
	proxy.Add(with(commitList, func(r *emulator.Rule) {
		refuse(r, http.StatusBadRequest, "InvalidBlockList", "The specified block list is invalid.")
	}))
	require.ErrorContains(t, b.Put(t.Context(), "a/b", storetest.Text("x")), "InvalidBlockList")
	proxy.Clear()
	require.NoError(t, b.Put(t.Context(), "a/b", storetest.Text("theirs")))
	proxy.Add(with(commitList, func(r *emulator.Rule) {
		refuse(r, http.StatusBadRequest, "InvalidBlockList", "The specified block list is invalid.")
	}))
	require.ErrorIs(t, b.Put(t.Context(), "a/b", storetest.Text("x")), store.ErrExists)
}

// testSlow: what takes much longer than the stall time is not stalled as long as it moves.
func testSlow(t *testing.T, az *emulator.Azurite) {
	o := quick()
	o.StallTimeout, o.BlockSize = 5*time.Second, 512<<10
	proxy, b, _ := behind(t, az, emulator.ProxyConfig{ReadBuffer: 4 << 10}, o)
	proxy.Add(with(stageBlock, func(r *emulator.Rule) { r.Request.Rate = 64 << 10 }))
	start := time.Now()
	blob := storetest.Blob(1, 512<<10)
	require.NoError(t, b.Put(t.Context(), "a/b", blob))
	require.Greater(t, time.Since(start), o.StallTimeout, "or this tells nothing")
	requireWhole(t, b, "a/b", blob)
}

func testStalledUpload(t *testing.T, az *emulator.Azurite) {
	proxy, b, _ := behind(t, az, emulator.ProxyConfig{}, quick())
	proxy.Add(with(stageBlock, func(r *emulator.Rule) { r.Request = emulator.Fault{Stall: true, After: 10_000} }))
	err := b.Put(t.Context(), "a/b", storetest.Text("x"))
	require.NoError(t, err, "what passes before that")
	b.stall = 500 * time.Millisecond
	err = b.Put(t.Context(), "a/c", storetest.Blob(1, 200<<10))
	require.ErrorIs(t, err, store.ErrStalled)
	require.ErrorContains(t, err, "put "+b.String()+"/a/c: no progress for 500ms")
	require.NotErrorIs(t, err, context.Canceled)
	require.Equal(t, 1+2, proxy.Count(stageBlock), "one second chance")

	// The caller's own limit says so too.
	b.stall = time.Minute
	require.Equal(t, []string{"a/b"}, keys(t, b))
	err = store.PutWithStall(t.Context(), b, "a/d", storetest.Blob(1, 200<<10), 500*time.Millisecond, nil)
	require.ErrorIs(t, err, store.ErrStalled)
}

func testStalledOnce(t *testing.T, az *emulator.Azurite) {
	o := quick()
	o.StallTimeout = 5 * time.Second // in which the server must answer the second time
	proxy, b, _ := behind(t, az, emulator.ProxyConfig{}, o)
	for _, kind := range []emulator.Rule{stageBlock, listBlobs} {
		proxy.Add(with(kind, func(r *emulator.Rule) { r.Times, r.Response = 1, emulator.Fault{Stall: true} }))
	}
	blob := storetest.Blob(1, 200<<10)
	require.NoError(t, b.Put(t.Context(), "a/b", blob))
	requireWhole(t, b, "a/b", blob)
}

func testStalledAnswers(t *testing.T, az *emulator.Azurite) {
	proxy, b, _ := behind(t, az, emulator.ProxyConfig{}, quick())
	require.NoError(t, b.Put(t.Context(), "a/b", storetest.Text("x")))
	b.stall = 200 * time.Millisecond
	proxy.Add(emulator.Rule{Response: emulator.Fault{Stall: true}})
	for what, err := range calls(t, b) {
		require.ErrorIs(t, err, store.ErrStalled, what)
		require.NotErrorIs(t, err, context.Canceled, what)
	}
}

func testStalledDownload(t *testing.T, az *emulator.Azurite) {
	proxy, b, _ := behind(t, az, emulator.ProxyConfig{}, quick())
	blob := storetest.Blob(1, 1<<20)
	require.NoError(t, b.Put(t.Context(), "a/b", blob))
	b.stall = 5 * time.Second
	proxy.Add(emulator.Rule{Method: http.MethodGet, Response: emulator.Fault{Stall: true, After: 100_000}})
	rc, err := b.Get(t.Context(), "a/b", 0)
	require.NoError(t, err)
	n, err := io.Copy(io.Discard, rc)
	require.ErrorIs(t, err, store.ErrStalled)
	require.LessOrEqual(t, n, int64(100_000))
	require.NoError(t, rc.Close())
}

// testDownloadCut: a body that ends early is an error, and what reads on after it gets the rest.
func testDownloadCut(t *testing.T, az *emulator.Azurite) {
	proxy, b, _ := behind(t, az, emulator.ProxyConfig{}, quick())
	blob := storetest.Blob(1, 1<<20)
	require.NoError(t, b.Put(t.Context(), "a/b", blob))
	cut := emulator.Rule{Method: http.MethodGet, Times: 2, Response: emulator.Fault{Reset: true, After: 300_000}}
	proxy.Add(cut)
	rc, err := b.Get(t.Context(), "a/b", 0)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, rc)
	require.ErrorContains(t, err, "get "+b.String()+"/a/b: ")
	require.ErrorContains(t, err, "the connection was cut")
	rc.Close()
	require.NoError(t, store.VerifyFull(t.Context(), b, "a/b", blob, nil))
}

func testServerGone(t *testing.T, _ *emulator.Azurite) {
	az := emulator.StartAzurite(t, emulator.AzuriteConfig{})
	o := quick()
	o.Retry.GiveUp = 50 * time.Millisecond
	b := open(t, newContainer(t, az), o)
	require.NoError(t, b.Put(t.Context(), "a/b", storetest.Text("x")))
	require.NoError(t, az.Stop())
	for what, err := range calls(t, b) {
		require.ErrorContains(t, err, "connection refused", what)
		require.ErrorContains(t, err, "check serviceURL", what)
	}
	require.NoError(t, az.Start(t.Context()))
	requireWhole(t, b, "a/b", storetest.Text("x"))
}

func testDNS(t *testing.T, az *emulator.Azurite) {
	spec := newContainer(t, az)
	spec.Account, spec.ServiceURL = "nope", "https://nope.blob.invalid"
	for what, err := range calls(t, open(t, spec, quick())) {
		require.ErrorContains(t, err, "lookup nope.blob.invalid", what)
		require.ErrorContains(t, err, "check account, serviceURL and the DNS of this node", what)
		require.NotErrorIs(t, err, context.DeadlineExceeded, what)
	}
}

func testProtected(t *testing.T, az *emulator.Azurite) {
	proxy, b, spec := behind(t, az, emulator.ProxyConfig{}, quick())
	c := client(t, az, spec)
	require.NoError(t, b.Put(t.Context(), "leased", storetest.Text("x")))
	l, err := lease.NewBlobClient(c.NewBlobClient("leased"), nil)
	require.NoError(t, err)
	_, err = l.AcquireLease(t.Context(), -1, nil)
	require.NoError(t, err)
	err = b.Delete(t.Context(), "leased")
	require.ErrorIs(t, err, store.ErrProtected)
	require.ErrorContains(t, err, "holds a lease")
	require.ErrorIs(t, b.Put(t.Context(), "leased", storetest.Text("y")), store.ErrExists)
	require.ErrorIs(t, b.Put(t.Context(), "leased", storetest.Blob(1, 1<<20)), store.ErrExists)

	require.NoError(t, b.Put(t.Context(), "shot", storetest.Text("x")))
	_, err = c.NewBlobClient("shot").CreateSnapshot(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, []string{"leased", "shot"}, keys(t, b), "a snapshot of a blob is none of ours")
	err = b.Delete(t.Context(), "shot")
	require.ErrorIs(t, err, store.ErrProtected)
	require.ErrorContains(t, err, "delete those first")

	// What Azurite does not know.
	for _, code := range []string{"BlobImmutableDueToPolicy", "BlobImmutableDueToLegalHold"} {
		proxy.Add(with(remove, func(r *emulator.Rule) {
			r.Times = 1
			refuse(r, http.StatusConflict, code, "This operation is not permitted as the blob is immutable.")
		}))
		err = b.Delete(t.Context(), "shot")
		require.ErrorIs(t, err, store.ErrProtected)
		require.ErrorContains(t, err, "keeps it")
	}
	require.Len(t, keys(t, b), 2)
}

func testNoMD5(t *testing.T, az *emulator.Azurite) {
	proxy, b, spec := behind(t, az, emulator.ProxyConfig{}, quick())
	blob := storetest.Blob(1, 300<<10)
	data, err := io.ReadAll(io.NewSectionReader(blob, 0, blob.Size))
	require.NoError(t, err)
	c := client(t, az, spec).NewBlockBlobClient("a/b")
	id := "AAAA"
	_, err = c.StageBlock(t.Context(), id, newBody(t.Context(), data), nil)
	require.NoError(t, err)
	_, err = c.CommitBlockList(t.Context(), []string{id}, nil)
	require.NoError(t, err)
	require.NoError(t, b.Check(t.Context(), "a/b", blob))
	require.Positive(t, proxy.Count(emulator.Rule{Method: http.MethodGet}), "it was read back")
	require.ErrorIs(t, b.Check(t.Context(), "a/b", storetest.Blob(2, 300<<10)), store.ErrMismatch)

	// Without the content there is its SHA-256 to compare with.
	require.NoError(t, b.Put(t.Context(), "a/c", blob))
	other := open(t, spec, quick())
	blob.ReaderAt = nil
	require.NoError(t, other.Check(t.Context(), "a/c", blob))
	blob.SHA256[0] ^= 1
	require.ErrorIs(t, other.Check(t.Context(), "a/c", blob), store.ErrMismatch)
}

// testFolders: such an account has blobs that are folders.
func testFolders(t *testing.T, az *emulator.Azurite) {
	proxy, b, spec := behind(t, az, emulator.ProxyConfig{}, quick())
	c := client(t, az, spec)
	_, err := c.NewBlockBlobClient("cluster").UploadBuffer(t.Context(), nil, &blockblob.UploadBufferOptions{
		Metadata: map[string]*string{"hdi_isfolder": to.Ptr("true")},
	})
	require.NoError(t, err)
	require.NoError(t, b.Put(t.Context(), "cluster/a", storetest.Text("x")))
	require.Equal(t, []string{"cluster/a"}, keys(t, b))
	require.ErrorIs(t, b.Check(t.Context(), "cluster", storetest.Text("")), store.ErrNotExist)

	// Nothing but live blobs is asked for, nor is anything half-written.
	for _, r := range proxy.Requests(listBlobs) {
		require.Equal(t, "metadata", r.URL.Query().Get("include"))
	}
	require.Equal(t, 1, proxy.Count(listBlobs))
}
