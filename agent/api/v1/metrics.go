package v1

// MetricsSpec says where the agent hands over its metrics, for clusters where kube-state-metrics does not make them of
// the policy's status. That they cannot be handed over fails no run.
type MetricsSpec struct {
	// Label cluster of each metric, where metrics of several clusters come together.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Cluster string `json:"cluster,omitempty"`

	// Whether each metric has a label node. It is for policies that run on every node, each of which has metrics of its own.
	// +optional
	PerNode bool `json:"perNode,omitempty"`

	// A file for node-exporter's textfile collector.
	// +optional
	Textfile *MetricsTextfile `json:"textfile,omitempty"`

	// A Pushgateway.
	// +optional
	Pushgateway *MetricsEndpoint `json:"pushgateway,omitempty"`

	// Whatever takes OTLP over HTTP, such as an OpenTelemetry Collector or Prometheus itself.
	// +optional
	OTLP *MetricsEndpoint `json:"otlp,omitempty"`
}

// MetricsTextfile is where node-exporter's textfile collector finds metrics.
type MetricsTextfile struct {
	// Folder that the collector reads (--collector.textfile.directory). The file in it is named
	// etcd-snapshot_NAMESPACE_POLICY.prom.
	// +required
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:Pattern=`^(/[^/]+)+$`
	// +kubebuilder:validation:XValidation:rule="!self.matches('/[.]{1,2}(/|$)')",message="must not hold the segments '.' or '..'"
	Directory string `json:"directory"`
}

// MetricsEndpoint is a server that takes metrics over HTTP.
type MetricsEndpoint struct {
	// URL: of a Pushgateway without /metrics, of an OTLP receiver with its whole path, mostly /v1/metrics. It holds no
	// secrets: those lie in credentialsDir.
	// +required
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:Pattern=`^https?://(\[[0-9a-fA-F:.%a-z]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?(/[^?#@\s]*)?$`
	URL string `json:"url"`

	// Folder with the files username and password, or the file token, as a mounted Secret holds them. Left out, the server
	// asks for none.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:Pattern=`^/.+`
	CredentialsDir string `json:"credentialsDir,omitempty"`

	EndpointSpec `json:",inline"`
}

// Files of a MetricsEndpoint's credentialsDir.
const (
	MetricsFileUsername = "username"
	MetricsFilePassword = "password"
	MetricsFileToken    = "token"
)
