package places

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"rivulet/appliance/api"
	"rivulet/offload"
	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/policy"
	"rivulet/offload/provider/tenancy"
)

func aPod(name, node, cpu string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "lab"}, Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
		Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}},
	}}}}
	if change != nil {
		change(p)
	}
	return p
}

// Pods count where they are, and take room there; those that are refused or wait take none.
func TestCount(t *testing.T) {
	client := fake.NewClientset(
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "home"}, Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}, NodeInfo: corev1.NodeSystemInfo{Architecture: "arm64"},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue}, {Type: corev1.NodeReady, Status: corev1.ConditionTrue}, {Type: corev1.NodePIDPressure, Status: corev1.ConditionFalse}}}},
		aPod("one", "home", "500m", nil), aPod("two", "home", "1", nil), aPod("waits", "", "8", nil), aPod("away", "b", "2", nil),
		aPod("tenant", "home", "250m", func(p *corev1.Pod) { p.Labels = map[string]string{policy.OriginLabel: "x"} }),
		aPod("student", "home", "0", func(p *corev1.Pod) { p.Labels = map[string]string{policy.OriginLabel: "ann"} }),
		aPod("ended", "b", "16", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
		aPod("evicted", "b", "16", func(p *corev1.Pod) { p.Status.Phase, p.Status.Reason = corev1.PodFailed, "Evicted" }),
		aPod("refused", "b", "16", func(p *corev1.Pod) { p.Status.Reason = translate.ReasonRefused }),
	)
	n, room := Count(t.Context(), client, "home", []offload.Consumer{{Consumer: tenancy.Consumer{ID: "ann"}, VCluster: true}, {Consumer: tenancy.Consumer{ID: "x"}, Peer: true}})
	if want := (api.Pods{Home: 2, Away: 1, Tenants: 2, VClusters: 1}); n != want {
		t.Errorf("pods are %+v, want %+v", n, want)
	}
	cpu := func(node string) string { asked := room[node].Requested; return asked.Cpu().String() }
	there := room["home"].Allocatable
	if cpu("home") != "1750m" || room["home"].Pods != 4 || room["home"].Architecture != "arm64" || there.Cpu().String() != "4" {
		t.Errorf("home is %+v", room["home"])
	}
	if p := room["home"].Pressure; len(p) != 1 || p[0] != "DiskPressure" {
		t.Errorf("home is pressed by %v", p)
	}
	if cpu("b") != "2" || room["b"].Pods != 1 || len(room) != 2 {
		t.Errorf("room is %+v", room)
	}

	client.PrependReactor("list", "pods", func(ktesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("away") })
	if n, room := Count(t.Context(), client, "home", nil); n != (api.Pods{}) || room != nil {
		t.Errorf("%+v, %+v of an API server that does not answer", n, room)
	}
}
