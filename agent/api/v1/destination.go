package v1

// Destination is one place that keeps snapshots.
//
// +kubebuilder:validation:XValidation:rule="[has(self.hostPath), has(self.gcs), has(self.azure), has(self.s3)].filter(b, b).size() == 1",message="exactly one backend is needed: one of hostPath, gcs, azure, s3"
type Destination struct {
	// Name of the destination, unique in the policy.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=40
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`

	// A folder on the node.
	// +optional
	HostPath *HostPathDestination `json:"hostPath,omitempty"`
	// A Google Cloud Storage bucket.
	// +optional
	GCS *GCSDestination `json:"gcs,omitempty"`
	// An Azure Blob Storage container.
	// +optional
	Azure *AzureDestination `json:"azure,omitempty"`
	// An S3 bucket, of AWS or of anything that speaks its protocol.
	// +optional
	S3 *S3Destination `json:"s3,omitempty"`

	// Whether a run fails when it does not reach this destination. Where false, that is reported only.
	// +optional
	// +kubebuilder:default=true
	Required *bool `json:"required,omitempty"`

	// Which snapshots are kept here. Left out, all are.
	// +optional
	Retention *Retention `json:"retention,omitempty"`
}

// IsRequired reports whether a run fails when it does not reach this destination.
func (d *Destination) IsRequired() bool { return d.Required == nil || *d.Required }

// Backend names the one backend that is set: hostPath, gcs, azure or s3.
func (d *Destination) Backend() string {
	switch {
	case d.HostPath != nil:
		return "hostPath"
	case d.GCS != nil:
		return "gcs"
	case d.Azure != nil:
		return "azure"
	case d.S3 != nil:
		return "s3"
	}
	return ""
}

// HostPathDestination is a folder on the node. Each node has its own.
type HostPathDestination struct {
	// Absolute path of the folder; it is made if it is missing (mode 0700).
	// +required
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^(/[^/]+)+$`
	// +kubebuilder:validation:XValidation:rule="!self.matches('/[.]{1,2}(/|$)')",message="must not hold the segments '.' or '..'"
	// +kubebuilder:validation:XValidation:rule="self != '/etc'",message="must not be /etc: use a folder of its own, such as /var/lib/etcd-snapshots"
	// +kubebuilder:validation:XValidation:rule="self != '/var/lib/etcd' && !self.startsWith('/var/lib/etcd/')",message="must not be etcd's data directory or lie in it: use a folder of its own, such as /var/lib/etcd-snapshots"
	Path string `json:"path"`
}

// EndpointSpec is what every cloud destination may say about the way to its endpoint.
type EndpointSpec struct {
	// CA certificates (PEM file) that the endpoint's certificate is checked against, besides the system's roots.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:Pattern=`^/.+`
	CABundleFile string `json:"caBundleFile,omitempty"`

	// Do not check the endpoint's certificate at all. Anyone on the way can then read and replace what is sent.
	// +optional
	InsecureSkipTLSVerify bool `json:"insecureSkipTLSVerify,omitempty"`
}

// GCSDestination is a Google Cloud Storage bucket.
type GCSDestination struct {
	// Name of the bucket, without gs://.
	// +required
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=222
	// +kubebuilder:validation:Pattern=`^[a-z0-9][a-z0-9._-]*[a-z0-9]$`
	Bucket string `json:"bucket"`

	// Folder in the bucket; slashes at both ends and doubled ones do not count.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Prefix string `json:"prefix,omitempty"`

	// Base URL of the service where it is not Google's own, such as an emulator or a private endpoint. The
	// scheme decides on TLS.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https?://[^\s/?#]+(/[^\s?#]*)?$`
	Endpoint string `json:"endpoint,omitempty"`

	// Who we are.
	// +optional
	// +kubebuilder:default={}
	Auth GCSAuth `json:"auth,omitzero"`

	EndpointSpec `json:",inline"`

	// Cloud KMS key that objects are encrypted with: projects/P/locations/L/keyRings/R/cryptoKeys/K. Left out,
	// the bucket's default holds.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+$`
	KMSKeyName string `json:"kmsKeyName,omitempty"`

	// Storage class of new objects. Left out, the bucket's default holds.
	// +optional
	// +kubebuilder:validation:Enum=STANDARD;NEARLINE;COLDLINE;ARCHIVE
	StorageClass string `json:"storageClass,omitempty"`

	// Metadata to set on each object, beside nothing of our own.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	Metadata map[string]string `json:"metadata,omitempty"`
}

// GCSAuth says who we are to Google Cloud Storage.
//
// +kubebuilder:validation:XValidation:rule="!has(self.method) || !(self.method in ['serviceAccountKey', 'workloadIdentityFederation']) || has(self.credentialsFile)",message="credentialsFile is needed by the methods serviceAccountKey and workloadIdentityFederation"
type GCSAuth struct {
	// default: Application Default Credentials, GKE's workload identity included. serviceAccountKey and
	// workloadIdentityFederation: the JSON in credentialsFile. anonymous: none.
	// +optional
	// +kubebuilder:default=default
	// +kubebuilder:validation:Enum=default;serviceAccountKey;workloadIdentityFederation;anonymous
	Method string `json:"method,omitempty"`

	// Service account key or federation configuration (JSON).
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:Pattern=`^/.+`
	CredentialsFile string `json:"credentialsFile,omitempty"`
}

// Methods of GCSAuth.
const (
	GCSAuthDefault                    = "default"
	GCSAuthServiceAccountKey          = "serviceAccountKey"
	GCSAuthWorkloadIdentityFederation = "workloadIdentityFederation"
	GCSAuthAnonymous                  = "anonymous"
)

// AzureDestination is an Azure Blob Storage container.
//
// +kubebuilder:validation:XValidation:rule="has(self.account) || has(self.serviceURL)",message="account is needed, or serviceURL where it is not https://<account>.blob.core.windows.net"
type AzureDestination struct {
	// Name of the storage account.
	// +optional
	// +kubebuilder:validation:Pattern=`^[a-z0-9]{3,24}$`
	Account string `json:"account,omitempty"`

	// Name of the container.
	// +required
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9](-?[a-z0-9])*$`
	Container string `json:"container"`

	// Folder in the container; slashes at both ends and doubled ones do not count.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Prefix string `json:"prefix,omitempty"`

	// URL of the blob service where it is not https://<account>.blob.core.windows.net: the government and China
	// clouds, private endpoints, emulators. The scheme decides on TLS.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https?://[^\s/?#]+(/[^\s?#]*)?$`
	ServiceURL string `json:"serviceURL,omitempty"`

	// Who we are.
	// +optional
	// +kubebuilder:default={}
	Auth AzureAuth `json:"auth,omitzero"`

	EndpointSpec `json:",inline"`

	// Access tier of new blobs. Left out, the account's default holds. Archive is not offered: such a blob
	// cannot be read for hours.
	// +optional
	// +kubebuilder:validation:Enum=Hot;Cool;Cold
	AccessTier string `json:"accessTier,omitempty"`

	// Encryption scope of new blobs. Left out, the container's default holds.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	EncryptionScope string `json:"encryptionScope,omitempty"`

	// Metadata to set on each blob; names are C# identifiers.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	Metadata map[string]string `json:"metadata,omitempty"`
}

// AzureAuth says who we are to Azure. Secret values lie in files under credentialsDir, which is what a mounted
// Secret looks like.
//
// +kubebuilder:validation:XValidation:rule="!has(self.method) || !(self.method in ['clientSecret', 'sharedKey', 'sas']) || has(self.credentialsDir)",message="credentialsDir is needed by the methods clientSecret, sharedKey and sas"
// +kubebuilder:validation:XValidation:rule="!has(self.method) || self.method != 'clientSecret' || (has(self.clientID) && has(self.tenantID))",message="clientID and tenantID are needed by the method clientSecret"
type AzureAuth struct {
	// default: the provider's own chain. workloadIdentity: the service account's token. managedIdentity: the
	// node's identity, or the one of clientID. clientSecret: file client-secret. sharedKey: file account-key.
	// sas: file sas-token.
	// +optional
	// +kubebuilder:default=default
	// +kubebuilder:validation:Enum=default;workloadIdentity;managedIdentity;clientSecret;sharedKey;sas
	Method string `json:"method,omitempty"`

	// Folder with one file for each secret value, named as the method says.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:Pattern=`^/.+`
	CredentialsDir string `json:"credentialsDir,omitempty"`

	// Client (application) ID of the identity.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	ClientID string `json:"clientID,omitempty"`

	// Tenant (directory) ID of the identity.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	TenantID string `json:"tenantID,omitempty"`

	// Authority of the identity where it is not https://login.microsoftonline.com/: the government and China clouds.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https://[^\s/?#]+/?$`
	AuthorityHost string `json:"authorityHost,omitempty"`
}

// Methods of AzureAuth, and the files of its credentialsDir.
const (
	AzureAuthDefault          = "default"
	AzureAuthWorkloadIdentity = "workloadIdentity"
	AzureAuthManagedIdentity  = "managedIdentity"
	AzureAuthClientSecret     = "clientSecret"
	AzureAuthSharedKey        = "sharedKey"
	AzureAuthSAS              = "sas"

	AzureFileClientSecret = "client-secret"
	AzureFileAccountKey   = "account-key"
	AzureFileSASToken     = "sas-token"
)

// S3Destination is a bucket of AWS S3 or of anything that speaks its protocol.
type S3Destination struct {
	// Name of the bucket, without s3://.
	// +required
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9][a-z0-9.-]*[a-z0-9]$`
	Bucket string `json:"bucket"`

	// Folder in the bucket; slashes at both ends and doubled ones do not count.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Prefix string `json:"prefix,omitempty"`

	// Region of the bucket. Left out, us-east-1 is used; nothing is asked to find it.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9-]+$`
	Region string `json:"region,omitempty"`

	// URL of the service where it is not AWS. The scheme decides on TLS.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https?://[^\s/?#]+/?$`
	Endpoint string `json:"endpoint,omitempty"`

	// auto: virtual-host style at AWS, Google and Alibaba, path style elsewhere.
	// +optional
	// +kubebuilder:default=auto
	// +kubebuilder:validation:Enum=auto;path;virtualHost
	AddressingStyle string `json:"addressingStyle,omitempty"`

	// Who we are.
	// +optional
	// +kubebuilder:default={}
	Auth S3Auth `json:"auth,omitzero"`

	EndpointSpec `json:",inline"`

	// Checksum headers of the SDK (SHA-256, CRC32C) that some servers refuse. auto: sent to AWS, and where
	// object lock asks for one; always; never (Content-MD5 is sent where one is required).
	// +optional
	// +kubebuilder:default=auto
	// +kubebuilder:validation:Enum=auto;always;never
	Checksums string `json:"checksums,omitempty"`

	// Encryption by the server. Left out, the bucket's default holds.
	// +optional
	ServerSideEncryption *S3ServerSideEncryption `json:"serverSideEncryption,omitempty"`

	// Storage class of new objects. Left out, the bucket's default holds.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Z0-9_]+$`
	StorageClass string `json:"storageClass,omitempty"`

	// Lock on new objects, in a bucket that was made with object lock.
	// +optional
	ObjectLock *S3ObjectLock `json:"objectLock,omitempty"`

	// Tags to set on each object.
	// +optional
	// +kubebuilder:validation:MaxProperties=10
	Tags map[string]string `json:"tags,omitempty"`

	// Metadata to set on each object.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	Metadata map[string]string `json:"metadata,omitempty"`
}

// Addressing styles and checksum modes of S3Destination.
const (
	S3AddressingAuto        = "auto"
	S3AddressingPath        = "path"
	S3AddressingVirtualHost = "virtualHost"

	S3ChecksumsAuto   = "auto"
	S3ChecksumsAlways = "always"
	S3ChecksumsNever  = "never"
)

// S3Auth says who we are to S3. Secret values lie in files under credentialsDir, which is what a mounted Secret
// looks like.
//
// +kubebuilder:validation:XValidation:rule="!has(self.method) || !(self.method in ['static', 'sharedFile']) || has(self.credentialsDir)",message="credentialsDir is needed by the methods static and sharedFile"
type S3Auth struct {
	// default: environment, shared files, web identity, pod identity, instance metadata, in that order. static:
	// files access-key-id, secret-access-key and, if there is one, session-token. sharedFile: file credentials
	// in the AWS CLI's format. webIdentity: the service account's token (IRSA). podIdentity: EKS pod identity.
	// instanceMetadata: the node's role (IMDSv2). anonymous: none.
	// +optional
	// +kubebuilder:default=default
	// +kubebuilder:validation:Enum=default;static;sharedFile;webIdentity;podIdentity;instanceMetadata;anonymous
	Method string `json:"method,omitempty"`

	// Folder with one file for each secret value, named as the method says.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:Pattern=`^/.+`
	CredentialsDir string `json:"credentialsDir,omitempty"`

	// Profile in the shared file.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Profile string `json:"profile,omitempty"`

	// Role to take with the service account's token, where the environment does not name it (AWS_ROLE_ARN).
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	RoleARN string `json:"roleARN,omitempty"`

	// URL of the token service where it is not AWS's own of the region.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https?://[^\s/?#]+(/[^\s?#]*)?$`
	STSEndpoint string `json:"stsEndpoint,omitempty"`
}

// Methods of S3Auth, and the files of its credentialsDir.
const (
	S3AuthDefault          = "default"
	S3AuthStatic           = "static"
	S3AuthSharedFile       = "sharedFile"
	S3AuthWebIdentity      = "webIdentity"
	S3AuthPodIdentity      = "podIdentity"
	S3AuthInstanceMetadata = "instanceMetadata"
	S3AuthAnonymous        = "anonymous"

	S3FileAccessKeyID     = "access-key-id"
	S3FileSecretAccessKey = "secret-access-key"
	S3FileSessionToken    = "session-token"
	S3FileCredentials     = "credentials"
	S3FileSSECKey         = "sse-c-key"
)

// S3ServerSideEncryption says how the server encrypts.
//
// +kubebuilder:validation:XValidation:rule="(self.type == 'SSE-C') == has(self.keyDir)",message="keyDir goes with type SSE-C: it holds the file sse-c-key"
// +kubebuilder:validation:XValidation:rule="!has(self.kmsKeyID) || self.type == 'SSE-KMS'",message="kmsKeyID goes with type SSE-KMS"
type S3ServerSideEncryption struct {
	// SSE-S3: the service's own keys. SSE-KMS: a KMS key. SSE-C: a key of ours, sent with each request.
	// +required
	// +kubebuilder:validation:Enum=SSE-S3;SSE-KMS;SSE-C
	Type string `json:"type"`

	// ID or ARN of the KMS key. Left out, the account's default key is used.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	KMSKeyID string `json:"kmsKeyID,omitempty"`

	// Folder with the file sse-c-key: 32 bytes, raw or in base64.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:Pattern=`^/.+`
	KeyDir string `json:"keyDir,omitempty"`
}

// Types of S3ServerSideEncryption.
const (
	S3SSES3  = "SSE-S3"
	S3SSEKMS = "SSE-KMS"
	S3SSEC   = "SSE-C"
)

// S3ObjectLock protects new objects from being deleted, also by us.
//
// +kubebuilder:validation:XValidation:rule="has(self.mode) == has(self.days)",message="mode and days go together"
// +kubebuilder:validation:XValidation:rule="has(self.mode) || (has(self.legalHold) && self.legalHold)",message="mode and days, or legalHold, must be set"
type S3ObjectLock struct {
	// GOVERNANCE can be lifted by those with the right to, COMPLIANCE by nobody.
	// +optional
	// +kubebuilder:validation:Enum=GOVERNANCE;COMPLIANCE
	Mode string `json:"mode,omitempty"`

	// Days from the upload for which the object cannot be deleted.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=36500
	Days int32 `json:"days,omitempty"`

	// Hold the object until somebody lifts the hold.
	// +optional
	LegalHold bool `json:"legalHold,omitempty"`
}

// Retention says which snapshots a destination keeps, in restic's words: a snapshot is kept if any rule keeps
// it. The newest snapshot is always kept.
//
// +kubebuilder:validation:MinProperties=1
type Retention struct {
	// Keep the newest N.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	Last int32 `json:"last,omitempty"`
	// Keep the newest of each of the last N hours that have one.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	Hourly int32 `json:"hourly,omitempty"`
	// Keep the newest of each of the last N days that have one.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	Daily int32 `json:"daily,omitempty"`
	// Keep the newest of each of the last N weeks (ISO 8601) that have one.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	Weekly int32 `json:"weekly,omitempty"`
	// Keep the newest of each of the last N months that have one.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	Monthly int32 `json:"monthly,omitempty"`
	// Keep the newest of each of the last N years that have one.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	Yearly int32 `json:"yearly,omitempty"`
	// Keep all that are younger than this, counted from the newest: years, months, days and hours, such as 1y6m3d12h.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:Pattern=`^([0-9]{1,6}y)?([0-9]{1,6}m)?([0-9]{1,6}d)?([0-9]{1,6}h)?$`
	Within string `json:"within,omitempty"`
}
