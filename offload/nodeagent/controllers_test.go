package nodeagent

import (
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"rivulet/fabric/changes"
	"rivulet/test/harness/await"
)

// The pods of lent ingress classes are known on all nodes, those of other namespaces on none.
func TestControllersOnOtherNodes(t *testing.T) {
	pod := func(ns, name, at string, phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Status: corev1.PodStatus{Phase: phase, PodIPs: []corev1.PodIP{{IP: at}}}}
	}
	client := fake.NewClientset(pod("traefik", "one", "10.42.1.5", corev1.PodRunning), pod("traefik", "two", "10.42.2.5", corev1.PodPending),
		pod("traefik", "done", "10.42.1.6", corev1.PodSucceeded), pod("traefik", "host", "192.0.2.1", corev1.PodRunning), pod("default", "own", "10.42.1.7", corev1.PodRunning))
	var signal changes.Signal
	changed, stop := signal.Changed()
	defer stop()
	c := controllers{client: client, pods: prefix("10.42.0.0/16"), changed: signal.Notify, inside: map[string]*watched{}}
	if got := c.addresses(t.Context(), nil); len(got) > 0 || len(c.inside) > 0 {
		t.Errorf("without a lent class: %v", got)
	}
	c.addresses(t.Context(), []string{"traefik"})
	await.NoError(t, t.Context(), 10*time.Second, "they are loaded", func() error {
		select {
		case <-changed:
		default:
			return errors.New("nothing is told")
		}
		if got := fmt.Sprint(c.addresses(t.Context(), []string{"traefik"})); got != "[10.42.1.5 10.42.2.5]" {
			return errors.New(got)
		}
		return nil
	})
	if got := c.addresses(t.Context(), nil); len(got) > 0 || len(c.inside) > 0 {
		t.Errorf("no longer lent: %v", got)
	}
}
