package charts

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

// The policy says what the values say, with the files of Secrets and ConfigMaps in place of them.
func TestMetrics(t *testing.T) {
	t.Parallel()
	require.Nil(t, render(t, rendering{}).policy(t).Spec.Metrics)
	require.Nil(t, render(t, rendering{set: []string{"monitoring.metrics.cluster=prod-eu", "nodes=all", "nodeCount=3"}}).policy(t).Spec.Metrics, "nowhere to hand them over to")
	o := render(t, rendering{values: scenarios(t)["everything"]})
	require.Equal(t, &v1.MetricsSpec{
		Cluster:     "prod-us",
		Textfile:    &v1.MetricsTextfile{Directory: "/var/lib/node_exporter/textfile_collector"},
		Pushgateway: &v1.MetricsEndpoint{URL: "http://pushgateway.monitoring.svc:9091"},
		OTLP: &v1.MetricsEndpoint{URL: "https://otel-collector.monitoring.svc:4318/v1/metrics", CredentialsDir: "/etc/etcd-snapshot/metrics/otlp",
			EndpointSpec: v1.EndpointSpec{CABundleFile: "/etc/etcd-snapshot/metrics-ca/otlp/ca.crt"}},
		PerNode: o.onEveryNode(t),
	}, o.policy(t).Spec.Metrics)
	require.True(t, render(t, rendering{set: []string{"monitoring.metrics.textfile.directory=/m", "nodes=all", "nodeCount=3"}}).policy(t).Spec.Metrics.PerNode)
}

// onEveryNode says that each run has one pod for each node.
func (o *objects) onEveryNode(t testing.TB) bool {
	return o.cronJob(t).Spec.JobTemplate.Spec.Completions != nil
}

// Every pod that hands metrics over has the files for it, and starts without them: no metric is worth a snapshot.
func TestMetricsAreMountedAndOptional(t *testing.T) {
	t.Parallel()
	o := render(t, rendering{values: scenarios(t)["everything"]})
	for _, component := range []string{"snapshot", "verification"} {
		pod := o.only(t, component).Spec.JobTemplate.Spec.Template.Spec
		mounts, volumes := map[string]corev1.VolumeMount{}, map[string]corev1.Volume{}
		for _, m := range pod.Containers[0].VolumeMounts {
			mounts[m.Name] = m
		}
		for _, v := range pod.Volumes {
			volumes[v.Name] = v
		}
		require.Equal(t, corev1.VolumeMount{Name: "metrics-textfile", MountPath: "/var/lib/node_exporter/textfile_collector"}, mounts["metrics-textfile"])
		require.Equal(t, "/var/lib/node_exporter/textfile_collector", volumes["metrics-textfile"].HostPath.Path)
		require.Equal(t, corev1.HostPathDirectoryOrCreate, *volumes["metrics-textfile"].HostPath.Type)
		require.True(t, mounts["metrics-otlp"].ReadOnly)
		require.Equal(t, "otel-credentials", volumes["metrics-otlp"].Secret.SecretName)
		require.Equal(t, int32(0o400), *volumes["metrics-otlp"].Secret.DefaultMode)
		require.True(t, *volumes["metrics-otlp"].Secret.Optional)
		require.True(t, mounts["metrics-ca-otlp"].ReadOnly)
		require.Equal(t, "otel-ca", volumes["metrics-ca-otlp"].ConfigMap.Name)
		require.True(t, *volumes["metrics-ca-otlp"].ConfigMap.Optional)
		require.NotContains(t, volumes, "metrics-pushgateway")
	}
}

// The folder that node-exporter reads is the kubelet's to make, which makes it for root: the pods that write there are
// root's and on the nodes, also where all destinations are buckets.
func TestMetricsTextfileNeedsTheNode(t *testing.T) {
	t.Parallel()
	const values = "destinations: {node: null, offsite: {gcs: {bucket: backups}}}\nverification: {schedule: '@daily'}\n"
	for textfile, root := range map[string]bool{"": false, "monitoring: {metrics: {textfile: {directory: /m}}}\n": true} {
		pod := render(t, rendering{values: values + textfile}).only(t, "verification").Spec.JobTemplate.Spec.Template.Spec
		require.Equal(t, root, *pod.SecurityContext.RunAsUser == 0)
		require.Equal(t, root, len(pod.NodeSelector) > 0)
	}
}

// Certificates given in the values themselves are in our ConfigMap.
func TestMetricsCABundles(t *testing.T) {
	t.Parallel()
	o := render(t, rendering{values: `monitoring: {metrics: {otlp: {url: "https://otel:4318/v1/metrics", caBundle: {inline: "-----BEGIN CERTIFICATE-----\nx"}}}}`})
	require.Equal(t, map[string]string{"metrics.otlp.crt": "-----BEGIN CERTIFICATE-----\nx"}, o.configMap(t, "ca").Data)
	require.Equal(t, []corev1.KeyToPath{{Key: "metrics.otlp.crt", Path: "ca.crt"}}, o.volume(t, "metrics-ca-otlp").ConfigMap.Items)
}
