package admission

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"rivulet/offload/nodeagent/homeaddr"
	"rivulet/offload/nodeagent/isolation"
	"rivulet/offload/nodeagent/podnet"
	"rivulet/offload/policy"
)

// This cluster's own pods are admitted whatever becomes of isolation; others only by it.
func TestAdmitPod(t *testing.T) {
	own := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lab"}}
	twin := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lab-b", Labels: map[string]string{policy.OriginLabel: "b"}}}
	client := fake.NewClientset(own, twin)
	var asked kubernetes.Interface
	a := Admission{
		Client: func() kubernetes.Interface { return asked }, Held: isolation.NewHeld(),
		HomeAddrs: homeaddr.New(netip.MustParseAddr("10.43.0.10"), netip.MustParsePrefix("10.43.0.0/16")),
	}
	pod := func(ns string) podnet.Pod {
		return podnet.Pod{Namespace: ns, Addr: netip.MustParseAddr("10.42.0.7"), Veth: "veth7"}
	}
	admit := func(ns string, patience time.Duration) error {
		ctx, stop := context.WithTimeout(context.Background(), patience)
		defer stop()
		return a.Admit(ctx, pod(ns))
	}
	const short, long = 300 * time.Millisecond, 20 * time.Second
	if err := admit("lab", short); err == nil {
		t.Error("admitted while nobody knows whose namespace it is")
	}
	asked = client
	if err := admit("lab", long); err != nil {
		t.Errorf("a pod of this cluster: %v", err)
	}
	if err := admit("lab-b", short); err == nil {
		t.Error("a pod of another cluster, which nothing isolates, was admitted")
	}
	// One that is isolated has to find home's addresses, too, if it was made for them.
	plain := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "lab-b", Name: "plain"}}
	made := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "lab-b", Name: "made", Annotations: map[string]string{policy.HomeAddressesAnnotation: "true"}}}
	for _, p := range []*corev1.Pod{plain, made} {
		if _, err := client.CoreV1().Pods("lab-b").Create(context.Background(), p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	find := func(name string) error {
		ctx, stop := context.WithTimeout(context.Background(), short)
		defer stop()
		return a.findsHome(ctx, podnet.Pod{Namespace: "lab-b", Name: name, Veth: "veth7"}, "b")
	}
	if err := find("plain"); err != nil {
		t.Errorf("a pod of an older home: %v", err)
	}
	for _, name := range []string{"made", "unknown"} {
		if err := find(name); err == nil {
			t.Errorf("a pod (%s) without the addresses of its home was admitted", name)
		}
	}
	if err := admit("gone", long); err == nil {
		t.Error("a pod of no namespace was admitted")
	}
	// An API server that fails for a moment is asked again.
	failing := 2
	flaky := fake.NewClientset(own)
	flaky.PrependReactor("get", "namespaces", func(clienttesting.Action) (bool, runtime.Object, error) {
		failing--
		return failing >= 0, nil, errors.New("not now")
	})
	asked = flaky
	if err := admit("lab", long); err != nil {
		t.Errorf("after two failures: %v", err)
	}
}
