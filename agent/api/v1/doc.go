// Package v1 holds the Go types of the API group etcdsnapshot.dev/v1: the policy that says what to back up
// and where (EtcdSnapshotPolicy), the row that stands for one stored snapshot (EtcdSnapshot), and the manifest
// that is written beside every snapshot (Manifest).
//
// These types are the one source of every schema in the project: the CRDs, the JSON Schemas under schemas/ and
// the destinations part of the chart's values schema are generated from them by `make generate`. Changes are
// additive only: there is no controller and so no conversion webhook.
//
// +kubebuilder:object:generate=true
// +groupName=etcdsnapshot.dev
package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group and version of all kinds in this package.
var GroupVersion = schema.GroupVersion{Group: "etcdsnapshot.dev", Version: "v1"}

// Kinds and resources (the plural in URLs).
const (
	PolicyKind       = "EtcdSnapshotPolicy"
	PolicyResource   = "etcdsnapshotpolicies"
	SnapshotKind     = "EtcdSnapshot"
	SnapshotResource = "etcdsnapshots"
)

// AnnotationSpecDigest tells which of a release's specs a policy was made of: the chart computes it, and nothing is said
// of how. Where the policy's differs from that of the release's manifest, the policy is the older one.
const AnnotationSpecDigest = "etcdsnapshot.dev/spec-digest"

// AddToScheme registers the kinds of this package.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &EtcdSnapshotPolicy{}, &EtcdSnapshotPolicyList{}, &EtcdSnapshot{}, &EtcdSnapshotList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
