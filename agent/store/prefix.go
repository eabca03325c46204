package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"time"
)

// CheckKey returns an error that says why key cannot name an object, or nil.
func CheckKey(key string) error {
	if key == "" {
		return fmt.Errorf("%w: empty key", ErrConfig)
	}
	for _, seg := range strings.Split(key, "/") {
		switch {
		case seg == "":
			return fmt.Errorf("%w: key %q has an empty segment", ErrConfig, key)
		case seg == "." || seg == "..":
			return fmt.Errorf("%w: key %q has the segment %q", ErrConfig, key, seg)
		case strings.ContainsRune(seg, 0):
			return fmt.Errorf("%w: key %q holds a zero byte", ErrConfig, key)
		}
	}
	return nil
}

// CleanPrefix gives the canonical form of a folder that a user wrote: "/a//b/" and "a/b" are one.
func CleanPrefix(p string) string {
	var segs []string
	for _, s := range strings.Split(p, "/") {
		if s != "" {
			segs = append(segs, s)
		}
	}
	return strings.Join(segs, "/")
}

// Prefixed gives a view of s in which every key lies in the folder prefix, which may be written with slashes at
// its ends; an empty prefix gives s itself.
func Prefixed(s Store, prefix string) (Store, error) {
	prefix = CleanPrefix(prefix)
	if prefix == "" {
		return s, nil
	}
	if err := CheckKey(prefix); err != nil {
		return nil, err
	}
	return &prefixed{s: s, dir: prefix + "/"}, nil
}

type prefixed struct {
	s   Store
	dir string
}

var (
	_ Store         = (*prefixed)(nil)
	_ UploadSweeper = (*prefixed)(nil)
)

func (p *prefixed) String() string { return p.s.String() + "/" + strings.TrimSuffix(p.dir, "/") }

func (p *prefixed) Put(ctx context.Context, key string, b Blob) error {
	return p.s.Put(ctx, p.dir+key, b)
}

func (p *prefixed) Get(ctx context.Context, key string, offset int64) (io.ReadCloser, error) {
	return p.s.Get(ctx, p.dir+key, offset)
}

func (p *prefixed) List(ctx context.Context, prefix string) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		for o, err := range p.s.List(ctx, p.dir+prefix) {
			if err == nil {
				rest, ok := strings.CutPrefix(o.Key, p.dir)
				if !ok {
					err = errors.New("store " + p.s.String() + " listed " + o.Key + ", which does not begin with " + p.dir)
				}
				o.Key = rest
			}
			if !yield(o, err) || err != nil {
				return
			}
		}
	}
}

func (p *prefixed) Delete(ctx context.Context, key string) error { return p.s.Delete(ctx, p.dir+key) }

func (p *prefixed) Check(ctx context.Context, key string, b Blob) error {
	return p.s.Check(ctx, p.dir+key, b)
}

func (p *prefixed) SweepUploads(ctx context.Context, prefix string, before time.Time, mine func(key string) bool) (int, error) {
	return SweepUploads(ctx, p.s, p.dir+prefix, before, func(key string) bool {
		rest, ok := strings.CutPrefix(key, p.dir)
		return ok && mine(rest)
	})
}
