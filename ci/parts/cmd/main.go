// Command cmd builds the parts that are named, or all but those that only ci/cluster needs, and prints the folders of their programs, one a line.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"etcdsnapshot.dev/ci/parts"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "parts:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, names []string) error {
	if len(names) == 0 {
		all, err := parts.Names()
		if err != nil {
			return err
		}
		names = slices.DeleteFunc(all, func(name string) bool { return name == "kubernetes-node" })
	}
	for _, name := range names {
		dir, err := parts.Dir(ctx, name)
		if errors.Is(err, parts.ErrNoNode) && os.Getenv("CI") == "" {
			fmt.Fprintf(os.Stderr, "%s is left out, and what needs it will be skipped: %v\n", name, err)
			continue
		}
		if err != nil {
			return err
		}
		fmt.Println(dir)
	}
	return nil
}
