package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"etcdsnapshot.dev/ci/secrets"
)

// search looks, when all tests have run, for every Secret and for etcd's client keys in all that Kubernetes shows of the
// agent. Finish and Purge, which every test goes through, note both.
var search secrets.Search

// public are the objects in which nothing secret may be.
const public = "esp,esnap,events,jobs,cronjobs,pods,configmaps"

// note notes what is secret in a namespace, and what is shown there: the objects with their status and termination
// messages, and the pods' logs.
func (c *Cluster) note(tb testing.TB, namespace string) {
	tb.Helper()
	ctx, cancel := Deadline(tb)
	defer cancel()
	// What cannot be noted fails the test, and does not keep it from clearing up.
	list, err := c.Client.CoreV1().Secrets(namespace).List(ctx, metav1.ListOptions{FieldSelector: "type=" + string(corev1.SecretTypeOpaque)})
	if !assert.NoError(tb, err) {
		return
	}
	for _, secret := range list.Items {
		for key, value := range secret.Data {
			search.KeepValue(secret.Name+"/"+key, key, string(value))
		}
	}
	// The CRDs are not there before the first release and after the last.
	for kind := range strings.SplitSeq(public, ",") {
		out, err := c.kubectl(ctx, "get", kind, "-n", namespace, "-o", "yaml", "--show-managed-fields")
		if err != nil && (strings.Contains(err.Error(), "the server doesn't have a resource type") || strings.Contains(err.Error(), "could not find the requested resource")) {
			continue // kubectl may know it from before
		}
		assert.NoError(tb, err)
		search.Said(fmt.Sprintf("%s: %s in %s", tb.Name(), kind, namespace), out)
	}
	pods, err := c.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=etcd-snapshot"})
	if !assert.NoError(tb, err) {
		return
	}
	for _, pod := range pods.Items {
		c.noteLog(ctx, tb, pod)
	}
}

// noteLog notes what a pod printed, if it still has it: a pod that never started, or is on its way out, has nothing.
func (c *Cluster) noteLog(ctx context.Context, tb testing.TB, pod corev1.Pod) {
	log, err := c.Client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{}).DoRaw(ctx)
	if err != nil {
		tb.Logf("%s has no log to search for secrets: %v", pod.Name, err)
		return
	}
	search.Said(tb.Name()+": log of "+pod.Name, string(log))
}

// noteNode notes etcd's keys of a node, and what is stored there beside the snapshots.
func (c *Cluster) noteNode(ctx context.Context, tb testing.TB, node string) {
	tb.Helper()
	keys, err := c.Exec(ctx, node, "sh", "-c", "cat /etc/kubernetes/pki/etcd/*.key /etc/kubernetes/pki/*.key")
	if err == nil { // a cluster of the user's may have its keys elsewhere
		search.KeepText("a private key of "+node, string(keys))
	}
	stored, err := c.Exec(ctx, node, "sh", "-c", "[ ! -d /var/lib/etcd-snapshots ] || find /var/lib/etcd-snapshots -print -name '*.json' -exec cat {} +")
	assert.NoError(tb, err)
	search.Said(tb.Name()+": stored on "+node, string(stored))
}
