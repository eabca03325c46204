// Package helmtest sets Helm's own library up as the helm command does, for tests that install the chart.
package helmtest

import (
	"helm.sh/helm/v3/pkg/action"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"
)

// Configuration is what Helm's actions work with: the cluster of a kubeconfig file, a namespace, and a folder for what
// discovery finds. log may be nil.
func Configuration(kubeconfig, namespace, cache string, log action.DebugLog) (*action.Configuration, error) {
	if log == nil {
		log = func(string, ...any) {}
	}
	flags := genericclioptions.NewConfigFlags(false)
	flags.KubeConfig, flags.Namespace, flags.CacheDir = &kubeconfig, &namespace, &cache
	flags.WrapConfigFn = func(config *rest.Config) *rest.Config {
		config.Burst = 100
		return config
	}
	a := &action.Configuration{}
	if err := a.Init(flags, namespace, "secret", log); err != nil {
		return nil, err
	}
	return a, nil
}
