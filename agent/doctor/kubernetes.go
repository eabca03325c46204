package doctor

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"etcdsnapshot.dev/agent/catalog"
)

// checkKubernetes asks the API server who we are to it.
func (r *run) checkKubernetes(ctx context.Context) []Finding {
	const name = "api-server"
	switch {
	case r.KubernetesErr != nil:
		return []Finding{failed(name, "", r.KubernetesErr, "A run goes on without it only with --policy-file.")}
	case r.Kubernetes == nil:
		return []Finding{skipped(name, "", "none is used: the policy comes from a file")}
	}
	c := r.Kubernetes
	version, err := c.ServerVersion(ctx)
	if err != nil {
		return []Finding{failed(name, c.String(), err, "Check that the API server runs and that this node reaches it. Snapshots work without it, given --policy-file.")}
	}
	found := []Finding{ok(name, c.String(), "Kubernetes %s", version)}
	begin := r.Now()
	if server, err := c.ServerTime(ctx); err != nil {
		found = append(found, skipped("clock", "api-server", "%v", err))
	} else {
		found = append(found, clock("api-server", ahead(begin, r.Now(), server)))
	}
	return append(found, append(r.checkCRDs(ctx), r.checkRights(ctx)...)...)
}

// checkCRDs asks whether both kinds are served, and whether the API server would take the policy.
func (r *run) checkCRDs(ctx context.Context) []Finding {
	const (
		name   = "crds"
		remedy = "Install the CRDs of this release: with the chart (crds.enabled), or apply what `helm show crds` or `helm template` gives."
	)
	if err := r.Kubernetes.CheckInstalled(ctx); err != nil {
		return []Finding{failed(name, "", err, remedy)}
	}
	if r.Request.Policy == nil {
		return []Finding{ok(name, "", "both are installed")}
	}
	p := r.Request.Policy.DeepCopy()
	p.Namespace = r.Namespace
	switch err := r.Kubernetes.TryCreatePolicy(ctx, p); {
	case err == nil, apierrors.IsAlreadyExists(err):
		return []Finding{ok(name, "", "both are installed, and take the policy")}
	case apierrors.IsForbidden(err):
		return []Finding{ok(name, "", "both are installed; whether they take the policy may not be tried")}
	default:
		return []Finding{failed(name, "", &configError{fmt.Errorf("the CRD in the cluster refuses the policy: %w", err)}, "The CRDs are of another release than this program. "+remedy)}
	}
}

// checkRights asks for each right by itself.
func (r *run) checkRights(ctx context.Context) []Finding {
	const name = "rbac"
	var missing []string
	rights := catalog.Rights(r.Namespace, r.Name, r.Request.Policy == nil || r.Request.Policy.Spec.ClusterUID == "")
	for _, right := range rights {
		allowed, err := r.Kubernetes.MayI(ctx, right)
		if err != nil {
			return []Finding{failed(name, "", err, "Check the service account's token or the kubeconfig's user.")}
		}
		if !allowed {
			missing = append(missing, right.String())
		}
	}
	if len(missing) == 0 {
		return []Finding{ok(name, "", "all %d rights are granted", len(rights))}
	}
	return []Finding{failed(name, "", configErrorf("missing: %s", strings.Join(missing, "; ")), "Grant them in a Role or ClusterRole, as the chart does (rbac.create).")}
}
