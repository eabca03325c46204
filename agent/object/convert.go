package object

import (
	"fmt"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	crdv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

var crdScheme = sync.OnceValue(func() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(apiextensions.AddToScheme(s))
	utilruntime.Must(crdv1beta1.AddToScheme(s))
	utilruntime.Must(crdv1.AddToScheme(s))
	return s
})

// Serve gives an object the version that the API server served it in where it stored another: that of Names.Served, and v1
// for CustomResourceDefinitions, which it writes as v1beta1, a version that no API server has taken since Kubernetes 1.22.
func (n *Names) Serve(o *Object) error {
	if !o.IsCRD() {
		o.APIVersion = n.Served(o.Type)
		o.SetAPIVersion(o.APIVersion)
		return nil
	}
	if o.APIVersion == crdv1.SchemeGroupVersion.String() {
		return nil
	}
	var (
		stored   crdv1beta1.CustomResourceDefinition
		internal apiextensions.CustomResourceDefinition
		served   crdv1.CustomResourceDefinition
	)
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &stored)
	if err == nil {
		err = crdScheme().Convert(&stored, &internal, nil)
	}
	if err == nil {
		err = crdScheme().Convert(&internal, &served, nil)
	}
	if err == nil {
		served.APIVersion, served.Kind = crdv1.SchemeGroupVersion.String(), o.Kind
		o.Object, err = runtime.DefaultUnstructuredConverter.ToUnstructured(&served)
	}
	if err != nil {
		return fmt.Errorf("turn CustomResourceDefinition %s from %s into v1: %w", o.GetName(), o.APIVersion, err)
	}
	o.APIVersion = served.APIVersion
	return nil
}
