// Package apitest holds the policies that tests of several packages accept and refuse: the agent's own loader and a
// real API server must agree on each.
package apitest

import (
	"fmt"
	"strings"
)

// Minimal is a policy with nothing in it that could be left out.
const Minimal = `
apiVersion: etcdsnapshot.dev/v1
kind: EtcdSnapshotPolicy
metadata: {name: etcd, namespace: kube-system}
spec:
  clusterName: prod-eu
  etcd: {endpoints: ["https://127.0.0.1:2379"]}
  destinations:
  - name: node
    hostPath: {path: /var/lib/etcd-snapshots}
`

// Recipient is an X25519 recipient of age.
const Recipient = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"

// edit replaces the one occurrence of old in Minimal.
func edit(old, new string) string {
	if strings.Count(Minimal, old) != 1 {
		panic(fmt.Sprintf("the minimal policy does not hold %q once", old))
	}
	return strings.Replace(Minimal, old, new, 1)
}

// Accepted are policies that are valid, by what they show.
func Accepted() map[string]string {
	dest := func(s string) string { return edit("hostPath: {path: /var/lib/etcd-snapshots}", s) }
	endpoint := func(s string) string { return edit(`"https://127.0.0.1:2379"`, s) }
	spec := func(s string) string { return edit("  clusterName: prod-eu", "  clusterName: prod-eu\n"+s) }
	return map[string]string{
		"JSON":                     `{"apiVersion":"etcdsnapshot.dev/v1","kind":"EtcdSnapshotPolicy","metadata":{"name":"x"},"spec":{"etcd":{"endpoints":["http://e:1"]},"destinations":[{"name":"a","s3":{"bucket":"abc"}}]}}`,
		"comment documents around": "---\n# ours\n---\n" + Minimal + "\n---\n# end\n",
		"no clusterName":           edit("  clusterName: prod-eu\n", ""),
		"IPv6 endpoint":            endpoint(`"https://[::1]:2379"`),
		"unix socket":              endpoint(`"unix:///run/etcd.sock"`),
		"unixs socket":             endpoint(`"unixs:///run/etcd.sock"`),
		"host name endpoint":       endpoint(`"https://etcd-0.etcd.svc.cluster.local:2379/"`),
		"several endpoints":        endpoint(`"https://10.0.0.1:2379", "https://10.0.0.2:2379"`),
		"client certificate":       edit("endpoints:", "certFile: /c.crt, keyFile: /c.key, caFile: /ca.crt, serverName: etcd, endpoints:"),
		"X25519 recipient":         spec(`  encryption: {age: {recipients: ["` + Recipient + `"]}}`),
		"signing":                  spec(`  signing: {ssh: {keyFile: /k, trustedKeys: ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHW3vtUrv8sTgHeTi7bkPNLA7SwzaPZb8u6bvpGhCOlG prod-eu"]}}`),
		"signing elsewhere":        spec(`  signing: {ssh: {trustedKeys: ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHW3vtUrv8sTgHeTi7bkPNLA7SwzaPZb8u6bvpGhCOlG prod-eu"]}}`),
		"SSH recipient":            spec(`  encryption: {age: {recipients: ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHsKLqeplhpW+uObz5dvMgjz1OxfM/XXUB+VHtZ6isGN alice@host"]}}`),
		"gzip":                     spec(`  compression: {algorithm: gzip, level: better}`),
		"full read back":           spec(`  verification: {afterStore: full}`),
		"sibling of the data dir":  dest("hostPath: {path: /var/lib/etcd2/x}"),
		"folder under /etc":        dest("hostPath: {path: /etc/backup/etcd}"),
		"name with dots":           dest("hostPath: {path: /srv/..data/.x}"),
		"gcs":                      dest("gcs: {bucket: backups, prefix: /a//b}"),
		"gcs with key file":        dest("gcs: {bucket: backups, auth: {method: serviceAccountKey, credentialsFile: /k.json}}"),
		"azure":                    dest("azure: {account: acct, container: backups}"),
		"azure by URL":             dest("azure: {serviceURL: \"http://127.0.0.1:10000/devstoreaccount1\", container: backups, auth: {method: sharedKey, credentialsDir: /c}}"),
		"s3":                       dest("s3: {bucket: backups, region: eu-central-1, endpoint: \"https://s3.example.com:9000\", addressingStyle: path}"),
		"s3 with everything":       dest("s3: {bucket: backups, auth: {method: static, credentialsDir: /c}, serverSideEncryption: {type: SSE-C, keyDir: /c}, objectLock: {mode: GOVERNANCE, days: 7, legalHold: true}, tags: {a: b}}"),
		"retention":                dest("hostPath: {path: /b}\n    retention: {last: 1, hourly: 24, daily: 7, weekly: 5, monthly: 12, yearly: 3, within: 1y6m3d12h}"),
		"optional destination":     dest("hostPath: {path: /b}\n    required: false"),
		"two destinations":         Minimal + "  - {name: other, s3: {bucket: abc}}\n",
		"name of 40 characters":    edit("name: etcd,", "name: "+strings.Repeat("a", 40)+","),
		"time zone":                spec("  timeZone: Europe/Berlin"),
		"metrics":                  spec("  metrics: {cluster: prod-eu, perNode: true, textfile: {directory: /var/lib/node_exporter}, pushgateway: {url: \"http://[::1]:9091\"}, otlp: {url: \"https://otel.example:4318/v1/metrics\", credentialsDir: /c, caBundleFile: /ca.crt}}"),
		"notifications":            spec("  notifications:\n  - {name: ops, webhook: {credentialsDir: /n/ops}}\n  - {name: audit, webhook: {credentialsDir: /n/audit, events: [every], signed: true, format: json, caBundleFile: /ca.crt}}\n  - {name: chat, webhook: {credentialsDir: /n/chat, format: teams, signed: false}}\n  - {name: switch, ping: {credentialsDir: /n/switch, run: verify}}"),
		"extras of their own key":  spec(`  extras: {paths: [/etc/kubernetes/pki/], encryption: {age: {recipients: ["` + Recipient + `"]}}}`),
		"extras":                   spec(`  encryption: {age: {recipients: ["` + Recipient + `"]}}` + "\n  extras: {paths: [/etc/kubernetes/pki, /etc/a..b], destinations: [node]}"),
	}
}

// Refusal is a policy that is not valid.
type Refusal struct {
	Doc string
	// Want are texts that the error holds: the field's path, and what is wrong.
	Want []string
	// NoPolicy says that it is so far from being one policy that an API server is not asked.
	NoPolicy bool
}

// Refused are policies that are not valid, by what is wrong.
func Refused() map[string]Refusal {
	notification := func(s string) string {
		return edit("  clusterName: prod-eu", "  clusterName: prod-eu\n  notifications: ["+s+"]")
	}
	dest := func(s string) string { return edit("hostPath: {path: /var/lib/etcd-snapshots}", s) }
	path := func(p string) string { return dest("hostPath: {path: " + p + "}") }
	endpoint := func(s string) string { return edit(`["https://127.0.0.1:2379"]`, s) }
	spec := func(s string) string { return edit("  clusterName: prod-eu", "  clusterName: prod-eu\n"+s) }
	return map[string]Refusal{
		"empty":                        {Doc: "# nothing\n", Want: []string{"empty", "EtcdSnapshotPolicy"}, NoPolicy: true},
		"not YAML":                     {Doc: "{", Want: []string{"yaml"}, NoPolicy: true},
		"a list":                       {Doc: "[1]", Want: []string{"cannot unmarshal"}, NoPolicy: true},
		"two documents":                {Doc: Minimal + "---" + Minimal, Want: []string{"more than one YAML document"}, NoPolicy: true},
		"doubled key":                  {Doc: Minimal + "spec: {}\n", Want: []string{"spec", "already set"}, NoPolicy: true},
		"wrong kind":                   {Doc: edit("kind: EtcdSnapshotPolicy", "kind: EtcdBackup"), Want: []string{`kind: is "EtcdBackup", must be EtcdSnapshotPolicy`}, NoPolicy: true},
		"wrong version":                {Doc: edit("apiVersion: etcdsnapshot.dev/v1", "apiVersion: etcdsnapshot.dev/v2"), Want: []string{"apiVersion: is \"etcdsnapshot.dev/v2\", must be etcdsnapshot.dev/v1"}, NoPolicy: true},
		"no kind":                      {Doc: edit("kind: EtcdSnapshotPolicy", ""), Want: []string{"kind: is missing"}, NoPolicy: true},
		"unknown field":                {Doc: spec("  compresion: {}"), Want: []string{`unknown field "spec.compresion"`}},
		"unknown nested field":         {Doc: dest("hostPath: {path: /b, mode: x}"), Want: []string{`unknown field "spec.destinations[0].hostPath.mode"`}},
		"unknown metadata field":       {Doc: edit("namespace: kube-system", "namspace: kube-system"), Want: []string{`unknown field "metadata.namspace"`}},
		"field in wrong case":          {Doc: edit("clusterName: prod-eu", "clustername: prod-eu"), Want: []string{`unknown field "spec.clustername"`}},
		"no spec":                      {Doc: "apiVersion: etcdsnapshot.dev/v1\nkind: EtcdSnapshotPolicy\nmetadata: {name: etcd}\n", Want: []string{"spec: Required value"}},
		"name too long":                {Doc: edit("name: etcd,", "name: "+strings.Repeat("a", 41)+","), Want: []string{"metadata.name", "40 characters"}},
		"name with dot":                {Doc: edit("name: etcd,", "name: a.b,"), Want: []string{"metadata.name", "DNS label"}},
		"clusterName with slash":       {Doc: edit("prod-eu", "prod/eu"), Want: []string{"spec.clusterName"}},
		"no endpoints":                 {Doc: endpoint("[]"), Want: []string{"spec.etcd.endpoints"}},
		"endpoint without scheme":      {Doc: endpoint(`["127.0.0.1:2379"]`), Want: []string{"spec.etcd.endpoints[0]"}},
		"doubled endpoint":             {Doc: endpoint(`["https://a:1", "https://a:1"]`), Want: []string{"spec.etcd.endpoints[1]", "Duplicate"}},
		"cert without key":             {Doc: edit("endpoints:", "certFile: /c.crt, endpoints:"), Want: []string{"spec.etcd", "certFile and keyFile go together"}},
		"relative key file":            {Doc: edit("endpoints:", "certFile: c.crt, keyFile: /k, endpoints:"), Want: []string{"spec.etcd.certFile"}},
		"no destinations":              {Doc: edit("\n  - name: node\n    hostPath: {path: /var/lib/etcd-snapshots}", " []"), Want: []string{"spec.destinations"}},
		"destinations a string":        {Doc: edit("\n  - name: node\n    hostPath: {path: /var/lib/etcd-snapshots}", " node"), Want: []string{"spec.destinations", "array"}},
		"doubled destination":          {Doc: Minimal + "  - {name: node, s3: {bucket: abc}}\n", Want: []string{"spec.destinations[1]", "Duplicate"}},
		"destination name":             {Doc: edit("name: node", "name: No_de"), Want: []string{"spec.destinations[0].name"}},
		"no backend":                   {Doc: edit("    hostPath: {path: /var/lib/etcd-snapshots}\n", ""), Want: []string{"spec.destinations[0]", "exactly one backend"}},
		"two backends":                 {Doc: dest("hostPath: {path: /b}\n    gcs: {bucket: backups}"), Want: []string{"spec.destinations[0]", "exactly one backend"}},
		"relative path":                {Doc: path("backup"), Want: []string{"spec.destinations[0].hostPath.path"}},
		"path /":                       {Doc: path("/"), Want: []string{"spec.destinations[0].hostPath.path"}},
		"path /etc":                    {Doc: path("/etc"), Want: []string{"spec.destinations[0].hostPath.path", "/etc"}},
		"path /var/lib/etcd":           {Doc: path("/var/lib/etcd"), Want: []string{"spec.destinations[0].hostPath.path", "etcd's data directory"}},
		"path under etcd":              {Doc: path("/var/lib/etcd/member"), Want: []string{"spec.destinations[0].hostPath.path", "etcd's data directory"}},
		"path through dots":            {Doc: path("/var/lib/x/../etcd"), Want: []string{"spec.destinations[0].hostPath.path", "segments"}},
		"path with a dot":              {Doc: path("/var/./lib/etcd"), Want: []string{"spec.destinations[0].hostPath.path", "segments"}},
		"path with doubled slash":      {Doc: path("/var//lib/etcd"), Want: []string{"spec.destinations[0].hostPath.path"}},
		"path with slash at end":       {Doc: path("/etc/"), Want: []string{"spec.destinations[0].hostPath.path"}},
		"recipient not age":            {Doc: spec("  encryption: {age: {recipients: [bob]}}"), Want: []string{"spec.encryption.age.recipients[0]"}},
		"recipient a secret key":       {Doc: spec("  encryption: {age: {recipients: [AGE-SECRET-KEY-1QQQQ]}}"), Want: []string{"spec.encryption.age.recipients[0]"}},
		"recipient cut":                {Doc: spec("  encryption: {age: {recipients: [" + Recipient[:50] + "]}}"), Want: []string{"spec.encryption.age.recipients[0]"}},
		"no recipients":                {Doc: spec("  encryption: {age: {recipients: []}}"), Want: []string{"spec.encryption.age.recipients"}},
		"signing without a key":        {Doc: spec("  signing: {ssh: {}}"), Want: []string{"spec.signing.ssh", "set keyFile to sign snapshots"}},
		"empty signing":                {Doc: spec("  signing: {}"), Want: []string{"spec.signing.ssh: Required value"}},
		"relative signing key":         {Doc: spec("  signing: {ssh: {keyFile: k}}"), Want: []string{"spec.signing.ssh.keyFile"}},
		"trusted key of RSA":           {Doc: spec("  signing: {ssh: {trustedKeys: [ssh-rsa AAAA]}}"), Want: []string{"spec.signing.ssh.trustedKeys[0]"}},
		"no trusted keys":              {Doc: spec("  signing: {ssh: {keyFile: /k, trustedKeys: []}}"), Want: []string{"spec.signing.ssh.trustedKeys"}},
		"empty encryption":             {Doc: spec("  encryption: {}"), Want: []string{"spec.encryption.age: Required value"}},
		"compression":                  {Doc: spec("  compression: {algorithm: lz4}"), Want: []string{"spec.compression.algorithm", `"zstd"`}},
		"level":                        {Doc: spec("  compression: {level: 9}"), Want: []string{"spec.compression.level"}},
		"verification":                 {Doc: spec("  verification: {afterStore: maybe}"), Want: []string{"spec.verification.afterStore"}},
		"bucket with scheme":           {Doc: dest("gcs: {bucket: \"gs://backups\"}"), Want: []string{"spec.destinations[0].gcs.bucket"}},
		"s3 bucket with scheme":        {Doc: dest("s3: {bucket: \"s3://backups\"}"), Want: []string{"spec.destinations[0].s3.bucket"}},
		"bucket missing":               {Doc: dest("s3: {region: x}"), Want: []string{"spec.destinations[0].s3.bucket: Required value"}},
		"azure without account":        {Doc: dest("azure: {container: abc}"), Want: []string{"spec.destinations[0].azure", "account is needed"}},
		"azure key without folder":     {Doc: dest("azure: {account: acct, container: abc, auth: {method: sharedKey}}"), Want: []string{"spec.destinations[0].azure.auth", "credentialsDir"}},
		"azure secret without IDs":     {Doc: dest("azure: {account: acct, container: abc, auth: {method: clientSecret, credentialsDir: /c}}"), Want: []string{"spec.destinations[0].azure.auth", "tenantID"}},
		"gcs key without file":         {Doc: dest("gcs: {bucket: abc, auth: {method: serviceAccountKey}}"), Want: []string{"spec.destinations[0].gcs.auth", "credentialsFile"}},
		"s3 static without folder":     {Doc: dest("s3: {bucket: abc, auth: {method: static}}"), Want: []string{"spec.destinations[0].s3.auth", "credentialsDir"}},
		"s3 secret inline":             {Doc: dest("s3: {bucket: abc, auth: {secretAccessKey: x}}"), Want: []string{`unknown field "spec.destinations[0].s3.auth.secretAccessKey"`}},
		"SSE-C without key":            {Doc: dest("s3: {bucket: abc, serverSideEncryption: {type: SSE-C}}"), Want: []string{"spec.destinations[0].s3.serverSideEncryption", "keyDir"}},
		"KMS key for SSE-S3":           {Doc: dest("s3: {bucket: abc, serverSideEncryption: {type: SSE-S3, kmsKeyID: k}}"), Want: []string{"spec.destinations[0].s3.serverSideEncryption", "kmsKeyID"}},
		"lock without days":            {Doc: dest("s3: {bucket: abc, objectLock: {mode: COMPLIANCE}}"), Want: []string{"spec.destinations[0].s3.objectLock", "days"}},
		"lock without anything":        {Doc: dest("s3: {bucket: abc, objectLock: {legalHold: false}}"), Want: []string{"spec.destinations[0].s3.objectLock", "must be set"}},
		"metrics folder relative":      {Doc: spec("  metrics: {textfile: {directory: metrics}}"), Want: []string{"spec.metrics.textfile.directory"}},
		"metrics folder with dots":     {Doc: spec("  metrics: {textfile: {directory: /a/../b}}"), Want: []string{"spec.metrics.textfile.directory", "segments"}},
		"metrics without URL":          {Doc: spec("  metrics: {pushgateway: {credentialsDir: /c}}"), Want: []string{"spec.metrics.pushgateway.url: Required value"}},
		"metrics URL with secret":      {Doc: spec("  metrics: {otlp: {url: \"https://user:password@otel.example/v1/metrics\"}}"), Want: []string{"spec.metrics.otlp.url"}},
		"metrics URL without scheme":   {Doc: spec("  metrics: {pushgateway: {url: \"pushgateway:9091\"}}"), Want: []string{"spec.metrics.pushgateway.url"}},
		"empty retention":              {Doc: dest("hostPath: {path: /b}\n    retention: {}"), Want: []string{"spec.destinations[0].retention"}},
		"retention 0":                  {Doc: dest("hostPath: {path: /b}\n    retention: {last: 0}"), Want: []string{"spec.destinations[0].retention.last"}},
		"retention negative":           {Doc: dest("hostPath: {path: /b}\n    retention: {daily: -1}"), Want: []string{"spec.destinations[0].retention.daily"}},
		"retention a string":           {Doc: dest("hostPath: {path: /b}\n    retention: {daily: \"7\"}"), Want: []string{"spec.destinations[0].retention.daily", "integer"}},
		"within in weeks":              {Doc: dest("hostPath: {path: /b}\n    retention: {within: 2w}"), Want: []string{"spec.destinations[0].retention.within"}},
		"notification of no kind":      {Doc: notification("{name: a}"), Want: []string{"spec.notifications[0]", "exactly one of webhook and ping"}},
		"notification of two kinds":    {Doc: notification("{name: a, webhook: {credentialsDir: /a}, ping: {credentialsDir: /a}}"), Want: []string{"spec.notifications[0]", "exactly one of webhook and ping"}},
		"notification without name":    {Doc: notification("{webhook: {credentialsDir: /a}}"), Want: []string{"spec.notifications[0].name", "Required"}},
		"doubled notification":         {Doc: notification("{name: a, ping: {credentialsDir: /a}}, {name: a, ping: {credentialsDir: /b}}"), Want: []string{"spec.notifications[1]", "Duplicate"}},
		"webhook without folder":       {Doc: notification("{name: a, webhook: {}}"), Want: []string{"spec.notifications[0].webhook.credentialsDir", "Required"}},
		"webhook with relative folder": {Doc: notification("{name: a, webhook: {credentialsDir: a}}"), Want: []string{"spec.notifications[0].webhook.credentialsDir"}},
		"webhook with a URL":           {Doc: notification("{name: a, webhook: {credentialsDir: /a, url: 'https://hooks.example/T0P'}}"), Want: []string{`unknown field "spec.notifications[0].webhook.url"`}},
		"webhook of no event":          {Doc: notification("{name: a, webhook: {credentialsDir: /a, events: []}}"), Want: []string{"spec.notifications[0].webhook.events"}},
		"webhook of unknown event":     {Doc: notification("{name: a, webhook: {credentialsDir: /a, events: [failure]}}"), Want: []string{"spec.notifications[0].webhook.events[0]", "failure"}},
		"webhook of doubled event":     {Doc: notification("{name: a, webhook: {credentialsDir: /a, events: [failed, failed]}}"), Want: []string{"spec.notifications[0].webhook.events[1]", "Duplicate"}},
		"signed for Slack":             {Doc: notification("{name: a, webhook: {credentialsDir: /a, format: slack, signed: true}}"), Want: []string{"spec.notifications[0].webhook", "signed goes with format json"}},
		"ping of unknown run":          {Doc: notification("{name: a, ping: {credentialsDir: /a, run: restore}}"), Want: []string{"spec.notifications[0].ping.run", "restore"}},
		"extras in the clear":          {Doc: spec("  extras: {paths: [/etc/kubernetes/pki]}"), Want: []string{"spec.extras", "must be encrypted"}},
		"extras to nowhere":            {Doc: spec(`  extras: {paths: [/e], destinations: [nod], encryption: {age: {recipients: ["` + Recipient + `"]}}}`), Want: []string{"spec.extras.destinations", "must name destinations"}},
		"extras without paths":         {Doc: spec(`  extras: {paths: [], encryption: {age: {recipients: ["` + Recipient + `"]}}}`), Want: []string{"spec.extras.paths"}},
		"extras relative":              {Doc: spec(`  extras: {paths: [etc], encryption: {age: {recipients: ["` + Recipient + `"]}}}`), Want: []string{"spec.extras.paths[0]"}},
		"extras through dots":          {Doc: spec(`  extras: {paths: [/etc/../root], encryption: {age: {recipients: ["` + Recipient + `"]}}}`), Want: []string{"spec.extras.paths[0]", "segments"}},
	}
}
