package catalog

import (
	"context"
	encodingjson "encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

// Right is something that a run asks of the API server.
type Right struct {
	Verb        string `json:"verb"`
	Group       string `json:"group"`
	Resource    string `json:"resource"`
	Subresource string `json:"subresource,omitempty"`
	Namespace   string `json:"namespace,omitempty"`
	Name        string `json:"name,omitempty"`
}

// String is as a Role names it: patch etcdsnapshots.etcdsnapshot.dev/status in kube-system.
func (r Right) String() string {
	text := r.Verb + " " + target{core: r.Group == "", resource: r.Resource, subresource: r.Subresource}.rbac()
	if r.Name != "" {
		text += " " + r.Name
	}
	if r.Namespace != "" {
		text += " in " + r.Namespace
	}
	return text
}

// Rights are those that the runs of a policy need; readUID says that the cluster's UID is read from the namespace
// kube-system.
func Rights(namespace, policy string, readUID bool) (all []Right) {
	group := v1.GroupVersion.Group
	add := func(group, resource, subresource, name string, verbs ...string) {
		for _, verb := range verbs {
			all = append(all, Right{verb, group, resource, subresource, namespace, name})
		}
	}
	add(group, v1.PolicyResource, "", policy, "get", "patch")
	add(group, v1.PolicyResource, "", "", "create")
	add(group, v1.PolicyResource, "status", policy, "patch")
	add(group, v1.SnapshotResource, "", "", "get", "list", "create", "patch", "delete")
	add(group, v1.SnapshotResource, "status", "", "patch")
	add("", "events", "", "", "create", "patch")
	if readUID {
		all = append(all, Right{Verb: "get", Resource: "namespaces", Name: metav1.NamespaceSystem})
	}
	return all
}

// MayI asks whether RBAC, or whatever else authorizes there, grants us a right.
func (c *Client) MayI(ctx context.Context, r Right) (bool, error) {
	var review struct {
		metav1.TypeMeta `json:",inline"`
		Spec            struct {
			ResourceAttributes Right `json:"resourceAttributes"`
		} `json:"spec"`
		Status struct {
			Allowed bool `json:"allowed"`
		} `json:"status"`
	}
	review.APIVersion, review.Kind, review.Spec.ResourceAttributes = "authorization.k8s.io/v1", "SelfSubjectAccessReview", r
	data, err := encodingjson.Marshal(review)
	if err != nil {
		return false, err
	}
	t := target{url: true, resource: "apis/authorization.k8s.io/v1/selfsubjectaccessreviews"}
	err = c.do(ctx, "create", t, c.rest.Post().SetHeader("Content-Type", "application/json").Body(data), &review)
	return review.Status.Allowed, err
}

// CheckInstalled asks whether both kinds are served, with their status. The error is ErrNotInstalled where they are not.
func (c *Client) CheckInstalled(ctx context.Context) error {
	var served metav1.APIResourceList
	err := c.read(ctx, target{url: true, resource: "apis/" + v1.GroupVersion.String()}, &served)
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrNotInstalled) {
		return &ConfigError{What: "look for the CRDs", Err: ErrNotInstalled}
	}
	if err != nil {
		return err
	}
	names := map[string]bool{}
	for _, r := range served.APIResources {
		names[r.Name] = true
	}
	for _, resource := range []string{v1.PolicyResource, v1.SnapshotResource} {
		for _, name := range []string{resource, resource + "/status"} {
			if !names[name] {
				return &ConfigError{What: "look for the CRDs", Err: fmt.Errorf("%w whole: %s is not served", ErrNotInstalled, name)}
			}
		}
	}
	return nil
}

// TryCreatePolicy has the API server check the policy by the CRD that it has, unknown fields included, and makes nothing.
// The error is one for apierrors.IsAlreadyExists where it would take the policy and has one of its name.
func (c *Client) TryCreatePolicy(ctx context.Context, p *v1.EtcdSnapshotPolicy) error {
	input := &v1.EtcdSnapshotPolicy{TypeMeta: typeMeta(v1.PolicyKind), Spec: p.Spec}
	input.Name, input.Namespace = p.Name, p.Namespace
	data, err := encodingjson.Marshal(input)
	if err != nil {
		return err
	}
	t := target{resource: v1.PolicyResource, namespace: p.Namespace}
	r := c.rest.Post().Param("dryRun", metav1.DryRunAll).Param("fieldValidation", metav1.FieldValidationStrict)
	return c.do(ctx, "create", t, r.SetHeader("Content-Type", "application/json").Body(data), nil)
}

// dateKey is the context's key of a *time.Time that gets the time at which the API server answered.
type dateKey struct{}

// ServerTime is the API server's time, to the second.
func (c *Client) ServerTime(ctx context.Context) (time.Time, error) {
	var date time.Time
	err := c.get(context.WithValue(ctx, dateKey{}, &date), target{resource: "version", url: true}, nil)
	if err == nil && date.IsZero() {
		err = fmt.Errorf("the API server %s does not tell its time", c.server)
	}
	return date, err
}

// dating is a transport that tells the times of answers.
type dating struct{ http.RoundTripper }

func (d dating) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := d.RoundTripper.RoundTrip(r)
	if date, ok := r.Context().Value(dateKey{}).(*time.Time); ok && err == nil {
		// A missing or malformed one stays the zero time.
		*date, _ = http.ParseTime(answer.Header.Get("Date"))
	}
	return answer, err
}
