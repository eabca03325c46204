package etcddb

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math/bits"
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

// Element of a bucket. Its slices are parts of the file and stay valid until it is closed; nobody may write to them.
type Element struct {
	// Bucket is the bucket's name.
	Bucket []byte
	// Key is nil for the bucket itself.
	Key, Value []byte
	// Position of the element in the file; see File.At.
	Position int64
}

// meta is what the meta page that counts says.
type meta struct {
	order    binary.ByteOrder
	pageSize int
	root     uint64
	freelist uint64
	pages    uint64 // how many there are
}

// walker walks a file that is not trusted: whatever it holds, walking ends, with an error or without.
type walker struct {
	meta
	ctx   context.Context
	data  []byte
	used  bitmap
	last  []byte // the key before, in the bucket being walked
	steps int
}

// readMeta finds the meta page that counts.
func readMeta(data []byte) (meta, error) {
	var found []byte
	var m meta
	var why error
	for size := minPageSize; size <= maxPageSize; size *= 2 {
		for _, at := range []int{0, size} {
			page, order, err := metaAt(data, at)
			switch {
			case err == nil && int(order.Uint32(page[8:])) != size:
				continue // the page 0 of another page size
			case err != nil:
				if at == 0 && why == nil {
					why = err
				}
				continue
			}
			if found == nil || order.Uint64(page[48:]) > m.order.Uint64(found[48:]) {
				found, m.order, m.pageSize = page, order, size
			}
		}
		if found != nil {
			break
		}
	}
	if found == nil {
		return meta{}, corruptf("neither meta page is good: %w", why)
	}
	m.root, m.freelist, m.pages = m.order.Uint64(found[16:]), m.order.Uint64(found[32:]), m.order.Uint64(found[40:])
	if have := uint64(len(data)) / uint64(m.pageSize); m.pages > have || m.pages < 2 {
		return meta{}, corruptf("it should have %d pages of %d bytes, and has %d: it is cut short", m.pages, m.pageSize, have)
	}
	return m, nil
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

func (b *walker) walk(fn func(Element) error) error {
	b.used = newBitmap(b.pages)
	b.used.set(0)
	b.used.set(1)
	var free bitmap
	if b.freelist != noFreelist {
		var err error
		if free, err = b.readFreelist(); err != nil {
			return err
		}
	}
	err := b.tree(b.root, nil, nil, 0, func(at int, flags uint32, name, value []byte) error {
		if flags&bucketElement == 0 {
			return corruptf("%q beside the buckets is none", Clip(name))
		}
		if err := fn(Element{Bucket: name, Position: int64(at)}); err != nil {
			return err
		}
		outer := b.last
		b.last = nil
		_, valueAt := b.extent(b.data, at)
		err := b.bucket(value, valueAt, func(at int, flags uint32, key, value []byte) error {
			if flags&bucketElement != 0 {
				return corruptf("bucket %q holds the bucket %q: etcd makes none", Clip(name), Clip(key))
			}
			return fn(Element{Bucket: name, Key: key, Value: value, Position: int64(at)})
		})
		b.last = outer
		if err != nil {
			return fmt.Errorf("bucket %q: %w", Clip(name), err)
		}
		return nil
	})
	if err != nil || free == nil {
		return err
	}
	for id := range b.pages {
		switch {
		case b.used.has(id) && free.has(id):
			return corruptf("page %d is in use and listed as free", id)
		case !b.used.has(id) && !free.has(id):
			return corruptf("page %d is neither in use nor listed as free", id)
		}
	}
	return nil
}

// readFreelist gives the pages that are written down as free.
func (b *walker) readFreelist() (bitmap, error) {
	p, flags, count, err := b.page(b.freelist)
	if err != nil {
		return nil, fmt.Errorf("freelist: %w", err)
	}
	if flags != freelistPage {
		return nil, corruptf("page %d should hold the freelist and has the type %#x", b.freelist, flags)
	}
	ids, n := p[pageHeader:], uint64(count)
	if count == 0xffff && len(ids) >= 8 { // the number did not fit: it stands before the list
		n, ids = b.order.Uint64(ids), ids[8:]
	}
	if n > uint64(len(ids))/8 {
		return nil, corruptf("the freelist on page %d lists %d pages, more than it has room for", b.freelist, n)
	}
	free := newBitmap(b.pages)
	for i := range n {
		id := b.order.Uint64(ids[8*i:])
		if id < 2 || id >= b.pages || free.has(id) {
			return nil, corruptf("the freelist on page %d lists page %d, which is not there or listed twice", b.freelist, id)
		}
		free.set(id)
	}
	return free, nil
}

// page gives a page with its overflow pages, marks all of them as used, and checks what it says of itself.
func (b *walker) page(id uint64) (p []byte, flags, count uint16, err error) {
	if b.steps++; b.steps%1024 == 1 && b.ctx.Err() != nil {
		return nil, 0, 0, context.Cause(b.ctx)
	}
	if id < 2 || id >= b.pages {
		return nil, 0, 0, corruptf("page %d is referred to, and there are %d", id, b.pages)
	}
	at := int(id) * b.pageSize
	head := b.data[at:]
	overflow := uint64(b.order.Uint32(head[12:]))
	if self := b.order.Uint64(head); self != id {
		return nil, 0, 0, corruptf("page %d says that it is page %d", id, self)
	}
	if overflow >= b.pages-id {
		return nil, 0, 0, corruptf("page %d says that %d more belong to it, beyond the end", id, overflow)
	}
	for i := id; i <= id+overflow; i++ {
		if b.used.has(i) {
			return nil, 0, 0, corruptf("page %d is referred to twice", i)
		}
		b.used.set(i)
	}
	return head[:int(overflow+1)*b.pageSize], b.order.Uint16(head[8:]), b.order.Uint16(head[10:]), nil
}

// element is called for an element of a leaf, whose header is at an offset of the file.
type element func(at int, flags uint32, key, value []byte) error

// extent gives where the key and the value of the leaf's element at an offset begin. It was checked when it was walked.
func (m meta) extent(data []byte, at int) (key, value int) {
	key = at + int(m.order.Uint32(data[at+4:]))
	return key, key + int(m.order.Uint32(data[at+8:]))
}

// bucket walks the bucket that an element's value, which begins at an offset of the file, describes.
func (b *walker) bucket(value []byte, at int, fn element) error {
	if len(value) < bucketHeader {
		return corruptf("its description has %d bytes", len(value))
	}
	if root := b.order.Uint64(value); root != 0 {
		return b.tree(root, nil, nil, 0, fn)
	}
	// A small bucket is a page within the value.
	p := value[bucketHeader:]
	if len(p) < pageHeader {
		return corruptf("its page within another has %d bytes", len(p))
	}
	if flags := b.order.Uint16(p[8:]); flags != leafPage {
		return corruptf("its page within another has the type %#x", flags)
	}
	return b.leaf(p, at+bucketHeader, b.order.Uint16(p[10:]), nil, nil, "its page within another", fn)
}

// tree walks the tree below a page. Its keys are at least lo and below hi, where they are not nil.
func (b *walker) tree(id uint64, lo, hi []byte, depth int, fn element) error {
	if depth > maxDepth {
		return corruptf("page %d lies %d levels deep", id, depth)
	}
	p, flags, count, err := b.page(id)
	if err != nil {
		return err
	}
	switch flags {
	case leafPage:
		return b.leaf(p, int(id)*b.pageSize, count, lo, hi, fmt.Sprintf("page %d", id), fn)
	case branchPage:
		return b.branch(p, count, id, lo, hi, depth, fn)
	}
	return corruptf("page %d should be a branch or a leaf and has the type %#x", id, flags)
}

func (b *walker) branch(p []byte, count uint16, id uint64, lo, hi []byte, depth int, fn element) error {
	if count == 0 {
		return corruptf("page %d is a branch without children", id)
	}
	key := func(i int) ([]byte, uint64, error) {
		e := pageHeader + elementHeader*i
		if e+elementHeader > len(p) {
			return nil, 0, corruptf("page %d says that it has %d elements, more than it has room for", id, count)
		}
		k, ok := slice(p, e, b.order.Uint32(p[e:]), b.order.Uint32(p[e+4:]))
		if !ok {
			return nil, 0, corruptf("element %d of page %d lies beyond its end", i, id)
		}
		return k, b.order.Uint64(p[e+8:]), nil
	}
	k, child, err := key(0)
	if err != nil {
		return err
	}
	if lo != nil && bytes.Compare(k, lo) < 0 {
		return corruptf("the first key of page %d is less than the one that leads to it", id)
	}
	for i := 1; ; i++ {
		next, nextChild := hi, uint64(0)
		if i < int(count) {
			if next, nextChild, err = key(i); err != nil {
				return err
			}
			if bytes.Compare(k, next) >= 0 {
				return corruptf("the keys %d and %d of page %d are not in order", i-1, i, id)
			}
			if hi != nil && bytes.Compare(next, hi) >= 0 {
				return corruptf("key %d of page %d belongs on a later page", i, id)
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

// leaf walks a page of leaves that begins at an offset of the file.
func (b *walker) leaf(p []byte, at int, count uint16, lo, hi []byte, what string, fn element) error {
	for i := range int(count) {
		e := pageHeader + elementHeader*i
		if e+elementHeader > len(p) {
			return corruptf("%s says that it has %d elements, more than it has room for", what, count)
		}
		flags, pos, ksize, vsize := b.order.Uint32(p[e:]), b.order.Uint32(p[e+4:]), b.order.Uint32(p[e+8:]), b.order.Uint32(p[e+12:])
		key, ok := slice(p, e, pos, ksize)
		value, vok := slice(p, e, pos, ksize+vsize)
		if !ok || !vok || ksize+vsize < ksize || flags > bucketElement {
			return corruptf("element %d of %s lies beyond its end, or is of an unknown type", i, what)
		}
		if b.last != nil && bytes.Compare(b.last, key) >= 0 || lo != nil && bytes.Compare(key, lo) < 0 || hi != nil && bytes.Compare(key, hi) >= 0 {
			return corruptf("key %d of %s is not in order", i, what)
		}
		b.last = key
		if err := fn(at+e, flags, key, value[ksize:]); err != nil {
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

// Clip keeps damaged names short.
func Clip(b []byte) []byte { return b[:min(len(b), 64)] }

// bitmap is a set of pages.
type bitmap []uint64

func newBitmap(n uint64) bitmap { return make(bitmap, (n+bits.UintSize-1)/64) }

func (m bitmap) has(i uint64) bool { return m[i/64]>>(i%64)&1 != 0 }
func (m bitmap) set(i uint64)      { m[i/64] |= 1 << (i % 64) }
