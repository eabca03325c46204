//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Run is one measured run.
type Run struct {
	Usage
	// Stream is etcd's time for the snapshot in seconds, 0 where there was none.
	Stream float64 `json:",omitempty"`
	// GrowthMiB is how much etcd's database grew meanwhile.
	GrowthMiB float64 `json:",omitempty"`
	// SizeMiB is the size of a part of the binary.
	SizeMiB float64 `json:",omitempty"`
	// PutP50 and PutP99 are the latencies of etcd's puts meanwhile, in milliseconds.
	PutP50 float64 `json:",omitempty"`
	PutP99 float64 `json:",omitempty"`
}

// Side is one of the programs of a contest, with its runs.
type Side struct {
	Name string
	Runs []Run
}

// median of a figure of the side's runs.
func (s *Side) median(of func(Run) float64) float64 {
	var all []float64
	for _, r := range s.Runs {
		all = append(all, of(r))
	}
	return median(all)
}

func median(all []float64) float64 {
	slices.Sort(all)
	n := len(all)
	switch {
	case n == 0:
		return 0
	case n%2 == 1:
		return all[n/2]
	}
	return (all[n/2-1] + all[n/2]) / 2
}

// peak is the highest of a figure of the side's runs.
func (s *Side) peak(of func(Run) float64) (top float64) {
	for _, r := range s.Runs {
		top = max(top, of(r))
	}
	return top
}

// contestant is a side before it runs.
type contestant struct {
	name string
	run  func(ctx context.Context, dir string) (Run, error)
}

// contest runs all sides in turn, rounds times, each round beginning with another one: A B C, B C A, C A B. What a run
// leaves behind (memory that the system has at hand, a disk at work) is not always the same side's.
func (b *bench) contest(ctx context.Context, s *site, rounds int, sides ...contestant) ([]Side, error) {
	out := make([]Side, len(sides))
	for round := range rounds {
		for n := range sides {
			i := (round + n) % len(sides)
			c := sides[i]
			out[i].Name = c.name
			dir, err := s.scratch()
			if err != nil {
				return nil, err
			}
			unix.Sync() // what the run before left to be written is not this one's
			r, err := c.run(ctx, dir)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			if err := os.RemoveAll(dir); err != nil {
				return nil, err
			}
			out[i].Runs = append(out[i].Runs, r)
			b.say("  round %d of %d: %-44s %6.2f s wall, %6.2f s CPU, %6.1f MiB peak, %6.0f MiB written", round+1, rounds, c.name, r.Wall, r.CPU(), r.PeakMiB, r.WrittenMiB)
		}
	}
	return out, nil
}
