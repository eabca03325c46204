package charts

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"etcdsnapshot.dev/agent/cli"
)

const recipientValues = `encryption: {age: {recipients: [age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p]}}`

// TestVerification: the drill is a CronJob of its own, away from etcd.
func TestVerification(t *testing.T) {
	t.Parallel()
	require.Empty(t, render(t, rendering{}).cronJobsOf("verification"), "none by default")
	o := render(t, rendering{values: "verification: {schedule: '30 3 * * *', level: restore, since: 7d, identitySecret: age-key, scratchSizeLimit: 9Gi}\n" + recipientValues +
		"\ndestinations: {offsite: {s3: {bucket: backups, auth: {method: static, existingSecret: s3-keys}}}}"})
	cron := o.only(t, "verification")
	require.Equal(t, "etcd-snapshot-verify", cron.Name)
	require.Equal(t, "30 3 * * *", cron.Spec.Schedule)
	pod := cron.Spec.JobTemplate.Spec.Template.Spec
	require.False(t, pod.HostNetwork)
	agent := pod.Containers[0]
	require.Equal(t, []string{"verify", "--all", "--since=7d", "--level=restore", "--policy=etcd-snapshot", "--namespace=$(POD_NAMESPACE)",
		"--policy-manifest=/etc/etcd-snapshot/policy/policy.yaml", "--scratch-dir=/scratch", "--identity=/etc/etcd-snapshot/identity/identity.txt"}, agent.Args)
	require.Equal(t, []corev1.Capability{"ALL"}, agent.SecurityContext.Capabilities.Drop)
	require.Empty(t, agent.SecurityContext.Capabilities.Add)
	require.True(t, *agent.SecurityContext.ReadOnlyRootFilesystem)
	for _, m := range agent.VolumeMounts {
		require.NotContains(t, m.MountPath, "pki", "no etcd certificates")
		require.Equal(t, m.MountPath != "/scratch", m.ReadOnly, "%s", m.MountPath)
	}
	for _, v := range pod.Volumes {
		if v.Name == "scratch" {
			require.Equal(t, "9Gi", v.EmptyDir.SizeLimit.String())
		}
	}
	require.Contains(t, pod.NodeSelector, "node-role.kubernetes.io/control-plane", "the folder lies on a control-plane node")
	require.Equal(t, []int32{2, 4}, cron.Spec.JobTemplate.Spec.PodFailurePolicy.Rules[0].OnExitCodes.Values)
	require.Equal(t, "checksum", o.policy(t).Spec.Verification.AfterStore)

	// The agent's own flags read them.
	command, rest, err := cli.NewCommand().Find(agent.Args)
	require.NoError(t, err)
	require.NoError(t, command.ParseFlags(rest))
	require.Empty(t, command.Flags().Args())
}

// TestVerificationAnywhere: without a folder on the node it runs wherever there is room, and not as root.
func TestVerificationAnywhere(t *testing.T) {
	t.Parallel()
	o := render(t, rendering{values: "verification: {schedule: '@daily'}\ndestinations: {node: null, offsite: {s3: {bucket: backups}}}"})
	pod := o.only(t, "verification").Spec.JobTemplate.Spec.Template.Spec
	require.Empty(t, pod.NodeSelector)
	require.Empty(t, pod.Tolerations)
	require.True(t, *pod.SecurityContext.RunAsNonRoot)
	require.Contains(t, pod.Containers[0].Args, "--latest")
}

// TestVerificationNeedsIdentity: what is encrypted cannot be opened without its key, and the refusal says what can be done.
func TestVerificationNeedsIdentity(t *testing.T) {
	t.Parallel()
	refusal := rendering{values: "verification: {schedule: '@daily', level: database}\n" + recipientValues}.refused(t)
	require.Contains(t, refusal, "'/verification/identitySecret'")
	require.Contains(t, refusal, "verification.level=checksum")
	for _, ok := range []string{"level: checksum", "level: restore, identitySecret: key"} {
		render(t, rendering{values: "verification: {schedule: '@daily', " + ok + "}\n" + recipientValues})
	}
	require.Contains(t, rendering{values: "verification: {schedule: 'every day'}"}.refused(t), "/verification/schedule")
}
