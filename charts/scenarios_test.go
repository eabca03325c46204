package charts

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

// scenarios gives the values files in ci/, by name.
func scenarios(t testing.TB) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(chartDir, "ci", "*-values.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	out := map[string]string{}
	for _, f := range files {
		data, err := os.ReadFile(f)
		require.NoError(t, err)
		out[strings.TrimSuffix(filepath.Base(f), "-values.yaml")] = string(data)
	}
	return out
}

func eachScenario(t *testing.T, test func(t *testing.T, values string)) {
	for name, values := range scenarios(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, values)
		})
	}
}

// Every scenario on the oldest and the newest Kubernetes, and those that use most on every minor.
func TestScenariosRenderOnEveryKubernetes(t *testing.T) {
	t.Parallel()
	for name, values := range scenarios(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			minors := []int{supportedMinors[0], supportedMinors[len(supportedMinors)-1]}
			if name == "default" || name == "everything" {
				minors = supportedMinors
			}
			var first string
			for _, minor := range minors {
				o := render(t, rendering{values: values, minor: minor})
				o.cronJob(t)
				o.policy(t)
				if first == "" {
					first = o.manifest
				}
				require.Equal(t, first, o.manifest, "1.%d gets something else than 1.%d", minor, minors[0])
			}
		})
	}
}

func TestScenariosRenderTheSameTwice(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"default", "everything", "production", "s3"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			values := scenarios(t)[name]
			first, err := rendering{values: values}.run(t)
			require.NoError(t, err)
			second, err := rendering{values: values}.run(t)
			require.NoError(t, err)
			require.Equal(t, first.Manifest, second.Manifest)
			require.Equal(t, first.Info.Notes, second.Info.Notes)
			upgrade, err := rendering{values: values, upgrade: true}.run(t)
			require.NoError(t, err)
			require.Equal(t, first.Manifest, upgrade.Manifest, "an upgrade with the same values changes something")
		})
	}
}

// Every file that the policy names is mounted, and nothing is mounted twice.
func TestScenariosMountWhatThePolicyNames(t *testing.T) {
	t.Parallel()
	eachScenario(t, func(t *testing.T, values string) {
		o := render(t, rendering{values: values})
		mounted := map[string]bool{}
		for _, m := range o.agent(t).VolumeMounts {
			require.False(t, mounted[m.MountPath], "%s is mounted twice", m.MountPath)
			mounted[m.MountPath] = true
			o.volume(t, m.Name)
		}
		require.Len(t, o.pod(t).Volumes, len(o.agent(t).VolumeMounts), "a volume is not mounted")
		within := func(path string) {
			t.Helper()
			if path == "" {
				return
			}
			require.True(t, mounted[path] || mounted[filepath.Dir(path)], "%s is not mounted", path)
		}
		spec := o.policy(t).Spec
		within(spec.Etcd.CAFile)
		within(spec.Etcd.CertFile)
		within(spec.Etcd.KeyFile)
		if spec.Signing != nil {
			within(spec.Signing.SSH.KeyFile)
		}
		if spec.Extras != nil {
			for _, path := range spec.Extras.Paths {
				within(strings.TrimSuffix(path, "/"))
			}
		}
		for _, d := range spec.Destinations {
			switch d.Backend() {
			case "hostPath":
				within(d.HostPath.Path)
				require.False(t, o.mount(t, "destination-"+d.Name).ReadOnly)
			case "gcs":
				within(d.GCS.CABundleFile)
				within(d.GCS.Auth.CredentialsFile)
			case "azure":
				within(d.Azure.CABundleFile)
				within(d.Azure.Auth.CredentialsDir)
			case "s3":
				within(d.S3.CABundleFile)
				within(d.S3.Auth.CredentialsDir)
				if d.S3.ServerSideEncryption != nil {
					within(d.S3.ServerSideEncryption.KeyDir)
				}
			}
		}
		if m := spec.Metrics; m != nil {
			if m.Textfile != nil {
				within(m.Textfile.Directory)
				require.False(t, o.mount(t, "metrics-textfile").ReadOnly)
			}
			for _, e := range []*v1.MetricsEndpoint{m.Pushgateway, m.OTLP} {
				if e != nil {
					within(e.CABundleFile)
					within(e.CredentialsDir)
				}
			}
		}
		for _, n := range spec.Notifications {
			where := notificationTarget(n)
			within(where.CredentialsDir)
			within(where.CABundleFile)
		}
	})
}

func TestScenariosPassHelmLint(t *testing.T) {
	eachScenario(t, func(t *testing.T, values string) {
		v := rendering{values: values}.valueMap(t)
		kube := &chartutil.KubeVersion{Version: "v1.37.0", Major: "1", Minor: "37"}
		for _, m := range lint.AllWithKubeVersion(chartDir, v, "kube-system", kube).Messages {
			require.Less(t, m.Severity, support.WarningSev, "%s", m)
		}
	})
}

// A few whole scenarios, as the user sees them: go test ./charts -run Golden -update writes them.
func TestGolden(t *testing.T) {
	t.Parallel()
	all := scenarios(t)
	for _, name := range []string{"default", "production", "distribution-kubespray", "disaster-bundle"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Contains(t, all, name)
			o := render(t, rendering{values: all[name], set: []string{"crds.enabled=false"}})
			var b bytes.Buffer
			b.WriteString(o.manifest)
			fmt.Fprintf(&b, "---\n# NOTES\n")
			for line := range strings.Lines(o.release.Info.Notes) {
				b.WriteString(strings.TrimRight("# "+line, " \n") + "\n")
			}
			for i, line := range strings.Split(b.String(), "\n") {
				require.Equal(t, strings.TrimRight(line, " \t"), line, "line %d ends in blanks", i+1)
			}
			file := filepath.Join("testdata", name+".golden.yaml")
			if *update {
				require.NoError(t, os.MkdirAll("testdata", 0o755))
				require.NoError(t, os.WriteFile(file, b.Bytes(), 0o644))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, string(want), b.String(), "run go test ./charts -run Golden -update if this is meant")
		})
	}
}
