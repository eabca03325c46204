package s3

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/wire"
)

// op is one kind of request.
type op struct {
	verb string
	// permission that it takes.
	permission string
	// patience is by how much an answer may take longer than the stall time: the service has work to do before it.
	patience int
}

const permissionPut = "s3:PutObject"

var (
	opPut = op{"put", permissionPut, 1}
	// Some services put the parts of a large object together before they answer.
	opComplete = op{"put", permissionPut, 5}
	opHead     = op{"look up", "s3:GetObject (and s3:ListBucket, to be told that an object is missing)", 1}
	opGet      = op{"get", "s3:GetObject", 1}
	opDelete   = op{"delete", "s3:DeleteObject", 1}
	opList     = op{"list", "s3:ListBucket", 1}
	opAbort    = op{"abandon the upload of", "s3:AbortMultipartUpload", 1}
	opSweep    = op{"list unfinished uploads in", "s3:ListBucketMultipartUploads", 1}
)

// ResponseError is an answer of the service that says no. errors.Is finds the sentinel of package store that it
// stands for.
type ResponseError struct {
	// StatusCode is HTTP's, Code and Message are the service's own.
	StatusCode    int
	Code, Message string
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
	if e.Advice != "" {
		fmt.Fprintf(&b, " (%s)", e.Advice)
	}
	return b.String()
}

func (e *ResponseError) Unwrap() error { return e.sentinel }

// hasCode says that err is an answer with one of the codes.
func hasCode(err error, codes ...string) bool {
	var re *ResponseError
	if errors.As(err, &re) {
		for _, code := range codes {
			if re.Code == code {
				return true
			}
		}
	}
	return false
}

// undecided says that after err it is not known whether the server has acted on the request.
func undecided(err error) bool {
	var re *ResponseError
	// An error in an answer that began with 200 is one of the work that came before it.
	return !errors.As(err, &re) || re.StatusCode >= 500 || re.StatusCode < 300 || re.StatusCode == http.StatusRequestTimeout
}

// fail says what went wrong with a request: what was tried, where, why it failed and what to do.
func (b *Bucket) fail(o op, key string, x *exchange, err error) error {
	where := b.String()
	if key != "" {
		where += "/" + key
	}
	status, header, transportErr := x.answer()
	if status == 0 || transportErr != nil {
		if transportErr != nil {
			err = transportErr
		}
		return fmt.Errorf("%s %s: %w", o.verb, where, wire.Explain(err, b.endpoint, "endpoint"))
	}
	var resp minio.ErrorResponse
	if !errors.As(err, &resp) {
		// An answer that began well and then could not be read.
		return fmt.Errorf("%s %s: %w", o.verb, where, err)
	}
	re := b.classify(o, status, header, resp)
	err = fmt.Errorf("%s %s: %w", o.verb, where, re)
	if re.sentinel == nil && !transient(status, re.Code) {
		err = store.Permanent(err)
	}
	return store.WithRetryAfter(err, header)
}

// transient says that the same request may succeed later. BadDigest and its like say that the content was damaged on
// its way.
func transient(status int, code string) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, 499, http.StatusInternalServerError, http.StatusBadGateway,
		http.StatusServiceUnavailable, http.StatusGatewayTimeout, 520, http.StatusTemporaryRedirect:
		return true
	}
	switch code {
	case "SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "RequestThrottled", "RequestTimeout",
		"InternalError", "ServiceUnavailable", "OperationAborted", "ConditionalRequestConflict",
		"BadDigest", "InvalidDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch", "IncompleteBody":
		return true
	}
	return false
}

// classify maps an answer to a sentinel and says what to do about it.
func (b *Bucket) classify(o op, status int, header http.Header, resp minio.ErrorResponse) *ResponseError {
	e := &ResponseError{StatusCode: status, Code: resp.Code, Message: resp.Message}
	if e.Code == fmt.Sprintf("%d %s", status, http.StatusText(status)) {
		e.Code = ""
	}
	set := func(sentinel error, format string, args ...any) {
		e.sentinel, e.Advice = sentinel, fmt.Sprintf(format, args...)
	}
	region := resp.Region
	if region == "" {
		region = header.Get("X-Amz-Bucket-Region")
	}
	if mime := header.Get("Content-Type"); status == http.StatusNotFound && strings.HasPrefix(mime, "text/html") {
		e.Code, e.Message = "", "the answer is a web page"
		set(store.ErrConfig, "%s is no S3 service: check endpoint", b.endpoint)
		return e
	}

	switch e.Code {
	case "NoSuchBucket":
		set(store.ErrNotExist, "bucket %s is not at %s: check bucket, endpoint and region", b.name, b.endpoint)
		return e
	case "NoSuchKey":
		set(store.ErrNotExist, "")
		return e
	case "NoSuchUpload":
		set(nil, "somebody abandoned the upload, or a lifecycle rule did")
		return e
	case "InvalidAccessKeyId":
		set(store.ErrAccessDenied, "the service does not know the access key: check auth, and that it belongs to %s", b.endpoint)
		return e
	case "SignatureDoesNotMatch":
		set(store.ErrAccessDenied, "the secret access key is wrong, or something on the way changes requests")
		return e
	case "ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired":
		set(store.ErrAccessDenied, "the session token is not valid any more: renew the credentials")
		return e
	case "RequestTimeTooSkewed", "RequestExpired":
		set(store.ErrAccessDenied, "%s", clockAdvice(header, time.Now()))
		return e
	case "AuthorizationHeaderMalformed", "PermanentRedirect", "InvalidRegion", "IllegalLocationConstraintException":
		if region != "" && region != b.region {
			set(store.ErrConfig, "the bucket is in region %s, not %s: set region", region, b.region)
		} else {
			set(store.ErrConfig, "the bucket is in another region than %s: set region, or endpoint", b.region)
		}
		return e
	case "InvalidBucketName":
		set(store.ErrConfig, "check bucket")
		return e
	case "InvalidObjectState":
		set(nil, "the object is archived in storage class %s: restore it in the service first", header.Get("X-Amz-Storage-Class"))
		return e
	case "QuotaExceeded", "XMinioStorageFull", "NoSpaceLeftOnDevice", "XMinioAdminBucketQuotaExceeded":
		set(nil, "the service has no room left for this bucket")
		return e
	case "ObjectLocked":
		set(store.ErrProtected, "")
		return e
	case "ObjectLockConfigurationNotFoundError", "InvalidBucketObjectLockConfiguration", "InvalidBucketObjectLockConfigurationError":
		set(store.ErrConfig, "the bucket was made without object lock: remove objectLock, or use another bucket")
		return e
	}
	switch {
	case strings.HasPrefix(e.Code, "KMS."):
		set(store.ErrConfig, "check serverSideEncryption.kmsKeyID, and that the identity may use the key (kms:GenerateDataKey, kms:Decrypt)")
	case o == opDelete && status == http.StatusForbidden && lockMessage(e.Message):
		set(store.ErrProtected, "")
	case e.Code == "InvalidRequest" && strings.Contains(strings.ReplaceAll(strings.ToLower(e.Message), " ", ""), "objectlock"):
		set(store.ErrConfig, "the bucket was made without object lock: remove objectLock, or use another bucket")
	case status == http.StatusMovedPermanently:
		set(store.ErrConfig, "the bucket is in region %q, not %s: set region", region, b.region)
	case status == http.StatusUnauthorized:
		set(store.ErrAccessDenied, "the service does not accept the credentials: check auth")
	case status == http.StatusForbidden:
		set(store.ErrAccessDenied, "the identity needs %s", b.permissions(o))
	case status == http.StatusNotFound:
		set(store.ErrNotExist, "")
	case status == http.StatusPreconditionFailed:
		set(store.ErrExists, "")
	}
	return e
}

// lockMessage says that a 403 of a delete is about a lock and not about a permission. AWS and MinIO have no code of
// its own for that.
func lockMessage(message string) bool {
	m := strings.ToLower(message)
	return strings.Contains(m, "object lock") || strings.Contains(m, "worm protected") || strings.Contains(m, "legal hold")
}

// permissions are what the request takes with the options of this bucket.
func (b *Bucket) permissions(o op) string {
	ps := []string{o.permission}
	if o.permission == permissionPut {
		if len(b.put.UserTags) > 0 {
			ps = append(ps, "s3:PutObjectTagging")
		}
		if b.lockDays > 0 {
			ps = append(ps, "s3:PutObjectRetention")
		}
		if b.put.LegalHold != "" {
			ps = append(ps, "s3:PutObjectLegalHold")
		}
	}
	return strings.Join(ps, ", ") + " on this bucket"
}

// clockAdvice compares our clock with the server's.
func clockAdvice(header http.Header, now time.Time) string {
	const advice = "set the clock of this node right: is its time service running?"
	server, err := http.ParseTime(header.Get("Date"))
	if err != nil {
		return advice
	}
	if d := now.Sub(server).Round(time.Second); d > 0 {
		return fmt.Sprintf("the clock here is %v ahead of the server's; %s", d, advice)
	} else {
		return fmt.Sprintf("the clock here is %v behind the server's; %s", -d, advice)
	}
}
