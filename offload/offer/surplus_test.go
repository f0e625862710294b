package offer

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestSurplusIsTheNewestAndNoMore(t *testing.T) {
	pod := func(name string, age time.Duration, cpu string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0).Add(-age))},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}}}}
	}
	cpus := func(milli int64) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(milli, resource.DecimalSI)}
	}
	count := func(l corev1.ResourceList, pods int64) corev1.ResourceList {
		l[corev1.ResourcePods] = *resource.NewQuantity(pods, resource.DecimalSI)
		return l
	}
	pods := []*corev1.Pod{pod("old", time.Hour, "1"), pod("new", time.Minute, "500m"), pod("free", time.Second, "0"), pod("middle", 30*time.Minute, "1")}
	for _, c := range []struct {
		part corev1.ResourceList
		want string
	}{
		{cpus(2500), ""},
		{cpus(2400), "new "},
		{cpus(1999), "new middle "},
		{cpus(0), "new middle old "},
		{count(cpus(9000), 3), "free "},
		{count(cpus(2000), 3), "free new "},
	} {
		got := ""
		for _, p := range Surplus(c.part, pods) {
			got += p.Name + " "
		}
		if got != c.want {
			t.Errorf("part %v: hand back %q, want %q", c.part, got, c.want)
		}
	}
}
