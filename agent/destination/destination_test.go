package destination_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/destination"
	"etcdsnapshot.dev/agent/store"
)

var start = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

// folder opens a destination in a temporary folder; dir is where its objects lie.
func folder(t *testing.T) (d *destination.Destination, dir string) {
	t.Helper()
	root := filepath.Join(t.TempDir(), "store")
	spec := v1.Destination{Name: "node", HostPath: &v1.HostPathDestination{Path: root}, Retention: &v1.Retention{Last: 2}}
	d, err := destination.Open(t.Context(), spec, "prod", destination.Options{Create: true, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	require.NoError(t, err)
	t.Cleanup(d.Close)
	return d, filepath.Join(root, "prod")
}

// snapshot gives a snapshot of a policy: its manifest and data.
func snapshot(t *testing.T, policy string, at time.Time) (*v1.Manifest, store.Blob) {
	t.Helper()
	name, err := archive.NewName(policy, at, rand.Reader)
	require.NoError(t, err)
	data := []byte("the data of " + name)
	sum := sha256.Sum256(data)
	return &v1.Manifest{SchemaVersion: v1.ManifestSchemaVersion, Name: name, SnapshotFacts: v1.SnapshotFacts{
		Policy: policy, ClusterName: "prod", CreatedAt: metav1.NewTime(at),
		Etcd:        v1.SnapshotEtcd{ClusterID: "1", MemberID: "2", Version: "3.6.0", Revision: 1},
		Database:    v1.DatabaseFacts{Size: 544, SHA256: fmt.Sprintf("%x", sum)},
		Object:      v1.ObjectFacts{Key: name + ".db.zst", Size: int64(len(data)), SHA256: fmt.Sprintf("%x", sum)},
		Compression: v1.CompressionZstd,
	}}, store.Blob{ReaderAt: bytes.NewReader(data), Size: int64(len(data)), SHA256: sum}
}

func publish(t *testing.T, d *destination.Destination, policy string, at time.Time) string {
	t.Helper()
	m, blob := snapshot(t, policy, at)
	require.NoError(t, d.Publish(t.Context(), m, blob, store.Blob{}, v1.AfterStoreFull))
	return m.Name
}

func inventory(t *testing.T, d *destination.Destination) *destination.Inventory {
	t.Helper()
	inv, err := d.Inventory(t.Context())
	require.NoError(t, err)
	return inv
}

func names(es []destination.Entry) (names []string) {
	for _, e := range es {
		names = append(names, e.Name)
	}
	return names
}

func policy(name string) *v1.EtcdSnapshotPolicy {
	return &v1.EtcdSnapshotPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.EtcdSnapshotPolicySpec{TimeZone: "UTC"}}
}

func prune(t *testing.T, d *destination.Destination, policyName string) (destination.Pruned, error) {
	t.Helper()
	inv := inventory(t, d)
	plan, err := d.Plan(inv, policy(policyName), start.AddDate(1, 0, 0), nil)
	require.NoError(t, err)
	return d.Prune(t.Context(), inv, plan)
}

// TestPolicyNames: a policy named x and one named x-1, whose snapshots' names begin alike, in one folder.
func TestPolicyNames(t *testing.T) {
	d, _ := folder(t)
	var xs, x1s []string
	for i := range 4 {
		xs = append(xs, publish(t, d, "x", start.Add(time.Duration(i)*time.Hour)))
		x1s = append(x1s, publish(t, d, "x-1", start.Add(time.Duration(i)*time.Hour)))
	}
	done, err := prune(t, d, "x")
	require.NoError(t, err)
	require.Equal(t, xs[:2], done.Removed, "the oldest first")
	left := names(inventory(t, d).Snapshots)
	require.ElementsMatch(t, append(xs[2:], x1s...), left)
	done, err = prune(t, d, "x-1")
	require.NoError(t, err)
	require.Equal(t, x1s[:2], done.Removed)
}

// TestForeignObjects: what is not ours by its name is counted and never touched; a snapshot copied in by hand, data and
// manifest, is one of ours.
func TestForeignObjects(t *testing.T) {
	d, dir := folder(t)
	other, otherDir := folder(t)
	require.NoError(t, d.Claim(t.Context(), destination.Owner{ClusterName: "prod"}))
	old := publish(t, other, "etcd", start.Add(-time.Hour))
	mine := []string{publish(t, d, "etcd", start), publish(t, d, "etcd", start.Add(time.Hour))}
	for _, key := range []string{old + ".db.zst", old + ".json"} {
		data, err := os.ReadFile(filepath.Join(otherDir, key))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, key), data, 0o600))
	}
	foreign := []string{"notes.txt", "etcd-backup.db", "etcd-20261101t000000z.json", mine[0] + ".db.zst.bak", "ETCD-20261101t000000z-abcde.json", mine[0] + ".db.gz"}
	for _, f := range foreign {
		require.NoError(t, os.WriteFile(filepath.Join(dir, f), []byte("x"), 0o600))
	}
	inv := inventory(t, d)
	require.Equal(t, []string{mine[1], mine[0], old}, names(inv.Snapshots))
	require.Equal(t, len(foreign), inv.Foreign)
	require.Empty(t, inv.Orphans)
	done, err := prune(t, d, "etcd")
	require.NoError(t, err)
	require.Equal(t, []string{old}, done.Removed)
	for _, f := range foreign {
		require.FileExists(t, filepath.Join(dir, f))
	}
}

// TestOrphans: data without a manifest is no snapshot, and goes once it is a day old by the store's clock; a manifest
// without data is told.
func TestOrphans(t *testing.T) {
	d, dir := folder(t)
	m, blob := snapshot(t, "etcd", start)
	require.NoError(t, d.Store.Put(t.Context(), m.Object.Key, blob))
	lost := publish(t, d, "etcd", start)
	require.NoError(t, os.Remove(filepath.Join(dir, lost+".db.zst")))
	kept := publish(t, d, "etcd", start.Add(time.Hour))

	inv := inventory(t, d)
	require.Equal(t, []string{kept}, names(inv.Snapshots))
	require.Equal(t, []string{m.Name}, names(inv.Orphans))
	require.Equal(t, []string{lost}, inv.Dangling)

	removed, err := d.Sweep(t.Context(), inventory(t, d))
	require.NoError(t, err)
	require.Empty(t, removed, "it may be on its way")
	old := time.Now().Add(-25 * time.Hour)
	require.NoError(t, os.Chtimes(filepath.Join(dir, m.Object.Key), old, old))
	removed, err = d.Sweep(t.Context(), inventory(t, d))
	require.NoError(t, err)
	require.Equal(t, []string{m.Object.Key}, removed)
	require.Equal(t, []string{kept}, names(inventory(t, d).Snapshots))
}

// TestSigned: a signature is published before its manifest, goes with the snapshot, and is swept where it belongs to nothing.
func TestSigned(t *testing.T) {
	d, dir := folder(t)
	signer, trusted := signingKey(t)
	unsigned := publish(t, d, "etcd", start)
	d.Signer = signer
	var signed []string
	for i := range 3 {
		signed = append(signed, publish(t, d, "etcd", start.Add(time.Duration(i+1)*time.Hour)))
	}
	inv := inventory(t, d)
	require.Equal(t, []string{signed[2], signed[1], signed[0], unsigned}, names(inv.Snapshots))
	require.Zero(t, inv.Foreign)
	require.True(t, inv.Snapshots[0].Signed())
	require.False(t, inv.Snapshots[3].Signed())

	// Without trusted keys nobody asks.
	for _, name := range []string{unsigned, signed[0]} {
		_, err := d.Manifest(t.Context(), name)
		require.NoError(t, err)
	}
	d.Trusted = trusted
	_, by, err := d.SignedManifest(t.Context(), signed[0], trusted)
	require.NoError(t, err)
	require.Equal(t, signer.Fingerprint(), by)
	_, err = d.Manifest(t.Context(), unsigned)
	require.ErrorIs(t, err, archive.ErrUntrusted)
	path := filepath.Join(dir, archive.ManifestKey(signed[0]))
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, bytes.Replace(data, []byte(`"revision": 1`), []byte(`"revision": 2`), 1), 0o600))
	_, err = d.Manifest(t.Context(), signed[0])
	require.ErrorIs(t, err, archive.ErrUntrusted)
	_, other := signingKey(t)
	d.Trusted = other
	_, err = d.Manifest(t.Context(), signed[1])
	require.ErrorContains(t, err, "not one of those trusted")

	plan, err := d.Plan(inv, &v1.EtcdSnapshotPolicy{ObjectMeta: metav1.ObjectMeta{Name: "etcd"}}, time.Now(), nil)
	require.NoError(t, err)
	done, err := d.Prune(t.Context(), inv, plan)
	require.NoError(t, err)
	require.Equal(t, []string{unsigned, signed[0]}, done.Removed)
	require.NoFileExists(t, filepath.Join(dir, archive.SignatureKey(signed[0])))
	require.FileExists(t, filepath.Join(dir, archive.SignatureKey(signed[1])))

	// A run that was killed before its manifest, and one whose data somebody removed by hand.
	require.NoError(t, os.Remove(filepath.Join(dir, archive.ManifestKey(signed[1]))))
	require.NoError(t, os.Remove(filepath.Join(dir, archive.ManifestKey(signed[2]))))
	require.NoError(t, os.Remove(filepath.Join(dir, signed[2]+".db.zst")))
	kept := publish(t, d, "etcd", start.Add(5*time.Hour))
	inv = inventory(t, d)
	require.Equal(t, []string{kept}, names(inv.Snapshots))
	require.ElementsMatch(t, signed[1:], names(inv.Orphans))
	left := []string{signed[1] + ".db.zst", archive.SignatureKey(signed[1]), archive.SignatureKey(signed[2])}
	old := time.Now().Add(-25 * time.Hour)
	for i, key := range left {
		require.NoError(t, os.Chtimes(filepath.Join(dir, key), old, old))
		if i == 0 {
			removed, err := d.Sweep(t.Context(), inventory(t, d))
			require.NoError(t, err)
			require.Empty(t, removed, "its signature was stored just now: it may be on its way")
		}
	}
	removed, err := d.Sweep(t.Context(), inventory(t, d))
	require.NoError(t, err)
	require.ElementsMatch(t, left, removed)
}

func signingKey(t *testing.T) (*archive.Signer, archive.TrustedKeys) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	block, err := ssh.MarshalPrivateKey(private, "")
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(block), 0o600))
	signer, err := archive.LoadSigner(path)
	require.NoError(t, err)
	key, err := ssh.NewPublicKey(public)
	require.NoError(t, err)
	return signer, archive.TrustedKeys{key}
}

// TestExtras: what goes with a snapshot is published before its manifest, is neither a snapshot nor foreign, goes with it,
// and is swept where it belongs to nothing.
func TestExtras(t *testing.T) {
	d, dir := folder(t)
	withExtras := func(at time.Time) string {
		m, blob := snapshot(t, "etcd", at)
		secret := []byte("an archive of " + m.Name)
		sum := sha256.Sum256(secret)
		m.Extras = &v1.ExtrasFacts{Object: v1.ObjectFacts{Key: archive.ExtrasKey(m.Name), Size: int64(len(secret)), SHA256: fmt.Sprintf("%x", sum)},
			Encryption: v1.EncryptionFacts{Kind: "age", Recipients: []string{"SHA256:" + strings.Repeat("A", 43)}}, Files: []string{"/etc/x"}}
		require.NoError(t, d.Publish(t.Context(), m, blob, store.Blob{ReaderAt: bytes.NewReader(secret), Size: int64(len(secret)), SHA256: sum}, v1.AfterStoreFull))
		return m.Name
	}
	var all []string
	for i := range 3 {
		all = append(all, withExtras(start.Add(time.Duration(i)*time.Hour)))
	}
	inv := inventory(t, d)
	require.Equal(t, []string{all[2], all[1], all[0]}, names(inv.Snapshots))
	require.Zero(t, inv.Foreign)
	require.Empty(t, inv.Orphans)
	require.Len(t, inv.Snapshots[0].Beside, 1)
	require.Equal(t, int64(len("the data of "+all[2])), inv.Snapshots[0].Size, "of the snapshot alone")

	done, err := prune(t, d, "etcd")
	require.NoError(t, err)
	require.Equal(t, []string{all[0]}, done.Removed)
	require.NoFileExists(t, filepath.Join(dir, archive.ExtrasKey(all[0])))
	require.FileExists(t, filepath.Join(dir, archive.ExtrasKey(all[1])))

	// A run that was killed after the extras, and one whose data somebody removed by hand.
	require.NoError(t, os.Remove(filepath.Join(dir, all[1]+".json")))
	require.NoError(t, os.Remove(filepath.Join(dir, all[2]+".json")))
	require.NoError(t, os.Remove(filepath.Join(dir, all[2]+".db.zst")))
	inv = inventory(t, d)
	require.Empty(t, inv.Snapshots)
	require.ElementsMatch(t, all[1:], names(inv.Orphans))
	kept := publish(t, d, "etcd", start.Add(5*time.Hour))
	old := time.Now().Add(-25 * time.Hour)
	left := []string{all[1] + ".db.zst", archive.ExtrasKey(all[1]), archive.ExtrasKey(all[2])}
	require.NoError(t, os.Chtimes(filepath.Join(dir, left[1]), old, old))
	removed, err := d.Sweep(t.Context(), inventory(t, d))
	require.NoError(t, err)
	require.Empty(t, removed, "its extras were stored just now: it may be on its way")
	for _, key := range left {
		require.NoError(t, os.Chtimes(filepath.Join(dir, key), old, old))
	}
	removed, err = d.Sweep(t.Context(), inventory(t, d))
	require.NoError(t, err)
	require.ElementsMatch(t, left, removed)
	require.Equal(t, []string{kept}, names(inventory(t, d).Snapshots))
}

// TestExtrasNotStored: without the extras that its manifest promises there is no snapshot, and nothing is left.
func TestExtrasNotStored(t *testing.T) {
	d, dir := folder(t)
	m, blob := snapshot(t, "etcd", start)
	m.Extras = &v1.ExtrasFacts{Object: v1.ObjectFacts{Key: archive.ExtrasKey(m.Name), Size: 1, SHA256: m.Object.SHA256},
		Encryption: v1.EncryptionFacts{Kind: "age", Recipients: []string{"SHA256:" + strings.Repeat("A", 43)}}, Files: []string{"/etc/x"}}
	d.Store = &fullAfter{Store: d.Store, puts: 1}
	err := d.Publish(t.Context(), m, blob, blob, v1.AfterStoreNone)
	require.ErrorIs(t, err, errFull)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
}

var errFull = errors.New("no space left")

// fullAfter is a store that takes so many objects.
type fullAfter struct {
	store.Store
	puts int
}

func (f *fullAfter) Put(ctx context.Context, key string, b store.Blob) error {
	if f.puts--; f.puts < 0 {
		return errFull
	}
	return f.Store.Put(ctx, key, b)
}

// TestOwners: of two clusters with one clusterName in one folder, the second is refused, whoever comes first, and neither
// can remove anything of the other's.
func TestOwners(t *testing.T) {
	d, _ := folder(t)
	ours, theirs := destination.Owner{ClusterName: "prod", ClusterUID: "uid-1"}, destination.Owner{ClusterName: "prod", ClusterUID: "uid-2"}
	results := make(chan error, 2)
	for _, o := range []destination.Owner{ours, theirs} {
		go func() { results <- d.Claim(t.Context(), o) }()
	}
	first, second := <-results, <-results
	if first == nil {
		first, second = second, first
	}
	var foreign *destination.ForeignError
	require.ErrorAs(t, first, &foreign)
	require.NoError(t, second)
	loser := foreign.Ours
	require.ErrorAs(t, d.CheckMayRemove(t.Context(), loser), &foreign)
	require.NoError(t, d.CheckMayRemove(t.Context(), foreign.Theirs))
	require.ErrorIs(t, d.CheckMayRemove(t.Context(), destination.Owner{ClusterName: "prod"}), destination.ErrUnproven)
	require.NoError(t, d.CheckOwner(t.Context(), destination.Owner{ClusterName: "prod"}))
}

func TestOwnerFileDamaged(t *testing.T) {
	d, dir := folder(t)
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cluster.json"), []byte("{"), 0o600))
	require.ErrorContains(t, d.Claim(t.Context(), destination.Owner{ClusterName: "prod"}), "cluster.json")
}

// stubborn is a store that refuses to delete some keys, as one with holds or without the right to delete does. (Which
// real stores do so, and how, is in their own packages' tests.)
type stubborn struct {
	store.Store
	refuse  func(key string) error
	deletes int
}

func (s *stubborn) Delete(ctx context.Context, key string) error {
	s.deletes++
	if err := s.refuse(key); err != nil {
		return err
	}
	return s.Store.Delete(ctx, key)
}

func TestStubbornStores(t *testing.T) {
	filled := func(t *testing.T, refuse func(key string) error) (*destination.Destination, *stubborn, []string) {
		d, _ := folder(t)
		var all []string
		for i := range 5 {
			all = append(all, publish(t, d, "etcd", start.Add(time.Duration(i)*time.Hour)))
		}
		s := &stubborn{Store: d.Store, refuse: refuse}
		d.Store = s
		return d, s, all
	}
	t.Run("no right to delete", func(t *testing.T) {
		d, s, all := filled(t, func(string) error { return fmt.Errorf("403: %w", store.ErrAccessDenied) })
		done, err := prune(t, d, "etcd")
		require.ErrorIs(t, err, store.ErrAccessDenied)
		require.Empty(t, done.Removed)
		require.Equal(t, 1, s.deletes, "the rest is not tried")
		require.Len(t, inventory(t, d).Snapshots, len(all))
	})
	t.Run("some are locked", func(t *testing.T) {
		var locked string
		d, _, all := filled(t, func(key string) error {
			if key == locked {
				return fmt.Errorf("retention: %w", store.ErrProtected)
			}
			return nil
		})
		locked = all[1] + ".db.zst" // its manifest is not
		done, err := prune(t, d, "etcd")
		require.NoError(t, err)
		require.Equal(t, []string{all[0], all[2]}, done.Removed)
		require.Equal(t, []string{all[1]}, done.Protected)
		inv := inventory(t, d)
		require.Equal(t, []string{all[4], all[3], all[1]}, names(inv.Snapshots), "what is still there stays listed")
		_, err = d.Manifest(t.Context(), all[1])
		require.NoError(t, err)
	})
}

// wrong is a store that keeps something else than it was given.
type wrong struct{ store.Store }

func (w wrong) Put(ctx context.Context, key string, b store.Blob) error {
	data, err := io.ReadAll(io.NewSectionReader(b.ReaderAt, 0, b.Size))
	if err != nil {
		return err
	}
	data[len(data)/2] ^= 1
	return w.Store.Put(ctx, key, store.Blob{ReaderAt: bytes.NewReader(data), Size: b.Size, SHA256: sha256.Sum256(data)})
}

// TestDamagedOnTheWay: a copy that is not what was sent is removed again, and no manifest is written for it.
func TestDamagedOnTheWay(t *testing.T) {
	for _, level := range []string{v1.AfterStoreChecksum, v1.AfterStoreFull} {
		d, dir := folder(t)
		d.Store = wrong{d.Store}
		m, blob := snapshot(t, "etcd", start)
		err := d.Publish(t.Context(), m, blob, store.Blob{}, level)
		require.ErrorIs(t, err, store.ErrMismatch, level)
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, entries, level)
	}
}

func TestManifestOfAnother(t *testing.T) {
	d, dir := folder(t)
	a, b := publish(t, d, "etcd", start), publish(t, d, "etcd", start.Add(time.Hour))
	data, err := os.ReadFile(filepath.Join(dir, a+".json"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, b+".json"), data, 0o600))
	_, err = d.Manifest(t.Context(), b)
	require.ErrorIs(t, err, archive.ErrCorrupt)
	require.ErrorContains(t, err, a)
}

// TestLook: a destination that cannot be listed does not hide the others.
func TestLook(t *testing.T) {
	good, _ := folder(t)
	bad, dir := folder(t)
	bad.Spec.Name = "bad"
	name := publish(t, good, "etcd", start)
	require.NoError(t, os.RemoveAll(filepath.Dir(dir)))
	s := destination.Look(t.Context(), []*destination.Destination{bad, good})
	require.Error(t, s.Destinations[0].Err)
	require.Len(t, s.Snapshots, 1)
	require.Equal(t, name, s.Snapshots[0].Name)
	require.Contains(t, s.Snapshots[0].Copies, "node")
}

// Whoever restores the latest gets what retention takes for the newest: of the same second, the one stored last, by whatever
// its name ends with.
func TestNewestOfTheSameSecond(t *testing.T) {
	d, dir := folder(t)
	var published []string
	for i := range 8 {
		name := publish(t, d, "etcd", start)
		published = append([]string{name}, published...)
		keys, err := filepath.Glob(filepath.Join(dir, name+".*"))
		require.NoError(t, err)
		for _, key := range keys {
			require.NoError(t, os.Chtimes(key, time.Time{}, start.Add(time.Duration(i)*time.Second)))
		}
	}
	var listed []string
	for _, row := range destination.Look(t.Context(), []*destination.Destination{d}).Snapshots {
		listed = append(listed, row.Name)
	}
	require.Equal(t, published, listed)
	require.Equal(t, published, names(inventory(t, d).Snapshots))
}
