package verify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/coreos/go-semver/semver"
	"go.etcd.io/etcd/api/v3/version"

	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/member"
)

// Drill is what an etcd that was started from a snapshot served.
type Drill struct {
	// EtcdVersion is the version of the etcd that was started: the one that this program was built with.
	EtcdVersion string `json:"etcdVersion"`
	// Revision that it began with.
	Revision int64 `json:"revision"`
	// Keys that it gave when it was asked for all.
	Keys int64 `json:"keys"`
	// HashKV is its hash of all keys and revisions, as `etcdctl endpoint hashkv` prints it.
	HashKV uint32 `json:"hashKV"`
	// Kinds of the objects.
	Kinds
}

// DrillSpace is how much room a drill needs for a database of size bytes: the database, which becomes the data directory's
// own, and what etcd writes as it starts.
func DrillSpace(size int64) int64 { return size + size/5 + 64<<20 }

// drillDir is the data directory in a scratch folder.
func drillDir(scratch *Scratch) string { return filepath.Join(scratch.path, "restored") }

// drillRequest is what the child reads from its standard input.
type drillRequest struct {
	// DataDir in which the database lies.
	DataDir string
}

// drillReply is what the child writes to its standard output.
type drillReply struct {
	Drill *Drill `json:"drill,omitempty"`
	Error string `json:"error,omitempty"`
}

// runDrill makes a member of the proven database that lies in drillDir and starts an etcd from it, in a child process: etcd
// ends its process where it finds what it cannot live with, and that must be a result here. command is this program and the
// arguments with which it calls DrillMain. The database is of no use afterwards.
//
// A snapshot that does not come up, or serves something else than facts say, is archive.ErrCorrupt. *SpaceError and other
// errors say that it could not be tried.
func runDrill(ctx context.Context, scratch *Scratch, facts Facts, command []string, log *slog.Logger) (*Drill, error) {
	if err := checkStorageVersion(facts); err != nil {
		return nil, err
	}
	if facts.HasTrailer {
		if err := member.TrimChecksum(drillDir(scratch), facts.Size); err != nil {
			return nil, fmt.Errorf("drill: %w", err)
		}
	}
	request, err := json.Marshal(drillRequest{DataDir: drillDir(scratch)})
	if err != nil {
		return nil, err
	}
	var stdout bytes.Buffer
	stderr := &tail{log: log}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...) //nolint:gosec // the command is this program itself
	cmd.Stdout, cmd.Stderr = &stdout, stderr
	// The child ends when this pipe does, hence with this process, and holds the scratch folder's lock as long.
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	cmd.ExtraFiles = []*os.File{scratch.lock}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a process for the drill: %w", err)
	}
	_, werr := stdin.Write(append(request, '\n'))
	err = cmd.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil || werr != nil {
		return nil, drillCrash(errors.Join(err, werr), stderr, scratch, facts)
	}
	var reply drillReply
	if err := json.Unmarshal(stdout.Bytes(), &reply); err != nil {
		return nil, fmt.Errorf("drill: its process gave no result: %w", err)
	}
	if reply.Drill == nil {
		return nil, drillFailure(reply.Error, scratch, facts)
	}
	return reply.Drill, compare(reply.Drill, facts)
}

// compare holds what was served against what the database says.
func compare(d *Drill, facts Facts) error {
	keys := facts.TotalKeys
	if facts.Bumped {
		keys--
	}
	// An etcd without any change is at revision 1.
	if want := max(facts.Revision, 1); d.Revision != want {
		return corruptf("restored etcd", "it begins at revision %d, and the database is at %d", d.Revision, want)
	}
	if d.Keys != keys {
		return corruptf("restored etcd", "it serves %d keys, and the database has %d", d.Keys, keys)
	}
	return nil
}

// checkStorageVersion refuses a database of an etcd that is newer than ours, which does not start from it.
func checkStorageVersion(facts Facts) error {
	ours := semver.New(version.Version)
	for _, v := range []string{facts.StorageVersion, facts.ClusterVersion} {
		theirs, err := semver.NewVersion(v)
		if err == nil && (theirs.Major > ours.Major || theirs.Major == ours.Major && theirs.Minor > ours.Minor) {
			return fmt.Errorf("the database is of etcd %d.%d, and this agent's own etcd is %s: use a newer agent for the level restore", theirs.Major, theirs.Minor, ours)
		}
	}
	return nil
}

// drillCrash makes an error of a child that ended without a word.
func drillCrash(err error, stderr *tail, scratch *Scratch, facts Facts) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return fmt.Errorf("drill: the process of the etcd that was started was killed (%v): more memory may be needed", status.Signal())
		}
	}
	return drillFailure(fmt.Sprintf("it ended while it started (%v): %s", err, stderr.lastWord()), scratch, facts)
}

// drillFailure tells what is the machine's fault from what is the snapshot's.
func drillFailure(text string, scratch *Scratch, facts Facts) error {
	for _, e := range []error{syscall.ENOSPC, syscall.EDQUOT} {
		if strings.Contains(text, e.Error()) {
			return spaceError(syscall.ENOSPC, scratch.path, DrillSpace(facts.Size), "")
		}
	}
	for _, e := range []error{syscall.ENOMEM, syscall.EIO, syscall.EROFS, syscall.EMFILE, errors.New("out of memory")} {
		if strings.Contains(text, e.Error()) {
			return fmt.Errorf("drill: %s", text)
		}
	}
	return fmt.Errorf("restored etcd does not start: snapshot is %w: %s", archive.ErrCorrupt, text)
}

// tail passes on what the child logs and keeps the end of it.
type tail struct {
	log *slog.Logger

	mu   sync.Mutex
	last []byte
}

const maxTail = 64 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = append(t.last, p...)
	if over := len(t.last) - maxTail; over > 0 {
		t.last = append(t.last[:0], t.last[over:]...)
	}
	if t.log != nil {
		t.log.Debug("drill", "etcd", strings.TrimSpace(string(p)))
	}
	return len(p), nil
}

// lastWord is why the child ended: the line in which etcd says so, or how the Go runtime put it.
func (t *tail) lastWord() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	word := ""
	for line := range strings.Lines(string(t.last)) {
		line = strings.TrimSpace(line)
		var entry struct{ Level, Msg, Error string }
		switch {
		case json.Unmarshal([]byte(line), &entry) == nil && entry.Msg != "":
			word = entry.Msg
			if entry.Error != "" {
				word += ": " + entry.Error
			}
			if entry.Level == "fatal" || entry.Level == "panic" {
				return word
			}
		case strings.HasPrefix(line, "panic: "), strings.HasPrefix(line, "fatal error: "):
			return line
		}
	}
	if word == "" {
		return "it logged nothing"
	}
	return word
}

// DrillMain is the child's side of a drill: it reads what to do from stdin, which stays open as long as the child is
// wanted, and writes the result to stdout. It gives the exit code.
func DrillMain(stdin io.Reader, stdout, stderr io.Writer) int {
	var request drillRequest
	if err := json.NewDecoder(stdin).Decode(&request); err != nil {
		fmt.Fprintf(stderr, "this command is a part of verify --level restore and of no use on its own: %v\n", err)
		return 2
	}
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		os.Exit(1) // the parent is gone
	}()
	var reply drillReply
	var err error
	if reply.Drill, err = drill(request, stderr); err != nil {
		reply = drillReply{Error: err.Error()}
	}
	if err := json.NewEncoder(stdout).Encode(reply); err != nil {
		return 1
	}
	return 0
}
