//go:build e2e

package e2e_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"etcdsnapshot.dev/ci/e2e"
)

const shop = `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: shop}
data: {currency: EUR}
---
apiVersion: v1
kind: Secret
metadata: {name: payment, namespace: shop}
stringData: {token: hunter2-hunter2}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: shop-orders}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: manual
  hostPath: {path: /var/lib/shop-orders, type: DirectoryOrCreate}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: orders, namespace: shop}
spec: {storageClassName: manual, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      tolerations: [{operator: Exists}]
      containers:
      - name: web
        image: cluster.test/pause:1
        envFrom: [{configMapRef: {name: settings}}, {secretRef: {name: payment}}]
        volumeMounts: [{name: orders, mountPath: /orders}]
      volumes: [{name: orders, persistentVolumeClaim: {claimName: orders}}]
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: discounts.shop.example.test}
spec:
  group: shop.example.test
  scope: Namespaced
  names: {kind: Discount, plural: discounts, singular: discount}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`

const discount = `
apiVersion: shop.example.test/v1
kind: Discount
metadata: {name: winter, namespace: shop}
spec: {percent: 10}
`

var (
	namespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	claims     = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}
	volumes    = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumes"}
)

// What docs/recover-one-object.md says: a namespace is deleted, with a Deployment whose Pods run, its ConfigMap, Secret and
// volume, and a custom resource. It is found out what is missing, and the namespace comes back and runs.
func TestRecoverOneNamespace(t *testing.T) {
	if c.Own == nil { // for the image that the Deployment runs
		if os.Getenv("CI") != "" {
			t.Fatal("this test needs a cluster of ci/cluster")
		}
		t.Skip("this test needs a cluster of ci/cluster")
	}
	node := c.ControlPlane(t)[0]
	write := func(text string) string {
		t.Helper()
		file := filepath.Join(t.TempDir(), "manifest.yaml")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	runs := func(d *appsv1.Deployment) bool {
		return d.Status.AvailableReplicas == 1 && d.Status.ObservedGeneration == d.Generation
	}
	c.Install(t, e2e.Release{Set: []string{"schedule=0 0 1 1 *"}})
	t.Cleanup(func() {
		for _, args := range [][]string{{"namespace", "shop"}, {"pv", "shop-orders"}, {"crd", "discounts.shop.example.test"}} {
			c.Kubectl(t, append([]string{"delete", "--ignore-not-found"}, args...)...)
		}
		_, err := c.Exec(context.Background(), node, "rm", "-rf", "/var/lib/shop-orders")
		require.NoError(t, err)
	})
	c.Kubectl(t, "apply", "-f", write(shop))
	c.Kubectl(t, "wait", "--for=condition=Established", "crd/discounts.shop.example.test", "--timeout=5m")
	c.Kubectl(t, "apply", "-f", write(discount))
	e2e.Await(t, c, e2e.Deployments, "shop", "web", runs)
	c.RunNow(t, "kube-system", "etcd-snapshot")

	system, err := c.Client.CoreV1().Namespaces().Get(t.Context(), "kube-system", metav1.GetOptions{})
	require.NoError(t, err)
	from := "/var/lib/etcd-snapshots/" + string(system.UID)
	agent := func(args ...string) string {
		t.Helper()
		return c.OnNode(t, node, append([]string{e2e.Agent()}, args...)...)
	}

	// One object: a bad value, and the good one out of the snapshot.
	c.Kubectl(t, "patch", "cm", "settings", "-n", "shop", "--type=merge", "-p", `{"data":{"currency":"XXX"}}`)
	require.Regexp(t, `changed +v1 ConfigMap +shop +settings +data.currency`, agent("diff", "latest", "--live", "-n", "shop", "--from-dir", from, "--kubeconfig", "/etc/kubernetes/admin.conf"))
	require.Regexp(t, `v1 ConfigMap +shop/settings +\d+ .* created`, agent("history", "cm", "settings", "-n", "shop", "--from-dir", from, "--since", "2d"))
	c.Kubectl(t, "apply", "-f", write(agent("get", "cm", "settings", "-n", "shop", "--from-dir", from, "-o", "yaml")))
	require.Equal(t, "EUR", c.Kubectl(t, "get", "cm", "settings", "-n", "shop", "-o", "jsonpath={.data.currency}"))

	// A whole namespace.
	before := c.Kubectl(t, "get", "deploy,cm,secret,pvc,discounts", "-n", "shop", "-o", "jsonpath={range .items[*]}{.kind} {.metadata.name} {.spec.template} {.data} {.spec.percent}{'\\n'}{end}")
	c.Kubectl(t, "delete", "namespace", "shop")
	c.AwaitGone(t, namespaces, "", "shop")
	e2e.Await(t, c, volumes, "", "shop-orders", func(v *corev1.PersistentVolume) bool { return v.Status.Phase == corev1.VolumeReleased })
	difference := agent("diff", "latest", "--live", "-n", "shop", "--from-dir", from, "--kubeconfig", "/etc/kubernetes/admin.conf")
	for _, gone := range []string{"v1 Namespace +- +shop", "apps/v1 Deployment +shop +web", "v1 Secret +shop +payment", "shop.example.test/v1 Discount +shop +winter"} {
		require.Regexp(t, "removed +"+gone, difference)
	}
	c.Kubectl(t, "apply", "-f", write(agent("get", "all", "-n", "shop", "--from-dir", from, "--show-secrets", "-o", "yaml")))
	c.Kubectl(t, "patch", "pv", "shop-orders", "--type", "merge", "-p", `{"spec":{"claimRef":{"uid":null,"resourceVersion":null}}}`)
	e2e.Await(t, c, claims, "shop", "orders", func(p *corev1.PersistentVolumeClaim) bool {
		return p.Status.Phase == corev1.ClaimBound && p.Spec.VolumeName == "shop-orders"
	})
	e2e.Await(t, c, e2e.Deployments, "shop", "web", runs)
	e2e.Await(t, c, configMaps, "shop", "kube-root-ca.crt", func(*corev1.ConfigMap) bool { return true })
	require.Equal(t, before, c.Kubectl(t, "get", "deploy,cm,secret,pvc,discounts", "-n", "shop", "-o", "jsonpath={range .items[*]}{.kind} {.metadata.name} {.spec.template} {.data} {.spec.percent}{'\\n'}{end}"))
}
