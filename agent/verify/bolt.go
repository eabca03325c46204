package verify

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math/bits"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// bbolt's file format, as go.etcd.io/bbolt/internal/common lays it out (page.go, meta.go, inode.go, bucket.go). A file is
// a row of pages. Pages 0 and 1 each hold a meta page, of which the valid one with the higher transaction counts. Numbers
// are in the byte order of the machine that wrote them.
const (
	pageHeader    = 16 // id uint64, flags uint16, count uint16, overflow uint32
	elementHeader = 16 // of a branch: pos, ksize uint32, page uint64; of a leaf: flags, pos, ksize, vsize uint32
	bucketHeader  = 16 // root page uint64, sequence uint64
	metaSize      = 64 // its last 8 bytes are the FNV-1a of those before

	boltMagic   = 0xED0CDAED
	boltVersion = 2

	branchPage   = 0x01
	leafPage     = 0x02
	metaPage     = 0x04
	freelistPage = 0x10

	bucketElement = 0x01

	// noFreelist as the freelist's page says that free pages are not written down: etcd saves itself that.
	noFreelist = ^uint64(0)

	minPageSize, maxPageSize = 512, 64 << 10

	// maxDepth is far above what a tree of any size needs.
	maxDepth = 64
)

// visit is called for each element in the order of the keys: bucket is the bucket's name; key is nil for the bucket
// itself. The slices are valid during the call only.
type visit func(bucket, key, value []byte) error

// boltFile is a bbolt file that is read but not trusted: whatever it holds, reading it ends, with an error or without.
type boltFile struct {
	ctx      context.Context
	order    binary.ByteOrder
	data     []byte
	pageSize int
	root     uint64
	freelist uint64
	pages    uint64 // how many there are, by the meta page
	used     bitmap
	last     []byte // the key before, in the bucket being walked
	steps    int
}

// walkBolt checks the consistency of the bbolt database in the first size bytes of f and calls fn for all that is in it.
// It checks what bbolt's Tx.Check does: each page is used once, or free, or, where free pages are written down, exactly
// one of these; keys are in order within and across pages. Damage is archive.ErrCorrupt and names the page.
func walkBolt(ctx context.Context, f *os.File, size int64, fn visit) (err error) {
	if size < 2*minPageSize || int64(int(size)) != size {
		return corruptf("database", "it has %d bytes", size)
	}
	data, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map %s into memory: %w", f.Name(), err)
	}
	defer func() { err = errors.Join(err, unix.Munmap(data)) }()
	_ = unix.Madvise(data, unix.MADV_SEQUENTIAL) // advice only

	// A disk that fails to give a page of the file shows as a fault at the access.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			fault, ok := r.(interface{ Addr() uintptr })
			if !ok {
				panic(r)
			}
			err = fmt.Errorf("read %s: the disk failed (fault at address %#x)", f.Name(), fault.Addr())
		}
	}()

	b := &boltFile{ctx: ctx, data: data}
	if err := b.readMeta(); err != nil {
		return err
	}
	return b.walk(fn)
}

// readMeta finds the meta page that counts.
func (b *boltFile) readMeta() error {
	var found []byte
	var why error
	for size := minPageSize; size <= maxPageSize; size *= 2 {
		for _, at := range []int{0, size} {
			m, order, err := metaAt(b.data, at)
			switch {
			case err == nil && int(order.Uint32(m[8:])) != size:
				continue // the page 0 of another page size
			case err != nil:
				if at == 0 && why == nil {
					why = err
				}
				continue
			}
			if found == nil || order.Uint64(m[48:]) > b.order.Uint64(found[48:]) {
				found, b.order, b.pageSize = m, order, size
			}
		}
		if found != nil {
			break
		}
	}
	if found == nil {
		return corruptf("database", "neither meta page is good: %w", why)
	}
	b.root, b.freelist, b.pages = b.order.Uint64(found[16:]), b.order.Uint64(found[32:]), b.order.Uint64(found[40:])
	if have := uint64(len(b.data)) / uint64(b.pageSize); b.pages > have || b.pages < 2 {
		return corruptf("database", "it should have %d pages of %d bytes, and has %d: it is cut short", b.pages, b.pageSize, have)
	}
	b.used = newBitmap(b.pages)
	b.used.set(0)
	b.used.set(1)
	return nil
}

// metaAt gives the meta page at an offset if it is good.
func metaAt(data []byte, at int) ([]byte, binary.ByteOrder, error) {
	if at+pageHeader+metaSize > len(data) {
		return nil, nil, errors.New("the file is too short")
	}
	m := data[at+pageHeader:][:metaSize]
	var order binary.ByteOrder = binary.LittleEndian
	if binary.BigEndian.Uint32(m) == boltMagic {
		order = binary.BigEndian
	}
	h := fnv.New64a()
	h.Write(m[:metaSize-8])
	switch {
	case order.Uint32(m) != boltMagic:
		return nil, nil, fmt.Errorf("magic number %#x", order.Uint32(m))
	case order.Uint32(m[4:]) != boltVersion:
		return nil, nil, fmt.Errorf("version %d of the file format", order.Uint32(m[4:]))
	case order.Uint64(m[metaSize-8:]) != h.Sum64():
		return nil, nil, errors.New("its checksum does not match")
	case order.Uint16(data[at+8:])&metaPage == 0:
		return nil, nil, errors.New("its page is of another type")
	}
	return m, order, nil
}

func (b *boltFile) walk(fn visit) error {
	var free bitmap
	if b.freelist != noFreelist {
		var err error
		if free, err = b.readFreelist(); err != nil {
			return err
		}
	}
	err := b.tree(b.root, nil, nil, 0, func(flags uint32, name, value []byte) error {
		if flags&bucketElement == 0 {
			return corruptf("database", "%q beside the buckets is none", clip(name))
		}
		if err := fn(name, nil, nil); err != nil {
			return err
		}
		outer := b.last
		b.last = nil
		err := b.bucket(value, func(flags uint32, key, value []byte) error {
			if flags&bucketElement != 0 {
				return corruptf("database", "bucket %q holds the bucket %q: etcd makes none", clip(name), clip(key))
			}
			return fn(name, key, value)
		})
		b.last = outer
		if err != nil {
			return fmt.Errorf("bucket %q: %w", clip(name), err)
		}
		return nil
	})
	if err != nil || free == nil {
		return err
	}
	for id := range b.pages {
		switch {
		case b.used.has(id) && free.has(id):
			return corruptf("database", "page %d is in use and listed as free", id)
		case !b.used.has(id) && !free.has(id):
			return corruptf("database", "page %d is neither in use nor listed as free", id)
		}
	}
	return nil
}

// readFreelist gives the pages that are written down as free.
func (b *boltFile) readFreelist() (bitmap, error) {
	p, flags, count, err := b.page(b.freelist)
	if err != nil {
		return nil, fmt.Errorf("freelist: %w", err)
	}
	if flags != freelistPage {
		return nil, corruptf("database", "page %d should hold the freelist and has the type %#x", b.freelist, flags)
	}
	ids, n := p[pageHeader:], uint64(count)
	if count == 0xffff && len(ids) >= 8 { // the number did not fit: it stands before the list
		n, ids = b.order.Uint64(ids), ids[8:]
	}
	if n > uint64(len(ids))/8 {
		return nil, corruptf("database", "the freelist on page %d lists %d pages, more than it has room for", b.freelist, n)
	}
	free := newBitmap(b.pages)
	for i := range n {
		id := b.order.Uint64(ids[8*i:])
		if id < 2 || id >= b.pages || free.has(id) {
			return nil, corruptf("database", "the freelist on page %d lists page %d, which is not there or listed twice", b.freelist, id)
		}
		free.set(id)
	}
	return free, nil
}

// page gives a page with its overflow pages, marks all of them as used, and checks what it says of itself.
func (b *boltFile) page(id uint64) (p []byte, flags, count uint16, err error) {
	if b.steps++; b.steps%1024 == 0 && b.ctx.Err() != nil {
		return nil, 0, 0, context.Cause(b.ctx)
	}
	if id < 2 || id >= b.pages {
		return nil, 0, 0, corruptf("database", "page %d is referred to, and there are %d", id, b.pages)
	}
	at := int(id) * b.pageSize
	head := b.data[at:]
	overflow := uint64(b.order.Uint32(head[12:]))
	if self := b.order.Uint64(head); self != id {
		return nil, 0, 0, corruptf("database", "page %d says that it is page %d", id, self)
	}
	if overflow >= b.pages-id {
		return nil, 0, 0, corruptf("database", "page %d says that %d more belong to it, beyond the end", id, overflow)
	}
	for i := id; i <= id+overflow; i++ {
		if b.used.has(i) {
			return nil, 0, 0, corruptf("database", "page %d is referred to twice", i)
		}
		b.used.set(i)
	}
	return head[:int(overflow+1)*b.pageSize], b.order.Uint16(head[8:]), b.order.Uint16(head[10:]), nil
}

type element func(flags uint32, key, value []byte) error

// bucket walks the bucket that an element's value describes.
func (b *boltFile) bucket(value []byte, fn element) error {
	if len(value) < bucketHeader {
		return corruptf("database", "its description has %d bytes", len(value))
	}
	if root := b.order.Uint64(value); root != 0 {
		return b.tree(root, nil, nil, 0, fn)
	}
	// A small bucket is a page within the value.
	p := value[bucketHeader:]
	if len(p) < pageHeader {
		return corruptf("database", "its page within another has %d bytes", len(p))
	}
	if flags := b.order.Uint16(p[8:]); flags != leafPage {
		return corruptf("database", "its page within another has the type %#x", flags)
	}
	return b.leaf(p, b.order.Uint16(p[10:]), nil, nil, "its page within another", fn)
}

// tree walks the tree below a page. Its keys are at least lo and below hi, where they are not nil.
func (b *boltFile) tree(id uint64, lo, hi []byte, depth int, fn element) error {
	if depth > maxDepth {
		return corruptf("database", "page %d lies %d levels deep", id, depth)
	}
	p, flags, count, err := b.page(id)
	if err != nil {
		return err
	}
	switch flags {
	case leafPage:
		return b.leaf(p, count, lo, hi, fmt.Sprintf("page %d", id), fn)
	case branchPage:
		return b.branch(p, count, id, lo, hi, depth, fn)
	}
	return corruptf("database", "page %d should be a branch or a leaf and has the type %#x", id, flags)
}

func (b *boltFile) branch(p []byte, count uint16, id uint64, lo, hi []byte, depth int, fn element) error {
	if count == 0 {
		return corruptf("database", "page %d is a branch without children", id)
	}
	key := func(i int) ([]byte, uint64, error) {
		e := pageHeader + elementHeader*i
		if e+elementHeader > len(p) {
			return nil, 0, corruptf("database", "page %d says that it has %d elements, more than it has room for", id, count)
		}
		k, ok := slice(p, e, b.order.Uint32(p[e:]), b.order.Uint32(p[e+4:]))
		if !ok {
			return nil, 0, corruptf("database", "element %d of page %d lies beyond its end", i, id)
		}
		return k, b.order.Uint64(p[e+8:]), nil
	}
	k, child, err := key(0)
	if err != nil {
		return err
	}
	if lo != nil && bytes.Compare(k, lo) < 0 {
		return corruptf("database", "the first key of page %d is less than the one that leads to it", id)
	}
	for i := 1; ; i++ {
		next, nextChild := hi, uint64(0)
		if i < int(count) {
			if next, nextChild, err = key(i); err != nil {
				return err
			}
			if bytes.Compare(k, next) >= 0 {
				return corruptf("database", "the keys %d and %d of page %d are not in order", i-1, i, id)
			}
			if hi != nil && bytes.Compare(next, hi) >= 0 {
				return corruptf("database", "key %d of page %d belongs on a later page", i, id)
			}
		}
		if err := b.tree(child, k, next, depth+1, fn); err != nil {
			return err
		}
		if i == int(count) {
			return nil
		}
		k, child = next, nextChild
	}
}

func (b *boltFile) leaf(p []byte, count uint16, lo, hi []byte, what string, fn element) error {
	for i := range int(count) {
		e := pageHeader + elementHeader*i
		if e+elementHeader > len(p) {
			return corruptf("database", "%s says that it has %d elements, more than it has room for", what, count)
		}
		flags, pos, ksize, vsize := b.order.Uint32(p[e:]), b.order.Uint32(p[e+4:]), b.order.Uint32(p[e+8:]), b.order.Uint32(p[e+12:])
		key, ok := slice(p, e, pos, ksize)
		value, vok := slice(p, e, pos, ksize+vsize)
		if !ok || !vok || ksize+vsize < ksize || flags > bucketElement {
			return corruptf("database", "element %d of %s lies beyond its end, or is of an unknown type", i, what)
		}
		if b.last != nil && bytes.Compare(b.last, key) >= 0 || lo != nil && bytes.Compare(key, lo) < 0 || hi != nil && bytes.Compare(key, hi) >= 0 {
			return corruptf("database", "key %d of %s is not in order", i, what)
		}
		b.last = key
		if err := fn(flags, key, value[ksize:]); err != nil {
			return err
		}
	}
	return nil
}

// slice gives size bytes that begin pos bytes behind e, if they lie in p and behind its header.
func slice(p []byte, e int, pos, size uint32) ([]byte, bool) {
	from := uint64(e) + uint64(pos)
	to := from + uint64(size)
	if pos < elementHeader || to > uint64(len(p)) {
		return nil, false
	}
	return p[from:to:to], true
}

// clip keeps damaged names short.
func clip(b []byte) []byte { return b[:min(len(b), 64)] }

// bitmap is a set of pages.
type bitmap []uint64

func newBitmap(n uint64) bitmap { return make(bitmap, (n+bits.UintSize-1)/64) }

func (m bitmap) has(i uint64) bool { return m[i/64]>>(i%64)&1 != 0 }
func (m bitmap) set(i uint64)      { m[i/64] |= 1 << (i % 64) }
