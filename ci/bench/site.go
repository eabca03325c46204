//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"filippo.io/age"

	"etcdsnapshot.dev/ci/etcdtest"
	"etcdsnapshot.dev/ci/parts"
)

// etcdVersion is the line whose server and tools are measured.
const etcdVersion = etcdtest.DefaultVersion

// site is where the programs run: a server, the tools, and a folder.
type site struct {
	dir                          string
	agent, etcdctl, etcdutl, age string
	identity                     *age.X25519Identity
	cluster                      *etcdtest.Cluster
	runs                         int
}

// newSite starts a server that holds fill bytes of objects.
func newSite(ctx context.Context, dir, agent string, fill int64) (*site, error) {
	s := &site{dir: dir, agent: agent}
	tools, err := parts.Dir(ctx, "etcd-"+etcdVersion)
	if err != nil {
		return nil, err
	}
	s.etcdctl, s.etcdutl = filepath.Join(tools, "etcdctl"), filepath.Join(tools, "etcdutl")
	if tools, err = parts.Dir(ctx, "age"); err != nil {
		return nil, err
	}
	s.age = filepath.Join(tools, "age")
	if s.identity, err = age.GenerateX25519Identity(); err != nil {
		return nil, err
	}
	if err := os.WriteFile(s.path("identity.txt"), []byte(s.identity.String()+"\n"), 0o600); err != nil {
		return nil, err
	}
	if s.cluster, err = etcdtest.New(ctx, s.path("etcd"), etcdtest.Options{Version: etcdVersion, TLS: true}); err != nil {
		return nil, err
	}
	if _, err := s.cluster.Fill(ctx, fill); err != nil {
		s.cluster.Stop()
		return nil, err
	}
	return s, nil
}

func (s *site) path(name string) string { return filepath.Join(s.dir, name) }

// scratch gives a new empty folder, on the disk that everything else is on.
func (s *site) scratch() (string, error) {
	s.runs++
	dir := s.path(fmt.Sprintf("run-%d", s.runs))
	return dir, os.Mkdir(dir, 0o700)
}

// databaseSize is the size of the server's database file in bytes.
func (s *site) databaseSize() (int64, error) {
	fi, err := os.Stat(filepath.Join(s.cluster.Members[0].DataDir, "member", "snap", "db"))
	if err != nil {
		return 0, err
	}
	return fi.Size(), nil
}

// etcdctlArgs is the beginning of an etcdctl command.
func (s *site) etcdctlArgs() []string {
	c := s.cluster.Certs
	return []string{s.etcdctl, "--endpoints=" + s.cluster.Members[0].ClientURL, "--cacert=" + c.CAFile, "--cert=" + c.ClientCertFile, "--key=" + c.ClientKeyFile,
		"--command-timeout=10m"}
}

// object is a piece of a policy.
type object = map[string]any

// form is how a snapshot is stored.
type form struct {
	compression string
	encrypted   bool
	afterStore  string
}

// policy writes a policy file into dir.
func (s *site) policy(dir string, f form, destinations ...object) (string, error) {
	spec := object{
		"clusterName": "bench",
		"etcd": object{"endpoints": s.cluster.Endpoints(), "caFile": s.cluster.Certs.CAFile,
			"certFile": s.cluster.Certs.ClientCertFile, "keyFile": s.cluster.Certs.ClientKeyFile},
		"destinations": destinations,
		"compression":  object{"algorithm": f.compression},
		"verification": object{"afterStore": f.afterStore},
	}
	if f.encrypted {
		spec["encryption"] = object{"age": object{"recipients": []string{s.identity.Recipient().String()}}}
	}
	return writePolicy(dir, spec)
}

func writePolicy(dir string, spec object) (string, error) {
	text, err := json.Marshal(object{"apiVersion": "etcdsnapshot.dev/v1", "kind": "EtcdSnapshotPolicy", "metadata": object{"name": "etcd"}, "spec": spec})
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "policy.json")
	return file, os.WriteFile(file, text, 0o600)
}

// folder is a destination in a folder on the disk.
func folder(path string) object {
	return object{"name": "node", "hostPath": object{"path": path}}
}

// snapshot is our command that stores a snapshot.
func (s *site) snapshot(dir, policy string) task {
	return task{Args: []string{s.agent, "snapshot", "--policy-file", policy, "--spool-dir", filepath.Join(dir, "spool"), "--node", "bench", "-o", "json"},
		Stdout: filepath.Join(dir, "result.json"), Core: -1}
}

// streamTime is how long the server's last snapshot took by its own log, in seconds: from the read transaction's begin
// to the last byte sent.
func (s *site) streamTime() (float64, error) {
	type line struct {
		TS  string `json:"ts"`
		Msg string `json:"msg"`
	}
	var begin, end time.Time
	for text := range strings.Lines(s.cluster.Members[0].LogTail(200)) {
		var l line
		if json.Unmarshal([]byte(text), &l) != nil {
			continue // not all that etcd prints is of this form
		}
		at, err := time.Parse("2006-01-02T15:04:05.999999Z0700", l.TS)
		if err != nil {
			continue
		}
		switch l.Msg {
		case "sending database snapshot to client":
			begin, end = at, time.Time{}
		case "successfully sent database snapshot to client":
			end = at
		}
	}
	if begin.IsZero() || end.IsZero() {
		return 0, errors.New("etcd's log does not tell how long its snapshot took")
	}
	return end.Sub(begin).Seconds(), nil
}
