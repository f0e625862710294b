package offer

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"rivulet/offload/policy"
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
