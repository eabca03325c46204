//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/ci/emulator"
	"etcdsnapshot.dev/ci/parts"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// load writes to etcd at a steady rate, whether etcd keeps up or not, and overwrites the same keys. The latency of a put
// counts from when it was due.
type load struct {
	client *clientv3.Client
	cancel context.CancelFunc
	puts   sync.WaitGroup
	done   chan struct{}

	mu      sync.Mutex
	took    []float64 // milliseconds
	err     error
	lastRev int64
}

const (
	loadRate  = 200 // puts in a second
	loadValue = 2 << 10
	loadKeys  = 2000
)

// startLoad begins to write. With compact, what was overwritten is compacted every second, as the API server has it done
// every five minutes, so that etcd can use its pages again.
func startLoad(ctx context.Context, s *site, compact bool) (*load, error) {
	client, err := s.cluster.Client(0)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	l := &load{client: client, cancel: cancel, done: make(chan struct{})}
	go l.run(ctx, compact)
	return l, nil
}

func (l *load) run(ctx context.Context, compact bool) {
	defer close(l.done)
	value := make([]byte, loadValue)
	rnd := rand.New(rand.NewPCG(1, 2))
	every := time.Second / loadRate
	for i, due := 0, time.Now(); ctx.Err() == nil; i, due = i+1, due.Add(every) {
		time.Sleep(time.Until(due))
		for j := range value {
			value[j] = byte(rnd.Uint32())
		}
		key, text := fmt.Sprintf("/registry/leases/load/%d", rnd.IntN(loadKeys)), string(value)
		l.puts.Go(func() {
			resp, err := l.client.Put(ctx, key, text)
			took := time.Since(due)
			l.mu.Lock()
			defer l.mu.Unlock()
			switch {
			case ctx.Err() != nil:
			case err != nil:
				l.err = err
			default:
				l.took = append(l.took, float64(took.Microseconds())/1000)
				l.lastRev = max(l.lastRev, resp.Header.Revision)
			}
		})
		if compact && i%loadRate == loadRate-1 {
			l.mu.Lock()
			rev := l.lastRev
			l.mu.Unlock()
			if _, err := l.client.Compact(ctx, rev); err != nil && ctx.Err() == nil {
				l.mu.Lock()
				l.err = err
				l.mu.Unlock()
			}
		}
	}
	l.puts.Wait()
}

// during runs f and gives the latencies of the puts meanwhile.
func (l *load) during(f func() (Run, error)) (Run, error) {
	l.mu.Lock()
	from := len(l.took)
	l.mu.Unlock()
	r, err := f()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		err = l.err
	}
	if took := append([]float64{}, l.took[from:]...); len(took) > 0 {
		r.PutP50 = median(took) // sorts
		r.PutP99 = took[len(took)*99/100]
	}
	return r, err
}

func (l *load) stop() {
	l.cancel()
	<-l.done
	l.client.Close()
}

// waitFor lets time pass: the runs that nothing else happens in.
func waitFor(ctx context.Context, d time.Duration) (Run, error) {
	select {
	case <-ctx.Done():
		return Run{}, context.Cause(ctx)
	case <-time.After(d):
		return Run{Usage: Usage{Wall: d.Seconds()}}, nil
	}
}

const (
	sideIdle   = "no snapshot"
	latencyMiB = 512
)

// latency measures puts to an etcd that syncs its log to the disk, with and without a snapshot under way.
func (b *bench) latency(ctx context.Context, dir string) ([]Side, error) {
	s, err := b.site(ctx, dir, latencyMiB<<20)
	if err != nil {
		return nil, err
	}
	defer s.cluster.Stop()
	l, err := startLoad(ctx, s, false)
	if err != nil {
		return nil, err
	}
	defer l.stop()
	loaded := func(c contestant) contestant {
		return contestant{c.name, func(ctx context.Context, dir string) (Run, error) {
			return l.during(func() (Run, error) { return c.run(ctx, dir) })
		}}
	}
	return b.contest(ctx, s, b.pairs,
		loaded(contestant{sideIdle, func(ctx context.Context, _ string) (Run, error) { return waitFor(ctx, 8*time.Second) }}),
		loaded(s.saveSide(-1)),
		loaded(s.shellSide(sideShellAge, true)),
		loaded(s.agentSide(sideAge, form{"zstd", true, "checksum"}, -1)))
}

const (
	slowMiB      = 64
	slowRate     = 5 << 20 // bytes in a second
	sideFolder   = "agent, to a folder"
	sideBucket   = "agent, to a bucket at 5 MiB/s"
	sideStraight = "the stream itself at 5 MiB/s"
)

// slow measures what a slow line does to etcd: how long its read transaction is open, and how much its database grows
// because pages cannot be used again meanwhile. Each run has a server of its own: a database does not shrink.
func (b *bench) slow(ctx context.Context, dir string) (sides []Side, err error) {
	if err := os.MkdirAll(filepath.Join(dir, "s3"), 0o700); err != nil {
		return nil, err
	}
	program, err := parts.Dir(ctx, emulator.S3Part)
	if err != nil {
		return nil, err
	}
	s3, err := emulator.RunS3(ctx, emulator.S3Config{Binary: filepath.Join(program, emulator.S3Part), Dir: filepath.Join(dir, "s3")})
	if err != nil {
		return nil, err
	}
	defer s3.Stop()
	line, err := newSlowLine(strings.TrimPrefix(s3.Endpoint, "http://"), slowRate)
	if err != nil {
		return nil, err
	}
	defer line.close()
	bucket, err := s3.NewBucket(ctx, emulator.S3BucketOptions{})
	if err != nil {
		return nil, err
	}
	keys, err := secret(filepath.Join(dir, "keys"), map[string]string{v1.S3FileAccessKeyID: s3.AccessKey, v1.S3FileSecretAccessKey: s3.SecretKey})
	if err != nil {
		return nil, err
	}
	toBucket := object{"name": "offsite", "s3": object{"bucket": bucket, "endpoint": "http://" + line.addr(), "region": s3.Region,
		"auth": object{"method": v1.S3AuthStatic, "credentialsDir": keys}}}
	grown := func(name string, run func(ctx context.Context, s *site, dir string) (Run, error)) contestant {
		return contestant{name, func(ctx context.Context, dir string) (Run, error) {
			s, err := b.site(ctx, filepath.Join(dir, "site"), slowMiB<<20)
			if err != nil {
				return Run{}, err
			}
			defer s.cluster.Stop()
			l, err := startLoad(ctx, s, true)
			if err != nil {
				return Run{}, err
			}
			defer l.stop()
			// A few seconds of load first: what is compacted is what the next writes use.
			if _, err := waitFor(ctx, 5*time.Second); err != nil {
				return Run{}, err
			}
			before, err := s.databaseSize()
			if err != nil {
				return Run{}, err
			}
			r, err := l.during(func() (Run, error) { return run(ctx, s, dir) })
			if err != nil {
				return Run{}, err
			}
			after, err := s.databaseSize()
			r.GrowthMiB = float64(after-before) / (1 << 20)
			return r, err
		}}
	}
	agent := func(destination func(dir string) object) func(ctx context.Context, s *site, dir string) (Run, error) {
		return func(ctx context.Context, s *site, dir string) (Run, error) {
			policy, err := s.policy(dir, form{"zstd", true, "checksum"}, destination(dir))
			if err != nil {
				return Run{}, err
			}
			return s.streamed(ctx, s.snapshot(dir, policy))
		}
	}
	base, err := b.bare(filepath.Join(dir, "runs"))
	if err != nil {
		return nil, err
	}
	return b.contest(ctx, base, min(b.pairs, 3),
		grown(sideIdle, func(ctx context.Context, _ *site, _ string) (Run, error) { return waitFor(ctx, 18*time.Second) }),
		grown(sideFolder, agent(func(dir string) object { return folder(filepath.Join(dir, "store")) })),
		grown(sideBucket, agent(func(string) object { return toBucket })),
		grown(sideStraight, straight))
}

// bare is a site without a server.
func (b *bench) bare(dir string) (*site, error) {
	return &site{dir: dir, agent: b.agent}, os.Mkdir(dir, 0o700)
}

// straight is a client that sends etcd's stream down the slow line itself.
func straight(ctx context.Context, s *site, _ string) (Run, error) {
	client, err := s.cluster.Client(0)
	if err != nil {
		return Run{}, err
	}
	defer client.Close()
	begin := time.Now()
	stream, err := client.Snapshot(ctx)
	if err != nil {
		return Run{}, err
	}
	defer stream.Close()
	p := &pace{rate: slowRate}
	if _, err := io.Copy(io.Discard, &pacedReader{stream, p}); err != nil {
		return Run{}, err
	}
	took, err := s.streamTime()
	return Run{Usage: Usage{Wall: time.Since(begin).Seconds()}, Stream: took}, err
}
