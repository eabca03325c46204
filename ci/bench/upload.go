//go:build linux

package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/streaming"
	"github.com/minio/minio-go/v7"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/destination"
	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/ci/emulator"
	"etcdsnapshot.dev/ci/parts"
)

// uploadMiB is what is uploaded to each store: about what a large cluster's snapshot is when it is compressed.
const uploadMiB = 256

// uploadEnv tells this program that it is to upload.
const uploadEnv = "ETCD_SNAPSHOT_BENCH_UPLOAD"

// job is what a process that uploads is told.
type job struct {
	File        string
	Destination v1.Destination
	Key         string
}

// asUpload puts one file into one store, as a run of the agent does, and prints how many seconds that took.
func asUpload(text string) error {
	ctx := context.Background()
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	d, err := destination.Open(ctx, j.Destination, "bench", destination.Options{Create: true, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer d.Close()
	f, err := os.Open(j.File)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	if err != nil {
		return err
	}
	b := store.Blob{ReaderAt: f, Size: n, SHA256: [32]byte(h.Sum(nil))}
	begin := time.Now()
	if err := d.Store.Put(ctx, j.Key, b); err != nil {
		return err
	}
	fmt.Println(time.Since(begin).Seconds())
	return nil
}

// target is a store to upload to, and the barest clients there are for it.
type target struct {
	destination v1.Destination
	bare        []client
}

// client uploads a file.
type client struct {
	name   string
	upload func(ctx context.Context, key string, f *os.File) error
}

// Names of the bare clients that take the way into a store that ours takes.
const (
	bareFolder = "cp and sync"
	bareGCS    = "one resumable PUT to gcs"
	bareAzure  = "one PUT to azure"
	bareS3     = "parts to s3"
)

// upload compares our uploads with bare clients that send the same bytes and check nothing: with one request, and where
// ours takes another way, the one that a server has for large files, in that way as well.
func (b *bench) upload(ctx context.Context, dir string) (sides []Side, err error) {
	s, err := b.bare(dir)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "file")
	if err := randomFile(file, uploadMiB<<20); err != nil {
		return nil, err
	}
	targets, stop, err := startStores(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	var cs []contestant
	for _, t := range targets {
		n := 0
		key := func() string { n++; return fmt.Sprintf("object-%d", n) }
		for _, c := range t.bare {
			cs = append(cs, contestant{c.name, func(ctx context.Context, _ string) (Run, error) {
				f, err := os.Open(file)
				if err != nil {
					return Run{}, err
				}
				defer f.Close()
				begin := time.Now()
				err = c.upload(ctx, key(), f)
				return Run{Usage: Usage{Wall: time.Since(begin).Seconds()}}, err
			}})
		}
		cs = append(cs, contestant{"agent → " + t.destination.Name, func(ctx context.Context, dir string) (Run, error) {
			return uploadTo(ctx, dir, job{file, t.destination, key()})
		}})
	}
	return b.contest(ctx, s, b.pairs, cs...)
}

// uploadTo uploads in a process of its own. Only the upload itself is on its clock.
func uploadTo(ctx context.Context, dir string, j job) (Run, error) {
	text, err := json.Marshal(j)
	if err != nil {
		return Run{}, err
	}
	exe, err := os.Executable()
	if err != nil {
		return Run{}, err
	}
	out := filepath.Join(dir, "seconds")
	u, err := measure(ctx, task{Args: []string{exe}, Env: []string{uploadEnv + "=" + string(text), "GOGC=50"}, Stdout: out, Core: -1}) // GOGC as the agent sets it
	if err != nil {
		return Run{}, err
	}
	seconds, err := os.ReadFile(out)
	if err != nil {
		return Run{}, err
	}
	_, err = fmt.Sscan(string(seconds), &u.Wall)
	return Run{Usage: u}, err
}

// copyFile is cp and a sync of the copy, since the file store syncs as well.
func copyFile(ctx context.Context, from, to string) error {
	if err := exec.CommandContext(ctx, "cp", from, to).Run(); err != nil {
		return fmt.Errorf("cp: %w", err)
	}
	f, err := os.OpenFile(to, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// secret makes a folder of credentials.
func secret(dir string, values map[string]string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	for k, v := range values {
		if err := os.WriteFile(filepath.Join(dir, k), []byte(v), 0o600); err != nil {
			return "", err
		}
	}
	return dir, nil
}

func randomFile(path string, size int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err := io.CopyN(f, rand.NewChaCha8([32]byte{1}), size); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// startStores starts a server for each cloud and gives a target in each, and one in a folder.
func startStores(ctx context.Context, dir string) (ts []target, stop func() error, err error) {
	var stops []func() error
	stop = func() (err error) {
		for _, s := range stops {
			err = errors.Join(err, s())
		}
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, stop())
		}
	}()
	sub := func(name string) string { return filepath.Join(dir, name) }
	bin := func(part, program string) (string, error) {
		d, err := parts.Dir(ctx, part)
		return filepath.Join(d, program), err
	}
	for _, name := range []string{"gcs", "azure", "s3"} {
		if err := os.Mkdir(sub(name), 0o700); err != nil {
			return nil, stop, err
		}
	}
	ts = append(ts, target{v1.Destination{Name: "hostPath", HostPath: &v1.HostPathDestination{Path: sub("folder")}}, []client{
		{bareFolder, func(ctx context.Context, key string, f *os.File) error { return copyFile(ctx, f.Name(), sub(key)) }},
	}})

	program, err := bin(emulator.GCSPart, emulator.GCSPart)
	if err != nil {
		return nil, stop, err
	}
	g, err := emulator.RunGCS(ctx, emulator.GCSConfig{Binary: program, Dir: sub("gcs")})
	if err != nil {
		return nil, stop, err
	}
	stops = append(stops, g.Stop)
	bucket, err := g.NewBucket(ctx, emulator.GCSBucketOptions{})
	if err != nil {
		return nil, stop, err
	}
	objectsURL := g.Endpoint + "/upload/storage/v1/b/" + bucket + "/o?"
	ts = append(ts, target{v1.Destination{Name: "gcs", GCS: &v1.GCSDestination{Bucket: bucket, Endpoint: g.Endpoint, Auth: v1.GCSAuth{Method: v1.GCSAuthAnonymous}}}, []client{
		{"one POST to gcs", func(ctx context.Context, key string, f *os.File) error {
			_, err := send(ctx, http.MethodPost, objectsURL+"uploadType=media&name="+url.QueryEscape(key), f)
			return err
		}},
		{bareGCS, func(ctx context.Context, key string, f *os.File) error {
			answer, err := send(ctx, http.MethodPost, objectsURL+"uploadType=resumable&name="+url.QueryEscape(key), nil)
			if err != nil {
				return err
			}
			session, err := url.Parse(answer.Get("Location"))
			if err != nil {
				return err
			}
			_, err = send(ctx, http.MethodPut, objectsURL+session.RawQuery, f)
			return err
		}},
	}})

	if program, err = bin(emulator.AzuritePart, "azurite-blob"); err != nil {
		return nil, stop, err
	}
	a, err := emulator.RunAzurite(ctx, emulator.AzuriteConfig{Binary: program, Dir: sub("azure")})
	if err != nil {
		return nil, stop, err
	}
	stops = append(stops, a.Stop)
	container, err := a.NewContainer(ctx)
	if err != nil {
		return nil, stop, err
	}
	folder, err := secret(sub("azure-secret"), map[string]string{v1.AzureFileAccountKey: a.Key})
	if err != nil {
		return nil, stop, err
	}
	blobs, closeBlobs, err := a.Client(container)
	if err != nil {
		return nil, stop, err
	}
	stops = append(stops, func() error { closeBlobs(); return nil })
	ts = append(ts, target{v1.Destination{Name: "azure", Azure: &v1.AzureDestination{Account: a.Account, Container: container, ServiceURL: a.ServiceURL, Auth: v1.AzureAuth{Method: v1.AzureAuthSharedKey, CredentialsDir: folder}}}, []client{
		{bareAzure, func(ctx context.Context, key string, f *os.File) error {
			_, err := blobs.NewBlockBlobClient(key).Upload(ctx, streaming.NopCloser(f), nil)
			return err
		}},
	}})

	if program, err = bin(emulator.S3Part, emulator.S3Part); err != nil {
		return nil, stop, err
	}
	s, err := emulator.RunS3(ctx, emulator.S3Config{Binary: program, Dir: sub("s3")})
	if err != nil {
		return nil, stop, err
	}
	stops = append(stops, s.Stop)
	if bucket, err = s.NewBucket(ctx, emulator.S3BucketOptions{}); err != nil {
		return nil, stop, err
	}
	if folder, err = secret(sub("s3-secret"), map[string]string{v1.S3FileAccessKeyID: s.AccessKey, v1.S3FileSecretAccessKey: s.SecretKey}); err != nil {
		return nil, stop, err
	}
	objects, closeObjects, err := s.Client()
	if err != nil {
		return nil, stop, err
	}
	stops = append(stops, func() error { closeObjects(); return nil })
	ts = append(ts, target{v1.Destination{Name: "s3", S3: &v1.S3Destination{Bucket: bucket, Endpoint: s.Endpoint, Region: s.Region, Auth: v1.S3Auth{Method: v1.S3AuthStatic, CredentialsDir: folder}}}, []client{
		{"one PUT to s3", func(ctx context.Context, key string, f *os.File) error {
			_, err := objects.PutObject(ctx, bucket, key, f, uploadMiB<<20, minio.PutObjectOptions{DisableMultipart: true, DisableContentSha256: true})
			return err
		}},
		{bareS3, func(ctx context.Context, key string, f *os.File) error {
			_, err := objects.PutObject(ctx, bucket, key, f, uploadMiB<<20, minio.PutObjectOptions{PartSize: 16 << 20, NumThreads: 4, DisableContentSha256: true})
			return err
		}},
	}})
	return ts, stop, nil
}

// send makes one request with a file of uploadMiB as its body, or none, and gives the header of the answer.
func send(ctx context.Context, method, to string, f *os.File) (http.Header, error) {
	req, err := http.NewRequestWithContext(ctx, method, to, http.NoBody)
	if err != nil {
		return nil, err
	}
	if f != nil {
		const size = uploadMiB << 20
		req.Body, req.ContentLength = f, size
		if method == http.MethodPut {
			req.Header.Set("Content-Range", fmt.Sprintf("bytes 0-%d/%d", size-1, size))
		}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s %s: %s", method, to, resp.Status)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.Header, err
}
