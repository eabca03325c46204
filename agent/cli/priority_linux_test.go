package cli

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// stepBackEnv names the child that steps back: a priority cannot be taken back.
const stepBackEnv = "CLI_TEST_STEP_BACK"

func TestStepBack(t *testing.T) {
	if os.Getenv(stepBackEnv) != "" {
		stepBack()
		tasks, err := os.ReadDir("/proc/self/task")
		require.NoError(t, err)
		require.Greater(t, len(tasks), 1)
		for _, task := range tasks {
			tid, err := strconv.Atoi(task.Name())
			require.NoError(t, err)
			now, err := unix.Getpriority(unix.PRIO_PROCESS, tid)
			require.NoError(t, err)
			fmt.Println("niceness", 20-now)
		}
		return
	}
	for nice, says := range map[string]string{"0": "niceness 10\n", "15": "niceness 15\n"} {
		cmd := exec.CommandContext(t.Context(), "nice", "-n", nice, os.Args[0], "-test.run=^TestStepBack$", "-test.v")
		cmd.Env = append(os.Environ(), stepBackEnv+"=1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), says)
		for _, other := range []string{"0", "5", "10", "15"} {
			if line := "niceness " + other + "\n"; line != says {
				require.NotContains(t, string(out), line)
			}
		}
	}
}
