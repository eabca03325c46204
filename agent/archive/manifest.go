package archive

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

// MaxManifestSize in bytes; a longer file is not read as a manifest.
const MaxManifestSize = 1 << 20

// encryptionAge is the one value of v1.EncryptionFacts.Kind.
const encryptionAge = "age"

// EncodeManifest writes m as indented JSON, the same for the same m. It refuses a manifest that is incomplete or that
// contradicts itself; the error names the field.
func EncodeManifest(m *v1.Manifest) ([]byte, error) {
	if err := checkManifest(m); err != nil {
		return nil, fmt.Errorf("encode manifest: %w", err)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(m); err != nil {
		return nil, fmt.Errorf("encode manifest: %w", err)
	}
	if b.Len() > MaxManifestSize {
		return nil, fmt.Errorf("encode manifest: it has %d bytes, more than the %d that are read", b.Len(), MaxManifestSize)
	}
	return b.Bytes(), nil
}

// DecodeManifest reads a manifest and checks what EncodeManifest checks. Fields that it does not know are ignored:
// within one schemaVersion, fields are only added. A schemaVersion that it does not know is ErrNewerVersion; every
// other error is ErrCorrupt and names the field.
func DecodeManifest(b []byte) (*v1.Manifest, error) {
	if len(b) > MaxManifestSize {
		return nil, corruptManifest(fmt.Errorf("has %d bytes, more than %d", len(b), MaxManifestSize))
	}
	type manifestVersion struct {
		SchemaVersion *int64 `json:"schemaVersion"`
	}
	var version manifestVersion
	if err := unmarshal(b, &version); err != nil {
		return nil, corruptManifest(err)
	}
	switch v := version.SchemaVersion; {
	case v == nil:
		return nil, corruptManifest(errors.New("schemaVersion: is missing"))
	case *v > v1.ManifestSchemaVersion:
		return nil, &failure{
			msg: fmt.Sprintf("manifest has schemaVersion %d, this agent knows %d: it was %v of the agent, use that one to read it",
				*v, v1.ManifestSchemaVersion, ErrNewerVersion),
			is: []error{ErrNewerVersion},
		}
	}
	m := new(v1.Manifest)
	if err := unmarshal(b, m); err != nil {
		return nil, corruptManifest(err)
	}
	m.CreatedAt = metav1.NewTime(m.CreatedAt.UTC())
	if err := checkManifest(m); err != nil {
		return nil, corruptManifest(err)
	}
	return m, nil
}

// unmarshal differs from encoding/json's in that the case of names counts and that no name may stand twice.
func unmarshal(b []byte, v any) error {
	strict, err := kjson.UnmarshalStrict(b, v, kjson.DisallowDuplicateFields)
	if err != nil {
		return err
	}
	return errors.Join(strict...)
}

func corruptManifest(err error) error {
	return &failure{msg: fmt.Sprintf("manifest is %v: %v", ErrCorrupt, err), is: []error{ErrCorrupt, err}}
}

var (
	sha256Hex      = regexp.MustCompile(`^[0-9a-f]{64}$`)
	folderName     = regexp.MustCompile(`^[a-zA-Z0-9]([-a-zA-Z0-9_.]*[a-zA-Z0-9])?$`)
	etcdID         = regexp.MustCompile(`^[0-9a-f]{1,16}$`)
	fingerprintRaw = regexp.MustCompile(`^SHA256:[A-Za-z0-9+/]{43}$`)
)

// checkManifest returns the first thing that is wrong with m, beginning with the path of the field.
func checkManifest(m *v1.Manifest) error {
	if m.SchemaVersion != v1.ManifestSchemaVersion {
		return fmt.Errorf("schemaVersion: must be %d, not %d", v1.ManifestSchemaVersion, m.SchemaVersion)
	}
	n, ok := ParseName(m.Name)
	if !ok {
		return fmt.Errorf("name: %.80q is not the name of a snapshot", m.Name)
	}
	if m.Policy != n.Policy {
		return fmt.Errorf("policy: is %.80q, but the name %s says %q", m.Policy, m.Name, n.Policy)
	}
	if !m.CreatedAt.Time.Equal(n.Time) {
		return fmt.Errorf("createdAt: is %s, but the name %s says %s",
			m.CreatedAt.UTC().Format(time.RFC3339Nano), m.Name, n.Time.Format(time.RFC3339))
	}
	if !IsClusterName(m.ClusterName) {
		return fmt.Errorf("clusterName: must be the name of a folder, as spec.clusterName of a policy, not %.80q", m.ClusterName)
	}
	if err := checkEtcd(m.Etcd); err != nil {
		return err
	}
	if err := checkObject(m); err != nil {
		return err
	}
	return checkExtras(m)
}

// IsClusterName tells whether a folder may be a cluster's: spec.clusterName of a policy has the same rule.
func IsClusterName(s string) bool { return len(s) <= 63 && folderName.MatchString(s) }

func checkEtcd(e v1.SnapshotEtcd) error {
	for _, id := range []struct{ field, value string }{{"etcd.clusterID", e.ClusterID}, {"etcd.memberID", e.MemberID}} {
		if !etcdID.MatchString(id.value) {
			return fmt.Errorf("%s: must be a number of 64 bits in hexadecimal, not %.80q", id.field, id.value)
		}
	}
	switch {
	case e.Version == "":
		return errors.New("etcd.version: is missing")
	case e.Revision <= 0:
		return fmt.Errorf("etcd.revision: must be positive, not %d", e.Revision)
	case e.RaftTerm < 0:
		return fmt.Errorf("etcd.raftTerm: must not be negative, but is %d", e.RaftTerm)
	}
	return nil
}

// checkObject checks the database, the object and how one became the other.
func checkObject(m *v1.Manifest) error {
	for _, f := range []struct {
		field  string
		size   int64
		sha256 string
	}{{"database", m.Database.Size, m.Database.SHA256}, {"object", m.Object.Size, m.Object.SHA256}} {
		if err := checkSum(f.field, f.size, f.sha256); err != nil {
			return err
		}
	}
	if !slices.Contains([]string{v1.CompressionZstd, v1.CompressionGzip, v1.CompressionNone}, m.Compression) {
		return fmt.Errorf("compression: must be %s, %s or %s, not %.80q", v1.CompressionZstd, v1.CompressionGzip, v1.CompressionNone, m.Compression)
	}
	if m.Encryption != nil {
		if err := checkEncryption("encryption", *m.Encryption); err != nil {
			return err
		}
	}
	if key := m.Name + Suffix(m.Compression, m.Encryption != nil); m.Object.Key != key {
		return fmt.Errorf("object.key: is %.120q, but name, compression and encryption say %s", m.Object.Key, key)
	}
	if m.Compression == v1.CompressionNone && m.Encryption == nil {
		if m.Object.Size != m.Database.Size {
			return fmt.Errorf("object.size: is %d, but the object is the plain database of %d bytes", m.Object.Size, m.Database.Size)
		}
		if m.Object.SHA256 != m.Database.SHA256 {
			return errors.New("object.sha256: differs from database.sha256, but the object is the plain database")
		}
	}
	return nil
}

// checkExtras checks what goes with the snapshot. The paths are only names here: who extracts them looks at the archive.
func checkExtras(m *v1.Manifest) error {
	x := m.Extras
	if x == nil {
		return nil
	}
	if err := checkSum("extras.object", x.Object.Size, x.Object.SHA256); err != nil {
		return err
	}
	if key := ExtrasKey(m.Name); x.Object.Key != key {
		return fmt.Errorf("extras.object.key: is %.120q, but the name says %s", x.Object.Key, key)
	}
	if err := checkEncryption("extras.encryption", x.Encryption); err != nil {
		return err
	}
	if len(x.Files) == 0 {
		return errors.New("extras.files: is empty")
	}
	return nil
}

func checkSum(field string, size int64, sha256 string) error {
	if size <= 0 {
		return fmt.Errorf("%s.size: must be positive, not %d", field, size)
	}
	if !sha256Hex.MatchString(sha256) {
		return fmt.Errorf("%s.sha256: must be 64 digits in hexadecimal, not %.80q", field, sha256)
	}
	return nil
}

func checkEncryption(field string, e v1.EncryptionFacts) error {
	if e.Kind != encryptionAge {
		return fmt.Errorf("%s.kind: must be %s, not %.80q", field, encryptionAge, e.Kind)
	}
	if len(e.Recipients) == 0 {
		return fmt.Errorf("%s.recipients: is empty", field)
	}
	for i, r := range e.Recipients {
		if !fingerprintRaw.MatchString(r) {
			return fmt.Errorf("%s.recipients[%d]: must be a fingerprint (SHA256: and 43 characters of base64)", field, i)
		}
	}
	return nil
}
