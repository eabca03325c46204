package cli_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/doctor"
	"etcdsnapshot.dev/ci/emulator"
	"etcdsnapshot.dev/ci/etcdtest"
	"etcdsnapshot.dev/ci/etcdtest/certs"
	"etcdsnapshot.dev/ci/kubetest"
)

// diagnosis is what `doctor -o json` prints.
type diagnosis struct {
	Result doctor.Result
	Checks []doctor.Finding
	code   int
	stderr string
}

func (s *site) doctor(t *testing.T, more ...string) diagnosis {
	t.Helper()
	return diagnosed(t, agent(t, append([]string{"doctor", "-f", s.file(t), "--spool-dir", s.spool, "--node", "n1", "--dial-timeout", "3s", "-o", "json"}, more...)...))
}

func diagnosed(t *testing.T, o outcome) (d diagnosis) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &d), o.stderr)
	d.code, d.stderr = o.code, o.stderr
	return d
}

// has requires a finding whose message holds all parts, and whose remedy is there if something is wrong.
func (d diagnosis) has(t *testing.T, result doctor.Result, check string, parts ...string) {
	t.Helper()
	var near []string
next:
	for _, f := range d.Checks {
		if f.Check != check {
			continue
		}
		near = append(near, string(f.Result)+" "+f.String())
		for _, p := range parts {
			if f.Result != result || !strings.Contains(f.String(), p) {
				continue next
			}
		}
		if f.Result == result {
			require.Equal(t, result == doctor.Warn || result == doctor.Fail, f.Remedy != "", "%v", f)
			return
		}
	}
	require.Failf(t, "no such finding", "%s %s %q, but\n%s", result, check, parts, strings.Join(near, "\n"))
}

func (d diagnosis) lacks(t *testing.T, results ...doctor.Result) {
	t.Helper()
	for _, f := range d.Checks {
		require.NotContains(t, results, f.Result, "%v", f)
	}
}

// secured is a site whose etcd wants client certificates.
func secured(t *testing.T, o etcdtest.Options) (*site, *etcdtest.Cluster) {
	t.Helper()
	o.TLS = true
	c := filled(t, o, 1<<20)
	s := newSite(t, c.Endpoints(), "node")
	s.etcd()["caFile"], s.etcd()["certFile"], s.etcd()["keyFile"] = c.Certs.CAFile, c.Certs.ClientCertFile, c.Certs.ClientKeyFile
	return s, c
}

// TestDoctorHealthy: a healthy place has no failure, and nothing is left behind.
func TestDoctorHealthy(t *testing.T) {
	s, _ := secured(t, etcdtest.Options{Members: 3})
	id, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	s.spec()["encryption"] = map[string]any{"age": map[string]any{"recipients": []string{id.Recipient().String()}}}
	key := filepath.Join(s.dir, "identity.txt")
	require.NoError(t, os.WriteFile(key, []byte(id.String()+"\n"), 0o600))

	d := s.doctor(t, "--identity", key)
	require.Zero(t, d.code)
	d.lacks(t, doctor.Fail)
	d.has(t, doctor.OK, "policy", "valid, stores in node")
	d.has(t, doctor.OK, "encryption", "1 can open")
	d.has(t, doctor.OK, "encryption", "opens what is encrypted")
	d.has(t, doctor.OK, "file", "spec.etcd.keyFile", "mode 0600")
	d.has(t, doctor.OK, "etcd", "leader")
	d.has(t, doctor.OK, "etcd", "follower", "etcd 3.6", "in use")
	d.has(t, doctor.OK, "alarms", "none")
	d.has(t, doctor.OK, "spool", "free for a database of")
	d.has(t, doctor.OK, "destination", "node", "list, put, read, check and delete work")
	d.has(t, doctor.OK, "clock", "node", "agrees")
	d.has(t, doctor.Skip, "api-server", "none is used")
	// The test's certificates last a day.
	d.has(t, doctor.Warn, "certificate", "root expires on", "kubeadm certs renew")
	d.has(t, doctor.Warn, "certificate", "etcd-ca expires on")
	d.has(t, doctor.Warn, "certificate", "etcd expires on", "server certificate")
	require.Equal(t, 1, s.doctor(t, "--strict").code)
	s.nothingVisible(t)

	o := agent(t, "doctor", "-f", s.file(t), "--spool-dir", s.spool)
	require.Zero(t, o.code)
	requireContains(t, o.stdout, "RESULT", "CHECK", "SUBJECT", "FOUND", "→ ", "0 failed")
}

// TestDoctorCertificates breaks what the policy names, one by one.
func TestDoctorCertificates(t *testing.T) {
	s, c := secured(t, etcdtest.Options{})
	with := func(fields map[string]string) diagnosis {
		etcd := s.etcd()
		was := map[string]any{}
		for k, v := range fields {
			was[k], etcd[k] = etcd[k], v
		}
		d := s.doctor(t)
		for k, v := range was {
			etcd[k] = v
		}
		require.NotZero(t, d.code)
		d.has(t, doctor.OK, "destination", "node") // hidden by nothing
		return d
	}
	d := with(map[string]string{"caFile": c.Certs.OtherCAFile})
	d.has(t, doctor.Warn, "certificate", "not signed by the CA")
	d.has(t, doctor.Fail, "etcd", "certificate signed by unknown authority")
	require.Equal(t, 1, d.code)

	d = with(map[string]string{"certFile": c.Certs.ExpiredClientCertFile, "keyFile": c.Certs.ExpiredClientKeyFile})
	d.has(t, doctor.Fail, "certificate", "root expired on")
	d.has(t, doctor.Fail, "etcd", "does not take the client certificate")
	require.Equal(t, 2, d.code)

	d = with(map[string]string{"keyFile": c.Certs.OtherClientKeyFile})
	d.has(t, doctor.Fail, "certificate", "spec.etcd.keyFile", "private key does not match")
	require.Equal(t, 2, d.code)

	d = with(map[string]string{"caFile": filepath.Join(s.dir, "nowhere.crt")})
	d.has(t, doctor.Fail, "file", "spec.etcd.caFile", "no such file", "control-plane node")
	require.Equal(t, 2, d.code)

	d = with(map[string]string{"caFile": s.dir})
	d.has(t, doctor.Fail, "file", "it is a folder")

	require.NoError(t, os.Chmod(c.Certs.ClientKeyFile, 0o644))
	s.doctor(t).has(t, doctor.Warn, "file", "every user of this machine may read this key", "chmod 600")

	ca, err := certs.NewCA("more")
	require.NoError(t, err)
	caFile, cert, key := filepath.Join(s.dir, "ca.crt"), filepath.Join(s.dir, "server-only.crt"), filepath.Join(s.dir, "server-only.key")
	require.NoError(t, ca.WriteCert(caFile))
	require.NoError(t, ca.Issue(x509.Certificate{Subject: pkix.Name{CommonName: "x"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, cert, key))
	d = with(map[string]string{"caFile": caFile, "certFile": cert, "keyFile": key})
	d.has(t, doctor.Fail, "certificate", "not for clients", "clientAuth")
}

// TestDoctorMembers is about what answers at the endpoints.
func TestDoctorMembers(t *testing.T) {
	t.Run("learner", func(t *testing.T) {
		c := filled(t, etcdtest.Options{Learner: true}, 1<<20)
		all := c.Endpoints()
		s := newSite(t, all, "node")
		d := s.doctor(t)
		d.has(t, doctor.Warn, "etcd", "it is a learner")
		require.Zero(t, d.code, "another member is there")
		s.etcd()["endpoints"] = all[1:]
		d = s.doctor(t)
		d.has(t, doctor.Fail, "etcd", "it is a learner", "voting member")
		require.Equal(t, 1, d.code)
	})
	t.Run("no space", func(t *testing.T) {
		c := etcdtest.Start(t, etcdtest.Options{})
		client, err := c.Client(0)
		require.NoError(t, err)
		defer client.Close()
		status, err := client.Status(t.Context(), c.Endpoints()[0])
		require.NoError(t, err)
		for _, alarm := range []pb.AlarmType{pb.AlarmType_NOSPACE, pb.AlarmType_CORRUPT} {
			_, err = pb.NewMaintenanceClient(client.ActiveConnection()).Alarm(t.Context(), &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: status.Header.MemberId, Alarm: alarm})
			require.NoError(t, err)
			s := newSite(t, c.Endpoints(), "node")
			d := s.doctor(t)
			require.Equal(t, 1, d.code)
			if alarm == pb.AlarmType_NOSPACE {
				d.has(t, doctor.Fail, "alarms", "NOSPACE", "etcdctl alarm disarm")
			} else {
				d.has(t, doctor.Fail, "etcd", "alarm CORRUPT", "Replace the member")
			}
		}
	})
	t.Run("http and https", func(t *testing.T) {
		s, c := secured(t, etcdtest.Options{})
		s.etcd()["endpoints"] = []string{strings.Replace(c.Endpoints()[0], "https", "http", 1)}
		s.doctor(t).has(t, doctor.Fail, "etcd", "is it https://")
		plain := etcdtest.Start(t, etcdtest.Options{})
		s.etcd()["endpoints"] = []string{strings.Replace(plain.Endpoints()[0], "http", "https", 1)}
		s.doctor(t).has(t, doctor.Fail, "etcd", "perhaps it does not speak TLS")
	})
	t.Run("kine", func(t *testing.T) {
		kine := etcdtest.StartFake(t, &etcdtest.FakeMaintenance{Status: &pb.StatusResponse{Header: &pb.ResponseHeader{}, DbSize: 4096, Version: "3.5.13"}})
		d := newSite(t, []string{kine}, "node").doctor(t)
		d.has(t, doctor.Fail, "etcd", "perhaps kine", "dqlite")
		require.Equal(t, 2, d.code)
	})
	t.Run("version", func(t *testing.T) {
		for version, said := range map[string]string{"3.3.27": "not one of the versions", "4.0.0": "not one of the versions", "3.5.2": "can corrupt its data"} {
			fake := &etcdtest.FakeMaintenance{Status: &pb.StatusResponse{Header: &pb.ResponseHeader{ClusterId: 1, MemberId: 2}, Leader: 2, DbSize: 4096, Version: version}}
			newSite(t, []string{etcdtest.StartFake(t, fake)}, "node").doctor(t).has(t, doctor.Warn, "etcd", version, said)
		}
	})
	t.Run("nobody, and different clusters", func(t *testing.T) {
		s := newSite(t, []string{"http://127.0.0.1:1"}, "node")
		d := s.doctor(t)
		d.has(t, doctor.Fail, "etcd", "connection refused")
		d.has(t, doctor.Skip, "alarms")
		require.Equal(t, 1, d.code)
		a, b := etcdtest.Start(t, etcdtest.Options{}), etcdtest.Start(t, etcdtest.Options{Members: 1, Args: []string{"--initial-cluster-token", "other"}})
		s.etcd()["endpoints"] = append(a.Endpoints(), b.Endpoints()...)
		d = s.doctor(t)
		d.has(t, doctor.Fail, "etcd", "different clusters")
		require.Equal(t, 2, d.code)
	})
}

// TestDoctorPolicy: what the policy is wrong about hides nothing that does not need it.
func TestDoctorPolicy(t *testing.T) {
	s := newSite(t, []string{"http://127.0.0.1:1"}, "node")
	s.spec()["destinations"] = []any{}
	d := s.doctor(t)
	d.has(t, doctor.Fail, "policy", "spec.destinations")
	d.has(t, doctor.Skip, "etcd", "no policy")
	require.Equal(t, 2, d.code)

	id, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	other, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	s = newSite(t, []string{"http://127.0.0.1:1"}, "node")
	s.spec()["encryption"] = map[string]any{"age": map[string]any{"recipients": []string{id.Recipient().String()}}}
	key := filepath.Join(s.dir, "identity.txt")
	require.NoError(t, os.WriteFile(key, []byte(other.String()+"\n"), 0o600))
	d = s.doctor(t, "--identity", key)
	d.has(t, doctor.Fail, "encryption", "none of the 1 given opens")
	require.NotContains(t, d.stderr, other.String())

	require.Equal(t, 2, agent(t, "doctor").code, "which policy?")
	require.Equal(t, 2, agent(t, "doctor", "-f", s.file(t), "--spool-limit", "many").code)
}

// TestDoctorDestinations is about the rights in a bucket, one taken away at a time.
func TestDoctorDestinations(t *testing.T) {
	s3 := emulator.StartS3(t)
	bucket, err := s3.NewBucket(t.Context(), emulator.S3BucketOptions{})
	require.NoError(t, err)
	proxy := emulator.StartFaultProxy(t, s3.Endpoint, emulator.ProxyConfig{})
	c := etcdtest.Start(t, etcdtest.Options{})
	s := newSite(t, c.Endpoints(), "node")
	s.add(map[string]any{"name": "s3", "retention": map[string]any{"last": 1}, "s3": map[string]any{"bucket": bucket, "endpoint": proxy.URL, "region": s3.Region,
		"auth": map[string]any{"method": "static", "credentialsDir": mounted(t, map[string]string{v1.S3FileAccessKeyID: s3.AccessKey, v1.S3FileSecretAccessKey: s3.SecretKey})}}})
	d := s.doctor(t)
	require.Zero(t, d.code, d.stderr)
	d.has(t, doctor.OK, "destination", "s3", "list, put, read, check and delete work")
	empty := func(except int) {
		entries, err := os.ReadDir(s3.Folder(bucket))
		require.NoError(t, err)
		n := 0
		for _, f := range entries {
			if f.Name() == "prod" {
				n += len(files(t, filepath.Join(s3.Folder(bucket), "prod")))
			}
		}
		require.Equal(t, except, n, "probes are left")
	}
	empty(0)
	for method, c := range map[string]struct {
		path  string
		parts []string
		left  int
	}{
		http.MethodPut:    {"doctor-probe", []string{"put failed (list, read, delete worked)", "s3:PutObject"}, 0},
		http.MethodDelete: {"doctor-probe", []string{"delete failed (list, put, read, check worked)", "s3:DeleteObject", "Remove s3://", "by hand", "Retention needs"}, 1},
	} {
		proxy.Add(emulator.Rule{Method: method, Path: c.path, Status: http.StatusForbidden})
		d = s.doctor(t)
		require.Equal(t, 1, d.code)
		d.has(t, doctor.Fail, "destination", append(c.parts, "destination s3:")...)
		d.has(t, doctor.OK, "destination", "node")
		require.NotContains(t, d.stderr, s3.SecretKey)
		proxy.Clear()
		empty(c.left)
		require.NoError(t, os.RemoveAll(filepath.Join(s3.Folder(bucket), "prod")))
	}
	proxy.Add(emulator.Rule{Method: http.MethodGet, Query: "list-type=2", Status: http.StatusForbidden})
	s.doctor(t).has(t, doctor.Fail, "destination", "list failed", "s3:ListBucket")
	s.destination(1)["required"] = false
	d = s.doctor(t)
	d.has(t, doctor.Warn, "destination", "list failed")
	require.Zero(t, d.code)
	proxy.Clear()

	s.destination(1)["s3"].(map[string]any)["auth"] = map[string]any{"method": "static", "credentialsDir": filepath.Join(s.dir, "nowhere")}
	s.destination(1)["required"] = true
	d = s.doctor(t)
	d.has(t, doctor.Fail, "destination", "access-key-id")
	d.has(t, doctor.Fail, "file", "credentialsDir", "no such file")
	require.Equal(t, 2, d.code)
}

// TestDoctorOwner: another cluster's folder is told, and left alone.
func TestDoctorOwner(t *testing.T) {
	c := etcdtest.Start(t, etcdtest.Options{})
	s := newSite(t, c.Endpoints(), "node")
	s.spec()["clusterUID"] = "ours"
	folder := filepath.Join(s.stores["node"], "prod")
	require.NoError(t, os.MkdirAll(folder, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "cluster.json"), []byte(`{"clusterName":"prod","clusterUID":"theirs"}`), 0o600))
	d := s.doctor(t)
	require.Equal(t, 2, d.code)
	d.has(t, doctor.Fail, "owner", "node", "belongs to the cluster with UID theirs")
	require.Empty(t, files(t, folder))
}

// TestDoctorSpool: a spool that is too small for the database.
func TestDoctorSpool(t *testing.T) {
	c := filled(t, etcdtest.Options{}, 8<<20)
	s := newSite(t, c.Endpoints(), "node")
	client, err := c.Client(0)
	require.NoError(t, err)
	defer client.Close()
	require.Eventually(t, func() bool { // etcd tells the size once it has committed
		status, err := client.Status(t.Context(), c.Endpoints()[0])
		return err == nil && status.DbSize > 6<<20
	}, time.Minute, 50*time.Millisecond)
	s.spool = tmpfs(t, "256k")
	s.doctor(t).has(t, doctor.Fail, "spool", "and the database has", "sizeLimit")
	s.spool = tmpfs(t, "4m")
	s.doctor(t).has(t, doctor.Warn, "spool", "shrinks to that")
	s.spec()["compression"] = map[string]any{"algorithm": "none"}
	d := s.doctor(t)
	require.Equal(t, 1, d.code)
	d.has(t, doctor.Fail, "spool", "and the database has")
	s.spool = t.TempDir()
	s.doctor(t, "--spool-limit", "1Mi").has(t, doctor.Fail, "spool", "1.0 MiB allowed")
}

// TestDoctorInCluster takes away what RBAC grants, and the CRDs.
func TestDoctorInCluster(t *testing.T) {
	a := newAPIServer(t)
	args := []string{"--spool-dir", a.site.spool, "-o", "json"}
	d := diagnosed(t, a.agent("doctor", args...))
	require.Zero(t, d.code, d.stderr)
	d.has(t, doctor.OK, "api-server", "Kubernetes v1.")
	d.has(t, doctor.OK, "clock", "api-server", "agrees")
	d.has(t, doctor.OK, "crds", "take the policy")
	d.has(t, doctor.OK, "rbac", "all 13 rights")
	a.site.nothingVisible(t)

	account, err := a.ServiceAccount(t.Context(), "kube-system", "weak")
	require.NoError(t, err)
	client, err := kubernetes.NewForConfig(a.Admin())
	require.NoError(t, err)
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "weak", Namespace: "kube-system"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"etcdsnapshot.dev"}, Resources: []string{"etcdsnapshotpolicies"}, Verbs: []string{"get"}},
		{APIGroups: []string{"etcdsnapshot.dev"}, Resources: []string{"etcdsnapshots"}, Verbs: []string{"get", "list", "create", "patch"}},
	}}
	_, err = client.RbacV1().Roles("kube-system").Create(t.Context(), role, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = client.RbacV1().RoleBindings("kube-system").Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "weak", Namespace: "kube-system"},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "weak"}, Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: "weak", Namespace: "kube-system"}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	admin := a.kubeconfig
	a.kubeconfig = filepath.Join(t.TempDir(), "weak")
	require.NoError(t, kubetest.WriteKubeconfig(a.kubeconfig, account, "kube-system"))
	require.Eventually(t, func() bool { // RBAC takes a moment
		d = diagnosed(t, a.agent("doctor", args...))
		return strings.Contains(d.stderr, "missing: patch etcdsnapshotpolicies.etcdsnapshot.dev etcd in kube-system; create etcdsnapshotpolicies.etcdsnapshot.dev in kube-system; ")
	}, time.Minute, 200*time.Millisecond)
	require.Equal(t, 2, d.code)
	d.has(t, doctor.Fail, "rbac", "delete etcdsnapshots.etcdsnapshot.dev in kube-system", "patch etcdsnapshots.etcdsnapshot.dev/status", "create events in kube-system", "get namespaces kube-system", "as the chart does")
	d.has(t, doctor.OK, "crds", "may not be tried")
	a.kubeconfig = admin

	manifest := filepath.Join(t.TempDir(), "policy.json")
	a.site.spec()["clusterName"] = "prod"
	a.site.policy["metadata"] = map[string]any{"name": "etcd", "namespace": "kube-system"}
	require.NoError(t, os.Rename(a.site.file(t), manifest))
	a.note()
	a.kubectl("delete", "crd", "etcdsnapshotpolicies.etcdsnapshot.dev")
	d = diagnosed(t, a.agent("doctor", append(args, "--policy-manifest", manifest)...))
	d.has(t, doctor.Fail, "crds", "not installed", "crds.enabled")
	d.has(t, doctor.OK, "etcd")
	require.Equal(t, 2, d.code)
	require.NoError(t, a.Kill())
	d = diagnosed(t, a.agent("doctor", append(args, "--policy-manifest", manifest)...))
	d.has(t, doctor.Fail, "policy", "--policy-file")
	d.has(t, doctor.Fail, "api-server", "connection refused")
	d.has(t, doctor.OK, "etcd")
	d.has(t, doctor.OK, "destination")
	require.Equal(t, 1, d.code)
}

// TestFailedRunIsDiagnosed: a run that fails tells the reason that the doctor found, with the exit code that it has anyway.
func TestFailedRunIsDiagnosed(t *testing.T) {
	s, c := secured(t, etcdtest.Options{})
	last := filepath.Join(s.dir, "termination-log")
	fails := func(code int, word string, logged ...string) {
		t.Helper()
		require.NoError(t, os.WriteFile(last, nil, 0o600))
		o := s.snapshot(t, "--termination-log", last)
		require.Equal(t, code, o.code)
		requireContains(t, o.stderr, append(logged, "diagnosis")...)
		text, err := os.ReadFile(last)
		require.NoError(t, err)
		requireContains(t, string(text), "exit code", "\ndiagnosis: ", word, " → ")
	}
	s.etcd()["certFile"], s.etcd()["keyFile"] = c.Certs.ExpiredClientCertFile, c.Certs.ExpiredClientKeyFile
	fails(1, "root expired on", "certs renew")
	s.etcd()["keyFile"] = filepath.Join(s.dir, "nowhere.key")
	fails(2, "spec.etcd.keyFile: there is no such file")
	s.etcd()["certFile"], s.etcd()["keyFile"] = c.Certs.ClientCertFile, c.Certs.ClientKeyFile
	readOnlyDir := tmpfs(t, "1m")
	s.destination(0)["hostPath"] = map[string]any{"path": readOnlyDir}
	readOnly(t, readOnlyDir)
	fails(1, "destination node: put failed")
}

// TestSnapshotIndex: of several runs at the same time only the first one stores where one copy is enough.
func TestSnapshotIndex(t *testing.T) {
	c := filled(t, etcdtest.Options{}, 1<<20)
	s := newSite(t, c.Endpoints(), "node")
	s.add(map[string]any{"name": "s3", "s3": map[string]any{"bucket": "nowhere", "endpoint": "http://127.0.0.1:1"}})
	require.Zero(t, s.snapshot(t, "--index", "1").code)
	require.Len(t, s.listed(t, "node"), 1)
	s.spec()["destinations"] = s.spec()["destinations"].([]any)[1:]
	o := s.snapshot(t, "--index", "2")
	require.Equal(t, 2, o.code)
	require.Contains(t, o.stderr, "none is a folder on a node")
}

// TestDoctorMetrics: where metrics go is looked at, nothing is left there, and trouble with it is a warning.
func TestDoctorMetrics(t *testing.T) {
	s, _ := secured(t, etcdtest.Options{})
	folder := t.TempDir()
	var pushed atomic.Int32
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.URL.Path != "/base/-/ready" {
			pushed.Add(1)
		}
	}))
	defer gateway.Close()
	s.spec()["metrics"] = map[string]any{
		"textfile":    map[string]any{"directory": folder},
		"pushgateway": map[string]any{"url": gateway.URL + "/base/"},
		"otlp":        map[string]any{"url": gateway.URL + "/v1/metrics", "caBundleFile": "/nowhere/ca.crt"},
	}
	d := s.doctor(t)
	require.Zero(t, d.code, d.stderr)
	d.has(t, doctor.OK, "metrics", "textfile", folder, "can be written")
	d.has(t, doctor.OK, "metrics", "pushgateway", gateway.URL, "is ready")
	d.has(t, doctor.Warn, "metrics", "otlp", "spec.metrics.otlp: ", "caBundleFile: open /nowhere/ca.crt")
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Empty(t, entries)
	require.Zero(t, pushed.Load())

	require.NoError(t, os.Remove(folder))
	gateway.Close()
	d = s.doctor(t)
	require.Zero(t, d.code, d.stderr)
	d.has(t, doctor.Warn, "metrics", "textfile", "spec.metrics.textfile: ", "no such file or directory", "--collector.textfile.directory")
	d.has(t, doctor.Warn, "metrics", "pushgateway", "spec.metrics.pushgateway: ", "connection refused")
}
