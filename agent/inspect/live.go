package inspect

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/rest"

	"etcdsnapshot.dev/agent/object"
)

// pageSize is how many objects are asked for at a time.
const pageSize = 250

// liveResource is a resource that the API server keeps.
type liveResource struct {
	object.Resource
	// versions that are served, the preferred one first.
	versions []string
	plural   string
}

// DiffLive tells what the live cluster has otherwise than the snapshot. Objects are asked for in the version that the
// snapshot holds them in, page by page; besides the index, up to 80 bytes are kept for each object of the snapshot.
func DiffLive(ctx context.Context, s *Snapshot, api rest.Interface, o DiffOptions, fn func(Difference) error) (*DiffResult, error) {
	d := &differ{DiffOptions: o, fn: fn, result: &DiffResult{Noise: map[string]int64{}}}
	resources, err := discover(ctx, api)
	if err != nil {
		return nil, err
	}
	l := &live{differ: d, snap: s, ours: map[[16]byte]int64{}, versions: map[string]string{}}
	if err := o.checkKinds(func(word string) bool {
		return s.names.Has(word) || slices.ContainsFunc(resources, func(r liveResource) bool { return r.Is(word) })
	}); err != nil {
		return nil, err
	}
	m := newMatcher(o.Query)
	// An object may have the labels on one side only.
	unlabelled := o.Query
	unlabelled.Selector = nil
	candidates := newMatcher(unlabelled)
	err = s.each(ctx, func(position int64, it Item) error {
		if it.Kind == "" && it.Encryption == "" || !candidates.match(it) {
			return nil // what the API server does not serve
		}
		if o.leavesOut(it) {
			return nil
		}
		namespace, name := it.Location()
		r := it.Resource()
		l.ours[identity(r.String(), namespace, name)] = position
		if it.APIVersion != "" {
			l.versions[r.String()] = it.APIVersion
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, r := range resources {
		if !l.wanted(r) {
			continue
		}
		if err := l.list(ctx, api, r); err != nil {
			return nil, err
		}
	}
	// What was not listed is gone.
	return d.result, s.eachOf(ctx, slices.Sorted(maps.Values(l.ours)), func(_ int64, it Item) error {
		return d.one(m, it, m, Item{})
	})
}

func identity(resource, namespace, name string) [16]byte {
	sum := sha256.Sum256([]byte(resource + "\x00" + namespace + "\x00" + name))
	return [16]byte(sum[:])
}

type live struct {
	*differ
	snap *Snapshot
	// ours are the positions of the snapshot's objects that were not met yet.
	ours map[[16]byte]int64
	// versions are the apiVersions that the snapshot has, by resource.
	versions map[string]string
}

// wanted tells whether objects of a resource can be meant.
func (l *live) wanted(r liveResource) bool {
	if !l.All && !l.names(r.Resource) && (object.Type{APIVersion: r.versions[0], Kind: r.Kind}).IsNoise() {
		return false
	}
	if l.Namespace != "" && !r.Namespaced && len(l.Wanted) == 0 && !r.isNamespace() {
		return false
	}
	return len(l.Wanted) == 0 || slices.ContainsFunc(l.Wanted, func(w Wanted) bool { return w.Kind == All || r.Is(w.Kind) })
}

// list asks for all objects of a resource and compares each.
func (l *live) list(ctx context.Context, api rest.Interface, r liveResource) error {
	version := r.versions[0]
	if ours := l.versions[r.String()]; slices.Contains(r.versions, ours) {
		version = ours
	}
	path := "/apis/" + version
	if r.Group == "" {
		path = "/api/" + version
	}
	if r.Namespaced && l.Namespace != "" {
		path += "/namespaces/" + l.Namespace
	}
	path += "/" + r.plural
	next := ""
	for {
		req := api.Get().AbsPath(path).Param("limit", fmt.Sprint(pageSize))
		if next != "" {
			req = req.Param("continue", next)
		}
		body, err := req.DoRaw(ctx)
		if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
			return nil // it was removed meanwhile, or cannot be listed
		}
		if apierrors.IsResourceExpired(err) && next != "" {
			return fmt.Errorf("list %s: the API server has compacted the list meanwhile; try again, or compare a namespace at a time (-n): %w", r, err)
		}
		if err != nil {
			return fmt.Errorf("list %s: %w", r, err)
		}
		var page struct {
			Metadata metav1.ListMeta  `json:"metadata"`
			Items    []map[string]any `json:"items"`
		}
		if err := json.Unmarshal(body, &page); err != nil {
			return fmt.Errorf("list %s: %w", r, err)
		}
		for _, item := range page.Items {
			item["apiVersion"], item["kind"] = version, r.Kind
			o := &object.Object{Type: object.Type{APIVersion: version, Kind: r.Kind}, Unstructured: unstructured.Unstructured{Object: item}}
			if err := l.compare(ctx, r, o); err != nil {
				return err
			}
		}
		if next = page.Metadata.Continue; next == "" {
			return nil
		}
	}
}

// compare compares a live object with the snapshot's.
func (l *live) compare(ctx context.Context, r liveResource, now *object.Object) error {
	namespace, name := now.GetNamespace(), now.GetName()
	id := identity(r.String(), namespace, name)
	position, ok := l.ours[id]
	delete(l.ours, id)
	if !ok {
		if !l.meant(r, now) {
			return nil
		}
		if !l.All && !l.names(r.Resource) && now.CanFollow() && now.Controller() != nil {
			l.result.Noise[now.Type.String()]++
			return nil
		}
		if !l.All {
			object.Quiet(now)
		}
		return l.fn(Difference{Type: now.Type, Namespace: namespace, Name: name, What: Added, To: now})
	}
	return l.snap.eachOf(ctx, []int64{position}, func(_ int64, it Item) error {
		if !l.labelled(now) {
			if before, err := it.Meta(); err != nil || !l.labelled(before) {
				return nil
			}
		}
		out := Difference{Type: it.Type, Namespace: namespace, Name: name, What: Changed, Before: it.Revision}
		l.fill(&out, it, Item{})
		if out.From == nil {
			return l.fn(out)
		}
		if out.From.APIVersion != now.APIVersion {
			out.Note, out.From = fmt.Sprintf("it is there, but the API server does not serve %s any more: what is in it cannot be compared", it.APIVersion), nil
			return l.fn(out)
		}
		if !l.All {
			object.Quiet(now)
		}
		out.To = now
		if out.Fields = object.Differences(out.From.Object, now.Object); len(out.Fields) == 0 {
			return nil
		}
		return l.fn(out)
	})
}

// labelled tells whether an object has the labels that are asked for.
func (l *live) labelled(o *object.Object) bool {
	return l.Selector == nil || l.Selector.Matches(labels.Set(o.GetLabels()))
}

// meant tells whether an object that the snapshot does not have is meant.
func (l *live) meant(r liveResource, o *object.Object) bool {
	if !l.labelled(o) {
		return false
	}
	named := slices.ContainsFunc(l.Wanted, func(w Wanted) bool {
		return w.Kind != All && r.Is(w.Kind) && (w.Name == "" || w.Name == o.GetName())
	})
	everything := len(l.Wanted) == 0 || slices.ContainsFunc(l.Wanted, func(w Wanted) bool {
		return w.Kind == All && (w.Name == "" || w.Name == o.GetName())
	})
	// What matcher.inNamespace says.
	inside := l.Namespace == "" || r.Namespaced || r.isNamespace() && o.GetName() == l.Namespace
	return named || everything && inside
}

// isNamespace tells the resource of Namespaces.
func (r liveResource) isNamespace() bool { return r.Kind == "Namespace" && r.Group == "" }

// discover asks the API server what it serves. What an extension serves is not in etcd.
func discover(ctx context.Context, api rest.Interface) ([]liveResource, error) {
	ask := func(path string, v any) error {
		body, err := api.Get().AbsPath(path).DoRaw(ctx)
		if err != nil {
			return fmt.Errorf("ask what is served (%s): %w", path, err)
		}
		return json.Unmarshal(body, v)
	}
	extensions := map[string]bool{}
	var services struct {
		Items []struct {
			Spec struct {
				Group   string
				Service map[string]any
			}
		}
	}
	if err := ask("/apis/apiregistration.k8s.io/v1/apiservices", &services); err != nil {
		return nil, err
	}
	for _, s := range services.Items {
		if s.Spec.Service != nil {
			extensions[s.Spec.Group] = true
		}
	}
	var groups metav1.APIGroupList
	if err := ask("/apis", &groups); err != nil {
		return nil, err
	}
	all := []metav1.APIGroup{{Versions: []metav1.GroupVersionForDiscovery{{GroupVersion: "v1"}}, PreferredVersion: metav1.GroupVersionForDiscovery{GroupVersion: "v1"}}}
	var resources []liveResource
	for _, g := range append(all, groups.Groups...) {
		if extensions[g.Name] || g.Name == "events.k8s.io" { // the same Events as v1's, which is how they are stored
			continue
		}
		slices.SortStableFunc(g.Versions, func(a, b metav1.GroupVersionForDiscovery) int {
			switch g.PreferredVersion.GroupVersion {
			case a.GroupVersion:
				return -1
			case b.GroupVersion:
				return 1
			}
			return 0
		})
		for _, v := range g.Versions {
			path := "/apis/" + v.GroupVersion
			if g.Name == "" {
				path = "/api/" + v.GroupVersion
			}
			var list metav1.APIResourceList
			if err := ask(path, &list); err != nil {
				return nil, err
			}
			for _, r := range list.APIResources {
				if !slices.Contains(r.Verbs, "list") || !slices.Contains(r.Verbs, "create") {
					continue // componentstatuses are not kept
				}
				i := slices.IndexFunc(resources, func(have liveResource) bool { return have.Group == g.Name && have.plural == r.Name })
				if i < 0 {
					i = len(resources)
					resources = append(resources, liveResource{Resource: object.Resource{Group: g.Name, Kind: r.Kind, Plural: r.Name,
						Singular: r.SingularName, Short: r.ShortNames, Namespaced: r.Namespaced}, plural: r.Name})
				}
				resources[i].versions = append(resources[i].versions, v.GroupVersion)
			}
		}
	}
	return resources, nil
}
