package stream

import (
	"errors"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/offload/consumer/pod"
)

// What a Prometheus scrapes of a virtual node speaks of the pods of home that are bound to it, by
// home's names, and of nothing else; a target that does not tell is no target that is down.
func TestWhatPrometheusScrapes(t *testing.T) {
	var fault error
	s := &Server{cfg: Config{Node: "b", Pods: pods{usage: func() ([]pod.Usage, error) {
		if fault != nil {
			return nil, fault
		}
		return used(), nil
	}, on: func() []*corev1.Pod {
		running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
		return []*corev1.Pod{
			{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "web-1", UID: "u1"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "shop:1"}},
				InitContainers: []corev1.Container{{Name: "side", Image: "side:1", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)}}}, // a native sidecar
				Status: corev1.PodStatus{InitContainerStatuses: []corev1.ContainerStatus{{State: running}}, ContainerStatuses: []corev1.ContainerStatus{{State: running}}}},
			{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "waits", UID: "u3"}},
		}
	}}}}
	values := func(path string) map[string]float64 {
		t.Helper()
		code, body := asks(t, s, path)
		parser := expfmt.NewTextParser(model.LegacyValidation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(body))
		if err != nil || code != 200 {
			t.Fatalf("%s: %d %v\n%s", path, code, err, body)
		}
		out := map[string]float64{}
		for name, f := range families {
			for _, m := range f.Metric {
				labels := name
				for _, l := range m.Label {
					labels += " " + l.GetName() + "=" + l.GetValue()
				}
				out[labels] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
		return out
	}
	got := values("/metrics/cadvisor")
	for labels, want := range map[string]float64{
		"container_memory_working_set_bytes container=web image=shop:1 namespace=lab pod=web-1":          10 << 20,
		"container_memory_working_set_bytes container=side image=side:1 namespace=lab pod=web-1":         2 << 20,
		"container_cpu_usage_seconds_total cpu=total container=web image=shop:1 namespace=lab pod=web-1": 0,
		"container_start_time_seconds container=web image=shop:1 namespace=lab pod=web-1":                float64(measured.Unix() - 3600),
		"container_scrape_error": 0,
	} {
		if is, there := got[labels]; !there || is != want {
			t.Errorf("%s is %v (%v), want %v", labels, is, there, want)
		}
	}
	got = values("/metrics")
	if got["kubelet_node_name node=b"] != 1 || got["kubelet_running_pods"] != 1 || got["kubelet_running_containers container_state=running"] != 2 || len(got) != 5 {
		t.Errorf("%v", got)
	}
	if got := values("/metrics/probes"); len(got) != 0 {
		t.Errorf("%v", got)
	}
	fault = errors.New("offload: b does not answer")
	if got := values("/metrics/cadvisor"); len(got) != 1 || got["container_scrape_error"] != 1 {
		t.Errorf("%v", got)
	}
}
