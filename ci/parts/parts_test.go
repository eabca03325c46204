package parts

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// madeUp is a folder of parts of our own, in which hello prints text.
func madeUp(t *testing.T, text string) string {
	t.Helper()
	root := t.TempDir()
	write := func(name, content string) {
		file := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(content), 0o644))
	}
	write("hello/go.mod", "module example.test/hello\n\ngo 1.26.0\n\ntool (\n\texample.test/hello/server/v3\n\texample.test/hello/tell\n)\n")
	write("hello/go.sum", "")
	write("hello/ldflags", "-s -w\n-X main.text="+text+"\n")
	program := "package main\n\nimport \"os\"\n\nvar text string\n\nfunc main() { os.Stdout.WriteString(text) }\n"
	write("hello/tell/main.go", program)
	write("hello/server/v3/main.go", program)
	write("node/package.json", `{"name":"node","private":true}`)
	write("node/package-lock.json", `{"name":"node","lockfileVersion":3,"packages":{"":{"name":"node"}}}`)
	write("broken/go.mod", "module example.test/broken\n\ngo 1.26.0\n\ntool example.test/broken/missing\n")
	write("broken/go.sum", "")
	write("plain/README", "not a part")
	return root
}

func TestBuildOnceAndAgainWhenPinsChange(t *testing.T) {
	t.Setenv(CacheEnv, t.TempDir())
	root := madeUp(t, "first")
	var (
		wg   sync.WaitGroup
		dirs [4]string
		errs [4]error
	)
	for i := range dirs {
		wg.Go(func() { dirs[i], errs[i] = build(t.Context(), root, "hello") })
	}
	wg.Wait()
	for i := range dirs {
		require.NoError(t, errs[i])
		require.Equal(t, dirs[0], dirs[i])
	}
	for _, program := range []string{"tell", "etcd"} { // server is renamed
		out, err := exec.Command(filepath.Join(dirs[0], program)).Output()
		require.NoError(t, err)
		require.Equal(t, "first", string(out))
	}
	leftovers, err := filepath.Glob(filepath.Join(os.Getenv(CacheEnv), "*.tmp"))
	require.NoError(t, err)
	require.Empty(t, leftovers)

	// What is in the cache is taken as it is, whatever the build would make now.
	require.NoError(t, os.WriteFile(filepath.Join(dirs[0], "tell"), []byte("#!/bin/sh\necho cached\n"), 0o755))
	again, err := build(t.Context(), root, "hello")
	require.NoError(t, err)
	out, err := exec.Command(filepath.Join(again, "tell")).Output()
	require.NoError(t, err)
	require.Equal(t, "cached\n", string(out))

	require.NoError(t, os.WriteFile(filepath.Join(root, "hello", "ldflags"), []byte("-X main.text=second"), 0o644))
	changed, err := build(t.Context(), root, "hello")
	require.NoError(t, err)
	require.NotEqual(t, dirs[0], changed)
	out, err = exec.Command(filepath.Join(changed, "tell")).Output()
	require.NoError(t, err)
	require.Equal(t, "second", string(out))
}

func TestBuildSweepsWhatAKilledBuildLeft(t *testing.T) {
	cache := t.TempDir()
	t.Setenv(CacheEnv, cache)
	root := madeUp(t, "x")
	key, err := keyOf(filepath.Join(root, "hello"), goPart{})
	require.NoError(t, err)
	half := filepath.Join(cache, "hello-"+key+".tmp")
	require.NoError(t, os.MkdirAll(half, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(half, "half"), nil, 0o644))
	dir, err := build(t.Context(), root, "hello")
	require.NoError(t, err)
	require.NoFileExists(t, filepath.Join(dir, "half"))
	require.NoDirExists(t, half)
}

func TestBuildErrors(t *testing.T) {
	cache := t.TempDir()
	t.Setenv(CacheEnv, cache)
	root := madeUp(t, "x")
	for _, name := range []string{"", "..", "../hello", "plain", "none"} {
		_, err := build(t.Context(), root, name)
		require.ErrorIs(t, err, ErrUnknown, name)
	}
	_, err := build(t.Context(), root, "broken")
	require.ErrorContains(t, err, "example.test/broken/missing")

	key, err := keyOf(filepath.Join(root, "hello"), goPart{})
	require.NoError(t, err)
	unlock, err := lock(t.Context(), filepath.Join(cache, "hello-"+key+".lock"))
	require.NoError(t, err)
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = build(ctx, root, "hello")
	require.ErrorIs(t, err, context.DeadlineExceeded)

	dirs, err := filepath.Glob(filepath.Join(cache, "*"))
	require.NoError(t, err)
	for _, d := range dirs {
		require.True(t, strings.HasSuffix(d, ".lock"), d)
	}

	t.Setenv("PATH", "")
	_, err = build(t.Context(), root, "node")
	require.ErrorIs(t, err, ErrNoNode)
}

func TestNames(t *testing.T) {
	names, err := Names()
	require.NoError(t, err)
	require.Subset(t, names, []string{"age", "etcd-3.4", "etcd-3.5", "etcd-3.6", "etcd-3.7"})
	require.NotContains(t, names, "cmd")
}

func TestRequire(t *testing.T) {
	out, err := exec.Command(filepath.Join(Require(t, "etcd-3.6"), "etcd"), "--version").Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "etcd Version: 3.6.")
}
