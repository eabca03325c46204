package catalog

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

// TestRun goes through the runs of a policy: the first one, a partial one, one that fails twice, and one that is well
// again.
func TestRun(t *testing.T) {
	b := newBench(t)
	first := b.snapshot("cp-1")
	node := in("node", first)
	node.KeptBecause = map[string][]string{first.Name: {"last", "daily"}}
	b.record(b.report("cp-1", first, node, in("offsite", first)))

	rows := b.rows()
	require.Len(t, rows, 1)
	row := rows[first.Name]
	require.True(t, same(first.SnapshotFacts, row.Spec))
	require.Equal(t, map[string]string{LabelPolicy: "etcd", LabelNode: "cp-1"}, row.Labels)
	require.Equal(t, []v1.SnapshotDestinationStatus{
		{Name: "node", URI: "file:///var/lib/etcd-snapshots/prod-eu/" + first.Object.Key, Size: 3 << 20, Phase: "Stored", KeptBecause: []string{"last", "daily"}},
		{Name: "offsite", URI: "s3://backups/prod-eu/" + first.Object.Key, Size: 3 << 20, Phase: "Stored"},
	}, row.Status.Destinations)
	require.Equal(t, "True/Stored: stored in node,offsite", condition(row.Status.Conditions, v1.ConditionStored))
	require.Equal(t, "True/VerificationPassed: passed at level checksum", condition(row.Status.Conditions, v1.ConditionVerified))
	require.Equal(t, "20.0 MiB", row.Status.DatabaseSize)
	require.Equal(t, "3.0 MiB", row.Status.StoredSize)

	s := b.status()
	require.Equal(t, "0 */6 * * *", s.Schedule)
	require.Equal(t, b.clock, s.LastRunTime.UTC())
	require.Equal(t, b.clock, s.LastSuccessTime.UTC())
	require.Equal(t, 2500*time.Millisecond, s.LastDuration.Duration)
	require.Equal(t, first.Name, s.LastSnapshot)
	require.Zero(t, s.ConsecutiveFailures)
	require.EqualValues(t, 1, *s.Snapshots)
	require.Equal(t, "3.0 MiB", s.Size)
	require.Equal(t, "True/SnapshotStored: "+first.Name+" reached every required destination", condition(s.Conditions, v1.ConditionReady))
	require.Equal(t, "True/VerificationPassed: "+first.Name+" passed at level checksum", condition(s.Conditions, v1.ConditionVerified))
	for _, c := range s.Conditions {
		require.Equal(t, b.policy.Generation, c.ObservedGeneration)
	}
	require.Len(t, s.Destinations, 2)
	require.EqualValues(t, 1, s.Destinations[1].Snapshots)
	require.EqualValues(t, 3<<20, s.Destinations[1].Bytes)
	require.Equal(t, b.clock, s.Destinations[1].LastSuccessTime.UTC())
	readySince := s.Conditions[0].LastTransitionTime
	b.kubectl("wait", "--for=condition=Ready", "esp/etcd", "--timeout=5s")
	b.kubectl("wait", "--for=condition=Verified", "esnap/"+first.Name, "--timeout=5s")
	require.Equal(t, map[string]string{"SnapshotStored": "Normal x1: stored " + first.Name + " (revision 815, 3.0 MiB) in node, offsite"}, b.events())

	// A run that finds nothing changed writes no row.
	second := b.snapshot("cp-1")
	node = in("node", first, second)
	node.KeptBecause = map[string][]string{second.Name: {"last", "daily"}}
	b.record(b.report("cp-1", second, node, in("offsite", first, second)))
	require.Equal(t, readySince, b.status().Conditions[0].LastTransitionTime)
	now := b.rows()
	require.NotEqual(t, row.ResourceVersion, now[first.Name].ResourceVersion, "nothing keeps it by name any more")
	version := now[first.Name].ResourceVersion
	b.record(b.report("cp-1", second, in("node", first, second), in("offsite", first, second)))
	require.Equal(t, version, b.rows()[first.Name].ResourceVersion)
	require.Contains(t, b.events()["SnapshotStored"], "Normal x3: stored "+second.Name)

	partial := b.snapshot("cp-1")
	broken := in("offsite", first, second)
	broken.Err = errors.New("put s3://backups/prod-eu: access denied")
	r := b.report("cp-1", partial, in("node", first, second, partial), broken)
	r.Run.Err = fmt.Errorf("stored, but not in every required destination: %w", broken.Err)
	b.record(r)
	row = b.rows()[partial.Name]
	require.Equal(t, "node=Stored offsite=Failed", phases(row))
	require.Equal(t, "node", row.Status.DestinationNames)
	require.Equal(t, "False/Failed: offsite: put s3://backups/prod-eu: access denied", condition(row.Status.Conditions, v1.ConditionStored))
	s = b.status()
	require.Equal(t, "False/SnapshotPartial: stored, but not in every required destination: put s3://backups/prod-eu: access denied", condition(s.Conditions, v1.ConditionReady))
	require.EqualValues(t, 1, s.ConsecutiveFailures)
	require.Equal(t, second.Name, s.LastSnapshot, "the last success")
	require.Equal(t, "put s3://backups/prod-eu: access denied", s.Destinations[1].Message)
	require.EqualValues(t, 3, *s.Snapshots)
	require.Contains(t, b.events()["SnapshotPartial"], "Warning x1: stored, but not in every")

	for range 2 {
		r = b.report("cp-1", nil)
		r.Run.Err = errors.New("take snapshot: member https://127.0.0.1:2379: x509: certificate has expired or is not yet valid")
		b.record(r)
	}
	s = b.status()
	require.EqualValues(t, 3, s.ConsecutiveFailures)
	require.Contains(t, condition(s.Conditions, v1.ConditionReady), "False/SnapshotFailed: take snapshot: member")
	require.EqualValues(t, 3, *s.Snapshots, "what was not looked at stays as it was")
	require.EqualValues(t, 3, s.Destinations[0].Snapshots)
	require.Contains(t, b.events()["SnapshotFailed"], "Warning x2: take snapshot: member")
	require.Len(t, b.rows(), 3)

	last := b.snapshot("cp-1")
	b.record(b.report("cp-1", last, in("node", first, second, partial, last), in("offsite", first, second, last)))
	s = b.status()
	require.Zero(t, s.ConsecutiveFailures)
	require.Contains(t, condition(s.Conditions, v1.ConditionReady), "True/SnapshotStored")
	require.Equal(t, "node=Stored offsite=Failed", phases(b.rows()[partial.Name]), "that copy was never made")
}

// TestView: rows follow the stores.
func TestView(t *testing.T) {
	b := newBench(t)
	one, two, three := b.snapshot("cp-1"), b.snapshot("cp-2"), b.snapshot("cp-1")
	b.record(b.report("cp-1", one, in("node", one), in("offsite", one)))
	b.record(b.report("cp-2", two, in("node", two), in("offsite", one, two)))
	b.record(b.report("cp-1", three, in("node", one, three), in("offsite", one, two, three)))
	require.Equal(t, "node=Stored offsite=Stored", phases(b.rows()[two.Name]), "the copy on the other node's disk is left alone")

	// Retention removed one and three from offsite; two vanished from there.
	r := b.report("cp-1", nil, in("node", one, three), in("offsite", one, three))
	r.Run = nil
	r.Destinations[1].Pruned = []string{one.Name, three.Name}
	b.record(r)
	rows := b.rows()
	require.Equal(t, "node=Stored offsite=Pruned", phases(rows[one.Name]))
	require.Contains(t, condition(rows[one.Name].Status.Conditions, v1.ConditionStored), "True/Stored: stored in node")
	require.Equal(t, "node=Stored offsite=Missing", phases(rows[two.Name]))
	require.Contains(t, condition(rows[two.Name].Status.Conditions, v1.ConditionStored), "False/Missing: offsite: it was here")
	require.Equal(t, "Normal x1: removed 2 that no retention rule keeps from offsite: "+one.Name+", "+three.Name, b.events()["SnapshotsPruned"])

	// Seen from the other node, its own copy is gone, too, and with it the row. one stays pruned, on the first node.
	b.record(Report{Policy: b.policy, Node: "cp-2", Destinations: []Destination{in("node"), in("offsite", three)}, Manifest: b.manifest})
	rows = b.rows()
	require.NotContains(t, rows, two.Name)
	require.Equal(t, "node=Stored offsite=Pruned", phases(rows[one.Name]))
	require.Equal(t, "node=Stored offsite=Stored", phases(rows[three.Name]), "somebody brought it back")

	// A destination that was not listed, and one that was not worked on, keep what is said of them.
	offsite := in("offsite")
	offsite.Listed = false
	b.record(Report{Policy: b.policy, Node: "cp-1", Destinations: []Destination{in("node", one), offsite}, Manifest: b.manifest})
	require.Equal(t, "node=Missing offsite=Stored", phases(b.rows()[three.Name]))
	b.record(Report{Policy: b.policy, Node: "cp-1", Destinations: []Destination{in("offsite", three)}, Manifest: b.manifest})
	require.Equal(t, "node=Missing offsite=Stored", phases(b.rows()[three.Name]))
	require.Equal(t, "node=Stored offsite=Pruned", phases(b.rows()[one.Name]))

	// The cluster was restored from a time when there were no rows: they are made of the manifests.
	b.kubectl("delete", "esnap", "--all")
	b.record(Report{Policy: b.policy, Node: "cp-1", Destinations: []Destination{in("node", one), in("offsite", two, three)}, Manifest: b.manifest})
	rows = b.rows()
	require.Len(t, rows, 3)
	require.Equal(t, "node=Stored", phases(rows[one.Name]))
	require.Equal(t, "offsite=Stored", phases(rows[two.Name]))
	require.True(t, same(b.manifests[two.Name].SnapshotFacts, rows[two.Name].Spec))
	require.Equal(t, "Unknown/NotVerified: "+three.Name+" was not verified yet", condition(b.status().Conditions, v1.ConditionVerified))

	// Everything is gone.
	b.record(Report{Policy: b.policy, Node: "cp-1", Destinations: []Destination{in("node"), in("offsite")}, Manifest: b.manifest})
	require.Empty(t, b.rows())
	require.EqualValues(t, 0, *b.status().Snapshots)
}

// TestDamagedCopy: a copy whose size is not the manifest's is told, and does not count.
func TestDamagedCopy(t *testing.T) {
	b := newBench(t)
	m := b.snapshot("cp-1")
	b.record(b.report("cp-1", m, in("node", m), in("offsite", m)))
	short := in("offsite", m)
	short.Snapshots[0].Size = 100
	b.record(Report{Policy: b.policy, Node: "cp-1", Destinations: []Destination{in("node", m), short}, Manifest: b.manifest})
	row := b.rows()[m.Name]
	require.Equal(t, "node=Stored offsite=Failed", phases(row))
	require.Equal(t, "False/Failed: offsite: damaged: the object has 100 bytes, and its manifest says 3145728", condition(row.Status.Conditions, v1.ConditionStored))
}

// TestVerification: what verify finds goes to the row, to the policy and, if it is bad, into an Event.
func TestVerification(t *testing.T) {
	b := newBench(t)
	old, m := b.snapshot("cp-1"), b.snapshot("cp-1")
	b.record(b.report("cp-1", old, in("node", old), in("offsite", old)))
	b.record(b.report("cp-1", m, in("node", old, m), in("offsite", old, m)))
	verified := func() map[string]bool {
		names := map[string]bool{}
		for row, err := range b.client.Rows(t.Context(), b.namespace, "etcd") {
			require.NoError(t, err)
			if IsVerified(row) {
				names[row.Name] = true
			}
		}
		return names
	}
	require.Equal(t, map[string]bool{old.Name: true, m.Name: true}, verified())

	before := b.status()
	bad := v1.VerificationStatus{Time: metav1.Now(), Level: "database", Result: v1.VerificationFailed, Message: "checksum mismatch"}
	b.record(Report{Policy: b.policy, Node: "cp-1", Verifications: map[string]v1.VerificationStatus{m.Name: bad}})
	row := b.rows()[m.Name]
	require.Equal(t, "False/VerificationFailed: failed at level database: checksum mismatch", condition(row.Status.Conditions, v1.ConditionVerified))
	require.Equal(t, "node=Stored offsite=Stored", phases(row))
	s := b.status()
	require.Equal(t, before.LastRunTime, s.LastRunTime, "verify is no run")
	require.Equal(t, before.Snapshots, s.Snapshots)
	require.Equal(t, "Warning x1: did not pass its verification: "+m.Name+" at level database: checksum mismatch", b.events()["VerificationFailed"])
	require.Equal(t, map[string]bool{old.Name: true}, verified())

	// The newest one decides what the policy says.
	b.record(Report{Policy: b.policy, Node: "cp-1", Destinations: []Destination{in("node", old, m), in("offsite", old, m)}, Manifest: b.manifest})
	require.Equal(t, "False/VerificationFailed: "+m.Name+" failed at level database: checksum mismatch", condition(b.status().Conditions, v1.ConditionVerified))
	good := v1.VerificationStatus{Time: metav1.Now(), Level: "restore", Result: v1.VerificationPassed, Revision: 820, TotalKeys: 12}
	b.record(Report{Policy: b.policy, Node: "cp-1", Destinations: []Destination{in("node", old, m), in("offsite", old, m)}, Manifest: b.manifest, Verifications: map[string]v1.VerificationStatus{m.Name: good}})
	require.Equal(t, "True/VerificationPassed: "+m.Name+" passed at level restore", condition(b.status().Conditions, v1.ConditionVerified))
	require.EqualValues(t, 820, b.rows()[m.Name].Status.Verification.Revision)
}

// TestColumns: what kubectl shows.
func TestColumns(t *testing.T) {
	b := newBench(t)
	m := b.snapshot("cp-1")
	b.record(b.report("cp-1", m, in("node", m), in("offsite", m)))
	table := func(kind string) [][]string {
		var lines [][]string
		for line := range strings.Lines(b.kubectl("get", kind)) {
			lines = append(lines, strings.Fields(strings.NewReplacer("LAST SUCCESS", "LAST-SUCCESS", "0 */6 * * *", "0-*/6-*-*-*", " MiB", "-MiB").Replace(line)))
		}
		return lines
	}
	got := table("esp")
	require.Equal(t, strings.Fields("NAME SCHEDULE LAST-SUCCESS SNAPSHOTS SIZE READY VERIFIED AGE"), got[0])
	require.Equal(t, strings.Fields("etcd 0-*/6-*-*-* 59m 1 3.0-MiB True True"), got[1][:7])
	got = table("esnap")
	require.Equal(t, strings.Fields("NAME POLICY NODE REVISION SIZE STORED DESTINATIONS VERIFIED AGE"), got[0])
	require.Equal(t, strings.Fields(m.Name+" etcd cp-1 815 20.0-MiB 3.0-MiB node,offsite True 59m"), got[1])
	for _, word := range []string{"etcdsnapshot", "etcdsnapshots", "esnap", "etcdsnapshots.etcdsnapshot.dev"} {
		require.Equal(t, "etcdsnapshot.etcdsnapshot.dev/"+m.Name+"\n", b.kubectl("get", word, m.Name, "-o", "name"))
	}
	require.Contains(t, b.kubectl("get", "etcd-snapshot", "-o", "name"), "etcdsnapshotpolicy.etcdsnapshot.dev/etcd", "the category has both kinds")
}
