package charts

import (
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"etcdsnapshot.dev/agent/cli"
)

// The agent's own flags read what the chart passes.
func TestScenariosPassFlagsThatTheAgentKnows(t *testing.T) {
	t.Parallel()
	eachScenario(t, func(t *testing.T, values string) {
		o := render(t, rendering{values: values})
		command, flags, err := cli.NewCommand().Find(o.agent(t).Args)
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
