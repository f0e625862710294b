package consumer

import (
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"rivulet/offload/offer"
	"rivulet/test/harness/await"
)

// A virtual node that lends less than its pods use gives the newest back, after the
// time it was given; never one that nobody would make again, and nothing while the
// provider is silent.
func TestHandBack(t *testing.T) {
	client := fake.NewClientset()
	for i, name := range []string{"old", "middle", "new", "bare"} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "lab", CreationTimestamp: metav1.NewTime(time.Unix(int64(1000+i), 0)),
			OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "x", Controller: ptr.To(name != "bare")}}},
			Spec: corev1.PodSpec{NodeName: "b", Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}}}}
		if _, err := client.CoreV1().Pods("lab").Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	var evicted []string
	client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		c := a.(clienttesting.CreateAction)
		if c.GetSubresource() != "eviction" {
			return false, nil, nil
		}
		name := c.GetObject().(*policyv1.Eviction).Name
		mu.Lock()
		evicted = append(evicted, name)
		mu.Unlock()
		return true, nil, client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "lab", name)
	})
	gone := func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(evicted)
	}
	lends := func(cpu string) offer.Offer {
		return offer.Offer{Ready: true, Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}
	}
	// An hour, and the time is never over.
	patient := &handBack{home: client, node: "b", after: time.Hour, log: slog.New(slog.DiscardHandler)}
	offers := make(chan offer.Offer)
	out := patient.through(t.Context(), func(err error) { t.Error(err) }, offers)
	for _, o := range []offer.Offer{lends("4"), lends("1"), {Reason: "silent"}, lends("4")} {
		offers <- o
		if got := <-out; got.Ready != o.Ready || got.Allocatable.Cpu().Cmp(*o.Allocatable.Cpu()) != 0 {
			t.Errorf("%+v came out as %+v", o, got)
		}
	}
	close(offers)
	if _, open := <-out; open {
		t.Error("offers go on after their end")
	}
	if got := gone(); len(got) != 0 {
		t.Errorf("%v handed back before the time", got)
	}

	hasty := &handBack{home: client, node: "b", after: time.Millisecond, log: slog.New(slog.DiscardHandler)}
	offers = make(chan offer.Offer)
	out = hasty.through(t.Context(), func(err error) { t.Error(err) }, offers)
	go func() {
		for range out {
		}
	}()
	offers <- lends("4")
	offers <- offer.Offer{Allocatable: corev1.ResourceList{}, Reason: "silent"}
	offers <- lends("2")
	await.True(t, 20*time.Second, "two are handed back", func() bool { return len(gone()) >= 2 })
	close(offers)
	// Two are too many; the newest of all stays, for it has no controller.
	if got := gone(); !slices.Equal(got, []string{"new", "middle"}) {
		t.Errorf("%v handed back, want the newest that somebody makes again", got)
	}
}
