package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"etcdsnapshot.dev/agent/units"
)

func outputFlag(cmd *cobra.Command, value *string, more ...string) {
	forms := append([]string{"table", "json"}, more...)
	cmd.Flags().StringVarP(value, "output", "o", "table", "form of the result on stdout: "+strings.Join(forms, ", "))
	// An error here would mean that the flag above does not exist.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(forms, cobra.ShellCompDirectiveNoFileComp))
}

func checkOutput(value string, known ...string) error {
	if !slices.Contains(known, value) {
		return usageErrorf("--output: %q is none of %s", value, strings.Join(known, ", "))
	}
	return nil
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// table aligns columns as kubectl does.
type table struct{ w *tabwriter.Writer }

func newTable(w io.Writer, header ...string) *table {
	t := &table{tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)}
	t.line(header)
	return t
}

func (t *table) row(cells ...any) {
	texts := make([]string, len(cells))
	for i, c := range cells {
		texts[i] = fmt.Sprint(c)
	}
	t.line(texts)
}

func (t *table) line(cells []string) { fmt.Fprintln(t.w, strings.Join(cells, "\t")) }
func (t *table) flush() error        { return t.w.Flush() }

// oneLine gives an error as a cell.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// humanBytes gives a size as people read it, in binary units: 12.3 MiB.
func humanBytes(n int64) string { return units.Bytes(n) }

// humanAge gives a time span as kubectl does: the two largest units at most.
func humanAge(d time.Duration) string {
	switch {
	case d < 0:
		return "in the future"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
