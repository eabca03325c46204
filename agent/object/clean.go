package object

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Clean leaves of an object what its author wrote, so that `kubectl apply` makes it anew: what the API server and
// controllers added is dropped, above all what ties it to objects that are gone. docs/recover-one-object.md lists it all.
// volume gives the reclaim policy of a PersistentVolume; nil is fine where no claim is cleaned. What its user should know
// is returned.
func Clean(o *Object, volume func(name string) (reclaimPolicy string, found bool)) (notes []string) {
	drop(o.Object, "status")
	for _, name := range []string{"uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp",
		"deletionGracePeriodSeconds", "selfLink", "managedFields", "ownerReferences"} {
		drop(o.Object, "metadata", name)
	}
	// These finalizers are part of a deletion that was under way.
	finalizers := slices.DeleteFunc(o.GetFinalizers(), func(f string) bool { return f == "foregroundDeletion" || f == "orphan" })
	if o.SetFinalizers(finalizers); len(finalizers) == 0 {
		drop(o.Object, "metadata", "finalizers")
	}
	for _, name := range []string{"kubectl.kubernetes.io/last-applied-configuration", "deployment.kubernetes.io/revision",
		"pv.kubernetes.io/bind-completed", "pv.kubernetes.io/bound-by-controller", "volume.kubernetes.io/selected-node",
		"kubernetes.io/service-account.uid", "batch.kubernetes.io/job-tracking"} {
		drop(o.Object, "metadata", "annotations", name)
	}
	dropEmpty(o.Object, "metadata", "annotations")
	dropNullTimes(o.Object)
	if rule, ok := rules[o.Group()+"/"+o.Kind]; ok {
		notes = rule(o, volume)
	}
	return notes
}

type cleaner func(o *Object, volume func(string) (string, bool)) []string

// rules are for kinds that need more.
var rules = map[string]cleaner{
	"/Namespace": func(o *Object, _ func(string) (string, bool)) []string {
		drop(o.Object, "spec", "finalizers")
		dropEmpty(o.Object, "spec")
		return nil
	},
	// A new address is given; none (headless) is a choice. Ports of nodes stay: others know them.
	"/Service": func(o *Object, _ func(string) (string, bool)) []string {
		if ip, _, _ := unstructured.NestedString(o.Object, "spec", "clusterIP"); ip != "None" {
			drop(o.Object, "spec", "clusterIP")
			drop(o.Object, "spec", "clusterIPs")
		}
		return nil
	},
	"/PersistentVolumeClaim": cleanClaim,
	"/PersistentVolume": func(o *Object, _ func(string) (string, bool)) []string {
		// The claim of that name may be another one by now.
		drop(o.Object, "spec", "claimRef", "uid")
		drop(o.Object, "spec", "claimRef", "resourceVersion")
		return nil
	},
	"/Pod": func(o *Object, _ func(string) (string, bool)) []string {
		for _, name := range []string{"nodeName", "ephemeralContainers", "priority", "preemptionPolicy"} {
			drop(o.Object, "spec", name)
		}
		return nil
	},
	"/ServiceAccount": func(o *Object, _ func(string) (string, bool)) []string {
		dropReferences(o, "secrets")
		dropReferences(o, "imagePullSecrets")
		return nil
	},
	"/Secret": func(o *Object, _ func(string) (string, bool)) []string {
		if kind, _, _ := unstructured.NestedString(o.Object, "type"); kind == "kubernetes.io/service-account-token" {
			drop(o.Object, "data") // a token names the account's old UID; the new one is filled in
		}
		return nil
	},
	"batch/Job": func(o *Object, _ func(string) (string, bool)) []string {
		if manual, _, _ := unstructured.NestedBool(o.Object, "spec", "manualSelector"); manual {
			return nil
		}
		drop(o.Object, "spec", "selector")
		for _, path := range [][]string{{"metadata"}, {"spec", "template", "metadata"}} {
			for _, label := range []string{"controller-uid", "batch.kubernetes.io/controller-uid", "job-name", "batch.kubernetes.io/job-name"} {
				drop(o.Object, append(slices.Clone(path), "labels", label)...)
			}
			dropEmpty(o.Object, append(slices.Clone(path), "labels")...)
		}
		return nil
	},
	"apps/StatefulSet": func(o *Object, _ func(string) (string, bool)) []string {
		templates, _, _ := unstructured.NestedFieldNoCopy(o.Object, "spec", "volumeClaimTemplates")
		list, _ := templates.([]any)
		for _, t := range list {
			if t, ok := t.(map[string]any); ok {
				drop(t, "status")
			}
		}
		return nil
	},
}

// cleanClaim keeps the volume of a claim where its data outlive the claim.
func cleanClaim(o *Object, volume func(string) (string, bool)) []string {
	name, _, _ := unstructured.NestedString(o.Object, "spec", "volumeName")
	if name == "" || volume == nil {
		return nil
	}
	who := fmt.Sprintf("PersistentVolumeClaim %s/%s", o.GetNamespace(), o.GetName())
	policy, found := volume(name)
	if found && policy == "Retain" {
		return []string{fmt.Sprintf("%s stays bound to the PersistentVolume %s, which outlives it (Retain); if that is Released, free it first: "+
			`kubectl patch pv %s --type merge -p '{"spec":{"claimRef":{"uid":null,"resourceVersion":null}}}'`, who, name, name)}
	}
	drop(o.Object, "spec", "volumeName")
	why := "is not in the snapshot"
	if found {
		why = "was deleted with the claim (reclaim policy " + policy + ")"
	}
	return []string{fmt.Sprintf("%s gets a new, empty volume: its PersistentVolume %s %s; its data must come from elsewhere", who, name, why)}
}

// generated are the names of Secrets that controllers make for a service account.
var generated = regexp.MustCompile(`-(token|dockercfg)-[a-z0-9]{5}$`)

// dropReferences drops a service account's references to Secrets that were made for it.
func dropReferences(o *Object, list string) {
	refs, ok, _ := unstructured.NestedSlice(o.Object, list)
	if !ok {
		return
	}
	refs = slices.DeleteFunc(refs, func(ref any) bool {
		m, _ := ref.(map[string]any)
		name, _ := m["name"].(string)
		return strings.HasPrefix(name, o.GetName()+"-") && generated.MatchString(name)
	})
	if o.Object[list] = refs; len(refs) == 0 {
		delete(o.Object, list)
	}
}

func drop(obj map[string]any, path ...string) { unstructured.RemoveNestedField(obj, path...) }

// dropEmpty drops a map that has become empty.
func dropEmpty(obj map[string]any, path ...string) {
	if v, ok, _ := unstructured.NestedFieldNoCopy(obj, path...); ok {
		if m, isMap := v.(map[string]any); v == nil || isMap && len(m) == 0 {
			drop(obj, path...)
		}
	}
}

// dropNullTimes drops the creationTimestamp: null that templates have.
func dropNullTimes(v any) {
	switch v := v.(type) {
	case map[string]any:
		if at, ok := v["creationTimestamp"]; ok && at == nil {
			delete(v, "creationTimestamp")
		}
		for _, inner := range v {
			dropNullTimes(inner)
		}
	case []any:
		for _, inner := range v {
			dropNullTimes(inner)
		}
	}
}

// IsSecret tells whether an object's data must not be shown unasked.
func (o *Object) IsSecret() bool { return o.Kind == "Secret" && o.Group() == "" }

// Redact hides the data of a Secret. What stands in their place is no base64, so that the API server refuses it: nobody
// applies a redacted Secret by mistake.
func Redact(o *Object) {
	if !o.IsSecret() {
		return
	}
	for _, name := range []string{"data", "stringData"} {
		data, _ := o.Object[name].(map[string]any)
		for key, v := range data {
			text, _ := v.(string)
			data[key] = fmt.Sprintf("<hidden: %d bytes, see --show-secrets>", decodedLen(text))
		}
	}
	// It repeats the data.
	drop(o.Object, "metadata", "annotations", "kubectl.kubernetes.io/last-applied-configuration")
}

// decodedLen is how many bytes a base64 text stands for.
func decodedLen(text string) int {
	return len(strings.TrimRight(text, "=")) * 3 / 4
}

// RedactBoth hides the data of two versions of a Secret, so that it still shows which of them differ.
func RedactBoth(a, b *Object) {
	changed := map[string]bool{}
	for _, name := range []string{"data", "stringData"} {
		x, _ := a.Object[name].(map[string]any)
		y, _ := b.Object[name].(map[string]any)
		for key := range x {
			_, both := y[key]
			changed[name+"/"+key] = both && x[key] != y[key]
		}
	}
	for _, side := range []struct {
		o    *Object
		mark string
	}{{a, ", before"}, {b, ", after"}} {
		Redact(side.o)
		for _, name := range []string{"data", "stringData"} {
			data, _ := side.o.Object[name].(map[string]any)
			for key, v := range data {
				if changed[name+"/"+key] {
					data[key] = strings.Replace(fmt.Sprint(v), " bytes", " bytes"+side.mark, 1)
				}
			}
		}
	}
}
