package offload

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/offload/consumer/pod/translate"
	"rivulet/test/harness/await"
	"rivulet/test/harness/fakenodes"
)

// untold is a home that ends after it has sent a pod and before it has written so: the
// next one neither sends it again nor keeps silent. The provider's kubelet says nothing of the
// pod meanwhile, as one that is busy.
func untold(t *testing.T, a, b *device) {
	ctx := t.Context()
	get := func(name string) (*corev1.Pod, *corev1.PodCondition) {
		p, err := a.Client.CoreV1().Pods("lab").Get(ctx, name, metav1.GetOptions{})
		must(t, err)
		for i := range p.Status.Conditions {
			if p.Status.Conditions[i].Type == translate.OffloadedCondition {
				return p, &p.Status.Conditions[i]
			}
		}
		return p, nil
	}
	var home *corev1.Pod
	var first types.UID
	for try := 0; ; try++ {
		name := fmt.Sprintf("untold-%d", try)
		p := bare(name, spec())
		p.Spec.NodeName = "b"
		p.Labels = map[string]string{fakenodes.WaitsLabel: "yes"}
		a.create(t, p)
		await.Empty(t, time.Minute, name+" was sent", func(ctx context.Context) string {
			home, _ = get(name)
			away := b.away(ctx, t, string(home.UID))
			if len(away) != 1 {
				return fmt.Sprintf("%d pods away", len(away))
			}
			first = away[0].UID
			return ""
		})
		a.stop()
		_, told := get(name)
		if told == nil {
			break
		}
		a.start() // too late: another one
		must(t, a.Client.CoreV1().Pods("lab").Delete(ctx, name, metav1.DeleteOptions{}))
		if try == 9 {
			t.Fatalf("%d pods were told of before home ended", try+1)
		}
	}
	a.start()
	await.Empty(t, time.Minute, "that it was sent is told by the next", func(context.Context) string {
		if _, told := get(home.Name); told == nil || told.Status != corev1.ConditionTrue {
			return fmt.Sprintf("%+v", told)
		}
		return ""
	})
	same := func(when string) {
		t.Helper()
		if away := b.away(ctx, t, string(home.UID)); len(away) != 1 || away[0].UID != first {
			t.Errorf("%s: %d pods away, want %s alone: %+v", when, len(away), first, away)
		}
	}
	same("before it runs")
	_, err := a.Client.CoreV1().Pods("lab").Patch(ctx, home.Name, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:null}}}`, fakenodes.WaitsLabel), metav1.PatchOptions{})
	must(t, err)
	if now := a.running(t, home.Name, ""); now.UID != home.UID {
		t.Errorf("pod %s became %s", home.UID, now.UID)
	}
	same("when it runs")
	must(t, a.Client.CoreV1().Pods("lab").Delete(ctx, home.Name, metav1.DeleteOptions{}))
	a.gone(t, home.Name)
}
