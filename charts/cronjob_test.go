package charts

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/robfig/cron/v3"
	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestCronJobByDefault(t *testing.T) {
	t.Parallel()
	o := render(t, rendering{})
	c := o.cronJob(t)
	require.Equal(t, "etcd-snapshot", c.Name)
	require.Equal(t, "kube-system", c.Namespace)
	require.Equal(t, "0 */6 * * *", c.Spec.Schedule)
	require.Nil(t, c.Spec.TimeZone)
	require.Equal(t, new(false), c.Spec.Suspend)
	require.Equal(t, batchv1.ForbidConcurrent, c.Spec.ConcurrencyPolicy)
	require.Equal(t, new(int64(3600)), c.Spec.StartingDeadlineSeconds)
	require.Equal(t, new(int32(3)), c.Spec.SuccessfulJobsHistoryLimit)
	require.Equal(t, new(int32(3)), c.Spec.FailedJobsHistoryLimit)

	job := c.Spec.JobTemplate.Spec
	require.Equal(t, new(int64(10800)), job.ActiveDeadlineSeconds)
	require.Equal(t, new(int32(3)), job.BackoffLimit)
	require.Nil(t, job.TTLSecondsAfterFinished)
	require.Nil(t, job.CompletionMode)
	require.Equal(t, []batchv1.PodFailurePolicyRule{
		{Action: batchv1.PodFailurePolicyActionFailJob, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{
			ContainerName: new("agent"), Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{2},
		}},
		{Action: batchv1.PodFailurePolicyActionIgnore, OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{
			{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue},
		}},
	}, job.PodFailurePolicy.Rules)

	pod := o.pod(t)
	require.Equal(t, corev1.RestartPolicyNever, pod.RestartPolicy, "podFailurePolicy needs it")
	require.Equal(t, "system-cluster-critical", pod.PriorityClassName)
	require.Equal(t, new(int64(60)), pod.TerminationGracePeriodSeconds)
	require.True(t, pod.HostNetwork)
	require.Equal(t, corev1.DNSClusterFirstWithHostNet, pod.DNSPolicy)
	require.Equal(t, map[string]string{"node-role.kubernetes.io/control-plane": ""}, pod.NodeSelector)
	require.Equal(t, new(true), pod.AutomountServiceAccountToken)
	require.Equal(t, "etcd-snapshot", pod.ServiceAccountName)
	require.Nil(t, pod.Affinity)
	for _, taint := range []corev1.Taint{
		{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule},
		{Key: "node-role.kubernetes.io/master", Effect: corev1.TaintEffectNoSchedule},
		{Key: "node-role.kubernetes.io/etcd", Value: "true", Effect: corev1.TaintEffectNoExecute},
		{Key: "CriticalAddonsOnly", Value: "true", Effect: corev1.TaintEffectNoExecute},
	} {
		require.True(t, tolerates(pod, taint), "taint %s keeps the pod away", taint.Key)
	}
	require.False(t, tolerates(pod, corev1.Taint{Key: "node.kubernetes.io/unschedulable", Effect: corev1.TaintEffectNoSchedule}),
		"a node that is drained would get the pod again and again")

	agent := o.agent(t)
	require.Equal(t, "agent", agent.Name)
	require.Equal(t, "etcdsnapshot.dev/etcd-snapshot-agent:"+loadChart(t).Metadata.AppVersion, agent.Image)
	require.Equal(t, []string{"snapshot", "--policy=etcd-snapshot", "--namespace=$(POD_NAMESPACE)", "--policy-manifest=/etc/etcd-snapshot/policy/policy.yaml", "--schedule=0 */6 * * *", "--spool-dir=/spool"}, agent.Args)
	require.Empty(t, agent.Command, "the image's entrypoint is the agent")
	for name, field := range map[string]string{"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace", "NODE_NAME": "spec.nodeName"} {
		require.Equal(t, field, o.env(t, name).ValueFrom.FieldRef.FieldPath)
	}
	require.Equal(t, o.configMap(t, "-policy").Name, o.volume(t, "policy").ConfigMap.Name)
	require.Equal(t, "/etc/etcd-snapshot/policy", o.mount(t, "policy").MountPath)
	require.Equal(t, "10Gi", o.volume(t, "spool").EmptyDir.SizeLimit.String())
	require.Equal(t, corev1.StorageMediumDefault, o.volume(t, "spool").EmptyDir.Medium)
	require.Equal(t, corev1.TerminationMessageFallbackToLogsOnError, agent.TerminationMessagePolicy)
}

func TestSecurityByDefault(t *testing.T) {
	t.Parallel()
	o := render(t, rendering{})
	require.Equal(t, new(int64(0)), o.pod(t).SecurityContext.RunAsUser)
	require.Equal(t, corev1.SeccompProfileTypeRuntimeDefault, o.pod(t).SecurityContext.SeccompProfile.Type)
	require.Equal(t, &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false),
		ReadOnlyRootFilesystem:   new(true),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}, o.agent(t).SecurityContext)
	for _, name := range []string{"etcd-ca-file", "etcd-cert-file", "etcd-key-file"} {
		volume, mount := o.volume(t, name), o.mount(t, name)
		require.Equal(t, corev1.HostPathFile, *volume.HostPath.Type)
		require.Equal(t, volume.HostPath.Path, mount.MountPath, "one policy is true in the pod and on the node")
		require.True(t, mount.ReadOnly)
	}
	require.Equal(t, corev1.HostPathDirectoryOrCreate, *o.volume(t, "destination-node").HostPath.Type)
	require.Equal(t, o.volume(t, "destination-node").HostPath.Path, o.mount(t, "destination-node").MountPath)
}

func TestContextsAreAddedTo(t *testing.T) {
	t.Parallel()
	o := render(t, rendering{values: `
securityContext: {seLinuxOptions: {type: spc_t}, readOnlyRootFilesystem: false}
podSecurityContext: {runAsUser: 1000, fsGroup: 1000}
`})
	require.Equal(t, "spc_t", o.agent(t).SecurityContext.SELinuxOptions.Type)
	require.Equal(t, new(false), o.agent(t).SecurityContext.ReadOnlyRootFilesystem)
	require.Equal(t, new(false), o.agent(t).SecurityContext.AllowPrivilegeEscalation)
	pod := o.pod(t).SecurityContext
	require.Equal(t, []*int64{new(int64(1000)), new(int64(1000))}, []*int64{pod.RunAsUser, pod.FSGroup})
	require.Equal(t, new(true), pod.RunAsNonRoot)
	require.NotNil(t, pod.SeccompProfile)
}

// tolerates says whether the pod's tolerations let it stay on a node with the taint.
func tolerates(pod *corev1.PodSpec, taint corev1.Taint) bool {
	for _, tol := range pod.Tolerations {
		if (tol.Key == "" || tol.Key == taint.Key) && (tol.Effect == "" || tol.Effect == taint.Effect) &&
			(tol.Operator == corev1.TolerationOpExists || tol.Value == taint.Value) {
			return true
		}
	}
	return false
}

// What helm upgrade --set schedule=... touches: the CronJob's schedule, and the argument that passes it on.
func TestAnotherScheduleChangesNothingElse(t *testing.T) {
	t.Parallel()
	for _, values := range []string{scenarios(t)["default"], scenarios(t)["everything"]} {
		before := render(t, rendering{values: values})
		after := render(t, rendering{values: values, set: []string{"schedule=15 3 * * *"}, upgrade: true})
		old, changed := documents(before.release.Manifest), documents(after.release.Manifest)
		require.Len(t, changed, len(old))
		differ := 0
		for i := range old {
			a, b := plain(t, old[i]), plain(t, changed[i])
			if a["kind"] != "CronJob" || strings.HasSuffix(a["metadata"].(map[string]any)["name"].(string), "-verify") {
				require.Equal(t, a, b)
				continue
			}
			differ++
			require.NotEqual(t, a, b)
			spec := b["spec"].(map[string]any)
			require.Equal(t, "15 3 * * *", spec["schedule"])
			spec["schedule"] = before.cronJob(t).Spec.Schedule
			args := containerOf(spec)["args"].([]any)
			n := 0
			for j, arg := range args {
				if strings.HasPrefix(arg.(string), "--schedule=") {
					args[j] = "--schedule=" + before.cronJob(t).Spec.Schedule
					n++
				}
			}
			require.Equal(t, 1, n)
			require.Equal(t, a, b)
		}
		require.Equal(t, 1, differ)
	}
}

func containerOf(cronJobSpec map[string]any) map[string]any {
	at := cronJobSpec
	for _, key := range []string{"jobTemplate", "spec", "template", "spec"} {
		at = at[key].(map[string]any)
	}
	return at["containers"].([]any)[0].(map[string]any)
}

// The minute in the place of H follows from the cluster's name and what runs, and spreads a fleet over the hour.
func TestMinuteOfTheCluster(t *testing.T) {
	t.Parallel()
	const values = "schedule: H */6 * * mon-fri\nverification: {schedule: 'h 3 * * *'}\nclusterName: "
	minutes := map[string]int{}
	apart := 0
	for i := range 60 {
		r := rendering{values: values + fmt.Sprintf("prod-%d", i)}
		o := render(t, r)
		minute, rest, _ := strings.Cut(o.cronJob(t).Spec.Schedule, " ")
		require.Equal(t, "*/6 * * mon-fri", rest)
		require.Contains(t, o.agent(t).Args, "--schedule="+o.cronJob(t).Spec.Schedule)
		require.Contains(t, o.release.Info.Notes, o.cronJob(t).Spec.Schedule)
		if i == 0 {
			again, err := r.run(t)
			require.NoError(t, err)
			require.Equal(t, o.release.Manifest, again.Manifest, "it is the same each time")
		}
		verify := ""
		for _, j := range o.cronJobs {
			if strings.HasSuffix(j.Name, "-verify") {
				verify = j.Spec.Schedule
			}
			_, err := cron.ParseStandard(j.Spec.Schedule)
			require.NoError(t, err)
		}
		require.True(t, strings.HasSuffix(verify, " 3 * * *"), verify)
		if !strings.HasPrefix(verify, minute+" ") {
			apart++
		}
		minutes[minute]++
	}
	require.Greater(t, len(minutes), 30, "%v", minutes)
	require.Greater(t, apart, 50)
}

func TestZeroIsNotNothing(t *testing.T) {
	t.Parallel()
	o := render(t, rendering{values: `
ttlSecondsAfterFinished: 0
backoffLimit: 0
successfulJobsHistoryLimit: 0
failedJobsHistoryLimit: 0
terminationGracePeriodSeconds: 0
startingDeadlineSeconds: null
activeDeadlineSeconds: null
`})
	spec := o.cronJob(t).Spec
	require.Equal(t, new(int32(0)), spec.JobTemplate.Spec.TTLSecondsAfterFinished)
	require.Equal(t, new(int32(0)), spec.JobTemplate.Spec.BackoffLimit)
	require.Equal(t, new(int32(0)), spec.SuccessfulJobsHistoryLimit)
	require.Equal(t, new(int32(0)), spec.FailedJobsHistoryLimit)
	require.Equal(t, new(int64(0)), o.pod(t).TerminationGracePeriodSeconds)
	require.Nil(t, spec.StartingDeadlineSeconds)
	require.Nil(t, spec.JobTemplate.Spec.ActiveDeadlineSeconds)
}

func TestLargeNumbersStayWhole(t *testing.T) {
	t.Parallel()
	o := render(t, rendering{values: "activeDeadlineSeconds: 31536000\nttlSecondsAfterFinished: 12345678"})
	require.Equal(t, new(int64(31536000)), o.cronJob(t).Spec.JobTemplate.Spec.ActiveDeadlineSeconds)
	require.Equal(t, new(int32(12345678)), o.cronJob(t).Spec.JobTemplate.Spec.TTLSecondsAfterFinished)
}

func TestRuntimeLimitsFollowTheResources(t *testing.T) {
	t.Parallel()
	for limits, want := range map[string][2]string{
		"{cpu: '2', memory: 512Mi}":        {"460MiB", "2"},
		"{cpu: 2, memory: 512Mi}":          {"460MiB", "2"},
		"{cpu: 100m, memory: 1Gi}":         {"921MiB", "1"},
		"{cpu: 1500m, memory: 1.5Gi}":      {"1382MiB", "2"},
		"{cpu: 2.5, memory: 536870912}":    {"460MiB", "3"},
		"{cpu: null, memory: 500M}":        {"429MiB", ""},
		"{cpu: 4, memory: null}":           {"", "4"},
		"{cpu: null, memory: null}":        {"", ""},
		"{cpu: '1', memory: 1000000k}":     {"858MiB", "1"},
		"{cpu: '1', memory: '8589934592'}": {"7372MiB", "1"},
	} {
		o := render(t, rendering{values: "resources: {limits: " + limits + "}"})
		for i, name := range []string{"GOMEMLIMIT", "GOMAXPROCS"} {
			if want[i] == "" {
				require.Nil(t, o.env(t, name), limits)
				continue
			}
			require.NotNil(t, o.env(t, name), limits)
			require.Equal(t, want[i], o.env(t, name).Value, "%s of %s", name, limits)
		}
	}
}

func TestAllNodes(t *testing.T) {
	t.Parallel()
	o := render(t, rendering{values: `
nodes: all
nodeCount: 3
affinity:
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
    - topologyKey: example.com/rack
      labelSelector: {matchLabels: {app: other}}
`})
	job := o.cronJob(t).Spec.JobTemplate.Spec
	require.Equal(t, batchv1.IndexedCompletion, *job.CompletionMode)
	require.Equal(t, new(int32(3)), job.Completions)
	require.Equal(t, new(int32(3)), job.Parallelism)
	terms := o.pod(t).Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	require.Len(t, terms, 2, "the user's own term stays")
	require.Equal(t, "example.com/rack", terms[0].TopologyKey)
	require.Equal(t, "kubernetes.io/hostname", terms[1].TopologyKey)
	for k, v := range terms[1].LabelSelector.MatchLabels {
		require.Equal(t, v, job.Template.Labels[k], "the pods do not match the term that keeps them apart")
	}
}

func TestRunOnInstall(t *testing.T) {
	t.Parallel()
	require.Empty(t, render(t, rendering{}).jobsOf("snapshot"))
	o := render(t, rendering{set: []string{"runOnInstall=true"}})
	require.Len(t, o.jobsOf("snapshot"), 1)
	require.Equal(t, "post-install", o.jobsOf("snapshot")[0].Annotations["helm.sh/hook"], "an upgrade takes no snapshot")
	require.Equal(t, "etcd-snapshot-install", o.jobsOf("snapshot")[0].Name)
	require.Equal(t, o.cronJob(t).Spec.JobTemplate.Spec, o.jobsOf("snapshot")[0].Spec, "the first run differs from those that follow")
}

func TestLabelsAndAnnotations(t *testing.T) {
	t.Parallel()
	o := render(t, rendering{values: scenarios(t)["everything"]})
	c := o.cronJob(t)
	job := c.Spec.JobTemplate
	require.Equal(t, []string{"cronjob", "job", "pod"}, []string{c.Labels["a"], job.Labels["a"], job.Spec.Template.Labels["a"]})
	require.Equal(t, []string{"cronjob", "job", "pod"}, []string{c.Annotations["b"], job.Annotations["b"], job.Spec.Template.Annotations["b"]})
	require.Equal(t, "serviceaccount", o.serviceAccounts[0].Labels["a"])
	require.Equal(t, "serviceaccount", o.serviceAccounts[0].Annotations["b"])
	for _, x := range o.all() {
		require.Equal(t, "platform", x.GetLabels()["team"], "%s lacks commonLabels", x.GetName())
	}
	o = render(t, rendering{values: "commonLabels: {app.kubernetes.io/name: mine}\npodLabels: {app.kubernetes.io/component: mine}"})
	require.Equal(t, "etcd-snapshot", o.cronJob(t).Labels["app.kubernetes.io/name"], "selectors depend on it")
	require.Equal(t, "snapshot", o.cronJob(t).Spec.JobTemplate.Spec.Template.Labels["app.kubernetes.io/component"])
}

func TestImage(t *testing.T) {
	t.Parallel()
	digest := "sha256:" + strings.Repeat("0", 64)
	for values, want := range map[string]string{
		"{tag: 1.2.3}": "etcdsnapshot.dev/etcd-snapshot-agent:1.2.3",
		"{registry: 'mirror.example:5000', repository: x/y}": "mirror.example:5000/x/y:0.1.0",
		"{registry: '', repository: x/y, tag: edge}":         "x/y:edge",
		"{tag: 1.2.3, digest: '" + digest + "'}":             "etcdsnapshot.dev/etcd-snapshot-agent@" + digest,
		"{tag: '1.10'}":                                      "etcdsnapshot.dev/etcd-snapshot-agent:1.10",
	} {
		require.Equal(t, want, render(t, rendering{values: "image: " + values}).agent(t).Image)
	}
	require.Equal(t, "docker", render(t, rendering{values: "imagePullSecrets: [{name: docker}]"}).pod(t).ImagePullSecrets[0].Name)
}

func TestExtras(t *testing.T) {
	t.Parallel()
	o := render(t, rendering{values: scenarios(t)["everything"]})
	require.Contains(t, o.agent(t).Args, "--log-level=debug")
	require.Equal(t, "http://proxy.example:3128", o.env(t, "HTTPS_PROXY").Value)
	require.Equal(t, "sts.example", o.volume(t, "token").Projected.Sources[0].ServiceAccountToken.Audience)
	require.True(t, o.mount(t, "token").ReadOnly)
	require.True(t, slices.ContainsFunc(o.others, func(u *unstructured.Unstructured) bool {
		return u.GetKind() == "Alert" && u.GetName() == "cluster-backup-late"
	}), "templates in extraObjects are not rendered")
}

func TestPlacementCanBeReplaced(t *testing.T) {
	t.Parallel()
	o := render(t, rendering{values: "nodeSelector: {}\ntolerations: []\nhostNetwork: false\npriorityClassName: ''"})
	require.Empty(t, o.pod(t).NodeSelector)
	require.Empty(t, o.pod(t).Tolerations)
	require.False(t, o.pod(t).HostNetwork)
	require.Empty(t, o.pod(t).PriorityClassName)
	require.Equal(t, corev1.DNSClusterFirst, o.pod(t).DNSPolicy)
	o = render(t, rendering{values: "nodeSelector: {backup: 'true'}\ndnsPolicy: Default"})
	require.Equal(t, map[string]string{"backup": "true"}, o.pod(t).NodeSelector, "the preset's selector is merged with the user's")
	require.Equal(t, corev1.DNSDefault, o.pod(t).DNSPolicy)
}

// A value that looks like another type stays what it is.
func TestStringsStayStrings(t *testing.T) {
	t.Parallel()
	o := render(t, rendering{values: `
clusterName: "1234"
podAnnotations: {a: "true", b: "1e3"}
nodeSelector: {node-role.kubernetes.io/control-plane: "true"}
etcd: {serverName: "10"}
`})
	require.Equal(t, "1234", o.policy(t).Spec.ClusterName)
	require.Equal(t, "10", o.policy(t).Spec.Etcd.ServerName)
	require.Equal(t, map[string]string{"a": "true", "b": "1e3"}, o.cronJob(t).Spec.JobTemplate.Spec.Template.Annotations)
}
