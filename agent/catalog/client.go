// Package catalog is what the agent has to do with the API server: it reads the policy, and after a run it writes
// down what came of it: one EtcdSnapshot row for each stored snapshot, the policy's status, Events.
//
// The stores are the truth and the rows a view of them, rebuilt by each run. The API server is never needed to keep
// a snapshot safe: what cannot be written down now is repaired by the next run.
package catalog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"etcdsnapshot.dev/agent/api"
	v1 "etcdsnapshot.dev/agent/api/v1"
)

// namespaceFile is where Kubernetes puts the pod's own namespace.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

const (
	// dialTime bounds one TCP connect: a host that does not answer is away.
	dialTime = 10 * time.Second
	// requestTime bounds one request. All of ours are small.
	requestTime = 30 * time.Second
)

// Client talks to one API server. It is safe for concurrent use.
type Client struct {
	rest      rest.Interface
	server    string
	namespace string
}

// Connect finds the API server and who we are to it: in the kubeconfig file, or, where that is "", by the pod's service
// account, $KUBECONFIG and ~/.kube/config, the first that is there. No request is made yet. The error is a *ConfigError.
func Connect(kubeconfig string) (*Client, error) {
	if kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err == nil {
			return newClient(config, podNamespace())
		}
		if !errors.Is(err, rest.ErrNotInCluster) {
			return nil, &ConfigError{What: "use the pod's service account", Err: err}
		}
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{})
	where := kubeconfig
	if where == "" {
		where = strings.Join(rules.GetLoadingPrecedence(), ", ")
	}
	config, err := loader.ClientConfig()
	if clientcmd.IsEmptyConfig(err) || errors.Is(err, os.ErrNotExist) && kubeconfig == "" {
		return nil, &ConfigError{What: "find the API server", Err: fmt.Errorf(
			"this is no pod with a service account, and there is no cluster in %s: name a kubeconfig file (--kubeconfig), or work without an API server (--policy-file)", where)}
	}
	if err != nil {
		return nil, &ConfigError{What: "read kubeconfig " + where, Err: err}
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, &ConfigError{What: "read kubeconfig " + where, Err: err}
	}
	return newClient(config, namespace)
}

// New makes a client of a configuration that the caller has. namespace is what Namespace gives.
func New(config *rest.Config, namespace string) (*Client, error) {
	return newClient(rest.CopyConfig(config), namespace)
}

func newClient(config *rest.Config, namespace string) (*Client, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"}) // Status, which carries the API server's errors
	config.GroupVersion = &schema.GroupVersion{}
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.AcceptContentTypes, config.ContentType = "application/json", "application/json"
	config.WarningHandler = rest.NoWarnings{} // they would go to stderr past our log
	config.UserAgent = "etcd-snapshot-agent"
	config.Timeout = requestTime
	if config.Dial == nil {
		config.Dial = (&net.Dialer{Timeout: dialTime, KeepAlive: dialTime}).DialContext
	}
	// The API server's priority and fairness says how fast we may be (429 with Retry-After).
	config.QPS = -1
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return dating{rt} })
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return nil, &ConfigError{What: "use the API server " + config.Host, Err: err}
	}
	return &Client{rest: client, server: config.Host, namespace: namespace}, nil
}

func podNamespace() string {
	if data, err := os.ReadFile(namespaceFile); err == nil {
		if ns := strings.TrimSpace(string(data)); ns != "" {
			return ns
		}
	}
	return metav1.NamespaceDefault
}

// REST is for requests that this package does not know.
func (c *Client) REST() rest.Interface { return c.rest }

// Namespace is the one to use where none is named: the pod's own, or the kubeconfig's.
func (c *Client) Namespace() string { return c.namespace }

// String is the API server's URL.
func (c *Client) String() string { return c.server }

// Policy reads a policy and checks it by this program's own rules: the CRD in the cluster may be older or newer, and a
// field that this program does not know is refused rather than ignored. Its status is left out.
// Errors: *ConfigError, *api.InvalidError, *UnavailableError.
func (c *Client) Policy(ctx context.Context, namespace, name string) (*v1.EtcdSnapshotPolicy, error) {
	obj := map[string]any{}
	if err := c.read(ctx, target{resource: v1.PolicyResource, namespace: namespace, name: name}, &obj); err != nil {
		var away *UnavailableError
		if errors.As(err, &away) {
			err = fmt.Errorf("%w (with --policy-file the policy comes from a file, and no API server is needed)", err)
		}
		return nil, err
	}
	return api.CheckObject(onlyInput(obj), fmt.Sprintf("the API server (%s/%s)", namespace, name))
}

// PolicyStatus reads what the last runs left in a policy's status. Errors: *ConfigError, *UnavailableError.
func (c *Client) PolicyStatus(ctx context.Context, namespace, name string) (*v1.EtcdSnapshotPolicyStatus, error) {
	if namespace == "" {
		namespace = c.namespace
	}
	p := &policy{}
	if err := c.read(ctx, target{resource: v1.PolicyResource, namespace: namespace, name: name}, p); err != nil {
		return nil, err
	}
	return &p.Status, nil
}

// CreatePolicy makes a policy that is not there yet. Errors: *ConfigError, *UnavailableError, and one for
// apierrors.IsAlreadyExists where somebody else was quicker.
func (c *Client) CreatePolicy(ctx context.Context, p *v1.EtcdSnapshotPolicy) error {
	return c.create(ctx, target{resource: v1.PolicyResource, namespace: p.Namespace}, p)
}

// ReplacePolicy makes the spec of a policy that is there what p says, and sets p's labels and annotations; its status and
// what others have added to the labels and annotations stays. Errors: *ConfigError, *UnavailableError.
func (c *Client) ReplacePolicy(ctx context.Context, p *v1.EtcdSnapshotPolicy) error {
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	// A merge patch would leave what p lacks.
	patch := []operation{{"replace", "/spec", p.Spec}}
	escape := strings.NewReplacer("~", "~0", "/", "~1")
	for field, values := range map[string]map[string]string{"labels": p.Labels, "annotations": p.Annotations} {
		for _, k := range slices.Sorted(maps.Keys(values)) {
			patch = append(patch, operation{"add", "/metadata/" + field + "/" + escape.Replace(k), values[k]})
		}
	}
	t := target{resource: v1.PolicyResource, namespace: p.Namespace, name: p.Name}
	return c.patch(ctx, t, types.JSONPatchType, c.rest.Patch(types.JSONPatchType), patch, nil)
}

// onlyInput leaves out of an object what its user did not write and a newer Kubernetes or agent may have added to.
func onlyInput(obj map[string]any) map[string]any {
	input := map[string]any{}
	for k, v := range obj {
		if k != "status" {
			input[k] = v
		}
	}
	if meta, ok := obj["metadata"].(map[string]any); ok {
		known := map[string]any{}
		for _, k := range []string{"name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "labels", "annotations"} {
			if v, ok := meta[k]; ok {
				known[k] = v
			}
		}
		input["metadata"] = known
	}
	return input
}

// ClusterUID is the UID of the namespace kube-system, which is taken for the cluster's.
func (c *Client) ClusterUID(ctx context.Context) (string, error) {
	var ns metav1.PartialObjectMetadata
	if err := c.read(ctx, target{core: true, resource: "namespaces", name: metav1.NamespaceSystem}, &ns); err != nil {
		return "", err
	}
	return string(ns.UID), nil
}

// ServerVersion is the API server's, such as v1.34.4.
func (c *Client) ServerVersion(ctx context.Context) (string, error) {
	var info version.Info
	if err := c.read(ctx, target{resource: "version", url: true}, &info); err != nil {
		return "", err
	}
	return info.GitVersion, nil
}
