package device

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"rivulet/appliance/engine"
	"rivulet/offload/policy"
)

func TestKindOf(t *testing.T) {
	for want, args := range map[string][]string{
		"supervisor": {"rivulet "},
		"engine":     {"rivulet-engine server", ""},
		"tunnel":     {"/var/lib/rivulet/bundle/current/bin/rivulet-tunnel", "-socket", "x"},
		"containerd": {"containerd ", ""},
		"shim":       {"/bin/containerd-shim-runc-v2", "-namespace", "k8s.io"},
	} {
		if got := kindOf(args); got != want {
			t.Errorf("%q is %q, want %q", args, got, want)
		}
	}
	for _, args := range [][]string{{""}, {"/pause"}, {"rivulet-lab-init"}} {
		if got := kindOf(args); got != "" {
			t.Errorf("%q is %q, want nothing", args, got)
		}
	}
}

func TestCountsNodesThatAreReadyAtOnce(t *testing.T) {
	w := watch.NewFake()
	type answer struct {
		at time.Time
		ok bool
	}
	done := make(chan answer)
	go func() {
		at, ok := count(w, 2, func(n *corev1.Node) bool {
			ready, _ := engine.NodeReady(n)
			return ready && Virtual(n)
		})
		done <- answer{at, ok}
	}()
	node := func(name string, virtual bool, ready corev1.ConditionStatus) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if virtual {
			n.Labels = map[string]string{policy.VirtualNodeLabel: "id"}
		}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
		return n
	}
	w.Add(node("a", false, corev1.ConditionTrue))
	w.Add(node("b", true, corev1.ConditionTrue))
	w.Modify(node("b", true, corev1.ConditionFalse))
	w.Add(node("c", true, corev1.ConditionTrue))
	before := time.Now()
	w.Modify(node("b", true, corev1.ConditionTrue))
	got := <-done
	if !got.ok || got.at.Before(before) {
		t.Errorf("got %+v; b became ready at %v", got, before)
	}
}
