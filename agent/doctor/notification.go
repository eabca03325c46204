package doctor

import (
	"context"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/notify"
)

// checkNotification looks whether a notification's Secret can be used and its server answers. Nothing is sent that
// anybody would see: that the URL is still good is for the verb notify to try. A run goes on without its notifications,
// so nothing here fails.
func (r *run) checkNotification(ctx context.Context, spec v1.Notification) []Finding {
	const name = "notification"
	found := notify.New([]v1.Notification{spec}, notify.Options{Log: r.Log}).Reach(ctx)[0]
	switch {
	case found.Err != nil && found.Host == "":
		return []Finding{warned(name, spec.Name, "Make the Secret, or correct it; the chart mounts notifications."+spec.Name+".existingSecret there.", "spec.notifications[%s]: %v", spec.Name, found.Err)}
	case found.Err != nil:
		return []Finding{warned(name, spec.Name, "Check the Secret's key url, firewalls, HTTPS_PROXY and caBundleFile.", "%s does not answer: %v", found.Host, found.Err)}
	case found.Plain:
		return []Finding{warned(name, spec.Name, "Write https:// in the Secret's key url.", "%s answers, but the URL, which is a secret, goes there without TLS", found.Host)}
	}
	return []Finding{ok(name, spec.Name, "%s answers (`etcd-snapshot-agent notify` sends a test message)", found.Host)}
}
