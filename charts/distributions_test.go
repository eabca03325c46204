package charts

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

type presets struct {
	Distributions map[string]any    `json:"distributions"`
	Refused       map[string]string `json:"refused"`
}

func readPresets(t testing.TB) presets {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(chartDir, "presets.yaml"))
	require.NoError(t, err)
	var p presets
	require.NoError(t, yaml.Unmarshal(data, &p))
	return p
}

// What each distribution is known to look like; docs/distributions says where each fact was read.
func TestDistributions(t *testing.T) {
	t.Parallel()
	const controlPlane = "node-role.kubernetes.io/control-plane"
	type facts struct {
		endpoint, ca, cert, key string
		selector                map[string]string
		user                    int64
		add                     []corev1.Capability
	}
	known := map[string]facts{
		"kubeadm": {
			"https://127.0.0.1:2379", "/etc/kubernetes/pki/etcd/ca.crt", "/etc/kubernetes/pki/apiserver-etcd-client.crt", "/etc/kubernetes/pki/apiserver-etcd-client.key",
			map[string]string{controlPlane: ""}, 0, nil,
		},
		"k3s": {
			"https://127.0.0.1:2379", "/var/lib/rancher/k3s/server/tls/etcd/server-ca.crt", "/var/lib/rancher/k3s/server/tls/etcd/client.crt", "/var/lib/rancher/k3s/server/tls/etcd/client.key",
			map[string]string{"node-role.kubernetes.io/etcd": "true"}, 0, nil,
		},
		"rke2": {
			"https://127.0.0.1:2379", "/var/lib/rancher/rke2/server/tls/etcd/server-ca.crt", "/var/lib/rancher/rke2/server/tls/etcd/client.crt", "/var/lib/rancher/rke2/server/tls/etcd/client.key",
			map[string]string{"node-role.kubernetes.io/etcd": "true"}, 0, nil,
		},
		"k0s": {
			"https://127.0.0.1:2379", "/var/lib/k0s/pki/etcd/ca.crt", "/var/lib/k0s/pki/apiserver-etcd-client.crt", "/var/lib/k0s/pki/apiserver-etcd-client.key",
			map[string]string{controlPlane: "true"}, 0, []corev1.Capability{"DAC_READ_SEARCH"},
		},
		"kubespray": {
			"https://127.0.0.1:2379", "/etc/ssl/etcd/ssl/ca.pem", "/etc/etcd-snapshot/etcd/client.crt", "/etc/etcd-snapshot/etcd/client.key",
			map[string]string{controlPlane: ""}, 0, []corev1.Capability{"DAC_READ_SEARCH"},
		},
		"kubespray-kubeadm": {
			"https://127.0.0.1:2379", "/etc/kubernetes/ssl/etcd/ca.crt", "/etc/kubernetes/ssl/apiserver-etcd-client.crt", "/etc/kubernetes/ssl/apiserver-etcd-client.key",
			map[string]string{controlPlane: ""}, 0, nil,
		},
		"kops": {
			"https://127.0.0.1:4001", "/srv/kubernetes/kube-apiserver/etcd-ca.crt", "/srv/kubernetes/kube-apiserver/etcd-client.crt", "/srv/kubernetes/kube-apiserver/etcd-client.key",
			map[string]string{controlPlane: ""}, 0, nil,
		},
		"openshift": {
			"https://127.0.0.1:2379", "/etc/kubernetes/static-pod-resources/etcd-certs/configmaps/etcd-all-bundles/server-ca-bundle.crt", "/etc/etcd-snapshot/etcd/client.crt", "/etc/etcd-snapshot/etcd/client.key",
			map[string]string{"node-role.kubernetes.io/master": ""}, 0, nil,
		},
		"talos": {
			"https://127.0.0.1:2379", "/system/secrets/etcd/ca.crt", "/system/secrets/etcd/admin.crt", "/system/secrets/etcd/admin.key",
			map[string]string{controlPlane: ""}, 60, nil,
		},
		"external": {
			"https://10.0.0.1:2379", "/etc/etcd-snapshot/etcd-secret/ca.crt", "/etc/etcd-snapshot/etcd-secret/tls.crt", "/etc/etcd-snapshot/etcd-secret/tls.key",
			nil, 0, nil,
		},
	}
	for name := range readPresets(t).Distributions {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Contains(t, known, name)
			want := known[name]
			r := rendering{set: []string{"distribution=" + name, "destinations.node=null", "destinations.offsite.s3.bucket=abc"}}
			if name == "external" {
				r.set = append(r.set, "etcd.endpoints={https://10.0.0.1:2379}", "etcd.existingSecret=etcd-client")
			}
			o := render(t, r)
			e := o.policy(t).Spec.Etcd
			require.Equal(t, want, facts{
				e.Endpoints[0], e.CAFile, e.CertFile, e.KeyFile, o.pod(t).NodeSelector,
				*o.pod(t).SecurityContext.RunAsUser, o.agent(t).SecurityContext.Capabilities.Add,
			})
			require.Equal(t, name != "external", o.pod(t).HostNetwork)
			require.Equal(t, name == "external", len(o.pod(t).Tolerations) == 0)
			require.Contains(t, o.release.Info.Notes, "To restore:")
		})
	}
}

// A certificate that is named by its node is mounted out of its folder at a name that is the same on every node.
func TestCertificatesNamedByTheNode(t *testing.T) {
	t.Parallel()
	for distribution, want := range map[string][3]string{
		"kubespray": {"/etc/ssl/etcd/ssl", "admin-$(NODE_NAME).pem", "admin-$(NODE_NAME)-key.pem"},
		"openshift": {"/etc/kubernetes/static-pod-resources/etcd-certs/secrets/etcd-all-certs", "etcd-peer-$(NODE_NAME).crt", "etcd-peer-$(NODE_NAME).key"},
	} {
		o := render(t, rendering{set: []string{"distribution=" + distribution}})
		for i, name := range []string{"etcd-cert-file", "etcd-key-file"} {
			require.Equal(t, want[0], o.volume(t, name).HostPath.Path)
			require.Equal(t, corev1.HostPathDirectory, *o.volume(t, name).HostPath.Type)
			require.Equal(t, want[i+1], o.mount(t, name).SubPathExpr)
			require.True(t, o.mount(t, name).ReadOnly)
		}
		require.Equal(t, o.policy(t).Spec.Etcd.KeyFile, o.mount(t, "etcd-key-file").MountPath)
		require.Equal(t, corev1.HostPathFile, *o.volume(t, "etcd-ca-file").HostPath.Type)
		require.NotNil(t, o.env(t, "NODE_NAME"), "subPathExpr reads the container's environment")
	}
}

func TestPresetsCanBeOverriddenSingly(t *testing.T) {
	t.Parallel()
	o := render(t, rendering{set: []string{"distribution=kubespray", "etcd.certFile=/srv/client.crt"}})
	e := o.policy(t).Spec.Etcd
	require.Equal(t, []string{"/etc/ssl/etcd/ssl/ca.pem", "/srv/client.crt", "/etc/etcd-snapshot/etcd/client.key"}, []string{e.CAFile, e.CertFile, e.KeyFile})
	require.Equal(t, "/srv/client.crt", o.mount(t, "etcd-cert-file").MountPath)
	o = render(t, rendering{set: []string{"etcd.caFile=/pki/$(NODE_NAME)/ca.crt"}})
	require.Equal(t, "/etc/etcd-snapshot/etcd/ca.crt", o.policy(t).Spec.Etcd.CAFile)
	o = render(t, rendering{values: "etcd: {endpoints: ['https://[::1]:2379', 'https://10.0.0.2:2379'], serverName: etcd.local}"})
	require.Equal(t, []string{"https://[::1]:2379", "https://10.0.0.2:2379"}, o.policy(t).Spec.Etcd.Endpoints)
	require.Equal(t, "etcd.local", o.policy(t).Spec.Etcd.ServerName)
	o = render(t, rendering{set: []string{"etcd.existingSecret=mine"}})
	require.Equal(t, "/etc/etcd-snapshot/etcd-secret/tls.key", o.policy(t).Spec.Etcd.KeyFile)
	require.Equal(t, new(int32(0o400)), o.volume(t, "etcd-secret").Secret.DefaultMode)
	require.True(t, o.pod(t).HostNetwork)
	o = render(t, rendering{set: []string{"etcd.existingSecret=mine", "etcd.caFile=/a/ca.crt"}})
	require.Equal(t, []string{"/a/ca.crt", "/etc/etcd-snapshot/etcd-secret/tls.crt"}, []string{o.policy(t).Spec.Etcd.CAFile, o.policy(t).Spec.Etcd.CertFile})
}

func TestEtcdWithoutTLSNeedsNoCertificates(t *testing.T) {
	t.Parallel()
	o := render(t, rendering{set: []string{"etcd.endpoints={http://127.0.0.1:2379}"}})
	require.Empty(t, o.policy(t).Spec.Etcd.CAFile)
	for _, v := range o.pod(t).Volumes {
		require.NotContains(t, v.Name, "etcd-")
	}
}

// The kubelet makes folders for root, so the agent must be root where it stores in one.
func TestTalosUserDependsOnTheDestinations(t *testing.T) {
	t.Parallel()
	o := render(t, rendering{set: []string{"distribution=talos"}})
	require.Equal(t, new(int64(0)), o.pod(t).SecurityContext.RunAsUser)
	require.Equal(t, []corev1.Capability{"DAC_READ_SEARCH"}, o.agent(t).SecurityContext.Capabilities.Add)
	o = render(t, rendering{values: scenarios(t)["talos-cloud"]})
	require.Equal(t, new(int64(60)), o.pod(t).SecurityContext.RunAsUser)
	require.Equal(t, new(true), o.pod(t).SecurityContext.RunAsNonRoot)
	require.Empty(t, o.agent(t).SecurityContext.Capabilities.Add)
}

func TestOpenShift(t *testing.T) {
	t.Parallel()
	o := render(t, rendering{set: []string{"distribution=openshift"}})
	require.Equal(t, "spc_t", o.pod(t).SecurityContext.SELinuxOptions.Type)
	require.Len(t, o.roleBindings, 2)
	scc := o.roleBindings[1]
	require.Equal(t, "system:openshift:scc:privileged", scc.RoleRef.Name)
	require.Equal(t, "etcd-snapshot", scc.Subjects[0].Name)
	require.Len(t, render(t, rendering{}).roleBindings, 1)
}

// Each distribution that is refused is refused by name, with its reason.
func TestRefusedDistributions(t *testing.T) {
	t.Parallel()
	refused := readPresets(t).Refused
	require.Contains(t, refused, "microk8s")
	for name, reason := range refused {
		text := rendering{set: []string{"distribution=" + name}}.refused(t)
		require.Contains(t, text, "distribution: "+name+" is refused. "+reason)
	}
}

// Each distribution has a scenario for chart checkers.
func TestEveryDistributionHasAScenario(t *testing.T) {
	t.Parallel()
	all := scenarios(t)
	for name := range readPresets(t).Distributions {
		if name != "kubeadm" { // the scenario "default"
			require.Contains(t, all, "distribution-"+name)
		}
	}
}
