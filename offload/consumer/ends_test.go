package consumer

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"rivulet/offload/policy"
	"rivulet/offload/target"
)

// left is a virtual node of an earlier run, with a StatefulSet's pod on it.
func left(t *testing.T, taints ...corev1.Taint) (*Consumer, *fake.Clientset) {
	t.Helper()
	client := fake.NewClientset(
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b", Labels: map[string]string{policy.VirtualNodeLabel: "id-of-b", policy.KindLabel: string(target.Peer)}},
			Spec: corev1.NodeSpec{ProviderID: "rivulet://id-of-b", Taints: taints}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "db-0", UID: "1",
			OwnerReferences: []metav1.OwnerReference{{Kind: "StatefulSet", Name: "db", Controller: ptr.To(true)}}}, Spec: corev1.PodSpec{NodeName: "b"}})
	client.PrependReactor("delete", "pods", func(ktesting.Action) (bool, runtime.Object, error) { return true, nil, nil }) // it takes its time
	log := slog.New(slog.DiscardHandler)
	c, err := New(Config{Home: &rest.Config{Host: "http://127.0.0.1:1"}, ID: "home", Host: "home", NodeIP: netip.MustParseAddr("127.0.0.1"), Log: log})
	must(t, err)
	c.home = client
	return c, client
}

// released reports whether the pod was deleted without its grace period, so that its owner may make another.
func released(t *testing.T, client *fake.Clientset) bool {
	t.Helper()
	for _, a := range client.Actions() {
		if d, ok := a.(interface{ GetDeleteOptions() metav1.DeleteOptions }); ok && a.Matches("delete", "pods") {
			if g := d.GetDeleteOptions().GracePeriodSeconds; g != nil && *g == 0 {
				return true
			}
		}
	}
	return false
}

// TestAPeerThatIsNotListedIsNotEnded: a record may be missing for any reason; a revocation ends a peering. The node and its
// pods stay until then, and the problem says what a person can do.
func TestAPeerThatIsNotListedIsNotEnded(t *testing.T) {
	c, client := left(t)
	c.begun = time.Now().Add(-2 * target.Patience)
	c.SetTargets(target.Peer, nil, false)
	settle := func() {
		t.Helper()
		_, err := c.settleTargets(t.Context(), c.wanted())
		must(t, err)
	}
	settle()
	if n, err := client.CoreV1().Nodes().Get(t.Context(), "b", metav1.GetOptions{}); err != nil || len(n.Spec.Taints) > 0 {
		t.Errorf("the node is closed: %+v %v", n, err)
	}
	if said := c.Problems()["virtual nodes without a peer"]; !strings.HasSuffix(said, "kubectl delete node b") {
		t.Errorf("%q", said)
	}
	c.End("id-of-b")
	settle()
	if n, err := client.CoreV1().Nodes().Get(t.Context(), "b", metav1.GetOptions{}); err != nil || len(n.Spec.Taints) == 0 {
		t.Errorf("a peering that has ended leaves the node open: %+v %v", n, err)
	}
	if said := c.Problems()["virtual nodes without a peer"]; said != "" {
		t.Errorf("%q", said)
	}
	if released(t, client) {
		t.Error("its pod was released at once")
	}
}

// TestTheProblemGoesWithItsNode: a person removes the node, as the problem says.
func TestTheProblemGoesWithItsNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, client := left(t)
		c.begun = time.Now().Add(-2 * target.Patience)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.runTargets(ctx)
		}()
		synctest.Wait()
		if c.Problems()[partUnknown] == "" {
			t.Error("there is no problem")
		}
		must(t, client.CoreV1().Nodes().Delete(ctx, "b", metav1.DeleteOptions{}))
		time.Sleep(unknownLook + time.Second)
		synctest.Wait()
		if said := c.Problems()[partUnknown]; said != "" {
			t.Errorf("%q", said)
		}
		cancel()
		<-done
	})
}

// TestASteppedClockReleasesNoPod: the time since a node was closed is counted by this process. The time of its taint is a
// wall clock's, which was set since.
func TestASteppedClockReleasesNoPod(t *testing.T) {
	c, client := left(t, corev1.Taint{Key: policy.WithdrawnTaint, Effect: corev1.TaintEffectNoSchedule, TimeAdded: ptr.To(metav1.NewTime(time.Now().Add(-time.Hour)))})
	c.End("id-of-b")
	strays := func() bool {
		t.Helper()
		list, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		must(t, err)
		leaving, err := c.removeStrays(t.Context(), nil, list.Items)
		must(t, err)
		return leaving
	}
	for range 3 {
		if !strays() || released(t, client) {
			t.Fatal("the pod is released by the time of a taint")
		}
	}
	c.closed.since["b"] = c.closed.since["b"].Add(-c.cfg.Parting - time.Second)
	if strays() || !released(t, client) {
		t.Error("the pod is kept for ever")
	}
	if _, err := client.CoreV1().Nodes().Get(t.Context(), "b", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the node: %v", err)
	}
	c.closed.only(nil)
	if n := (&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}}); c.closed.lasted(n) > time.Minute {
		t.Error("a node of that name begins anew")
	}
}
