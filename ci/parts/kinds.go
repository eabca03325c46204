package parts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// goPart is a module whose tools are the programs, its own main package among them if it has one. They are static, so that they also run in an image from scratch.
type goPart struct{}

func (goPart) pins() []string { return []string{"go.mod", "go.sum", "?main.go", "?ldflags", "?tags"} }
func (goPart) check() error   { return nil }
func (goPart) bin() string    { return "" }

func (goPart) build(ctx context.Context, src, dst string) error {
	// A build for another platform, a workspace or flags around us must not leak into a part.
	env := append(environ("GOOS", "GOARCH", "GOFLAGS", "GOWORK", "CGO_ENABLED"), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOWORK=off")
	out, err := run(ctx, src, env, "go", "mod", "edit", "-json")
	if err != nil {
		return err
	}
	var mod struct{ Tool []struct{ Path string } }
	if err := json.Unmarshal(out, &mod); err != nil {
		return fmt.Errorf("read go.mod: %w", err)
	}
	if len(mod.Tool) == 0 {
		return errors.New("its go.mod has no tool directive")
	}
	args := []string{"build", "-trimpath", "-o", dst + string(filepath.Separator)}
	for _, option := range []string{"ldflags", "tags"} {
		switch flags, err := os.ReadFile(filepath.Join(src, option)); {
		case err == nil:
			args = append(args, "-"+option, strings.Join(strings.Fields(string(flags)), " "))
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	for _, t := range mod.Tool {
		args = append(args, t.Path)
	}
	if _, err := run(ctx, src, env, "go", args...); err != nil {
		return err
	}
	// Go names a program after its folder, and etcd's lies in go.etcd.io/etcd/server/v3.
	if server := filepath.Join(dst, "server"); isFile(server) {
		return os.Rename(server, filepath.Join(dst, "etcd"))
	}
	return nil
}

// npmPart is a package whose dependencies' commands are the programs.
type npmPart struct{}

func (npmPart) pins() []string { return []string{"package.json", "package-lock.json"} }
func (npmPart) bin() string    { return filepath.Join("node_modules", ".bin") }

func (npmPart) check() error {
	for _, tool := range []string{"node", "npm"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("%w: %w", ErrNoNode, err)
		}
	}
	return nil
}

func (p npmPart) build(ctx context.Context, src, dst string) error {
	for _, name := range p.pins() {
		if err := copyFile(filepath.Join(dst, name), filepath.Join(src, name)); err != nil {
			return err
		}
	}
	_, err := run(ctx, dst, os.Environ(), "npm", "ci", "--omit=dev", "--no-audit", "--no-fund", "--loglevel=error")
	return err
}
