package archive

import (
	"fmt"
	"io"
	"strings"
	"time"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

// Parts of a name. The whole is at most 63 characters, a DNS label (RFC 1123).
const (
	maxPolicy    = 40
	timeLayout   = "20060102t150405z"
	randomLength = 5
	tailLength   = 1 + len(timeLayout) + 1 + randomLength

	base32Alphabet = "abcdefghijklmnopqrstuvwxyz234567" // RFC 4648, in lower case
)

// Name is a snapshot's name taken apart: etcd-20260102t030405z-k3x7q.
type Name struct {
	Policy string
	// Time the snapshot was taken: UTC, whole seconds.
	Time time.Time
	// Random tells apart snapshots of the same second.
	Random string
}

func (n Name) String() string {
	return n.Policy + "-" + n.Time.UTC().Format(timeLayout) + "-" + n.Random
}

// NewName makes the name of a snapshot that policy takes at t; random is crypto/rand.Reader outside of tests.
func NewName(policy string, t time.Time, random io.Reader) (string, error) {
	if !isPolicyName(policy) {
		return "", fmt.Errorf("policy name %q: must be a DNS label of at most %d characters", policy, maxPolicy)
	}
	var b [randomLength]byte
	if _, err := io.ReadFull(random, b[:]); err != nil {
		return "", fmt.Errorf("make a snapshot name: %w", err)
	}
	for i := range b {
		b[i] = base32Alphabet[b[i]&31]
	}
	s := Name{Policy: policy, Time: t, Random: string(b[:])}.String()
	if _, ok := ParseName(s); !ok {
		return "", fmt.Errorf("make a snapshot name: the clock says %s", t.UTC().Format(time.RFC3339))
	}
	return s, nil
}

// ParseName takes a name apart; ok is false for anything that NewName does not make.
func ParseName(s string) (n Name, ok bool) {
	i := len(s) - tailLength
	if i < 1 || !isPolicyName(s[:i]) {
		return Name{}, false
	}
	stamp, random, ok := strings.Cut(s[i+1:], "-")
	if s[i] != '-' || !ok || len(stamp) != len(timeLayout) || strings.Trim(random, base32Alphabet) != "" {
		return Name{}, false
	}
	t, err := time.Parse(timeLayout, stamp)
	if err != nil {
		return Name{}, false
	}
	n = Name{Policy: s[:i], Time: t, Random: random}
	return n, n.String() == s
}

func isPolicyName(s string) bool {
	if s == "" || len(s) > maxPolicy || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// Kind is what an object of a snapshot is.
type Kind int

const (
	// KindData is the snapshot itself.
	KindData Kind = iota + 1
	// KindManifest is its manifest.
	KindManifest
	// KindProof is a note of a verification of it: see Proof.
	KindProof
	// KindSignature is the signature of its manifest.
	KindSignature
	// KindExtras is the archive of the node's files that goes with it.
	KindExtras
)

// What follows a snapshot's name in the names of its other objects. ssh-keygen -Y sign names signatures so.
const (
	manifestSuffix  = ".json"
	signatureSuffix = manifestSuffix + ".sig"
	extrasSuffix    = ".extras.tar.zst.age"
)

// ManifestKey is the file name of the manifest of the snapshot called name.
func ManifestKey(name string) string { return name + manifestSuffix }

// SignatureKey is the file name of the signature of that manifest.
func SignatureKey(name string) string { return name + signatureSuffix }

// ExtrasKey is the file name of the extras of the snapshot called name: a tar file, compressed with zstd, encrypted with
// age.
func ExtrasKey(name string) string { return name + extrasSuffix }

// ParseKey tells which snapshot a file, given without its folder, belongs to and what it is; ok is false for files
// that are not ours.
func ParseKey(file string) (name string, kind Kind, ok bool) {
	name, _, _ = strings.Cut(file, ".")
	if _, ok := ParseName(name); !ok {
		return "", 0, false
	}
	switch suffix := file[len(name):]; suffix {
	case manifestSuffix:
		return name, KindManifest, true
	case signatureSuffix:
		return name, KindSignature, true
	case extrasSuffix:
		return name, KindExtras, true
	default:
		if _, _, ok := ParseProof(file); ok {
			return name, KindProof, true
		}
		for _, a := range []string{v1.CompressionZstd, v1.CompressionGzip, v1.CompressionNone} {
			if suffix == Suffix(a, false) || suffix == Suffix(a, true) {
				return name, KindData, true
			}
		}
	}
	return "", 0, false
}
