package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

const (
	// WrongClockTag is the tag of the image that LoadWrongClock loads.
	WrongClockTag = "wrong-clock"
	// WrongClockEnv says by how much the clock of its agent is ahead (720h, -10m).
	WrongClockEnv = "TEST_CLOCK_AHEAD"
)

// LoadWrongClock loads an image whose agent has a clock of its own: a node of ours has none, it shares the machine's. The
// agent is the same, but built with a time.Now that adds what WrongClockEnv says. All of the program goes by it, such as
// names, TLS and signatures; only what the node and the other servers say does not.
func (c *Cluster) LoadWrongClock(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "e2e")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	overlay, err := wrongClock(ctx, dir)
	if err != nil {
		return err
	}
	agent := filepath.Join(dir, "agent")
	build := exec.CommandContext(ctx, "go", "build", "-overlay", overlay, "-o", agent, "./agent")
	build.Dir, build.Env = Root(), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build -overlay: %w\n%s", err, out)
	}
	img, err := agentImage(WrongClockTag)
	if err != nil {
		return err
	}
	for in, file := range img.Files {
		if file == Agent() {
			img.Files[in] = agent
		}
	}
	return c.load(ctx, img)
}

// wrongClock writes an overlay for go build, with another package time.
func wrongClock(ctx context.Context, dir string) (file string, err error) {
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return "", err
	}
	original := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	text, err := os.ReadFile(original)
	if err != nil {
		return "", err
	}
	const read = "\tsec, nsec, mono := runtimeNow()\n"
	if bytes.Count(text, []byte(read)) != 1 {
		return "", errors.New("time.Now of " + runtime.Version() + " does not look as expected")
	}
	text = bytes.Replace(text, []byte(read), []byte(read+"\tsec += wrongBy\n"), 1)
	text = fmt.Appendf(text, `
var wrongBy = func() int64 {
	s, _ := syscall.Getenv(%q)
	d, _ := ParseDuration(s)
	return int64(d / Second)
}()
`, WrongClockEnv)
	text = bytes.Replace(text, []byte("import (\n"), []byte("import (\n\t\"syscall\"\n"), 1)
	changed := filepath.Join(dir, "time.go")
	if err := os.WriteFile(changed, text, 0o600); err != nil {
		return "", err
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{original: changed}})
	if err != nil {
		return "", err
	}
	file = filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, overlay, 0o600)
}
