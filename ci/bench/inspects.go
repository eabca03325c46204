//go:build linux

package main

import (
	"context"
	"os"
	"path/filepath"

	"etcdsnapshot.dev/ci/etcdtest"
)

// Names of sides.
const (
	sideKeys    = "agent keys --by kind"
	sideGet     = "agent get of one object"
	sideHistory = "agent history of one object"
	sideDiff    = "agent diff of two"
)

// changedObjects is how many objects are added, removed and changed each between the two snapshots that are compared.
const changedObjects = 1000

// inspects measures what looks into a snapshot, each once per round, on plain database files. Between the two that are
// compared, some thousand objects have changed.
func (b *bench) inspects(ctx context.Context, s *site, rounds int) ([]Side, error) {
	before, after := s.path("before.db"), s.path("after.db")
	defer os.Remove(before)
	defer os.Remove(after)
	if err := s.cluster.SaveSnapshot(ctx, 0, before); err != nil {
		return nil, err
	}
	if err := s.change(ctx); err != nil {
		return nil, err
	}
	if err := s.cluster.SaveSnapshot(ctx, 0, after); err != nil {
		return nil, err
	}
	side := func(name string, args ...string) contestant {
		return contestant{name, func(ctx context.Context, dir string) (Run, error) {
			u, err := measure(ctx, task{Args: append([]string{s.agent}, args...), Core: -1})
			return Run{Usage: u}, err
		}}
	}
	key, _ := etcdtest.Object(1) // a custom resource
	namespace, name := filepath.Base(filepath.Dir(key)), filepath.Base(key)
	return b.contest(ctx, s, rounds,
		side(sideKeys, "keys", "--by", "kind", "--from", before),
		side(sideGet, "get", "widget.example.test", name, "-n", namespace, "-o", "yaml", "--from", before),
		side(sideHistory, "history", "widget.example.test", name, "-n", namespace, "--from", before),
		side(sideDiff, "diff", before, after))
}

// change adds, removes and overwrites objects.
func (s *site) change(ctx context.Context) error {
	client, err := s.cluster.Client(0)
	if err != nil {
		return err
	}
	defer client.Close()
	for i := range changedObjects {
		removed, _ := etcdtest.Object(i)
		if _, err := client.Delete(ctx, removed); err != nil {
			return err
		}
		changed, _ := etcdtest.Object(changedObjects + i)
		_, value := etcdtest.Object(2*changedObjects + i) // of the same kind
		if _, err := client.Put(ctx, changed, string(value)); err != nil {
			return err
		}
		added, value := etcdtest.Object(1<<30 + i)
		if _, err := client.Put(ctx, added, string(value)); err != nil {
			return err
		}
	}
	return nil
}
