// Command stores times an upload of one large file to each store, on a real server of its own, beside the same copy made
// by cp to a disk, in turns. Each upload is a process of its own, so that its peak memory is its own, too.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"text/tabwriter"
	"time"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/destination"
	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/ci/emulator"
	"etcdsnapshot.dev/ci/parts"
)

// job is what a child process is told to upload.
type job struct {
	File        string
	Destination v1.Destination
	Key         string
}

func main() {
	size := flag.Int64("size", 1024, "MiB to upload")
	rounds := flag.Int("rounds", 3, "times that each is done, in turns")
	child := flag.String("child", "", "used by the program itself")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if *child != "" {
		err = upload(ctx, *child)
	} else {
		err = run(ctx, *size<<20, *rounds)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-stores:", err)
		os.Exit(1)
	}
}

// upload puts one file into one store, as a run of the agent does.
func upload(ctx context.Context, text string) error {
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

type result struct {
	seconds []float64
	peakKiB int64
}

func run(ctx context.Context, size int64, rounds int) (err error) {
	dir, err := os.MkdirTemp("", "bench-stores-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	file := filepath.Join(dir, "file")
	if err := randomFile(file, size); err != nil {
		return err
	}
	stores, stop, err := startStores(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()

	names := []string{"cp"}
	for _, d := range stores {
		names = append(names, d.Name)
	}
	results := map[string]*result{}
	for _, n := range names {
		results[n] = &result{}
	}
	for round := range rounds {
		seconds, peak, err := copyFile(ctx, file, filepath.Join(dir, "copy"))
		if err != nil {
			return err
		}
		results["cp"].add(seconds, peak)
		for _, d := range stores {
			seconds, peak, err := uploadTo(ctx, job{file, d, fmt.Sprintf("object-%d", round)})
			if err != nil {
				return fmt.Errorf("upload to %s: %w", d.Name, err)
			}
			results[d.Name].add(seconds, peak)
		}
		fmt.Fprintf(os.Stderr, "round %d of %d done\n", round+1, rounds)
	}
	fmt.Printf("%d MiB of random bytes, median of %d rounds in turns; the servers run on the same machine\n\n", size>>20, rounds)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "STORE\tSECONDS\tTIMES CP\tPEAK MEMORY OF THE CLIENT")
	for _, n := range names {
		r := results[n]
		fmt.Fprintf(w, "%s\t%.2f\t%.2f\t%.1f MiB\n", n, r.median(), r.median()/results["cp"].median(), float64(r.peakKiB)/1024)
	}
	return w.Flush()
}

func (r *result) add(seconds float64, peakKiB int64) {
	r.seconds = append(r.seconds, seconds)
	r.peakKiB = max(r.peakKiB, peakKiB)
}

func (r *result) median() float64 {
	s := slices.Sorted(slices.Values(r.seconds))
	return s[len(s)/2]
}

// copyFile is the peer: cp, and a sync of the copy, since the file store syncs as well.
func copyFile(ctx context.Context, from, to string) (seconds float64, peakKiB int64, err error) {
	defer func() { err = errors.Join(err, os.Remove(to)) }()
	begin := time.Now()
	cmd := exec.CommandContext(ctx, "cp", from, to)
	if err := cmd.Run(); err != nil {
		return 0, 0, fmt.Errorf("cp: %w", err)
	}
	f, err := os.OpenFile(to, os.O_RDWR, 0)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return 0, 0, err
	}
	return time.Since(begin).Seconds(), peak(cmd), nil
}

func uploadTo(ctx context.Context, j job) (seconds float64, peakKiB int64, err error) {
	text, err := json.Marshal(j)
	if err != nil {
		return 0, 0, err
	}
	exe, err := os.Executable()
	if err != nil {
		return 0, 0, err
	}
	cmd := exec.CommandContext(ctx, exe, "-child", string(text))
	cmd.Env = append(os.Environ(), "GOGC=50") // as the agent sets it
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, 0, err
	}
	if _, err := fmt.Sscan(string(out), &seconds); err != nil {
		return 0, 0, fmt.Errorf("read %q: %w", out, err)
	}
	return seconds, peak(cmd), nil
}

// peak is the largest resident size of a process that has ended, in KiB as Linux counts it.
func peak(cmd *exec.Cmd) int64 {
	usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0
	}
	return int64(usage.Maxrss)
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

// startStores starts a server for each cloud and gives a destination in each, and one in a folder.
func startStores(ctx context.Context, dir string) (ds []v1.Destination, stop func() error, err error) {
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
	secret := func(name string, values map[string]string) (string, error) {
		if err := os.MkdirAll(sub(name), 0o700); err != nil {
			return "", err
		}
		for k, v := range values {
			if err := os.WriteFile(filepath.Join(sub(name), k), []byte(v), 0o600); err != nil {
				return "", err
			}
		}
		return sub(name), nil
	}
	for _, name := range []string{"gcs", "azure", "s3"} {
		if err := os.Mkdir(sub(name), 0o700); err != nil {
			return nil, stop, err
		}
	}
	ds = append(ds, v1.Destination{Name: "hostPath", HostPath: &v1.HostPathDestination{Path: sub("folder")}})

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
	ds = append(ds, v1.Destination{Name: "gcs", GCS: &v1.GCSDestination{Bucket: bucket, Endpoint: g.Endpoint, Auth: v1.GCSAuth{Method: v1.GCSAuthAnonymous}}})

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
	folder, err := secret("azure-secret", map[string]string{v1.AzureFileAccountKey: a.Key})
	if err != nil {
		return nil, stop, err
	}
	ds = append(ds, v1.Destination{Name: "azure", Azure: &v1.AzureDestination{Account: a.Account, Container: container, ServiceURL: a.ServiceURL, Auth: v1.AzureAuth{Method: v1.AzureAuthSharedKey, CredentialsDir: folder}}})

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
	if folder, err = secret("s3-secret", map[string]string{v1.S3FileAccessKeyID: s.AccessKey, v1.S3FileSecretAccessKey: s.SecretKey}); err != nil {
		return nil, stop, err
	}
	ds = append(ds, v1.Destination{Name: "s3", S3: &v1.S3Destination{Bucket: bucket, Endpoint: s.Endpoint, Region: s.Region, Auth: v1.S3Auth{Method: v1.S3AuthStatic, CredentialsDir: folder}}})
	return ds, stop, nil
}
