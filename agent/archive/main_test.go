package archive

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"filippo.io/age"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/ci/parts"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(spoolHelperEnv); dir != "" {
		spoolHelper(dir)
	}
	goleak.VerifyTestMain(m)
}

var (
	algorithms = []string{v1.CompressionZstd, v1.CompressionGzip, v1.CompressionNone}
	levels     = []string{v1.LevelFastest, v1.LevelDefault, v1.LevelBetter}
)

// database makes n bytes that begin like a bbolt file and compress about as well as a cluster's objects do.
func database(n int) []byte {
	r := mathrand.New(mathrand.NewPCG(1, uint64(n)))
	var b bytes.Buffer
	b.Grow(n + 1024)
	b.Write(make([]byte, boltMagicOffset))
	_ = binary.Write(&b, binary.LittleEndian, uint32(boltMagic))
	for b.Len() < n {
		id := r.IntN(5000)
		fmt.Fprintf(&b, "/registry/pods/ns-%d/pod-%d\x00{\"metadata\":{\"name\":\"pod-%d\",\"uid\":\"%016x\"},\"status\":{\"podIP\":\"10.%d.%d.%d\"}}",
			id%50, id, id, r.Uint64(), r.IntN(255), r.IntN(255), r.IntN(255))
		b.Write(make([]byte, r.IntN(100)))
	}
	return b.Bytes()[:n]
}

// keyPair is a recipient as a policy names it and the identity file that opens what is encrypted to it.
type keyPair struct {
	name      string
	recipient string
	identity  string
}

var keyPairs = sync.OnceValue(func() map[string]keyPair {
	pairs := map[string]keyPair{}
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	for _, name := range []string{"x25519", "x25519-other"} {
		id, err := age.GenerateX25519Identity()
		must(err)
		pairs[name] = keyPair{name, id.Recipient().String(), "# created by a test\n\n" + id.String() + "\n"}
	}
	for _, name := range []string{"pq", "pq-other"} {
		id, err := age.GenerateHybridIdentity()
		must(err)
		pairs[name] = keyPair{name, id.Recipient().String(), id.String() + "\n"}
	}
	sshPair := func(name string, private any, public any) {
		pub, err := ssh.NewPublicKey(public)
		must(err)
		block, err := ssh.MarshalPrivateKey(private, "")
		must(err)
		line := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(pub))) + " operator@example"
		pairs[name] = keyPair{name, line, string(pem.EncodeToMemory(block))}
	}
	edPub, edKey, err := ed25519.GenerateKey(rand.Reader)
	must(err)
	sshPair("ssh-ed25519", edKey, edPub)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	must(err)
	sshPair("ssh-rsa", rsaKey, &rsaKey.PublicKey)
	return pairs
})

// recipientSets are the ways a snapshot can be encrypted; every key of a set opens it.
var recipientSets = [][]string{
	nil,
	{"x25519"},
	{"x25519", "x25519-other", "ssh-ed25519", "ssh-rsa"},
	{"pq"},
	{"pq", "pq-other"},
	{"ssh-ed25519"},
	{"ssh-rsa"},
}

func setName(set []string) string {
	if set == nil {
		return "plain"
	}
	return strings.Join(set, "+")
}

func recipients(t testing.TB, names ...string) []Recipient {
	t.Helper()
	var list []string
	for _, n := range names {
		list = append(list, keyPairs()[n].recipient)
	}
	rs, err := ParseRecipients(RecipientsField, list)
	require.NoError(t, err)
	return rs
}

func identities(t testing.TB, names ...string) []age.Identity {
	t.Helper()
	var ids []age.Identity
	for _, n := range names {
		got, err := ParseIdentities(strings.NewReader(keyPairs()[n].identity))
		require.NoError(t, err)
		ids = append(ids, got...)
	}
	return ids
}

func encode(t testing.TB, data []byte, o Options) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := NewEncoder(&b, o)
	require.NoError(t, err)
	for len(data) > 0 { // in pieces as etcd sends them
		n := min(len(data), 32<<10)
		k, err := w.Write(data[:n])
		require.NoError(t, err)
		require.Equal(t, n, k)
		data = data[n:]
	}
	require.NoError(t, w.Close())
	return b.Bytes()
}

// decodeAll reads everything and gives what came out even where there is an error.
func decodeAll(stored []byte, databaseOnly bool, ids ...age.Identity) ([]byte, *Decoder, error) {
	d, err := newDecoder(bytes.NewReader(stored), databaseOnly, ids)
	if err != nil {
		return nil, nil, err
	}
	out, err := io.ReadAll(d)
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return out, d, err
}

// tool finds a command-line tool; in CI it must be there.
func tool(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%s is needed and not in PATH", name)
		}
		t.Skipf("%s is not in PATH", name)
	}
	return path
}

// ageTool is the age command, built from its own module.
func ageTool(t testing.TB) string {
	t.Helper()
	return filepath.Join(parts.Require(t, "age"), "age")
}

// run runs a tool on stdin and returns its standard output.
func run(t testing.TB, stdin []byte, path string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(context.Background(), path, args...)
	cmd.Stdin = bytes.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	require.NoError(t, cmd.Run(), "%s %s: %s", path, args, &errs)
	return out.Bytes()
}

func writeFile(t testing.TB, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}
