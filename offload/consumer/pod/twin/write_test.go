package twin

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/policy"
	"rivulet/offload/replacement"
)

// Grace periods that are handed on: those that the away pod's own bound allows, and none where the
// provider refuses one all the same.
func TestGracePeriodsAreWithinTheProvidersBound(t *testing.T) {
	for _, c := range []struct {
		home *int64
		away int64
		want int64 // 0: none
	}{{nil, 30, 0}, {ptr.To[int64](60), 45, 0}, {ptr.To[int64](45), 45, 0}, {ptr.To[int64](10), 45, 10}, {ptr.To[int64](0), 45, 1}, {ptr.To[int64](0), 1, 0}} {
		if got := ptr.Deref(translate.Sooner(c.home, c.away), 0); got != c.want {
			t.Errorf("home's %v, and %d there: %d is handed on, want %d", c.home, c.away, got, c.want)
		}
	}

	away := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "lab-a", UID: "a1", Labels: map[string]string{policy.HomeUIDLabel: "u1"}, Annotations: map[string]string{}},
		Spec: corev1.PodSpec{TerminationGracePeriodSeconds: ptr.To[int64](45)}}
	replacement.Keep(away, replacement.AfterEnd)
	client := fake.NewClientset(away)
	var asked []int64
	bound := int64(100)
	client.PrependReactor("delete", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		g := ptr.Deref(a.(clienttesting.DeleteActionImpl).DeleteOptions.GracePeriodSeconds, -1)
		asked = append(asked, g)
		if g > bound {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "web", errors.New("a pod of another cluster ends within 5 s"))
		}
		return true, nil, nil
	})
	tw := newShown(client)
	expect := func(what string, err error, want ...int64) {
		t.Helper()
		if err != nil || len(asked) != len(want) {
			t.Fatalf("%s: asked %v, want %v (%v)", what, asked, want, err)
		}
		for i := range want {
			if asked[i] != want[i] {
				t.Errorf("%s: asked %v, want %v (-1 is without a period)", what, asked, want)
			}
		}
		asked = nil
	}
	expect("more than the bound is not asked for", tw.twin.Remove(t.Context(), translate.Wrapper{Pod: away}, ptr.To[int64](60)), -1)
	expect("less is", tw.twin.Remove(t.Context(), translate.Wrapper{Pod: away}, ptr.To[int64](20)), 20)
	bound = 5
	expect("what is refused is asked for without a period", tw.twin.Remove(t.Context(), translate.Wrapper{Pod: away}, ptr.To[int64](20)), 20, -1)

	// A period that is shortened when the pod ends already.
	bound = 100
	going := away.DeepCopy()
	going.DeletionTimestamp, going.DeletionGracePeriodSeconds = ptr.To(metav1.Now()), ptr.To[int64](45)
	tw.pods.show(going)
	home := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u1", DeletionGracePeriodSeconds: ptr.To[int64](60)}}
	expect("it ends soon enough", tw.twin.Hasten(t.Context(), home))
	home.DeletionGracePeriodSeconds = ptr.To[int64](2)
	expect("it has to end sooner", tw.twin.Hasten(t.Context(), home), 2)
}
