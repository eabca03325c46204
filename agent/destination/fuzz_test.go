package destination

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/store"
)

// FuzzInventory: whatever objects somebody puts into the folder, each is counted once, a snapshot is one only with its
// manifest, and what is not ours by its name is in no list from which something is removed.
func FuzzInventory(f *testing.F) {
	const name = "etcd-20260102t030405z-aaaaa"
	for _, list := range []string{
		name + ".db\n" + name + ".json", name + ".db.zst\n" + name + ".db\n" + name + ".json", name + ".json", name + ".db.age",
		name + ".db\n" + name + ".json\n" + name + ".json.sig\n" + name + ".verified-restore.json\n" + name + ".corrupt-checksum.json",
		name + ".json.sig", "cluster.json\nfoo\n../../etc/passwd\n" + name + ".db/x\n" + name + ".DB", "\n\x00\n/" + name + ".db",
	} {
		f.Add(list)
	}
	when := time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC)
	f.Fuzz(func(t *testing.T, list string) {
		tally, added := newTally(), map[string]bool{}
		for key := range strings.SplitSeq(list, "\n") {
			if !added[key] { // a store has a key once
				added[key] = true
				tally.add(store.Object{Key: key, Size: 1, ModTime: when})
			}
		}
		inv := tally.inventory()
		counted := inv.Foreign + len(inv.Dangling)
		if inv.Claimed {
			counted++
		}
		for _, e := range inv.Snapshots {
			require.True(t, added[archive.ManifestKey(e.Name)], e.Name)
			counted++ // its manifest
		}
		for _, e := range append(inv.Snapshots, inv.Orphans...) {
			counted += 1 + len(e.Beside)
			e.Proof()
			e.Signed()
			for _, key := range e.keys() {
				_, _, ours := archive.ParseKey(key)
				require.True(t, ours, "%q may be removed", key)
			}
		}
		for _, name := range inv.Dangling {
			for key := range added {
				if of, kind, ok := archive.ParseKey(key); ok && of == name && kind != archive.KindManifest {
					counted++ // it stays beside the manifest that waits for its data
				}
			}
		}
		require.Equal(t, len(added), counted)
	})
}
