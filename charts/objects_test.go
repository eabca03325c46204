package charts

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
)

// What the agent may do, and nothing more.
func TestAccess(t *testing.T) {
	t.Parallel()
	o := render(t, rendering{release: "etcd", namespace: "backup"})
	const name = "etcd-etcd-snapshot"
	require.Len(t, o.roles, 1)
	require.Equal(t, []rbacv1.PolicyRule{
		{APIGroups: []string{"etcdsnapshot.dev"}, Resources: []string{"etcdsnapshotpolicies"}, ResourceNames: []string{name}, Verbs: []string{"get", "patch"}},
		{APIGroups: []string{"etcdsnapshot.dev"}, Resources: []string{"etcdsnapshotpolicies"}, Verbs: []string{"create"}},
		{APIGroups: []string{"etcdsnapshot.dev"}, Resources: []string{"etcdsnapshotpolicies/status"}, ResourceNames: []string{name}, Verbs: []string{"patch"}},
		{APIGroups: []string{"etcdsnapshot.dev"}, Resources: []string{"etcdsnapshots"}, Verbs: []string{"get", "list", "create", "patch", "delete"}},
		{APIGroups: []string{"etcdsnapshot.dev"}, Resources: []string{"etcdsnapshots/status"}, Verbs: []string{"patch"}},
		{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
	}, o.roles[0].Rules)
	require.Equal(t, o.policy(t).Name, o.roles[0].Rules[0].ResourceNames[0])
	require.Len(t, o.clusterRoles, 1)
	require.Equal(t, []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"namespaces"}, ResourceNames: []string{"kube-system"}, Verbs: []string{"get"}},
	}, o.clusterRoles[0].Rules)

	subject := rbacv1.Subject{Kind: "ServiceAccount", Name: name, Namespace: "backup"}
	require.Equal(t, []rbacv1.Subject{subject}, o.roleBindings[0].Subjects)
	require.Equal(t, rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: o.roles[0].Name}, o.roleBindings[0].RoleRef)
	require.Equal(t, []rbacv1.Subject{subject}, o.clusterRoleBindings[0].Subjects)
	require.Equal(t, rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: o.clusterRoles[0].Name}, o.clusterRoleBindings[0].RoleRef)
	require.Equal(t, name, o.serviceAccounts[0].Name)
	require.Equal(t, name, o.pod(t).ServiceAccountName)
	for _, x := range o.all() {
		if x != o.clusterRoles[0] && x != o.clusterRoleBindings[0] && x.GetNamespace() == "" {
			require.Contains(t, x.GetName(), ".etcdsnapshot.dev", "%s has no namespace", x.GetName())
		}
	}
}

func TestAccessThatIsNotNeeded(t *testing.T) {
	t.Parallel()
	o := render(t, rendering{set: []string{"clusterUID=abc"}})
	require.Empty(t, o.clusterRoles, "a given UID need not be read")
	require.Empty(t, o.clusterRoleBindings)
	o = render(t, rendering{set: []string{"rbac.create=false", "serviceAccount.create=false", "serviceAccount.name=mine"}})
	require.Empty(t, o.roles)
	require.Empty(t, o.roleBindings)
	require.Empty(t, o.clusterRoles)
	require.Empty(t, o.serviceAccounts)
	require.Equal(t, "mine", o.pod(t).ServiceAccountName)
	o = render(t, rendering{set: []string{"serviceAccount.create=false"}})
	require.Equal(t, "default", o.pod(t).ServiceAccountName)
	require.Equal(t, "default", o.roleBindings[0].Subjects[0].Name)
}

func TestCRDs(t *testing.T) {
	t.Parallel()
	o := render(t, rendering{})
	require.Len(t, o.crds, 2)
	for _, crd := range o.crds {
		require.Equal(t, "keep", crd.Annotations["helm.sh/resource-policy"])
		require.Equal(t, "etcdsnapshot.dev", crd.Spec.Group)
	}
	o = render(t, rendering{set: []string{"crds.keep=false"}})
	require.Empty(t, o.crds[0].Annotations)
	require.Empty(t, render(t, rendering{set: []string{"crds.enabled=false"}}).crds)
}

// Two releases share nothing but the CRDs, whatever their names and namespaces are.
func TestReleasesStayApart(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("long-release-name-", 3)[:53]
	for _, pair := range [][2]rendering{
		{{release: "etcd-snapshot"}, {release: "etcd-snapshot-events"}},
		{{release: "etcd-snapshot", namespace: "a"}, {release: "etcd-snapshot", namespace: "b"}},
		{{release: long[:52] + "a"}, {release: long[:52] + "b"}},
		{{release: "a", namespace: "etcd-snapshot-b"}, {release: "a-etcd-snapshot", namespace: "b"}},
		{{set: []string{"fullnameOverride=" + strings.Repeat("x", 62) + "a"}}, {set: []string{"fullnameOverride=" + strings.Repeat("x", 62) + "b"}}},
	} {
		seen := map[string]bool{}
		for i, r := range pair {
			r.set = append(r.set, "runOnInstall=true", "crds.enabled=false", "distribution=openshift", "destinations.offsite.s3.bucket=abc",
				"destinations.offsite.s3.caBundle.inline=-----BEGIN CERTIFICATE-----")
			o := render(t, r)
			require.Len(t, o.configMaps, 2)
			for _, doc := range documents(o.manifest) {
				v := plain(t, doc)
				meta := v["metadata"].(map[string]any)
				key := strings.Join([]string{v["kind"].(string), str(meta["namespace"]), str(meta["name"])}, " ")
				require.False(t, seen[key], "release %d of %v: %s is in both", i, pair, key)
				seen[key] = true
			}
		}
	}
}

func str(v any) string { s, _ := v.(string); return s }

func TestNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		r                      rendering
		cronJob, policy, other string
	}{
		{rendering{}, "etcd-snapshot", "etcd-snapshot", "etcd-snapshot"},
		{rendering{release: "events"}, "events-etcd-snapshot", "events-etcd-snapshot", "events-etcd-snapshot"},
		{rendering{release: "events", set: []string{"nameOverride=db"}}, "events-db", "events-db", "events-db"},
		{rendering{release: "a.b"}, "a-b-etcd-snapshot", "a-b-etcd-snapshot", "a-b-etcd-snapshot"},
		{rendering{set: []string{"fullnameOverride=" + strings.Repeat("a", 52)}}, strings.Repeat("a", 52), strings.Repeat("a", 31) + "-", strings.Repeat("a", 52)},
		{rendering{set: []string{"fullnameOverride=" + strings.Repeat("a", 53)}}, strings.Repeat("a", 43) + "-", strings.Repeat("a", 31) + "-", strings.Repeat("a", 53)},
		{rendering{set: []string{"fullnameOverride=" + strings.Repeat("a", 63)}}, strings.Repeat("a", 43) + "-", strings.Repeat("a", 31) + "-", strings.Repeat("a", 63)},
	} {
		o := render(t, c.r)
		require.True(t, strings.HasPrefix(o.cronJob(t).Name, c.cronJob), o.cronJob(t).Name)
		require.True(t, strings.HasPrefix(o.policy(t).Name, c.policy), o.policy(t).Name)
		require.Equal(t, c.other, o.serviceAccounts[0].Name)
	}
	o := render(t, rendering{set: []string{"runOnInstall=true", "fullnameOverride=" + strings.Repeat("a", 63)}})
	require.True(t, strings.HasSuffix(o.jobsOf("snapshot")[0].Name, "-install"), "the suffix is cut off")
}

func TestPolicyByDefault(t *testing.T) {
	t.Parallel()
	p := render(t, rendering{}).policy(t)
	require.Equal(t, "kube-system", p.Namespace)
	require.NotContains(t, p.Annotations, "helm.sh/hook")
	require.Empty(t, p.Spec.ClusterName)
	require.Equal(t, []string{"https://127.0.0.1:2379"}, p.Spec.Etcd.Endpoints)
	require.Equal(t, "zstd", p.Spec.Compression.Algorithm)
	require.Equal(t, "checksum", p.Spec.Verification.AfterStore)
	require.Nil(t, p.Spec.Encryption)
	require.Len(t, p.Spec.Destinations, 1)
	require.Equal(t, "/var/lib/etcd-snapshots", p.Spec.Destinations[0].HostPath.Path)
	require.EqualValues(t, 28, p.Spec.Destinations[0].Retention.Last)
	require.True(t, p.Spec.Destinations[0].IsRequired())
}

func TestDestinationsAreSortedAndRemovable(t *testing.T) {
	t.Parallel()
	o := render(t, rendering{values: `
destinations:
  zone-b: {gcs: {bucket: bbb}}
  node: null
  away: null
  a: {s3: {bucket: aaa}, required: false}
`})
	spec := o.policy(t).Spec
	require.Len(t, spec.Destinations, 2)
	require.Equal(t, []string{"a", "zone-b"}, []string{spec.Destinations[0].Name, spec.Destinations[1].Name})
	require.False(t, spec.Destinations[0].IsRequired())
	for _, v := range o.pod(t).Volumes {
		require.NotContains(t, v.Name, "destination-")
	}
}

func TestSetReachesIntoDestinations(t *testing.T) {
	t.Parallel()
	o := render(t, rendering{set: []string{"destinations.offsite.gcs.bucket=backups", "destinations.node.retention.last=7"}})
	d := o.policy(t).Spec.Destinations
	require.EqualValues(t, 7, d[0].Retention.Last)
	require.Equal(t, "backups", d[1].GCS.Bucket)
}

func TestStores(t *testing.T) {
	t.Parallel()
	o := render(t, rendering{values: scenarios(t)["s3"]})
	byName := map[string]int{}
	for i, d := range o.policy(t).Spec.Destinations {
		byName[d.Name] = i
	}
	minio := o.policy(t).Spec.Destinations[byName["minio"]].S3
	require.Equal(t, "/etc/etcd-snapshot/credentials/minio", minio.Auth.CredentialsDir)
	require.Equal(t, "minio-keys", o.volume(t, "credentials-minio").Secret.SecretName)
	require.Equal(t, new(int32(0o400)), o.volume(t, "credentials-minio").Secret.DefaultMode)
	require.Equal(t, "/etc/etcd-snapshot/ca/minio/ca.crt", minio.CABundleFile)
	require.Equal(t, "minio-ca", o.volume(t, "ca-minio").ConfigMap.Name)
	require.Equal(t, "/etc/etcd-snapshot/sse-c/minio", minio.ServerSideEncryption.KeyDir)
	require.Equal(t, "minio-sse", o.volume(t, "sse-c-minio").Secret.SecretName)
	require.Equal(t, new(int32(0o400)), o.volume(t, "sse-c-minio").Secret.DefaultMode)
	for _, name := range []string{"credentials-minio", "sse-c-minio", "ca-minio", "ca-ceph"} {
		require.True(t, o.mount(t, name).ReadOnly, name)
	}
	ca := o.configMap(t, "-ca")
	require.Equal(t, ca.Name, o.volume(t, "ca-ceph").ConfigMap.Name)
	require.Contains(t, ca.Data[o.volume(t, "ca-ceph").ConfigMap.Items[0].Key], "BEGIN CERTIFICATE")
	aws := o.policy(t).Spec.Destinations[byName["aws"]].S3
	require.Empty(t, aws.Auth.CredentialsDir)
	require.Equal(t, "arn:aws:iam::111122223333:role/etcd-snapshot", o.serviceAccounts[0].Annotations["eks.amazonaws.com/role-arn"])

	o = render(t, rendering{values: scenarios(t)["gcs"]})
	require.Equal(t, "/etc/etcd-snapshot/credentials/key/key.json", o.policy(t).Spec.Destinations[0].GCS.Auth.CredentialsFile)
	require.Equal(t, "gcs-key", o.volume(t, "credentials-key").Secret.SecretName)
	require.Equal(t, filepath.Dir(o.policy(t).Spec.Destinations[0].GCS.Auth.CredentialsFile), o.mount(t, "credentials-key").MountPath)

	o = render(t, rendering{values: scenarios(t)["azure"]})
	require.Equal(t, "true", o.cronJob(t).Spec.JobTemplate.Spec.Template.Labels["azure.workload.identity/use"])
	require.NotContains(t, render(t, rendering{}).cronJob(t).Spec.JobTemplate.Spec.Template.Labels, "azure.workload.identity/use")
	require.Equal(t, "/etc/etcd-snapshot/credentials/government", o.policy(t).Spec.Destinations[0].Azure.Auth.CredentialsDir)
}

func TestCABundleOfASecret(t *testing.T) {
	t.Parallel()
	o := render(t, rendering{values: "destinations: {x: {gcs: {bucket: abc, endpoint: 'https://gcs.example', caBundle: {existingSecret: {name: s, key: root.pem}}}}}"})
	secret := o.volume(t, "ca-x").Secret
	require.Equal(t, []string{"s", "root.pem", "ca.crt"}, []string{secret.SecretName, secret.Items[0].Key, secret.Items[0].Path})
	require.Len(t, o.configMaps, 1, "nothing is inline")
}

func TestNotes(t *testing.T) {
	t.Parallel()
	all := scenarios(t)
	notes := func(r rendering) string { return render(t, r).release.Info.Notes }
	byDefault := notes(rendering{})
	for _, part := range []string{
		"https://127.0.0.1:2379", "0 */6 * * *", "on one control-plane node", "/var/lib/etcd-snapshots", "keeps last 28",
		"kubectl create job -n kube-system --from=cronjob/etcd-snapshot etcd-snapshot-now", "kubectl get esp,esnap -n kube-system",
		"WARNING: All copies lie on the disks of the cluster itself.", "WARNING: Snapshots are not encrypted", "NOTE: The cluster's folder is named by a UID.",
	} {
		require.Contains(t, byDefault, part)
	}
	require.NotContains(t, notes(rendering{values: all["production"]}), "WARNING")
	require.NotContains(t, notes(rendering{values: all["production"]}), "NOTE")
	require.Contains(t, notes(rendering{set: []string{"suspend=true"}}), "WARNING: suspend is set")
	require.Contains(t, notes(rendering{set: []string{"nodes=all", "nodeCount=3"}}), "on each of 3 control-plane nodes")
	require.Contains(t, notes(rendering{values: "destinations: {x: {gcs: {bucket: abc, prefix: /e/}}}"}), "gs://abc/e, keeps everything")
	require.Contains(t, notes(rendering{values: "destinations: {x: {gcs: {bucket: abc}}}"}), "kept for ever: destinations x.")
	require.Contains(t, notes(rendering{values: "distribution: external\netcd: {endpoints: ['http://a:2379']}"}), "WARNING: Nothing says which node")
}
