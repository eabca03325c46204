package e2e

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

// Run is a Job that has ended.
type Run struct {
	Job *batchv1.Job
	// Pods of the Job, oldest first.
	Pods []corev1.Pod
}

// Succeeded tells whether the Job is complete.
func (r *Run) Succeeded() bool { return jobHas(r.Job, batchv1.JobComplete) }

// End is how the agent ended in the last pod: exit code and termination message.
func (r *Run) End(tb testing.TB) *corev1.ContainerStateTerminated {
	tb.Helper()
	require.NotEmpty(tb, r.Pods, "the Job %s has no pod", r.Job.Name)
	statuses := r.Pods[len(r.Pods)-1].Status.ContainerStatuses
	require.Len(tb, statuses, 1)
	require.NotNil(tb, statuses[0].State.Terminated)
	return statuses[0].State.Terminated
}

func jobHas(j *batchv1.Job, kind batchv1.JobConditionType) bool {
	return slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool { return c.Type == kind && c.Status == corev1.ConditionTrue })
}

var starts atomic.Int32

// Start makes a Job of a CronJob now, in the words of the chart's notes, and gives its name.
func (c *Cluster) Start(tb testing.TB, namespace, cronJob string) (job string) {
	tb.Helper()
	job = fmt.Sprintf("%s-now-%d", cronJob, starts.Add(1))
	c.Kubectl(tb, "create", "job", "-n", namespace, "--from=cronjob/"+cronJob, job)
	return job
}

// Finish waits for a Job to end, one way or the other.
func (c *Cluster) Finish(tb testing.TB, namespace, job string) *Run {
	tb.Helper()
	r := &Run{Job: Await(tb, c, Jobs, namespace, job, func(j *batchv1.Job) bool { return jobHas(j, batchv1.JobComplete) || jobHas(j, batchv1.JobFailed) })}
	pods, err := c.Client.CoreV1().Pods(namespace).List(context.Background(), metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=" + job})
	require.NoError(tb, err)
	r.Pods = pods.Items
	c.note(tb, namespace)
	slices.SortFunc(r.Pods, func(a, b corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	return r
}

// PodOf waits for a Job to have a pod, and gives its name.
func (c *Cluster) PodOf(tb testing.TB, namespace, job string) string {
	tb.Helper()
	of := metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=" + job}
	return AwaitAny(tb, c, Pods, namespace, of, func(*corev1.Pod) bool { return true }).Name
}

// RunNow is Start and Finish, and demands success.
func (c *Cluster) RunNow(tb testing.TB, namespace, cronJob string) *Run {
	tb.Helper()
	r := c.Finish(tb, namespace, c.Start(tb, namespace, cronJob))
	require.True(tb, r.Succeeded(), "%s: %+v", r.Job.Name, r.Job.Status)
	return r
}

// Policy gives a policy as it is.
func (c *Cluster) Policy(tb testing.TB, namespace, name string) *v1.EtcdSnapshotPolicy {
	tb.Helper()
	return Get[v1.EtcdSnapshotPolicy](tb, c, Policies, namespace, name)
}

// Rows gives a policy's rows, by name.
func (c *Cluster) Rows(tb testing.TB, namespace, policy string) map[string]v1.EtcdSnapshot {
	tb.Helper()
	list, err := c.Dynamic.Resource(Snapshots).Namespace(namespace).List(context.Background(), metav1.ListOptions{})
	require.NoError(tb, err)
	rows := map[string]v1.EtcdSnapshot{}
	for _, item := range list.Items {
		if row := convert[v1.EtcdSnapshot](tb, &item); row.Spec.Policy == policy {
			rows[row.Name] = *row
		}
	}
	return rows
}

// Get gives an object as it is. T is its type.
func Get[T any](tb testing.TB, c *Cluster, resource schema.GroupVersionResource, namespace, name string) *T {
	tb.Helper()
	u, err := c.Dynamic.Resource(resource).Namespace(namespace).Get(context.Background(), name, metav1.GetOptions{})
	require.NoError(tb, err)
	return convert[T](tb, u)
}

func convert[T any](tb testing.TB, u *unstructured.Unstructured) *T {
	tb.Helper()
	object := new(T)
	require.NoError(tb, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, object))
	return object
}
