package doctor

import (
	"context"

	"etcdsnapshot.dev/agent/metrics"
)

// checkReceiver looks whether metrics can be handed over. None are: a series of the doctor's would be taken for a run's. A run
// goes on without it, so nothing here fails.
func checkReceiver(ctx context.Context, receiver metrics.Receiver) []Finding {
	const name = "metrics"
	if err := receiver.Probe(ctx); err != nil {
		remedy := "Check its url, credentialsDir, caBundleFile, firewalls and HTTPS_PROXY; alerts that live on these metrics see no run until then."
		if receiver.Field == "textfile" {
			remedy = "Make the folder that node-exporter reads (--collector.textfile.directory), writable for the agent's user; the chart mounts monitoring.metrics.textfile.directory."
		}
		return []Finding{warned(name, receiver.Field, remedy, "%s cannot be used: %v", receiver.Where, err)}
	}
	return []Finding{ok(name, receiver.Field, "%s %s", receiver.Where, map[string]string{
		"textfile": "can be written", "pushgateway": "is ready, and knows us", "otlp": "takes what we send, and knows us",
	}[receiver.Field])}
}
