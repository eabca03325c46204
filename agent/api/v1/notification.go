package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Notification is one place that is told how runs end. Where it is lies in a file, for such URLs are secrets. That it
// cannot be told fails no run.
//
// +kubebuilder:validation:XValidation:rule="has(self.webhook) != has(self.ping)",message="exactly one of webhook and ping is needed"
type Notification struct {
	// Name of the notification, unique in the policy.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=40
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`

	// A URL that gets a message for each event it asks for.
	// +optional
	Webhook *Webhook `json:"webhook,omitempty"`
	// A URL that is called when a run begins and when it ends, at a service that raises the alarm when no call comes, such
	// as Healthchecks.
	// +optional
	Ping *Ping `json:"ping,omitempty"`
}

// Webhook is a URL that gets a JSON body by POST.
//
// +kubebuilder:validation:XValidation:rule="!has(self.signed) || !self.signed || !has(self.format) || self.format == 'json'",message="signed goes with format json: chat services check no signature"
type Webhook struct {
	// Events to tell of. failed: a run did not do what it was to. partial: a snapshot did not reach every required
	// destination. recovered: the first success after one of these. verificationFailed: a stored snapshot is corrupt. every:
	// each run.
	// +optional
	// +listType=set
	// +kubebuilder:default={failed,partial,recovered,verificationFailed}
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=5
	// +kubebuilder:validation:items:Enum=failed;partial;recovered;verificationFailed;every
	Events []string `json:"events,omitempty"`

	// Form of the body. json: all that is known, as schemas/notice.schema.json says. slack: a text for Slack and what takes
	// the same, such as Mattermost. teams: an Adaptive Card for a workflow of Microsoft Teams.
	// +optional
	// +kubebuilder:default=json
	// +kubebuilder:validation:Enum=json;slack;teams
	Format string `json:"format,omitempty"`

	// Whether the body is signed with the key in the file signing-key, as Standard Webhooks 1.0 says (HMAC-SHA256).
	// +optional
	Signed bool `json:"signed,omitempty"`

	NotificationTarget `json:",inline"`
}

// Ping is a URL of a dead man's switch.
type Ping struct {
	// Runs to tell of: snapshot, verify or prune. Each needs a switch of its own.
	// +optional
	// +kubebuilder:default=snapshot
	// +kubebuilder:validation:Enum=snapshot;verify;prune
	Run string `json:"run,omitempty"`

	NotificationTarget `json:",inline"`
}

// NotificationTarget is where a notification goes.
type NotificationTarget struct {
	// Folder with the file url and, for what is signed, the file signing-key: what a mounted Secret looks like.
	// +required
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:Pattern=`^/.+`
	CredentialsDir string `json:"credentialsDir"`

	// CA certificates (PEM file) that the server's certificate is checked against, besides the system's roots.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:Pattern=`^/.+`
	CABundleFile string `json:"caBundleFile,omitempty"`
}

// Files of a NotificationTarget's credentialsDir.
const (
	NotificationFileURL        = "url"
	NotificationFileSigningKey = "signing-key"
)

// Formats of a Webhook.
const (
	WebhookJSON  = "json"
	WebhookSlack = "slack"
	WebhookTeams = "teams"
)

// Events that a Webhook can ask for. EventEvery stands for all of them and for EventSucceeded.
const (
	EventSucceeded          = "succeeded"
	EventFailed             = "failed"
	EventPartial            = "partial"
	EventRecovered          = "recovered"
	EventVerificationFailed = "verificationFailed"
	EventEvery              = "every"
	// EventTest is nothing that happened: somebody tries out the notifications.
	EventTest = "test"
)

// Runs that are told of.
const (
	RunSnapshot = "snapshot"
	RunVerify   = "verify"
	RunPrune    = "prune"
)

// NoticeSchemaVersion is the version of the notice's form that this package describes. Fields may be added to it.
const NoticeSchemaVersion = 1

// Notice is the JSON body that a webhook of format json gets: how a run ended. Programs should ignore fields that they do
// not know.
type Notice struct {
	// Version of this form. It changes only where a field goes away or means something else.
	// +required
	// +kubebuilder:validation:Enum=1
	SchemaVersion int `json:"schemaVersion"`
	// What happened. succeeded comes with `every` alone; test is somebody trying out the notifications.
	// +required
	// +kubebuilder:validation:Enum=succeeded;failed;partial;recovered;verificationFailed;test
	Event string `json:"event"`
	// Set where somebody tries out how an event would be told: it did not happen.
	// +optional
	Test bool `json:"test,omitempty"`
	// Which run it was.
	// +required
	// +kubebuilder:validation:Enum=snapshot;verify;prune
	Run string `json:"run"`
	// What happened, in a line for people.
	// +required
	Summary string `json:"summary"`
	// Why, as the run's log says it; the end may be cut off. Left out after a success.
	// +optional
	Message string `json:"message,omitempty"`
	// What was found wrong by the look that a failed snapshot takes around.
	// +optional
	Diagnosis []string `json:"diagnosis,omitempty"`

	// +required
	Policy NoticePolicy `json:"policy"`
	// Name of the cluster's folder in every destination.
	// +required
	ClusterName string `json:"clusterName"`
	// UID of the cluster, where it was known.
	// +optional
	ClusterUID string `json:"clusterUID,omitempty"`
	// Node that the agent ran on.
	// +optional
	Node string `json:"node,omitempty"`
	// Version of the agent.
	// +required
	AgentVersion string `json:"agentVersion"`

	// When the run began.
	// +required
	StartTime metav1.Time `json:"startTime"`
	// When it ended.
	// +required
	EndTime metav1.Time `json:"endTime"`
	// Exit code of the run.
	// +required
	ExitCode int `json:"exitCode"`

	// Runs in a row, this one included, whose snapshot did not reach every required destination. Left out where no API
	// server keeps count.
	// +optional
	ConsecutiveFailures *int32 `json:"consecutiveFailures,omitempty"`
	// When the last snapshot was taken that reached every required destination, this run's included. Left out where no API
	// server knows.
	// +optional
	LastSuccessTime *metav1.Time `json:"lastSuccessTime,omitempty"`

	// The snapshot that was taken, where one was.
	// +optional
	Snapshot *NoticeSnapshot `json:"snapshot,omitempty"`
	// What a verification found.
	// +optional
	Verification *NoticeVerification `json:"verification,omitempty"`
}

// NoticePolicy names the policy that was followed.
type NoticePolicy struct {
	// +required
	Name string `json:"name"`
	// Left out where the policy came from a file that names none.
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// NoticeSnapshot is the snapshot of a run.
type NoticeSnapshot struct {
	// +required
	Name string `json:"name"`
	// Revision read just before the stream was opened.
	// +required
	Revision int64 `json:"revision"`
	// Bytes of the database.
	// +required
	DatabaseBytes int64 `json:"databaseBytes"`
	// Bytes as stored.
	// +required
	StoredBytes int64 `json:"storedBytes"`
	// What became of it in each destination.
	// +required
	Destinations []NoticeDestination `json:"destinations"`
}

// NoticeDestination is what became of the snapshot in one destination.
type NoticeDestination struct {
	// +required
	Name string `json:"name"`
	// Whether the run fails without it.
	// +required
	Required bool `json:"required"`
	// +required
	// +kubebuilder:validation:Enum=Stored;Failed
	Result string `json:"result"`
	// Where it is.
	// +optional
	URI string `json:"uri,omitempty"`
	// Why it is not there, or why old snapshots could not be removed.
	// +optional
	Message string `json:"message,omitempty"`
}

// NoticeVerification sums up the copies that were verified.
type NoticeVerification struct {
	// checksum, database or restore.
	// +required
	Level string `json:"level"`
	// Copies that passed, that are corrupt, and that could not be checked.
	// +required
	Passed int `json:"passed"`
	// +required
	Failed int `json:"failed"`
	// +required
	Unknown int `json:"unknown"`
	// The first of those that did not pass.
	// +optional
	Problems []NoticeCopy `json:"problems,omitempty"`
}

// NoticeCopy is a copy of a snapshot that did not pass its verification.
type NoticeCopy struct {
	// +required
	Snapshot string `json:"snapshot"`
	// +required
	Destination string `json:"destination"`
	// Failed: it is corrupt. Unknown: it could not be checked.
	// +required
	// +kubebuilder:validation:Enum=Failed;Unknown
	Result string `json:"result"`
	// +optional
	Message string `json:"message,omitempty"`
}
