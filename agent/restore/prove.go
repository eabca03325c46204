package restore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"filippo.io/age"
	"github.com/coreos/go-semver/semver"
	bolt "go.etcd.io/bbolt"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/destination"
	"etcdsnapshot.dev/agent/verify"
)

// Request says what is restored and what it must be.
type Request struct {
	// Sources are the copies of the one snapshot; the next is tried where one cannot be read or is corrupt.
	Sources    []*Source
	Identities []age.Identity
	// SkipHashCheck also takes a copied member/snap/db, which has no checksum of etcd's at its end.
	SkipHashCheck bool
	// AllowNoChecksum also takes such a copy, but no database with a wrong checksum.
	AllowNoChecksum bool
	// ExpectSHA256 of the decoded database, in hexadecimal; empty where it is not known.
	ExpectSHA256 string
	// ClusterUID of the cluster that is restored; empty where it is not known.
	ClusterUID        string
	AllowOtherCluster bool
	// EtcdVersion is the version of the etcd that will run on it; empty where it is not known.
	EtcdVersion       string
	AllowNewerStorage bool
	// Room, if not nil, checks that a database of that many bytes can be restored. It is asked before the download where the
	// size is known then, and again (decoded is true) when the database lies in its file.
	Room func(size int64, decoded bool) error
	// SpaceHint says what to do where there is too little room; empty as in verify.Options.
	SpaceHint string
	// Progress, if not nil, is told how many bytes of how many (0: not known) of a copy were read.
	Progress func(uri string, read, total int64)
	Log      *slog.Logger
}

// Member of an etcd cluster.
type Member struct {
	Name     string   `json:"name"`
	PeerURLs []string `json:"peerURLs"`
}

// Proven is a snapshot that passed all checks and lies as a plain database in a local file.
type Proven struct {
	// Path of the database: what etcdutl snapshot restore takes.
	Path string `json:"path,omitempty"`
	// Snapshot is its name, URI where it came from.
	Snapshot string `json:"snapshot"`
	URI      string `json:"uri"`
	// SHA256 of the database in hexadecimal, and its size in bytes.
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
	// Revision and Keys that it holds.
	Revision int64 `json:"revision"`
	Keys     int64 `json:"keys"`
	// EtcdVersion that wrote it, as far as it tells: major and minor.
	EtcdVersion string `json:"etcdVersion,omitempty"`
	// Members of the cluster at the time, by name.
	Members []Member `json:"members,omitempty"`
	// HasTrailer says that etcd's checksum is at its end and was checked.
	HasTrailer bool `json:"hasTrailer"`
}

// Prove fetches a snapshot into the new file dst and checks all that verify.Database checks, and that it belongs here.
// On an error there is no file dst. Errors: ErrRefused, archive.ErrCorrupt where every copy is corrupt,
// archive.ErrNoIdentity, archive.ErrWrongIdentity, *verify.SpaceError, *destination.ForeignError, those of the store.
func Prove(ctx context.Context, r Request, dst string) (*Proven, error) {
	var errs []error
	for i, src := range r.Sources {
		p, err := prove(ctx, r, src, dst)
		if err == nil {
			return p, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if sameForAll(err) {
			return nil, err
		}
		if i+1 < len(r.Sources) {
			r.Log.Warn("this copy cannot be used; the next one is tried", "uri", src.URI, "error", err)
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// sameForAll tells whether another copy of the same snapshot would give the same error.
func sameForAll(err error) bool {
	var (
		space   *verify.SpaceError
		foreign *destination.ForeignError
	)
	return errors.As(err, &space) || errors.As(err, &foreign) || errors.Is(err, ErrRefused) ||
		errors.Is(err, archive.ErrNoIdentity) || errors.Is(err, archive.ErrWrongIdentity)
}

func prove(ctx context.Context, r Request, src *Source, dst string) (*Proven, error) {
	in, m, err := src.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	size := src.Size
	if m != nil {
		size = m.Object.Size
		if err := checkCluster(r, src, m); err != nil {
			return nil, err
		}
		// What is known before the download need not wait for it.
		if err := checkVersion(r, majorMinor(m.Etcd.Version)); err != nil {
			return nil, err
		}
		if err := checkSum(r, m.Database.SHA256); err != nil {
			return nil, err
		}
	}
	if r.Room != nil {
		// Of a snapshot without a manifest it is only known that its database is no smaller than what is stored.
		known := size
		if m != nil {
			known = m.Database.Size
		}
		if err := r.Room(known, false); err != nil {
			return nil, err
		}
	}
	o := verify.Options{Identities: r.Identities, SkipHashCheck: r.SkipHashCheck, AllowNoChecksum: r.AllowNoChecksum, SpaceHint: r.SpaceHint}
	if r.Progress != nil {
		o.Progress = func(read int64) { r.Progress(src.URI, read, size) }
	}
	facts, err := verify.Database(ctx, verify.Source{Name: src.URI, Reader: in, Manifest: m}, dst, o)
	if err != nil {
		if errors.Is(err, verify.ErrNoChecksum) {
			return nil, fmt.Errorf("%w; add --skip-hash-check if it is such a copy", err)
		}
		return nil, err
	}
	p := &Proven{Path: dst, Snapshot: src.Name, URI: src.URI, SHA256: facts.SHA256, Size: facts.Size,
		Revision: facts.Revision, Keys: facts.TotalKeys, HasTrailer: facts.HasTrailer, EtcdVersion: writtenBy(facts)}
	if facts.Bumped {
		p.Keys--
	}
	if m != nil {
		p.EtcdVersion = newer(p.EtcdVersion, majorMinor(m.Etcd.Version))
	}
	err = errors.Join(checkVersion(r, p.EtcdVersion), checkSum(r, p.SHA256))
	if err == nil && r.Room != nil {
		err = r.Room(p.Size, true)
	}
	if err == nil {
		p.Members, err = readMembers(dst)
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(dst))
	}
	return p, nil
}

// checkCluster refuses another cluster's snapshot.
func checkCluster(r Request, src *Source, m *v1.Manifest) error {
	if m.ClusterUID == "" || r.ClusterUID == "" || m.ClusterUID == r.ClusterUID || r.AllowOtherCluster {
		return nil
	}
	return fmt.Errorf("%w (to restore another cluster's snapshot here all the same: --allow-other-cluster)", &destination.ForeignError{
		URI: src.URI, Theirs: destination.Owner{ClusterUID: m.ClusterUID}, Ours: destination.Owner{ClusterUID: r.ClusterUID}})
}

func checkSum(r Request, sum string) error {
	if r.ExpectSHA256 == "" || strings.EqualFold(r.ExpectSHA256, sum) {
		return nil
	}
	return refusedf("this is another snapshot than the one that is expected: its database has sha256 %s, and --expect-sha256 is %s: all members must be restored from the same one", sum, r.ExpectSHA256)
}

// checkVersion refuses a database that was written by a newer etcd than the one that will run on it: etcd does not start
// from such a one, or misreads it.
func checkVersion(r Request, wrote string) error {
	if r.EtcdVersion == "" || wrote == "" || r.AllowNewerStorage {
		return nil
	}
	ours := majorMinor(r.EtcdVersion)
	if ours == "" {
		return refusedf("etcd's version %q cannot be read: give it as --etcd-version 3.5.21", r.EtcdVersion)
	}
	if newer(ours, wrote) != ours {
		return refusedf("the snapshot is of etcd %s, and here runs etcd %s, which may not start from it: install etcd %s first, or try all the same with --allow-newer-storage", wrote, r.EtcdVersion, wrote)
	}
	return nil
}

func writtenBy(f verify.Facts) string {
	return newer(majorMinor(f.StorageVersion), majorMinor(f.ClusterVersion))
}

// majorMinor gives 3.5 of v3.5.21-0 and of 3.5; empty where it is no version.
func majorMinor(v string) string {
	v = strings.TrimPrefix(v, "v")
	if strings.Count(v, ".") == 1 {
		v += ".0"
	}
	parsed, err := semver.NewVersion(v)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%d.%d", parsed.Major, parsed.Minor)
}

// newer gives the newer of two versions, as majorMinor gives them.
func newer(a, b string) string {
	switch {
	case a == "":
		return b
	case b == "":
		return a
	case semver.New(a + ".0").LessThan(*semver.New(b + ".0")):
		return b
	}
	return a
}

// membersBucket holds a JSON object for each member under its ID (go.etcd.io/etcd/server/v3/storage/schema: bucket.go,
// membership.go).
var membersBucket = []byte("members")

// readMembers reads who was a member out of a database that was proven.
func readMembers(db string) (members []Member, err error) {
	b, err := bolt.Open(db, 0o600, &bolt.Options{ReadOnly: true})
	if err != nil {
		return nil, fmt.Errorf("read members: %w", err)
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	err = b.View(func(tx *bolt.Tx) error {
		bucket := tx.Bucket(membersBucket)
		if bucket == nil {
			return nil
		}
		return bucket.ForEach(func(_, v []byte) error {
			var m Member
			if err := json.Unmarshal(v, &m); err != nil {
				return fmt.Errorf("database is %w: a member in it cannot be read: %w", archive.ErrCorrupt, err)
			}
			members = append(members, m)
			return nil
		})
	})
	slices.SortFunc(members, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	return members, err
}

// WriteDatabase proves a snapshot and leaves its database in the new file, on the disk.
func WriteDatabase(ctx context.Context, r Request, file string) (*Proven, error) {
	p, err := Prove(ctx, r, file)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(file)
	if err == nil {
		err = errors.Join(f.Sync(), f.Close(), syncDir(filepath.Dir(file)))
	}
	if err != nil {
		return nil, fmt.Errorf("write the database to %s: %w", file, err)
	}
	return p, nil
}

// Token is the initial cluster token of a restored cluster: it follows from the database and from how far the revision is
// raised. All members of a cluster that are restored alike have the same one, so they have the same cluster ID; one that
// is restored from something else, and the members from before, have another, and etcd keeps them apart.
func (p *Proven) Token(bump uint64) string { return token(p.SHA256, bump) }

func token(sha string, bump uint64) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s+%d", strings.ToLower(sha), bump))
	return "etcd-snapshot-" + hex.EncodeToString(sum[:8])
}
