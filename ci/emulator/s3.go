package emulator

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"etcdsnapshot.dev/ci/parts"
)

// S3Part names the part with the S3 server, versitygw: an S3 server over a folder that knows conditional writes,
// checksums, versions, object lock, users and bucket policies. It ignores server-side encryption.
const S3Part = "versitygw"

// S3Config is what an S3 server needs.
type S3Config struct {
	// Binary is the versitygw program.
	Binary string
	// Dir is an empty folder for all that the server keeps. It is the caller's to remove.
	Dir string
}

// S3 is one S3 server.
type S3 struct {
	// Endpoint is the server's URL.
	Endpoint string
	// AccessKey and SecretKey are those of the server's administrator.
	AccessKey, SecretKey string
	// Region that the server believes to be in.
	Region string

	config S3Config
	port   int
	proc   process

	mu      sync.Mutex
	buckets int
}

// StartS3 starts a server for a test, which it ends with.
func StartS3(tb testing.TB) *S3 {
	tb.Helper()
	s, err := RunS3(tb.Context(), S3Config{Binary: filepath.Join(parts.Require(tb, S3Part), S3Part), Dir: tb.TempDir()})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Stop(); err != nil {
			tb.Errorf("stop %s: %v", S3Part, err)
		}
	})
	return s
}

// RunS3 starts a server and waits until it answers. ctx bounds the start alone.
func RunS3(ctx context.Context, config S3Config) (*S3, error) {
	s := &S3{AccessKey: "admin-access-key", SecretKey: "admin-secret-key", Region: "us-east-1", config: config, proc: process{name: S3Part}}
	for _, dir := range []string{"data", "meta", "versions", "users"} {
		if err := os.MkdirAll(filepath.Join(config.Dir, dir), 0o700); err != nil {
			return nil, err
		}
	}
	err := onFreePort(func(port int) error {
		s.port, s.Endpoint = port, fmt.Sprintf("http://127.0.0.1:%d", port)
		return s.Start(ctx)
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Start starts the server again where it was, after Stop or Kill.
func (s *S3) Start(ctx context.Context) error {
	dir := func(name string) string { return filepath.Join(s.config.Dir, name) }
	cmd := exec.Command(s.config.Binary,
		"--port", fmt.Sprintf("127.0.0.1:%d", s.port), "--region", s.Region, "--quiet",
		"--health", "/healthz", "--iam-dir", dir("users"), "--iam-cache-disable",
		"posix", "--sidecar", dir("meta"), "--versioning-dir", dir("versions"), dir("data"))
	// What the user has set for a server of his own must not reach this one.
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "VGW_") && !strings.HasPrefix(kv, "ROOT_") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, "ROOT_ACCESS_KEY="+s.AccessKey, "ROOT_SECRET_KEY="+s.SecretKey)
	return s.proc.start(ctx, cmd, s.config.Dir, answers(s.Endpoint+"/healthz"))
}

// Stop ends the server.
func (s *S3) Stop() error { return s.proc.stop() }

// Kill ends the server as a crash would.
func (s *S3) Kill() error { return s.proc.kill() }

// S3BucketOptions is what a bucket can have from its start.
type S3BucketOptions struct {
	// Versioned keeps what is deleted or replaced as older versions.
	Versioned bool
	// ObjectLock allows locks on objects, and makes the bucket versioned.
	ObjectLock bool
	// Policy is the bucket's policy (JSON). Each BUCKET in it becomes the bucket's name.
	Policy string
}

// NewBucket makes a bucket with a name that this server has not had yet.
func (s *S3) NewBucket(ctx context.Context, o S3BucketOptions) (name string, err error) {
	s.mu.Lock()
	s.buckets++
	name = fmt.Sprintf("bucket-%d", s.buckets)
	s.mu.Unlock()
	c, closeIdle, err := s.Client()
	if err != nil {
		return "", err
	}
	defer closeIdle()
	if err := c.MakeBucket(ctx, name, minio.MakeBucketOptions{ObjectLocking: o.ObjectLock}); err != nil {
		return "", fmt.Errorf("make bucket %s: %w", name, err)
	}
	if o.Versioned {
		if err := c.EnableVersioning(ctx, name); err != nil {
			return "", fmt.Errorf("make bucket %s versioned: %w", name, err)
		}
	}
	if o.Policy != "" {
		if err := c.SetBucketPolicy(ctx, name, strings.ReplaceAll(o.Policy, "BUCKET", name)); err != nil {
			return "", fmt.Errorf("set policy of bucket %s: %w", name, err)
		}
	}
	return name, nil
}

// NewUser makes a user who may do nothing but what bucket policies say, and tells the secret key.
func (s *S3) NewUser(ctx context.Context, accessKey string) (secretKey string, err error) {
	secretKey = "secret-of-" + accessKey
	cmd := exec.CommandContext(ctx, s.config.Binary, "admin", "--endpoint-url", s.Endpoint, "--region", s.Region,
		"create-user", "--access", accessKey, "--secret", secretKey, "--role", "user")
	cmd.Env = append(os.Environ(), "ADMIN_ACCESS_KEY="+s.AccessKey, "ADMIN_SECRET_KEY="+s.SecretKey)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("make user %s: %w\n%s", accessKey, err, out)
	}
	return secretKey, nil
}

// Client is the administrator's client, to look behind the back of the code under test. closeIdle closes the
// connections it kept.
func (s *S3) Client() (c *minio.Client, closeIdle func(), err error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	c, err = minio.New(strings.TrimPrefix(s.Endpoint, "http://"), &minio.Options{
		Creds: credentials.NewStaticV4(s.AccessKey, s.SecretKey, ""), Region: s.Region, Transport: transport,
	})
	return c, transport.CloseIdleConnections, err
}

// Folder is where the server keeps a bucket's objects, each a file: a quick way to fill it behind the server's back.
func (s *S3) Folder(bucket string) string { return filepath.Join(s.config.Dir, "data", bucket) }
