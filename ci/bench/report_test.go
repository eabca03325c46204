//go:build linux

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPageIsOfTheResults: the committed page says what the committed results say.
func TestPageIsOfTheResults(t *testing.T) {
	docs := filepath.Join("..", "..", "docs")
	r, err := readResults(filepath.Join(docs, "performance.json"))
	require.NoError(t, err)
	require.NotEmpty(t, r.Sections)
	page, err := os.ReadFile(filepath.Join(docs, "performance.md"))
	require.NoError(t, err)
	want, err := rewrite(page, r)
	require.NoError(t, err)
	require.Equal(t, string(want), string(page), "run: go run ./ci/bench -render")
	_, err = rewrite([]byte("# A page without marks"), r)
	require.ErrorContains(t, err, beginMark)
}

// TestGoalsNameSides: a goal that names a side which is never measured would vanish from the page in silence.
func TestGoalsNameSides(t *testing.T) {
	r, err := readResults(filepath.Join("..", "..", "docs", "performance.json"))
	require.NoError(t, err)
	for _, g := range goals {
		for _, s := range r.all(g.section) {
			_, ok := g.of(s)
			require.True(t, ok, "%s: %s", g.section, g.text)
		}
	}
}

func TestResultsReplaceOlderOnes(t *testing.T) {
	r := &Results{}
	for _, s := range []Section{
		{Name: "start", Date: "1"}, {Name: "save", ObjectsMiB: 1024}, {Name: "save", ObjectsMiB: 100}, {Name: "start", Date: "2"}, {Name: "save", ObjectsMiB: 100, Date: "3"},
	} {
		r.put(s)
	}
	require.Equal(t, []Section{{Name: "save", ObjectsMiB: 100, Date: "3"}, {Name: "save", ObjectsMiB: 1024}, {Name: "start", Date: "2"}}, r.Sections)
}

func TestMissedTargetsAreTold(t *testing.T) {
	side := func(name string, wall float64) Side {
		return Side{Name: name, Runs: []Run{{Usage: Usage{Wall: wall, User: 1, PeakMiB: 1}}}}
	}
	r := &Results{}
	r.put(Section{Name: "restore", ObjectsMiB: 100, Sides: []Side{side(sideShellBack, 2), side(sideBack, 1)}})
	r.put(Section{Name: "restore", ObjectsMiB: 1024, Sides: []Side{side(sideShellBack, 2), side(sideBack, 3)}})
	r.put(Section{Name: "upload", Sides: []Side{side("cp and sync", 1), side("agent → hostPath", 2)}})
	text := tables(r)
	require.Contains(t, text, "| restore: wall, of the shell's | ≤ ×1.00 | ×0.50 (100 MiB), **×1.50**, missed (1024 MiB) |")
	require.Contains(t, text, "| upload to a folder: speed, of a bare client's | ≥ ×0.80 | **×0.50**, missed |")
}

func TestMedian(t *testing.T) {
	require.InDelta(t, 2.0, median([]float64{3, 1, 2}), 0)
	require.InDelta(t, 2.5, median([]float64{4, 1, 2, 3}), 0)
	require.Zero(t, median(nil))
}
