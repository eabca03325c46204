package archive

import (
	"bytes"
	"crypto/rand"
	"errors"
	mathrand "math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

var aTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestNewName(t *testing.T) {
	name, err := NewName("etcd", aTime.In(time.FixedZone("", 7*3600)).Add(999*time.Millisecond), bytes.NewReader([]byte{0, 1, 31, 32, 255}))
	require.NoError(t, err)
	require.Equal(t, "etcd-20260102t030405z-ab7a7", name)
	n, ok := ParseName(name)
	require.True(t, ok)
	require.Equal(t, Name{"etcd", aTime, "ab7a7"}, n)

	for _, policy := range []string{"", "-", "a-", "-a", "A", "a.b", "a_b", "ä", strings.Repeat("a", 41)} {
		_, err := NewName(policy, aTime, rand.Reader)
		require.ErrorContains(t, err, "policy name", policy)
	}
	_, err = NewName("etcd", aTime, iotest.ErrReader(errDisk))
	require.ErrorIs(t, err, errDisk)
	_, err = NewName("etcd", aTime.AddDate(9000, 0, 0), rand.Reader)
	require.ErrorContains(t, err, "the clock says 11026")
}

// Whatever the policy and the time, a name is a DNS label, is read back as what it was made of, and sorts by time.
func TestNamesRoundTrip(t *testing.T) {
	r := mathrand.New(mathrand.NewPCG(3, 4))
	const chars = "abcdefghijklmnopqrstuvwxyz0123456789-"
	policies := []string{"x", "x-1", "x-20260102t030405z-aaaaa", "20260102t030405z", "0", strings.Repeat("a", 40)}
	for range 2000 {
		b := make([]byte, 1+r.IntN(40))
		for i := range b {
			b[i] = chars[r.IntN(len(chars))]
		}
		if p := strings.Trim(string(b), "-"); p != "" {
			policies = append(policies, p)
		}
	}
	for _, policy := range policies {
		at := time.Unix(r.Int64N(4e9), r.Int64N(1e9))
		name, err := NewName(policy, at, rand.Reader)
		require.NoError(t, err)
		require.Empty(t, validation.IsDNS1123Label(name))
		n, ok := ParseName(name)
		require.True(t, ok, name)
		require.Equal(t, policy, n.Policy)
		require.Equal(t, at.UTC().Truncate(time.Second), n.Time)
		require.Equal(t, name, n.String())

		later, err := NewName(policy, at.Add(time.Second+time.Duration(r.Int64N(1e18))), rand.Reader)
		require.NoError(t, err)
		require.Less(t, name, later)

		got, kind, ok := ParseKey(ManifestKey(name))
		require.True(t, ok)
		require.Equal(t, name, got)
		require.Equal(t, KindManifest, kind)
		for _, level := range ProofLevels {
			for _, passed := range []bool{true, false} {
				got, kind, ok := ParseKey(ProofKey(name, Proof{level, passed}))
				require.True(t, ok)
				require.Equal(t, name, got)
				require.Equal(t, KindProof, kind)
				_, p, _ := ParseProof(ProofKey(name, Proof{level, passed}))
				require.Equal(t, Proof{level, passed}, p)
			}
		}
		got, kind, ok = ParseKey(ExtrasKey(name))
		require.True(t, ok)
		require.Equal(t, name, got)
		require.Equal(t, KindExtras, kind)
		for _, a := range algorithms {
			for _, encrypted := range []bool{false, true} {
				got, kind, ok := ParseKey(name + Suffix(a, encrypted))
				require.True(t, ok)
				require.Equal(t, name, got)
				require.Equal(t, KindData, kind)
			}
		}
	}
}

// TestProves: what passed at a level passed at those below.
func TestProves(t *testing.T) {
	for i, level := range ProofLevels {
		for j, other := range ProofLevels {
			require.Equal(t, i >= j, Proof{level, true}.Proves(other))
			require.False(t, Proof{level, false}.Proves(other))
		}
	}
}

func TestNotNames(t *testing.T) {
	for _, s := range []string{
		"", "etcd", "-20260102t030405z-aaaaa", "20260102t030405z-aaaaa",
		"etcd-20260102t030405z", "etcd-20260102t030405z-", "etcd-20260102t030405z-aaaa", "etcd-20260102t030405z-aaaaaa",
		"etcd-20260102T030405Z-aaaaa", "etcd-20260102t030405z-AAAAA", "etcd-20260102t030405z-aaaa1", "etcd-20260102t030405z-aa-aa",
		"etcd-20260132t030405z-aaaaa", "etcd-20260230t030405z-aaaaa", "etcd-20260102t240405z-aaaaa", "etcd-20260102t030460z-aaaaa",
		"etcd_20260102t030405z-aaaaa", "etcd-20260102t030405z_aaaaa", "Etcd-20260102t030405z-aaaaa", "etcd--20260102t030405z-aaaaa",
		" etcd-20260102t030405z-aaaaa", "etcd-20260102t030405z-aaaaa\n", "a/b-20260102t030405z-aaaaa", "a.b-20260102t030405z-aaaaa",
		"etcd-+0260102t030405z-aaaaa", "etcd-20260102t0304 5z-aaaaa", strings.Repeat("a", 41) + "-20260102t030405z-aaaaa",
	} {
		_, ok := ParseName(s)
		require.False(t, ok, s)
	}
}

func TestNotKeys(t *testing.T) {
	const name = "etcd-20260102t030405z-aaaaa"
	for _, s := range []string{
		"", name, "cluster.json", name + ".", name + ".json.age", name + ".sig", name + ".json.sig.age", name + ".db.json.sig", name + ".db.json", name + ".DB", name + ".db.age.zst", name + ".db.zst.gz",
		name + ".db.", name + ".db.bz2", name + ".db.tmp", name + ".db.zst.age.part", "." + name + ".db", "prod/" + name + ".db", name + ".spool",
		name + ".verified-.json", name + ".verified-full.json", name + ".verified-restore", name + ".corrupt.json", name + ".corrupt-restore.json.json",
		name + ".extras", name + ".extras.tar", name + ".extras.tar.zst", name + ".extras.tar.gz.age", name + ".tar.zst.age",
		name + ".db.zst ", "etcd.db", "etcd-20260102t030405z-aaaa1.db",
	} {
		_, _, ok := ParseKey(s)
		require.False(t, ok, s)
	}
}

var nameForm = regexp.MustCompile(`^([a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?)-([0-9]{8}t[0-9]{6}z)-([a-z2-7]{5})$`)

func FuzzParseName(f *testing.F) {
	for _, s := range []string{"etcd-20260102t030405z-aaaaa", "x-1-20260102t030405z-aaaaa", "x-20260102t030405z-aaaaa-20260102t030405z-aaaaa", "etcd-20260230t030405z-aaaaa", "-20260102t030405z-aaaaa", "é-20260102t030405z-aaaaa"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, ok := ParseName(s)
		m := nameForm.FindStringSubmatch(s)
		if !ok {
			if m != nil {
				_, err := time.Parse("20060102t150405z", m[3])
				require.Error(t, err, "%q was refused", s)
			}
			return
		}
		require.NotNil(t, m, "%q was accepted", s)
		require.Equal(t, []string{m[1], m[4]}, []string{n.Policy, n.Random})
		require.Equal(t, s, n.String())
	})
}

func FuzzParseKey(f *testing.F) {
	for _, s := range []string{".db", ".db.zst", ".db.gz.age", ".json", ".json.sig", ".json.age", ".db.zst.age.tmp", ".verified-restore.json", ".corrupt-checksum.json", ".extras.tar.zst.age", ""} {
		f.Add("etcd-20260102t030405z-aaaaa" + s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		name, kind, ok := ParseKey(s)
		if !ok {
			return
		}
		_, good := ParseName(name)
		require.True(t, good)
		all := []string{ManifestKey(name), SignatureKey(name), ExtrasKey(name)}
		if kind == KindProof {
			_, p, _ := ParseProof(s)
			all = []string{ProofKey(name, p)}
		}
		if kind == KindData {
			all = nil
			for _, a := range []string{v1.CompressionZstd, v1.CompressionGzip, v1.CompressionNone} {
				all = append(all, name+Suffix(a, false), name+Suffix(a, true))
			}
		}
		if !slices.Contains(all, s) {
			t.Fatal(errors.New("accepted " + s))
		}
	})
}
