package s3_test

import (
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/require"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/s3"
	"etcdsnapshot.dev/agent/store/storetest"
	"etcdsnapshot.dev/ci/emulator"
)

// The policies of docs/storage-s3.md, as bucket policies for one user: a bucket below a prefix.
const (
	policyFull = `{"Version": "2012-10-17", "Statement": [
		{"Effect": "Allow", "Principal": {"AWS": ["USER"]}, "Action": ["s3:ListBucket", "s3:ListBucketMultipartUploads"], "Resource": "arn:aws:s3:::BUCKET"},
		{"Effect": "Allow", "Principal": {"AWS": ["USER"]}, "Action": ["s3:PutObject", "s3:GetObject", "s3:DeleteObject", "s3:AbortMultipartUpload"], "Resource": "arn:aws:s3:::BUCKET/etcd/*"}]}`
	policyNoDelete = `{"Version": "2012-10-17", "Statement": [
		{"Effect": "Allow", "Principal": {"AWS": ["USER"]}, "Action": ["s3:ListBucket", "s3:ListBucketMultipartUploads"], "Resource": "arn:aws:s3:::BUCKET"},
		{"Effect": "Allow", "Principal": {"AWS": ["USER"]}, "Action": ["s3:PutObject", "s3:GetObject", "s3:AbortMultipartUpload"], "Resource": "arn:aws:s3:::BUCKET/etcd/*"}]}`
	policyWriteOnly = `{"Version": "2012-10-17", "Statement": [
		{"Effect": "Allow", "Principal": {"AWS": ["USER"]}, "Action": ["s3:PutObject", "s3:AbortMultipartUpload"], "Resource": "arn:aws:s3:::BUCKET/etcd/*"}]}`
	policyReadOnly = `{"Version": "2012-10-17", "Statement": [
		{"Effect": "Allow", "Principal": {"AWS": ["USER"]}, "Action": "s3:ListBucket", "Resource": "arn:aws:s3:::BUCKET"},
		{"Effect": "Allow", "Principal": {"AWS": ["USER"]}, "Action": "s3:GetObject", "Resource": "arn:aws:s3:::BUCKET/etcd/*"}]}`
)

// newUser gives the destination of a user with this policy.
func newUser(t *testing.T, srv *emulator.S3, name, policy string) *v1.S3Destination {
	t.Helper()
	secret, err := srv.NewUser(t.Context(), name)
	require.NoError(t, err)
	spec := newSpec(t, srv, srv.Endpoint, emulator.S3BucketOptions{Policy: strings.ReplaceAll(policy, "USER", name)})
	spec.Auth = staticAuth(t, name, secret)
	return spec
}

func TestLeastRights(t *testing.T) {
	srv := emulator.StartS3(t)
	small, large := storetest.Blob(1, sizes["whole"]), storetest.Blob(2, sizes["parts"])
	prefixed := func(t *testing.T, b *s3.Bucket, dir string) store.Store {
		s, err := store.Prefixed(b, dir)
		require.NoError(t, err)
		return s
	}
	denied := func(t *testing.T, err error, permission string) {
		t.Helper()
		require.ErrorIs(t, err, store.ErrAccessDenied)
		require.ErrorContains(t, err, permission)
	}
	t.Run("full", func(t *testing.T) {
		b := open(t, newUser(t, srv, "full", policyFull), s3.Options{})
		require.NoError(t, storetest.CheckList(t.Context(), b, "etcd/"))
		s := prefixed(t, b, "etcd")
		require.NoError(t, s.Put(t.Context(), "small", small))
		require.NoError(t, s.Put(t.Context(), "large", large))
		require.ErrorIs(t, s.Put(t.Context(), "small", small), store.ErrExists)
		require.NoError(t, s.Check(t.Context(), "small", small))
		require.NoError(t, s.Check(t.Context(), "large", large))
		require.NoError(t, store.VerifyFull(t.Context(), s, "large", large, nil))
		require.Equal(t, []string{"large", "small"}, keys(t, s))
		_, err := store.SweepUploads(t.Context(), s, "", time.Now(), func(string) bool { return true })
		require.NoError(t, err)
		require.NoError(t, s.Delete(t.Context(), "small"))
		require.NoError(t, s.Delete(t.Context(), "large"))
		denied(t, prefixed(t, b, "elsewhere").Put(t.Context(), "small", small), "s3:GetObject")
	})
	t.Run("no delete", func(t *testing.T) {
		spec := newUser(t, srv, "nodelete", policyNoDelete)
		s := prefixed(t, open(t, spec, s3.Options{}), "etcd")
		require.NoError(t, s.Put(t.Context(), "small", small))
		require.NoError(t, s.Put(t.Context(), "large", large))
		require.NoError(t, s.Check(t.Context(), "large", large))
		denied(t, s.Delete(t.Context(), "large"), "s3:DeleteObject")
		require.Equal(t, []string{"large", "small"}, keys(t, s))
		// What it has begun it can abandon.
		core := minio.Core{Client: admin(t, srv)}
		_, err := core.NewMultipartUpload(t.Context(), spec.Bucket, "etcd/left", minio.PutObjectOptions{})
		require.NoError(t, err)
		n, err := store.SweepUploads(t.Context(), s, "", time.Now().Add(time.Minute), func(string) bool { return true })
		require.NoError(t, err)
		require.Equal(t, 1, n)
	})
	t.Run("write only", func(t *testing.T) {
		b := open(t, newUser(t, srv, "writeonly", policyWriteOnly), s3.Options{})
		denied(t, storetest.CheckList(t.Context(), b, "etcd/"), "s3:ListBucket")
		// This service is not known to keep create-only itself, so looking is needed (TestAWS: there it is not).
		err := prefixed(t, b, "etcd").Put(t.Context(), "small", small)
		denied(t, err, "s3:GetObject")
		require.ErrorContains(t, err, "the key may be taken")
	})
	t.Run("read only", func(t *testing.T) {
		spec := newUser(t, srv, "readonly", policyReadOnly)
		own := *spec
		own.Auth = staticAuth(t, srv.AccessKey, srv.SecretKey)
		require.NoError(t, open(t, &own, s3.Options{}).Put(t.Context(), "etcd/small", small))
		s := prefixed(t, open(t, spec, s3.Options{}), "etcd")
		require.Equal(t, []string{"small"}, keys(t, s))
		require.NoError(t, store.VerifyFull(t.Context(), s, "small", small, nil))
		denied(t, s.Put(t.Context(), "new", small), "s3:PutObject")
		denied(t, s.Put(t.Context(), "new", large), "s3:PutObject")
		denied(t, s.Delete(t.Context(), "small"), "s3:DeleteObject")
	})
}

// TestAWS: what is done differently at AWS, asked for by AWS's name through a proxy that leads to our server. The
// variables of the environment count once in a process, hence the helper.
func TestAWS(t *testing.T) {
	srv := emulator.StartS3(t)
	p := emulator.StartFaultProxy(t, srv.Endpoint, emulator.ProxyConfig{})
	spec := newUser(t, srv, "writeonly", policyWriteOnly)
	full := staticAuth(t, srv.AccessKey, srv.SecretKey)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestAWSHelper$", "-test.v")
	cmd.Env = append(os.Environ(), "HTTP_PROXY="+p.URL, helperEnv+"="+strings.Join([]string{spec.Bucket, spec.Auth.CredentialsDir, full.CredentialsDir}, " "))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))

	requests := p.Requests(emulator.Rule{Match: func(r *http.Request) bool { return r.Method == http.MethodPut || r.Method == http.MethodPost }})
	require.Len(t, requests, 7)
	for _, r := range requests {
		q := r.URL.Query()
		switch {
		case q.Has("uploads"):
			require.Equal(t, "SHA256", r.Header.Get("X-Amz-Checksum-Algorithm"))
		case q.Has("partNumber"):
			require.NotEmpty(t, r.Header.Get("X-Amz-Checksum-Sha256"))
		case r.Method == http.MethodPut:
			require.NotEmpty(t, r.Header.Get("X-Amz-Checksum-Sha256"))
			fallthrough
		default:
			require.Equal(t, "*", r.Header.Get("If-None-Match"))
		}
	}
	heads := p.Requests(emulator.Rule{Method: http.MethodHead})
	require.False(t, slices.ContainsFunc(heads, func(r emulator.Request) bool { return r.Header.Get("X-Amz-Checksum-Mode") != "ENABLED" }))
}

func TestAWSHelper(t *testing.T) {
	args := strings.Fields(os.Getenv(helperEnv))
	if len(args) != 3 || os.Getenv("HTTP_PROXY") == "" {
		return // not that process
	}
	spec := &v1.S3Destination{
		Bucket: args[0], Endpoint: "http://s3.us-east-1.amazonaws.com", AddressingStyle: v1.S3AddressingPath,
		Auth: v1.S3Auth{Method: v1.S3AuthStatic, CredentialsDir: args[1]},
	}
	var log buffer
	b := open(t, spec, s3.Options{Logger: logTo(&log)})
	small, large := storetest.Blob(1, sizes["whole"]), storetest.Blob(2, sizes["parts"])
	require.NoError(t, b.Put(t.Context(), "etcd/small", small), "a write-only identity is enough")
	require.NoError(t, b.Put(t.Context(), "etcd/large", large))
	require.ErrorIs(t, b.Put(t.Context(), "etcd/small", storetest.Blob(3, 10)), store.ErrExists)
	require.ErrorIs(t, b.Check(t.Context(), "etcd/small", small), store.ErrAccessDenied)
	require.Contains(t, log.String(), `msg="create-only by If-None-Match"`)

	spec.Auth.CredentialsDir = args[2]
	b = open(t, spec, s3.Options{})
	require.NoError(t, b.Check(t.Context(), "etcd/small", small))
	require.NoError(t, b.Check(t.Context(), "etcd/large", large))
	require.Equal(t, []string{"etcd/large", "etcd/small"}, keys(t, b))
}
