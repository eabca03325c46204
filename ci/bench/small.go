//go:build linux

package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/ci/emulator"
	"etcdsnapshot.dev/ci/parts"
)

// scaleSnapshots is how many snapshots there are in each place that is listed.
const scaleSnapshots = 10_000

// scale measures verbs that read what is stored.
func (b *bench) scale(ctx context.Context, dir string) (sides []Side, err error) {
	s, err := b.bare(dir)
	if err != nil {
		return nil, err
	}
	program, err := parts.Dir(ctx, emulator.S3Part)
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "s3")
	if err := os.Mkdir(data, 0o700); err != nil {
		return nil, err
	}
	s3, err := emulator.RunS3(ctx, emulator.S3Config{Binary: filepath.Join(program, emulator.S3Part), Dir: data})
	if err != nil {
		return nil, err
	}
	defer s3.Stop()
	bucket, err := s3.NewBucket(ctx, emulator.S3BucketOptions{})
	if err != nil {
		return nil, err
	}
	keys, err := secret(filepath.Join(dir, "keys"), map[string]string{v1.S3FileAccessKeyID: s3.AccessKey, v1.S3FileSecretAccessKey: s3.SecretKey})
	if err != nil {
		return nil, err
	}
	retention := object{"last": 24, "daily": 14, "weekly": 8, "monthly": 12}
	node := folder(filepath.Join(dir, "store"))
	offsite := object{"name": "offsite", "s3": object{"bucket": bucket, "endpoint": s3.Endpoint, "region": s3.Region, "auth": object{"method": v1.S3AuthStatic, "credentialsDir": keys}}}
	var cs []contestant
	for _, place := range []struct {
		name, folder string
		destination  object
	}{{"a folder", filepath.Join(dir, "store", "bench"), node}, {"a bucket", filepath.Join(s3.Folder(bucket), "bench"), offsite}} {
		if err := manySnapshots(place.folder); err != nil {
			return nil, err
		}
		place.destination["retention"] = retention
		for _, verb := range [][]string{{"list"}, {"prune", "--dry-run"}} {
			cs = append(cs, contestant{strings.Join(verb, " ") + " of " + place.name, func(ctx context.Context, dir string) (Run, error) {
				policy, err := writePolicy(dir, object{"clusterName": "bench", "etcd": object{"endpoints": []string{"http://127.0.0.1:1"}}, "destinations": []object{place.destination}})
				if err != nil {
					return Run{}, err
				}
				u, err := measure(ctx, task{Args: append(append([]string{s.agent}, verb...), "--policy-file", policy), Core: -1})
				return Run{Usage: u}, err
			}})
		}
	}
	return b.contest(ctx, s, b.pairs, cs...)
}

// manySnapshots makes snapshots that consist of their names.
func manySnapshots(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	start := time.Now().Add(-scaleSnapshots * time.Hour)
	for i := range scaleSnapshots {
		name, err := archive.NewName("etcd", start.Add(time.Duration(i)*time.Hour), rand.Reader)
		if err != nil {
			return err
		}
		for _, key := range []string{name + ".db.zst", archive.ManifestKey(name)} {
			if err := os.WriteFile(filepath.Join(dir, key), []byte("x"), 0o600); err != nil {
				return err
			}
		}
	}
	return nil
}

// start measures what there is to wait for when there is next to nothing to do.
func (b *bench) start(ctx context.Context, dir string) ([]Side, error) {
	s, err := b.site(ctx, dir, 512<<10) // makes a database of about 1 MiB
	if err != nil {
		return nil, err
	}
	defer s.cluster.Stop()
	simple := func(name string, args ...string) contestant {
		return contestant{name, func(ctx context.Context, _ string) (Run, error) {
			u, err := measure(ctx, task{Args: args, Core: -1})
			return Run{Usage: u}, err
		}}
	}
	return b.contest(ctx, s, 4*b.pairs,
		simple("etcdctl version", s.etcdctl, "version"), simple(sideVersion, s.agent, "version"),
		s.saveSide(-1), s.agentSide(sideAge, form{"zstd", true, "checksum"}, -1))
}

const sideVersion = "agent version"

// binary tells what the agent's size is made of: the sizes of symbols by module, of a build that has them.
func (b *bench) binary(ctx context.Context, dir string) ([]Side, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	program := filepath.Join(dir, "agent")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", program, "./agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the agent with symbols: %w\n%s", err, out)
	}
	info, err := exec.CommandContext(ctx, "go", "version", "-m", program).Output()
	if err != nil {
		return nil, fmt.Errorf("read the agent's modules: %w", err)
	}
	var modules []string
	for line := range strings.Lines(string(info)) {
		if f := strings.Fields(line); len(f) > 1 && (f[0] == "dep" || f[0] == "mod") {
			modules = append(modules, f[1])
		}
	}
	slices.SortFunc(modules, func(a, b string) int { return len(b) - len(a) }) // the longest that fits is the one
	file, err := elf.Open(program)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	symbols, err := file.Symbols()
	if err != nil {
		return nil, fmt.Errorf("read the agent's symbols: %w", err)
	}
	sizes := map[string]float64{}
	for _, s := range symbols {
		if int(s.Section) < len(file.Sections) && file.Sections[s.Section].Type == elf.SHT_PROGBITS && elf.ST_TYPE(s.Info) != elf.STT_SECTION {
			if name := moduleOf(s.Name, modules); name != "" {
				sizes["code and data of "+name] += float64(s.Size) / (1 << 20)
			}
		}
	}
	for _, s := range file.Sections {
		if text := sectionTexts[s.Name]; text != "" {
			sizes[text] += float64(s.Size) / (1 << 20)
		}
	}
	fi, err := os.Stat(b.agent)
	if err != nil {
		return nil, err
	}
	sides := []Side{{Name: "the whole file", Runs: []Run{{SizeMiB: float64(fi.Size()) / (1 << 20)}}}}
	for name, size := range sizes {
		sides = append(sides, Side{Name: name, Runs: []Run{{SizeMiB: size}}})
	}
	slices.SortFunc(sides[1:], func(a, b Side) int { return cmp.Compare(b.Runs[0].SizeMiB, a.Runs[0].SizeMiB) })
	return sides[:min(len(sides), 20)], nil
}

// sectionTexts are sections that are of all modules together.
var sectionTexts = map[string]string{
	".gopclntab": "functions and lines, for stack traces",
	".rodata":    "constants, types and strings",
}

// moduleOf gives the module that a symbol is of, and nothing where it is in a section that is counted whole.
func moduleOf(symbol string, modules []string) string {
	for _, prefix := range []string{"go:", "type:", "runtime.pclntab", "runtime.findfunctab"} {
		if strings.HasPrefix(symbol, prefix) {
			return ""
		}
	}
	symbol = strings.ReplaceAll(symbol, "%2e", ".")
	for _, m := range modules {
		if rest, ok := strings.CutPrefix(symbol, m); ok && (rest == "" || rest[0] == '/' || rest[0] == '.') {
			return m
		}
	}
	return "Go"
}
