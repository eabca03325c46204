package etcddb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// File is an open database. Nobody may write to the file meanwhile.
type File struct {
	meta
	name string
	data []byte
}

// Open opens the database at path and reads its meta pages: where neither is good the error is archive.ErrCorrupt. All else
// is checked by Walk.
func Open(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	size := fi.Size()
	if size < 2*minPageSize || int64(int(size)) != size {
		return nil, corruptf("it has %d bytes", size)
	}
	data, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s into memory: %w", path, err)
	}
	file := &File{name: path, data: data}
	err = file.Guard(func() (err error) {
		file.meta, err = readMeta(data)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// Size of the file in bytes.
func (f *File) Size() int64 { return int64(len(f.data)) }

// Close ends the mapping: no slice of an Element may be used after it.
func (f *File) Close() error { return unix.Munmap(f.data) }

// Walk checks the database's consistency and calls fn for all that is in it, in the order of buckets and their keys.
// It checks what bbolt's Tx.Check does: each page is used once, or free, or, where free pages are written down, exactly
// one of these; keys are in order within and across pages. Damage is archive.ErrCorrupt and names the page.
func (f *File) Walk(ctx context.Context, fn func(Element) error) error {
	_ = unix.Madvise(f.data, unix.MADV_SEQUENTIAL) // advice only
	defer func() { _ = unix.Madvise(f.data, unix.MADV_NORMAL) }()
	return f.Guard(func() error {
		b := &walker{meta: f.meta, ctx: ctx, data: f.data}
		return b.walk(fn)
	})
}

// Guard calls fn, which reads slices of the file's elements: a disk that fails to give a page of the file shows as a fault
// at the access, and here as an error.
func (f *File) Guard(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			fault, ok := r.(interface{ Addr() uintptr })
			if !ok {
				panic(r)
			}
			err = fmt.Errorf("read %s: the disk failed (fault at address %#x)", f.name, fault.Addr())
		}
	}()
	return fn()
}

// At gives the key and the value of the element at a position that Walk gave.
func (f *File) At(position int64) (key, value []byte) {
	at := int(position)
	k, v := f.extent(f.data, at)
	end := v + int(f.order.Uint32(f.data[at+12:]))
	return f.data[k:v:v], f.data[v:end:end]
}
