//go:build e2e

package e2e_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/ci/cluster"
	"etcdsnapshot.dev/ci/e2e"
	"etcdsnapshot.dev/ci/emulator"
)

// ownNode is a node of our own cluster, whose network and disk a test gets at.
func ownNode(t *testing.T) *cluster.Node {
	t.Helper()
	if c.Own == nil {
		t.Skip("needs a cluster of ci/cluster: there is no way to put a server into the network of a user's")
	}
	return c.Own.Nodes[0]
}

// onNodeNetwork is a proxy to a server of the test, which pods reach by the node's address.
func onNodeNetwork(t *testing.T, target string, tls bool) *emulator.FaultProxy {
	t.Helper()
	node := ownNode(t)
	l, err := node.Listen(node.Address + ":0")
	require.NoError(t, err)
	return emulator.StartFaultProxy(t, target, emulator.ProxyConfig{Listener: l, TLS: tls})
}

// secret makes a Secret in kube-system for the time of the test.
func secret(t *testing.T, name string, data map[string]string) {
	t.Helper()
	secrets := c.Client.CoreV1().Secrets(system)
	_, err := secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: data}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := e2e.Deadline(t)
		defer cancel()
		require.NoError(t, secrets.Delete(ctx, name, metav1.DeleteOptions{}))
	})
}

// bucket is one of a real S3 server, behind a proxy that pods reach.
type bucket struct {
	*emulator.FaultProxy
	// dir is where the server keeps the objects, each a file.
	dir string
	// values are what is said of it under destinations.NAME.s3.
	values string
}

func newBucket(t *testing.T, name string) *bucket {
	t.Helper()
	s3 := emulator.StartS3(t)
	in, err := s3.NewBucket(t.Context(), emulator.S3BucketOptions{})
	require.NoError(t, err)
	b := &bucket{FaultProxy: onNodeNetwork(t, s3.Endpoint, true), dir: s3.Folder(in)}
	secret(t, name, map[string]string{v1.S3FileAccessKeyID: s3.AccessKey, v1.S3FileSecretAccessKey: s3.SecretKey, "ca.crt": string(b.CA)})
	b.values = fmt.Sprintf("{bucket: %s, endpoint: %q, region: %s, auth: {method: static, existingSecret: %[4]s}, caBundle: {existingSecret: {name: %[4]s}}}", in, b.URL, s3.Region, name)
	return b
}

// listed reads a folder as `list` does: a snapshot is there if its manifest is. Each is whole, or the test fails.
func listed(t *testing.T, dir string) (names []string) {
	t.Helper()
	manifests, err := filepath.Glob(filepath.Join(dir, "*.json"))
	require.NoError(t, err)
	for _, file := range manifests {
		if _, ok := archive.ParseName(strings.TrimSuffix(filepath.Base(file), ".json")); !ok {
			continue // cluster.json, and notes of verifications
		}
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		var m v1.Manifest
		require.NoError(t, json.Unmarshal(data, &m), "%s is listed and its manifest is half-written", file)
		object, err := os.ReadFile(filepath.Join(dir, m.Object.Key))
		require.NoError(t, err, "%s is listed and is not there", m.Name)
		require.Equal(t, m.Object.SHA256, fmt.Sprintf("%x", sha256.Sum256(object)), "%s is listed and is half-written", m.Name)
		names = append(names, m.Name)
	}
	return names
}

// One run from every control-plane node into its own disk and, once, into the three clouds, encrypted; then the verification's
// CronJob boots an etcd from each copy that it sees.
func TestCloudsEncryptedAndVerified(t *testing.T) {
	node := ownNode(t)
	offsite := newBucket(t, "offsite")

	azure := emulator.StartAzurite(t, emulator.AzuriteConfig{})
	container, err := azure.NewContainer(t.Context())
	require.NoError(t, err)
	azureProxy := onNodeNetwork(t, azure.Endpoint, false)
	secret(t, "azure", map[string]string{v1.AzureFileAccountKey: azure.Key})

	gcs := emulator.StartGCS(t)
	gcsBucket, err := gcs.NewBucket(t.Context(), emulator.GCSBucketOptions{})
	require.NoError(t, err)
	gcsProxy := onNodeNetwork(t, gcs.Endpoint, false)
	gcsProxy.Add(emulator.Rule{Response: emulator.Fault{Rewrite: func(h http.Header) {
		// Where to send an upload: the server does not know by which name it is reached.
		if at, err := url.Parse(h.Get("Location")); err == nil && at.Host != "" {
			at.Host = strings.TrimPrefix(gcsProxy.URL, "http://")
			h.Set("Location", at.String())
		}
	}}})

	identity, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	secret(t, "age-identity", map[string]string{"identity.txt": identity.String()})

	nodes := c.ControlPlane(t)
	c.Install(t, e2e.Release{Values: fmt.Sprintf(`
nodes: all
nodeCount: %d
destinations:
  s3: {s3: %s}
  azure: {azure: {container: %s, account: %s, serviceURL: %q, auth: {method: sharedKey, existingSecret: azure}}}
  gcs: {gcs: {bucket: %s, endpoint: %q, auth: {method: anonymous}}}
encryption: {age: {recipients: [%s]}}
verification: {schedule: "0 0 31 2 *", level: restore, since: 1d, identitySecret: age-identity, afterStore: full}
`, len(nodes), offsite.values, container, azure.Account, azureProxy.URL+"/"+azure.Account, gcsBucket, gcsProxy.URL, identity.Recipient())})
	run := c.RunNow(t, system, "etcd-snapshot")
	require.Len(t, run.Pods, len(nodes))

	rows := c.Rows(t, system, "etcd-snapshot")
	require.Len(t, rows, len(nodes))
	var everywhere *v1.EtcdSnapshot
	for _, row := range rows {
		if len(row.Status.Destinations) == 4 {
			require.Nil(t, everywhere, "a bucket got more than one copy")
			everywhere = &row
		}
		for _, d := range row.Status.Destinations {
			require.Equal(t, v1.PhaseStored, d.Phase, d.Message)
		}
		require.Equal(t, "age", row.Spec.Encryption.Kind)
	}
	require.NotNil(t, everywhere)
	require.Equal(t, "azure,gcs,node,s3", everywhere.Status.DestinationNames)
	requireReady(t, c.Policy(t, system, "etcd-snapshot"), metav1.ConditionTrue)

	// Behind the agent's back: the bucket has what the row says, and age and zstd alone open it.
	folder := c.Folder(t, "/")
	require.Equal(t, []string{everywhere.Name}, listed(t, offsite.dir+folder))
	requireOpens(t, filepath.Join(offsite.dir+folder, everywhere.Spec.Object.Key), identity, everywhere.Spec.Database)
	if everywhere.Spec.Node == node.Name {
		require.Contains(t, listed(t, node.Path(c.Folder(t, "/var/lib/etcd-snapshots"))), everywhere.Name)
	}
	objects, err := gcs.Objects(t.Context(), gcsBucket, "prefix="+url.QueryEscape(folder[1:]))
	require.NoError(t, err)
	require.Len(t, objects, 3, "cluster.json, the snapshot and its manifest")
	blobs, closeIdle, err := azure.Client(container)
	require.NoError(t, err)
	defer closeIdle()
	blob, err := blobs.NewBlobClient(folder[1:]+"/"+everywhere.Spec.Object.Key).GetProperties(context.Background(), nil)
	require.NoError(t, err)
	require.Equal(t, everywhere.Spec.Object.Size, *blob.ContentLength)

	verified := c.RunNow(t, system, "etcd-snapshot-verify")
	require.Len(t, verified.Pods, 1)
	require.Zero(t, verified.End(t).ExitCode)
	row := e2e.Await(t, c, e2e.Snapshots, system, everywhere.Name, func(s *v1.EtcdSnapshot) bool { return s.Status.Verification != nil })
	require.Equal(t, v1.VerificationPassed, row.Status.Verification.Result, row.Status.Verification.Message)
	require.Equal(t, "restore", row.Status.Verification.Level)
	require.GreaterOrEqual(t, row.Status.Verification.Revision, everywhere.Spec.Etcd.Revision)
	require.Greater(t, row.Status.Verification.TotalKeys, int64(100))
	if len(nodes) == 1 { // more may have a newer snapshot on another node's disk
		require.Contains(t, c.Kubectl(t, "get", "esp", "-n", system, "-o", `jsonpath={.items[0].status.conditions[?(@.type=="Verified")].status}`), "True")
	}
	pod := verified.Pods[0]
	require.False(t, pod.Spec.HostNetwork)
	for _, v := range pod.Spec.Volumes {
		require.False(t, v.HostPath != nil && strings.HasPrefix(v.HostPath.Path, "/etc"), "a verification has no business with etcd's certificates")
	}

	// With another identity: exit code 2, and no word about the snapshot.
	other, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	secret(t, "other-identity", map[string]string{"identity.txt": other.String()})
	c.Kubectl(t, "patch", "cronjob", "-n", system, "etcd-snapshot-verify", "--type=json", "-p",
		fmt.Sprintf(`[{"op":"replace","path":"/spec/jobTemplate/spec/template/spec/volumes/%d/secret/secretName","value":"other-identity"}]`, volumeIndex(t, pod, "identity")))
	wrong := c.Finish(t, system, c.Start(t, system, "etcd-snapshot-verify"))
	require.False(t, wrong.Succeeded())
	require.EqualValues(t, 2, wrong.End(t).ExitCode, wrong.End(t).Message)
	require.NotContains(t, wrong.End(t).Message, other.String())
	after := e2e.Get[v1.EtcdSnapshot](t, c, e2e.Snapshots, system, everywhere.Name)
	require.Equal(t, v1.VerificationPassed, after.Status.Verification.Result)
}

func volumeIndex(t *testing.T, pod corev1.Pod, name string) int {
	t.Helper()
	for i, v := range pod.Spec.Volumes {
		if v.Name == name {
			return i
		}
	}
	require.Fail(t, "no such volume", name)
	return -1
}

// requireOpens opens a snapshot without anything of ours.
func requireOpens(t *testing.T, file string, identity age.Identity, database v1.DatabaseFacts) {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	plain, err := age.Decrypt(bytes.NewReader(data), identity)
	require.NoError(t, err)
	d, err := zstd.NewReader(plain)
	require.NoError(t, err)
	defer d.Close()
	sum := sha256.New()
	size, err := io.Copy(sum, d)
	require.NoError(t, err)
	require.Equal(t, database.Size, size)
	require.Equal(t, database.SHA256, fmt.Sprintf("%x", sum.Sum(nil)))
}
