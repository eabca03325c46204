package restore

import (
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/client/pkg/v3/types"

	"etcdsnapshot.dev/agent/verify"
)

// DefaultBump is how far the revision is raised: far above what any etcd writes between two snapshots.
const DefaultBump = 1_000_000_000

// maxBump leaves room for all revisions that etcd will ever write.
const maxBump = 1 << 61

// Config is the member that a data directory is made for: what the same flags of etcdutl snapshot restore say.
type Config struct {
	// DataDir of etcd. WALDir is empty where the write-ahead log lies in it.
	DataDir string `json:"dataDir"`
	WALDir  string `json:"walDir,omitempty"`
	// OldDataDir, if not empty, is the data directory from before, wherever it was moved: the restored one gets its owner,
	// and a revision above its own.
	OldDataDir string `json:"oldDataDir,omitempty"`
	Name       string `json:"name"`
	// PeerURLs to advertise.
	PeerURLs []string `json:"peerURLs"`
	// InitialCluster lists all members: name=url, comma-separated.
	InitialCluster string `json:"initialCluster"`
	// Token of the new cluster; empty means Proven.Token.
	Token string `json:"token,omitempty"`
	// Bump is how far the revision is raised, so that no client that watches sees it go back; the old revisions count as
	// compacted then. 0 leaves the revision as it was.
	Bump uint64 `json:"bump"`
	// BumpGiven says that Bump was asked for, and is not to be adapted to what this node knows.
	BumpGiven bool `json:"bumpGiven,omitempty"`
}

// check finds what etcdutl and etcd would refuse.
func (c Config) check() error {
	if c.Bump > maxBump {
		return refusedf("--bump-revision %d is more than %d: etcd's revisions have 63 bits", c.Bump, uint64(maxBump))
	}
	cluster, err := types.NewURLsMap(c.InitialCluster)
	if err != nil {
		return refusedf("--initial-cluster %q: %w", c.InitialCluster, err)
	}
	own, err := types.NewURLs(c.PeerURLs)
	if err != nil {
		return refusedf("--initial-advertise-peer-urls %q: %w", strings.Join(c.PeerURLs, ","), err)
	}
	listed, ok := cluster[c.Name]
	if !ok {
		return refusedf("--initial-cluster %s does not list this member, whose name is %q (--name)", c.InitialCluster, c.Name)
	}
	listed.Sort()
	own.Sort()
	if !slices.Equal(own.StringSlice(), listed.StringSlice()) {
		return refusedf("--initial-advertise-peer-urls is %s, and --initial-cluster says %s for %s: they must be the same", own, listed, c.Name)
	}
	return nil
}

// members that the initial cluster lists, by name.
func (c Config) members() []Member {
	cluster, err := types.NewURLsMap(c.InitialCluster)
	if err != nil {
		return nil
	}
	var ms []Member
	for name, urls := range cluster {
		ms = append(ms, Member{Name: name, PeerURLs: urls.StringSlice()})
	}
	slices.SortFunc(ms, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	return ms
}

// InitialCluster is how --initial-cluster lists members.
func InitialCluster(members []Member) string {
	var parts []string
	for _, m := range members {
		for _, u := range m.PeerURLs {
			parts = append(parts, m.Name+"="+u)
		}
	}
	return strings.Join(parts, ",")
}

// adaptBump raises the bump so that the new revision is as far above the live one as it would be above the snapshot's.
// live is the revision of the old data directory, 0 where it is not known. Members of one cluster must all be raised by
// the same, so what one of them knows is not enough to go by: with several it is refused.
func (c *Config) adaptBump(snapshot, live int64) error {
	if c.Bump == 0 || live <= snapshot {
		return nil
	}
	if c.BumpGiven || len(c.members()) > 1 {
		if snapshot+int64(c.Bump) > live { //nolint:gosec // it is at most maxBump
			return nil
		}
		return refusedf("the data directory that is replaced is at revision %d, and the restored one would be at %d: clients would see the revision go back: give all members --bump-revision %d", live, snapshot+int64(c.Bump), live-snapshot+DefaultBump) //nolint:gosec // it is at most maxBump
	}
	c.Bump += uint64(live - snapshot) //nolint:gosec // live is more
	return nil
}

// walSpace is what etcd's write-ahead log takes from the beginning, and some more for it to start: 64 MB for the first
// segment and as much for the one that is made in advance.
const walSpace = 160 << 20

// spaceHint is for what is made beside the data directory.
const spaceHint = "make room there: nothing has been changed"

// room makes a check for Request.Room: in dir, that many copies of the database are made, the decoded one among them.
func room(dir string, copies int64) func(size int64, decoded bool) error {
	return func(size int64, decoded bool) error {
		left := copies
		if decoded {
			left--
		}
		if err := verify.CheckSpace(dir, left*size+walSpace, spaceHint); err != nil {
			return fmt.Errorf("restore a database of %d bytes: %w", size, err)
		}
		return nil
	}
}
