package offer

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"rivulet/offload/policy"
	"rivulet/test/harness/await"
)

// Addresses are those of tenants' unfinished pods on the nodes, within these nodes' own prefixes.
func TestAddresses(t *testing.T) {
	pod := func(name, node, at, origin string, phase corev1.PodPhase, spec corev1.PodSpec) *corev1.Pod {
		spec.NodeName = node
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "lab"}, Spec: spec, Status: corev1.PodStatus{PodIP: at, Phase: phase}}
		if origin != "" {
			p.Labels = map[string]string{policy.OriginLabel: origin}
		}
		return p
	}
	client := fake.NewClientset(
		pod("one", "w", "10.42.1.9", "alice", corev1.PodRunning, corev1.PodSpec{}),
		pod("two", "w", "10.42.1.5", "alice", corev1.PodPending, corev1.PodSpec{}),
		pod("three", "v", "10.42.2.5", "alice", corev1.PodRunning, corev1.PodSpec{}),
		pod("bobs", "w", "10.42.1.6", "bob", corev1.PodRunning, corev1.PodSpec{}),
		pod("own", "w", "10.42.1.7", "", corev1.PodRunning, corev1.PodSpec{}),
		pod("done", "w", "10.42.1.8", "alice", corev1.PodSucceeded, corev1.PodSpec{}),
		pod("of the host", "w", "10.42.1.1", "alice", corev1.PodRunning, corev1.PodSpec{HostNetwork: true}),
		pod("a lie", "w", "10.42.0.5", "alice", corev1.PodRunning, corev1.PodSpec{}),
		pod("another node's", "server", "10.42.0.6", "alice", corev1.PodRunning, corev1.PodSpec{}),
		pod("waits", "", "", "alice", corev1.PodPending, corev1.PodSpec{}),
	)
	w := NewWatcher(client)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	select {
	case <-w.Synced():
	case err := <-done:
		t.Fatal(err)
	}
	got := fmt.Sprint(w.Addresses(map[string]netip.Prefix{"w": netip.MustParsePrefix("10.42.1.0/24"), "v": netip.MustParsePrefix("10.42.2.0/24")}))
	if want := "map[alice:map[v:[10.42.2.5] w:[10.42.1.5 10.42.1.9]] bob:map[w:[10.42.1.6]]]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := w.Addresses(nil); len(got) > 0 {
		t.Errorf("%v without workers", got)
	}
	cancel()
	<-done
}

// The state of a consumer's pods is another after each change of a pod, its address or its readiness, and the same again
// when all is as before.
func TestPodsState(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: "lab", UID: "1", Labels: map[string]string{policy.OriginLabel: "alice"}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.42.0.5", Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}}
	client := fake.NewClientset(pod)
	w := NewWatcher(client)
	if _, known := w.StateOf("alice"); known {
		t.Error("known before it is loaded")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	defer func() { cancel(); <-done }()
	<-w.Synced()
	first, _ := w.StateOf("alice")
	if other, known := w.StateOf("bob"); !known || other == first {
		t.Errorf("%v %v for one without pods", other, known)
	}
	change := func(what string, f func(*corev1.Pod)) PodsState {
		t.Helper()
		changed := pod.DeepCopy()
		f(changed)
		if _, err := client.CoreV1().Pods("lab").Update(ctx, changed, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		var state PodsState
		await.True(t, time.Minute, what, func() bool {
			state, _ = w.StateOf("alice")
			return (state == first) == (what == "as before")
		})
		return state
	}
	if s := change("another address", func(p *corev1.Pod) { p.Status.PodIP = "10.42.0.6" }); s.Pods == first.Pods {
		t.Errorf("%v", s)
	}
	if s := change("as before", func(*corev1.Pod) {}); s != first {
		t.Errorf("%v, was %v", s, first)
	}
	if s := change("not ready", func(p *corev1.Pod) { p.Status.Conditions = nil }); s.Pods != first.Pods || s.Ready == first.Ready {
		t.Errorf("%v, was %v", s, first)
	}
	change("finished", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
}
