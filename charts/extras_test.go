package charts

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// What is known to belong into each distribution's disaster bundle; docs/distributions and docs/disaster-bundle.md say why.
func TestExtrasOfDistributions(t *testing.T) {
	t.Parallel()
	known := map[string][]string{
		"kubeadm":           {"/etc/kubernetes/manifests/", "/etc/kubernetes/pki/"},
		"k3s":               {"/var/lib/rancher/k3s/server/token"},
		"rke2":              {"/var/lib/rancher/rke2/server/token"},
		"k0s":               {"/var/lib/k0s/pki/"},
		"kubespray":         {"/etc/kubernetes/manifests/", "/etc/kubernetes/ssl/", "/etc/ssl/etcd/ssl/"},
		"kubespray-kubeadm": {"/etc/kubernetes/manifests/", "/etc/kubernetes/ssl/"},
		"kops":              nil,
		"openshift":         nil,
		"talos":             nil,
		"external":          nil,
	}
	for name := range readPresets(t).Distributions {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Contains(t, known, name)
			r := rendering{values: recipientValues, set: []string{"distribution=" + name, "extras.enabled=true"}}
			if name == "external" {
				r.set = append(r.set, "etcd.endpoints={https://10.0.0.1:2379}", "etcd.existingSecret=etcd-client")
			}
			if known[name] == nil {
				require.Contains(t, r.refused(t), "extras.paths: is needed with distribution "+name)
				return
			}
			require.Equal(t, known[name], render(t, r).policy(t).Spec.Extras.Paths)
		})
	}
}

// Without extras.enabled nothing of it is rendered; with it, folders are mounted read-only, at their own paths, in the pods
// that read them and in no other.
func TestExtrasAreMountedOnlyWhenOn(t *testing.T) {
	t.Parallel()
	const values = recipientValues + "\nverification: {schedule: '@daily', level: checksum}\n"
	off := render(t, rendering{values: values + "extras: {paths: [/etc/kubernetes/pki/], additionalPaths: [/etc/enc.yaml], destinations: [node]}"})
	require.Equal(t, render(t, rendering{values: values}).manifest, off.manifest)
	require.Nil(t, off.policy(t).Spec.Extras)

	on := render(t, rendering{values: values + "extras: {enabled: true, additionalPaths: [/etc/enc.yaml, /etc/kubernetes/pki/etcd/ca.crt, /etc/kubernetes/pki/], destinations: [node]}"})
	spec := on.policy(t).Spec
	require.Equal(t, []string{"/etc/enc.yaml", "/etc/kubernetes/manifests/", "/etc/kubernetes/pki/", "/etc/kubernetes/pki/etcd/ca.crt"}, spec.Extras.Paths)
	require.Nil(t, spec.Extras.Encryption, "whoever opens the snapshots")
	require.Equal(t, []string{"node"}, spec.Extras.Destinations)
	require.Len(t, on.agent(t).VolumeMounts, len(off.agent(t).VolumeMounts)+3, "etcd's CA is mounted already")
	for name, want := range map[string]struct {
		path string
		kind corev1.HostPathType
	}{
		"extras-0": {"/etc/enc.yaml", corev1.HostPathFile},
		"extras-1": {"/etc/kubernetes/manifests", corev1.HostPathDirectory},
		"extras-2": {"/etc/kubernetes/pki", corev1.HostPathDirectory},
	} {
		v := on.volume(t, name)
		require.Equal(t, want.path, v.HostPath.Path)
		require.Equal(t, want.kind, *v.HostPath.Type, "a path that is missing is not made")
		m := on.mount(t, name)
		require.Equal(t, want.path, m.MountPath)
		require.True(t, m.ReadOnly)
	}
	require.Equal(t, off.agent(t).SecurityContext, on.agent(t).SecurityContext, "no right is added")
	_, verification, found := strings.Cut(on.manifest, "name: etcd-snapshot-verify\n")
	require.True(t, found)
	verification, _, _ = strings.Cut(verification, "\n---")
	require.NotContains(t, verification, "extras-")
	require.Contains(t, on.release.Info.Notes, "Whoever opens the snapshots opens the files of the node as well")
	require.NotContains(t, off.release.Info.Notes, "files of the node")
}

// Extras are root's: where the distribution's agent is another user it reads them as root that reads and writes nothing else.
func TestExtrasAreReadAsRoot(t *testing.T) {
	t.Parallel()
	o := render(t, rendering{values: recipientValues, set: []string{"distribution=talos", "destinations.node=null", "destinations.offsite.s3.bucket=abc",
		"extras.enabled=true", "extras.paths={/system/x/}"}})
	require.Zero(t, *o.pod(t).SecurityContext.RunAsUser)
	require.Equal(t, []corev1.Capability{"DAC_READ_SEARCH"}, o.agent(t).SecurityContext.Capabilities.Add)
}
