package kubetest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"
)

const establishTime = 30 * time.Second

// Apply applies manifests (YAML or JSON, any number of documents each) in their order, as an administrator and by
// server-side apply. An object without a namespace goes to the one given. It returns once each CRD among them is served.
func (s *Server) Apply(ctx context.Context, namespace string, manifests ...[]byte) error {
	disco, err := discovery.NewDiscoveryClientForConfig(s.Admin())
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(s.Admin())
	if err != nil {
		return err
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(disco))
	for _, manifest := range manifests {
		objects, err := decode(manifest)
		if err != nil {
			return err
		}
		for _, obj := range objects {
			if err := apply(ctx, client, mapper, obj, namespace); err != nil {
				return fmt.Errorf("apply %s %s: %w", obj.GetKind(), obj.GetName(), err)
			}
			if obj.GetKind() == "CustomResourceDefinition" {
				if err := waitServed(ctx, disco, obj); err != nil {
					return err
				}
				mapper.Reset()
			}
		}
	}
	return nil
}

func apply(ctx context.Context, client dynamic.Interface, mapper meta.RESTMapper, obj *unstructured.Unstructured, namespace string) error {
	gvk := obj.GroupVersionKind()
	mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return err
	}
	resource := dynamic.ResourceInterface(client.Resource(mapping.Resource))
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		if obj.GetNamespace() != "" {
			namespace = obj.GetNamespace()
		}
		resource = client.Resource(mapping.Resource).Namespace(namespace)
	}
	_, err = resource.Apply(ctx, obj.GetName(), obj, metav1.ApplyOptions{FieldManager: "kubetest", Force: true})
	return err
}

// waitServed waits until discovery lists every version of a CRD: the condition Established comes a moment earlier.
func waitServed(ctx context.Context, disco discovery.DiscoveryInterface, crd *unstructured.Unstructured) error {
	ctx, cancel := context.WithTimeout(ctx, establishTime)
	defer cancel()
	group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "plural")
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	for _, v := range versions {
		version, _, _ := unstructured.NestedString(v.(map[string]any), "name")
		for !served(disco, group+"/"+version, plural) {
			select {
			case <-ctx.Done():
				return fmt.Errorf("CRD %s is not served: %w", crd.GetName(), ctx.Err())
			case <-time.After(pollTime):
			}
		}
	}
	return nil
}

func served(disco discovery.DiscoveryInterface, groupVersion, plural string) bool {
	list, err := disco.ServerResourcesForGroupVersion(groupVersion)
	if err != nil {
		return false
	}
	for _, r := range list.APIResources {
		if r.Name == plural {
			return true
		}
	}
	return false
}

func decode(manifest []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	r := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifest)))
	for {
		doc, err := r.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read manifest: %w", err)
		}
		obj := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(doc, &obj.Object); err != nil {
			return nil, fmt.Errorf("read manifest: %w", err)
		}
		if len(obj.Object) > 0 {
			objects = append(objects, obj)
		}
	}
}
