package networkpolicy

import (
	"context"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"rivulet/test/harness/await"
	"rivulet/test/harness/fakewatch"
)

// Pods and namespaces are looked at only as long as there is a policy; what matters of
// them is followed, and nothing else wakes anybody.
func TestTheWatcherIsLazy(t *testing.T) {
	client := fake.NewClientset()
	w := NewWatcher(slog.New(slog.DiscardHandler))
	if _, ok := w.World(); ok {
		t.Error("it knows a world before it has seen one")
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- w.Run(ctx, client) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	until := func(what string, ok func(World, bool) bool) {
		t.Helper()
		await.True(t, 30*time.Second, what, func() bool { return ok(w.World()) })
	}
	asked := func(resource string) (n int) {
		for _, a := range client.Actions() {
			if a.GetResource().Resource == resource && (a.GetVerb() == "list" || a.GetVerb() == "watch") {
				n++
			}
		}
		return n
	}
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	until("a world without policies", func(w World, ok bool) bool { return ok && len(w.Policies) == 0 })
	fakewatch.Open(t, client, "networkpolicies")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "p", UID: "u", Labels: map[string]string{"app": "db"}},
		Spec:   corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Env: []corev1.EnvVar{{Name: "E"}}, Ports: []corev1.ContainerPort{{Name: "http", Protocol: corev1.ProtocolTCP, ContainerPort: 80}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "fd00::1"}, {IP: "10.42.0.1"}}}}
	must(client.CoreV1().Pods("lab").Create(ctx, pod, metav1.CreateOptions{}))
	must(client.CoreV1().Pods("lab").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "host"}, Spec: corev1.PodSpec{HostNetwork: true}}, metav1.CreateOptions{}))
	must(client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lab", Labels: map[string]string{"team": "a"}}}, metav1.CreateOptions{}))
	if asked("pods")+asked("namespaces") != 0 {
		t.Error("pods are looked at without a policy")
	}
	must(client.NetworkingV1().NetworkPolicies("lab").Create(ctx, &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "n"}}, metav1.CreateOptions{}))
	until("the pod of the pod network", func(w World, ok bool) bool {
		return ok && len(w.Policies) == 1 && len(w.Pods) == 1 && w.Pods[0].Addr.String() == "10.42.0.1" && w.Pods[0].Ports[0].Number == 80 && w.Namespaces["lab"]["team"] == "a"
	})

	changed, unsubscribe := w.Changed()
	defer unsubscribe()
	change := func(f func(*corev1.Pod)) {
		t.Helper()
		f(pod)
		must(client.CoreV1().Pods("lab").Update(ctx, pod.DeepCopy(), metav1.UpdateOptions{}))
	}
	// A heartbeat is nothing; a label after it is news: one alone has been told then.
	change(func(p *corev1.Pod) { p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady}} })
	change(func(p *corev1.Pod) { p.Labels = map[string]string{"app": "web"} })
	until("the label", func(w World, _ bool) bool { return w.Pods[0].Labels["app"] == "web" })
	select {
	case <-changed:
	case <-time.After(30 * time.Second):
		t.Error("a changed label was not told")
	}
	change(func(p *corev1.Pod) { p.Status.PodIPs = []corev1.PodIP{{IP: "10.42.0.2"}} })
	until("the address", func(w World, _ bool) bool { return w.Pods[0].Addr.String() == "10.42.0.2" })
	change(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
	until("a pod that has finished is gone", func(w World, _ bool) bool { return len(w.Pods) == 0 })
	change(func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })
	until("it is there", func(w World, _ bool) bool { return len(w.Pods) == 1 })
	if err := client.NetworkingV1().NetworkPolicies("lab").Delete(ctx, "n", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until("without policies there are no pods", func(w World, ok bool) bool { return ok && len(w.Pods) == 0 && len(w.Policies) == 0 })
}

func TestOnlyWhatMattersIsNews(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u", Labels: map[string]string{"a": "b"}}, Status: corev1.PodStatus{Phase: corev1.PodPending}}
	for what, change := range map[string]struct {
		f    func(*corev1.Pod)
		news bool
	}{
		"condition": {func(p *corev1.Pod) { p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady}} }, false},
		"version":   {func(p *corev1.Pod) { p.ResourceVersion = "2" }, false},
		"running":   {func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }, false},
		"finished":  {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, true},
		"leaving":   {func(p *corev1.Pod) { now := metav1.Now(); p.DeletionTimestamp = &now }, true},
		"label":     {func(p *corev1.Pod) { p.Labels = nil }, true},
		"another":   {func(p *corev1.Pod) { p.UID = "v" }, true},
		"address":   {func(p *corev1.Pod) { p.Status.PodIPs = []corev1.PodIP{{IP: "10.42.0.1"}} }, true},
	} {
		after := pod.DeepCopy()
		change.f(after)
		if same(pod, after) == change.news {
			t.Errorf("%s is news: %v, want %v", what, !change.news, change.news)
		}
	}
}
