package pod

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/consumer/pod/translate/translatetest"
	"rivulet/offload/policy"
	"rivulet/test/harness/await"
)

// A pod that is deleted is let go at home with its true end, which the watch may show in the moment in which the pod
// is gone, and no list ever.
func TestTheEndOfADeletedPodIsItsOwn(t *testing.T) {
	for name, c := range map[string]struct {
		policy corev1.RestartPolicy
		code   int32
		want   corev1.PodPhase
	}{
		"a service that ends well": {corev1.RestartPolicyAlways, 0, corev1.PodSucceeded},
		"a service that does not":  {corev1.RestartPolicyAlways, 3, corev1.PodFailed},
		"work that is cut short":   {corev1.RestartPolicyNever, 143, corev1.PodFailed},
	} {
		t.Run(name, func(t *testing.T) {
			home := translatetest.Ungated()
			home.Spec.RestartPolicy, home.DeletionTimestamp = c.policy, &metav1.Time{Time: time.Now()}
			home.Status = translate.Status(home, translate.Away{Pod: translatetest.Running()}, view)
			atHome, there := fake.NewClientset(home), fake.NewClientset()
			var last corev1.PodStatus
			atHome.PrependReactor("update", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
				last = a.(clienttesting.UpdateAction).GetObject().(*corev1.Pod).Status
				return true, home, nil
			})
			shown := watch.NewFake()
			there.PrependWatchReactor("pods", func(clienttesting.Action) (bool, watch.Interface, error) { return true, shown, nil })
			ctr := controller(atHome, Config{Target: place{there}, NoHomeAPI: true})
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			ctr.life = ctx
			tw := ctr.watch("lab", "lab-a")
			away := translatetest.Running()
			away.Namespace, away.Labels, away.Annotations = "lab-a", map[string]string{policy.HomeUIDLabel: string(home.UID), policy.OriginLabel: "aid"},
				map[string]string{policy.HomePodAnnotation: home.Name, policy.HomeNamespaceAnnotation: "lab"}
			await.True(t, 20*time.Second, "the watch begins", tw.Synced)
			shown.Add(away)
			await.True(t, 20*time.Second, "the pod is seen", func() bool { return len(tw.PodsOf(home.UID)) == 1 })
			gone := away.DeepCopy()
			gone.DeletionTimestamp, gone.Status.Phase = home.DeletionTimestamp, corev1.PodFailed
			gone.Status.ContainerStatuses[1].State = translatetest.Exit(c.code)
			shown.Delete(gone)
			await.True(t, 20*time.Second, "the pod is gone", func() bool { return len(tw.PodsOf(home.UID)) == 0 })
			if err := ctr.depart(ctx, home); err != nil {
				t.Fatal(err)
			}
			if end := last.ContainerStatuses[0].State.Terminated; last.Phase != c.want || end == nil || end.ExitCode != c.code || end.Message != "its own word" || translate.Condition(&last, corev1.DisruptionTarget) != nil {
				t.Errorf("%s %+v %+v", last.Phase, last.ContainerStatuses, last.Conditions)
			}
			ctr.ends.Keep(types.NamespacedName{Namespace: "lab", Name: home.Name}, nil)
			if ctr.ends.Get(home.UID) != nil {
				t.Error("the end of a pod that is gone from home is kept for ever")
			}
		})
	}
}
