package storetest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/storetest"
)

// memory is a small correct store, and with a defect by name one that breaks a single promise: it shows that the
// suite accepts the one and that the case for the promise refuses the other.
type memory struct {
	defect string
	mu     sync.Mutex
	m      map[string]store.Object
	data   map[string][]byte
	// begun counts the writers of a key that found it free.
	begun map[string]int
}

func newMemory(defect string) *memory {
	return &memory{defect: defect, m: map[string]store.Object{}, data: map[string][]byte{}, begun: map[string]int{}}
}

func (s *memory) has(defect string) bool { return s.defect == defect }

func (s *memory) String() string {
	if s.has("slash at the end") {
		return "memory://x/"
	}
	return "memory://x"
}

func (s *memory) set(key string, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.m[key] = store.Object{Key: key, Size: int64(len(data)), ModTime: time.Now()}
	s.data[key] = data
}

// awaitRival waits until two writers of key have found it free, but not for long where there is no other.
func (s *memory) awaitRival(key string) {
	s.mu.Lock()
	s.begun[key]++
	s.mu.Unlock()
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		s.mu.Lock()
		n := s.begun[key]
		s.mu.Unlock()
		if n > 1 {
			return
		}
	}
}

func (s *memory) get(key string) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	data, ok := s.data[key]
	return data, ok
}

func (s *memory) Put(ctx context.Context, key string, b store.Blob) error {
	if s.has("size not checked") {
		if err := store.CheckKey(key); err != nil {
			return err
		}
	} else if err := store.CheckPut(ctx, key, b); err != nil && (!s.has("keys not checked") || !errors.Is(err, store.ErrConfig)) {
		return err
	}
	if s.has("goroutine left behind") {
		go func() { <-time.After(time.Hour) }()
	}
	if _, taken := s.get(key); taken && !s.has("overwrites") {
		return fmt.Errorf("put %q: %w", key, store.ErrExists)
	}
	if s.has("race lost") {
		s.awaitRival(key)
	}
	var data []byte
	buf := make([]byte, 1<<20)
	for off := int64(0); off < b.Size; off += int64(len(buf)) {
		if s.has("visible early") {
			s.set(key, slices.Clone(data))
		}
		n, err := b.ReadAt(buf[:min(int64(len(buf)), b.Size-off)], off)
		data = append(data, buf[:n]...)
		switch {
		case err != nil && !errors.Is(err, io.EOF) && s.has("partial object left behind"):
			s.set(key, data)
			return err
		case err != nil && err != io.EOF && s.has("cause lost"):
			return errors.New("upload failed")
		case err != nil && err != io.EOF:
			return fmt.Errorf("put %q: %w", key, err)
		case ctx.Err() != nil && !s.has("cancel ignored"):
			return ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, taken := s.data[key]; taken && !s.has("overwrites") && !s.has("race lost") {
		if !s.has("visible early") {
			return fmt.Errorf("put %q: %w", key, store.ErrExists)
		}
	}
	s.m[key], s.data[key] = store.Object{Key: key, Size: int64(len(data)), ModTime: time.Now()}, data
	return nil
}

func (s *memory) Get(ctx context.Context, key string, offset int64) (io.ReadCloser, error) {
	if err := errors.Join(ctx.Err(), s.checkKey(key)); err != nil {
		return nil, err
	}
	data, ok := s.get(key)
	if !ok {
		if s.has("not found is empty") {
			return io.NopCloser(strings.NewReader("")), nil
		}
		return nil, fmt.Errorf("get %q: %w", key, store.ErrNotExist)
	}
	if offset < 0 {
		return nil, errors.New("negative offset")
	}
	if s.has("offset ignored") {
		offset = 0
	}
	return io.NopCloser(&reader{ctx: ctx, r: bytes.NewReader(data[min(offset, int64(len(data))):]), deaf: s.has("reader deaf to ctx")}), nil
}

type reader struct {
	ctx  context.Context
	r    io.Reader
	deaf bool
}

func (r *reader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil && !r.deaf {
		return 0, r.ctx.Err()
	}
	return r.r.Read(p[:min(len(p), 32<<10)])
}

func (s *memory) checkKey(key string) error {
	if s.has("keys not checked") {
		return nil
	}
	return store.CheckKey(key)
}

func (s *memory) List(ctx context.Context, prefix string) iter.Seq2[store.Object, error] {
	return func(yield func(store.Object, error) bool) {
		if ctx.Err() != nil && !s.has("list deaf to ctx") {
			yield(store.Object{}, ctx.Err())
			return
		}
		s.mu.Lock()
		var objs []store.Object
		for key, o := range s.m {
			if strings.HasPrefix(key, prefix) || s.has("prefix is a folder") && strings.HasPrefix(key+"/", prefix) {
				objs = append(objs, o)
			}
		}
		s.mu.Unlock()
		slices.SortFunc(objs, func(a, b store.Object) int {
			if s.has("order of a walk") {
				return slices.Compare(strings.Split(a.Key, "/"), strings.Split(b.Key, "/"))
			}
			return strings.Compare(a.Key, b.Key)
		})
		if s.has("one page only") {
			objs = objs[:min(len(objs), 1000)]
		}
		for _, o := range objs {
			if s.has("names unescaped") {
				o.Key = strings.ReplaceAll(o.Key, "+", " ")
			}
			if !yield(o, nil) {
				return
			}
		}
	}
}

func (s *memory) Delete(ctx context.Context, key string) error {
	if err := errors.Join(ctx.Err(), s.checkKey(key)); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.m[key]; !ok && s.has("delete of nothing fails") {
		return store.ErrNotExist
	}
	delete(s.data, key)
	delete(s.m, key)
	return nil
}

func (s *memory) Check(ctx context.Context, key string, b store.Blob) error {
	if err := errors.Join(ctx.Err(), s.checkKey(key)); err != nil {
		return err
	}
	data, ok := s.get(key)
	if !ok {
		return store.ErrNotExist
	}
	if int64(len(data)) != b.Size {
		return store.ErrMismatch
	}
	if s.has("only sizes compared") {
		return nil
	}
	if sum, err := (store.Blob{ReaderAt: bytes.NewReader(data), Size: b.Size}).Sum(ctx); err != nil || sum != b.SHA256 {
		return store.ErrMismatch
	}
	return nil
}

// small keeps the suite quick for a store in memory: 1,100 objects and 16 MiB still span pages and parts.
var small = storetest.Options{LargeSize: 16 << 20}

func TestMemory(t *testing.T) {
	storetest.RunWith(t, small, func(*testing.T) store.Store { return newMemory("") })
}

// TestDefective is run by TestSuiteFindsDefects in a process of its own, since it is meant to fail.
func TestDefective(t *testing.T) {
	defect := os.Getenv("STORETEST_DEFECT")
	if defect == "" {
		t.Skip("only run by TestSuiteFindsDefects")
	}
	storetest.RunWith(t, small, func(*testing.T) store.Store { return newMemory(defect) })
}

func TestSuiteFindsDefects(t *testing.T) {
	exe, err := os.Executable()
	require.NoError(t, err)
	for defect, name := range map[string]string{
		"overwrites":                 "create-only",
		"race lost":                  "concurrent writers of one key",
		"visible early":              "invisible until complete",
		"partial object left behind": "reader fails in the middle",
		"cause lost":                 "reader fails at once",
		"size not checked":           "reader longer than size",
		"cancel ignored":             "cancel in the middle",
		"reader deaf to ctx":         "cancel while reading",
		"list deaf to ctx":           "cancelled before",
		"not found is empty":         "not found",
		"delete of nothing fails":    "not found",
		"offset ignored":             "ranged get",
		"only sizes compared":        "check finds differences",
		"keys not checked":           "invalid keys",
		"prefix is a folder":         "list prefix",
		"order of a walk":            "list order",
		"one page only":              "list many",
		"names unescaped":            "names needing escaping",
		"goroutine left behind":      "put then get, list, check and delete",
		"slash at the end":           "location",
	} {
		t.Run(defect, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), exe, "-test.run", "^TestDefective$/^plain$/^"+regexp.QuoteMeta(strings.ReplaceAll(name, " ", "_"))+"$", "-test.v")
			cmd.Env = append(os.Environ(), "STORETEST_DEFECT="+defect)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit, "the suite accepted a store that breaks its promise: %s", out)
			require.Contains(t, string(out), "--- FAIL: TestDefective/plain/"+strings.ReplaceAll(name, " ", "_"))
			require.NotContains(t, string(out), "panic:")
		})
	}
}
