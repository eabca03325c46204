//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Results are what was measured last, of each thing.
type Results struct {
	Sections []Section
}

// Section is one thing that was measured, at one size.
type Section struct {
	Name string
	// ObjectsMiB are the objects in etcd, DatabaseMiB is its file; 0 where the size is always the same.
	ObjectsMiB  int64   `json:",omitempty"`
	DatabaseMiB float64 `json:",omitempty"`
	Date        string
	Machine     Machine
	Sides       []Side
}

// Machine is what it was measured on and with.
type Machine struct {
	Processor string
	Cores     int
	MemoryGiB int64
	Kernel    string
	Agent     string
	Go        string
	Etcd      string
	Zstd      string
}

func machine(ctx context.Context, agent string) (m Machine, err error) {
	m = Machine{Cores: runtime.NumCPU(), Go: runtime.Version(), Etcd: etcdVersion, Processor: "unknown"}
	cpus, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return m, err
	}
	for line := range strings.Lines(string(cpus)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			m.Processor = strings.TrimSpace(value)
		}
	}
	var info unix.Sysinfo_t
	var name unix.Utsname
	if err := errors.Join(unix.Sysinfo(&info), unix.Uname(&name)); err != nil {
		return m, err
	}
	m.MemoryGiB = int64(info.Totalram) * int64(info.Unit) >> 30
	m.Kernel = unix.ByteSliceToString(name.Release[:])
	first := func(args ...string) string {
		out, err := exec.CommandContext(ctx, args[0], args[1:]...).Output()
		if err != nil {
			return "unknown"
		}
		line, _, _ := strings.Cut(string(out), "\n")
		return strings.Join(strings.Fields(line), " ")
	}
	m.Agent, m.Zstd = first(agent, "version"), first("zstd", "--version")
	return m, nil
}

func readResults(file string) (*Results, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return &Results{}, nil
	}
	if err != nil {
		return nil, err
	}
	r := &Results{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	return r, nil
}

// put replaces what was measured before.
func (r *Results) put(s Section) {
	r.Sections = slices.DeleteFunc(r.Sections, func(o Section) bool { return o.Name == s.Name && o.ObjectsMiB == s.ObjectsMiB })
	r.Sections = append(r.Sections, s)
	slices.SortStableFunc(r.Sections, func(a, b Section) int {
		if d := slices.Index(sections, a.Name) - slices.Index(sections, b.Name); d != 0 {
			return d
		}
		return int(a.ObjectsMiB - b.ObjectsMiB)
	})
}

// all gives the sections of a name, by size.
func (r *Results) all(name string) (ss []*Section) {
	for i := range r.Sections {
		if r.Sections[i].Name == name {
			ss = append(ss, &r.Sections[i])
		}
	}
	return ss
}

// side gives a side of a section, nil where there is none.
func (s *Section) side(name string) *Side {
	for i := range s.Sides {
		if s.Sides[i].Name == name {
			return &s.Sides[i]
		}
	}
	return nil
}

// The figures that are compared.
var (
	wall    = func(r Run) float64 { return r.Wall }
	cpu     = func(r Run) float64 { return r.CPU() }
	peak    = func(r Run) float64 { return r.PeakMiB }
	own     = func(r Run) float64 { return r.OwnMiB }
	written = func(r Run) float64 { return r.WrittenMiB }
	stream  = func(r Run) float64 { return r.Stream }
	growth  = func(r Run) float64 { return r.GrowthMiB }
	put50   = func(r Run) float64 { return r.PutP50 }
	put99   = func(r Run) float64 { return r.PutP99 }
)

// Lines in the page between which it is written anew.
const (
	beginMark = "<!-- measured: written by make bench -->"
	endMark   = "<!-- end of what is measured -->"
)

// write writes the results, and the page from them.
func (b *bench) write() error {
	data, err := json.MarshalIndent(b.results, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(b.resultsFile, append(data, '\n'), 0o644); err != nil {
		return err
	}
	page, err := os.ReadFile(b.page)
	if err != nil {
		return err
	}
	page, err = rewrite(page, b.results)
	if err != nil {
		return fmt.Errorf("%s: %w", b.page, err)
	}
	return os.WriteFile(b.page, page, 0o644)
}

// rewrite puts the tables into the page.
func rewrite(page []byte, r *Results) ([]byte, error) {
	before, rest, ok := bytes.Cut(page, []byte(beginMark))
	_, after, ok2 := bytes.Cut(rest, []byte(endMark))
	if !ok || !ok2 {
		return nil, fmt.Errorf("it needs the lines %q and %q", beginMark, endMark)
	}
	var out bytes.Buffer
	out.Write(before)
	out.WriteString(beginMark + "\n\n")
	out.WriteString(tables(r))
	out.WriteString(endMark)
	out.Write(after)
	return out.Bytes(), nil
}

// column is one column of a table: a figure, and how it is written.
type column struct {
	head, format string
	of           func(s *Side) float64
	// ratio adds how many times the first side's it is.
	ratio bool
}

func medianOf(head, format string, of func(Run) float64, ratio bool) column {
	return column{head, format, func(s *Side) float64 { return s.median(of) }, ratio}
}

func peakOf(head, format string, of func(Run) float64) column {
	return column{head, format, func(s *Side) float64 { return s.peak(of) }, false}
}

var usual = []column{
	medianOf("wall", "%.2f s", wall, true), medianOf("CPU", "%.2f s", cpu, true), peakOf("peak memory", "%.0f MiB", peak),
	medianOf("written", "%.0f MiB", written, true), medianOf("etcd's stream", "%.2f s", stream, true),
}

func tables(r *Results) string {
	var b strings.Builder
	b.WriteString("## Targets\n\n")
	targets(&b, r)
	for _, t := range []struct {
		name, title, text string
		columns           []column
	}{
		{"save", "A snapshot", "etcd, the programs and the disk share both processors.", usual},
		{"apart", "A snapshot, with a processor for etcd alone", "etcd is kept on one processor, the client on the other.", usual},
		{"restore", "A restore", "From one encrypted, compressed file into a new data directory, the revision raised. The agent also checks every page of the database before and after, and syncs what it made.", usual[:4]},
		{"inspect", "Looking into a snapshot", fmt.Sprintf("Plain database files, read and checked as a whole each time. Between the two that are compared, %d objects were added, %d removed and %d overwritten. The file is mapped: its pages count in the peak, and are the system's to take back; *own memory* is what is left without them.", changedObjects, changedObjects, changedObjects),
			[]column{medianOf("wall", "%.2f s", wall, false), medianOf("CPU", "%.2f s", cpu, false), peakOf("own memory", "%.0f MiB", own), peakOf("peak memory", "%.0f MiB", peak)}},
		{"latency", "What etcd's clients notice", fmt.Sprintf("%d puts of %d KiB a second, due at fixed times, to an etcd with %d MiB of objects that syncs its log.", loadRate, loadValue>>10, latencyMiB),
			[]column{medianOf("put p50", "%.1f ms", put50, true), medianOf("put p99", "%.1f ms", put99, true), medianOf("wall", "%.1f s", wall, false), medianOf("etcd's stream", "%.2f s", stream, false)}},
		{"slow", "A slow line", fmt.Sprintf("%d MiB of objects; the same writes all the time, old revisions compacted every second. The last line is what a snapshot does that is sent down the slow line as it comes.", slowMiB),
			[]column{medianOf("etcd's stream", "%.2f s", stream, false), medianOf("wall", "%.1f s", wall, false), medianOf("the database grew by", "%.1f MiB", growth, false), medianOf("put p99", "%.1f ms", put99, false)}},
		{"upload", "Uploads", fmt.Sprintf("%d MiB of random bytes to each store's real server or emulator on the same machine, beside the barest clients: one request, nothing checked; and, where the agent takes the way that a server has for large files (a resumable upload, parts), the same bytes in that way, which is what the agent is measured by.", uploadMiB),
			[]column{medianOf("wall", "%.2f s", wall, false), medianOf("CPU", "%.2f s", cpu, false), peakOf("peak memory", "%.0f MiB", peak)}},
		{"scale", fmt.Sprintf("%d stored snapshots", scaleSnapshots), "Only names are read.", usual[:3]},
		{"start", "With nothing to do", "A database of about 1 MiB.", []column{medianOf("wall", "%.3f s", wall, false), medianOf("CPU", "%.3f s", cpu, false), peakOf("peak memory", "%.0f MiB", peak)}},
		{"binary", "What the binary is made of", "Sizes of symbols by module, of a build that has them.",
			[]column{medianOf("size", "%.1f MiB", func(r Run) float64 { return r.SizeMiB }, false)}},
	} {
		for _, s := range r.all(t.name) {
			title := t.title
			if s.ObjectsMiB > 0 {
				title += fmt.Sprintf(": %d MiB of objects, a database of %.0f MiB", s.ObjectsMiB, s.DatabaseMiB)
			}
			fmt.Fprintf(&b, "## %s\n\n%s", title, t.text)
			if n := len(s.Sides[0].Runs); n > 1 {
				fmt.Fprintf(&b, " Medians of %d runs each, in turn; peaks are the highest.", n)
			}
			b.WriteString("\n\n")
			table(&b, s, t.columns)
			fmt.Fprintf(&b, "\n%s\n\n", s.about())
		}
	}
	return b.String()
}

func (s *Section) about() string {
	m := s.Machine
	return fmt.Sprintf("Measured %s on %d × %s, %d GiB, Linux %s; %s, etcd %s, %s.", s.Date, m.Cores, m.Processor, m.MemoryGiB, m.Kernel, m.Agent, m.Etcd, m.Zstd)
}

func table(b *strings.Builder, s *Section, columns []column) {
	b.WriteString("| |")
	for _, c := range columns {
		b.WriteString(" " + c.head + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("---:|", len(columns)) + "\n")
	for i := range s.Sides {
		side := &s.Sides[i]
		b.WriteString("| " + side.Name + " |")
		for _, c := range columns {
			v := c.of(side)
			if v == 0 {
				b.WriteString(" – |")
				continue
			}
			fmt.Fprintf(b, " "+c.format, v)
			if first := c.of(&s.Sides[0]); c.ratio && i > 0 && first > 0 {
				fmt.Fprintf(b, " (×%.2f)", v/first)
			}
			b.WriteString(" |")
		}
		b.WriteString("\n")
	}
}
