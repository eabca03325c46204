package secrets

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	canary = `kana/ri+"€"=vogel`
	azure  = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

// The search is only worth something if it finds what leaks: in each form, in the middle of other text, and alone.
func TestFindsWhatLeaks(t *testing.T) {
	key, err := base64.StdEncoding.DecodeString(azure)
	require.NoError(t, err)
	quoted, err := json.Marshal(map[string]string{"value": canary})
	require.NoError(t, err)
	for form, text := range map[string]string{
		"plain":       canary,
		"in a line":   "level=INFO msg=hello value=" + canary + " more",
		"JSON":        string(quoted),
		"URL":         "https://a.example/?sig=" + url.QueryEscape(canary),
		"URL's path":  "https://a.example/" + url.PathEscape(canary),
		"hex":         hex.EncodeToString([]byte(canary)),
		"HEX":         strings.ToUpper(hex.EncodeToString([]byte(canary))),
		"base64":      base64.StdEncoding.EncodeToString([]byte(canary)),
		"basic auth":  base64.StdEncoding.EncodeToString([]byte("agent:" + canary)),
		"offset 1":    base64.RawURLEncoding.EncodeToString([]byte("x" + canary + "yz")),
		"offset 2":    base64.RawURLEncoding.EncodeToString([]byte("xy" + canary + "z")),
		"decoded":     hex.EncodeToString(key),
		"decoded raw": string(key),
	} {
		t.Run(form, func(t *testing.T) {
			var s Search
			s.Keep("canary", canary)
			s.Keep("key", azure)
			s.Said("here", "nothing to see")
			s.Said("there", "before "+text+" after")
			leaks := s.Leaks()
			require.Len(t, leaks, 1)
			require.Equal(t, "there", leaks[0].Place)
			require.Contains(t, leaks[0].String(), "***")
			require.NotContains(t, leaks[0].String(), canary)
			require.NotContains(t, leaks[0].String(), azure)
		})
	}
}

func TestExcerptHidesNeighbours(t *testing.T) {
	var s Search
	s.Keep("one", "first-secret-of-two")
	s.Keep("two", "second-secret-of-two")
	s.Said("log", "a first-secret-of-two and second-secret-of-two z")
	leaks := s.Leaks()
	require.Len(t, leaks, 2)
	for _, l := range leaks {
		require.NotContains(t, l.Excerpt, "-secret-of-")
	}
	var report strings.Builder
	require.Equal(t, 1, s.Report(&report, 0))
	require.Contains(t, report.String(), `the secret "one" is (plain) in log`)
	require.NotContains(t, report.String(), "-secret-of-")
	require.Equal(t, 7, s.Report(&report, 7))
	require.Zero(t, (&Search{}).Report(&report, 0))
}

// All that a command line leads to is kept, and what anybody may know is not.
func TestKeepOf(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	key := "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg\n-----END PRIVATE KEY-----\n"
	write("s3/access-key-id", "AKIAPUBLIC")
	write("s3/secret-access-key", "s3-secret-key\n")
	write("hook/url", "https://hooks.example.com/T000/B00000000/hook-part?sig=query-part\n")
	policy := write("policy.json", `{"kind":"EtcdSnapshotPolicy","spec":{"etcd":{"keyFile":"`+write("client.key", key)+`"},
		"destinations":[{"s3":{"auth":{"credentialsDir":"`+filepath.Join(dir, "s3")+`"}}}],
		"notifications":[{"webhook":{"credentialsDir":"`+filepath.Join(dir, "hook")+`"}}]}}`)
	config := write("kubeconfig", "users: [{name: a, user: {token: bearer-token}}]")
	id := write("identity.txt", "# public key: age1public\nAGE-SECRET-KEY-1QQQQQQQQQQ\n")
	var s Search
	s.KeepOf([]string{"snapshot", "--policy-file", policy, "--kubeconfig=" + config, "--identity", id, "--node", "n1"})
	var kept []string
	for value := range s.kept {
		kept = append(kept, value)
	}
	require.ElementsMatch(t, []string{
		"MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg", "s3-secret-key", "B00000000", "hook-part", "query-part", "bearer-token", "AGE-SECRET-KEY-1QQQQQQQQQQ",
	}, kept)
}

// A private key is found by any of its lines, and a certificate of it, which shows the public half, is no leak.
func TestPrivateKeys(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	for name, key := range map[string]crypto.Signer{"RSA": rsaKey, "EC": ecKey} {
		t.Run(name, func(t *testing.T) {
			var s Search
			der, err := x509.MarshalPKCS8PrivateKey(key)
			require.NoError(t, err)
			text := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
			s.KeepText("key", text)
			require.NotEmpty(t, s.kept)
			public, err := x509.MarshalPKIXPublicKey(key.Public())
			require.NoError(t, err)
			for shift := range 48 { // wherever its bytes begin in a line
				s.Said("public", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: append(make([]byte, shift), public...)})))
				s.Said("public", hex.EncodeToString(public))
			}
			require.Empty(t, s.Leaks())
			s.Said("kubeconfig", base64.StdEncoding.EncodeToString([]byte(text)))
			require.NotEmpty(t, s.Leaks())
			s.said = nil
			s.Said("der", hex.EncodeToString(der))
			require.NotEmpty(t, s.Leaks())
		})
	}
}

// What a process of its own says is on disk at once, its command line too.
func TestRecorder(t *testing.T) {
	dir := t.TempDir()
	var out, errs bytes.Buffer
	stdout, stderr, err := Recorder(dir, "agent", []string{"snapshot", "--x=argument-secret"}, &out, &errs)
	require.NoError(t, err)
	_, err = stdout.Write([]byte("stdout-secret\n"))
	require.NoError(t, err)
	_, err = stderr.Write([]byte("stderr-secret\n"))
	require.NoError(t, err)
	require.Equal(t, "stdout-secret\nstderr-secret\n", out.String()+errs.String())

	var s Search
	for _, name := range []string{"argument-secret", "stdout-secret", "stderr-secret"} {
		s.Keep(name, name)
	}
	require.NoError(t, s.Folder("processes", dir, func(string) bool { return true }))
	leaks := s.Leaks()
	require.Len(t, leaks, 3)
}

// Names of objects are said, too, and so are the manifests.
func TestFolder(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "in-a-name.db"), []byte("in-a-database"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.json"), []byte(`{"x":"in-a-manifest"}`), 0o600))
	var s Search
	for _, name := range []string{"in-a-name", "in-a-database", "in-a-manifest"} {
		s.Keep(name, name)
	}
	require.NoError(t, s.Folder("store", dir, func(name string) bool { return strings.HasSuffix(name, ".json") }))
	leaks := s.Leaks()
	var found []string
	for _, l := range leaks {
		found = append(found, l.Secret)
	}
	require.ElementsMatch(t, []string{"in-a-name", "in-a-manifest"}, found)
}
