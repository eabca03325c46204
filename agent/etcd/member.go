package etcd

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// MaxLag is how many raft entries a member may be behind the freshest one and still be asked for a snapshot. It is
// the gap between committed and applied entries at which etcd itself refuses new requests
// (maxGapBetweenApplyAndCommitIndex in its server).
const MaxLag = 5000

// Member is a member that can be asked for a snapshot, as it was when it told its status.
type Member struct {
	// Endpoint that leads to it, as configured.
	Endpoint            string
	ClusterID, MemberID uint64
	// Version of the server. StorageVersion is that of its database, which etcd tells from 3.6 on.
	Version, StorageVersion string
	// Revision of the key space. A snapshot that is opened later has this one or a higher one.
	Revision int64
	RaftTerm uint64
	// RaftAppliedIndex is the last raft entry in its database.
	RaftAppliedIndex uint64
	Leader           bool
	// DBSize and DBSizeInUse are bytes: of the file, which is what a snapshot is as large as, and of its pages in use.
	// DBSizeQuota is what the file may grow to; etcd tells it from 3.6 on, 0 before.
	DBSize, DBSizeInUse, DBSizeQuota int64
	// Alarms are raised in the whole cluster.
	Alarms []Alarm
	// Certificate is what the member showed us; nil without TLS.
	Certificate *x509.Certificate
	// Warnings say what is wrong with it, though a snapshot can be taken.
	Warnings []string
	// Leaderless says that it knows no leader.
	Leaderless bool
}

// Alarm is one that etcd has raised.
type Alarm struct {
	// Kind is NOSPACE or CORRUPT.
	Kind string
	// MemberID of the member it is about; 0 is all.
	MemberID uint64
}

// String is for logs.
func (m Member) String() string { return fmt.Sprintf("%s (member %x)", m.Endpoint, m.MemberID) }

// Members asks all endpoints for their status, side by side, and gives the members that can be asked for a snapshot,
// the best one first: followers before the leader, so that the cluster's work is not disturbed, then the freshest.
// The others are logged as warnings, each with its reason; see Survey. Errors: *UnavailableError if there is none,
// *ConfigError if the endpoints belong to different clusters, the cause of ctx.
func (c *Cluster) Members(ctx context.Context) ([]Member, error) {
	members, skipped, err := c.Survey(ctx)
	if err != nil {
		return nil, err
	}
	if len(members) == 0 {
		return nil, &UnavailableError{Endpoints: skipped}
	}
	for _, s := range skipped {
		level := slog.LevelWarn
		if errors.Is(s, ErrDuplicate) || errors.Is(s, ErrLearner) {
			level = slog.LevelInfo
		}
		c.log.Log(ctx, level, "member is not asked for a snapshot", "endpoint", s.Endpoint, "reason", s.Err)
	}
	for _, m := range members {
		for _, w := range m.Warnings {
			c.log.WarnContext(ctx, w, "endpoint", m.Endpoint, "member", strconv.FormatUint(m.MemberID, 16))
		}
	}
	return members, nil
}

// Survey is Members with the reasons why others are skipped instead of a log, and without an error if there is none.
// Every endpoint is either in members or in skipped. A member is skipped if it does not answer, is a learner, lags
// more than MaxLag behind the freshest, was found corrupt by etcd, or was found by an earlier endpoint.
func (c *Cluster) Survey(ctx context.Context) (members []Member, skipped []*EndpointError, err error) {
	answers := make([]answer, len(c.links))
	var wg sync.WaitGroup
	for i, l := range c.links {
		wg.Go(func() { answers[i] = c.ask(ctx, l) })
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	if err := oneCluster(answers); err != nil {
		return nil, nil, err
	}
	var freshest uint64
	for _, a := range answers {
		if a.err == nil {
			freshest = max(freshest, a.status.GetRaftAppliedIndex())
		}
	}
	seen := map[uint64]string{}
	for _, a := range answers {
		m := memberOf(a)
		if err := unfit(a, m, freshest, seen); err != nil {
			skipped = append(skipped, &EndpointError{Endpoint: a.link.endpoint, Err: err})
			continue
		}
		seen[m.MemberID] = m.Endpoint
		members = append(members, m)
	}
	slices.SortStableFunc(members, better)
	return members, skipped, nil
}

// answer is what came of asking one endpoint.
type answer struct {
	link   *link
	status *pb.StatusResponse
	err    error
}

func (c *Cluster) ask(ctx context.Context, l *link) answer {
	ctx, cancel := context.WithTimeout(ctx, c.config.DialTimeout)
	defer cancel()
	s, err := l.maintenance.Status(ctx, &pb.StatusRequest{})
	if err != nil {
		err = c.hint(l.cause(err, c.config.DialTimeout))
	} else if s.GetHeader().GetMemberId() == 0 {
		err = ErrNotEtcd
	}
	return answer{link: l, status: s, err: err}
}

// oneCluster refuses endpoints of different clusters: which one's snapshot would it be?
func oneCluster(answers []answer) error {
	byID := map[uint64][]string{}
	for _, a := range answers {
		if a.err == nil {
			id := a.status.GetHeader().GetClusterId()
			byID[id] = append(byID[id], a.link.endpoint)
		}
	}
	if len(byID) < 2 {
		return nil
	}
	var texts []string
	for id, endpoints := range byID {
		texts = append(texts, fmt.Sprintf("%s are cluster %x", strings.Join(endpoints, ", "), id))
	}
	slices.Sort(texts)
	return &ConfigError{Field: fieldEndpoints, Err: errors.New("the endpoints belong to different clusters: " + strings.Join(texts, "; "))}
}

// unfit says why the member is not asked, or nil.
func unfit(a answer, m Member, freshest uint64, seen map[uint64]string) error {
	if a.err != nil {
		return a.err
	}
	if first, ok := seen[m.MemberID]; ok {
		return fmt.Errorf("%w as behind %s", ErrDuplicate, first)
	}
	if a.status.GetIsLearner() {
		return ErrLearner
	}
	if slices.Contains(m.Alarms, Alarm{AlarmCorrupt, m.MemberID}) {
		return fmt.Errorf("%w: its data differs from the other members'", ErrCorrupt)
	}
	if lag := freshest - m.RaftAppliedIndex; lag > MaxLag {
		return fmt.Errorf("%w: it has applied raft entry %d, the freshest member %d (at most %d behind are accepted)", ErrLagging, m.RaftAppliedIndex, freshest, MaxLag)
	}
	return nil
}

func memberOf(a answer) Member {
	if a.err != nil {
		return Member{}
	}
	s := a.status
	m := Member{
		Endpoint:  a.link.endpoint,
		ClusterID: s.GetHeader().GetClusterId(), MemberID: s.GetHeader().GetMemberId(),
		Version: s.GetVersion(), StorageVersion: s.GetStorageVersion(),
		Revision: s.GetHeader().GetRevision(), RaftTerm: s.GetRaftTerm(), RaftAppliedIndex: s.GetRaftAppliedIndex(),
		DBSize: s.GetDbSize(), DBSizeInUse: s.GetDbSizeInUse(), DBSizeQuota: s.GetDbSizeQuota(),
		Alarms: alarms(s), Certificate: a.link.certificate(),
		Leaderless: s.GetLeader() == 0,
	}
	m.Leader = s.GetLeader() == m.MemberID
	if m.Leaderless {
		m.Warnings = append(m.Warnings, "the member knows no leader (quorum lost, or it is cut off); its snapshot may lack the latest changes")
	}
	raised := byKind(m.Alarms)
	if len(raised[AlarmNoSpace]) > 0 {
		m.Warnings = append(m.Warnings, "etcd has raised the alarm NOSPACE: its database is full and takes no more writes")
	}
	if slices.Contains(raised[AlarmCorrupt], 0) {
		m.Warnings = append(m.Warnings, "etcd has raised the alarm CORRUPT for the whole cluster: its members differ and none can be told to be right")
	} else if len(raised[AlarmCorrupt]) > 0 {
		m.Warnings = append(m.Warnings, "etcd has raised the alarm CORRUPT for another member")
	}
	return m
}

// alarmText is an alarm in a member's status, which etcd gives as text: memberID:123 alarm:CORRUPT. A member of 0 is
// left out and means all. The alarm service itself is no use here: it asks the leader.
var alarmText = regexp.MustCompile(`^(?:memberID:(\d+)\s+)?alarm:([A-Z]+)\s*$`)

// Kinds of alarms.
const (
	AlarmNoSpace = "NOSPACE"
	AlarmCorrupt = "CORRUPT"
)

// alarms gives the alarms that a status tells.
func alarms(s *pb.StatusResponse) (raised []Alarm) {
	for _, text := range s.GetErrors() {
		if match := alarmText.FindStringSubmatch(text); match != nil {
			id, _ := strconv.ParseUint(match[1], 10, 64) // "" is 0
			raised = append(raised, Alarm{Kind: match[2], MemberID: id})
		}
	}
	return raised
}

// byKind gives the members that each kind of alarm is about.
func byKind(raised []Alarm) map[string][]uint64 {
	members := map[string][]uint64{}
	for _, a := range raised {
		members[a.Kind] = append(members[a.Kind], a.MemberID)
	}
	return members
}

// better sorts the member to ask first to the front.
func better(a, b Member) int {
	return cmp.Or(
		compareBool(a.Leaderless, b.Leaderless),
		compareBool(a.Leader, b.Leader),
		cmp.Compare(b.RaftAppliedIndex, a.RaftAppliedIndex),
	)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}
