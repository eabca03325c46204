package s3_test

import (
	"bufio"
	"context"
	"crypto/md5"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"os/exec"
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

// TestHeaders stores an object in one request and one in parts with each option, and looks at what was sent.
func TestHeaders(t *testing.T) {
	srv := emulator.StartS3(t)
	rawKey := strings.Repeat("k", 32)
	keyMD5 := md5.Sum([]byte(rawKey))
	customer := map[string]string{
		"X-Amz-Server-Side-Encryption-Customer-Algorithm": "AES256",
		"X-Amz-Server-Side-Encryption-Customer-Key":       base64.StdEncoding.EncodeToString([]byte(rawKey)),
		"X-Amz-Server-Side-Encryption-Customer-Key-Md5":   base64.StdEncoding.EncodeToString(keyMD5[:]),
	}
	until := time.Now().AddDate(0, 0, 7).UTC().Format("2006-01-02")
	tests := map[string]struct {
		set func(t *testing.T, s *v1.S3Destination)
		// object are the headers of the request that begins an object, and all those of every request.
		object, all map[string]string
		lock        bool
	}{
		"plain": {object: map[string]string{
			"Content-Type": "application/zstd", "X-Amz-Server-Side-Encryption": "", "X-Amz-Storage-Class": "", "X-Amz-Tagging": "",
			"X-Amz-Object-Lock-Mode": "", "X-Amz-Checksum-Sha256": "", "X-Amz-Checksum-Algorithm": "", "X-Amz-Checksum-Mode": "", "Content-Md5": "",
		}},
		"SSE-S3": {object: map[string]string{"X-Amz-Server-Side-Encryption": "AES256"}, set: func(_ *testing.T, s *v1.S3Destination) {
			s.ServerSideEncryption = &v1.S3ServerSideEncryption{Type: v1.S3SSES3}
		}},
		"SSE-KMS": {object: map[string]string{"X-Amz-Server-Side-Encryption": "aws:kms", "X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id": ""}, set: func(_ *testing.T, s *v1.S3Destination) {
			s.ServerSideEncryption = &v1.S3ServerSideEncryption{Type: v1.S3SSEKMS}
		}},
		"SSE-KMS with a key": {object: map[string]string{"X-Amz-Server-Side-Encryption": "aws:kms", "X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id": "arn:aws:kms:k"}, set: func(_ *testing.T, s *v1.S3Destination) {
			s.ServerSideEncryption = &v1.S3ServerSideEncryption{Type: v1.S3SSEKMS, KMSKeyID: "arn:aws:kms:k"}
		}},
		"SSE-C, raw key": {all: customer, set: func(t *testing.T, s *v1.S3Destination) {
			s.ServerSideEncryption = &v1.S3ServerSideEncryption{Type: v1.S3SSEC, KeyDir: secretDir(t, map[string]string{"sse-c-key": rawKey})}
		}},
		"SSE-C, base64 key": {all: customer, set: func(t *testing.T, s *v1.S3Destination) {
			encoded := base64.StdEncoding.EncodeToString([]byte(rawKey)) + "\n"
			s.ServerSideEncryption = &v1.S3ServerSideEncryption{Type: v1.S3SSEC, KeyDir: secretDir(t, map[string]string{"sse-c-key": encoded})}
		}},
		"storage class": {object: map[string]string{"X-Amz-Storage-Class": "STANDARD"}, set: func(_ *testing.T, s *v1.S3Destination) {
			s.StorageClass = "STANDARD"
		}},
		"tags": {object: map[string]string{"X-Amz-Tagging": "cluster=prod&team=a%2Fb"}, set: func(_ *testing.T, s *v1.S3Destination) {
			s.Tags = map[string]string{"cluster": "prod", "team": "a/b"}
		}},
		"metadata": {object: map[string]string{"X-Amz-Meta-Cluster": "prod", "X-Amz-Meta-Content-Type": "mine", "X-Amz-Meta-Empty": "", "Content-Type": "application/zstd"}, set: func(_ *testing.T, s *v1.S3Destination) {
			s.Metadata = map[string]string{"cluster": "prod", "Content-Type": "mine", "empty": ""}
		}},
		"object lock": {lock: true, object: map[string]string{"X-Amz-Object-Lock-Mode": "GOVERNANCE", "X-Amz-Object-Lock-Retain-Until-Date": until}, set: func(_ *testing.T, s *v1.S3Destination) {
			s.ObjectLock = &v1.S3ObjectLock{Mode: "GOVERNANCE", Days: 7}
		}},
		"legal hold": {lock: true, object: map[string]string{"X-Amz-Object-Lock-Legal-Hold": "ON", "X-Amz-Object-Lock-Mode": ""}, set: func(_ *testing.T, s *v1.S3Destination) {
			s.ObjectLock = &v1.S3ObjectLock{LegalHold: true}
		}},
		"object lock without checksums": {lock: true, set: func(_ *testing.T, s *v1.S3Destination) {
			s.ObjectLock, s.Checksums = &v1.S3ObjectLock{Mode: "COMPLIANCE", Days: 1}, v1.S3ChecksumsNever
		}},
		"checksums": {set: func(_ *testing.T, s *v1.S3Destination) { s.Checksums = v1.S3ChecksumsAlways }},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := emulator.StartFaultProxy(t, srv.Endpoint, emulator.ProxyConfig{TLS: true})
			spec := newSpec(t, srv, p.URL, emulator.S3BucketOptions{ObjectLock: tt.lock})
			spec.CABundleFile = writeFile(t, string(p.CA))
			if tt.set != nil {
				tt.set(t, spec)
			}
			b := open(t, spec, s3.Options{})
			small, large := storetest.Blob(1, 1000), storetest.Blob(2, sizes["parts"])
			small.ContentType, large.ContentType = "application/zstd", "application/zstd"
			require.NoError(t, b.Put(t.Context(), "small", small))
			require.NoError(t, b.Put(t.Context(), "large", large))
			require.NoError(t, b.Check(t.Context(), "small", small))
			require.NoError(t, b.Check(t.Context(), "large", large))

			begin := append(p.Requests(emulator.Rule{Method: http.MethodPut, Path: "/small"}), p.Requests(emulator.Rule{Method: http.MethodPost, Path: "/large", Query: "uploads="})...)
			require.Len(t, begin, 2)
			for _, r := range begin {
				for h, want := range tt.object {
					got := r.Header.Get(h)
					if want == "" {
						require.NotContains(t, r.Header, h)
					} else if h == "X-Amz-Object-Lock-Retain-Until-Date" {
						require.Equal(t, want, got[:len(want)])
					} else {
						require.Equal(t, want, got, h)
					}
				}
			}
			for _, r := range p.Requests(emulator.Rule{}) {
				for h, want := range tt.all {
					require.Equal(t, want, r.Header.Get(h), "%s of %s %s", h, r.Method, r.URL)
				}
			}
			content := append(p.Requests(emulator.Rule{Method: http.MethodPut, Path: "/small"}), p.Requests(emulator.Rule{Query: "partNumber="})...)
			require.Len(t, content, 4)
			for _, r := range content {
				require.Len(t, r.Header.Get("X-Amz-Content-Sha256"), 64, "the server verifies the content")
				require.Equal(t, tt.lock, r.Header.Get("Content-Md5") != "", "Content-MD5 where one is required")
				sum := spec.Checksums == v1.S3ChecksumsAlways || tt.lock && spec.Checksums != v1.S3ChecksumsNever
				require.Equal(t, sum, r.Header.Get("X-Amz-Checksum-Sha256") != "", "checksum")
			}
		})
	}
}

func TestBadSpec(t *testing.T) {
	for name, tt := range map[string]struct {
		set  func(s *v1.S3Destination)
		want string
	}{
		"bucket":           {func(s *v1.S3Destination) { s.Bucket = "Not_A_Bucket" }, "bucket: "},
		"directory bucket": {func(s *v1.S3Destination) { s.Bucket = "backups--use1-az4--x-s3" }, "bucket: directory buckets"},
		"endpoint":         {func(s *v1.S3Destination) { s.Endpoint = "s3.example.com" }, "endpoint: "},
		"user in endpoint": {func(s *v1.S3Destination) { s.Endpoint = "https://user:secret@s3.example.com" }, "endpoint: "},
		"checksums":        {func(s *v1.S3Destination) { s.Checksums = "sometimes" }, "checksums: "},
		"tags":             {func(s *v1.S3Destination) { s.Tags = map[string]string{strings.Repeat("k", 200): "v"} }, "tags: "},
		"archive":          {func(s *v1.S3Destination) { s.StorageClass = "DEEP_ARCHIVE" }, "storageClass: objects in DEEP_ARCHIVE cannot be read"},
		"metadata name":    {func(s *v1.S3Destination) { s.Metadata = map[string]string{"a b": "v"} }, `metadata: "a b"`},
		"metadata value":   {func(s *v1.S3Destination) { s.Metadata = map[string]string{"a": "b\nc"} }, `metadata: the value of "a"`},
		"lock":             {func(s *v1.S3Destination) { s.ObjectLock = &v1.S3ObjectLock{Mode: "GOVERNANCE"} }, "objectLock: "},
		"CA missing":       {func(s *v1.S3Destination) { s.CABundleFile = "/nowhere.pem" }, "caBundleFile: open /nowhere.pem"},
		"CA empty":         {func(s *v1.S3Destination) { s.CABundleFile = "/dev/null" }, "caBundleFile: /dev/null holds no certificate"},
		"SSE type":         {func(s *v1.S3Destination) { s.ServerSideEncryption = &v1.S3ServerSideEncryption{Type: "x"} }, "serverSideEncryption: type"},
		"SSE-C key missing": {func(s *v1.S3Destination) {
			s.ServerSideEncryption = &v1.S3ServerSideEncryption{Type: "SSE-C", KeyDir: "/nowhere"}
		}, "serverSideEncryption: keyDir: open /nowhere/sse-c-key"},
		"SSE-C key too short": {func(s *v1.S3Destination) {
			s.ServerSideEncryption = &v1.S3ServerSideEncryption{Type: "SSE-C", KeyDir: secretDir(t, map[string]string{"sse-c-key": "secret"})}
		}, "holds neither 32 bytes nor their base64, but 6 bytes"},
		"SSE-C in the clear": {func(s *v1.S3Destination) {
			s.Endpoint = "http://s3.example.com"
			s.ServerSideEncryption = &v1.S3ServerSideEncryption{Type: "SSE-C", KeyDir: secretDir(t, map[string]string{"sse-c-key": strings.Repeat("k", 32)})}
		}, "SSE-C sends its key with each request and needs https"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := &v1.S3Destination{Bucket: "backups", Auth: staticAuth(t, "a", "b")}
			tt.set(spec)
			_, err := s3.New(t.Context(), spec, s3.Options{Logger: quiet})
			require.ErrorIs(t, err, store.ErrConfig)
			require.ErrorContains(t, err, tt.want)
			require.NotContains(t, err.Error(), "secret@")
		})
	}
}

// TestOpaqueETag: an ETag that is no MD5 is no sign of damage. The object is read back, and that decides.
func TestOpaqueETag(t *testing.T) {
	srv := emulator.StartS3(t)
	for name, header := range map[string]http.Header{
		"SSE-KMS":     {"X-Amz-Server-Side-Encryption": {"aws:kms"}, "Etag": {`"0123456789abcdef0123456789abcdef"`}},
		"of its own":  {"Etag": {`"some-7"`}},
		"none":        {"Etag": nil},
		"other parts": {"Etag": {`"0123456789abcdef0123456789abcdef-2"`}},
	} {
		for kind, size := range sizes {
			t.Run(name+", "+kind, func(t *testing.T) {
				p := emulator.StartFaultProxy(t, srv.Endpoint, emulator.ProxyConfig{})
				b := open(t, newSpec(t, srv, p.URL, emulator.S3BucketOptions{}), s3.Options{})
				blob := storetest.Blob(1, size)
				require.NoError(t, b.Put(t.Context(), "key", blob))
				p.Add(emulator.Rule{Method: http.MethodHead, Response: emulator.Fault{Rewrite: func(h http.Header) {
					for k, v := range header {
						h[k] = v
					}
				}}})
				require.NoError(t, b.Check(t.Context(), "key", blob))
				require.Equal(t, 1, p.Count(emulator.Rule{Method: http.MethodGet, Path: "/key"}), "read back")
				require.ErrorIs(t, b.Check(t.Context(), "key", storetest.Blob(2, size)), store.ErrMismatch)
			})
		}
	}
}

// TestCheckWithoutContent: a verification of an old snapshot has no spool file any more.
func TestCheckWithoutContent(t *testing.T) {
	srv := emulator.StartS3(t)
	for name, size := range sizes {
		for _, checksums := range []string{v1.S3ChecksumsAlways, v1.S3ChecksumsNever} {
			t.Run(name+", checksums "+checksums, func(t *testing.T) {
				p := emulator.StartFaultProxy(t, srv.Endpoint, emulator.ProxyConfig{})
				spec := newSpec(t, srv, p.URL, emulator.S3BucketOptions{})
				spec.Checksums = checksums
				b := open(t, spec, s3.Options{})
				blob := storetest.Blob(1, size)
				require.NoError(t, b.Put(t.Context(), "key", blob))
				blob.ReaderAt = nil
				require.NoError(t, b.Check(t.Context(), "key", blob))
				reads := p.Count(emulator.Rule{Method: http.MethodGet, Path: "/key"})
				require.Equal(t, name == "whole" && checksums == v1.S3ChecksumsAlways, reads == 0)
				blob.SHA256[0] ^= 1
				err := b.Check(t.Context(), "key", blob)
				require.ErrorIs(t, err, store.ErrMismatch)
			})
		}
	}
}

func TestVersionedBucket(t *testing.T) {
	srv := emulator.StartS3(t)
	p := emulator.StartFaultProxy(t, srv.Endpoint, emulator.ProxyConfig{})
	spec := newSpec(t, srv, p.URL, emulator.S3BucketOptions{Versioned: true})
	b := open(t, spec, s3.Options{})
	for name, size := range sizes {
		require.NoError(t, b.Put(t.Context(), name, storetest.Blob(1, size)))
		require.ErrorIs(t, b.Put(t.Context(), name, storetest.Blob(2, size)), store.ErrExists)
	}
	require.NoError(t, b.Delete(t.Context(), "whole"))
	require.NoError(t, b.Delete(t.Context(), "whole"), "once more")
	require.Equal(t, []string{"parts"}, keys(t, b))
	_, err := b.Get(t.Context(), "whole", 0)
	require.ErrorIs(t, err, store.ErrNotExist)
	require.ErrorIs(t, b.Check(t.Context(), "whole", storetest.Blob(1, sizes["whole"])), store.ErrNotExist)

	versions := func() (data, markers int) {
		for o := range admin(t, srv).ListObjects(t.Context(), spec.Bucket, minio.ListObjectsOptions{Prefix: "whole", WithVersions: true}) {
			require.NoError(t, o.Err)
			if o.IsDeleteMarker {
				markers++
			} else {
				data++
			}
		}
		return data, markers
	}
	data, markers := versions()
	require.Equal(t, 1, data, "the data is an older version now")
	require.Equal(t, 1, markers, "behind one delete marker")
	require.Equal(t, 1, p.Count(emulator.Rule{Method: http.MethodDelete}))

	// AWS takes a delete marker for no object, so the key is free again. This server's If-None-Match does not; no
	// key of a snapshot is used twice.
}

func TestLockedObject(t *testing.T) {
	srv := emulator.StartS3(t)
	for name, lock := range map[string]*v1.S3ObjectLock{
		"retention":  {Mode: "GOVERNANCE", Days: 1},
		"legal hold": {LegalHold: true},
	} {
		for kind, size := range sizes {
			t.Run(name+", "+kind, func(t *testing.T) {
				spec := newSpec(t, srv, srv.Endpoint, emulator.S3BucketOptions{ObjectLock: true})
				spec.ObjectLock = lock
				b := open(t, spec, s3.Options{})
				blob := storetest.Blob(1, size)
				require.NoError(t, b.Put(t.Context(), "key", blob))
				err := b.Delete(t.Context(), "key")
				require.ErrorIs(t, err, store.ErrProtected)
				require.ErrorContains(t, err, map[string]string{"retention": "it is locked until ", "legal hold": "it is under a legal hold"}[name])
				require.Equal(t, []string{"key"}, keys(t, b), "not hidden behind a delete marker")
				require.NoError(t, b.Check(t.Context(), "key", blob))
				if name == "legal hold" {
					off := minio.LegalHoldDisabled
					require.NoError(t, admin(t, srv).PutObjectLegalHold(t.Context(), spec.Bucket, "key", minio.PutObjectLegalHoldOptions{Status: &off}))
					require.NoError(t, b.Delete(t.Context(), "key"))
					require.Empty(t, keys(t, b))
				}
			})
		}
	}
	t.Run("bucket without object lock", func(t *testing.T) {
		spec := newSpec(t, srv, srv.Endpoint, emulator.S3BucketOptions{})
		spec.ObjectLock = &v1.S3ObjectLock{Mode: "GOVERNANCE", Days: 1}
		err := open(t, spec, s3.Options{}).Put(t.Context(), "key", storetest.Text("content"))
		require.ErrorIs(t, err, store.ErrConfig)
		require.ErrorContains(t, err, "the bucket was made without object lock")
	})
}

func TestPrefixForms(t *testing.T) {
	srv := emulator.StartS3(t)
	b := open(t, newSpec(t, srv, srv.Endpoint, emulator.S3BucketOptions{}), s3.Options{})
	for i, prefix := range []string{"a", "a/", "/a//b"} {
		s, err := store.Prefixed(b, prefix)
		require.NoError(t, err)
		require.NoError(t, s.Put(t.Context(), fmt.Sprint("key", i), storetest.Text(prefix)))
	}
	require.Equal(t, []string{"a/b/key2", "a/key0", "a/key1"}, keys(t, b))
	a, err := store.Prefixed(b, "a//")
	require.NoError(t, err)
	require.Equal(t, []string{"b/key2", "key0", "key1"}, keys(t, a))
	require.Equal(t, b.String()+"/a", a.String())
}

func TestSweepUploads(t *testing.T) {
	srv := emulator.StartS3(t)
	spec := newSpec(t, srv, srv.Endpoint, emulator.S3BucketOptions{})
	b := open(t, spec, s3.Options{})
	core := minio.Core{Client: admin(t, srv)}
	for _, key := range []string{"etcd/prod/etcd-1.db", "etcd/prod/etcd-2.db", "etcd/prod/foreign", "etcd/prod-2/etcd-3.db", "other"} {
		_, err := core.NewMultipartUpload(t.Context(), spec.Bucket, key, minio.PutObjectOptions{})
		require.NoError(t, err)
	}
	uploads := func() (ks []string) {
		for u := range core.ListIncompleteUploads(t.Context(), spec.Bucket, "", true) {
			require.NoError(t, u.Err)
			ks = append(ks, u.Key)
		}
		return ks
	}
	mine := func(key string) bool { return strings.HasSuffix(key, ".db") }
	s, err := store.Prefixed(b, "etcd/prod")
	require.NoError(t, err)

	n, err := store.SweepUploads(t.Context(), s, "", time.Now().Add(-24*time.Hour), mine)
	require.NoError(t, err)
	require.Zero(t, n, "all are too young")
	require.Len(t, uploads(), 5)

	n, err = store.SweepUploads(t.Context(), s, "", time.Now().Add(time.Hour), mine)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Equal(t, []string{"etcd/prod-2/etcd-3.db", "etcd/prod/foreign", "other"}, uploads())
}

// TestKilled: a process is killed in the middle of an upload. Nothing is to be seen, the next one can store, and what
// was sent is swept.
func TestKilled(t *testing.T) {
	srv := emulator.StartS3(t)
	spec := newSpec(t, srv, srv.Endpoint, emulator.S3BucketOptions{})
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestKilledHelper$", "-test.v")
	cmd.Env = append(os.Environ(), helperEnv+"="+strings.Join([]string{spec.Endpoint, spec.Bucket, spec.Auth.CredentialsDir}, " "))
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	for lines.Scan() && !strings.Contains(lines.Text(), halfWay) {
	}
	require.NoError(t, cmd.Process.Kill())
	require.ErrorContains(t, cmd.Wait(), "killed")

	b := open(t, spec, s3.Options{})
	require.Empty(t, keys(t, b))
	blob := storetest.Blob(1, 8*minPartSize)
	require.NoError(t, b.Put(t.Context(), "key", blob))
	require.NoError(t, b.Check(t.Context(), "key", blob))
	n, err := b.SweepUploads(t.Context(), "", time.Now().Add(time.Minute), func(key string) bool { return key == "key" })
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.NoError(t, b.Check(t.Context(), "key", blob))
}

const (
	helperEnv = "S3_TEST_HELPER"
	halfWay   = "half of it is read"
)

// TestKilledHelper is the process that is killed.
func TestKilledHelper(t *testing.T) {
	args := strings.Fields(os.Getenv(helperEnv))
	if len(args) != 3 {
		return // not that process
	}
	spec := &v1.S3Destination{Endpoint: args[0], Bucket: args[1], Auth: v1.S3Auth{Method: v1.S3AuthStatic, CredentialsDir: args[2]}}
	b := open(t, spec, s3.Options{Parallelism: 1})
	blob := storetest.Blob(1, 8*minPartSize)
	blob.ReaderAt = hanging{blob, 4 * minPartSize}
	_ = b.Put(context.Background(), "key", blob)
}

// hanging says so when it is read beyond a point, and waits.
type hanging struct {
	store.Blob
	after int64
}

func (h hanging) ReadAt(p []byte, off int64) (int, error) {
	if off > h.after && off < h.Size-1 {
		fmt.Println(halfWay)
		select {}
	}
	return h.Blob.ReadAt(p, off)
}
