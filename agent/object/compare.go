package object

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Differences gives the paths at which two objects differ, in the order of their names: spec.replicas,
// spec.template.spec.containers[0].image. Where one side lacks a whole part it is one path.
func Differences(a, b any) []string {
	var paths []string
	differ("", a, b, &paths)
	return paths
}

func differ(path string, a, b any, paths *[]string) {
	switch a := a.(type) {
	case map[string]any:
		if b, ok := b.(map[string]any); ok {
			all := maps.Clone(a)
			maps.Copy(all, b)
			for _, name := range slices.Sorted(maps.Keys(all)) {
				x, inA := a[name]
				y, inB := b[name]
				if inA != inB {
					*paths = append(*paths, join(path, name))
				} else {
					differ(join(path, name), x, y, paths)
				}
			}
			return
		}
	case []any:
		if b, ok := b.([]any); ok && len(a) == len(b) {
			for i := range a {
				differ(fmt.Sprintf("%s[%d]", path, i), a[i], b[i], paths)
			}
			return
		}
	}
	if !reflect.DeepEqual(a, b) {
		*paths = append(*paths, path)
	}
}

// join appends a name to a path; one with dots is quoted, as annotations are.
func join(path, name string) string {
	if strings.ContainsAny(name, ".[]/") {
		return fmt.Sprintf("%s[%q]", path, name)
	}
	if path == "" {
		return name
	}
	return path + "." + name
}

// Quiet drops from an object what changes by itself: what the API server writes at each change, status, and the marks of
// elections and heartbeats. Two versions that are equal then differ in nothing that somebody meant.
func Quiet(o *Object) {
	drop(o.Object, "status")
	for _, name := range []string{"resourceVersion", "generation", "managedFields", "selfLink"} {
		drop(o.Object, "metadata", name)
	}
	for _, name := range []string{"kubectl.kubernetes.io/last-applied-configuration", "control-plane.alpha.kubernetes.io/leader",
		"node.alpha.kubernetes.io/ttl", "volumes.kubernetes.io/controller-managed-attach-detach", "deployment.kubernetes.io/revision"} {
		drop(o.Object, "metadata", "annotations", name)
	}
	dropEmpty(o.Object, "metadata", "annotations")
	dropNullTimes(o.Object)
}

// IsNoise tells kinds that change all the time, and of which nobody wants one back.
func (t Type) IsNoise() bool {
	switch t.Kind {
	case "Event":
		return t.Group() == "" || t.Group() == "events.k8s.io"
	case "Lease", "LeaseCandidate":
		return t.Group() == "coordination.k8s.io"
	case "EndpointSlice":
		return t.Group() == "discovery.k8s.io"
	case "Endpoints":
		return t.Group() == ""
	}
	// The API server's own records of addresses that are taken.
	return t.Kind == "RangeAllocation" && t.Group() == "" || t.Kind == "IPAddress" && t.Group() == "networking.k8s.io"
}

// CanFollow tells kinds that controllers make of others all the time: a change of one that has a controller follows from
// its owner's, or from what happened to a node.
func (t Type) CanFollow() bool {
	switch t.Kind {
	case "Pod":
		return t.Group() == ""
	case "ReplicaSet", "ControllerRevision":
		return t.Group() == "apps"
	case "Job":
		return t.Group() == "batch"
	}
	return false
}

// IsRemade tells objects that a controller makes again by itself, or that would start over: what to leave out of all that a
// namespace held. Why is for people.
func (o *Object) IsRemade() (why string, yes bool) {
	if owner := o.Controller(); owner != nil {
		return "made by its " + owner.Kind, true
	}
	if o.IsNoise() {
		return "made by the cluster", true
	}
	switch {
	case o.Kind == "ConfigMap" && (o.GetName() == "kube-root-ca.crt" || o.GetName() == "openshift-service-ca.crt"),
		o.Kind == "ServiceAccount" && o.GetName() == "default" && o.GetLabels() == nil:
		return "made by the cluster", true
	case o.Kind == "Job" && isFinished(o.Object):
		return "finished: it would run again", true
	case o.Kind == "Pod" && isOver(o.Object):
		return "finished: it would run again", true
	}
	return "", false
}

func isFinished(job map[string]any) bool {
	status, _ := job["status"].(map[string]any)
	conditions, _ := status["conditions"].([]any)
	return slices.ContainsFunc(conditions, func(c any) bool {
		m, _ := c.(map[string]any)
		return (m["type"] == "Complete" || m["type"] == "Failed") && m["status"] == "True"
	})
}

func isOver(pod map[string]any) bool {
	status, _ := pod["status"].(map[string]any)
	return status["phase"] == "Succeeded" || status["phase"] == "Failed"
}
