package pods

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"rivulet/test/harness/await"
	"rivulet/test/harness/fakewatch"
)

// important is a bound pod of a priority.
func important(name string, priority int32, cpu string) *corev1.Pod {
	return pod(name, func(p *corev1.Pod) { asks(cpu)(p); p.Spec.Priority, p.Spec.NodeName = ptr.To(priority), "host" })
}

func TestVictims(t *testing.T) {
	on := []*corev1.Pod{important("a", 1, "300m"), important("b", 1, "300m"), important("c", 5, "300m"), important("d", 9, "100m")}
	on[1].CreationTimestamp = metav1.NewTime(time.Unix(9, 0)) // the newer one
	none := func(*corev1.Pod) bool { return false }
	for name, c := range map[string]struct {
		p      *corev1.Pod
		leaves func(*corev1.Pod) bool
		want   []string
		ok     bool
	}{
		"the least important, the newest of them": {important("x", 9, "250m"), none, []string{"b"}, true},
		"more of them":             {important("x", 9, "700m"), none, []string{"b", "a"}, true},
		"all below":                {important("x", 9, "1"), nil, []string{"b", "a", "c"}, true},
		"too large":                {important("x", 9, "1100m"), none, nil, false},
		"none is below":            {important("x", 1, "200m"), none, nil, false},
		"the others leave already": {important("x", 9, "600m"), func(p *corev1.Pod) bool { return p.Name < "c" }, nil, true},
		"never": {pod("x", func(p *corev1.Pod) {
			*p = *important("x", 9, "250m")
			p.Spec.PreemptionPolicy = ptr.To(corev1.PreemptNever)
		}), none, nil, false},
	} {
		leaves := c.leaves
		if leaves == nil {
			leaves = none
		}
		out, ok := victims(c.p, on, corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourcePods: resource.MustParse("1")}, leaves)
		var got []string
		for _, p := range out {
			got = append(got, p.Name)
		}
		if ok != c.ok || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v %v, want %v %v", name, got, ok, c.want, c.ok)
		}
	}
}

// Whoever is there: only pods of lower priority leave, they make the room, and without each of them there would be none.
func TestVictimsAreNeeded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) *corev1.Pod {
			p := important(name, rapid.Int32Range(0, 4).Draw(t, "priority"), fmt.Sprintf("%dm", rapid.IntRange(0, 900).Draw(t, "cpu")))
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = *resource.NewQuantity(rapid.Int64Range(0, 900).Draw(t, "memory"), resource.BinarySI)
			return p
		}
		p := draw("x")
		var on []*corev1.Pod
		leaving := map[string]bool{}
		for i := range rapid.IntRange(0, 6).Draw(t, "pods") {
			q := draw(fmt.Sprint("p", i))
			on = append(on, q)
			leaving[q.Name] = rapid.IntRange(0, 4).Draw(t, "leaves") == 0
		}
		free := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("100"), corev1.ResourcePods: resource.MustParse("1")}
		before := free.DeepCopy()
		out, ok := victims(p, on, free, func(q *corev1.Pod) bool { return leaving[q.Name] })
		if !free.Cpu().Equal(*before.Cpu()) {
			t.Fatal("what is free was changed")
		}
		without := func(gone []*corev1.Pod) bool {
			left := before.DeepCopy()
			for _, q := range on {
				if leaving[q.Name] && priority(q) < priority(p) || slices.Contains(gone, q) {
					giveBack(left, q)
				}
			}
			return short(p, left) == ""
		}
		if !ok {
			var all []*corev1.Pod
			for _, q := range on {
				if priority(q) < priority(p) {
					all = append(all, q)
				}
			}
			if without(all) {
				t.Fatal("room could be made")
			}
			return
		}
		if !without(out) {
			t.Fatalf("%d leave, and there is no room", len(out))
		}
		for i, q := range out {
			if priority(q) >= priority(p) || leaving[q.Name] {
				t.Fatalf("%s leaves", q.Name)
			}
			if without(slices.Delete(slices.Clone(out), i, i+1)) {
				t.Fatalf("%s leaves for nothing", q.Name)
			}
		}
	})
}

// A pod that is more important than those that run has one leave, once, and takes its place before anybody else.
func TestPreempt(t *testing.T) {
	client := fake.NewClientset(node("host", "amd64", "1"), important("low", 0, "700m"), important("high", 9, "200m"))
	bindable(client)
	deletions := make(chan string, 10)
	client.PrependReactor("delete", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		d := a.(clienttesting.DeleteAction)
		deletions <- d.GetName()
		o, err := client.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), d.GetNamespace(), d.GetName())
		if err != nil {
			return true, nil, err
		}
		p := o.(*corev1.Pod).DeepCopy()
		p.DeletionTimestamp = ptr.To(metav1.Now()) // it has its time to end
		return true, nil, client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), p, p.Namespace)
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = bind(ctx, client, noRules{}) }()
	defer func() { cancel(); <-done }()
	fakewatch.Open(t, client, "pods")
	pods := client.CoreV1().Pods("lab")
	for _, p := range []*corev1.Pod{
		pod("urgent", func(p *corev1.Pod) { asks("600m")(p); p.Spec.Priority = ptr.To[int32](5) }),
		pod("later", func(p *corev1.Pod) { asks("100m")(p) }), // would fit into what is left
	} {
		if _, err := pods.Create(ctx, p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	await.NoError(t, ctx, time.Minute, "it waits for the room", func() error {
		p, err := pods.Get(ctx, "urgent", metav1.GetOptions{})
		if err == nil && p.Status.NominatedNodeName != "host" {
			err = fmt.Errorf("%+v", p.Status)
		}
		return err
	})
	low, err := pods.Get(ctx, "low", metav1.GetOptions{})
	if err != nil || low.DeletionTimestamp == nil || !slices.ContainsFunc(low.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Reason == corev1.PodReasonPreemptionByScheduler
	}) {
		t.Errorf("%v %+v", err, low)
	}
	if err := client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "lab", "low"); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, ctx, time.Minute, "it is bound, and what fits beside it", func() error {
		for _, name := range []string{"urgent", "later"} {
			if p, err := pods.Get(ctx, name, metav1.GetOptions{}); err != nil || p.Spec.NodeName != "host" {
				return fmt.Errorf("%s: %v %q", name, err, p.Spec.NodeName)
			}
		}
		return nil
	})
	if n := len(deletions); n != 1 || <-deletions != "low" {
		t.Errorf("%d deletions", n)
	}
}
