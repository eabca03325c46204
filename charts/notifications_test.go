package charts

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

func notificationTarget(n v1.Notification) v1.NotificationTarget {
	if n.Ping != nil {
		return n.Ping.NotificationTarget
	}
	return n.Webhook.NotificationTarget
}

// The policy says what the values say, with the files of the Secrets in place of the Secrets.
func TestNotifications(t *testing.T) {
	t.Parallel()
	o := render(t, rendering{values: scenarios(t)["notifications"]})
	byName := map[string]v1.Notification{}
	for _, n := range o.policy(t).Spec.Notifications {
		byName[n.Name] = n
		require.Equal(t, "/etc/etcd-snapshot/notifications/"+n.Name, notificationTarget(n).CredentialsDir)
	}
	require.Len(t, byName, 5)
	require.Equal(t, []string{v1.EventFailed, v1.EventVerificationFailed}, byName["pager"].Webhook.Events)
	require.True(t, byName["pager"].Webhook.Signed)
	require.Equal(t, "/etc/etcd-snapshot/notification-ca/pager/ca.crt", byName["pager"].Webhook.CABundleFile)
	require.Equal(t, v1.WebhookSlack, byName["slack"].Webhook.Format)
	require.Len(t, byName["slack"].Webhook.Events, 4, "the API's default")
	require.Equal(t, v1.WebhookTeams, byName["teams"].Webhook.Format)
	require.Equal(t, v1.RunSnapshot, byName["snapshots"].Ping.Run)
	require.Equal(t, v1.RunVerify, byName["proofs"].Ping.Run)
	require.Empty(t, render(t, rendering{}).policy(t).Spec.Notifications)
}

// Every pod that tells of a run has the Secrets as files, and starts without them: no notification is worth a snapshot.
// Nothing of a Secret is in its environment or arguments.
func TestNotificationsAreMountedAndOptional(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"notifications", "everything"} {
		o := render(t, rendering{values: scenarios(t)[name]})
		for _, component := range []string{"snapshot", "verification"} {
			pod := o.only(t, component).Spec.JobTemplate.Spec.Template.Spec
			mounts := map[string]string{}
			for _, m := range pod.Containers[0].VolumeMounts {
				if strings.HasPrefix(m.MountPath, "/etc/etcd-snapshot/notification") {
					require.True(t, m.ReadOnly)
					mounts[m.Name] = m.MountPath
				}
			}
			volumes := map[string]corev1.Volume{}
			for _, v := range pod.Volumes {
				volumes[v.Name] = v
			}
			for _, n := range o.policy(t).Spec.Notifications {
				where := notificationTarget(n)
				require.Equal(t, where.CredentialsDir, mounts["notification-"+n.Name])
				secret := volumes["notification-"+n.Name].Secret
				require.NotNil(t, secret)
				require.True(t, *secret.Optional)
				require.Equal(t, int32(0o400), *secret.DefaultMode)
				ca, ok := volumes["notifier-ca-"+n.Name]
				require.Equal(t, where.CABundleFile != "", ok)
				if ok {
					require.Equal(t, where.CABundleFile, mounts["notifier-ca-"+n.Name]+"/ca.crt")
					if ca.Secret != nil {
						require.True(t, *ca.Secret.Optional)
					} else {
						require.True(t, *ca.ConfigMap.Optional)
					}
				}
			}
			for _, e := range pod.Containers[0].Env {
				require.True(t, e.ValueFrom == nil || e.ValueFrom.SecretKeyRef == nil, e.Name)
			}
			require.Empty(t, pod.Containers[0].EnvFrom)
		}
	}
}

// Certificates given in the values themselves are in our ConfigMap, beside those of destinations of the same name.
func TestNotificationCABundles(t *testing.T) {
	t.Parallel()
	pem := "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----"
	o := render(t, rendering{values: `
destinations: {ops: {s3: {bucket: abc, caBundle: {inline: "` + strings.ReplaceAll(pem, "\n", `\n`) + `"}}}}
notifications: {ops: {ping: {existingSecret: s, caBundle: {inline: "` + strings.ReplaceAll(pem, "\n", `\n`) + `"}}}}
`})
	require.Equal(t, map[string]string{"ops.crt": pem, "notification.ops.crt": pem}, o.configMap(t, "ca").Data)
	require.Equal(t, "ops.crt", o.volume(t, "ca-ops").ConfigMap.Items[0].Key)
	require.Equal(t, "notification.ops.crt", o.volume(t, "notifier-ca-ops").ConfigMap.Items[0].Key)
	with := render(t, rendering{values: "notifications: {ops: {ping: {existingSecret: s, caBundle: {configMap: {name: c, key: k.pem}}}}}"})
	require.Equal(t, corev1.KeyToPath{Key: "k.pem", Path: "ca.crt"}, with.volume(t, "notifier-ca-ops").ConfigMap.Items[0])
	with = render(t, rendering{values: "notifications: {ops: {ping: {existingSecret: s, caBundle: {existingSecret: {name: c}}}}}"})
	require.Equal(t, corev1.KeyToPath{Key: "ca.crt", Path: "ca.crt"}, with.volume(t, "notifier-ca-ops").Secret.Items[0])
}
