package cli_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/ci/etcdtest"
)

// sshKey makes a key in a file and, beside it, its .pub.
func sshKey(t *testing.T) (path, public string) {
	t.Helper()
	pub, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	block, err := ssh.MarshalPrivateKey(private, "")
	require.NoError(t, err)
	key, err := ssh.NewPublicKey(pub)
	require.NoError(t, err)
	public = strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))
	path = filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(block), 0o600))
	require.NoError(t, os.WriteFile(path+".pub", []byte(public+"\n"), 0o600))
	return path, public
}

func (s *site) signing(keyFile string, trusted ...string) {
	spec := map[string]any{}
	if keyFile != "" {
		spec["keyFile"] = keyFile
	}
	if trusted != nil {
		spec["trustedKeys"] = trusted
	}
	s.spec()["signing"] = map[string]any{"ssh": spec}
}

// TestSignedSnapshots follows signatures from the run to the restore: what is not signed by a trusted key is refused before
// anything is touched, whoever asks for it and wherever it comes from.
func TestSignedSnapshots(t *testing.T) {
	c := filled(t, etcdtest.Options{}, 100<<10)
	s := newSite(t, c.Endpoints(), "node")
	require.Zero(t, s.snapshot(t).code)
	unsigned := s.listed(t, "node")[0]
	oldKey, oldPublic := sshKey(t)
	newKey, newPublic := sshKey(t)
	take := func() string {
		var res struct{ Manifest struct{ Name string } }
		o := s.snapshot(t, "-o", "json")
		require.Zero(t, o.code, o.stderr)
		require.NoError(t, json.Unmarshal([]byte(o.stdout), &res))
		return res.Manifest.Name
	}
	s.signing(oldKey, oldPublic)
	byOld := take()
	s.signing(newKey, newPublic, oldPublic) // a new key, while the old one still counts
	byNew := take()
	folder := filepath.Join(s.stores["node"], "prod")

	dataDir := func() string { return filepath.Join(t.TempDir(), "etcd") }
	restores := func(args ...string) {
		t.Helper()
		restored(t, agent(t, append([]string{"restore", "--data-dir", dataDir(), "-o", "json"}, args...)...))
	}
	refuses := func(code int, says string, args ...string) {
		t.Helper()
		target := dataDir()
		o := agent(t, append([]string{"restore", "--data-dir", target}, args...)...)
		require.Equal(t, code, o.code, o.stderr)
		require.Contains(t, o.stderr, says)
		require.NoDirExists(t, target)
		left, err := os.ReadDir(filepath.Dir(target))
		require.NoError(t, err)
		require.Empty(t, left, "nothing was touched")
	}
	for _, name := range []string{byOld, byNew} {
		restores(name, "--policy-file", s.file(t))
		restores("--from", filepath.Join(folder, name+".db.zst"), "--verify-key", oldKey+".pub", "--verify-key", newKey+".pub")
		restores(name, "--from-dir", folder, "--verify-key", oldKey+".pub,"+newKey+".pub")
	}
	refuses(4, "not signed by a trusted key: it is not signed", unsigned, "--policy-file", s.file(t))
	refuses(4, "it is not signed", "--from", filepath.Join(folder, unsigned+".db.zst"), "--verify-key", oldKey+".pub")
	refuses(4, "not one of those trusted", byNew, "--from-dir", folder, "--verify-key", oldKey+".pub")
	refuses(4, "not one of those trusted", byOld, "--policy-file", s.file(t), "--verify-key", newKey+".pub")
	refuses(2, "stdin has no signature", "--from", "-", "--verify-key", oldKey+".pub")
	refuses(2, "is a private key", byOld, "--policy-file", s.file(t), "--verify-key", oldKey)
	refuses(2, "exclude each other", byOld, "--policy-file", s.file(t), "--verify-key", oldKey+".pub", "--allow-unsigned")
	restores(unsigned, "--policy-file", s.file(t), "--allow-unsigned")
	plain := filepath.Join(t.TempDir(), "plain.db")
	require.NoError(t, os.WriteFile(plain, realSnapshot(t, c), 0o600))
	refuses(4, "there is no manifest beside it", "--from", plain, "--verify-key", oldKey+".pub")
	o := agent(t, "get", "pods", "--from", plain, "--verify-key", oldKey+".pub")
	require.Equal(t, 4, o.code, o.stderr)

	// The list and verify tell them apart.
	o = agent(t, "list", "--policy-file", s.file(t), "-o", "json")
	var list struct {
		Snapshots []struct {
			Name   string
			Copies []struct {
				Signed              bool
				SignedBy, Untrusted string
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &list))
	require.Len(t, list.Snapshots, 3)
	for _, row := range list.Snapshots {
		require.Equal(t, row.Name != unsigned, row.Copies[0].Signed)
		require.Equal(t, row.Name == unsigned, row.Copies[0].Untrusted != "")
		require.Equal(t, row.Name != unsigned, strings.HasPrefix(row.Copies[0].SignedBy, "SHA256:"))
	}
	o = agent(t, "verify", "--policy-file", s.file(t), "--all", "--level", "checksum")
	require.Equal(t, 4, o.code)
	require.Regexp(t, unsigned+` +node +checksum +Failed .*it is not signed`, o.stdout)
	require.Regexp(t, byOld+` +node +checksum +Passed`, o.stdout)
	require.Regexp(t, byNew+` +node +checksum +Passed`, o.stdout)
	require.Zero(t, agent(t, "verify", "--policy-file", s.file(t), "--all", "--level", "checksum", "--allow-unsigned").code)

	// The plan that is printed for the other nodes asks for the same.
	o = agent(t, "restore", byOld, "--policy-file", s.file(t), "--verify-key", oldKey+".pub", "--plan", "snapshot", "--data-dir", dataDir())
	require.Zero(t, o.code, o.stderr)
	require.Contains(t, o.stdout, "--verify-key "+oldKey+".pub")

	// Somebody who owns the bucket puts another database under the name, and makes all checksums fit.
	for _, ext := range []string{".json", ".db.zst"} {
		from, to := filepath.Join(folder, unsigned+ext), filepath.Join(folder, byNew+ext)
		data, err := os.ReadFile(from)
		require.NoError(t, err)
		data = []byte(strings.ReplaceAll(string(data), unsigned, byNew))
		require.NoError(t, os.WriteFile(to, data, 0o600))
	}
	refuses(4, "it is not what the key", byNew, "--policy-file", s.file(t))

	// A key that the policy itself does not trust is found out before anything is stored.
	before := files(t, folder)
	s.signing(oldKey, newPublic)
	o = s.snapshot(t)
	require.Equal(t, 2, o.code)
	require.Contains(t, o.stderr, archive.TrustedKeysField+": does not hold the public key of "+oldKey)
	s.signing(filepath.Join(t.TempDir(), "none"))
	o = s.snapshot(t)
	require.Equal(t, 2, o.code)
	require.Contains(t, o.stderr, archive.SigningKeyField)
	require.Equal(t, before, files(t, folder))
}

// TestSignatureByHand runs what docs/signing.md says.
func TestSignatureByHand(t *testing.T) {
	tool, err := exec.LookPath("ssh-keygen")
	if err != nil && os.Getenv("CI") == "" {
		t.Skip("ssh-keygen is not here")
	}
	require.NoError(t, err)
	c := filled(t, etcdtest.Options{}, 100<<10)
	s := newSite(t, c.Endpoints(), "node")
	key, public := sshKey(t)
	s.signing(key, public)
	require.Zero(t, s.snapshot(t).code)
	name, folder := s.listed(t, "node")[0], filepath.Join(s.stores["node"], "prod")
	allowed := filepath.Join(t.TempDir(), "allowed_signers")
	require.NoError(t, os.WriteFile(allowed, []byte("etcd-snapshot "+public+"\n"), 0o600))
	manifest, err := os.Open(filepath.Join(folder, name+".json"))
	require.NoError(t, err)
	defer manifest.Close()
	cmd := exec.CommandContext(t.Context(), tool, "-Y", "verify", "-f", allowed, "-I", "etcd-snapshot", "-n", "manifest@etcdsnapshot.dev", "-s", manifest.Name()+".sig")
	cmd.Stdin = manifest
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), `Good "manifest@etcdsnapshot.dev" signature for etcd-snapshot`)
}
