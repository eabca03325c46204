package azure

import (
	"encoding/json"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/store/storetest"
	"etcdsnapshot.dev/ci/emulator"
)

const helperEnv = "AZURE_TEST_HELPER_SPEC"

// TestHelperPut is what the helper process runs: a Put of 4 MiB.
func TestHelperPut(t *testing.T) {
	data := os.Getenv(helperEnv)
	if data == "" {
		t.Skip("it is run by other tests in a process of its own")
	}
	var spec v1.AzureDestination
	require.NoError(t, json.Unmarshal([]byte(data), &spec))
	b, err := New(t.Context(), &spec, quick())
	require.NoError(t, err)
	require.NoError(t, b.Put(t.Context(), "a/b", storetest.Blob(1, 4<<20)))
	require.NoError(t, b.Close())
}

func helper(t *testing.T, spec *v1.AzureDestination, env ...string) *exec.Cmd {
	t.Helper()
	data, err := json.Marshal(spec)
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0], "-test.run=^TestHelperPut$", "-test.timeout=2m")
	cmd.Env = append(append(os.Environ(), helperEnv+"="+string(data)), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

func TestKilled(t *testing.T) {
	az := emulator.StartAzurite(t, emulator.AzuriteConfig{})
	for what, kind := range map[string]emulator.Rule{"while a block is sent": stageBlock, "at the commit": commitList} {
		t.Run(what, func(t *testing.T) {
			proxy, b, spec := behind(t, az, emulator.ProxyConfig{}, quick())
			skip := 0
			if kind.Query == "" {
				skip = 3
			}
			proxy.Add(with(kind, func(r *emulator.Rule) { r.Skip, r.Request = skip, emulator.Fault{Stall: true} }))
			cmd := helper(t, spec)
			require.NoError(t, cmd.Start())
			stalled := func() bool { return proxy.Count(kind) > skip }
			reached := eventually(stalled)
			require.NoError(t, cmd.Process.Kill())
			require.Error(t, cmd.Wait())
			require.True(t, reached, "the helper never came to the point")

			proxy.Clear()
			require.Empty(t, keys(t, b), "nothing half-written is visible")
			blob := storetest.Blob(1, 4<<20)
			require.NoError(t, b.Put(t.Context(), "a/b", blob), "the next run is not hindered")
			requireWhole(t, b, "a/b", blob)
		})
	}
}

// TestProxyVariables runs in a process of its own, since net/http reads the variables once.
func TestProxyVariables(t *testing.T) {
	az := emulator.StartAzurite(t, emulator.AzuriteConfig{})
	proxy, b, spec := behind(t, az, emulator.ProxyConfig{}, quick())
	spec.ServiceURL = "http://blobs.invalid/" + az.Account // nobody but the proxy knows it
	out, err := helper(t, spec, "HTTP_PROXY="+proxy.URL, "NO_PROXY=").CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, r := range proxy.Requests(stageBlock) {
		require.Equal(t, "blobs.invalid", r.URL.Host)
	}
	require.Equal(t, 16, proxy.Count(stageBlock))
	requireWhole(t, b, "a/b", storetest.Blob(1, 4<<20))
}

// eventually polls for up to 30 seconds.
func eventually(f func() bool) bool {
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if f() {
			return true
		}
	}
	return false
}
