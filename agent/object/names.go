package object

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	k8sschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
)

// Resource is how a kind is called on the command line, and whether its objects lie in namespaces.
type Resource struct {
	Group, Kind, Plural, Singular string
	Short                         []string
	Namespaced                    bool
}

// String is the resource as kubectl prints it: deployments.apps.
func (r Resource) String() string {
	if r.Group == "" {
		return r.Plural
	}
	return r.Plural + "." + r.Group
}

// Is tells whether a word of the command line names the resource: its kind, plural, singular or short name in any case, and
// its group behind a dot, if at all; kubectl's form with a version (deployments.v1.apps) is taken, too.
func (r Resource) Is(word string) bool {
	word = strings.ToLower(word)
	name, group, ok := strings.Cut(word, ".")
	if ok && group != r.Group {
		if version, rest, _ := strings.Cut(group, "."); rest != r.Group || !isVersion(version) {
			return false
		}
	}
	return name == r.Plural || name == r.Singular || name == strings.ToLower(r.Kind) || slices.Contains(r.Short, name)
}

// isVersion tells v1 and v1beta1 from the first part of a group.
func isVersion(s string) bool {
	return len(s) > 1 && s[0] == 'v' && s[1] >= '0' && s[1] <= '9'
}

// Names knows the resources: Kubernetes' own, those that CRDs define, and a guess for others. It also knows which versions of
// each group the cluster served.
type Names struct {
	known map[metav1.GroupKind]Resource
	// served are the versions of each group, as the API server registers them in etcd.
	served map[string][]string
}

// What Kubernetes' types do not say; a test compares it with what a real API server says of itself.
var (
	shortNames = map[string]string{
		"CertificateSigningRequest": "csr", "ConfigMap": "cm", "CronJob": "cj", "DaemonSet": "ds", "Deployment": "deploy",
		"Endpoints": "ep", "HorizontalPodAutoscaler": "hpa", "Ingress": "ing", "IPAddress": "ip", "LimitRange": "limits", "Namespace": "ns",
		"NetworkPolicy": "netpol", "Node": "no", "PersistentVolume": "pv", "PersistentVolumeClaim": "pvc", "Pod": "po",
		"PodDisruptionBudget": "pdb", "PriorityClass": "pc", "ReplicaSet": "rs", "ReplicationController": "rc",
		"ResourceQuota": "quota", "Service": "svc", "ServiceAccount": "sa", "StatefulSet": "sts", "StorageClass": "sc",
		"Event": "ev", "VolumeAttributesClass": "vac", "PodSecurityPolicy": "psp",
	}
	clusterScoped = words(`
		APIService CSIDriver CSINode CertificateSigningRequest ClusterRole ClusterRoleBinding ClusterTrustBundle
		CustomResourceDefinition DeviceClass DeviceTaintRule FlowSchema IPAddress IngressClass MutatingAdmissionPolicy
		MutatingAdmissionPolicyBinding MutatingWebhookConfiguration Namespace Node PersistentVolume PriorityClass
		PriorityLevelConfiguration ResourceSlice RuntimeClass ServiceCIDR StorageClass StorageVersion StorageVersionMigration
		ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding ValidatingWebhookConfiguration VolumeAttachment
		VolumeAttributesClass PodSecurityPolicy ComponentStatus ResourcePoolStatusRequest`)
)

func words(text string) map[string]bool {
	set := map[string]bool{}
	for _, w := range strings.Fields(text) {
		set[w] = true
	}
	return set
}

// jsonKinds are the built-in kinds that are always stored as JSON, and so are not in kinds.txt.
var jsonKinds = []Resource{
	{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition", Short: []string{"crd", "crds"}},
	{Group: "apiregistration.k8s.io", Kind: "APIService"},
}

// NewNames knows Kubernetes' own kinds.
func NewNames() *Names {
	n := &Names{known: map[metav1.GroupKind]Resource{}, served: map[string][]string{}}
	for t := range schema().kinds {
		n.add(Resource{Group: t.Group(), Kind: t.Kind, Short: strings.Fields(shortNames[t.Kind])})
	}
	for _, r := range jsonKinds {
		n.add(r)
	}
	return n
}

func (n *Names) add(r Resource) {
	guessed := guess(r.Group, r.Kind)
	r.Plural, r.Singular, r.Namespaced = guessed.Plural, guessed.Singular, !clusterScoped[r.Kind]
	n.known[metav1.GroupKind{Group: r.Group, Kind: r.Kind}] = r
}

func guess(group, kind string) Resource {
	plural, singular := meta.UnsafeGuessKindToResource(k8sschema.GroupVersionKind{Group: group, Kind: kind})
	return Resource{Group: group, Kind: kind, Plural: plural.Resource, Singular: singular.Resource}
}

// IsCRD tells whether an object of this type is a CustomResourceDefinition.
func (t Type) IsCRD() bool {
	return t.Kind == "CustomResourceDefinition" && t.Group() == "apiextensions.k8s.io"
}

// AddCRD learns the names that a CustomResourceDefinition defines.
func (n *Names) AddCRD(crd *Object) error {
	text := func(path ...string) string {
		s, _, _ := unstructured.NestedString(crd.Object, append([]string{"spec"}, path...)...)
		return s
	}
	r := Resource{Group: text("group"), Kind: text("names", "kind"), Plural: text("names", "plural"), Singular: text("names", "singular"),
		Namespaced: text("scope") == "Namespaced"}
	if r.Kind == "" || r.Plural == "" {
		return fmt.Errorf("CustomResourceDefinition %s names no kind", crd.GetName())
	}
	if r.Singular == "" {
		r.Singular = strings.ToLower(r.Kind)
	}
	r.Short, _, _ = unstructured.NestedStringSlice(crd.Object, "spec", "names", "shortNames")
	n.known[metav1.GroupKind{Group: r.Group, Kind: r.Kind}] = r
	return nil
}

// IsAPIService tells whether an object of this type is an APIService.
func (t Type) IsAPIService() bool {
	return t.Kind == "APIService" && t.Group() == "apiregistration.k8s.io"
}

// AddAPIService learns that the cluster served a version of a group.
func (n *Names) AddAPIService(s *Object) {
	group, _, _ := unstructured.NestedString(s.Object, "spec", "group")
	if v, _, _ := unstructured.NestedString(s.Object, "spec", "version"); v != "" && !slices.Contains(n.served[group], v) {
		n.served[group] = append(n.served[group], v)
	}
}

// Served is the apiVersion in which the cluster served an object: the stored one, unless only others of the group were
// served, one of which has the kind with the very same fields. A new version is served before it is stored, so that an
// older API server can still read what it finds.
func (n *Names) Served(t Type) string {
	versions, group := n.served[t.Group()], t.Group()
	_, stored, ok := strings.Cut(t.APIVersion, "/")
	if !ok || len(versions) == 0 || slices.Contains(versions, stored) {
		return t.APIVersion
	}
	kinds := schema().kinds
	for _, v := range slices.SortedFunc(slices.Values(versions), func(a, b string) int { return version.CompareKubeAwareVersionStrings(b, a) }) {
		other := Type{APIVersion: group + "/" + v, Kind: t.Kind}
		if a, b := kinds[t], kinds[other]; a != nil && b != nil && a.same(b, map[[2]*message]bool{}) {
			return other.APIVersion
		}
	}
	return t.APIVersion
}

// Of gives the resource of an object; known is false where it is a guess, and then it is not known whether it is namespaced.
func (n *Names) Of(t Type) (r Resource, known bool) {
	if t.Encryption != "" {
		plural, group, _ := strings.Cut(t.Resource, ".")
		for gk, r := range n.known {
			// The keys of Kubernetes' own kinds do not name their group.
			if r.Plural == plural && (gk.Group == group || group == "" && !strings.Contains(gk.Group, ".") || group == "" && strings.HasSuffix(gk.Group, ".k8s.io")) {
				return r, true
			}
		}
		return Resource{Group: group, Plural: plural, Singular: plural}, false
	}
	if r, ok := n.known[metav1.GroupKind{Group: t.Group(), Kind: t.Kind}]; ok {
		return r, true
	}
	return guess(t.Group(), t.Kind), false
}

// Builtin tells whether a kind is Kubernetes' own.
func (r Resource) Builtin() bool {
	return !strings.Contains(r.Group, ".") || strings.HasSuffix(r.Group, ".k8s.io")
}

// Has tells whether a word names a kind that is known.
func (n *Names) Has(word string) bool {
	for _, r := range n.known {
		if r.Is(word) {
			return true
		}
	}
	return false
}
