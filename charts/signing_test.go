package charts

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSigning: the key goes to what takes snapshots, and to nothing else; the trusted keys stand in the policy.
func TestSigning(t *testing.T) {
	t.Parallel()
	const public = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHW3vtUrv8sTgHeTi7bkPNLA7SwzaPZb8u6bvpGhCOlG prod-eu"
	require.Nil(t, render(t, rendering{}).policy(t).Spec.Signing, "none by default")

	o := render(t, rendering{values: "signing: {keySecret: signing-key, trustedKeys: [" + public + "]}\nverification: {schedule: '@daily'}"})
	signing := o.policy(t).Spec.Signing.SSH
	require.Equal(t, []string{public}, signing.TrustedKeys)
	require.Equal(t, "/etc/etcd-snapshot/signing/ssh-privatekey", signing.KeyFile)
	mount := o.mount(t, "signing")
	require.Equal(t, "/etc/etcd-snapshot/signing", mount.MountPath)
	require.True(t, mount.ReadOnly)
	for _, v := range o.pod(t).Volumes {
		if v.Name == "signing" {
			require.Equal(t, "signing-key", v.Secret.SecretName)
			require.Equal(t, int32(0o400), *v.Secret.DefaultMode)
			require.Len(t, v.Secret.Items, 1, "nothing else of the Secret is mounted")
		}
	}
	for _, v := range o.only(t, "verification").Spec.JobTemplate.Spec.Template.Spec.Volumes {
		require.NotEqual(t, "signing", v.Name, "who verifies signs nothing")
	}

	o = render(t, rendering{values: "signing: {trustedKeys: [" + public + "]}"})
	require.Empty(t, o.policy(t).Spec.Signing.SSH.KeyFile)
	for _, v := range o.pod(t).Volumes {
		require.NotEqual(t, "signing", v.Name)
	}
	require.Contains(t, rendering{values: "signing: {trustedKeys: [ssh-rsa AAAA]}"}.refused(t), "/signing/trustedKeys")
}
