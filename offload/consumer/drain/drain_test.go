package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"rivulet/offload/policy"
)

func node(name, id string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if id != "" {
		n.Labels = map[string]string{policy.VirtualNodeLabel: id}
	}
	return n
}

func pod(name, owner string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: name, UID: types.UID("uid-" + name)}, Spec: corev1.PodSpec{NodeName: "b"}}
	if owner != "" {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: owner, Name: "x", Controller: ptr.To(true)}}
	}
	for _, f := range change {
		f(p)
	}
	return p
}

// cluster evicts at once, unless budget says that the pod may not go yet.
func cluster(budget func(pod string, asked int) string, objects ...runtime.Object) *fake.Clientset {
	client := fake.NewClientset(objects...)
	var mu sync.Mutex
	asked := map[string]int{}
	client.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "eviction" {
			return false, nil, nil
		}
		e := a.(k8stesting.CreateAction).GetObject().(*policyv1.Eviction)
		mu.Lock()
		defer mu.Unlock()
		asked[e.Name]++
		if why := budget(e.Name, asked[e.Name]); why != "" {
			err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
			err.ErrStatus.Details.Causes = []metav1.StatusCause{{Message: why}}
			return true, nil, err
		}
		return true, nil, client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), e.Namespace, e.Name)
	})
	return client
}

func always(string, int) string { return "" }

func run(t *testing.T, d *Drain, limit time.Duration) ([]string, error) {
	t.Helper()
	var told []string
	d.Nodes, d.Retry = []string{"b"}, time.Millisecond
	d.Report = func(e Event) { told = append(told, strings.TrimSpace(fmt.Sprintf("%s %s %s", e.What, e.Pod, e.Why))) }
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	err := d.Run(ctx)
	return told, err
}

func TestPodsLeaveAsTheirBudgetsAllow(t *testing.T) {
	finished := func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
	budget := func(pod string, asked int) string {
		if pod == "db-0" && asked < 3 {
			return "The disruption budget db needs 1 healthy pods and has 1 currently"
		}
		return ""
	}
	client := cluster(budget, node("b", "id-of-b"), pod("web-1", "ReplicaSet"), pod("db-0", "StatefulSet"),
		pod("log", "DaemonSet"), pod("done", "Job", finished))
	told, err := run(t, &Drain{Client: client}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	blocked := "blocked db-0 Cannot evict pod as it would violate the pod's disruption budget. The disruption budget db needs 1 healthy pods and has 1 currently"
	for _, want := range []string{"cordoned", "evicted web-1", "gone web-1", blocked, "evicted db-0", "gone db-0", "done"} {
		if n := len(told) - len(slices.DeleteFunc(slices.Clone(told), func(s string) bool { return s == want })); n != 1 {
			t.Errorf("%d times %q in %q", n, want, told)
		}
	}
	if told[0] != "cordoned" || told[len(told)-1] != "done" {
		t.Errorf("%q", told)
	}
	n, err := client.CoreV1().Nodes().Get(t.Context(), "b", metav1.GetOptions{})
	if err != nil || !n.Spec.Unschedulable {
		t.Errorf("the node takes new pods: %v", err)
	}
	left, err := client.CoreV1().Pods("lab").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(left.Items) != 2 {
		t.Errorf("%d pods are left, want the DaemonSet's and the finished one; %v", len(left.Items), err)
	}
}

func TestPodsThatNobodyMakesAgain(t *testing.T) {
	client := cluster(always, node("b", "id-of-b"), pod("web-1", "ReplicaSet"), pod("alone", ""))
	told, err := run(t, &Drain{Client: client}, time.Minute)
	var u *Unmanaged
	if !errors.As(err, &u) || !slices.Equal(u.Pods, []string{"lab/alone"}) || len(told) != 0 {
		t.Fatalf("%v, told %q", err, told)
	}
	if n, _ := client.CoreV1().Nodes().Get(t.Context(), "b", metav1.GetOptions{}); n.Spec.Unschedulable {
		t.Error("nothing was to be done, yet the node is cordoned")
	}
	if told, err = run(t, &Drain{Client: client, Force: true}, time.Minute); err != nil || !slices.Contains(told, "gone alone") {
		t.Errorf("with force: %v, told %q", err, told)
	}
}

func TestWhatIsLeftWhenTheTimeIsOver(t *testing.T) {
	now := metav1.Now()
	client := cluster(func(pod string, _ int) string {
		if pod == "db-0" {
			return "never"
		}
		return ""
	}, node("b", "id-of-b"), pod("db-0", "StatefulSet"),
		pod("slow", "ReplicaSet", func(p *corev1.Pod) { p.DeletionTimestamp, p.Finalizers = &now, []string{"test/keeps"} }))
	_, err := run(t, &Drain{Client: client}, 200*time.Millisecond)
	if !errors.Is(err, ErrLeft) || !strings.Contains(err.Error(), "1 may not go yet (lab/db-0), 1 are leaving (lab/slow)") {
		t.Error(err)
	}
}

func TestFind(t *testing.T) {
	arm := node("b-arm64", "b1d2c3d4e5")
	arm.Labels[policy.TargetLabel] = "b"
	nodes := []corev1.Node{*arm, *node("a", ""), *node("b", "b1d2c3d4e5"), *node("b-c1d2c3d4", "c1d2c3d4e5")}
	for _, c := range []struct {
		name string
		ids  []string
		want string
	}{
		{"b", nil, "b,b-arm64"}, {"b", []string{"b1d2c3d4e5", "c1d2c3d4e5"}, "b,b-arm64"}, // a node's own name goes first
		{"b-arm64", nil, "b-arm64"}, {"b1d2c3d4", nil, "b,b-arm64"},
		{"c1d2c3d4", nil, "b-c1d2c3d4"}, {"other", []string{"c1d2c3d4e5"}, "b-c1d2c3d4"},
		{"a", nil, "!a is a node of this cluster"}, {"c1d2", nil, "!there are: b-arm64, b, b-c1d2c3d4"},
		{"twice", []string{"b1d2c3d4e5", "c1d2c3d4e5"}, "!twice may be b or b-c1d2c3d4"},
	} {
		found, err := find(nodes, c.name, c.ids)
		var names []string
		for _, n := range found {
			names = append(names, n.Name)
		}
		if bad, wrong := strings.CutPrefix(c.want, "!"); wrong {
			if err == nil || !strings.Contains(err.Error(), bad) {
				t.Errorf("%s: %v, want %q", c.name, err, bad)
			}
		} else if err != nil || strings.Join(names, ",") != c.want {
			t.Errorf("%s: %v %v, want %s", c.name, names, err, c.want)
		}
	}
}

func TestAllNodesOfATargetAreDrained(t *testing.T) {
	onArm := func(p *corev1.Pod) { p.Spec.NodeName = "b-arm64" }
	client := cluster(always, node("b", "id-of-b"), node("b-arm64", "id-of-b"), pod("web-1", "ReplicaSet"), pod("web-2", "ReplicaSet", onArm))
	d := &Drain{Client: client, Nodes: []string{"b", "b-arm64"}, Retry: time.Millisecond}
	if err := d.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	left, err := client.CoreV1().Pods("lab").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(left.Items) != 0 {
		t.Errorf("%d pods are left; %v", len(left.Items), err)
	}
	for _, name := range d.Nodes {
		if n, err := client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{}); err != nil || !n.Spec.Unschedulable {
			t.Errorf("%s takes new pods: %v", name, err)
		}
	}
}
