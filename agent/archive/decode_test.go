package archive

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

// storedForms are all forms that carry a proof of their own: all but the plain database.
func storedForms(t testing.TB, data []byte) map[string][]byte {
	forms := map[string][]byte{}
	for _, algorithm := range algorithms {
		for _, set := range [][]string{nil, {"x25519"}, {"ssh-ed25519", "ssh-rsa"}} {
			if algorithm != v1.CompressionNone || set != nil {
				forms[algorithm+"/"+setName(set)] = encode(t, data, Options{Algorithm: algorithm, Recipients: recipients(t, set...)})
			}
		}
	}
	return forms
}

func TestFlippedBitIsFound(t *testing.T) {
	data := database(150 << 10)
	ids := identities(t, "x25519", "ssh-ed25519")
	for name, stored := range storedForms(t, data) {
		t.Run(name, func(t *testing.T) {
			var offsets []int
			for i := range 10 {
				offsets = append(offsets, i*len(stored)/10)
			}
			for _, at := range append(offsets, len(stored)-1) {
				broken := slices.Clone(stored)
				broken[at] ^= 0x10
				_, _, err := decodeAll(broken, true, ids...)
				require.ErrorIs(t, err, ErrCorrupt, "offset %d of %d", at, len(stored))
			}
		})
	}
}

// Headers hold a few bits that nothing depends on, such as gzip's time: a flip there may go unseen, but then nothing
// but the data comes out.
func TestFlippedBitInHeaderChangesNothing(t *testing.T) {
	data := database(4 << 10)
	ids := identities(t, "x25519")
	for name, stored := range storedForms(t, data) {
		if strings.Contains(name, "ssh") {
			continue // the same header with longer stanzas
		}
		t.Run(name, func(t *testing.T) {
			for at := range min(len(stored), 400) {
				broken := slices.Clone(stored)
				broken[at] ^= 1 << (at % 8)
				got, _, err := decodeAll(broken, true, ids...)
				if err == nil {
					require.True(t, bytes.Equal(data, got), "offset %d", at)
				} else if !errors.Is(err, ErrWrongIdentity) { // a flip in the wrapped key looks like a wrong key
					require.ErrorIs(t, err, ErrCorrupt, "offset %d", at)
				}
			}
		})
	}
}

func TestCutShortIsFound(t *testing.T) {
	ids := identities(t, "x25519", "ssh-ed25519")
	// 128 KiB and its multiples lie on the boundaries of blocks and of age's chunks.
	for _, size := range []int{300 << 10, 128 << 10} {
		for name, stored := range storedForms(t, database(size)) {
			t.Run(fmt.Sprintf("%s/%d", name, size), func(t *testing.T) {
				for i := range 60 {
					at := i * len(stored) / 60
					_, _, err := decodeAll(stored[:at], true, ids...)
					require.ErrorIs(t, err, ErrCorrupt, "cut at %d of %d", at, len(stored))
				}
				for _, less := range []int{1, 2, 3, 4, 5, 8, 16, 17, 64} {
					_, _, err := decodeAll(stored[:len(stored)-less], true, ids...)
					require.ErrorIs(t, err, ErrCorrupt, "cut by %d", less)
				}
			})
		}
	}
}

func TestTrailingGarbageIsFound(t *testing.T) {
	ids := identities(t, "x25519", "ssh-ed25519")
	for name, stored := range storedForms(t, database(64<<10)) {
		t.Run(name, func(t *testing.T) {
			for _, tail := range []string{"\x00", "ab", "abc", "abcd", "\n", strings.Repeat("\x00", 4096), zstdMagic, gzipMagic, "garbage at the end"} {
				_, _, err := decodeAll(append(slices.Clone(stored), tail...), true, ids...)
				require.ErrorIs(t, err, ErrCorrupt, "tail %q", tail)
			}
		})
	}
}

// zstd takes the end of its input between two frames for the end of the file: that age's last chunk is missing there
// must still be seen.
func TestCutBetweenFramesIsFound(t *testing.T) {
	// Incompressible data makes a frame that fills age's first chunk of 64 KiB to the last byte.
	data := make([]byte, 64<<10)
	_, err := rand.Read(data)
	require.NoError(t, err)
	copy(data, database(boltMagicOffset+4))
	frame := encode(t, data, Options{Concurrency: 1})
	for len(frame) > 64<<10 {
		data = data[:len(data)-1]
		frame = encode(t, data, Options{Concurrency: 1})
	}
	require.Equal(t, 64<<10, len(frame))

	ids := identities(t, "x25519")
	stored := encode(t, slices.Concat(frame, frame), Options{Algorithm: v1.CompressionNone, Recipients: recipients(t, "x25519")})
	got, _, err := decodeAll(stored, true, ids...)
	require.NoError(t, err)
	require.Equal(t, 2*len(data), len(got))
	_, _, err = decodeAll(stored[:len(stored)-64<<10-16], true, ids...)
	require.ErrorIs(t, err, ErrCorrupt)
	require.ErrorContains(t, err, "age: ")
}

// Files that the field's own tools make are opened, too.
func TestOpensWhatToolsMake(t *testing.T) {
	zstdTool, gzipTool, ageTool := tool(t, "zstd"), tool(t, "gzip"), ageTool(t)
	data := database(5 << 20)
	recipient := keyPairs()["x25519"].recipient
	zst := run(t, data, zstdTool, "-19", "-c")
	gz := run(t, data, gzipTool, "-9", "-c")
	for name, stored := range map[string][]byte{
		"zstd -19":             zst,
		"zstd -1 --no-check":   run(t, data, zstdTool, "-1", "--no-check", "-c"),
		"zstd in two frames":   slices.Concat(run(t, data[:1<<20], zstdTool, "-c"), run(t, data[1<<20:], zstdTool, "-c")),
		"gzip -9":              gz,
		"gzip in two members":  slices.Concat(run(t, data[:1<<20], gzipTool, "-c"), run(t, data[1<<20:], gzipTool, "-c")),
		"age":                  run(t, data, ageTool, "-r", recipient),
		"age armored":          run(t, data, ageTool, "-a", "-r", recipient),
		"zstd and age":         run(t, zst, ageTool, "-r", recipient),
		"gzip and age armored": run(t, gz, ageTool, "-a", "-r", recipient),
	} {
		got, d, err := decodeAll(stored, true, identities(t, "x25519")...)
		require.NoError(t, err, name)
		require.True(t, bytes.Equal(data, got), name)
		require.Equal(t, strings.Contains(name, "age"), d.Encrypted, name)
		if strings.Contains(name, "armored") {
			_, _, err = decodeAll(stored[:len(stored)-40], true, identities(t, "x25519")...)
			require.ErrorIs(t, err, ErrCorrupt, name)
		}
	}
}

func TestBigEndianDatabase(t *testing.T) {
	data := database(8 << 10)
	binary.BigEndian.PutUint32(data[boltMagicOffset:], boltMagic)
	got, _, err := decodeAll(encode(t, data, Options{}), true)
	require.NoError(t, err)
	require.Equal(t, data, got)
}

func TestUnknownFormat(t *testing.T) {
	ustar := make([]byte, 512)
	copy(ustar, "etcd.db")
	copy(ustar[257:], "ustar")
	zipped := []byte("PK\x03\x04\x14\x00\x00\x00")
	for text, stored := range map[string][]byte{
		"it is empty":                       {},
		"zip archive (k3s":                  zipped,
		"tar archive":                       ustar,
		"SQLite":                            []byte("SQLite format 3\x00..."),
		"HTML document":                     []byte("<!DOCTYPE html><html>"),
		"a JSON document":                   []byte("{\n  \"schemaVersion\": 1"),
		"zero bytes":                        make([]byte, 8192),
		`text "no database here"`:           []byte("no database here"),
		"bytes 7f 45 4c 46 02":              []byte("\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00"),
		"PGP message":                       []byte("-----BEGIN PGP MESSAGE-----"),
		"what was decompressed is not an":   encode(t, zipped, Options{}),
		"what was decrypted is not an":      encode(t, zipped, Options{Algorithm: v1.CompressionNone, Recipients: recipients(t, "x25519")}),
		"it is a gzip file: decompress":     encode(t, encode(t, database(4096), Options{Algorithm: v1.CompressionGzip}), Options{}),
		"it is an age file: decrypt":        encode(t, encode(t, database(4096), Options{Recipients: recipients(t, "x25519")}), Options{}),
		"it is a zstd file: decompress":     encode(t, encode(t, database(4096), Options{}), Options{}),
		"what was decompressed is not an e": encode(t, nil, Options{}),
	} {
		_, err := NewDecoder(bytes.NewReader(stored), identities(t, "x25519")...)
		require.ErrorIs(t, err, ErrUnknownFormat)
		require.ErrorIs(t, err, ErrCorrupt)
		require.ErrorContains(t, err, text)
	}
}

func TestIdentityIsMissingOrWrong(t *testing.T) {
	ed := recipients(t, "ssh-ed25519")[0]
	for want, set := range map[string][]string{
		"an age identity (AGE-SECRET-KEY-1...)":                               {"x25519", "x25519-other"},
		"a post-quantum age identity (AGE-SECRET-KEY-PQ-1...)":                {"pq"},
		"ssh-ed25519 private key whose fingerprint begins with SHA256:":       {"ssh-ed25519"},
		", or the ssh-rsa private key whose fingerprint begins with":          {"x25519", "ssh-rsa"},
		"fingerprint begins with " + ed.Fingerprint()[:len("SHA256:")+5] + "": {"ssh-ed25519"},
	} {
		stored := encode(t, database(4096), Options{Recipients: recipients(t, set...)})
		_, err := NewDecoder(bytes.NewReader(stored))
		require.ErrorIs(t, err, ErrNoIdentity)
		require.NotErrorIs(t, err, ErrCorrupt)
		require.ErrorContains(t, err, want)

		other := "x25519-other"
		if slices.Contains(set, other) {
			other = "pq"
		}
		_, err = NewDecoder(bytes.NewReader(stored), identities(t, other, "pq-other")...)
		require.ErrorIs(t, err, ErrWrongIdentity)
		require.NotErrorIs(t, err, ErrCorrupt)
		require.ErrorContains(t, err, "none of the 2 given")
		require.ErrorContains(t, err, want)
	}
}

func TestPassphraseIsNamed(t *testing.T) {
	r, err := age.NewScryptRecipient("correct horse")
	require.NoError(t, err)
	r.SetWorkFactor(10)
	var b bytes.Buffer
	w, err := age.Encrypt(&b, r)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	_, err = NewDecoder(&b, identities(t, "x25519")...)
	require.ErrorIs(t, err, ErrWrongIdentity)
	require.ErrorContains(t, err, "a passphrase")
}

// An error of the way to the store is not damage, whatever layer meets it.
func TestSourceErrorIsPassedOn(t *testing.T) {
	reset := errors.New("connection reset by peer")
	for name, stored := range storedForms(t, database(1<<20)) {
		for _, cause := range []error{reset, io.ErrUnexpectedEOF} {
			for _, at := range []int{0, 10, 300, len(stored) / 2, len(stored) - 1, len(stored)} {
				r := io.MultiReader(bytes.NewReader(stored[:at]), iotest.ErrReader(cause))
				d, err := NewDecoder(r, identities(t, "x25519", "ssh-rsa")...)
				if err == nil {
					_, err = io.Copy(io.Discard, d)
					require.NoError(t, d.Close())
				}
				require.ErrorIs(t, err, cause, "%s at %d", name, at)
				require.NotErrorIs(t, err, ErrCorrupt, "%s at %d", name, at)
			}
		}
	}
}

func TestSinkErrorIsPassedOn(t *testing.T) {
	d, err := NewDecoder(bytes.NewReader(encode(t, database(3<<20), Options{})))
	require.NoError(t, err)
	_, err = io.Copy(&failingWriter{n: 2 << 20}, d)
	require.Equal(t, errDisk, err)
	require.NoError(t, d.Close())
	require.NoError(t, d.Close())
}

func TestErrorStays(t *testing.T) {
	stored := encode(t, database(3<<20), Options{})
	d, err := NewDecoder(bytes.NewReader(stored[:len(stored)-1]))
	require.NoError(t, err)
	defer d.Close()
	_, err = io.Copy(io.Discard, d)
	require.ErrorIs(t, err, ErrCorrupt)
	require.ErrorContains(t, err, "zstd: it ends too early")
	for range 3 {
		n, again := d.Read(make([]byte, 10))
		require.Zero(t, n)
		require.Equal(t, err, again)
	}
}

// Small reads give the same as large ones.
func TestReadsOfEverySize(t *testing.T) {
	data := database(50 << 10)
	for name, stored := range storedForms(t, data) {
		for _, wrap := range []func(io.Reader) io.Reader{iotest.OneByteReader, iotest.HalfReader, iotest.DataErrReader} {
			d, err := NewDecoder(wrap(bytes.NewReader(stored)), identities(t, "x25519", "ssh-rsa")...)
			require.NoError(t, err, name)
			require.NoError(t, iotest.TestReader(d, data), name)
			require.NoError(t, d.Close())
		}
	}
}

// heldWhileDecoding is the most that was held while reading at most limit bytes, measured after collection.
func heldWhileDecoding(t *testing.T, r io.Reader, limit int64, ids ...age.Identity) (held uint64, n int64, err error) {
	t.Helper()
	before := live()
	d, err := newDecoder(r, false, ids)
	if err != nil {
		return 0, 0, err
	}
	defer d.Close()
	for n < limit && err == nil {
		var k int64
		k, err = io.CopyN(io.Discard, d, 8<<20)
		n += k
		now := live()
		held = max(held, now-min(before, now))
	}
	return held, n, err
}

// A bomb costs no more memory than a snapshot does.
func TestDecoderMemoryIsBounded(t *testing.T) {
	zeros := func(w io.Writer) {
		for range 64 {
			_, err := w.Write(make([]byte, 1<<20))
			require.NoError(t, err)
		}
	}
	for _, algorithm := range algorithms {
		for _, set := range [][]string{nil, {"x25519"}} {
			var b bytes.Buffer
			w, err := NewEncoder(&b, Options{Algorithm: algorithm, Level: v1.LevelBetter, Recipients: recipients(t, set...)})
			require.NoError(t, err)
			zeros(w)
			require.NoError(t, w.Close())
			held, n, err := heldWhileDecoding(t, &b, 1<<40, identities(t, "x25519")...)
			require.ErrorIs(t, err, io.EOF)
			require.EqualValues(t, 64<<20, n)
			t.Logf("%s/%s: %.1f MiB", algorithm, setName(set), float64(held)/(1<<20))
			require.Less(t, held, uint64(24<<20), "%s/%s", algorithm, setName(set))
		}
	}
}

// The largest window that is accepted, by the tool's own hand.
func TestLargestWindow(t *testing.T) {
	stored := run(t, database(40<<20), tool(t, "zstd"), "-1", "--long=25", "-c")
	held, n, err := heldWhileDecoding(t, bytes.NewReader(stored), 1<<40)
	require.ErrorIs(t, err, io.EOF)
	require.EqualValues(t, 40<<20, n)
	t.Logf("%.1f MiB", float64(held)/(1<<20))
	require.Less(t, held, uint64(50<<20))
}

func TestHugeWindowsAreRefused(t *testing.T) {
	// Frames as RFC 8878 draws them: magic, descriptor, window or content size, then one run-length block of 128 KiB.
	block := []byte{3 | (128<<10)<<3&0xff, (128 << 10 << 3 >> 8) & 0xff, 128 << 10 << 3 >> 16, 'x'}
	window := slices.Concat([]byte(zstdMagic), []byte{0, 19 << 3}, block)          // 512 MiB
	single := slices.Concat([]byte(zstdMagic), []byte{0xa0, 0, 0, 0, 0x40}, block) // one segment of 1 GiB
	gigantic := slices.Concat([]byte(zstdMagic), []byte{0, 31 << 3}, block)        // 2 TiB
	long := run(t, database(1<<20), tool(t, "zstd"), "-1", "--long=27", "-c")      // 128 MiB, by the tool
	for name, stored := range map[string][]byte{"window": window, "single segment": single, "gigantic": gigantic, "zstd --long=27": long} {
		total := allocated(func() {
			_, err := NewDecoder(bytes.NewReader(stored))
			require.ErrorContains(t, err, "zstd -d --long=31", name)
			require.ErrorIs(t, err, ErrCorrupt, name)
		})
		require.Less(t, total, uint64(8<<20), name)
	}
}

// The formats' own libraries read what we write, so that no quirk of one is hidden by the same quirk on our side.
func TestStandardLibraryReadsGzip(t *testing.T) {
	data := database(1 << 20)
	zr, err := gzip.NewReader(bytes.NewReader(encode(t, data, Options{Algorithm: v1.CompressionGzip})))
	require.NoError(t, err)
	got, err := io.ReadAll(zr)
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, got))
}

func TestZstdFrameHasChecksumAndModestWindow(t *testing.T) {
	for _, level := range levels {
		for _, concurrency := range []int{1, 2} {
			var h zstd.Header
			require.NoError(t, h.Decode(encode(t, database(9<<20), Options{Level: level, Concurrency: concurrency})))
			require.True(t, h.HasCheckSum)
			require.LessOrEqual(t, h.WindowSize, uint64(8<<20))
		}
	}
}
