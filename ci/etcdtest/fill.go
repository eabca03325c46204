package etcdtest

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
)

// Fill writes Kubernetes-shaped objects until their keys and values are at least n bytes, and tells how many objects
// it wrote. Keys are /registry/<kind>/<namespace>/<name>; half of the values are JSON as custom resources are, half
// are protobuf as everything else is. They compress about as real objects do. The same n gives the same objects.
func (c *Cluster) Fill(ctx context.Context, n int64) (objects int, err error) {
	client, err := c.Client(0)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	// Many small transactions at a time: one object each would wait for the disk most of the time.
	const (
		workers   = 8
		batchOps  = 64        // etcd takes 128 in a transaction
		batchSize = 512 << 10 // etcd takes 1.5 MiB in a request
	)
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(workers)
	var (
		ops     []clientv3.Op
		pending int
	)
	flush := func() {
		batch := ops
		ops, pending = nil, 0
		group.Go(func() error {
			_, err := client.Txn(gctx).Then(batch...).Commit()
			return err
		})
	}
	for written := int64(0); written < n && gctx.Err() == nil; objects++ {
		key, value := Object(objects)
		ops = append(ops, clientv3.OpPut(key, string(value)))
		pending += len(key) + len(value)
		written += int64(len(key) + len(value))
		if len(ops) == batchOps || pending >= batchSize || written >= n {
			flush()
		}
	}
	if err := group.Wait(); err != nil {
		return 0, fmt.Errorf("fill: %w", err)
	}
	return objects, ctx.Err()
}

var kinds = []struct {
	path, apiVersion, kind string
	json                   bool
	size                   int // of the value, about
}{
	{"pods", "v1", "Pod", false, 6000},
	{"example.test/widgets", "example.test/v1", "Widget", true, 4500},
	{"secrets", "v1", "Secret", false, 1200},
	{"apps.example.test/releases", "apps.example.test/v1alpha1", "Release", true, 7000},
	{"events", "v1", "Event", false, 900},
	{"leases.example.test/claims", "leases.example.test/v1", "Claim", true, 700},
	{"configmaps", "v1", "ConfigMap", false, 5000},
	{"example.test/bindings", "example.test/v1", "Binding", true, 1800},
}

var words = sync.OnceValue(func() []string {
	return strings.Fields(`apiVersion metadata labels annotations controller-revision-hash app.kubernetes.io/name
		app.kubernetes.io/instance ownerReferences blockOwnerDeletion containers image imagePullPolicy IfNotPresent resources
		limits requests memory cpu volumeMounts mountPath readOnly serviceAccountName tolerations node.kubernetes.io/not-ready
		operator Exists effect NoExecute conditions lastTransitionTime ContainersReady PodScheduled Initialized status phase Running
		hostIP podIP qosClass BestEffort managedFields fieldsType FieldsV1 kube-controller-manager Update kubectl-client-side-apply
		terminationMessagePath /dev/termination-log livenessProbe httpGet periodSeconds failureThreshold successThreshold`)
})

// Object is the i-th object that Fill writes.
func Object(i int) (key string, value []byte) {
	k := kinds[i%len(kinds)]
	rnd := rand.New(rand.NewPCG(uint64(i), 2379))
	namespace := fmt.Sprintf("team-%02d", rnd.IntN(40))
	name := fmt.Sprintf("%s-%s-%05d", strings.ToLower(k.kind), hex(rnd, 10), i)
	key = "/registry/" + k.path + "/" + namespace + "/" + name
	if k.json {
		return key, jsonObject(rnd, k.apiVersion, k.kind, namespace, name, k.size)
	}
	return key, protobufObject(rnd, k.apiVersion, k.kind, namespace, name, k.size)
}

func jsonObject(rnd *rand.Rand, apiVersion, kind, namespace, name string, size int) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, `{"apiVersion":%q,"kind":%q,"metadata":{"creationTimestamp":%q,"name":%q,"namespace":%q,"uid":%q},"spec":{`,
		apiVersion, kind, timestamp(rnd), name, namespace, uid(rnd))
	for sep := ""; b.Len() < size; sep = "," {
		fmt.Fprintf(&b, `%s%q:{"name":%q,"value":%q,"observedGeneration":%d,"lastTransitionTime":%q}`,
			sep, word(rnd), word(rnd)+"-"+hex(rnd, 4), filler(rnd), rnd.IntN(10), timestamp(rnd))
	}
	b.WriteString("}}")
	return []byte(b.String())
}

// protobufObject has the frame of the API server's storage encoding: the prefix k8s\0, then a runtime.Unknown (1: type
// metadata, 2: the object), whose object begins with its metadata (1: name, 3: namespace, 5: uid).
func protobufObject(rnd *rand.Rand, apiVersion, kind, namespace, name string, size int) []byte {
	field := func(b []byte, number int, s string) []byte {
		b = append(b, byte(number<<3|2))
		b = binary.AppendUvarint(b, uint64(len(s)))
		return append(b, s...)
	}
	metadata := field(field(field(nil, 1, name), 3, namespace), 5, uid(rnd))
	object := field(nil, 1, string(metadata))
	for i := 0; len(object) < size; i++ {
		object = field(object, 2+i%4, word(rnd))
		object = field(object, 10, filler(rnd))
		object = binary.AppendUvarint(append(object, 11<<3), uint64(1700000000+rnd.IntN(1<<24)))
	}
	types := field(field(nil, 1, apiVersion), 2, kind)
	return field(field([]byte("k8s\x00"), 1, string(types)), 2, string(object))
}

// filler is mostly words, and now and then what does not compress: digests, tokens.
func filler(rnd *rand.Rand) string {
	switch rnd.IntN(16) {
	case 0:
		return "sha256:" + hex(rnd, 64)
	case 1:
		raw := make([]byte, 24)
		for i := range raw {
			raw[i] = byte(rnd.Uint32())
		}
		return base64.StdEncoding.EncodeToString(raw)
	}
	return word(rnd) + " " + word(rnd) + " " + word(rnd)
}

func word(rnd *rand.Rand) string { return words()[rnd.IntN(len(words()))] }

func uid(rnd *rand.Rand) string {
	return hex(rnd, 8) + "-" + hex(rnd, 4) + "-4" + hex(rnd, 3) + "-a" + hex(rnd, 3) + "-" + hex(rnd, 12)
}

func timestamp(rnd *rand.Rand) string {
	return fmt.Sprintf("2026-%02d-%02dT%02d:%02d:%02dZ", 1+rnd.IntN(12), 1+rnd.IntN(28), rnd.IntN(24), rnd.IntN(60), rnd.IntN(60))
}

func hex(rnd *rand.Rand, digits int) string {
	const alphabet = "0123456789abcdef"
	b := make([]byte, digits)
	for i := range b {
		b[i] = alphabet[rnd.IntN(len(alphabet))]
	}
	return string(b)
}
