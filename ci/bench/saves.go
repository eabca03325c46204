//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Names of sides. The first of a contest is the one that the others are compared with.
const (
	sideSave     = "etcdctl snapshot save"
	sideShellZst = "shell: save, status, zstd -1"
	sideShellAge = "shell: save, status, zstd -1, age"
	sidePlain    = "agent, plain, not read back"
	sidePlainAll = "agent, plain"
	sideZst      = "agent, zstd"
	sideAge      = "agent, zstd + age"

	sideShellBack = "shell: age, zstd, etcdutl restore"
	sideBack      = "agent restore"
)

// saves compares snapshots of a database, with both processors for everybody.
func (b *bench) saves(ctx context.Context, s *site, rounds int) ([]Side, error) {
	return b.contest(ctx, s, rounds,
		s.saveSide(-1), s.shellSide(sideShellZst, false), s.shellSide(sideShellAge, true),
		s.agentSide(sidePlain, form{"none", false, "none"}, -1),
		s.agentSide(sidePlainAll, form{"none", false, "checksum"}, -1),
		s.agentSide(sideZst, form{"zstd", false, "checksum"}, -1),
		s.agentSide(sideAge, form{"zstd", true, "checksum"}, -1))
}

// apart compares snapshots where etcd has a processor of its own and the client the other one.
func (b *bench) apart(ctx context.Context, s *site, rounds int) (sides []Side, err error) {
	pid := s.cluster.Members[0].PID()
	if err := keepOn(pid, 0); err != nil {
		return nil, err
	}
	defer func() {
		if kerr := keepOn(pid, -1); err == nil {
			err = kerr
		}
	}()
	return b.contest(ctx, s, rounds, s.saveSide(1), s.agentSide(sideAge, form{"zstd", true, "checksum"}, 1))
}

// streamed runs a task that takes a snapshot.
func (s *site) streamed(ctx context.Context, t task) (Run, error) {
	u, err := measure(ctx, t)
	if err != nil {
		return Run{}, err
	}
	stream, err := s.streamTime()
	return Run{Usage: u, Stream: stream}, err
}

func (s *site) saveSide(core int) contestant {
	return contestant{sideSave, func(ctx context.Context, dir string) (Run, error) {
		return s.streamed(ctx, task{Args: append(s.etcdctlArgs(), "snapshot", "save", filepath.Join(dir, "snapshot.db")), Core: core})
	}}
}

// shellSide is what people run today for a result like ours: a plain copy that is looked at, then compressed, then
// encrypted. What a step has made obsolete is removed.
func (s *site) shellSide(name string, encrypted bool) contestant {
	return contestant{name, func(ctx context.Context, dir string) (Run, error) {
		return s.streamed(ctx, task{Args: []string{"sh", "-ec", s.shellSave(encrypted)}, Dir: dir, Core: -1})
	}}
}

func (s *site) shellSave(encrypted bool) string {
	script := strings.Join(s.etcdctlArgs(), " ") + " snapshot save snapshot.db\n" +
		s.etcdutl + " snapshot status snapshot.db\n" +
		"zstd -q -1 --rm snapshot.db\n"
	if encrypted {
		script += fmt.Sprintf("%s -r %s -o snapshot.db.zst.age snapshot.db.zst\nrm snapshot.db.zst\n", s.age, s.identity.Recipient())
	}
	return script
}

func (s *site) agentSide(name string, f form, core int) contestant {
	return contestant{name, func(ctx context.Context, dir string) (Run, error) {
		policy, err := s.policy(dir, f, folder(filepath.Join(dir, "store")))
		if err != nil {
			return Run{}, err
		}
		t := s.snapshot(dir, policy)
		t.Core = core
		return s.streamed(ctx, t)
	}}
}

// restores compares restores of a stored snapshot into a new data directory.
func (b *bench) restores(ctx context.Context, s *site, rounds int) ([]Side, error) {
	made := s.path("stored")
	if err := os.Mkdir(made, 0o700); err != nil {
		return nil, err
	}
	defer os.RemoveAll(made)
	if _, err := measure(ctx, task{Args: []string{"sh", "-ec", s.shellSave(true)}, Dir: made, Core: -1}); err != nil {
		return nil, err
	}
	stored := filepath.Join(made, "snapshot.db.zst.age")
	// Both raise the revision, as a cluster with watching clients needs it.
	const bump = "1000000000"
	shell := fmt.Sprintf("%s -d -i %s %s | zstd -q -d -o snapshot.db\n%s snapshot restore snapshot.db --data-dir data --bump-revision %s --mark-compacted\nrm snapshot.db\n",
		s.age, s.path("identity.txt"), stored, s.etcdutl, bump)
	return b.contest(ctx, s, rounds,
		contestant{sideShellBack, func(ctx context.Context, dir string) (Run, error) {
			u, err := measure(ctx, task{Args: []string{"sh", "-ec", shell}, Dir: dir, Core: -1})
			return Run{Usage: u}, err
		}},
		contestant{sideBack, func(ctx context.Context, dir string) (Run, error) {
			u, err := measure(ctx, task{Args: []string{s.agent, "restore", "--from", stored, "--identity", s.path("identity.txt"), "--data-dir", filepath.Join(dir, "data"), "--bump-revision", bump}, Core: -1})
			return Run{Usage: u}, err
		}})
}
