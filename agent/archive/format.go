package archive

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"

	"filippo.io/age/armor"
)

// What the layers begin with.
const (
	ageIntro  = "age-encryption.org/" // then "v1\n"; https://c2sp.org/age
	zstdMagic = "\x28\xb5\x2f\xfd"    // RFC 8878, 3.1.1
	gzipMagic = "\x1f\x8b"            // RFC 1952, 2.3.1

	// A bbolt file begins with a page header of 16 bytes and a meta page whose first field is this number, in the
	// byte order of the machine that wrote it (go.etcd.io/bbolt/internal/common: Magic, Meta).
	boltMagic       = 0xED0CDAED
	boltMagicOffset = 16

	// sniffLen reaches what is farthest from the beginning: tar's magic at 257.
	sniffLen = 512
)

func isAge(b []byte) bool   { return bytes.HasPrefix(b, []byte(ageIntro)) }
func isArmor(b []byte) bool { return bytes.HasPrefix(b, []byte(armor.Header)) }
func isGzip(b []byte) bool  { return bytes.HasPrefix(b, []byte(gzipMagic)) }

// isZstd also knows skippable frames (magic 0x184D2A50 to 5F), with which pzstd begins its files.
func isZstd(b []byte) bool {
	return bytes.HasPrefix(b, []byte(zstdMagic)) ||
		len(b) >= 4 && b[0]&0xf0 == 0x50 && b[1] == 0x2a && b[2] == 0x4d && b[3] == 0x18
}

// isBolt accepts both byte orders: etcd also runs on big-endian machines.
func isBolt(b []byte) bool {
	if len(b) < boltMagicOffset+4 {
		return false
	}
	m := b[boltMagicOffset:]
	return binary.LittleEndian.Uint32(m) == boltMagic || binary.BigEndian.Uint32(m) == boltMagic
}

// foreign are formats that people do hand to a restore by mistake, and what to do about each.
var foreign = []struct {
	offset int
	magic  string
	text   string
}{
	{0, "PK\x03\x04", "a zip archive (k3s and RKE2 compress their own snapshots so): unzip it first"},
	{0, "SQLite format 3\x00", "an SQLite database (k3s without embedded etcd keeps one): it holds no etcd data"},
	{257, "ustar", "a tar archive: extract it first"},
	{0, "\xfd7zXZ\x00", "an xz file: decompress it with xz -d first"},
	{0, "BZh", "a bzip2 file: decompress it with bzip2 -d first"},
	{0, "\x04\x22\x4d\x18", "an lz4 file: decompress it with lz4 -d first"},
	{0, "Salted__", "a file encrypted with openssl enc: decrypt it first"},
	{0, "-----BEGIN PGP", "a PGP message: decrypt it with gpg -d first"},
	{0, "<", "an XML or HTML document, such as the error page of a server"},
	{0, "{", "a JSON document, such as a manifest"},
}

// describe says for people what the first bytes of something look like.
func describe(b []byte) string {
	switch {
	case len(b) == 0:
		return "it is empty"
	case isAge(b) || isArmor(b):
		return "it is an age file: decrypt it with age -d first"
	case isZstd(b):
		return "it is a zstd file: decompress it with zstd -d first"
	case isGzip(b):
		return "it is a gzip file: decompress it with gzip -d first"
	case len(bytes.TrimLeft(b, "\x00")) == 0:
		return "it begins with zero bytes, like a file that was allocated and never written"
	}
	for _, f := range foreign {
		if len(b) >= f.offset && bytes.HasPrefix(b[f.offset:], []byte(f.magic)) {
			return "it looks like " + f.text
		}
	}
	head := b[:min(len(b), 16)]
	if strings.IndexFunc(string(head), func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' || r > '~' }) < 0 {
		return fmt.Sprintf("it begins with the text %q", head)
	}
	return fmt.Sprintf("it begins with the bytes % x", head)
}

// unknownFormat is the error for something, named by what, that begins with b.
func unknownFormat(what string, b []byte) error {
	return &failure{
		msg: fmt.Sprintf("%s is %v: %s", what, ErrUnknownFormat, describe(b)),
		is:  []error{ErrUnknownFormat, ErrCorrupt},
	}
}
