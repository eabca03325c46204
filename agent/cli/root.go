// Package cli is the command line: one file a verb, flags and output only.
package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"
)

// env is what a verb gets from the process.
type env struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	log            *slog.Logger
	status         *statusLine
	root           rootFlags
	// diagnosis is what the doctor says of a failed run, for its last word.
	diagnosis []string
}

type rootFlags struct {
	logFormat, logLevel, terminationLog string
}

// Run runs the program and gives its exit code (see exit.go). It returns soon after ctx ends; the cause of ctx
// decides between an interruption and a failure.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	e := &env{stdin: stdin, stdout: stdout, stderr: stderr, log: slog.New(slog.DiscardHandler)}
	root := newRoot(e)
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if e.status != nil {
		e.status.clear()
	}
	code := exitCode(ctx, err)
	if err != nil {
		fmt.Fprintf(stderr, "etcd-snapshot-agent: %v\n", err)
		word := fmt.Sprintf("exit code %d (%s): %v", code, exitMeaning(code), err)
		for _, d := range e.diagnosis {
			word += "\ndiagnosis: " + d
		}
		e.terminationMessage(word)
	}
	return code
}

// NewCommand gives the command tree for documentation and for tests that parse arguments; running it does nothing
// useful to the process's own streams.
func NewCommand() *cobra.Command {
	return newRoot(&env{stdin: os.Stdin, stdout: io.Discard, stderr: io.Discard})
}

func newRoot(e *env) *cobra.Command {
	root := &cobra.Command{
		Use:   "etcd-snapshot-agent",
		Short: "Scheduled, verified, restorable etcd snapshots for Kubernetes",
		Long: `Takes etcd snapshots, proves them, stores them, and brings them back.

Exit codes: 0 done; 1 failed, worth retrying; 2 bad configuration or usage; 3 stored, but not in every required
destination, or clusters are stale; 4 a stored snapshot is corrupt; 130 interrupted.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			return e.setUp()
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageErrorf("%w (see %s --help)", err, cmd.CommandPath())
	})
	f := root.PersistentFlags()
	f.StringVar(&e.root.logFormat, "log-format", "auto", "how to log to stderr: json, text, or auto (text on a terminal)")
	f.StringVar(&e.root.logLevel, "log-level", "info", "what to log: debug, info, warn or error")
	f.StringVar(&e.root.terminationLog, "termination-log", "/dev/termination-log", "file that gets the last word of the run, if it exists")
	root.AddCommand(newSnapshot(e), newList(e), newPrune(e), newVerify(e), newRestore(e), newDoctor(e), newStatus(e), newNotify(e), newKeys(e), newGet(e),
		newHistory(e), newDiff(e), newDrill(e), newVersion(e))
	root.CompletionOptions.HiddenDefaultCmd = true
	for _, c := range append(root.Commands(), root) {
		args := c.Args
		c.Args = func(cmd *cobra.Command, given []string) error {
			if err := args(cmd, given); err != nil {
				return usageErrorf("%w (see %s --help)", err, cmd.CommandPath())
			}
			return nil
		}
	}
	return root
}

// setUp makes the logger once the flags are known.
func (e *env) setUp() error {
	var level slog.Level
	if err := level.UnmarshalText([]byte(e.root.logLevel)); err != nil {
		return usageErrorf("--log-level: %q is none of debug, info, warn, error", e.root.logLevel)
	}
	e.status = newStatusLine(e.stderr)
	text := e.root.logFormat == "text" || e.root.logFormat == "auto" && e.status.terminal
	o := &slog.HandlerOptions{Level: level, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		switch {
		case a.Value.Kind() == slog.KindDuration:
			a.Value = slog.StringValue(a.Value.Duration().String()) // 1.5s, not nanoseconds
		case text && len(groups) == 0 && a.Key == slog.TimeKey:
			a.Value = slog.StringValue(a.Value.Time().Format(time.TimeOnly))
		}
		return a
	}}
	switch e.root.logFormat {
	case "json", "text", "auto":
		if text {
			e.log = slog.New(slog.NewTextHandler(e.status, o))
		} else {
			e.log = slog.New(slog.NewJSONHandler(e.status, o))
		}
	default:
		return usageErrorf("--log-format: %q is none of json, text, auto", e.root.logFormat)
	}
	quietLibraries()
	return nil
}

// maxTerminationMessage is how much of a termination message the kubelet keeps, in bytes.
const maxTerminationMessage = 4096

// terminationMessage leaves text where `kubectl describe pod` shows it.
func (e *env) terminationMessage(text string) {
	if e.root.terminationLog == "" {
		return
	}
	f, err := os.OpenFile(e.root.terminationLog, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return // not in a pod
	}
	defer f.Close()
	if len(text) > maxTerminationMessage {
		text = text[:maxTerminationMessage-3] + "..."
	}
	if _, err := f.WriteString(text); err != nil {
		e.log.Warn("could not write the termination message", "file", e.root.terminationLog, "error", err)
	}
}
