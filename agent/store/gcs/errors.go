package gcs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"cloud.google.com/go/compute/metadata"

	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/wire"
)

// op is one kind of request, with the permission that it takes.
type op struct{ verb, permission string }

var (
	opPut    = op{"put", "storage.objects.create"}
	opStat   = op{"look up", "storage.objects.get"}
	opGet    = op{"get", "storage.objects.get"}
	opDelete = op{"delete", "storage.objects.delete"}
	opList   = op{"list", "storage.objects.list"}
	opToken  = op{verb: "get a token for"}
)

// ResponseError is an answer of the service, or of the one that gives tokens, that says no. errors.Is finds the
// sentinel of package store that it stands for.
type ResponseError struct {
	// StatusCode is HTTP's, Reason and Message are the service's own
	// (https://cloud.google.com/storage/docs/json_api/v1/status-codes).
	StatusCode      int
	Reason, Message string
	// Advice says what to do about it; empty if there is nothing to say.
	Advice string

	sentinel error
	header   http.Header
	// json says that the answer had the form of the API's errors.
	json bool
}

func (e *ResponseError) Error() string {
	var b strings.Builder
	if e.sentinel != nil {
		fmt.Fprintf(&b, "%v: ", e.sentinel)
	}
	fmt.Fprintf(&b, "%d", e.StatusCode)
	if e.Reason != "" {
		fmt.Fprintf(&b, " %s", e.Reason)
	}
	if e.Message != "" && !strings.EqualFold(e.Message, e.Reason) {
		fmt.Fprintf(&b, ": %s", strings.TrimSuffix(e.Message, "."))
	}
	if e.Advice != "" {
		fmt.Fprintf(&b, " (%s)", e.Advice)
	}
	return b.String()
}

func (e *ResponseError) Unwrap() error { return e.sentinel }

// maxError bounds what is read of an answer that says no, and maxMessage what is shown of one that is not Google's.
const (
	maxError   = 64 << 10
	maxMessage = 200
)

// readError reads an answer that says no. classify says what it means.
func readError(resp *http.Response) *ResponseError {
	e := &ResponseError{StatusCode: resp.StatusCode, header: resp.Header}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxError))
	if err != nil {
		return e // the status says enough
	}
	var body struct {
		Error *struct {
			Message string `json:"message"`
			Status  string `json:"status"`
			Errors  []struct {
				Reason string `json:"reason"`
			} `json:"errors"`
		} `json:"error"`
	}
	if json.Unmarshal(data, &body) == nil && body.Error != nil {
		e.json, e.Message, e.Reason = true, oneLine(body.Error.Message), body.Error.Status
		if len(body.Error.Errors) > 0 && body.Error.Errors[0].Reason != "" {
			e.Reason = body.Error.Errors[0].Reason
		}
		return e
	}
	if kind := resp.Header.Get("Content-Type"); kind == "" || strings.HasPrefix(kind, "text/plain") {
		e.Message = oneLine(string(data[:min(len(data), maxMessage)]))
	}
	return e
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// answerOf gives the service's answer that err is, or nil.
func answerOf(err error) *ResponseError {
	var te *tokenError
	if errors.As(err, &te) {
		return nil
	}
	var re *ResponseError
	errors.As(err, &re)
	return re
}

// statusOf is the status of the answer that err is, or 0.
func statusOf(err error) int {
	if re := answerOf(err); re != nil {
		return re.StatusCode
	}
	return 0
}

// noBucket says that a 404 is about the bucket and not about an object in it.
func (e *ResponseError) noBucket() bool {
	return e.StatusCode == http.StatusNotFound && strings.Contains(strings.ToLower(e.Message), "bucket does not exist")
}

// explain says what err means for a request and what to do about it.
func (b *Bucket) explain(o op, err error) error {
	var te *tokenError
	if errors.As(err, &te) {
		return &tokenError{explainToken(te.err)}
	}
	if re := answerOf(err); re != nil {
		b.classify(o, re)
		if re.sentinel == nil && re.StatusCode < 500 && !retryable(re) {
			err = store.Permanent(err)
		}
		return store.WithRetryAfter(err, re.header)
	}
	return wire.Explain(err, b.endpoint.String(), "endpoint")
}

// retryable says that the service may answer otherwise next time, although the status is below 500.
func retryable(e *ResponseError) bool {
	switch e.StatusCode {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusGone, http.StatusRequestedRangeNotSatisfiable, http.StatusTooManyRequests:
		return true
	case http.StatusForbidden: // the older form of 429
		return e.Reason == "rateLimitExceeded" || e.Reason == "userRateLimitExceeded" || e.Reason == "quotaExceeded"
	}
	return false
}

// classify finds out what an answer stands for.
func (b *Bucket) classify(o op, e *ResponseError) {
	set := func(sentinel error, advice string) { e.sentinel, e.Advice = sentinel, advice }
	message := strings.ToLower(e.Message)
	switch {
	case retryable(e):
		if e.StatusCode == http.StatusTooManyRequests || e.StatusCode == http.StatusForbidden {
			e.Advice = "the project or the bucket is throttled"
		}
	case e.StatusCode >= 500:

	case e.StatusCode == http.StatusPreconditionFailed && o == opPut:
		set(store.ErrExists, "")

	case (e.Reason == "objectUnderActiveHold" || e.Reason == "retentionPolicyNotMet") && o == opPut:
		set(store.ErrExists, "") // what is there is kept
	case e.Reason == "objectUnderActiveHold" || e.Reason == "retentionPolicyNotMet":
		set(store.ErrProtected, "")

	// Uploads are answered by another program, whose complaints about requests have no form.
	case !e.json && (e.StatusCode != http.StatusBadRequest || o != opPut):
		// Not taken for the service's word on an object: such a 404 says nothing about a snapshot.
		set(store.ErrConfig, "this is no answer of the JSON API of Cloud Storage: check endpoint, and proxies on the way")

	case e.StatusCode == http.StatusNotFound && (e.noBucket() || o == opPut || o == opList):
		set(store.ErrNotExist, "make the bucket, or check its name")
	case e.StatusCode == http.StatusNotFound:
		set(store.ErrNotExist, "")

	case e.StatusCode == http.StatusUnauthorized && b.creds == nil:
		set(store.ErrAccessDenied, "auth.method is anonymous: choose another")
	case e.StatusCode == http.StatusUnauthorized:
		set(store.ErrAccessDenied, "the service does not take our token: was the key or the account disabled?")
	case e.StatusCode == http.StatusForbidden && strings.Contains(message, "kms"):
		set(store.ErrAccessDenied, "the project's Cloud Storage service agent needs the role roles/cloudkms.cryptoKeyEncrypterDecrypter on the key")
	case e.StatusCode == http.StatusForbidden && (o == opGet || o == opStat):
		set(store.ErrAccessDenied, "the identity needs "+o.permission+" on this bucket; without storage.objects.list an object that is missing is refused like this, too")
	case e.StatusCode == http.StatusForbidden:
		set(store.ErrAccessDenied, "the identity needs "+o.permission+" on this bucket")

	case strings.Contains(message, "crc32c") && strings.Contains(message, "match"):
		set(store.ErrMismatch, "the content was damaged on its way, and was not stored")
	case e.Reason == "userProjectMissing":
		set(store.ErrConfig, "requester pays: name the project to bill in GOOGLE_CLOUD_QUOTA_PROJECT")
	case strings.Contains(message, "kms"):
		set(store.ErrConfig, "check kmsKeyName: the key must lie where the bucket lies")
	case e.StatusCode == http.StatusBadRequest && o != opGet:
		set(store.ErrConfig, "")
	}
}

// tokenError is a failure to get a token.
type tokenError struct{ err error }

func (e *tokenError) Error() string { return e.err.Error() }
func (e *tokenError) Unwrap() error { return e.err }

// explainToken says what to do when there is no token.
func explainToken(err error) error {
	var refused *ResponseError
	var meta *metadata.Error
	var undefined metadata.NotDefinedError
	var network *url.Error
	switch {
	case errors.As(err, &refused):
		if errors.As(err, &network) {
			err = network.Err // which says where it was sent
		}
		return store.WithRetryAfter(err, refused.header)
	case errors.As(err, &undefined):
		return fmt.Errorf("%w: the metadata server knows no service account for us: attach one to the node, or set up workload identity for this pod's service account", store.ErrAccessDenied)
	case errors.As(err, &meta):
		e := &ResponseError{StatusCode: meta.Code, Message: oneLine(meta.Message[:min(len(meta.Message), maxMessage)])}
		if meta.Code < 500 && !retryable(e) {
			e.sentinel, e.Advice = store.ErrAccessDenied, "the metadata server gives no token: check the node's service account and its scopes, or this pod's workload identity"
		}
		return e
	case errors.As(err, &network):
		return wire.Explain(err, network.URL, "the token URL of the credentials")
	}
	// What is left did not get as far as the network: files and their contents.
	return bad("auth", err)
}

// oauthError reads an error of RFC 6749, section 5.2, or one in the form of Google's APIs.
func oauthError(body []byte) (reason, message string) {
	var o struct {
		Error       string `json:"error"`
		Description string `json:"error_description"`
	}
	if json.Unmarshal(body, &o) == nil && o.Error != "" {
		return o.Error, oneLine(o.Description)
	}
	var g struct {
		Error struct{ Status, Message string } `json:"error"`
	}
	if json.Unmarshal(body, &g) == nil {
		return g.Error.Status, oneLine(g.Error.Message)
	}
	return "", ""
}

// tokenAdvice compares our clock with that of the token service, which refuses what was signed at another time.
func tokenAdvice(e *ResponseError, now time.Time) string {
	server, err := http.ParseTime(e.header.Get("Date"))
	if d := now.Sub(server).Round(time.Second); err == nil && d.Abs() > time.Minute {
		side := "ahead of"
		if d < 0 {
			side = "behind"
		}
		return fmt.Sprintf("the clock of this node is %v %s Google's: set it right", d.Abs(), side)
	}
	return "check that the key or the identity behind auth is still there and enabled"
}
