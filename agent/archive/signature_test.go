package archive

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// sshKeygen runs the stock tool.
func sshKeygen(t *testing.T, stdin []byte, args ...string) (string, error) {
	t.Helper()
	path, err := exec.LookPath("ssh-keygen")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip("ssh-keygen is not here: ", err)
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Stdin = bytes.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// keyFile has ssh-keygen make a key, and gives its file.
func keyFile(t *testing.T, args ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	out, err := sshKeygen(t, nil, append([]string{"-q", "-f", path, "-C", "etcd-snapshot"}, args...)...)
	require.NoError(t, err, out)
	return path
}

func signerOf(t *testing.T, path string) *Signer {
	t.Helper()
	s, err := LoadSigner(path)
	require.NoError(t, err)
	return s
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return data
}

// TestSignaturesAreSSH: ssh-keygen verifies what we sign, and we what it signs.
func TestSignaturesAreSSH(t *testing.T) {
	key := keyFile(t, "-t", "ed25519", "-N", "")
	manifest, err := EncodeManifest(aManifest())
	require.NoError(t, err)
	signature, err := signerOf(t, key).Sign(manifest)
	require.NoError(t, err)
	dir := t.TempDir()
	sig, allowed, file := filepath.Join(dir, "m.json.sig"), filepath.Join(dir, "allowed_signers"), filepath.Join(dir, "m.json")
	require.NoError(t, os.WriteFile(sig, signature, 0o600))
	require.NoError(t, os.WriteFile(file, manifest, 0o600))
	require.NoError(t, os.WriteFile(allowed, append([]byte("etcd-snapshot "), read(t, key+".pub")...), 0o600))
	verify := []string{"-Y", "verify", "-f", allowed, "-I", "etcd-snapshot", "-n", SignatureNamespace, "-s", sig}
	out, err := sshKeygen(t, manifest, verify...)
	require.NoError(t, err, out)
	out, err = sshKeygen(t, append(manifest, '\n'), verify...)
	require.Error(t, err, out)

	require.NoError(t, os.Remove(sig))
	out, err = sshKeygen(t, nil, "-q", "-Y", "sign", "-f", key, "-n", SignatureNamespace, file)
	require.NoError(t, err, out)
	trusted, err := LoadTrustedKeys(allowed)
	require.NoError(t, err)
	by, err := trusted.Verify(manifest, read(t, sig))
	require.NoError(t, err)
	require.Equal(t, signerOf(t, key).Fingerprint(), by)

	require.NoError(t, os.Remove(sig))
	_, err = sshKeygen(t, nil, "-q", "-Y", "sign", "-f", key, "-n", "git", file)
	require.NoError(t, err)
	_, err = trusted.Verify(manifest, read(t, sig))
	require.ErrorIs(t, err, ErrUntrusted, "made for something else")
}

func TestUntrusted(t *testing.T) {
	ours, theirs, older := keyFile(t, "-t", "ed25519", "-N", ""), keyFile(t, "-t", "ed25519", "-N", ""), keyFile(t, "-t", "ed25519", "-N", "")
	trusted, err := ParseTrustedKeys([]string{string(read(t, ours+".pub")), string(read(t, older+".pub"))})
	require.NoError(t, err)
	manifest := []byte(`{"name": "x"}`)
	sign := func(key string) []byte {
		b, err := signerOf(t, key).Sign(manifest)
		require.NoError(t, err)
		return b
	}
	for _, key := range []string{ours, older} {
		by, err := trusted.Verify(manifest, sign(key))
		require.NoError(t, err)
		require.Equal(t, signerOf(t, key).Fingerprint(), by)
	}
	good := sign(ours)
	for name, c := range map[string]struct {
		manifest, signature []byte
		want                string
	}{
		"no signature":         {manifest, nil, "it is not signed"},
		"an empty one":         {manifest, []byte{}, "damaged"},
		"cut short":            {manifest, good[:len(good)/2], "damaged"},
		"not by a trusted key": {manifest, sign(theirs), signerOf(t, theirs).Fingerprint() + ", which is not one of those trusted"},
		"another manifest":     {[]byte(`{"name": "y"}`), good, "it is not what the key " + signerOf(t, ours).Fingerprint() + " signed"},
	} {
		_, err := trusted.Verify(c.manifest, c.signature)
		require.ErrorIs(t, err, ErrUntrusted, name)
		require.ErrorIs(t, err, ErrCorrupt, name)
		require.ErrorContains(t, err, c.want, name)
	}
	_, err = TrustedKeys{}.Verify(manifest, good)
	require.ErrorIs(t, err, ErrUntrusted, "trusting nobody trusts nobody")
}

// TestKeysThatCannotSign: each is refused with what to do, and nothing of a private key is repeated.
func TestKeysThatCannotSign(t *testing.T) {
	write := func(text string) string {
		path := filepath.Join(t.TempDir(), "key")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	good := keyFile(t, "-t", "ed25519", "-N", "")
	secret := string(read(t, good))
	for name, c := range map[string]struct{ path, want string }{
		"none":         {filepath.Join(t.TempDir(), "none"), "no such file"},
		"passphrase":   {keyFile(t, "-t", "ed25519", "-N", "open sesame"), "is protected by a passphrase"},
		"rsa":          {keyFile(t, "-t", "rsa", "-b", "2048", "-N", ""), "keys of type ssh-rsa do not sign snapshots"},
		"public":       {good + ".pub", "is not an SSH private key"},
		"cut short":    {write(secret[:len(secret)/2]), "is not an SSH private key"},
		"far too long": {write(strings.Repeat("x", maxKeyFile+1)), "longer than 1 MiB"},
	} {
		_, err := LoadSigner(c.path)
		var field *FieldError
		require.ErrorAs(t, err, &field, name)
		require.Equal(t, SigningKeyField, field.Field)
		require.ErrorContains(t, err, c.want, name)
		require.NotContains(t, err.Error(), secret[100:120], name)
	}
	_, err := LoadTrustedKeys(good)
	require.ErrorContains(t, err, "is a private key")
	_, err = LoadTrustedKeys(write("# nothing\n"))
	require.ErrorContains(t, err, "holds no public key")
	_, err = LoadTrustedKeys(write("\nssh-ed25519 AAAA\n"))
	require.ErrorContains(t, err, "line 2")
	_, err = ParseTrustedKeys([]string{string(read(t, good+".pub")), secret})
	require.ErrorContains(t, err, TrustedKeysField+"[1]: is not a public key")
	require.NotContains(t, err.Error(), secret[100:120])
}

func FuzzVerifySignature(f *testing.F) {
	key, err := ParseTrustedKeys([]string{"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHW3vtUrv8sTgHeTi7bkPNLA7SwzaPZb8u6bvpGhCOlG"})
	require.NoError(f, err)
	f.Add([]byte("{}"), []byte("-----BEGIN SSH SIGNATURE-----\nU1NIU0lHAAAAAQ==\n-----END SSH SIGNATURE-----\n"))
	f.Add([]byte("{}"), []byte("U1NIU0lH"))
	f.Fuzz(func(t *testing.T, manifest, signature []byte) {
		if _, err := key.Verify(manifest, signature); err == nil {
			t.Fatalf("nobody has the private key, and %q counts as its signature", signature)
		}
	})
}
