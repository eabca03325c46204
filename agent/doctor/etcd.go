package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-semver/semver"

	"etcdsnapshot.dev/agent/etcd"
	"etcdsnapshot.dev/agent/units"
)

// surveyed is what asking all members gave.
type surveyed struct {
	members []etcd.Member
	skipped []*etcd.EndpointError
	err     error
	// clocks are by the member's endpoint; why there is none is in clockErrs.
	clocks    map[string]time.Duration
	clockErrs map[string]error
}

func (r *run) askMembers(ctx context.Context) (s surveyed) {
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	cluster, err := etcd.New(r.etcdConfig())
	if err != nil {
		return surveyed{err: err}
	}
	defer cluster.Close()
	s = surveyed{clocks: map[string]time.Duration{}, clockErrs: map[string]error{}}
	s.members, s.skipped, s.err = cluster.Survey(ctx)
	for _, m := range s.members {
		if isLocal(m.Endpoint) {
			continue // one clock
		}
		begin := r.Now()
		server, err := cluster.ServerTime(ctx, m.Endpoint)
		if err != nil {
			s.clockErrs[m.Endpoint] = err
			continue
		}
		s.clocks[m.Endpoint] = ahead(begin, r.Now(), server)
	}
	return s
}

func isLocal(endpoint string) bool {
	u, err := url.Parse(endpoint)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return strings.HasPrefix(u.Scheme, "unix") || u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

func (r *run) checkEtcd(context.Context) (found []Finding) {
	s := r.survey()
	if s.err != nil {
		return []Finding{failed("etcd", "", s.err, "Correct spec.etcd in the policy, or the files that it names.")}
	}
	for _, m := range s.members {
		found = append(found, r.member(m, s)...)
	}
	for _, e := range s.skipped {
		found = append(found, unasked(e, len(s.members) > 0))
	}
	if len(s.members) == 0 {
		return append(found, skipped("alarms", "", "no member told them"))
	}
	return append(found, alarms(s.members)...)
}

// member gives the findings on one that can be asked for a snapshot.
func (r *run) member(m etcd.Member, s surveyed) (found []Finding) {
	role := "follower"
	if m.Leader {
		role = "leader"
	}
	about := fmt.Sprintf("etcd %s, %s, member %x, database %s (%s in use)", m.Version, role, m.MemberID, units.Bytes(m.DBSize), units.Bytes(m.DBSizeInUse))
	f := ok("etcd", m.Endpoint, "%s", about)
	switch problem, remedy := versionProblem(m.Version); {
	case m.Leaderless:
		f = warned("etcd", m.Endpoint, "Bring the other members back: without a quorum etcd takes no writes, and a snapshot may lack the last ones.", "%s, and it knows no leader", about)
	case problem != "":
		f = warned("etcd", m.Endpoint, remedy, "%s: %s", about, problem)
	case !isTLS(m.Endpoint) && !isLocal(m.Endpoint):
		f = warned("etcd", m.Endpoint, "Have etcd serve clients with TLS (--cert-file, --key-file, --client-cert-auth).", "%s: everything, Secrets too, crosses the network unencrypted", about)
	case m.DBSizeQuota > 0 && m.DBSize > m.DBSizeQuota/10*9:
		f = warned("etcd", m.Endpoint, "Defragment the members one by one (etcdctl defrag), or raise --quota-backend-bytes: at the quota etcd takes no more writes.", "%s: its quota is %s", about, units.Bytes(m.DBSizeQuota))
	}
	found = append(found, f)
	if m.Certificate != nil {
		found = append(found, r.lasts(m.Endpoint, m.Certificate, "Renew the member's server certificate (kubeadm: kubeadm certs renew etcd-server)."))
	}
	if off, ok := s.clocks[m.Endpoint]; ok {
		found = append(found, clock(m.Endpoint, off))
	}
	if err := s.clockErrs[m.Endpoint]; err != nil {
		reason := err.Error()
		if errors.Is(err, http.ErrNotSupported) {
			reason = "the member does not tell its time"
		}
		found = append(found, skipped("clock", m.Endpoint, "%s", reason))
	}
	return found
}

// unasked says why an endpoint gives no snapshot, and whether that matters.
func unasked(e *etcd.EndpointError, others bool) Finding {
	remedy := "Check that etcd runs there and that this node reaches it."
	f := failed("etcd", e.Endpoint, e.Err, remedy)
	switch {
	case errors.Is(e, etcd.ErrDuplicate):
		return ok("etcd", e.Endpoint, "%v", e.Err)
	case errors.Is(e, etcd.ErrNotEtcd):
		f.Remedy = "State that is kept in SQLite, dqlite or another database is backed up with that database's or the distribution's own tools."
		f.Err = &configError{e.Err}
	case errors.Is(e, etcd.ErrLearner):
		f.Remedy = "Name the endpoint of a voting member, too, or promote this one (etcdctl member promote)."
	case errors.Is(e, etcd.ErrCorrupt):
		f.Remedy = "Replace the member: remove it, wipe its data directory and add it anew."
		return f // whatever the others are
	case errors.Is(e, etcd.ErrLagging):
		f.Remedy = "Give the member time to catch up; look at its disk and its network."
	}
	if others {
		f.Result = Warn
		f.Err = nil
	}
	return f
}

func alarms(members []etcd.Member) (found []Finding) {
	var seen []etcd.Alarm
	for _, m := range members {
		for _, a := range m.Alarms {
			if slices.Contains(seen, a) {
				continue
			}
			seen = append(seen, a)
			who := "the whole cluster"
			if a.MemberID != 0 {
				who = fmt.Sprintf("member %x", a.MemberID)
			}
			remedy := "Look into it with etcdctl alarm list."
			switch a.Kind {
			case etcd.AlarmNoSpace:
				remedy = "etcd takes no more writes. Compact and defragment (etcdctl compact, etcdctl defrag), or raise --quota-backend-bytes; then etcdctl alarm disarm. Snapshots still work."
			case etcd.AlarmCorrupt:
				remedy = "Members' data differ. Keep older snapshots, find the members that agree (etcdctl endpoint hashkv), and replace the others."
			}
			found = append(found, failed("alarms", a.Kind, fmt.Errorf("raised for %s", who), remedy))
		}
	}
	if len(found) == 0 {
		found = []Finding{ok("alarms", "", "none")}
	}
	return found
}

// corruptible are releases that can lose data by themselves. Their own changelog warns of them
// (https://github.com/etcd-io/etcd/blob/main/CHANGELOG/README.md).
var corruptible = []string{"3.5.0", "3.5.1", "3.5.2"}

// versionProblem says what is wrong with a version of etcd, if something is.
func versionProblem(version string) (problem, remedy string) {
	v, err := semver.NewVersion(version)
	lines := etcd.SupportedVersions
	switch {
	case err != nil:
		return "its version cannot be told", "Snapshots may work; they are tested with " + strings.Join(lines, ", ") + "."
	case slices.Contains(corruptible, version):
		return "this release can corrupt its data under load", "Upgrade to 3.5.6 or later, as the etcd project says."
	case !slices.Contains(lines, fmt.Sprintf("%d.%d", v.Major, v.Minor)):
		return "not one of the versions that this program is tested with (" + strings.Join(lines, ", ") + ")",
			"Verify a snapshot with --level restore before you rely on it, and look for a newer release of this program."
	}
	return "", ""
}
