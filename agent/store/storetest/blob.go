package storetest

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"io"
	"sync/atomic"

	"etcdsnapshot.dev/agent/store"
)

// Blob gives size bytes that look random, do not compress, are the same for the same seed, and take no memory.
func Blob(seed uint64, size int64) store.Blob {
	r := io.NewSectionReader(noise(seed), 0, size)
	h := sha256.New()
	// A section of noise neither fails nor ends early, nor does a hash.
	_, _ = io.Copy(h, r)
	b := store.Blob{ReaderAt: r, Size: size}
	h.Sum(b.SHA256[:0])
	return b
}

// Text gives a blob of s.
func Text(s string) store.Blob {
	return store.Blob{ReaderAt: bytes.NewReader([]byte(s)), Size: int64(len(s)), SHA256: sha256.Sum256([]byte(s))}
}

// noise is an endless io.ReaderAt whose 8-byte words are splitmix64 of their index
// (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
type noise uint64

func (n noise) word(i uint64) uint64 {
	z := uint64(n)*0xd1342543de82ef95 + (i+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func (n noise) ReadAt(p []byte, off int64) (int, error) {
	var w [8]byte
	done := 0
	for i := uint64(off) / 8; done < len(p); i++ {
		if skip := (uint64(off) + uint64(done)) % 8; skip == 0 && len(p)-done >= 8 {
			binary.LittleEndian.PutUint64(p[done:], n.word(i))
			done += 8
		} else {
			binary.LittleEndian.PutUint64(w[:], n.word(i))
			done += copy(p[done:], w[skip:])
		}
	}
	return done, nil
}

// badSector fails every read that touches one byte, as a disk does.
type badSector struct {
	io.ReaderAt
	at  int64
	err error
}

func (b badSector) ReadAt(p []byte, off int64) (int, error) {
	if off <= b.at && b.at < off+int64(len(p)) {
		n, _ := b.ReaderAt.ReadAt(p[:b.at-off], off)
		return n, b.err
	}
	return b.ReaderAt.ReadAt(p, off)
}

// trigger calls f once, from inside the read that brings the bytes read to at least after.
type trigger struct {
	io.ReaderAt
	after int64
	f     func()
	read  atomic.Int64
	fired atomic.Bool
}

func (r *trigger) ReadAt(p []byte, off int64) (int, error) {
	n, err := r.ReaderAt.ReadAt(p, off)
	if r.read.Add(int64(n)) >= r.after && r.fired.CompareAndSwap(false, true) {
		r.f()
	}
	return n, err
}
