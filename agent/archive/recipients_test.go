package archive

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
)

func TestRecipientErrorsNameTheEntry(t *testing.T) {
	pairs := keyPairs()
	x, pq, ed := pairs["x25519"].recipient, pairs["pq"].recipient, pairs["ssh-ed25519"].recipient
	small, err := rsa.GenerateKey(rand.Reader, 1024)
	require.NoError(t, err)
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	line := func(public any) string {
		pk, err := ssh.NewPublicKey(public)
		require.NoError(t, err)
		return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(pk)))
	}
	other := "q"
	if strings.HasSuffix(x, other) {
		other = "p"
	}
	secret := strings.TrimSpace(pairs["pq"].identity)
	for _, c := range []struct {
		list  []string
		index string
		text  string
	}{
		{[]string{x, ed, ""}, "[2]", "is empty"},
		{[]string{x, "hunter2"}, "[1]", "is not a recipient"},
		{[]string{x[:len(x)-1] + "!"}, "[0]", "malformed age recipient"},
		{[]string{x[:len(x)-1] + other}, "[0]", "malformed age recipient: invalid checksum"},
		{[]string{x[:len(x)-1] + "1"}, "[0]", "malformed age recipient"},
		{[]string{pq[:len(pq)-10]}, "[0]", "malformed post-quantum age recipient: invalid checksum"},
		{[]string{"age1yubikey1qwt50d05nh5vutpdzmlg5wn80xq5negm4uj9ghv0snvdd3yysf5yw3rhl3t"}, "[0]", "plugins (age1yubikey1...)"},
		{[]string{secret}, "[0]", "treat it as leaked"},
		{[]string{pairs["ssh-rsa"].identity}, "[0]", "treat it as leaked"},
		{[]string{ed[:40]}, "[0]", "malformed ssh-ed25519 key"},
		{[]string{line(&small.PublicKey)}, "[0]", "too small"},
		{[]string{line(&ec.PublicKey)}, "[0]", "type ecdsa-sha2-nistp256"},
		{[]string{ed + "\n" + pairs["ssh-rsa"].recipient}, "[0]", "more than one"},
		{[]string{x, ed, x}, "[2]", "is the same key as recipients[0]"},
		{[]string{ed, strings.TrimSuffix(ed, "operator@example") + "elsewhere"}, "[1]", "is the same key as recipients[0]"},
		{[]string{x, pq}, "[1]", "cannot be used together"},
		{[]string{pq, pairs["pq-other"].recipient, ed}, "[2]", "cannot be used together"},
	} {
		rs, err := ParseRecipients(RecipientsField, c.list)
		require.Nil(t, rs)
		require.ErrorContains(t, err, "spec.encryption.age.recipients"+c.index+": ")
		require.ErrorContains(t, err, c.text)
		require.NotContains(t, err.Error(), "hunter2")
		require.NotContains(t, err.Error(), secret[:40])
		require.Less(t, len(err.Error()), 300)
		var field *FieldError
		require.ErrorAs(t, err, &field)
		require.Equal(t, RecipientsField+c.index, field.Field)
	}
	rs, err := ParseRecipients(RecipientsField, nil)
	require.NoError(t, err)
	require.Empty(t, rs)
	require.Nil(t, Facts(rs))
}

func TestFingerprints(t *testing.T) {
	for _, name := range []string{"ssh-ed25519", "ssh-rsa"} {
		r := recipients(t, name)[0]
		out := run(t, nil, tool(t, "ssh-keygen"), "-l", "-f", writeFile(t, "key.pub", keyPairs()[name].recipient+"\n"))
		require.Equal(t, strings.Fields(string(out))[1], r.Fingerprint())
	}
	for _, name := range []string{"x25519", "pq"} {
		r := recipients(t, name)[0]
		sum := run(t, []byte(keyPairs()[name].recipient), tool(t, "openssl"), "dgst", "-sha256", "-binary")
		require.Equal(t, "SHA256:"+strings.TrimRight(base64.StdEncoding.EncodeToString(sum), "="), r.Fingerprint())
		require.Regexp(t, fingerprintRaw, r.Fingerprint())
	}
	f := Facts(recipients(t, "x25519", "ssh-rsa"))
	require.Equal(t, "age", f.Kind)
	require.Len(t, f.Recipients, 2)
}

func TestIdentityErrorsHoldNoKey(t *testing.T) {
	pairs := keyPairs()
	x := strings.Fields(pairs["x25519-other"].identity)
	key := x[len(x)-1]
	block, err := ssh.MarshalPrivateKeyWithPassphrase(mustKey(t), "", []byte("secret"))
	require.NoError(t, err)
	locked := string(pem.EncodeToMemory(block))
	for content, text := range map[string]string{
		"":                                      "holds no identity",
		"# a comment\n\n":                       "holds no identity",
		"# c\n" + key + "\n" + key[:len(key)-3]: "line 3: malformed identity",
		key[:len(key)-1] + "1":                  "line 1: malformed identity",
		strings.Fields(pairs["pq"].identity)[0] + "X": "line 1: malformed post-quantum identity",
		pairs["x25519"].recipient:                     "line 1: is a public key",
		pairs["ssh-rsa"].recipient:                    "line 1: is a public key",
		"AGE-PLUGIN-YUBIKEY-1QQQ":                     "plugins are not supported",
		"my secret passphrase":                        "line 1: is not an identity",
		locked:                                        "protected by a passphrase",
		pairs["ssh-rsa"].identity[:200]:               "is not an SSH private key",
		"-----BEGIN AGE ENCRYPTED FILE-----\nYWdl":    "is itself encrypted",
		ageIntro + "v1\n-> scrypt":                    "is itself encrypted",
		strings.Repeat("#\n", 1<<20):                  "longer than 1 MiB",
	} {
		ids, err := ParseIdentities(strings.NewReader(content))
		require.Nil(t, ids)
		require.ErrorContains(t, err, text)
		for _, word := range strings.Fields(content) {
			if len(word) > 20 {
				require.NotContains(t, err.Error(), word)
				require.NotContains(t, err.Error(), word[:20])
			}
		}
		require.NotContains(t, err.Error(), "my secret")
	}
}

func mustKey(t *testing.T) *rsa.PrivateKey {
	t.Helper()
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	return k
}

func TestLoadIdentityFile(t *testing.T) {
	path := writeFile(t, "key", keyPairs()["x25519"].identity+keyPairs()["pq"].identity)
	ids, warning, err := LoadIdentityFile(path)
	require.NoError(t, err)
	require.Empty(t, warning)
	require.Len(t, ids, 2)

	require.NoError(t, os.Chmod(path, 0o640))
	_, warning, err = LoadIdentityFile(path)
	require.NoError(t, err)
	require.Empty(t, warning)

	require.NoError(t, os.Chmod(path, 0o644))
	ids, warning, err = LoadIdentityFile(path)
	require.NoError(t, err)
	require.Len(t, ids, 2)
	require.Contains(t, warning, path)
	require.Contains(t, warning, "0644")

	missing := filepath.Join(t.TempDir(), "nope")
	_, _, err = LoadIdentityFile(missing)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, missing)

	bad := writeFile(t, "bad", "nonsense")
	_, _, err = LoadIdentityFile(bad)
	require.ErrorContains(t, err, bad+": line 1")
}

const identityHelperEnv = "ARCHIVE_TEST_IDENTITY_HELPER"

// A file that may not be read is an error that says so and as whom, also when the tests themselves run as root.
func TestUnreadableIdentityFile(t *testing.T) {
	if path := os.Getenv(identityHelperEnv); path != "" {
		_, _, err := LoadIdentityFile(path)
		if errors.Is(err, os.ErrPermission) {
			_, _ = io.WriteString(os.Stdout, err.Error()+"\n")
		}
		return
	}
	dir, err := os.MkdirTemp("", "identity")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	require.NoError(t, os.Chmod(dir, 0o755))
	path := filepath.Join(dir, "key")
	require.NoError(t, os.WriteFile(path, []byte(keyPairs()["x25519"].identity), 0o600))
	self, err := os.ReadFile(os.Args[0])
	require.NoError(t, err)
	helper := filepath.Join(dir, "helper") // the test binary's own folder may be closed to others
	require.NoError(t, os.WriteFile(helper, self, 0o755))

	cmd := exec.Command(helper, "-test.run=^TestUnreadableIdentityFile$")
	cmd.Env = append(os.Environ(), identityHelperEnv+"="+path)
	cmd.Dir = "/"
	want := "uid 65534"
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	} else {
		require.NoError(t, os.Chmod(path, 0))
		want = "as uid "
	}
	var out bytes.Buffer
	cmd.Stdout = &out
	require.NoError(t, cmd.Run())
	require.Contains(t, out.String(), want)
	require.Contains(t, out.String(), path+": permission denied")
}
