package azure

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"

	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/wire"
)

// op is one kind of request, with the right that it takes: the data action of a role, and the letters of a SAS.
type op struct{ verb, action, sas string }

// The actions are those of Microsoft.Storage/storageAccounts/blobServices/containers.
var (
	opPut    = op{"put", "blobs/write", "w"}
	opLook   = op{"look up", "blobs/read", "r"}
	opGet    = op{"get", "blobs/read", "r"}
	opDelete = op{"delete", "blobs/delete", "d"}
	opList   = op{"list", "blobs/read", "l"}
	opToken  = op{verb: "get a token for"}
)

// ResponseError is an answer of the service, or of the one that gives tokens, that says no. errors.Is finds the
// sentinel of package store that it stands for.
type ResponseError struct {
	// StatusCode is HTTP's, Code and Message are the service's own.
	StatusCode    int
	Code, Message string
	// RequestID is what Microsoft's support asks for; empty if the service gave none.
	RequestID string
	// Advice says what to do about it; empty if there is nothing to say.
	Advice string

	sentinel error
}

func (e *ResponseError) Error() string {
	var b strings.Builder
	if e.sentinel != nil {
		fmt.Fprintf(&b, "%v: ", e.sentinel)
	}
	fmt.Fprintf(&b, "%d", e.StatusCode)
	if e.Code != "" {
		fmt.Fprintf(&b, " %s", e.Code)
	}
	if e.Message != "" && e.Message != e.Code {
		fmt.Fprintf(&b, ": %s", strings.TrimSuffix(e.Message, "."))
	}
	var notes []string
	if e.Advice != "" {
		notes = append(notes, e.Advice)
	}
	if e.RequestID != "" {
		notes = append(notes, "request ID "+e.RequestID)
	}
	if len(notes) > 0 {
		fmt.Fprintf(&b, " (%s)", strings.Join(notes, "; "))
	}
	return b.String()
}

func (e *ResponseError) Unwrap() error { return e.sentinel }

// hasCode says that err is an answer with one of the codes.
func hasCode(err error, codes ...bloberror.Code) bool {
	var re *ResponseError
	if errors.As(err, &re) {
		for _, code := range codes {
			if re.Code == string(code) {
				return true
			}
		}
	}
	return false
}

// undecided says that after err it is not known whether the service has acted on the request.
func undecided(err error) bool {
	var re *ResponseError
	return !errors.As(err, &re) || re.StatusCode >= 500 || re.StatusCode == http.StatusRequestTimeout
}

// fail says what went wrong with a request: what was tried, where, why it failed and what to do.
func (b *Bucket) fail(ctx context.Context, o op, key string, err error) error {
	var resp *azcore.ResponseError
	var auth *azidentity.AuthenticationFailedError
	switch {
	case errors.As(err, &resp) && resp.RawResponse != nil:
		h := resp.RawResponse.Header
		code, message := readMessage(resp.RawResponse)
		if resp.ErrorCode != "" {
			code = resp.ErrorCode
		}
		re := classify(o, resp.StatusCode, code, message, h, time.Now())
		err = fmt.Errorf("%s %s: %w", o.verb, b.where(key), re)
		if re.sentinel == nil && !transient(re.StatusCode, re.Code) {
			err = store.Permanent(err)
		}
		return store.WithRetryAfter(err, h)
	case errors.As(err, &auth) && auth.RawResponse != nil:
		re := classifyToken(auth.RawResponse)
		err = fmt.Errorf("%s %s: %w", o.verb, b.where(key), re)
		return store.WithRetryAfter(err, auth.RawResponse.Header)
	}
	var text interface{ NonRetriable() }
	if noted := noteOf(ctx).get(); noted != nil && auth != nil {
		// azidentity keeps nothing but the text of what failed below it.
		err = noted
	} else if errors.As(err, &text) {
		// Of several lines, such as those of a chain of credentials none of which works.
		err = errors.New(oneLine(err.Error()))
	}
	return fmt.Errorf("%s %s: %w", o.verb, b.where(key), b.explain(err))
}

// transient says that the same request may succeed later. A checksum that does not match says that the block was
// damaged on its way.
func transient(status int, code string) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway,
		http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	switch bloberror.Code(code) {
	case bloberror.MD5Mismatch, bloberror.ServerBusy, bloberror.InternalError, bloberror.OperationTimedOut, bloberror.ContainerBeingDeleted:
		return true
	}
	return false
}

// classify maps an answer of the blob service to a sentinel and says what to do about it. Codes:
// https://learn.microsoft.com/rest/api/storageservices/blob-service-error-codes
func classify(o op, status int, code, message string, h http.Header, now time.Time) *ResponseError {
	e := &ResponseError{StatusCode: status, Code: code, Message: message, RequestID: h.Get("x-ms-request-id")}
	set := func(sentinel error, advice string) { e.sentinel, e.Advice = sentinel, advice }
	c := bloberror.Code(code)
	switch {
	case code == "" && e.RequestID == "" && status < 500 && status != http.StatusTooManyRequests && status != http.StatusRequestTimeout:
		// Not taken for Azure's word on an object: a 404 here says nothing about the snapshot.
		set(store.ErrConfig, "this is no answer of Azure Blob Storage: check serviceURL and proxies on the way")

	case c == bloberror.ContainerNotFound:
		set(store.ErrNotExist, "make the container, or check account and container")
	case status == http.StatusNotFound:
		set(store.ErrNotExist, "")

	case strings.HasPrefix(code, "BlobImmutable") && o == opPut, c == bloberror.LeaseIDMissing && o == opPut, c == bloberror.UnauthorizedBlobOverwrite:
		set(store.ErrExists, "")
	case (c == bloberror.BlobAlreadyExists || status == http.StatusPreconditionFailed) && o == opPut:
		set(store.ErrExists, "")
	case strings.HasPrefix(code, "BlobImmutable"):
		set(store.ErrProtected, "an immutability policy or a legal hold keeps it")
	case c == bloberror.LeaseIDMissing:
		set(store.ErrProtected, "somebody holds a lease on it")
	case c == bloberror.SnapshotsPresent:
		set(store.ErrProtected, "somebody has made snapshots of this blob: delete those first")

	case c == "KeyBasedAuthenticationNotPermitted":
		set(store.ErrAccessDenied, "the account does not allow shared keys: use another auth.method")
	case c == bloberror.AuthorizationFailure:
		set(store.ErrAccessDenied, "check that the account's firewall lets this node in, and check the key or SAS")
	case c == bloberror.AuthorizationPermissionMismatch, c == bloberror.InsufficientAccountPermissions:
		set(store.ErrAccessDenied, fmt.Sprintf("the identity needs the data action containers/%s, which the role Storage Blob Data Contributor has, or the SAS needs sp=%s", o.action, o.sas))
	case c == bloberror.AuthenticationFailed && strings.Contains(message, "not valid in the specified time frame"):
		set(store.ErrAccessDenied, "make a new SAS, unless "+clockAdvice(h, now))
	case c == bloberror.AuthenticationFailed:
		set(store.ErrAccessDenied, "check the key or SAS and whose account it is of; "+clockAdvice(h, now))
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		set(store.ErrAccessDenied, "")

	case c == bloberror.InvalidBlobTier, strings.Contains(code, "AccessTierNotSupported"):
		set(store.ErrConfig, "this account does not offer this accessTier")
	case strings.Contains(code, "EncryptionScope"):
		set(store.ErrConfig, "check encryptionScope: it must be there and not disabled")
	case c == bloberror.InvalidResourceName, c == bloberror.InvalidURI:
		set(store.ErrConfig, "check serviceURL, account and container")

	case c == bloberror.BlobArchived, c == bloberror.BlobBeingRehydrated:
		e.Advice = "it was moved to the archive tier: set its tier to Hot, and try again when that is done, within hours"
	case c == bloberror.ServerBusy:
		e.Advice = "the account is throttled"
	}
	return e
}

// clockAdvice compares our clock with the service's.
func clockAdvice(h http.Header, now time.Time) string {
	server, err := http.ParseTime(h.Get("Date"))
	if d := now.Sub(server).Round(time.Second); err == nil && d.Abs() > time.Minute {
		side := "ahead of"
		if d < 0 {
			side = "behind"
		}
		return fmt.Sprintf("the clock of this node is %v %s the service's: set it right", d.Abs(), side)
	}
	return "the clock of this node is wrong"
}

// classifyToken maps an answer of Entra ID or of the metadata service.
func classifyToken(resp *http.Response) *ResponseError {
	e := &ResponseError{StatusCode: resp.StatusCode}
	var body struct {
		Error       string `json:"error"`
		Description string `json:"error_description"`
	}
	if data, err := runtime.Payload(resp); err == nil && json.Unmarshal(data, &body) == nil {
		e.Code = body.Error
		// Trace and correlation IDs follow on lines of their own.
		e.Message, _, _ = strings.Cut(body.Description, "\n")
		e.Message, _, _ = strings.Cut(strings.TrimSpace(e.Message), " Trace ID:")
	}
	if e.StatusCode < 500 && e.StatusCode != http.StatusTooManyRequests && e.StatusCode != http.StatusRequestTimeout && e.StatusCode != http.StatusGone {
		e.sentinel, e.Advice = store.ErrAccessDenied, "check auth: tenantID, clientID, and the secret or the identity's federated credential"
	}
	return e
}

// readMessage reads the code and the message of an answer, whose body the SDK keeps. What the service tells about
// signatures is left out: it repeats ours.
func readMessage(resp *http.Response) (code, message string) {
	data, err := runtime.Payload(resp)
	if err != nil {
		return "", ""
	}
	var body struct {
		Code    string
		Message string
		Detail  string `xml:"AuthenticationErrorDetail"`
	}
	if xml.Unmarshal(data, &body) != nil {
		return "", ""
	}
	// The request's ID and the time follow on lines of their own.
	message, _, _ = strings.Cut(body.Message, "\n")
	message = strings.TrimSpace(message)
	if d := strings.ToLower(body.Detail); d != "" && !strings.Contains(d, "mac signature") && !strings.Contains(d, "string to sign") && !strings.Contains(d, "did not match") {
		message += " " + oneLine(body.Detail)
	}
	return body.Code, message
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// explain adds to an error of the network what to do about it.
func (b *Bucket) explain(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err // what was asked for is said already
	}
	var dns *net.DNSError
	var cert *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &cert):
		return fmt.Errorf("%w (%s)", err, wire.CertificateRemedy(cert))
	case errors.As(err, &record), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return store.Permanent(fmt.Errorf("%w (the service does not speak TLS: write serviceURL with http://)", err))
	case errors.As(err, &dns):
		err = fmt.Errorf("%w (check account, serviceURL and the DNS of this node)", err)
		if dns.IsNotFound {
			return store.Permanent(err)
		}
		return err
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w (nothing listens there: check serviceURL)", err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		return fmt.Errorf("%w (the connection was cut)", err)
	}
	return err
}
