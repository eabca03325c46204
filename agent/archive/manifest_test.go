package archive

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

func aManifest() *v1.Manifest {
	return &v1.Manifest{
		SchemaVersion: 1,
		Name:          "etcd-20260102t030405z-k3x7q",
		SnapshotFacts: v1.SnapshotFacts{
			Policy:            "etcd",
			ClusterName:       "prod-eu",
			ClusterUID:        "0f2d3c1e-5a4b-4c6d-8e7f-90a1b2c3d4e5",
			CreatedAt:         metav1.NewTime(aTime),
			Node:              "cp-1",
			AgentVersion:      "v1.0.0",
			KubernetesVersion: "v1.34.4",
			Etcd: v1.SnapshotEtcd{
				ClusterID: "cdf818194e3a8c32", MemberID: "8e9e05c52164694d", Version: "3.6.16", StorageVersion: "3.6.0", Revision: 1234567, RaftTerm: 3,
			},
			Database:    v1.DatabaseFacts{Size: 20 << 20, SHA256: strings.Repeat("ab", 32)},
			Object:      v1.ObjectFacts{Key: "etcd-20260102t030405z-k3x7q.db.zst.age", Size: 2 << 20, SHA256: strings.Repeat("0c", 32)},
			Compression: v1.CompressionZstd,
			Encryption:  &v1.EncryptionFacts{Kind: "age", Recipients: []string{"SHA256:" + strings.Repeat("A", 43)}},
		},
	}
}

func extrasManifest() *v1.Manifest {
	m := aManifest()
	m.Extras = &v1.ExtrasFacts{
		Object:     v1.ObjectFacts{Key: "etcd-20260102t030405z-k3x7q.extras.tar.zst.age", Size: 4096, SHA256: strings.Repeat("0d", 32)},
		Encryption: v1.EncryptionFacts{Kind: "age", Recipients: []string{"SHA256:" + strings.Repeat("B", 43)}},
		Files:      []string{"/etc/kubernetes/pki/ca.crt", "/etc/kubernetes/pki/ca.key"},
	}
	return m
}

func plainManifest() *v1.Manifest {
	m := aManifest()
	m.Encryption, m.Compression = nil, v1.CompressionNone
	m.Object = v1.ObjectFacts{Key: m.Name + ".db", Size: m.Database.Size, SHA256: m.Database.SHA256}
	return m
}

func TestManifestRoundTrip(t *testing.T) {
	golden, err := os.ReadFile("testdata/manifest.json")
	require.NoError(t, err)
	local := aManifest() // the zone of the clock does not show
	local.CreatedAt = metav1.NewTime(aTime.In(time.FixedZone("", -5*3600)))
	for _, m := range []*v1.Manifest{aManifest(), local} {
		b, err := EncodeManifest(m)
		require.NoError(t, err)
		require.Equal(t, string(golden), string(b))
	}
	got, err := DecodeManifest(golden)
	require.NoError(t, err)
	require.Equal(t, aManifest(), got)

	for _, m := range []*v1.Manifest{plainManifest(), extrasManifest()} {
		b, err := EncodeManifest(m)
		require.NoError(t, err)
		got, err = DecodeManifest(b)
		require.NoError(t, err)
		require.Equal(t, m, got)
	}
}

// Every contradiction is refused in both directions, and the field is named.
func TestManifestThatContradictsItself(t *testing.T) {
	for _, c := range []struct {
		field  string
		damage func(m *v1.Manifest)
	}{
		{"name", func(m *v1.Manifest) { m.Name = "etcd" }},
		{"name", func(m *v1.Manifest) { m.Name = "" }},
		{"policy", func(m *v1.Manifest) { m.Policy = "etcd-1" }},
		{"createdAt", func(m *v1.Manifest) { m.CreatedAt = metav1.NewTime(aTime.Add(time.Second)) }},
		{"createdAt", func(m *v1.Manifest) { m.CreatedAt = metav1.Time{} }},
		{"clusterName", func(m *v1.Manifest) { m.ClusterName = "" }},
		{"clusterName", func(m *v1.Manifest) { m.ClusterName = "a/b" }},
		{"clusterName", func(m *v1.Manifest) { m.ClusterName = ".." }},
		{"clusterName", func(m *v1.Manifest) { m.ClusterName = strings.Repeat("a", 64) }},
		{"etcd.clusterID", func(m *v1.Manifest) { m.Etcd.ClusterID = "" }},
		{"etcd.memberID", func(m *v1.Manifest) { m.Etcd.MemberID = "0x8e9e" }},
		{"etcd.version", func(m *v1.Manifest) { m.Etcd.Version = "" }},
		{"etcd.revision", func(m *v1.Manifest) { m.Etcd.Revision = 0 }},
		{"etcd.raftTerm", func(m *v1.Manifest) { m.Etcd.RaftTerm = -1 }},
		{"database.size", func(m *v1.Manifest) { m.Database.Size = 0 }},
		{"database.sha256", func(m *v1.Manifest) { m.Database.SHA256 = strings.Repeat("AB", 32) }},
		{"object.size", func(m *v1.Manifest) { m.Object.Size = -1 }},
		{"object.sha256", func(m *v1.Manifest) { m.Object.SHA256 = "" }},
		{"compression", func(m *v1.Manifest) { m.Compression = "" }},
		{"compression", func(m *v1.Manifest) { m.Compression = "lz4" }},
		{"encryption.kind", func(m *v1.Manifest) { m.Encryption.Kind = "gpg" }},
		{"encryption.recipients", func(m *v1.Manifest) { m.Encryption.Recipients = nil }},
		{"encryption.recipients[1]", func(m *v1.Manifest) { m.Encryption.Recipients = append(m.Encryption.Recipients, "age1...") }},
		{"object.key", func(m *v1.Manifest) { m.Object.Key = m.Name + ".db.zst" }},
		{"object.key", func(m *v1.Manifest) { m.Encryption = nil }},
		{"object.key", func(m *v1.Manifest) { m.Compression = v1.CompressionGzip }},
		{"object.key", func(m *v1.Manifest) { m.Object.Key = "etcd-20260102t030405z-aaaaa.db.zst.age" }},
		{"object.size", func(m *v1.Manifest) { *m = *plainManifest(); m.Object.Size-- }},
		{"extras.object.key", func(m *v1.Manifest) { *m = *extrasManifest(); m.Extras.Object.Key = m.Object.Key }},
		{"extras.object.size", func(m *v1.Manifest) { *m = *extrasManifest(); m.Extras.Object.Size = 0 }},
		{"extras.object.sha256", func(m *v1.Manifest) { *m = *extrasManifest(); m.Extras.Object.SHA256 = "" }},
		{"extras.encryption.kind", func(m *v1.Manifest) { *m = *extrasManifest(); m.Extras.Encryption.Kind = "" }},
		{"extras.encryption.recipients", func(m *v1.Manifest) { *m = *extrasManifest(); m.Extras.Encryption.Recipients = nil }},
		{"extras.files", func(m *v1.Manifest) { *m = *extrasManifest(); m.Extras.Files = nil }},
		{"object.sha256", func(m *v1.Manifest) { *m = *plainManifest(); m.Object.SHA256 = strings.Repeat("00", 32) }},
	} {
		m := aManifest()
		c.damage(m)
		_, err := EncodeManifest(m)
		require.ErrorContains(t, err, "encode manifest: "+c.field+": ")
		require.NotErrorIs(t, err, ErrCorrupt)

		raw, err := json.Marshal(m)
		require.NoError(t, err)
		_, err = DecodeManifest(raw)
		require.ErrorIs(t, err, ErrCorrupt)
		require.ErrorContains(t, err, "manifest is corrupt: "+c.field+": ")
	}
	m := aManifest()
	m.SchemaVersion = 2
	_, err := EncodeManifest(m)
	require.ErrorContains(t, err, "schemaVersion")
}

func TestManifestOfAnotherForm(t *testing.T) {
	b, err := EncodeManifest(aManifest())
	require.NoError(t, err)
	good := string(b)
	edit := func(old, new string) string {
		require.Contains(t, good, old)
		return strings.Replace(good, old, new, 1)
	}
	for text, raw := range map[string]string{
		"unexpected end":                       good[:len(good)/2],
		"unexpected end of JSON input":         "",
		"after top-level value":                good + "{}",
		"cannot unmarshal array":               "[]",
		"schemaVersion: is missing":            "{}",
		"schemaVersion: must be 1":             edit(`"schemaVersion": 1`, `"schemaVersion": 0`),
		"schemaVersion of type int64":          edit(`"schemaVersion": 1`, `"schemaVersion": "1"`),
		"database.size of type int64":          edit(`"size": 20971520`, `"size": "20971520"`),
		"object.size of type int64":            edit(`"size": 2097152,`, `"size": 2097152.5,`),
		"etcd.version of type string":          edit(`"version": "3.6.16"`, `"version": 3`),
		`duplicate field "policy"`:             edit(`"policy": "etcd",`, `"policy": "etcd", "policy": "etcd",`),
		"parsing time":                         edit(`"2026-01-02T03:04:05Z"`, `"yesterday"`),
		"createdAt: is 2026-01-02T03:04:05.5Z": edit(`05Z"`, `05.5Z"`),
		"createdAt: is 0001":                   edit(`"2026-01-02T03:04:05Z"`, `null`),
		"policy: is \"\"":                      edit(`"policy"`, `"Policy"`),
		"more than 1048576":                    good + strings.Repeat(" ", MaxManifestSize),
	} {
		m, err := DecodeManifest([]byte(raw))
		require.Nil(t, m)
		require.ErrorIs(t, err, ErrCorrupt, text)
		require.ErrorContains(t, err, text)
	}

	// Fields that a later agent adds within the version do no harm; another version does, and is not called damage.
	m, err := DecodeManifest([]byte(edit(`"node"`, `"region": {"name": "eu"}, "node"`)))
	require.NoError(t, err)
	require.Equal(t, aManifest(), m)
	_, err = DecodeManifest([]byte(`{"schemaVersion": 2, "name": ["of", "another", "form"]}`))
	require.ErrorIs(t, err, ErrNewerVersion)
	require.NotErrorIs(t, err, ErrCorrupt)
	require.ErrorContains(t, err, "schemaVersion 2, this agent knows 1: it was written by a newer version")

	huge := aManifest()
	huge.Node = strings.Repeat("n", MaxManifestSize)
	_, err = EncodeManifest(huge)
	require.ErrorContains(t, err, "more than the 1048576 that are read")
}

func FuzzDecodeManifest(f *testing.F) {
	for _, m := range []*v1.Manifest{aManifest(), plainManifest(), extrasManifest()} {
		b, err := EncodeManifest(m)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := DecodeManifest(raw)
		if err != nil {
			require.Nil(t, m)
			if !isOneOf(err, ErrCorrupt, ErrNewerVersion) {
				t.Fatal(err)
			}
			return
		}
		// What was read is written again, and read as the same.
		b, err := EncodeManifest(m)
		require.NoError(t, err)
		again, err := DecodeManifest(b)
		require.NoError(t, err)
		require.Equal(t, m, again)
	})
}
