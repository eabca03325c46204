package azure

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcdsnapshot.dev/agent/store"
)

func TestClassify(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, c := range map[string]struct {
		op       op
		status   int
		code     string
		message  string
		date     time.Time
		sentinel error
		advice   string
		again    bool
	}{
		"no container":            {opGet, 404, "ContainerNotFound", "", now, store.ErrNotExist, "check account and container", false},
		"no blob":                 {opGet, 404, "BlobNotFound", "", now, store.ErrNotExist, "", false},
		"no account":              {opGet, 404, "ResourceNotFound", "", now, store.ErrNotExist, "", false},
		"taken":                   {opPut, 409, "BlobAlreadyExists", "", now, store.ErrExists, "", false},
		"condition":               {opPut, 412, "ConditionNotMet", "", now, store.ErrExists, "", false},
		"taken and leased":        {opPut, 412, "LeaseIdMissing", "", now, store.ErrExists, "", false},
		"taken and immutable":     {opPut, 409, "BlobImmutableDueToPolicy", "", now, store.ErrExists, "", false},
		"taken, may not look":     {opPut, 403, "UnauthorizedBlobOverwrite", "", now, store.ErrExists, "", false},
		"immutable":               {opDelete, 409, "BlobImmutableDueToPolicy", "", now, store.ErrProtected, "immutability policy", false},
		"legal hold":              {opDelete, 409, "BlobImmutableDueToLegalHold", "", now, store.ErrProtected, "legal hold", false},
		"leased":                  {opDelete, 412, "LeaseIdMissing", "", now, store.ErrProtected, "lease", false},
		"snapshots":               {opDelete, 409, "SnapshotsPresent", "", now, store.ErrProtected, "snapshots", false},
		"other than expected":     {opDelete, 412, "ConditionNotMet", "", now, nil, "", false},
		"may not put":             {opPut, 403, "AuthorizationPermissionMismatch", "", now, store.ErrAccessDenied, "containers/blobs/write", false},
		"may not list":            {opList, 403, "AuthorizationPermissionMismatch", "", now, store.ErrAccessDenied, "sp=l", false},
		"may not delete":          {opDelete, 403, "AuthorizationPermissionMismatch", "", now, store.ErrAccessDenied, "containers/blobs/delete", false},
		"firewall":                {opPut, 403, "AuthorizationFailure", "", now, store.ErrAccessDenied, "firewall", false},
		"no keys":                 {opPut, 403, "KeyBasedAuthenticationNotPermitted", "", now, store.ErrAccessDenied, "another auth.method", false},
		"wrong key":               {opPut, 403, "AuthenticationFailed", "", now, store.ErrAccessDenied, "check the key", false},
		"we are ahead":            {opPut, 403, "AuthenticationFailed", "", now.Add(-20 * time.Minute), store.ErrAccessDenied, "clock of this node is 20m0s ahead of the service's", false},
		"we are behind":           {opPut, 403, "AuthenticationFailed", "", now.Add(20 * time.Minute), store.ErrAccessDenied, "clock of this node is 20m0s behind the service's", false},
		"SAS expired":             {opPut, 403, "AuthenticationFailed", "Signature not valid in the specified time frame: Start [x] - Expiry [y] - Current [z]", now, store.ErrAccessDenied, "make a new SAS", false},
		"bad token":               {opPut, 401, "InvalidAuthenticationInfo", "", now, store.ErrAccessDenied, "", false},
		"tier":                    {opPut, 400, "InvalidBlobTier", "", now, store.ErrConfig, "accessTier", false},
		"container name":          {opPut, 400, "InvalidResourceName", "", now, store.ErrConfig, "container", false},
		"archived":                {opGet, 409, "BlobArchived", "", now, nil, "archive tier", false},
		"too large":               {opPut, 413, "RequestBodyTooLarge", "", now, nil, "", false},
		"throttled":               {opPut, 503, "ServerBusy", "", now, nil, "throttled", true},
		"too many requests":       {opPut, 429, "TooManyRequests", "", now, nil, "", true},
		"timeout":                 {opPut, 500, "OperationTimedOut", "", now, nil, "", true},
		"request timeout":         {opPut, 408, "RequestTimeout", "", now, nil, "", true},
		"damaged on its way":      {opPut, 400, "Md5Mismatch", "", now, nil, "", true},
		"container being deleted": {opPut, 409, "ContainerBeingDeleted", "", now, nil, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			h := http.Header{"X-Ms-Request-Id": {"id-1"}, "Date": {c.date.Format(http.TimeFormat)}}
			e := classify(c.op, c.status, c.code, c.message, h, now)
			if c.sentinel == nil {
				require.NoError(t, errors.Unwrap(e))
				require.Equal(t, c.again, transient(c.status, c.code))
			} else {
				require.ErrorIs(t, e, c.sentinel)
			}
			if c.advice == "" {
				require.Empty(t, e.Advice)
			} else {
				require.Contains(t, e.Advice, c.advice)
			}
			require.Contains(t, e.Error(), c.code)
			require.Contains(t, e.Error(), "request ID id-1")
		})
	}
	for _, status := range []int{301, 403, 404, 407, 409} {
		e := classify(opDelete, status, "", "", http.Header{}, now)
		require.ErrorIs(t, e, store.ErrConfig, "no answer of Azure's: %d", status)
	}
	for _, status := range []int{408, 429, 500, 502, 503, 504} {
		require.NoError(t, errors.Unwrap(classify(opDelete, status, "", "", http.Header{}, now)), "a gateway's: %d", status)
		require.True(t, transient(status, ""))
	}
}

// TestReadMessage: what the service tells about signatures repeats ours, and is left out.
func TestReadMessage(t *testing.T) {
	const message = "Server failed to authenticate the request."
	for detail, want := range map[string]string{
		"": message,
		"Signature not valid in the specified time frame: Start [a] - Expiry [b] - Current [c]":                               message + " Signature not valid in the specified time frame: Start [a] - Expiry [b] - Current [c]",
		"Lifetime validation failed.\n The token is expired.":                                                                 message + " Lifetime validation failed. The token is expired.",
		"The MAC signature found in the HTTP request 'c2ln' is not the same as any computed signature. Server used following": message,
		"Signature did not match. String to sign used was rl c2ln":                                                            message,
	} {
		body := "\xef\xbb\xbf<?xml version=\"1.0\" encoding=\"utf-8\"?><Error><Code>AuthenticationFailed</Code><Message>" + message +
			"\nRequestId:1\nTime:2</Message><AuthenticationErrorDetail>" + detail + "</AuthenticationErrorDetail></Error>"
		code, got := readMessage(&http.Response{Body: io.NopCloser(strings.NewReader(body))})
		require.Equal(t, "AuthenticationFailed", code)
		require.Equal(t, want, got)
	}
	for _, body := range []string{"", "<html>", "{}", "busy"} {
		code, got := readMessage(&http.Response{Body: io.NopCloser(strings.NewReader(body))})
		require.Empty(t, code)
		require.Empty(t, got)
	}
}
