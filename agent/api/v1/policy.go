package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// EtcdSnapshotPolicy says which etcd to back up, how, and where the snapshots are kept. The schedule is not in
// it: that is the CronJob's alone.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=etcdsnapshotpolicies,scope=Namespaced,shortName=esp,categories=etcd-snapshot
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Schedule",type=string,JSONPath=`.status.schedule`
// +kubebuilder:printcolumn:name="Last Success",type=date,JSONPath=`.status.lastSuccessTime`
// +kubebuilder:printcolumn:name="Snapshots",type=integer,JSONPath=`.status.snapshots`
// +kubebuilder:printcolumn:name="Size",type=string,JSONPath=`.status.size`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Verified",type=string,JSONPath=`.status.conditions[?(@.type=="Verified")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 40",message="metadata.name must be at most 40 characters: it begins the name of every snapshot"
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="metadata.name must be a DNS label (lower-case letters, digits and '-'): it begins the name of every snapshot"
type EtcdSnapshotPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	// +required
	Spec EtcdSnapshotPolicySpec `json:"spec"`
	// +optional
	Status EtcdSnapshotPolicyStatus `json:"status,omitzero"`
}

// EtcdSnapshotPolicyList is a list of policies.
//
// +kubebuilder:object:root=true
type EtcdSnapshotPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []EtcdSnapshotPolicy `json:"items"`
}

// EtcdSnapshotPolicySpec is what a user writes.
//
// +kubebuilder:validation:XValidation:rule="!has(self.extras) || has(self.extras.encryption) || has(self.encryption)",message="extras must be encrypted: set extras.encryption.age.recipients, or encryption.age.recipients",fieldPath=".extras"
// +kubebuilder:validation:XValidation:rule="!has(self.extras) || !has(self.extras.destinations) || self.extras.destinations.all(n, self.destinations.exists(d, d.name == n))",message="extras.destinations must name destinations of this policy",fieldPath=".extras.destinations"
type EtcdSnapshotPolicySpec struct {
	// Name of the folder in every destination that this cluster's snapshots lie in. Defaults to the UID of the
	// namespace kube-system; where the policy is read from a file without an API server, to status.clusterName, and
	// without that it is required.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9]([-a-zA-Z0-9_.]*[a-zA-Z0-9])?$`
	ClusterName string `json:"clusterName,omitempty"`

	// UID that marks this cluster's folders as its own. Defaults to the UID of the namespace kube-system. Set it
	// where the agent runs without an API server and two clusters might be given the same clusterName.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?$`
	ClusterUID string `json:"clusterUID,omitempty"`

	// IANA name of the time zone in which retention counts hours, days, weeks, months and years.
	// +optional
	// +kubebuilder:default=UTC
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z][A-Za-z0-9_+/-]*$`
	TimeZone string `json:"timeZone,omitempty"`

	// How to reach etcd.
	// +required
	Etcd EtcdSpec `json:"etcd"`

	// How snapshots are compressed.
	// +optional
	// +kubebuilder:default={}
	Compression CompressionSpec `json:"compression,omitzero"`

	// How snapshots are encrypted. Left out, they are not.
	// +optional
	Encryption *EncryptionSpec `json:"encryption,omitempty"`

	// How snapshots are signed, and whose signatures count. Left out, they are not signed.
	// +optional
	Signing *SigningSpec `json:"signing,omitempty"`

	// Where snapshots are stored. Every destination gets every snapshot.
	// +required
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Destinations []Destination `json:"destinations"`

	// How snapshots are checked after they were stored.
	// +optional
	// +kubebuilder:default={}
	Verification VerificationSpec `json:"verification,omitzero"`

	// Where metrics of the runs are handed over.
	// +optional
	Metrics *MetricsSpec `json:"metrics,omitempty"`

	// Who is told how runs end.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Notifications []Notification `json:"notifications,omitempty"`

	// Files of the node that are stored beside each snapshot in an archive of their own, always encrypted: what a
	// restored etcd is of little use without. Left out, there are none.
	// +optional
	Extras *ExtrasSpec `json:"extras,omitempty"`
}

// ExtrasSpec says which files of the node go with each snapshot. They hold private keys: whoever opens the archive can
// act as anyone in the cluster.
type ExtrasSpec struct {
	// Files and folders, by the paths that they have on the node. Folders are taken with all that is in them; symbolic
	// links in them are kept as links.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=1024
	// +kubebuilder:validation:items:Pattern=`^(/[^/]+)+/?$`
	// +kubebuilder:validation:items:XValidation:rule="!self.matches('/[.]{1,2}(/|$)')",message="must not hold the segments '.' or '..'"
	Paths []string `json:"paths"`

	// Who can open the archive. Left out, whoever opens the snapshots.
	// +optional
	Encryption *EncryptionSpec `json:"encryption,omitempty"`

	// Names of the destinations that get the archive. Left out, all do.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=40
	Destinations []string `json:"destinations,omitempty"`
}

// EtcdSpec says how to reach etcd. Files are named by the paths they have on the node, which are the paths at
// which the chart mounts them in the pod.
//
// +kubebuilder:validation:XValidation:rule="has(self.certFile) == has(self.keyFile)",message="certFile and keyFile go together: set both or neither"
type EtcdSpec struct {
	// Client URLs of the members: https://, http://, unix:// or unixs://. All are asked for their status, one is
	// asked for the snapshot.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:items:Pattern=`^(https?://(\[[0-9a-fA-F:.%a-z]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?/?|unixs?://.+)$`
	Endpoints []string `json:"endpoints"`

	// CA certificates (PEM) that the members' certificates are checked against. Without it the system's roots are used.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:Pattern=`^/.+`
	CAFile string `json:"caFile,omitempty"`

	// Client certificate (PEM).
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:Pattern=`^/.+`
	CertFile string `json:"certFile,omitempty"`

	// Key of the client certificate (PEM).
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:Pattern=`^/.+`
	KeyFile string `json:"keyFile,omitempty"`

	// Name that the members' certificates must carry, where it is not the endpoint's host.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ServerName string `json:"serverName,omitempty"`
}

// CompressionSpec says how snapshots are compressed.
type CompressionSpec struct {
	// zstd is fast and small, gzip is everywhere, none keeps the database as etcd sent it.
	// +optional
	// +kubebuilder:default=zstd
	// +kubebuilder:validation:Enum=zstd;gzip;none
	Algorithm string `json:"algorithm,omitempty"`

	// How hard to try: fastest costs the control plane least.
	// +optional
	// +kubebuilder:default=fastest
	// +kubebuilder:validation:Enum=fastest;default;better
	Level string `json:"level,omitempty"`
}

// Compression algorithms and levels.
const (
	CompressionZstd = "zstd"
	CompressionGzip = "gzip"
	CompressionNone = "none"

	LevelFastest = "fastest"
	LevelDefault = "default"
	LevelBetter  = "better"
)

// EncryptionSpec says how snapshots are encrypted.
type EncryptionSpec struct {
	// Encryption with age (https://age-encryption.org/v1): `age -d` opens the stored file.
	// +required
	Age *AgeSpec `json:"age"`
}

// AgeSpec names the public keys that can open a snapshot.
type AgeSpec struct {
	// Public keys: age1... (X25519), age1pq1... (post-quantum hybrid), ssh-ed25519 or ssh-rsa. Any one of the
	// matching identities opens the snapshot.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=4096
	// +kubebuilder:validation:items:Pattern=`^(age1[02-9ac-hj-np-z]{58}|age1pq1[02-9ac-hj-np-z]{100,}|ssh-(ed25519|rsa) [A-Za-z0-9+/]{40,}={0,2}( .*)?)$`
	Recipients []string `json:"recipients"`
}

// SigningSpec says how snapshots are signed.
type SigningSpec struct {
	// Signatures of SSH keys: `ssh-keygen -Y verify` checks the stored files.
	// +required
	SSH *SSHSigningSpec `json:"ssh"`
}

// SSHSigningSpec names the key that signs the manifest of each snapshot, which holds the checksums of all the rest, and
// those that are trusted when snapshots are read.
//
// +kubebuilder:validation:XValidation:rule="has(self.keyFile) || has(self.trustedKeys)",message="set keyFile to sign snapshots, trustedKeys to take none but signed ones, or both"
type SSHSigningSpec struct {
	// SSH private key (ssh-ed25519, without a passphrase) that signs. Left out, this agent signs nothing.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:Pattern=`^/.+`
	KeyFile string `json:"keyFile,omitempty"`

	// SSH public keys (ssh-ed25519). Where there are some, restore and verify refuse snapshots that none of them
	// signed. They must include that of keyFile, and may include older ones.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=1024
	// +kubebuilder:validation:items:Pattern=`^ssh-ed25519 [A-Za-z0-9+/]{68}( .*)?$`
	TrustedKeys []string `json:"trustedKeys,omitempty"`
}

// VerificationSpec says how snapshots are checked after they were stored.
type VerificationSpec struct {
	// none trusts the upload; checksum compares size and checksum with what the store reports; full reads every
	// byte back.
	// +optional
	// +kubebuilder:default=checksum
	// +kubebuilder:validation:Enum=none;checksum;full
	AfterStore string `json:"afterStore,omitempty"`
}

// Values of VerificationSpec.AfterStore.
const (
	AfterStoreNone     = "none"
	AfterStoreChecksum = "checksum"
	AfterStoreFull     = "full"
)

// EtcdSnapshotPolicyStatus is what the last runs found. It is written by the agent only.
type EtcdSnapshotPolicyStatus struct {
	// Name of the folder in every destination that this cluster's snapshots lie in, as the last run used it. A manifest
	// that was saved with its status is enough to find them without an API server.
	// +optional
	ClusterName string `json:"clusterName,omitempty"`
	// UID that marks this cluster's folders, as the last run used it.
	// +optional
	ClusterUID string `json:"clusterUID,omitempty"`
	// Schedule of the CronJob that ran last, in its time zone.
	// +optional
	Schedule string `json:"schedule,omitempty"`
	// Longest time, in seconds, between two runs of that schedule: a weekend, where it runs on weekdays.
	// +optional
	ScheduleIntervalSeconds int64 `json:"scheduleIntervalSeconds,omitempty"`
	// When the last run began.
	// +optional
	LastRunTime *metav1.Time `json:"lastRunTime,omitempty"`
	// How the last run ended. Succeeded: the snapshot reached every required destination. Partial: it reached some.
	// +optional
	// +kubebuilder:validation:Enum=Succeeded;Partial;Failed
	LastResult string `json:"lastResult,omitempty"`
	// When the last snapshot was taken that reached every required destination.
	// +optional
	LastSuccessTime *metav1.Time `json:"lastSuccessTime,omitempty"`
	// Name of the snapshot of the last success.
	// +optional
	LastSnapshot string `json:"lastSnapshot,omitempty"`
	// How long the last run took.
	// +optional
	LastDuration *metav1.Duration `json:"lastDuration,omitempty"`
	// The same in seconds (1.58), for programs.
	// +optional
	LastDurationSeconds string `json:"lastDurationSeconds,omitempty"`
	// Runs in a row that did not reach every required destination.
	// +optional
	ConsecutiveFailures int32 `json:"consecutiveFailures"`
	// Snapshots of this policy that can be seen in at least one destination.
	// +optional
	Snapshots *int32 `json:"snapshots,omitempty"`
	// Size of the newest snapshot as stored, for people (12.3 MiB).
	// +optional
	Size string `json:"size,omitempty"`
	// Bytes of the database in the last snapshot that was stored somewhere.
	// +optional
	DatabaseBytes int64 `json:"databaseBytes,omitempty"`
	// Bytes of the database in the one before it.
	// +optional
	PreviousDatabaseBytes int64 `json:"previousDatabaseBytes,omitempty"`
	// Bytes of the last snapshot as stored.
	// +optional
	StoredBytes int64 `json:"storedBytes,omitempty"`
	// Revision of etcd when the last snapshot was taken.
	// +optional
	Revision int64 `json:"revision,omitempty"`
	// Revision of etcd when the one before it was taken.
	// +optional
	PreviousRevision int64 `json:"previousRevision,omitempty"`
	// Certificates that etcd is reached with, as the last run read them.
	// +optional
	// +listType=map
	// +listMapKey=file
	Certificates []CertificateStatus `json:"certificates,omitempty"`
	// The last verifications, by level. One of level restore proves what the lower levels do, and is entered under its own
	// level alone.
	// +optional
	// +listType=map
	// +listMapKey=level
	Verifications []PolicyVerificationStatus `json:"verifications,omitempty"`
	// What each destination holds.
	// +optional
	// +listType=map
	// +listMapKey=name
	Destinations []PolicyDestinationStatus `json:"destinations,omitempty"`
	// Ready: the last run reached every required destination. Verified: the newest snapshot passed its last
	// verification.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Values of EtcdSnapshotPolicyStatus.LastResult.
const (
	ResultSucceeded = "Succeeded"
	ResultPartial   = "Partial"
	ResultFailed    = "Failed"
)

// CertificateStatus is what was read in a file of certificates.
type CertificateStatus struct {
	// Path of the file.
	// +required
	File string `json:"file"`
	// When it expires; of several CA certificates, the last one of them.
	// +required
	NotAfter metav1.Time `json:"notAfter"`
}

// PolicyVerificationStatus is what the verifications of one level found.
type PolicyVerificationStatus struct {
	// +required
	// +kubebuilder:validation:Enum=checksum;database;restore
	Level string `json:"level"`
	// When the last one was made.
	// +required
	Time metav1.Time `json:"time"`
	// Snapshot that it was made of: of several, the newest one that failed, or else the newest.
	// +required
	Snapshot string `json:"snapshot"`
	// +required
	// +kubebuilder:validation:Enum=Passed;Failed
	Result string `json:"result"`
	// +optional
	Message string `json:"message,omitempty"`
	// When one last passed.
	// +optional
	PassedTime *metav1.Time `json:"passedTime,omitempty"`
	// Newest snapshot that passed.
	// +optional
	PassedSnapshot string `json:"passedSnapshot,omitempty"`
	// When that snapshot was taken.
	// +optional
	PassedSnapshotTime *metav1.Time `json:"passedSnapshotTime,omitempty"`
}

// PolicyDestinationStatus is what one destination holds of this policy's snapshots.
type PolicyDestinationStatus struct {
	// +required
	Name string `json:"name"`
	// hostPath, gcs, azure or s3.
	// +optional
	Backend string `json:"backend,omitempty"`
	// Whether a run fails when it does not reach this destination.
	// +optional
	Required *bool `json:"required,omitempty"`
	// Whether a retention rule says which snapshots are kept here; without one, all are.
	// +optional
	Retention *bool `json:"retention,omitempty"`
	// Snapshots in this destination.
	// +optional
	Snapshots int32 `json:"snapshots"`
	// Their size in bytes, as stored.
	// +optional
	Bytes int64 `json:"bytes"`
	// +optional
	LastSuccessTime *metav1.Time `json:"lastSuccessTime,omitempty"`
	// When retention was last applied here without an error.
	// +optional
	LastPruneTime *metav1.Time `json:"lastPruneTime,omitempty"`
	// Snapshots that it removed then.
	// +optional
	LastPruned *int32 `json:"lastPruned,omitempty"`
	// Why the last run failed here; empty after a success.
	// +optional
	Message string `json:"message,omitempty"`
}

// Conditions of a policy and of a snapshot.
const (
	ConditionReady    = "Ready"
	ConditionVerified = "Verified"
	ConditionStored   = "Stored"
)
