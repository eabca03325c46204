package verify

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/etcddb"
)

// trailed puts etcd's checksum behind a database.
func trailed(db []byte) []byte {
	sum := sha256.Sum256(db)
	return append(db[:len(db):len(db)], sum[:]...)
}

func writeFile(t testing.TB, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file.db")
	require.NoError(t, os.WriteFile(path, b, 0o600))
	return path
}

// pagesOf gives the numbers of the pages of a type, with bbolt's own eyes.
func pagesOf(t *testing.T, db []byte, kind string) (ids []int) {
	t.Helper()
	b, err := bolt.Open(writeFile(t, db), 0o600, &bolt.Options{ReadOnly: true, PreLoadFreelist: true})
	require.NoError(t, err)
	defer b.Close()
	require.NoError(t, b.View(func(tx *bolt.Tx) error {
		for id := 0; ; id++ {
			p, err := tx.Page(id)
			if err != nil || p == nil {
				return err
			}
			if p.Type == kind && p.Count > 1 {
				ids = append(ids, id)
			}
			if p.Type != "free" { // what a free page says of itself is old: its neighbours may be in use
				id += p.OverflowCount
			}
		}
	}))
	require.NotEmpty(t, ids, kind)
	return ids
}

// TestDamagedPages: a database whose pages are damaged, while every checksum around it matches, is found out for what it
// is, and quickly: none of these may fault, loop or take memory, as they do where bbolt itself reads them.
func TestDamagedPages(t *testing.T) {
	whole := real(t, "3.6").db
	whole = whole[:len(whole)-sha256.Size]
	const size = 4096
	le := binary.LittleEndian
	leaf, branch := pagesOf(t, whole, "leaf"), pagesOf(t, whole, "branch")
	at := func(db []byte, id int) []byte { return db[id*size : (id+1)*size] }
	l, b := 0, branch[len(branch)-1]
	for _, id := range leaf { // one that holds entries of keys, not the first of them, and whose next page is in use
		p := at(whole, id)
		first := p[16+le.Uint32(p[16+4:]):]
		if n := le.Uint32(p[16+8:]); n == 17 && first[8] == '_' && le.Uint32(p[12:]) == 0 && slices.Contains(leaf, id+1) {
			l = id
		}
	}
	require.NotZero(t, l)
	for name, c := range map[string]struct {
		damage func(db []byte) []byte
		says   string
	}{
		"meta pages": {func(db []byte) []byte {
			db[16+16]++
			db[size+16+16]++
			return db
		}, "neither meta page is good"},
		"page number":      {func(db []byte) []byte { le.PutUint64(at(db, l), 7); return db }, fmt.Sprintf("page %d says that it is page 7", l)},
		"page type":        {func(db []byte) []byte { le.PutUint16(at(db, l)[8:], 0x10); return db }, fmt.Sprintf("page %d should be a branch or a leaf", l)},
		"too many":         {func(db []byte) []byte { le.PutUint16(at(db, l)[10:], 0xffff); return db }, fmt.Sprintf("of page %d", l)},
		"overflow":         {func(db []byte) []byte { le.PutUint32(at(db, l)[12:], 1<<30); return db }, "beyond the end"},
		"overflow by one":  {func(db []byte) []byte { at(db, l)[12]++; return db }, "referred to twice"},
		"element position": {func(db []byte) []byte { le.PutUint32(at(db, l)[16+4:], 1<<31); return db }, fmt.Sprintf("element 0 of page %d lies beyond its end", l)},
		"element size":     {func(db []byte) []byte { le.PutUint32(at(db, l)[16+12:], 1<<32-1); return db }, "lies beyond its end"},
		"element type":     {func(db []byte) []byte { at(db, l)[16] = 1; return db }, "bucket"},
		"cycle":            {func(db []byte) []byte { le.PutUint64(at(db, b)[16+8:], uint64(b)); return db }, "referred to twice"},
		"child twice": {func(db []byte) []byte {
			copy(at(db, b)[16+8:][:8], at(db, b)[16+16+8:][:8])
			return db
		}, "page"}, // out of order, or referred to twice: by what it leads to
		"child beyond":    {func(db []byte) []byte { le.PutUint64(at(db, b)[16+8:], 1<<40); return db }, "is referred to, and there are"},
		"child is meta":   {func(db []byte) []byte { le.PutUint64(at(db, b)[16+8:], 1); return db }, "page 1 is referred to"},
		"branch is empty": {func(db []byte) []byte { le.PutUint16(at(db, b)[10:], 0); return db }, "a branch without children"},
		"branch position": {func(db []byte) []byte { le.PutUint32(at(db, b)[16+16:], 1<<20); return db }, fmt.Sprintf("element 1 of page %d lies beyond", b)},
		"order":           {func(db []byte) []byte { at(db, l)[le.Uint32(at(db, l)[16+4:])+16] = 0x7f; return db }, "not in order"},
		"cut by a page":   {func(db []byte) []byte { return db[:len(db)-size] }, "it is cut short"},
		"cut to a page":   {func(db []byte) []byte { return db[:size] }, "it is cut short"},
		"zeroed page":     {func(db []byte) []byte { clear(at(db, l)); return db }, fmt.Sprintf("page %d says that it is page 0", l)},
		"value": {func(db []byte) []byte {
			p := at(db, l)
			value := 16 + le.Uint32(p[16+4:]) + le.Uint32(p[16+8:])
			p[value] = 0x07 // no wire type of protobuf
			return db
		}, "it is not well-formed"},
		"revision": {func(db []byte) []byte { at(db, l)[16+le.Uint32(at(db, l)[16+4:])+8] = 'x'; return db }, "database is corrupt"},
	} {
		t.Run(name, func(t *testing.T) {
			db := trailed(c.damage(append([]byte(nil), whole...)))
			m := manifestOf(t, db, db, "none", false, 1)
			_, _, err := proven(t, db, m, Options{})
			require.ErrorIs(t, err, archive.ErrCorrupt)
			require.ErrorContains(t, err, c.says)
		})
	}
}

// TestFreelist: where free pages are written down (etcd does not), the list counts.
func TestFreelist(t *testing.T) {
	path := filepath.Join(t.TempDir(), "free.db")
	b, err := bolt.Open(path, 0o600, &bolt.Options{PageSize: 1024})
	require.NoError(t, err)
	for round := range 3 {
		require.NoError(t, b.Update(func(tx *bolt.Tx) error {
			bucket, err := tx.CreateBucketIfNotExists([]byte(etcddb.KeyBucket))
			for i := range 2000 {
				k := binary.BigEndian.AppendUint64(nil, uint64(1+i))
				k = append(append(k, '_'), make([]byte, 8)...)
				if err == nil && round < 2 {
					err = bucket.Put(k, append([]byte{0x0a, 3}, fmt.Sprint(100+i%900)...))
				} else if err == nil && i > 1000 {
					err = bucket.Delete(k)
				}
			}
			return err
		}))
	}
	require.NoError(t, b.Close())
	db, err := os.ReadFile(path)
	require.NoError(t, err)
	st, err := Inspect(t.Context(), path)
	require.NoError(t, err)
	require.EqualValues(t, 1001, st.Revision)
	require.EqualValues(t, 1001, st.Entries)
	require.EqualValues(t, 900, st.TotalKeys)

	meta := db[16:] // the good one of the two
	if binary.LittleEndian.Uint64(db[1024+16+48:]) > binary.LittleEndian.Uint64(meta[48:]) {
		meta = db[1024+16:]
	}
	list := db[int(binary.LittleEndian.Uint64(meta[32:]))*1024:]
	require.EqualValues(t, 0x10, list[8], "it is a freelist")
	free := binary.LittleEndian.Uint64(list[16:])
	for _, id := range []uint64{0, 1 << 40, binary.LittleEndian.Uint64(meta[16:]), binary.LittleEndian.Uint64(list[24:])} {
		binary.LittleEndian.PutUint64(list[16:], id)
		_, err := Inspect(t.Context(), writeFile(t, db))
		require.ErrorIs(t, err, archive.ErrCorrupt, "page %d in place of %d", id, free)
	}
}

func TestOtherDatabases(t *testing.T) {
	path := filepath.Join(t.TempDir(), "other.db")
	b, err := bolt.Open(path, 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, b.Update(func(tx *bolt.Tx) error {
		bucket, err := tx.CreateBucket([]byte("v1"))
		if err != nil {
			return err
		}
		_, err = bucket.CreateBucket([]byte("containers"))
		return err
	}))
	require.NoError(t, b.Close())
	_, err = Inspect(t.Context(), path)
	require.ErrorIs(t, err, archive.ErrCorrupt)
	require.ErrorContains(t, err, `bucket "v1" holds the bucket "containers": etcd makes none`)

	empty := filepath.Join(t.TempDir(), "empty.db")
	b, err = bolt.Open(empty, 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, b.Close())
	_, err = Inspect(t.Context(), empty)
	require.ErrorIs(t, err, archive.ErrUnknownFormat)
}

// TestAgreesWithBolt changes single bytes of a real database. Whatever bbolt's own check finds, or falls over, is found.
func TestAgreesWithBolt(t *testing.T) {
	whole := real(t, "3.5").db
	whole = whole[:len(whole)-sha256.Size]
	rnd := rand.New(rand.NewPCG(1, 2))
	bad := 0
	for i := range 40 {
		db := append([]byte(nil), whole...)
		page := 2 + rnd.IntN(len(db)/4096-2)
		off := page*4096 + rnd.IntN(64) // headers and elements, where the structure is
		db[off] ^= byte(1 << rnd.IntN(8))
		path := writeFile(t, db)
		_, err := Inspect(t.Context(), path)
		if err != nil {
			require.ErrorIs(t, err, archive.ErrCorrupt)
		}
		out, boltErr := boltSays(t, path)
		if boltErr != nil {
			bad++
			require.Error(t, err, "change %d at offset %d: bbolt says %s", i, off, out)
		}
	}
	t.Logf("bbolt found %d of 40, or fell over", bad)
	require.Greater(t, bad, 3, "the changes should be such that bbolt finds some")
}

// boltSays checks a file with bbolt in a process of its own, which is ended where it goes on and on: there are bits that let
// bbolt count pages to the end of memory.
func boltSays(t *testing.T, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), asBolt+"="+path)
	return cmd.CombinedOutput()
}

// asBolt names the file that this test binary is to check with bbolt alone.
const asBolt = "VERIFY_TEST_AS_BOLT"

func checkWithBolt(path string) int {
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, PreLoadFreelist: true})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	code := 0
	_ = db.View(func(tx *bolt.Tx) error {
		for err := range tx.Check() {
			fmt.Println(err)
			code = 1
		}
		return nil
	})
	return code
}

func TestInspectEndsWithContext(t *testing.T) {
	path := writeFile(t, real(t, "3.6").db)
	f, err := etcddb.Open(path)
	require.NoError(t, err)
	defer f.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	why := fmt.Errorf("enough")
	cancel(why)
	require.ErrorIs(t, f.Walk(ctx, func(etcddb.Element) error { return nil }), why)
}

// FuzzInspect: whatever a file holds, reading it ends with an answer. The seed is a small database of a real etcd's making.
func FuzzInspect(f *testing.F) {
	path := filepath.Join(f.TempDir(), "seed.db")
	b, err := bolt.Open(path, 0o600, &bolt.Options{PageSize: 512, NoFreelistSync: true})
	require.NoError(f, err)
	require.NoError(f, b.Update(func(tx *bolt.Tx) error {
		for _, name := range []string{etcddb.KeyBucket, etcddb.MetaBucket, etcddb.ClusterBucket} {
			bucket, err := tx.CreateBucket([]byte(name))
			if err != nil {
				return err
			}
			for i := range 40 {
				k := append(append(binary.BigEndian.AppendUint64(nil, uint64(1+i)), '_'), make([]byte, 8)...)
				if err := bucket.Put(k, append([]byte{0x0a, 10}, strings.Repeat("k", 10)...)); err != nil {
					return err
				}
			}
		}
		return nil
	}))
	require.NoError(f, b.Close())
	seed, err := os.ReadFile(path)
	require.NoError(f, err)
	seed = seed[:len(seed)/512*512]
	f.Add(seed, uint32(0), uint64(0))
	for id := range uint32(20) {
		f.Add(seed, id*512+8, uint64(0x0002_0002))
		f.Add(seed, id*512+16+8, uint64(3))
	}
	f.Fuzz(func(t *testing.T, db []byte, at uint32, change uint64) {
		if len(db) > 1<<20 {
			t.Skip()
		}
		db = append([]byte(nil), db...)
		if int(at)+8 <= len(db) {
			binary.LittleEndian.PutUint64(db[at:], binary.LittleEndian.Uint64(db[at:])^change)
		}
		_, err := Inspect(t.Context(), writeFile(t, db))
		if err != nil {
			require.ErrorIs(t, err, archive.ErrCorrupt)
		}
	})
}

// TestPageSizes: a database has the page size of the machine that etcd ran on; either of its meta pages may be the good one.
func TestPageSizes(t *testing.T) {
	for _, size := range []int{1 << 10, 4 << 10, 16 << 10, 64 << 10} {
		path := filepath.Join(t.TempDir(), "db")
		b, err := bolt.Open(path, 0o600, &bolt.Options{PageSize: size, NoFreelistSync: true})
		require.NoError(t, err)
		for rev := range 2 {
			require.NoError(t, b.Update(func(tx *bolt.Tx) error {
				bucket, err := tx.CreateBucketIfNotExists([]byte(etcddb.KeyBucket))
				if err != nil {
					return err
				}
				k := append(append(binary.BigEndian.AppendUint64(nil, uint64(1+rev)), '_'), make([]byte, 8)...)
				return bucket.Put(k, append([]byte{0x0a, 1}, byte('a'+rev)))
			}))
		}
		require.NoError(t, b.Close())
		db, err := os.ReadFile(path)
		require.NoError(t, err)
		st, err := Inspect(t.Context(), path)
		require.NoError(t, err)
		require.EqualValues(t, 2, st.Revision)
		seen := map[int64]bool{}
		for at := range 2 {
			damaged := append([]byte(nil), db...)
			damaged[at*size+16+50] ^= 1 // the transaction's number
			st, err := Inspect(t.Context(), writeFile(t, damaged))
			require.NoError(t, err, "page size %d, meta page %d damaged", size, at)
			seen[st.Revision] = true
		}
		require.Equal(t, map[int64]bool{1: true, 2: true}, seen, "the other meta page is the transaction before")
	}
}
