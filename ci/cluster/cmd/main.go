// Command cmd brings the cluster of this checkout up and down, for people: see package cluster.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"etcdsnapshot.dev/ci/cluster"
)

const usage = `usage: go run ./ci/cluster/cmd [-dir FOLDER] COMMAND

  up [-nodes 1|3]          bring a cluster up, in place of the one there is
  down                     end it and remove its folder
  kubeconfig               print the path of the administrator's kubeconfig
  exec NODE COMMAND...     run a command on a node (cp1, cp2, cp3) as root
  load FILE                load an image that docker save wrote, on every node
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:])
	var exit exitCode
	switch {
	case errors.As(err, &exit):
		os.Exit(int(exit))
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

// exitCode is that of a command that ran on a node, and said itself why it failed.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

func run(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("cluster", flag.ContinueOnError)
	fs.Usage = func() { fmt.Fprint(os.Stderr, usage) }
	dir := fs.String("dir", "", "")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *dir == "" {
		var err error
		if *dir, err = cluster.DefaultDir(); err != nil {
			return err
		}
	}
	args = fs.Args()
	switch {
	case len(args) > 0 && args[0] == "up":
		return up(ctx, *dir, args[1:])
	case len(args) == 1 && args[0] == "down":
		return cluster.Down(ctx, *dir)
	case len(args) == 1 && args[0] == "kubeconfig":
		c, err := cluster.Open(*dir)
		if err != nil {
			return err
		}
		fmt.Println(c.Kubeconfig())
		return nil
	case len(args) > 2 && args[0] == "exec":
		return execute(ctx, *dir, args[1], args[2:])
	case len(args) == 2 && args[0] == "load":
		c, err := cluster.Open(*dir)
		if err != nil {
			return err
		}
		return c.LoadImage(ctx, args[1])
	}
	fs.Usage()
	return flag.ErrHelp
}

func up(ctx context.Context, dir string, args []string) error {
	fs := flag.NewFlagSet("up", flag.ContinueOnError)
	fs.Usage = func() { fmt.Fprint(os.Stderr, usage) }
	nodes := fs.Int("nodes", 1, "")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *nodes != 1 && *nodes != 3 {
		return fmt.Errorf("-nodes %d: etcd wants 1 or 3", *nodes)
	}
	c, err := cluster.Up(ctx, cluster.Options{Dir: dir, Nodes: *nodes, Log: os.Stderr})
	if err != nil {
		return err
	}
	fmt.Printf("export KUBECONFIG=%s\n", c.Kubeconfig())
	return nil
}

func execute(ctx context.Context, dir, node string, command []string) error {
	c, err := cluster.Open(dir)
	if err != nil {
		return err
	}
	for _, n := range c.Nodes {
		if n.Name == node {
			cmd := n.Command(ctx, command...)
			cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
			err := cmd.Run()
			if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() > 0 {
				return exitCode(exit.ExitCode())
			}
			return err
		}
	}
	return fmt.Errorf("there is no node %s", node)
}
