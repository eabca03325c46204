package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// EtcdSnapshot is one row of the table of snapshots: a view of what the stores hold, rebuilt by each run.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=etcdsnapshots,scope=Namespaced,shortName=esnap,categories=etcd-snapshot
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Policy",type=string,JSONPath=`.spec.policy`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.node`
// +kubebuilder:printcolumn:name="Revision",type=integer,JSONPath=`.spec.etcd.revision`
// +kubebuilder:printcolumn:name="Size",type=string,JSONPath=`.status.databaseSize`
// +kubebuilder:printcolumn:name="Stored",type=string,JSONPath=`.status.storedSize`
// +kubebuilder:printcolumn:name="Destinations",type=string,JSONPath=`.status.destinationNames`
// +kubebuilder:printcolumn:name="Verified",type=string,JSONPath=`.status.conditions[?(@.type=="Verified")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.spec.createdAt`
type EtcdSnapshot struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="the facts of a snapshot do not change"
	Spec SnapshotFacts `json:"spec"`
	// +optional
	Status EtcdSnapshotStatus `json:"status,omitzero"`
}

// EtcdSnapshotList is a list of rows.
//
// +kubebuilder:object:root=true
type EtcdSnapshotList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []EtcdSnapshot `json:"items"`
}

// SnapshotFacts are the facts of a snapshot that never change: the spec of its row and the body of its manifest.
type SnapshotFacts struct {
	// Name of the policy it was taken for.
	// +required
	Policy string `json:"policy"`
	// Name of the cluster: the folder it lies in.
	// +required
	ClusterName string `json:"clusterName"`
	// UID of the cluster, where it was known.
	// +optional
	ClusterUID string `json:"clusterUID,omitempty"`
	// When it was taken (UTC, whole seconds): the time in its name.
	// +required
	CreatedAt metav1.Time `json:"createdAt"`
	// Node that the agent ran on.
	// +optional
	Node string `json:"node,omitempty"`
	// Version of the agent that took it.
	// +optional
	AgentVersion string `json:"agentVersion,omitempty"`
	// Version of the API server, where one could be asked.
	// +optional
	KubernetesVersion string `json:"kubernetesVersion,omitempty"`
	// The etcd member it was taken from.
	// +required
	Etcd SnapshotEtcd `json:"etcd"`
	// The database as etcd sent it: what decoding the object gives.
	// +required
	Database DatabaseFacts `json:"database"`
	// The object as it is stored.
	// +required
	Object ObjectFacts `json:"object"`
	// zstd, gzip or none.
	// +required
	// +kubebuilder:validation:Enum=zstd;gzip;none
	Compression string `json:"compression"`
	// How the object is encrypted; left out where it is not.
	// +optional
	Encryption *EncryptionFacts `json:"encryption,omitempty"`
}

// SnapshotEtcd says which etcd a snapshot was taken from. IDs are in hexadecimal, as etcdctl prints them.
type SnapshotEtcd struct {
	// +required
	ClusterID string `json:"clusterID"`
	// +required
	MemberID string `json:"memberID"`
	// Version of the server.
	// +required
	Version string `json:"version"`
	// Storage version of the database; etcd names it since 3.6.
	// +optional
	StorageVersion string `json:"storageVersion,omitempty"`
	// Revision read just before the stream was opened: a lower bound of the snapshot's own.
	// +required
	Revision int64 `json:"revision"`
	// +optional
	RaftTerm int64 `json:"raftTerm,omitempty"`
}

// DatabaseFacts describe the decoded file: etcd's database followed by etcd's own 32-byte checksum of it.
type DatabaseFacts struct {
	// Bytes, the trailing checksum included.
	// +required
	Size int64 `json:"size"`
	// SHA-256 of the whole file in hexadecimal, as sha256sum prints it.
	// +required
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	SHA256 string `json:"sha256"`
}

// ObjectFacts describe the stored object.
type ObjectFacts struct {
	// File name: the snapshot's name and what tells how it is encoded.
	// +required
	Key string `json:"key"`
	// Bytes.
	// +required
	Size int64 `json:"size"`
	// SHA-256 in hexadecimal.
	// +required
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	SHA256 string `json:"sha256"`
}

// EncryptionFacts say how an object is encrypted and who can open it, never with what.
type EncryptionFacts struct {
	// age.
	// +required
	// +kubebuilder:validation:Enum=age
	Kind string `json:"kind"`
	// Fingerprints of the recipients: SHA256: and the unpadded base64 of the SHA-256 of the public key, as
	// ssh-keygen -l prints it for SSH keys.
	// +required
	Recipients []string `json:"recipients"`
}

// ManifestSchemaVersion is the version of the manifest's form that this package describes.
const ManifestSchemaVersion = 1

// Manifest is the JSON file beside every stored snapshot. It is written last: a snapshot without it does not
// exist.
type Manifest struct {
	// Version of this form. A reader refuses one that it does not know.
	// +required
	// +kubebuilder:validation:Enum=1
	SchemaVersion int `json:"schemaVersion"`
	// Name of the snapshot and of its row.
	// +required
	Name string `json:"name"`

	SnapshotFacts `json:",inline"`

	// Files of the node that lie beside this copy of the snapshot; left out where there are none.
	// +optional
	Extras *ExtrasFacts `json:"extras,omitempty"`
}

// ExtrasFacts describe the archive of the node's files: a tar file, compressed with zstd, encrypted with age.
type ExtrasFacts struct {
	// The archive as it is stored.
	// +required
	Object ObjectFacts `json:"object"`
	// Who can open it.
	// +required
	Encryption EncryptionFacts `json:"encryption"`
	// Paths of the files in it, as they were on the node.
	// +required
	Files []string `json:"files"`
}

// EtcdSnapshotStatus is where the snapshot is and how well it is known to be good. It is written by the agent only.
type EtcdSnapshotStatus struct {
	// Size of the database, for people (12.3 MiB).
	// +optional
	DatabaseSize string `json:"databaseSize,omitempty"`
	// Size of the stored object, for people.
	// +optional
	StoredSize string `json:"storedSize,omitempty"`
	// Names of the destinations that hold it, joined by commas.
	// +optional
	DestinationNames string `json:"destinationNames,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=name
	Destinations []SnapshotDestinationStatus `json:"destinations,omitempty"`
	// The last verification.
	// +optional
	Verification *VerificationStatus `json:"verification,omitempty"`
	// Stored: every required destination holds it. Verified: it passed its last verification.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// SnapshotDestinationStatus is a snapshot's copy in one destination.
type SnapshotDestinationStatus struct {
	// +required
	Name string `json:"name"`
	// Where the copy lies.
	// +optional
	URI string `json:"uri,omitempty"`
	// Bytes of the copy.
	// +optional
	Size int64 `json:"size,omitempty"`
	// +required
	// +kubebuilder:validation:Enum=Stored;Failed;Missing;Pruned
	Phase string `json:"phase"`
	// Retention rules that keep the copy.
	// +optional
	// +listType=atomic
	KeptBecause []string `json:"keptBecause,omitempty"`
	// Why the copy failed or is missing.
	// +optional
	Message string `json:"message,omitempty"`
}

// Phases of a copy.
const (
	PhaseStored  = "Stored"
	PhaseFailed  = "Failed"
	PhaseMissing = "Missing"
	PhasePruned  = "Pruned"
)

// VerificationStatus is the outcome of one verification.
type VerificationStatus struct {
	// +required
	Time metav1.Time `json:"time"`
	// +required
	// +kubebuilder:validation:Enum=checksum;database;restore
	Level string `json:"level"`
	// Exact revision of the database; known from level database on.
	// +optional
	Revision int64 `json:"revision,omitempty"`
	// Keys in the database at that revision, as etcdutl snapshot status of etcd 3.6 and later counts them; known from level
	// database on.
	// +optional
	TotalKeys int64 `json:"totalKeys,omitempty"`
	// +required
	// +kubebuilder:validation:Enum=Passed;Failed
	Result string `json:"result"`
	// +optional
	Message string `json:"message,omitempty"`
}

// Results of a verification.
const (
	VerificationPassed = "Passed"
	VerificationFailed = "Failed"
)
