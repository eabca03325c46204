package charts

import (
	"regexp"
	"strings"
	"testing"

	"github.com/robfig/cron/v3"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chartutil"
)

// What a user reads who made a mistake: the path of the value, and a sentence that helps.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		values string
		reads  []string
	}{
		{"schedul: '* * * * *'", []string{"'schedul' not allowed"}},
		{"etcd: {endpoint: x}", []string{"'/etcd'", "'endpoint' not allowed"}},
		{"destinations: {node: {retention: {lst: 1}}}", []string{"'/destinations/node/retention'", "'lst' not allowed"}},
		{"affinity: {nodeAffinity: {required: []}}", []string{"'/affinity/nodeAffinity'", "'required' not allowed"}},
		{"resources: {limit: {}}", []string{"'/resources'", "'limit' not allowed"}},
		{"schedule: 0/1 * * * *", []string{"'/schedule'", "*/15 or 0-59/15, not 0/15"}},
		{"schedule: '@every 5m'", []string{"'/schedule'", "@every is counted from"}},
		{"schedule: CRON_TZ=UTC 0 * * * *", []string{"'/schedule'", "set timeZone instead"}},
		{"schedule: H 0 * * *", []string{"clusterName: the H in the schedule", "write the minute"}},
		{"clusterName: prod\nschedule: 0 H * * *", []string{"'/schedule'", "five fields"}},
		{"clusterName: prod\nschedule: H/15 * * * *", []string{"'/schedule'", "*/15"}},
		{"schedule: every day", []string{"'/schedule'", "five fields"}},
		{"schedule: 0 0 * * fri-mon", []string{"schedule: the range fri-mon", "runs backwards"}},
		{"timeZone: Europe/Atlantis", []string{"timeZone: there is no time zone \"Europe/Atlantis\"", "Europe/Berlin"}},
		{"timeZone: CEST", []string{"timeZone: there is no time zone \"CEST\""}},
		{"timeZone: ../../etc/passwd", []string{"'/timeZone'"}},
		{"retentionTimeZone: Mars/Phobos", []string{"retentionTimeZone: there is no time zone"}},
		{"destinations: {node: {retention: {last: -1}}}", []string{"'/destinations/node/retention/last'", "got -1, want 1"}},
		{"destinations: {node: {retention: {daily: many}}}", []string{"'/destinations/node/retention/daily'", "got string, want integer"}},
		{"destinations: {node: {hostPath: {path: /}}}", []string{"'/destinations/node/hostPath/path'", "Absolute path of the folder"}},
		{"destinations: {node: {hostPath: {path: /var/lib/etcd/backup}}}", []string{"'/destinations/node/hostPath/path'", "data directory or lie in it: use a folder of its own"}},
		{"destinations: {node: {gcs: {bucket: abc}}}", []string{"'/destinations/node'", "exactly one backend"}},
		{"destinations: {offsite: {gcs: {bucket: 'gs://backups'}}}", []string{"'/destinations/offsite/gcs/bucket'", "without gs://"}},
		{"destinations: {offsite: {s3: {bucket: abc, auth: {method: static, secretAccessKey: x}}}}", []string{"'/destinations/offsite/s3/auth'", "put them into a Secret and name it in existingSecret"}},
		{"destinations: {offsite: {s3: {bucket: abc, secretAccessKey: x}}}", []string{"'/destinations/offsite/s3'", "put them into a Secret and name it in auth.existingSecret"}},
		{"destinations: {node: null}", []string{"'/destinations'", "at least one destination"}},
		{"destinations: {node: null, offsite: null}", []string{"destinations: at least one is needed"}},
		{"destinations: {}\ndistribution: kubeadmm", []string{"'/distribution'", "'kubeadm', 'k3s'"}},
		{"destinations: {a: {hostPath: {path: /srv/a}}, b: {hostPath: {path: /srv/a}}}", []string{"destinations.b.hostPath.path: is the folder of destination a already"}},
		{"distribution: microk8s", []string{"distribution: microk8s is refused", "dqlite", "microk8s dbctl backup"}},
		{"distribution: k3s-sqlite", []string{"distribution: k3s-sqlite is refused", "SQLite"}},
		{"distribution: canonical-kubernetes", []string{"distribution: canonical-kubernetes is refused", "dqlite"}},
		{"distribution: gke", []string{"distribution: gke is refused", "no access to its etcd"}},
		{"distribution: external", []string{"etcd.endpoints: is needed with distribution external"}},
		{"distribution: external\netcd: {endpoints: ['https://a:2379']}", []string{"etcd.existingSecret: is needed with distribution external"}},
		{"distribution: external\netcd: {endpoints: ['https://a:2379'], certFile: /a}", []string{"etcd.keyFile:", "go together"}},
		{"etcd: {endpoints: ['127.0.0.1:2379']}", []string{"'/etcd/endpoints/0'"}},
		{"monitoring: {metrics: {textfile: {directory: metrics}}}", []string{"'/monitoring/metrics/textfile/directory'"}},
		{"monitoring: {metrics: {textfile: {directory: /a/../b}}}", []string{"'/monitoring/metrics/textfile/directory'", "segments"}},
		{"monitoring: {metrics: {otlp: {existingSecret: s}}}", []string{"'/monitoring/metrics/otlp'", "url"}},
		{"monitoring: {metrics: {otlp: {url: 'https://user:password@otel/v1/metrics'}}}", []string{"'/monitoring/metrics/otlp/url'"}},
		{"monitoring: {metrics: {pushgateway: {url: 'http://p:9091', password: x}}}", []string{"'/monitoring/metrics/pushgateway'", "name it in existingSecret"}},
		{"monitoring: {metrics: {perNode: true}}", []string{"'/monitoring/metrics'", "perNode"}},
		{"notifications: {ops: {webhook: {url: 'https://hooks.example/T0P'}}}", []string{"'/notifications/ops/webhook'", "put it into the key url of a Secret"}},
		{"notifications: {ops: {webhook: {existingSecret: s, events: [failure]}}}", []string{"'/notifications/ops/webhook/events/0'", "'failed'"}},
		{"notifications: {Ops: {ping: {existingSecret: s}}}", []string{"'/notifications'", "names"}},
		{"extras: {enabled: true}", []string{"'/extras/encryption'", "never stored in the clear"}},
		{"extras: {paths: [etc/pki]}", []string{"'/extras/paths/0'"}},
		{"extras: {path: /etc/pki}", []string{"'/extras'", "'path' not allowed"}},
		{"extras: {enabled: true, destinations: [vault]}\n" + recipientValues, []string{"extras.destinations: there is no destination vault"}},
		{"extras: {enabled: true, paths: []}\n" + recipientValues, []string{"extras.paths: is needed"}},
		{"distribution: talos\nextras: {enabled: true}\n" + recipientValues, []string{"extras.paths: is needed with distribution talos"}},
		{"nodes: all", []string{"'/nodeCount'", "the number of control-plane nodes"}},
		{"nodes: every", []string{"'/nodes'", "'any', 'all'"}},
		{"fullnameOverride: " + strings.Repeat("a", 64), []string{"'/fullnameOverride'", "got 64, want 63"}},
		{"fullnameOverride: Etcd", []string{"'/fullnameOverride'"}},
		{"spool: {sizeLimit: 10GB}", []string{"'/spool/sizeLimit'"}},
		{"image: {digest: abc}", []string{"'/image/digest'"}},
	} {
		text := rendering{values: c.values}.refused(t)
		for _, part := range c.reads {
			require.Contains(t, text, part, c.values)
		}
		require.NotContains(t, text, "nil pointer", c.values)
	}
}

func TestReleaseNameTooLong(t *testing.T) {
	t.Parallel()
	require.Contains(t, rendering{release: strings.Repeat("a", 54)}.refused(t), "53")
}

// Every CronJob schedule that the controller's parser takes is taken, but for the kinds that are refused on
// purpose; and none is taken that the controller would refuse.
func TestScheduleAgreesWithTheCronJobController(t *testing.T) {
	t.Parallel()
	onPurpose := regexp.MustCompile(`(^|[ ,])[0-9a-zA-Z]+/|TZ=|@every|,,|\+`)
	taken := 0
	for _, schedule := range []string{
		"* * * * *", "0 */6 * * *", "*/5 * * * *", "0-59/15 * * * *", "1,2,30 0,12 1-15 1,6 1-5", "0 0 ? * *", "0 0 * jan-jun Mon-Fri",
		"0 0 * JAN sun", "00 09 01 01 0", "59 23 31 12 6", "5 4 * * sun,wed", "0  0   * * *", " 0 0 * * * ", "0 0 29 2 *", "10-20/3,40 * * * *",
		"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly", "*/90 * * * *",
		"60 * * * *", "* 24 * * *", "* * 0 * *", "* * 32 * *", "* * * 0 *", "* * * 13 *", "* * * * 7", "* * * *", "* * * * * *", "", " ",
		"@reboot", "@Hourly", "daily", "a b c d e", "*/0 * * * *", "5-1 * * * *", "* 22-6 * * *", "0 0 * * fri-mon", "0 0 * dec-feb *", "1- * * * *", "-1 * * * *",
		"1,,2 * * * *", "*/-5 * * * *", "1-5-9 * * * *", "*/5/2 * * * *", "0 0 * mon *", "0 0 * * jan", "1.5 * * * *", "+1 * * * *", "0 0 L * *", "0 0 * * 5#3", "0 0 15W * *",
		"0/15 * * * *", "5/10 * * * *", "0 mon/2 * * *", "0 0 * * mon/2", "TZ=UTC 0 0 * * *", "CRON_TZ=Asia/Tokyo 0 0 * * *", "@every 5m", "@every 1h30m",
	} {
		_, parseErr := cron.ParseStandard(schedule)
		r := rendering{values: "schedule: " + quote(schedule)}
		if said := complaints(t, r.valueMap(t)); len(said) > 0 {
			require.Contains(t, said, "schedule")
			require.True(t, parseErr != nil || onPurpose.MatchString(schedule), "%q is refused", schedule)
			continue
		}
		install := r.action()
		install.SkipSchemaValidation = true // it was asked above
		_, err := install.Run(loadChart(t), r.valueMap(t))
		if parseErr == nil && !onPurpose.MatchString(schedule) {
			require.NoError(t, err, "%q", schedule)
			taken++
		} else {
			require.Error(t, err, "%q (the controller says %v)", schedule, parseErr)
			require.Contains(t, err.Error(), "schedule", "%q", schedule)
		}
	}
	require.Greater(t, taken, 20)
}

func quote(s string) string { return `"` + s + `"` }

func TestTimeZones(t *testing.T) {
	t.Parallel()
	for _, zone := range []string{"UTC", "Etc/UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/GMT+5", "Africa/Abidjan", "Zulu", "EST5EDT"} {
		o := render(t, rendering{set: []string{"timeZone=" + zone}})
		require.Equal(t, &zone, o.cronJob(t).Spec.TimeZone)
		require.Equal(t, zone, o.policy(t).Spec.TimeZone, "retention counts days in the schedule's zone")
	}
	o := render(t, rendering{set: []string{"timeZone=Europe/Berlin", "retentionTimeZone=UTC"}})
	require.Equal(t, "UTC", o.policy(t).Spec.TimeZone)
	require.Equal(t, "UTC", render(t, rendering{}).policy(t).Spec.TimeZone)
}

func TestOldKubernetesIsRefused(t *testing.T) {
	t.Parallel()
	require.Contains(t, rendering{minor: 26}.refused(t), "kubeVersion: >=1.27.0-0")
	// Providers' versions have suffixes.
	install := action.NewInstall(&action.Configuration{Log: func(string, ...any) {}})
	install.DryRun, install.ClientOnly, install.ReleaseName, install.Namespace = true, true, "a", "kube-system"
	install.KubeVersion = &chartutil.KubeVersion{Version: "v1.27.3-gke.100", Major: "1", Minor: "27"}
	_, err := install.Run(loadChart(t), nil)
	require.NoError(t, err)
}
