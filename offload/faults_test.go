package offload

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
	"rivulet/test/harness/faulty"
)

// Whichever call of consumer or provider to an API server fails, once and in whichever way: a pod with what it refers
// to goes away, follows a change, and ends, and one that stands beside it is not touched. A few are tried, with RIVULET_LONG=1 each call in each way.
func TestEachCallMayFailOnce(t *testing.T) {
	t.Parallel()
	calls := [2]*faulty.Calls{{}, {}}
	a, b := faultyWorld(t, calls[0], calls[1])
	apiserver.StartKubelet(t, b.Server, "b-node")
	ctx := t.Context()
	await.Empty(t, time.Minute, "b is a Ready virtual node of a", func(ctx context.Context) string {
		n, err := a.Client.CoreV1().Nodes().Get(ctx, "b", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		return nodeReady(n)
	})
	a.offloadNamespace(t, "lab")
	a.create(t, bare("beside", corev1.PodSpec{}))
	beside := a.running(t, "beside", "")
	away := b.away(ctx, t, string(beside.UID))
	if len(away) != 1 {
		t.Fatalf("%d pods away for one at home", len(away))
	}

	before := [2]int{calls[0].Count(), calls[1].Count()}
	lifeOfAPod(t, a, b, "counted")
	sides := [2]string{"home", "the provider"}
	type fault struct {
		side, k int
		way     faulty.Way
	}
	var faults []fault
	for side := range sides {
		made := calls[side].Count() - before[side]
		t.Logf("%s: %d calls in the life of a pod", sides[side], made)
		if made == 0 {
			t.Fatalf("%s: no call in the life of a pod", sides[side])
		}
		for k := range made {
			for way := range faulty.Ways {
				faults = append(faults, fault{side, k + 1, way})
			}
		}
	}
	if os.Getenv("RIVULET_LONG") == "" {
		rand.New(rand.NewPCG(7, 0)).Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
		faults = faults[:12]
	}
	hit := 0
	for round, f := range faults {
		side, k := f.side, f.k
		calls[side].Fail(k, f.way)
		began := time.Now()
		lifeOfAPod(t, a, b, fmt.Sprint("p", round))
		failed := calls[side].Failed()
		if failed != "" {
			hit++
		}
		t.Logf("round %d, API server of %s, call %d %s: %.1f s", round, sides[side], k, failed, time.Since(began).Seconds())
		now, err := a.Client.CoreV1().Pods("lab").Get(ctx, "beside", metav1.GetOptions{})
		must(t, err)
		there := b.away(ctx, t, string(beside.UID))
		if now.UID != beside.UID || now.Status.Phase != corev1.PodRunning || len(there) != 1 || there[0].UID != away[0].UID {
			t.Fatalf("round %d, %s: the pod beside it is %s at home and %d away", round, failed, now.Status.Phase, len(there))
		}
	}
	if hit < len(faults)/2 {
		t.Errorf("%d of %d calls that were to fail were made at all", hit, len(faults))
	}
}

// lifeOfAPod creates a pod and a ConfigMap that it reads, changes and deletes them.
func lifeOfAPod(t *testing.T, a, b *device, name string) {
	t.Helper()
	ctx := t.Context()
	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "lab"}, Data: map[string]string{"k": "v"}}
	_, err := a.Client.CoreV1().ConfigMaps("lab").Create(ctx, settings, metav1.CreateOptions{})
	must(t, err)
	p := bare(name, corev1.PodSpec{})
	p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}}
	a.create(t, p)
	pod := a.running(t, name, "")
	must(t, func() error {
		_, err := a.Client.CoreV1().Pods("lab").Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"labels":{"track":"canary"}}}`), metav1.PatchOptions{})
		return err
	}())
	await.Empty(t, time.Minute, "the label and the ConfigMap are away, once", func(ctx context.Context) string {
		away := b.away(ctx, t, string(pod.UID))
		if len(away) != 1 || away[0].Labels["track"] != "canary" {
			return fmt.Sprintf("%d pods", len(away))
		}
		if got, err := b.Client.CoreV1().ConfigMaps(a.twin("lab")).Get(ctx, name, metav1.GetOptions{}); err != nil || got.Data["k"] != "v" {
			return fmt.Sprint("ConfigMap: ", err)
		}
		return ""
	})
	must(t, a.Client.CoreV1().Pods("lab").Delete(ctx, name, metav1.DeleteOptions{}))
	must(t, a.Client.CoreV1().ConfigMaps("lab").Delete(ctx, name, metav1.DeleteOptions{}))
	a.gone(t, name)
	await.Empty(t, time.Minute, "nothing of it is away", func(ctx context.Context) string {
		if away := b.away(ctx, t, string(pod.UID)); len(away) > 0 {
			return fmt.Sprintf("%d pods", len(away))
		}
		if _, err := b.Client.CoreV1().ConfigMaps(a.twin("lab")).Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Sprint("ConfigMap: ", err)
		}
		return ""
	})
}
