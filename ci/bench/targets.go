//go:build linux

package main

import (
	"fmt"
	"strings"
)

// goal is what the agent should reach: a figure that is at most (or, if atLeast, at least) limit.
type goal struct {
	text    string
	section string
	limit   float64
	atLeast bool
	format  string
	// of gives the figure, false where it was not measured.
	of func(s *Section) (float64, bool)
}

// ratio compares a figure of two sides.
func ratio(a, b string, of func(Run) float64) func(*Section) (float64, bool) {
	return func(s *Section) (float64, bool) {
		x, y := s.side(a), s.side(b)
		if x == nil || y == nil || y.median(of) == 0 {
			return 0, false
		}
		return x.median(of) / y.median(of), true
	}
}

func highest(side string, of func(Run) float64) func(*Section) (float64, bool) {
	return func(s *Section) (float64, bool) {
		x := s.side(side)
		if x == nil {
			return 0, false
		}
		return x.peak(of), true
	}
}

const (
	times  = "×%.2f"
	mebi   = "%.0f MiB"
	millis = "%.0f ms"
)

var goals = []goal{
	{"plain: wall, of etcdctl's", "save", 1.0, false, times, ratio(sidePlain, sideSave, wall)},
	{"plain: CPU, of etcdctl's", "save", 1.6, false, times, ratio(sidePlain, sideSave, cpu)},
	{"plain: peak memory", "save", 64, false, mebi, highest(sidePlainAll, peak)},
	{"zstd: wall, of the shell's", "save", 0.75, false, times, ratio(sideZst, sideShellZst, wall)},
	{"zstd + age: wall, of the shell's", "save", 0.75, false, times, ratio(sideAge, sideShellAge, wall)},
	{"zstd: bytes written, of the shell's", "save", 0.25, false, times, ratio(sideZst, sideShellZst, written)},
	{"zstd + age: bytes written, of the shell's", "save", 0.25, false, times, ratio(sideAge, sideShellAge, written)},
	{"zstd + age: peak memory", "save", 100, false, mebi, highest(sideAge, peak)},
	{"zstd + age: etcd's stream, of etcdctl's, processors shared", "save", 1.5, false, times, ratio(sideAge, sideSave, stream)},
	{"zstd + age: etcd's stream, of etcdctl's, a processor each", "apart", 1.1, false, times, ratio(sideAge, sideSave, stream)},
	{"restore: wall, of the shell's", "restore", 1.0, false, times, ratio(sideBack, sideShellBack, wall)},
	{"keys --by kind: wall", "inspect", 30, false, "%.1f s", highest(sideKeys, wall)},
	{"diff of two: wall", "inspect", 30, false, "%.1f s", highest(sideDiff, wall)},
	{"diff of two: memory of its own", "inspect", 100, false, mebi, highest(sideDiff, own)},
	{"puts to etcd during a snapshot: p99, of that during etcdctl's", "latency", 1.25, false, times, ratio(sideAge, sideSave, put99)},
	{"a bucket at 5 MiB/s: etcd's stream, of that to a folder", "slow", 1.1, false, times, ratio(sideBucket, sideFolder, stream)},
	{"upload to a folder: speed, of a bare client's", "upload", 0.8, true, times, ratio(bareFolder, "agent → hostPath", wall)},
	{"upload to Google Cloud Storage: speed, of a bare client's", "upload", 0.8, true, times, ratio(bareGCS, "agent → gcs", wall)},
	{"upload to Azure: speed, of a bare client's", "upload", 0.8, true, times, ratio(bareAzure, "agent → azure", wall)},
	{"upload to S3: speed, of a bare client's", "upload", 0.8, true, times, ratio(bareS3, "agent → s3", wall)},
	{"10,000 snapshots: peak memory of list", "scale", 100, false, mebi, highest("list of a bucket", peak)},
	{"10,000 snapshots: peak memory of prune --dry-run", "scale", 100, false, mebi, highest("prune --dry-run of a bucket", peak)},
	{"start of version", "start", 50, false, millis, func(s *Section) (float64, bool) {
		x := s.side(sideVersion)
		if x == nil {
			return 0, false
		}
		return 1000 * x.median(wall), true
	}},
	{"a whole snapshot of 1 MiB: more than etcdctl's", "start", 300, false, millis, func(s *Section) (float64, bool) {
		x, y := s.side(sideAge), s.side(sideSave)
		if x == nil || y == nil {
			return 0, false
		}
		return 1000 * (x.median(wall) - y.median(wall)), true
	}},
}

// targets writes which goals are reached.
func targets(b *strings.Builder, r *Results) {
	b.WriteString("| | target | measured |\n|---|---:|---|\n")
	row := func(text, limit, measured string) { fmt.Fprintf(b, "| %s | %s | %s |\n", text, limit, measured) }
	for _, g := range goals {
		var cells []string
		for _, s := range r.all(g.section) {
			v, ok := g.of(s)
			if !ok {
				continue
			}
			cell := fmt.Sprintf(g.format, v)
			if met := v <= g.limit; met == g.atLeast && v != g.limit {
				cell = "**" + cell + "**, missed"
			}
			if s.ObjectsMiB > 0 {
				cell += fmt.Sprintf(" (%d MiB)", s.ObjectsMiB)
			}
			cells = append(cells, cell)
		}
		sign := "≤ "
		if g.atLeast {
			sign = "≥ "
		}
		if len(cells) > 0 {
			row(g.text, sign+fmt.Sprintf(g.format, g.limit), strings.Join(cells, ", "))
		}
	}
	if text, limit, measured, ok := linear(r); ok {
		row(text, limit, measured)
	}
	b.WriteString("\n")
}

// linear compares the time for the largest database with that for the one before.
func linear(r *Results) (text, limit, measured string, ok bool) {
	all := r.all("save")
	if len(all) < 2 {
		return "", "", "", false
	}
	small, large := all[len(all)-2], all[len(all)-1]
	x, y := small.side(sideAge), large.side(sideAge)
	if x == nil || y == nil {
		return "", "", "", false
	}
	grown, slower := large.DatabaseMiB/small.DatabaseMiB, y.median(wall)/x.median(wall)
	most := 1.1 * grown
	measured = fmt.Sprintf(times, slower)
	if slower > most {
		measured = "**" + measured + "**, missed"
	}
	return fmt.Sprintf("zstd + age: wall for %d MiB, of that for %d MiB", large.ObjectsMiB, small.ObjectsMiB), "≤ " + fmt.Sprintf(times, most), measured, true
}
