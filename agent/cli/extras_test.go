package cli_test

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/doctor"
	"etcdsnapshot.dev/ci/emulator"
	"etcdsnapshot.dev/ci/etcdtest"
)

const privateKey = "the private key of the cluster's CA"

// pki makes a control plane's files, and gives their folder.
func pki(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "pki")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "etcd"), 0o755))
	for name, text := range map[string]string{"ca.crt": "certificate", "ca.key": privateKey, "etcd/ca.key": privateKey + " of etcd"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	require.NoError(t, os.Chmod(filepath.Join(dir, "ca.crt"), 0o644))
	return dir
}

// extras makes the policy collect paths, encrypted to a key of their own, and gives the file with its identity.
func (s *site) extras(t *testing.T, paths ...string) (identity string) {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	s.spec()["extras"] = map[string]any{"paths": paths, "encryption": map[string]any{"age": map[string]any{"recipients": []string{id.Recipient().String()}}}}
	identity = filepath.Join(s.dir, "identity-of-extras.txt")
	require.NoError(t, os.WriteFile(identity, []byte(id.String()+"\n"), 0o600))
	return identity
}

func (s *site) extrasFile(destination, name string) string {
	return filepath.Join(s.stores[destination], "prod", archive.ExtrasKey(name))
}

func manifestIn(t *testing.T, s *site, destination, name string) *v1.Manifest {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(s.stores[destination], "prod", name+".json"))
	require.NoError(t, err)
	m, err := archive.DecodeManifest(data)
	require.NoError(t, err)
	return m
}

// decrypted is what age and zstd make of a stored file.
func decrypted(t *testing.T, path, identity string) io.Reader {
	t.Helper()
	ids, err := age.ParseIdentities(bytes.NewReader(realFile(t, identity)))
	require.NoError(t, err)
	plain, err := age.Decrypt(bytes.NewReader(realFile(t, path)), ids...)
	require.NoError(t, err)
	out, err := zstd.NewReader(plain)
	require.NoError(t, err)
	t.Cleanup(out.Close)
	return out
}

// TestExtras is the way of a node's files from the snapshot to another machine: to their own destination and their own key,
// listed, verified, compared, extracted, pruned.
func TestExtras(t *testing.T) {
	c := filled(t, etcdtest.Options{}, 1<<20)
	s := newSite(t, c.Endpoints(), "node", "vault")
	key := s.encrypted(t)
	dir := pki(t)
	extrasKey := s.extras(t, dir+"/")
	s.spec()["extras"].(map[string]any)["destinations"] = []string{"vault"}

	o := s.snapshot(t)
	require.Zero(t, o.code, o.stderr)
	require.Contains(t, o.stdout, "Extras: 3 files")
	name := s.listed(t, "node")[0]
	require.NoFileExists(t, s.extrasFile("node", name))
	require.FileExists(t, s.extrasFile("vault", name))
	require.Nil(t, manifestIn(t, s, "node", name).Extras)
	require.Equal(t, []string{dir + "/ca.crt", dir + "/ca.key", dir + "/etcd/ca.key"}, manifestIn(t, s, "vault", name).Extras.Files)
	for _, dir := range append(mapValues(s.stores), s.spool) {
		for _, f := range files(t, dir) {
			require.NotContains(t, string(realFile(t, f)), privateKey)
		}
	}
	require.NotContains(t, o.stderr+o.stdout, privateKey)
	o = agent(t, "list", "-f", s.file(t), "-o", "json")
	require.Zero(t, o.code)
	var listed struct {
		Snapshots []struct {
			Copies []struct {
				Destination string
				Extras      bool
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &listed))
	require.Equal(t, 1, len(listed.Snapshots), o.stdout)
	for _, copied := range listed.Snapshots[0].Copies {
		require.Equal(t, copied.Destination == "vault", copied.Extras)
	}

	// verify proves them as far as the identities go.
	verify := func(ids ...string) string {
		args := []string{"--level", "database", "-d", "vault", "-o", "json"}
		for _, id := range ids {
			args = append(args, "--identity", id)
		}
		o := s.verify(t, args...)
		require.Zero(t, o.code, o.stderr)
		return strings.Join(strings.Fields(o.stdout), "")
	}
	require.Contains(t, verify(key, extrasKey), `"extras":{"files":3,"opened":true}`)
	requireContains(t, verify(key), `"extras":{"files":3,"opened":false}`, `no--identityopenstheextras`)

	// On another machine: first told, then done.
	to := filepath.Join(t.TempDir(), "root")
	restore := func(more ...string) outcome {
		return agent(t, append([]string{"restore", "-f", s.file(t), "--latest", "--extras", to}, more...)...)
	}
	o = restore("--identity", key)
	require.Equal(t, 2, o.code)
	require.Contains(t, o.stderr, "wrong identity")
	o = restore("--identity", extrasKey, "--dry-run")
	require.Zero(t, o.code, o.stderr)
	requireContains(t, o.stdout, "A dry run, which changes nothing", "-rw-------", filepath.Join(to, dir, "ca.key"))
	require.NoDirExists(t, to)
	o = restore("--identity", extrasKey)
	require.Zero(t, o.code, o.stderr)
	require.Equal(t, privateKey, string(realFile(t, filepath.Join(to, dir, "ca.key"))))
	require.Zero(t, restore("--identity", extrasKey).code, "once more")

	// Nothing is overwritten unasked.
	mine := filepath.Join(to, dir, "ca.key")
	require.NoError(t, os.WriteFile(mine, []byte("mine"), 0o600))
	o = restore("--identity", extrasKey)
	require.Equal(t, 2, o.code)
	requireContains(t, o.stderr, mine, "--force", "nothing was written")
	require.Equal(t, "mine", string(realFile(t, mine)))
	o = restore("--identity", extrasKey, "--dry-run", "-o", "json")
	require.Zero(t, o.code)
	require.Contains(t, o.stdout, `"differs"`)
	require.Zero(t, restore("--identity", extrasKey, "--force").code)
	require.Equal(t, privateKey, string(realFile(t, mine)))

	// By the file alone, with this program and without it.
	stored := s.extrasFile("vault", name)
	alone := filepath.Join(t.TempDir(), "alone")
	require.Zero(t, agent(t, "restore", "--from", stored, "--identity", extrasKey, "--extras", alone).code)
	require.FileExists(t, filepath.Join(alone, dir, "etcd/ca.key"))
	o = agent(t, "restore", "--from", stored, "--identity", extrasKey, "--db-file", filepath.Join(t.TempDir(), "db"))
	require.Equal(t, 2, o.code)
	require.Contains(t, o.stderr, "holds the extras of a snapshot")
	o = agent(t, "restore", "-f", s.file(t), "-d", "node", "--latest", "--identity", extrasKey, "--extras", alone)
	require.Equal(t, 2, o.code)
	require.Contains(t, o.stderr, "this snapshot has no extras")
	byHand := t.TempDir()
	tar := exec.CommandContext(t.Context(), "tar", "-x", "-C", byHand)
	tar.Stdin = decrypted(t, stored, extrasKey)
	out, err := tar.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, privateKey, string(realFile(t, filepath.Join(byHand, dir, "ca.key"))))

	// They go with their snapshot.
	s.destination(1)["retention"] = map[string]any{"last": 1}
	nextSecond(t)
	require.Zero(t, s.snapshot(t).code)
	verify(key, extrasKey) // the newest verified one is kept, too
	require.Zero(t, agent(t, "prune", "-f", s.file(t)).code)
	require.NoFileExists(t, stored)
	require.FileExists(t, s.extrasFile("vault", s.listed(t, "vault")[0]))
	for _, f := range files(t, s.stores["vault"]) {
		require.NotContains(t, f, name)
	}

	// Damage is the snapshot's.
	name = s.listed(t, "vault")[0]
	flipBit(t, s.extrasFile("vault", name))
	o = s.verify(t, "--level", "checksum", "-d", "vault")
	require.Equal(t, 4, o.code)
	requireContains(t, o.stderr, "extras", "corrupt")
	o = restore("--identity", extrasKey)
	require.Equal(t, 4, o.code)
}

// TestExtrasCannotBeCollected: the snapshot is stored all the same, the run fails, and the doctor knew.
func TestExtrasCannotBeCollected(t *testing.T) {
	c := filled(t, etcdtest.Options{}, 1<<20)
	s := newSite(t, c.Endpoints(), "node")
	dir := pki(t)
	key := s.extras(t, dir)
	d := s.doctor(t, "--identity", key)
	d.has(t, doctor.OK, "extras", "3 files can be collected")
	d.has(t, doctor.OK, "encryption", "1 can open the extras")
	d.has(t, doctor.OK, "encryption", "opens what is encrypted")
	d.has(t, doctor.Warn, "encryption", "snapshots are not encrypted")

	s.extras(t, dir, dir+"-renamed")
	d = s.doctor(t)
	d.has(t, doctor.Fail, "extras", dir+"-renamed does not exist on this node")
	require.Equal(t, 2, d.code)
	o := s.snapshot(t)
	require.Equal(t, 2, o.code, "trying again does not cure it")
	requireContains(t, lastLine(o.stderr), "is stored, but without its extras", "spec.extras.paths", dir+"-renamed")
	name := s.listed(t, "node")
	require.Len(t, name, 1)
	require.Nil(t, manifestIn(t, s, "node", name[0]).Extras)
	require.Len(t, files(t, s.stores["node"]), 2)
	require.Zero(t, s.verify(t).code)
}

// TestExtrasFullDisk: where there is room for the snapshot but not for its extras, nothing of either stays.
func TestExtrasFullDisk(t *testing.T) {
	c := filled(t, etcdtest.Options{}, 1<<20)
	s := newSite(t, c.Endpoints(), "node")
	s.stores["node"] = tmpfs(t, "8m")
	s.destination(0)["hostPath"] = map[string]any{"path": s.stores["node"]}
	dir := pki(t)
	noise := make([]byte, 12<<20)
	_, err := rand.Read(noise)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "random"), noise, 0o600))
	s.extras(t, dir)
	o := s.snapshot(t)
	require.Equal(t, 1, o.code)
	requireContains(t, lastLine(o.stderr), "no space left on device", ".extras.tar.zst.age")
	s.nothingVisible(t)
}

// TestExtrasKilled: a run that is killed when the extras are stored and the manifest is not leaves no snapshot.
func TestExtrasKilled(t *testing.T) {
	c := filled(t, etcdtest.Options{}, 1<<20)
	s3 := emulator.StartS3(t)
	bucket, err := s3.NewBucket(t.Context(), emulator.S3BucketOptions{})
	require.NoError(t, err)
	proxy := emulator.StartFaultProxy(t, s3.Endpoint, emulator.ProxyConfig{})
	s := newSite(t, c.Endpoints())
	s.add(s3Destination(t, s3, proxy.URL, bucket))
	key := s.extras(t, pki(t))
	manifest := emulator.Rule{Method: http.MethodPut, Match: func(r *http.Request) bool {
		return strings.HasSuffix(r.URL.Path, ".json") && !strings.HasSuffix(r.URL.Path, "cluster.json")
	}, Request: emulator.Fault{Stall: true}}
	proxy.Add(manifest)
	cmd := process(t, s.args(t)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	require.NoError(t, cmd.Start())
	require.Eventually(t, func() bool { return proxy.Count(manifest) > 0 }, time.Minute, 10*time.Millisecond, "the manifest is on its way")
	require.NoError(t, cmd.Process.Signal(syscall.SIGKILL))
	require.Error(t, cmd.Wait())
	proxy.Clear()
	require.Empty(t, s.listed(t, "s3"), stderr.String())
	to := t.TempDir()
	o := agent(t, "restore", "-f", s.file(t), "--latest", "--extras", to, "--identity", key)
	require.NotZero(t, o.code)
	require.Empty(t, files(t, to))

	require.Zero(t, s.snapshot(t).code)
	require.Len(t, s.listed(t, "s3"), 1)
	o = agent(t, "list", "-f", s.file(t))
	require.Contains(t, o.stdout, "1 without a manifest", "told once, by its data")
	require.Zero(t, agent(t, "restore", "-f", s.file(t), "--latest", "--extras", to, "--identity", key).code)
}
