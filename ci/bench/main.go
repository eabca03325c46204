//go:build linux

// Command bench measures the agent beside what people run without it: real etcd servers, real tools, the same data, in
// turn. It merges what it measures into -results and writes -page anew from that.
//
// Data is Kubernetes-shaped (see package etcdtest). Figures are of whole processes, as the system accounts them when
// they have ended.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	if text := os.Getenv(childEnv); text != "" {
		exit(asChild(text))
	}
	if text := os.Getenv(uploadEnv); text != "" {
		exit(asUpload(text))
	}
	b := &bench{}
	flag.StringVar(&b.agent, "agent", "bin/etcd-snapshot-agent", "the agent to measure")
	flag.StringVar(&b.resultsFile, "results", "docs/performance.json", "file that results are merged into")
	flag.StringVar(&b.page, "page", "docs/performance.md", "page whose tables are written anew")
	sizes := flag.String("sizes", "100,1024", "MiB of objects in etcd, one server each")
	flag.IntVar(&b.pairs, "pairs", 5, "times that each program runs, in turns")
	only := flag.String("only", strings.Join(sections, ","), "what to measure")
	render := flag.Bool("render", false, "only write the page from the results that are there")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exit(b.run(ctx, *sizes, strings.Split(*only, ","), *render))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// sections are what can be measured, in this order.
var sections = []string{"save", "apart", "restore", "inspect", "latency", "slow", "upload", "scale", "start", "binary"}

type bench struct {
	agent, resultsFile, page string
	pairs                    int
	results                  *Results
}

func (b *bench) say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func (b *bench) run(ctx context.Context, sizes string, only []string, render bool) (err error) {
	for _, name := range only {
		if !slices.Contains(sections, name) {
			return fmt.Errorf("-only: %q is none of %s", name, strings.Join(sections, ", "))
		}
	}
	if b.results, err = readResults(b.resultsFile); err != nil {
		return err
	}
	if render {
		return b.write()
	}
	if b.agent, err = filepath.Abs(b.agent); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	wanted := func(name string) bool { return slices.Contains(only, name) }
	for text := range strings.SplitSeq(sizes, ",") {
		size, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return fmt.Errorf("-sizes: %w", err)
		}
		if err := b.atSize(ctx, filepath.Join(dir, text), size, wanted); err != nil {
			return err
		}
	}
	for _, s := range []struct {
		name string
		run  func(ctx context.Context, dir string) ([]Side, error)
	}{{"latency", b.latency}, {"slow", b.slow}, {"upload", b.upload}, {"scale", b.scale}, {"start", b.start}, {"binary", b.binary}} {
		if !wanted(s.name) {
			continue
		}
		if err := b.section(ctx, s.name, 0, 0, func() ([]Side, error) { return s.run(ctx, filepath.Join(dir, s.name)) }); err != nil {
			return err
		}
	}
	return nil
}

// atSize measures what depends on the size of the database.
func (b *bench) atSize(ctx context.Context, dir string, mib int64, wanted func(string) bool) error {
	if !wanted("save") && !wanted("apart") && !wanted("restore") && !wanted("inspect") {
		return nil
	}
	b.say("filling etcd %s with %d MiB of objects", etcdVersion, mib)
	s, err := b.site(ctx, dir, mib<<20)
	if err != nil {
		return err
	}
	defer s.cluster.Stop()
	defer os.RemoveAll(dir)
	database, err := s.databaseSize()
	if err != nil {
		return err
	}
	for _, c := range []struct {
		name string
		run  func(context.Context, *site, int) ([]Side, error)
	}{{"save", b.saves}, {"apart", b.apart}, {"restore", b.restores}, {"inspect", b.inspects}} {
		if !wanted(c.name) {
			continue
		}
		if err := b.section(ctx, c.name, mib, database, func() ([]Side, error) { return c.run(ctx, s, b.pairs) }); err != nil {
			return err
		}
	}
	return nil
}

// site starts a server in a new folder dir.
func (b *bench) site(ctx context.Context, dir string, fill int64) (*site, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	return newSite(ctx, dir, b.agent, fill)
}

// section measures one thing and keeps it at once: a run that is cut short loses only what it was at.
func (b *bench) section(ctx context.Context, name string, mib, database int64, run func() ([]Side, error)) error {
	b.say("%s", name)
	begin := time.Now()
	sides, err := run()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	m, err := machine(ctx, b.agent)
	if err != nil {
		return err
	}
	b.results.put(Section{Name: name, ObjectsMiB: mib, DatabaseMiB: float64(database) / (1 << 20), Date: begin.UTC().Format("2006-01-02 15:04 MST"), Machine: m, Sides: sides})
	return b.write()
}
