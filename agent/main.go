// Command etcd-snapshot-agent takes, proves, stores and restores etcd snapshots.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	_ "time/tzdata" // an image from scratch has no time zones

	"etcdsnapshot.dev/agent/cli"
)

func main() {
	if os.Getenv("GOGC") == "" {
		// A control plane has better uses for its memory: about a fifth less at the peak, for a percent of the time.
		debug.SetGCPercent(50)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		cancel(cli.Interrupted{Signal: <-signals})
		signal.Stop(signals) // a second signal ends the process at once
	}()
	os.Exit(cli.Run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
