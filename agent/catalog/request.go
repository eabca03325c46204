package catalog

import (
	"context"
	encodingjson "encoding/json"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/json"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

// target is what a request is about.
type target struct {
	// core says that the resource is of the core group and not ours.
	core bool
	// url says that resource is a path and no resource.
	url                                    bool
	resource, namespace, name, subresource string
}

// rbac is the resource as a Role names it, with its group.
func (t target) rbac() string {
	r := t.resource
	if !t.core && !t.url {
		r += "." + v1.GroupVersion.Group
	}
	if t.subresource != "" {
		r += "/" + t.subresource
	}
	return r
}

func (t target) String() string {
	switch {
	case t.url:
		return "/" + t.resource
	case t.name != "" && t.namespace != "":
		return fmt.Sprintf("%s %s/%s", t.rbac(), t.namespace, t.name)
	case t.namespace != "":
		return fmt.Sprintf("%s in namespace %s", t.rbac(), t.namespace)
	}
	return t.rbac() + " " + t.name
}

func (t target) on(r *rest.Request) *rest.Request {
	switch {
	case t.url:
		return r.AbsPath("/", t.resource)
	case t.core:
		r = r.AbsPath("/api/v1")
	default:
		r = r.AbsPath("/apis", v1.GroupVersion.Group, v1.GroupVersion.Version)
	}
	r = r.NamespaceIfScoped(t.namespace, t.namespace != "").Resource(t.resource)
	if t.name != "" {
		r = r.Name(t.name)
	}
	if t.subresource != "" {
		r = r.SubResource(t.subresource)
	}
	return r
}

func (c *Client) get(ctx context.Context, t target, into any) error {
	return c.do(ctx, "get", t, c.rest.Get(), into)
}

// read is get with a little patience for an API server that is there and too busy. One that is not there is told at once:
// whoever asks may have to do without.
func (c *Client) read(ctx context.Context, t target, into any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readBudget, errBudget(readBudget))
	defer cancel()
	return patiently(ctx, isStatus, func() error { return c.get(ctx, t, into) })
}

// do sends a request that has all but its URL. into may be nil.
func (c *Client) do(ctx context.Context, verb string, t target, r *rest.Request, into any) error {
	r = t.on(r).MaxRetries(0) // patiently does that, and keeps the reason
	res := r.Do(ctx)
	err := res.Error() // and not Raw's, which does not read the Status that the API server sent
	if apierrors.IsForbidden(err) {
		// An API server that has just come up forbids everything until it has read its Roles.
		if notReady := c.rest.Get().AbsPath("/readyz").MaxRetries(0).Do(ctx).Error(); notReady != nil {
			return &UnavailableError{Server: c.server, What: verb + " " + t.String(), Err: fmt.Errorf("%w (and it is not ready: %w)", err, notReady)}
		}
		res = r.Do(ctx)
		err = res.Error()
	}
	if err != nil {
		return c.explain(ctx, err, verb, t)
	}
	if into == nil {
		return nil
	}
	data, err := res.Raw()
	if err == nil {
		err = json.UnmarshalCaseSensitivePreserveInts(data, into)
	}
	if err != nil {
		return &UnavailableError{Server: c.server, What: verb + " " + t.String(), Err: fmt.Errorf("the answer is not what was asked for: %w", err)}
	}
	return nil
}

// fieldManager owns what we write in the sense of server-side apply.
const fieldManager = "etcd-snapshot-agent"

// apply writes obj by server-side apply: it makes the object, or takes over the fields that obj has and drops those that
// we set before and obj lacks. Nobody else writes them, so a conflict of ownership is settled in our favour; one of
// resourceVersion (if obj has one) is an error for apierrors.IsConflict.
func (c *Client) apply(ctx context.Context, t target, obj, into any) error {
	return c.patch(ctx, t, types.ApplyPatchType, c.rest.Patch(types.ApplyPatchType).Param("force", "true"), obj, into)
}

// merge writes the fields that patch has and leaves all others alone.
func (c *Client) merge(ctx context.Context, t target, patch, into any) error {
	return c.patch(ctx, t, types.MergePatchType, c.rest.Patch(types.MergePatchType), patch, into)
}

func (c *Client) patch(ctx context.Context, t target, kind types.PatchType, r *rest.Request, body, into any) error {
	data, err := encodingjson.Marshal(body)
	if err != nil {
		return err
	}
	return c.do(ctx, "patch", t, r.Param("fieldManager", fieldManager).SetHeader("Content-Type", string(kind)).Body(data), into)
}

func (c *Client) create(ctx context.Context, t target, obj any) error {
	data, err := encodingjson.Marshal(obj)
	if err != nil {
		return err
	}
	return c.do(ctx, "create", t, c.rest.Post().Param("fieldManager", fieldManager).SetHeader("Content-Type", "application/json").Body(data), nil)
}

// remove deletes an object if it is still the one of this resourceVersion. One that is gone is no error.
func (c *Client) remove(ctx context.Context, t target, resourceVersion string) error {
	data, err := encodingjson.Marshal(metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &resourceVersion}})
	if err != nil {
		return err
	}
	err = c.do(ctx, "delete", t, c.rest.Delete().SetHeader("Content-Type", "application/json").Body(data), nil)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// Patience of a request that the API server was too busy or too absent for.
const (
	firstPause = 250 * time.Millisecond
	lastPause  = 4 * time.Second
	readBudget = 10 * time.Second
)

// unlessGone is the patience of those that can wait for an API server to come back.
func unlessGone(error) bool { return true }

// patiently tries again while the API server is away or too busy, if the failure is worth waiting for, until ctx ends;
// then the error is the last one that said why. The API server's own wish for a pause (Retry-After) is heeded.
func patiently(ctx context.Context, worth func(error) bool, try func() error) error {
	var last error
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := try()
		if ctx.Err() != nil && err != nil && last != nil {
			return fmt.Errorf("%w (%w)", last, context.Cause(ctx))
		}
		var away *UnavailableError
		if !errors.As(err, &away) || !worth(err) {
			return err
		}
		last = err
		wait := pause
		if s, ok := apierrors.SuggestsClientDelay(err); ok && s > 0 {
			wait = time.Duration(s) * time.Second
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", last, context.Cause(ctx))
		case <-time.After(wait):
		}
	}
}
