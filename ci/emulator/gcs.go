package emulator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"etcdsnapshot.dev/ci/parts"
)

// GCSPart names the part with fake-gcs-server, a server of Cloud Storage's JSON API. It knows preconditions, checksums
// of uploads that come in one request, and versions (in memory). It knows no identities, holds and retention policies,
// and of resumable uploads only what goes well: see GCSUploads for the rest.
const GCSPart = "fake-gcs-server"

// GCSConfig is what a server of Cloud Storage needs.
type GCSConfig struct {
	// Binary is the fake-gcs-server program.
	Binary string
	// Dir is an empty folder for all that the server keeps. It is the caller's to remove.
	Dir string
	// Files keeps objects in files instead of in memory: they survive the server, but an object cannot have the name
	// of another one's folder, and there are no versions.
	Files bool
}

// GCS is one server of Cloud Storage.
type GCS struct {
	// Endpoint is the server's URL.
	Endpoint string

	config GCSConfig
	port   int
	proc   process

	mu      sync.Mutex
	buckets int
}

// StartGCS starts a server for a test, which it ends with.
func StartGCS(tb testing.TB) *GCS {
	tb.Helper()
	g, err := RunGCS(tb.Context(), GCSConfig{Binary: filepath.Join(parts.Require(tb, GCSPart), GCSPart), Dir: tb.TempDir()})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := g.Stop(); err != nil {
			tb.Errorf("stop %s: %v", GCSPart, err)
		}
	})
	return g
}

// RunGCS starts a server and waits until it answers. ctx bounds the start alone.
func RunGCS(ctx context.Context, config GCSConfig) (*GCS, error) {
	g := &GCS{config: config, proc: process{name: GCSPart}}
	if err := os.MkdirAll(filepath.Join(config.Dir, "data"), 0o700); err != nil {
		return nil, err
	}
	err := onFreePort(func(port int) error {
		g.port, g.Endpoint = port, fmt.Sprintf("http://127.0.0.1:%d", port)
		return g.Start(ctx)
	})
	if err != nil {
		return nil, err
	}
	return g, nil
}

// Start starts the server again where it was, after Stop or Kill. What was in memory is lost.
func (g *GCS) Start(ctx context.Context) error {
	backend := "memory"
	if g.config.Files {
		backend = "filesystem"
	}
	cmd := exec.Command(g.config.Binary, "-scheme", "http", "-host", "127.0.0.1", "-port", fmt.Sprint(g.port), "-log-level", "warn",
		"-public-host", "127.0.0.1", "-backend", backend, "-filesystem-root", filepath.Join(g.config.Dir, "data"))
	// What the user has set for a server of his own must not reach this one.
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "FAKE_GCS_") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	return g.proc.start(ctx, cmd, g.config.Dir, answers(g.Endpoint+"/_internal/healthcheck"))
}

// Stop ends the server.
func (g *GCS) Stop() error { return g.proc.stop() }

// Kill ends the server as a crash would.
func (g *GCS) Kill() error { return g.proc.kill() }

// GCSBucketOptions is what a bucket can have from its start.
type GCSBucketOptions struct {
	// Versioned keeps what is deleted as noncurrent versions.
	Versioned bool
}

// NewBucket makes a bucket with a name that this server has not had yet.
func (g *GCS) NewBucket(ctx context.Context, o GCSBucketOptions) (name string, err error) {
	g.mu.Lock()
	g.buckets++
	name = fmt.Sprintf("bucket-%d", g.buckets)
	g.mu.Unlock()
	type versioning struct {
		Enabled bool `json:"enabled"`
	}
	err = g.Call(ctx, http.MethodPost, "/storage/v1/b", struct {
		Name       string     `json:"name"`
		Versioning versioning `json:"versioning"`
	}{name, versioning{o.Versioned}}, nil)
	return name, err
}

// DropBucket removes a bucket with all that is in it.
func (g *GCS) DropBucket(ctx context.Context, name string) error {
	objects, err := g.Objects(ctx, name, "versions=true")
	for _, o := range objects {
		err = errors.Join(err, g.Call(ctx, http.MethodDelete, fmt.Sprintf("/storage/v1/b/%s/o/%s?generation=%d", name, url.PathEscape(o.Name), o.Generation), nil, nil))
	}
	return errors.Join(err, g.Call(ctx, http.MethodDelete, "/storage/v1/b/"+name, nil, nil))
}

// GCSObject is what the server says about an object.
type GCSObject struct {
	Name         string            `json:"name"`
	Size         int64             `json:"size,string"`
	Generation   int64             `json:"generation,string"`
	ContentType  string            `json:"contentType"`
	StorageClass string            `json:"storageClass"`
	Metadata     map[string]string `json:"metadata"`
}

// Objects lists a bucket. query is added to the request, such as "versions=true".
func (g *GCS) Objects(ctx context.Context, bucket, query string) ([]GCSObject, error) {
	var page struct{ Items []GCSObject }
	err := g.Call(ctx, http.MethodGet, "/storage/v1/b/"+bucket+"/o?"+query, nil, &page)
	return page.Items, err
}

// PutObject stores an object as some other program would, replacing what is there.
func (g *GCS) PutObject(ctx context.Context, bucket, name string, content []byte) error {
	return g.Call(ctx, http.MethodPost, "/upload/storage/v1/b/"+bucket+"/o?uploadType=media&name="+url.QueryEscape(name), content, nil)
}

// Call makes a request to the server itself. in is sent as JSON, unless it is bytes, and the answer is decoded to out.
func (g *GCS) Call(ctx context.Context, method, path string, in, out any) error {
	body, ok := in.([]byte)
	if in != nil && !ok {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, g.Endpoint+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, bytes.TrimSpace(data))
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(data, out)
}
