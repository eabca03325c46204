package archive

import (
	"slices"
	"strings"
)

// ProofLevels are the levels of a verification that are noted beside a snapshot, from the lowest. They are those of
// package verify, which knows what each proves.
var ProofLevels = []string{"checksum", "database", "restore"}

// Proof is what the name of a note beside a snapshot says, so that a list alone tells what was verified:
// etcd-20260102t030405z-k3x7q.verified-restore.json, or ...corrupt-database.json.
type Proof struct {
	// Level is one of ProofLevels.
	Level string
	// Passed is false where the copy was found corrupt at Level.
	Passed bool
}

const (
	verifiedSuffix = ".verified-"
	corruptSuffix  = ".corrupt-"
)

// ProofKey is the file name of a note about the snapshot called name.
func ProofKey(name string, p Proof) string {
	if p.Passed {
		return name + verifiedSuffix + p.Level + manifestSuffix
	}
	return name + corruptSuffix + p.Level + manifestSuffix
}

// ParseProof takes such a file name, given without its folder, apart; ok is false for all others.
func ParseProof(file string) (name string, p Proof, ok bool) {
	name, _, _ = strings.Cut(file, ".")
	if _, ok := ParseName(name); !ok {
		return "", Proof{}, false
	}
	for _, passed := range []bool{true, false} {
		for _, level := range ProofLevels {
			if p := (Proof{level, passed}); file == ProofKey(name, p) {
				return name, p, true
			}
		}
	}
	return "", Proof{}, false
}

// Proves tells whether what p proves includes what was to be proven at another level.
func (p Proof) Proves(level string) bool {
	return p.Passed && slices.Index(ProofLevels, p.Level) >= slices.Index(ProofLevels, level)
}
