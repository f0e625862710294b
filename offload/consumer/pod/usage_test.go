package pod

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"
	"k8s.io/utils/ptr"
)

// The usage of an away pod is that of all containers for which home's autoscalers count requests: native sidecars, and
// the containers. With one of them missing there is none.
func TestUsageIsOfAllContainersOrOfNone(t *testing.T) {
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	home := &corev1.Pod{
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "first"}, {Name: "proxy", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)},
				{Name: "again", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyOnFailure)}},
			Containers: []corev1.Container{{Name: "app"}, {Name: "done"}}},
		Status: corev1.PodStatus{
			InitContainerStatuses: []corev1.ContainerStatus{{Name: "first", State: ended}, {Name: "proxy", State: running}, {Name: "again", State: ended}},
			ContainerStatuses:     []corev1.ContainerStatus{{Name: "app", State: running}, {Name: "done", State: ended}}}}
	of := func(names ...string) (out []v1beta1.ContainerMetrics) {
		for i, n := range names {
			out = append(out, v1beta1.ContainerMetrics{Name: n, Usage: corev1.ResourceList{"cpu": *resource.NewMilliQuantity(int64(i+1), resource.DecimalSI), "memory": resource.MustParse("1Mi")}})
		}
		return out
	}
	for _, c := range []struct {
		measured []v1beta1.ContainerMetrics
		want     string
	}{
		{of("app", "proxy", "injected"), "proxy 2000000, app 1000000, "},
		{of("proxy", "app", "done"), "proxy 1000000, app 2000000, done 3000000, "},
		{of("app", "injected"), ""},
		{of("proxy"), ""},
		{of(), ""},
	} {
		got := ""
		all, complete := containersAtHome(home, c.measured)
		for _, u := range all {
			got += fmt.Sprintf("%s %d, ", u.Name, u.CPU)
		}
		if got != c.want || complete != (c.want != "") {
			t.Errorf("of %v: %q (%v), want %q", c.measured, got, complete, c.want)
		}
	}
}
