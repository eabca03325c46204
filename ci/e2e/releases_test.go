//go:build e2e

package e2e_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/ci/e2e"
)

// Two releases with one folder, in two namespaces. The first one's schedule is changed, then it is suspended; the second is
// the witness that the minute came.
func TestScheduleAndASecondRelease(t *testing.T) {
	const never = "0 0 31 2 *"
	first := e2e.Release{Set: []string{"schedule=" + never, "runOnInstall=true", "destinations.node.retention.last=1"}}
	c.Install(t, first)
	second := e2e.Release{Name: "second", Namespace: "backup", Set: []string{"schedule=" + never, "fullnameOverride=second", "destinations.node.retention.last=1"}}
	namespace(t, "backup", map[string]string{"pod-security.kubernetes.io/enforce": "privileged"})
	rel := c.Install(t, second)
	require.Contains(t, rel.Info.Notes, "The CRDs belong to the release kube-system/etcd-snapshot")
	t.Cleanup(func() { c.Uninstall(t, first) }) // before the second one's cleanup takes the CRDs
	c.Upgrade(t, first)                         // takes the policy into the release

	before := objects(t, "etcd-snapshot", system)
	first.Set[0] = "schedule=* * * * *"
	c.Upgrade(t, first)
	after := objects(t, "etcd-snapshot", system)
	require.ElementsMatch(t, slices.Collect(maps.Keys(before)), slices.Collect(maps.Keys(after)))
	for name, object := range after {
		if name == "CronJob/etcd-snapshot" {
			require.NotEqual(t, before[name], object)
			object = strings.ReplaceAll(object, "* * * * *", never)
		}
		require.Equal(t, before[name], object)
	}
	job := nextJob(t, system, "etcd-snapshot")
	run := c.Finish(t, system, job)
	require.True(t, run.Succeeded())
	policy := c.Policy(t, system, "etcd-snapshot")
	require.Equal(t, "* * * * *", policy.Status.Schedule)
	require.EqualValues(t, 1, *policy.Status.Snapshots, "retention.last is 1")

	// Suspended, while the other one runs every minute.
	first.Set = append(first.Set, "suspend=true")
	c.Upgrade(t, first)
	suspended := e2e.Get[batchv1.CronJob](t, c, e2e.CronJobs, system, "etcd-snapshot")
	require.True(t, *suspended.Spec.Suspend)
	second.Set[0] = "schedule=* * * * *"
	c.Upgrade(t, second)
	witness := c.Finish(t, "backup", nextJob(t, "backup", "second"))
	require.True(t, witness.Succeeded())
	still := e2e.Get[batchv1.CronJob](t, c, e2e.CronJobs, system, "etcd-snapshot")
	require.Equal(t, suspended.Status.LastScheduleTime, still.Status.LastScheduleTime, "it ran though it is suspended")
	// On demand it still runs.
	c.RunNow(t, system, "etcd-snapshot")

	// Neither has pruned the other's.
	require.Len(t, c.Rows(t, system, "etcd-snapshot"), 1)
	require.Len(t, c.Rows(t, "backup", "second"), 1)
	node := witness.Pods[0].Spec.NodeName
	if len(c.ControlPlane(t)) == 1 {
		require.Len(t, strings.Fields(c.OnNode(t, node, "sh", "-c", "ls "+c.Folder(t, "/var/lib/etcd-snapshots")+"/*.db.zst")), 2)
	}

	// The one without the CRDs goes alone.
	c.Uninstall(t, second)
	require.Len(t, c.Rows(t, system, "etcd-snapshot"), 1)
}

// objects gives what Helm made of a release, without what the cluster writes by itself.
func objects(t *testing.T, release, namespace string) map[string]string {
	t.Helper()
	var list struct{ Items []unstructured.Unstructured }
	kinds := "cronjobs,configmaps,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,esp,crds"
	require.NoError(t, json.Unmarshal([]byte(c.Kubectl(t, "get", kinds, "-n", namespace, "-l", "app.kubernetes.io/instance="+release, "-o", "json")), &list))
	found := map[string]string{}
	for _, o := range list.Items {
		delete(o.Object, "status")
		for _, field := range []string{"resourceVersion", "managedFields", "generation"} {
			unstructured.RemoveNestedField(o.Object, "metadata", field)
		}
		text, err := json.Marshal(o.Object)
		require.NoError(t, err)
		found[o.GetKind()+"/"+o.GetName()] = string(text)
	}
	require.Contains(t, found, "CronJob/"+release)
	require.Contains(t, found, "CustomResourceDefinition/etcdsnapshots.etcdsnapshot.dev")
	require.Contains(t, found, "EtcdSnapshotPolicy/"+release)
	return found
}

// nextJob waits for the CronJob controller to start the next Job of a CronJob, and gives its name.
func nextJob(t *testing.T, namespace, cronJob string) string {
	t.Helper()
	jobs, err := c.Client.BatchV1().Jobs(namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	return e2e.AwaitAny(t, c, e2e.Jobs, namespace, metav1.ListOptions{}, func(job *batchv1.Job) bool {
		owner := metav1.GetControllerOf(job)
		_, scheduled := job.Annotations[batchv1.CronJobScheduledTimestampAnnotation]
		return owner != nil && owner.Name == cronJob && scheduled &&
			!slices.ContainsFunc(jobs.Items, func(j batchv1.Job) bool { return j.Name == job.Name })
	}).Name
}

// namespace makes a namespace with labels, which goes with the test and after all that the test has in it.
func namespace(t *testing.T, name string, labels map[string]string) {
	t.Helper()
	_, err := c.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := e2e.Deadline(t)
		defer cancel()
		require.NoError(t, c.Client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}))
		c.AwaitGone(t, e2e.Namespaces, "", name)
	})
}

// What docs/distributions says of Pod Security Standards: baseline refuses the pods and says why, and the documented label
// lets them in.
func TestPodSecurity(t *testing.T) {
	r := e2e.Release{Namespace: "guarded"}
	namespace(t, r.Namespace, map[string]string{"pod-security.kubernetes.io/enforce": "baseline"})
	c.Install(t, r)
	refused := c.Start(t, r.Namespace, "etcd-snapshot")
	event := awaitEvent(t, r.Namespace, refused, "FailedCreate")
	for _, word := range []string{`violates PodSecurity "baseline:latest"`, "host namespaces (hostNetwork=true)", "hostPath volumes"} {
		require.Contains(t, event, word)
	}

	c.Kubectl(t, "label", "namespace", r.Namespace, "--overwrite", "pod-security.kubernetes.io/enforce=privileged")
	c.RunNow(t, r.Namespace, "etcd-snapshot")
	require.NotEmpty(t, c.Rows(t, r.Namespace, "etcd-snapshot"))
}

// awaitEvent waits for an Event about an object, and gives its message.
func awaitEvent(t *testing.T, namespace, object, reason string) string {
	t.Helper()
	about := metav1.ListOptions{FieldSelector: fmt.Sprintf("involvedObject.name=%s,reason=%s", object, reason)}
	return e2e.AwaitAny(t, c, e2e.Events, namespace, about, func(*corev1.Event) bool { return true }).Message
}

// Certificates that are wrong, as `kubectl describe pod` shows them to who looks why there is no snapshot.
func TestWrongCertificates(t *testing.T) {
	const pki = "/etc/kubernetes/pki/"
	r := e2e.Release{Set: []string{"etcd.certFile=" + pki + "apiserver-kubelet-client.crt", "etcd.keyFile=" + pki + "apiserver-kubelet-client.key", "backoffLimit=0"}}
	c.Install(t, r)

	// A certificate that etcd does not trust.
	run := c.Finish(t, system, c.Start(t, system, "etcd-snapshot"))
	require.False(t, run.Succeeded())
	described := c.Kubectl(t, "describe", "pod", "-n", system, run.Pods[0].Name)
	for _, word := range []string{"Message:", "https://127.0.0.1:2379", "certificate", pki + "apiserver-kubelet-client.crt"} {
		require.Contains(t, described, word)
	}
	require.NotContains(t, described, "context deadline exceeded")
	policy := c.Policy(t, system, "etcd-snapshot")
	require.EqualValues(t, 1, policy.Status.ConsecutiveFailures)
	requireReady(t, policy, metav1.ConditionFalse)

	// The wrong file altogether.
	r.Set[0] = "etcd.certFile=" + pki + "sa.pub"
	c.Upgrade(t, r)
	run = c.Finish(t, system, c.Start(t, system, "etcd-snapshot"))
	require.False(t, run.Succeeded())
	require.EqualValues(t, 2, run.End(t).ExitCode)
	described = c.Kubectl(t, "describe", "pod", "-n", system, run.Pods[0].Name)
	for _, word := range []string{"Message:", "spec.etcd.certFile", pki + "sa.pub"} {
		require.Contains(t, described, word)
	}

	// No such file: no container is started, since its mount would make a folder of that name. The Event says why.
	r.Set[0] = "etcd.certFile=" + pki + "nowhere.crt"
	c.Upgrade(t, r)
	job := c.Start(t, system, "etcd-snapshot")
	pod := c.PodOf(t, system, job)
	require.Contains(t, awaitEvent(t, system, pod, "FailedMount"), "hostPath type check failed: "+pki+"nowhere.crt is not a file")
	require.Contains(t, c.Kubectl(t, "describe", "pod", "-n", system, pod), pki+"nowhere.crt is not a file")
	for _, node := range c.ControlPlane(t) {
		require.Equal(t, "absent\n", c.OnNode(t, node, "sh", "-c", "test -e "+pki+"nowhere.crt && echo there || echo absent"))
	}

	// And back.
	r.Set = nil
	c.Kubectl(t, "delete", "job", "-n", system, job)
	c.Upgrade(t, r)
	c.RunNow(t, system, "etcd-snapshot")
	policy = c.Policy(t, system, "etcd-snapshot")
	require.Zero(t, policy.Status.ConsecutiveFailures)
	requireReady(t, policy, metav1.ConditionTrue)
}

func requireReady(t *testing.T, policy *v1.EtcdSnapshotPolicy, status metav1.ConditionStatus) *metav1.Condition {
	t.Helper()
	condition := meta.FindStatusCondition(policy.Status.Conditions, v1.ConditionReady)
	require.NotNil(t, condition)
	require.Equal(t, status, condition.Status, condition.Message)
	return condition
}
