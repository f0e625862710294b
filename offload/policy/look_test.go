package policy_test

import (
	"context"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"rivulet/offload/policy"
)

// A watch that shows nothing does not keep a namespace from being known to who looks.
func TestLookPastAMuteWatch(t *testing.T) {
	ctx := t.Context()
	client := fake.NewClientset()
	client.PrependWatchReactor("namespaces", func(clienttesting.Action) (bool, watch.Interface, error) { return true, watch.NewFake(), nil })
	w := policy.New(client, slog.New(slog.DiscardHandler))
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(running) }()
	defer func() { stop(); <-ended }()
	if !w.WaitSynced(ctx) {
		t.Fatal("not synced")
	}
	changed, cancel := w.Changed()
	defer cancel()
	look := func(want bool) {
		t.Helper()
		if err := w.Check(ctx, "lab"); err != nil {
			t.Fatal(err)
		}
		if ns, ok := w.Get("lab"); ok != want || ok && !ns.Allows("b") {
			t.Errorf("%+v, %v", ns, ok)
		}
	}
	look(false)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lab", Labels: map[string]string{policy.NamespaceLabel: "burst"}}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	look(true)
	<-changed
	ns.Labels[policy.NamespaceLabel] = "bursty"
	if _, err := client.CoreV1().Namespaces().Update(ctx, ns, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	look(true) // what is not understood is the watch's to tell
	if err := client.CoreV1().Namespaces().Delete(ctx, "lab", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	look(false)
	<-changed
}
