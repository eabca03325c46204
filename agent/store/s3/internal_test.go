package s3

import (
	"bytes"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/require"

	"etcdsnapshot.dev/agent/store"
)

// TestAnswers is the table of answers: what each means, whether it is tried again, and what is advised.
func TestAnswers(t *testing.T) {
	b := &Bucket{name: "backups", region: "eu-west-1", endpoint: "https://s3.eu-west-1.amazonaws.com", lockDays: 7}
	b.put.UserTags = map[string]string{"a": "b"}
	now := time.Now().UTC().Format(http.TimeFormat)
	for _, tt := range []struct {
		op        op
		status    int
		code      string
		message   string
		header    http.Header
		want      error
		transient bool
		advice    string
	}{
		{op: opGet, status: 404, code: "NoSuchKey", want: store.ErrNotExist},
		{op: opHead, status: 404, want: store.ErrNotExist},
		{op: opList, status: 404, code: "NoSuchBucket", want: store.ErrNotExist, advice: "check bucket, endpoint and region"},
		{op: opPut, status: 404, code: "NoSuchUpload", advice: "lifecycle"},
		{op: opPut, status: 404, code: "404 Not Found", header: http.Header{"Content-Type": {"text/html"}}, want: store.ErrConfig, advice: "no S3 service"},
		{op: opPut, status: 401, want: store.ErrAccessDenied, advice: "check auth"},
		{op: opPut, status: 403, code: "AccessDenied", want: store.ErrAccessDenied, advice: "s3:PutObject, s3:PutObjectTagging, s3:PutObjectRetention on this bucket"},
		{op: opList, status: 403, code: "AccessDenied", want: store.ErrAccessDenied, advice: "s3:ListBucket"},
		{op: opGet, status: 403, code: "InvalidAccessKeyId", want: store.ErrAccessDenied, advice: "does not know the access key"},
		{op: opGet, status: 403, code: "SignatureDoesNotMatch", want: store.ErrAccessDenied, advice: "secret access key is wrong"},
		{op: opGet, status: 400, code: "ExpiredToken", want: store.ErrAccessDenied, advice: "renew the credentials"},
		{op: opGet, status: 403, code: "RequestTimeTooSkewed", header: http.Header{"Date": {now}}, want: store.ErrAccessDenied, advice: "clock"},
		{op: opDelete, status: 403, code: "AccessDenied", message: "Access Denied because object protected by object lock.", want: store.ErrProtected},
		{op: opDelete, status: 400, code: "ObjectLocked", want: store.ErrProtected},
		{op: opDelete, status: 403, code: "AccessDenied", want: store.ErrAccessDenied, advice: "s3:DeleteObject"},
		{op: opPut, status: 412, code: "PreconditionFailed", want: store.ErrExists},
		{op: opComplete, status: 412, code: "PreconditionFailed", want: store.ErrExists},
		{op: opPut, status: 409, code: "ConditionalRequestConflict", transient: true},
		{op: opPut, status: 409, code: "OperationAborted", transient: true},
		{op: opPut, status: 400, code: "BadDigest", transient: true},
		{op: opPut, status: 400, code: "XAmzContentSHA256Mismatch", transient: true},
		{op: opPut, status: 400, code: "EntityTooLarge"},
		{op: opGet, status: 301, code: "PermanentRedirect", header: http.Header{"X-Amz-Bucket-Region": {"us-west-2"}}, want: store.ErrConfig, advice: "in region us-west-2, not eu-west-1: set region"},
		{op: opHead, status: 301, header: http.Header{"X-Amz-Bucket-Region": {"us-west-2"}}, want: store.ErrConfig, advice: "us-west-2"},
		{op: opGet, status: 400, code: "AuthorizationHeaderMalformed", want: store.ErrConfig, advice: "another region than eu-west-1"},
		{op: opGet, status: 307, code: "TemporaryRedirect", transient: true},
		{op: opPut, status: 400, code: "KMS.DisabledException", want: store.ErrConfig, advice: "kms:GenerateDataKey"},
		{op: opPut, status: 400, code: "InvalidRequest", message: "Bucket is missing Object Lock Configuration", want: store.ErrConfig, advice: "without object lock"},
		{op: opGet, status: 403, code: "InvalidObjectState", header: http.Header{"X-Amz-Storage-Class": {"GLACIER"}}, advice: "archived in storage class GLACIER"},
		{op: opPut, status: 403, code: "QuotaExceeded", advice: "no room left"},
		{op: opPut, status: 501, code: "NotImplemented"},
		{op: opPut, status: 408, transient: true},
		{op: opPut, status: 429, transient: true},
		{op: opPut, status: 500, code: "InternalError", transient: true},
		{op: opComplete, status: 200, code: "InternalError", transient: true},
		{op: opPut, status: 502, transient: true},
		{op: opPut, status: 503, code: "SlowDown", transient: true},
		{op: opPut, status: 504, transient: true},
	} {
		t.Run(fmt.Sprintf("%s %d %s", tt.op.verb, tt.status, tt.code), func(t *testing.T) {
			x := &exchange{status: tt.status, header: tt.header}
			if tt.header == nil {
				x.header = http.Header{}
			}
			err := b.fail(tt.op, "etcd/key", x, minio.ErrorResponse{StatusCode: tt.status, Code: tt.code, Message: tt.message})
			all := []error{store.ErrNotExist, store.ErrExists, store.ErrAccessDenied, store.ErrMismatch, store.ErrProtected, store.ErrConfig}
			for _, sentinel := range all {
				require.Equal(t, errors.Is(tt.want, sentinel), errors.Is(err, sentinel), "%v: %v", sentinel, err)
			}
			require.Equal(t, tt.transient, !store.IsPermanent(err), "%v", err)
			require.ErrorContains(t, err, tt.op.verb+" s3://backups/etcd/key: ")
			require.ErrorContains(t, err, fmt.Sprint(tt.status))
			require.ErrorContains(t, err, tt.advice)
			require.NotContains(t, err.Error(), "()")
		})
	}
}

func TestRetryAfterIsKept(t *testing.T) {
	x := &exchange{status: 503, header: http.Header{"Retry-After": {"120"}}}
	err := (&Bucket{}).fail(opPut, "key", x, minio.ErrorResponse{StatusCode: 503, Code: "SlowDown"})
	var ra interface{ RetryAfter() time.Duration }
	require.ErrorAs(t, err, &ra)
	require.Equal(t, 2*time.Minute, ra.RetryAfter())
}

func TestClockAdvice(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(d time.Duration) http.Header {
		return http.Header{"Date": {now.Add(d).Format(http.TimeFormat)}}
	}
	require.Contains(t, clockAdvice(at(-20*time.Minute), now), "20m0s ahead")
	require.Contains(t, clockAdvice(at(20*time.Minute), now), "20m0s behind")
	require.Contains(t, clockAdvice(http.Header{}, now), "set the clock")
}

// TestLayout: parts of at least 16 MiB, never more than S3 takes, and all of the object.
func TestLayout(t *testing.T) {
	b := &Bucket{}
	for size, want := range map[int64]parts{
		0:               {0, 16 << 20},
		1:               {1, 16 << 20},
		16 << 20:        {16 << 20, 16 << 20},
		16<<20 + 1:      {16<<20 + 1, 16 << 20},
		8 << 30:         {8 << 30, 16 << 20},
		9000 * 16 << 20: {9000 * 16 << 20, 16 << 20},
		1 << 40:         {1 << 40, (1<<40 + 8999) / 9000},
	} {
		l := b.layout(size)
		require.Equal(t, want, l)
		require.LessOrEqual(t, l.count(), maxParts)
		var sum int64
		for i := range l.count() {
			section := l.part(store.Blob{ReaderAt: bytes.NewReader(nil)}, i)
			sum += section.Size()
			require.True(t, section.Size() > 0 || size == 0)
		}
		require.Equal(t, size, sum)
	}
	require.Equal(t, 1, b.layout(16<<20).count())
	require.Equal(t, 2, b.layout(16<<20+1).count())
	require.Equal(t, 512, b.layout(8<<30).count())
}

// TestSums compares with the sums as S3's documentation defines them.
func TestSums(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789"), 25)
	blob := store.Blob{ReaderAt: bytes.NewReader(data), Size: int64(len(data)), SHA256: sha256.Sum256(data)}
	l, err := parts{blob.Size, 100}.sums(t.Context(), blob)
	require.NoError(t, err)
	var md5s, shas []byte
	for _, part := range [][]byte{data[:100], data[100:200], data[200:]} {
		m, s := md5.Sum(part), sha256.Sum256(part)
		md5s, shas = append(md5s, m[:]...), append(shas, s[:]...)
	}
	m, s := md5.Sum(md5s), sha256.Sum256(shas)
	require.Equal(t, hex.EncodeToString(m[:])+"-3", l.md5)
	require.Equal(t, base64.StdEncoding.EncodeToString(s[:])+"-3", l.composite)
	require.Equal(t, blob.SHA256, l.sha256)

	l, err = parts{blob.Size, 250}.sums(t.Context(), blob)
	require.NoError(t, err)
	m = md5.Sum(data)
	require.Equal(t, hex.EncodeToString(m[:]), l.md5)
	require.Equal(t, base64.StdEncoding.EncodeToString(blob.SHA256[:]), l.composite)

	blob.Size++
	_, err = parts{blob.Size, 100}.sums(t.Context(), blob)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

func TestLocalOrTLS(t *testing.T) {
	for uri, ok := range map[string]bool{
		"http://169.254.170.23/v1/credentials": true, "http://[fd00:ec2::23]/v1/credentials": true, "http://169.254.170.2/x": true,
		"http://127.0.0.1:8080/": true, "http://[::1]/": true, "http://localhost/": true, "https://example.com/": true,
		"http://example.com/": false, "http://10.0.0.1/": false, "http://169.254.169.254/": false, "ftp://127.0.0.1/": false, "/v1": false,
	} {
		u, err := url.Parse(uri)
		require.NoError(t, err)
		require.Equal(t, ok, localOrTLS(u) == nil, uri)
	}
}
