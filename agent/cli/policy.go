package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"etcdsnapshot.dev/agent/api"
	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/catalog"
	"etcdsnapshot.dev/agent/destination"
)

// policyFlags say where the policy comes from; every verb that needs one has them.
type policyFlags struct {
	name, namespace, file, manifest, kubeconfig string
	destinations                                []string
	// readOnly leaves a policy that is missing in the API server missing.
	readOnly bool
	// anyCluster says that it does not matter which cluster this is.
	anyCluster bool
}

func (f *policyFlags) register(cmd *cobra.Command) { f.registerAs(cmd, "namespace", "n") }

// registerAs gives the flag for the policy's namespace a name: some verbs need --namespace for something else.
func (f *policyFlags) registerAs(cmd *cobra.Command, namespace, shorthand string) {
	fl := cmd.Flags()
	fl.StringVar(&f.name, "policy", "", "name of the EtcdSnapshotPolicy to read from the API server")
	fl.StringVarP(&f.namespace, namespace, shorthand, "", "namespace of the policy (default: $POD_NAMESPACE, the pod's own, or the kubeconfig's)")
	fl.StringVarP(&f.file, "policy-file", "f", "", "file with the EtcdSnapshotPolicy's manifest (- is stdin); no API server is needed")
	fl.StringVar(&f.manifest, "policy-manifest", "", "file with the release's manifest: makes the policy where the API server has none of that name, and brings it up to date")
	fl.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig file (default: the pod's service account, $KUBECONFIG, ~/.kube/config)")
	fl.StringSliceVarP(&f.destinations, "destination", "d", nil, "only these destinations of the policy (default: all)")
}

// loaded is a policy and what is known of the cluster it is for.
type loaded struct {
	policy *v1.EtcdSnapshotPolicy
	owner  destination.Owner
	// client is nil where no API server is used.
	client            *catalog.Client
	kubernetesVersion string
	// destinations are all that the policy has, whichever are worked on.
	destinations []string
}

// load reads the policy and finds out which cluster this is.
func (f *policyFlags) load(ctx context.Context, e *env) (*loaded, error) {
	l, err := f.read(ctx, e)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// read is load that gives what it has found with its error, too.
func (f *policyFlags) read(ctx context.Context, e *env) (*loaded, error) {
	l := &loaded{}
	switch {
	case f.name == "" && f.file == "":
		return l, usageErrorf("--policy or --policy-file is needed: which policy to follow")
	case f.name != "" && f.file != "":
		return l, usageErrorf("--policy and --policy-file exclude each other")
	case f.manifest != "" && f.name == "":
		return l, usageErrorf("--policy-manifest goes with --policy")
	}
	var err error
	if f.file != "" {
		err = l.fromFile(ctx, e, f)
	} else {
		err = l.fromServer(ctx, e, f)
	}
	if err != nil {
		return l, err
	}
	for _, name := range f.destinations {
		if !slices.ContainsFunc(l.policy.Spec.Destinations, func(d v1.Destination) bool { return d.Name == name }) {
			return l, usageErrorf("--destination: the policy has no destination %q: it has %s", name, strings.Join(destinationNames(l.policy), ", "))
		}
	}
	l.destinations = destinationNames(l.policy)
	if len(f.destinations) > 0 {
		l.policy.Spec.Destinations = slices.DeleteFunc(l.policy.Spec.Destinations, func(d v1.Destination) bool { return !slices.Contains(f.destinations, d.Name) })
	}
	return l, nil
}

func (l *loaded) fromFile(ctx context.Context, e *env, f *policyFlags) (err error) {
	if l.policy, err = api.LoadPolicy(f.file, e.stdin); err != nil {
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
			return &usageError{err}
		}
		return err
	}
	l.owner = destination.Owner{ClusterName: l.policy.Spec.ClusterName, ClusterUID: l.policy.Spec.ClusterUID}
	if l.owner.ClusterName == "" {
		// Printed by the API server on a better day: it says which cluster that was.
		l.owner = destination.Owner{ClusterName: l.policy.Status.ClusterName, ClusterUID: cmp.Or(l.owner.ClusterUID, l.policy.Status.ClusterUID)}
	}
	if f.kubeconfig != "" {
		if l.client, err = catalog.Connect(f.kubeconfig); err != nil {
			return err
		}
		l.askServer(ctx, e)
	}
	if l.owner.ClusterName == "" && !f.anyCluster {
		return &api.InvalidError{Source: f.file, Reasons: []string{
			"spec.clusterName: Required value: without an API server to ask for the cluster's UID it must say which folder of the destinations is this cluster's, unless the manifest was saved with its status (kubectl get esp NAME -o yaml), which knows"}}
	}
	return nil
}

// inNamespace is where the policy is looked for.
func (f *policyFlags) inNamespace(c *catalog.Client) string {
	for _, namespace := range []string{f.namespace, os.Getenv("POD_NAMESPACE")} {
		if namespace != "" {
			return namespace
		}
	}
	return c.Namespace()
}

func (l *loaded) fromServer(ctx context.Context, e *env, f *policyFlags) (err error) {
	if l.client, err = catalog.Connect(f.kubeconfig); err != nil {
		return err
	}
	namespace := f.inNamespace(l.client)
	l.policy, err = l.client.Policy(ctx, namespace, f.name)
	if f.manifest != "" && (errors.Is(err, catalog.ErrNotFound) || errors.Is(err, catalog.ErrNotInstalled)) {
		l.policy, err = l.fromManifest(ctx, e, f, namespace)
	} else if err == nil && f.manifest != "" {
		l.policy, err = l.upToDate(ctx, e, f)
	}
	if err != nil {
		return err
	}
	l.owner = destination.Owner{ClusterName: l.policy.Spec.ClusterName, ClusterUID: l.policy.Spec.ClusterUID}
	l.askServer(ctx, e)
	if l.owner.ClusterName == "" && !f.anyCluster {
		return fmt.Errorf("the API server did not say the UID of the namespace kube-system, which names this cluster's folder: set spec.clusterName in the policy")
	}
	return nil
}

// fromManifest makes the policy that the API server lacks. Helm cannot: it looks up every kind of a release before it
// makes the first object, so the release that brings the CRD cannot hold an object of its kind. Where the policy cannot
// be made the run follows the manifest all the same.
func (l *loaded) fromManifest(ctx context.Context, e *env, f *policyFlags, namespace string) (*v1.EtcdSnapshotPolicy, error) {
	p, err := f.loadManifest(e, namespace)
	if err != nil {
		return nil, err
	}
	if f.readOnly {
		return p, nil
	}
	switch err := l.client.CreatePolicy(ctx, p); {
	case err == nil:
		e.log.Info("the policy was not there and was made of its manifest", "policy", p.Namespace+"/"+p.Name)
	case apierrors.IsAlreadyExists(err): // a run on another node was quicker
		return l.client.Policy(ctx, namespace, f.name)
	default:
		e.log.Warn("the policy is not there and could not be made; its manifest is followed", "error", err)
	}
	return p, nil
}

// upToDate gives the policy that the API server has, or the manifest's where the release has changed since a run made that
// one: Helm takes a policy that is there into the release as it is, and patches only what changes after that. Edits by
// hand are no such change. See v1.AnnotationSpecDigest.
func (l *loaded) upToDate(ctx context.Context, e *env, f *policyFlags) (*v1.EtcdSnapshotPolicy, error) {
	digest := l.policy.Annotations[v1.AnnotationSpecDigest]
	if digest == "" {
		return l.policy, nil
	}
	p, err := f.loadManifest(e, l.policy.Namespace)
	if err != nil || p.Annotations[v1.AnnotationSpecDigest] == digest {
		return l.policy, err
	}
	log := e.log.With("policy", p.Namespace+"/"+p.Name)
	if f.readOnly {
		log.Warn("the policy is older than the release, whose manifest is followed; the next run writes it down")
		return p, nil
	}
	if err := l.client.ReplacePolicy(ctx, p); err != nil {
		log.Warn("the policy is older than the release and could not be changed; the release's manifest is followed", "error", err)
	} else {
		log.Info("the policy was older than the release and was made what the release's manifest says")
	}
	return p, nil
}

func (f *policyFlags) loadManifest(e *env, namespace string) (*v1.EtcdSnapshotPolicy, error) {
	p, err := api.LoadPolicy(f.manifest, e.stdin)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return nil, &usageError{err}
	}
	if err != nil {
		return nil, err
	}
	if p.Name != f.name || p.Namespace != namespace {
		return nil, usageErrorf("--policy-manifest: %s holds the policy %s/%s, not %s/%s", f.manifest, p.Namespace, p.Name, namespace, f.name)
	}
	return p, nil
}

// askServer fills in what the API server knows. What it does not tell is only missed where it is needed.
func (l *loaded) askServer(ctx context.Context, e *env) {
	if l.owner.ClusterUID == "" {
		uid, err := l.client.ClusterUID(ctx)
		if err != nil {
			e.log.Warn("the cluster's UID could not be read; whose folder it is cannot be checked", "error", err)
		}
		l.owner.ClusterUID = uid
	}
	if l.owner.ClusterName == "" {
		l.owner.ClusterName = l.owner.ClusterUID
	}
	version, err := l.client.ServerVersion(ctx)
	if err != nil {
		e.log.Warn("the API server's version could not be read", "error", err)
	}
	l.kubernetesVersion = version
}

// unusableErrors gives what could not be opened, in the policy's order.
func (l *loaded) unusableErrors(unusable map[string]error) (errs []error) {
	for _, spec := range l.policy.Spec.Destinations {
		if err := unusable[spec.Name]; err != nil {
			errs = append(errs, fmt.Errorf("destination %s: %w", spec.Name, err))
		}
	}
	return errs
}

// open opens the policy's destinations; those that cannot be opened are told apart by name. done closes them.
func (l *loaded) open(ctx context.Context, o destination.Options) (opened []*destination.Destination, unusable map[string]error, done func()) {
	unusable = map[string]error{}
	for _, spec := range l.policy.Spec.Destinations {
		d, err := destination.Open(ctx, spec, l.owner.ClusterName, o)
		if err != nil {
			unusable[spec.Name] = err
			continue
		}
		opened = append(opened, d)
	}
	return opened, unusable, func() {
		for _, d := range opened {
			d.Close()
		}
	}
}

func destinationNames(p *v1.EtcdSnapshotPolicy) []string {
	var names []string
	for _, d := range p.Spec.Destinations {
		names = append(names, d.Name)
	}
	return names
}

// rows gives the catalog's rows by name; none without an API server, or where it does not answer.
func (l *loaded) rows(ctx context.Context, e *env) map[string]*v1.EtcdSnapshot {
	rows := map[string]*v1.EtcdSnapshot{}
	if l.client == nil {
		return rows
	}
	for row, err := range l.client.Rows(ctx, l.policy.Namespace, l.policy.Name) {
		if err != nil {
			e.log.Warn("the catalog does not tell what is verified and what other nodes hold", "error", err)
			break
		}
		rows[row.Name] = row
	}
	return rows
}

// verified tells which snapshots the catalog knows to be good. It is asked when it is needed first.
func (l *loaded) verified(ctx context.Context, e *env) func(name string) bool {
	rows := sync.OnceValue(func() map[string]*v1.EtcdSnapshot { return l.rows(ctx, e) })
	return func(name string) bool {
		row, ok := rows()[name]
		return ok && catalog.IsVerified(row)
	}
}
