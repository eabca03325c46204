package charts

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"etcdsnapshot.dev/agent/catalog"
	"etcdsnapshot.dev/agent/cli"
)

// expanded puts in what the Job controller and the kubelet do.
func expanded(args []string) (out []string) {
	for _, a := range args {
		out = append(out, strings.ReplaceAll(a, "$(JOB_COMPLETION_INDEX)", "1"))
	}
	return out
}

// The agent's own flags read what the chart passes.
func TestScenariosPassFlagsThatTheAgentKnows(t *testing.T) {
	t.Parallel()
	eachScenario(t, func(t *testing.T, values string) {
		o := render(t, rendering{values: values})
		command, flags, err := cli.NewCommand().Find(expanded(o.agent(t).Args))
		require.NoError(t, err)
		require.Equal(t, "snapshot", command.Name())
		require.NoError(t, command.ParseFlags(flags))
		require.NoError(t, command.ValidateArgs(command.Flags().Args()), "the chart passes something that is no flag")
		set := map[string]string{}
		command.Flags().Visit(func(f *pflag.Flag) { set[f.Name] = f.Value.String() })
		require.Equal(t, o.policy(t).Name, set["policy"])
		require.Equal(t, o.cronJob(t).Spec.Schedule, set["schedule"])
		require.Equal(t, "$(POD_NAMESPACE)", set["namespace"])
		require.Equal(t, o.mount(t, "spool").MountPath, set["spool-dir"])
	})
}

// `helm test` runs the doctor where a snapshot runs: the same pod but for its arguments and its component.
func TestHelmTest(t *testing.T) {
	t.Parallel()
	eachScenario(t, func(t *testing.T, values string) {
		o := render(t, rendering{values: values})
		jobs := o.jobsOf("test")
		require.Len(t, jobs, 1)
		require.Equal(t, "test", jobs[0].Annotations["helm.sh/hook"])
		require.Zero(t, *jobs[0].Spec.BackoffLimit)
		pod := jobs[0].Spec.Template.Spec.DeepCopy()
		command, flags, err := cli.NewCommand().Find(pod.Containers[0].Args)
		require.NoError(t, err)
		require.Equal(t, "doctor", command.Name())
		require.NoError(t, command.ParseFlags(flags))
		want := o.pod(t).DeepCopy()
		pod.Containers[0].Args, want.Containers[0].Args = nil, nil
		if want.Affinity != nil && want.Affinity.PodAntiAffinity != nil {
			require.Equal(t, o.cronJob(t).Spec.JobTemplate.Spec.Completions, jobs[0].Spec.Completions)
			pod.Affinity, want.Affinity = nil, nil // each keeps from its own kind
		}
		require.Equal(t, want, pod)
	})
}

// What the doctor asks RBAC for is what the chart grants, no more and no less.
func TestRightsAreThoseThatTheDoctorAsksFor(t *testing.T) {
	t.Parallel()
	o := render(t, rendering{})
	granted := map[string]bool{}
	for _, role := range append(o.roles[0].Rules, o.clusterRoles[0].Rules...) {
		for _, verb := range role.Verbs {
			for _, resource := range role.Resources {
				name := ""
				if len(role.ResourceNames) > 0 {
					name = role.ResourceNames[0]
				}
				granted[strings.Join([]string{verb, role.APIGroups[0], resource, name}, " ")] = true
			}
		}
	}
	for _, r := range catalog.Rights("kube-system", o.policy(t).Name, true) {
		resource := r.Resource
		if r.Subresource != "" {
			resource += "/" + r.Subresource
		}
		key := strings.Join([]string{r.Verb, r.Group, resource, r.Name}, " ")
		require.True(t, granted[key], key)
		delete(granted, key)
	}
	require.Empty(t, granted, "the doctor does not ask for these")
}

// One copy in a bucket is enough, and nodes: all without a folder on the nodes would make no other.
func TestNodesAll(t *testing.T) {
	t.Parallel()
	require.Contains(t, render(t, rendering{set: []string{"nodes=all", "nodeCount=3"}}).agent(t).Args, "--index=$(JOB_COMPLETION_INDEX)")
	require.Contains(t, rendering{values: "{nodes: all, nodeCount: 3, destinations: {node: null, x: {s3: {bucket: abc}}}}"}.refused(t), "use nodes: any")
}
