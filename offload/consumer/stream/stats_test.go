package stream

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"rivulet/offload/consumer/pod"
)

var measured = time.Unix(1700000000, 0)

func used() []pod.Usage {
	return []pod.Usage{
		{Namespace: "lab", Name: "web-1", UID: "u1", Started: measured.Add(-time.Hour), At: measured,
			Containers: []pod.ContainerUsage{{Name: "web", Started: measured.Add(-time.Hour), CPU: 200_000_000, Memory: 10 << 20}, {Name: "side", CPU: 50_000_000, Memory: 2 << 20}}},
		{Namespace: "lab", Name: "web-2", UID: "u2", At: measured.Add(-time.Second),
			Containers: []pod.ContainerUsage{{Name: "web", CPU: 1_000_000_000, Memory: 20 << 20}}},
	}
}

func asks(t *testing.T, s *Server, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	s.routes().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

func TestSummarySpeaksOfPodsAsHomeKnowsThem(t *testing.T) {
	s := &Server{cfg: Config{Node: "b", Pods: pods{usage: func() ([]pod.Usage, error) { return used(), nil }}}}
	code, body := asks(t, s, "/stats/summary?only_cpu_and_memory=true")
	var got stats.Summary
	if err := json.Unmarshal([]byte(body), &got); err != nil || code != 200 {
		t.Fatalf("%d %s", code, body)
	}
	if got.Node.NodeName != "b" || *got.Node.CPU.UsageNanoCores != 1_250_000_000 || *got.Node.Memory.WorkingSetBytes != 32<<20 ||
		!got.Node.CPU.Time.Time.Equal(measured.Add(-time.Second)) {
		t.Errorf("the node: %+v", got.Node)
	}
	p := got.Pods[0]
	if len(got.Pods) != 2 || p.PodRef != (stats.PodReference{Namespace: "lab", Name: "web-1", UID: "u1"}) ||
		len(p.Containers) != 2 || !p.Containers[0].StartTime.Time.Equal(measured.Add(-time.Hour)) || p.CPU.UsageCoreNanoSeconds == nil || *p.CPU.UsageNanoCores != 250_000_000 || *p.Containers[1].Memory.WorkingSetBytes != 2<<20 {
		t.Errorf("%s", body)
	}
}

func TestNothingRunsThere(t *testing.T) {
	got := Summary("b", nil, nil, measured)
	if *got.Node.CPU.UsageNanoCores != 0 || *got.Node.Memory.WorkingSetBytes != 0 || got.Pods == nil {
		t.Errorf("%+v", got.Node)
	}
}

func TestTheTargetDoesNotTell(t *testing.T) {
	fault := errors.New("offload: b does not answer; see rivulet peers")
	var some []pod.Usage
	s := &Server{cfg: Config{Node: "b", Pods: pods{usage: func() ([]pod.Usage, error) { return some, fault }}}}
	for _, path := range []string{"/stats/summary", "/metrics/resource"} {
		if code, body := asks(t, s, path); code != http.StatusServiceUnavailable || !strings.Contains(body, "rivulet peers") {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	some = used() // one twin did not answer: what is known is better than nothing
	if code, _ := asks(t, s, "/stats/summary"); code != 200 {
		t.Errorf("%d", code)
	}
}

func TestCountersAddUp(t *testing.T) {
	var c counters
	look := func(pods []pod.Usage, after time.Duration) string {
		var out strings.Builder
		c.write(&out, pods, measured.Add(after))
		return out.String()
	}
	want := func(text string, lines ...string) {
		t.Helper()
		for _, l := range lines {
			if !strings.Contains(text, l) {
				t.Errorf("no %s in\n%s", l, text)
			}
		}
	}
	want(look(used(), 0), `container_cpu_usage_seconds_total{container="web",namespace="lab",pod="web-1"} 0 1700000000000`,
		`container_memory_working_set_bytes{container="side",namespace="lab",pod="web-1"} 2097152 `,
		`container_start_time_seconds{container="web",namespace="lab",pod="web-1"} 1699996400`, "resource_scrape_error 0",
		"# HELP pod_memory_working_set_bytes [STABLE] Current working set of the pod in bytes\n# TYPE pod_memory_working_set_bytes gauge\npod_memory_working_set_bytes{")
	want(look(used(), 10*time.Second), `container_cpu_usage_seconds_total{container="web",namespace="lab",pod="web-1"} 2 `,
		`pod_cpu_usage_seconds_total{namespace="lab",pod="web-1"} 2.5 `, `pod_cpu_usage_seconds_total{namespace="lab",pod="web-2"} 10 `,
		"node_cpu_usage_seconds_total 12.5 ", "node_memory_working_set_bytes 33554432 ")
	want(look(used(), time.Hour), `pod_cpu_usage_seconds_total{namespace="lab",pod="web-2"} 130 `) // nobody knows more than two minutes of it
	want(look(used()[:1], time.Hour), `pod_cpu_usage_seconds_total{namespace="lab",pod="web-1"} 32.5 `)
	want(look(used(), time.Hour), `pod_cpu_usage_seconds_total{namespace="lab",pod="web-2"} 0 `) // forgotten while it was not there
	want(look(used(), 0), `pod_cpu_usage_seconds_total{namespace="lab",pod="web-1"} 32.5 `)      // a clock that goes back takes nothing away
}

// What a kubelet says of its pods, a virtual node says of those of home that are bound to it.
func TestPodsAreThoseOfHome(t *testing.T) {
	running := corev1.ContainerStatus{Name: "web", Image: "web:1", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	bound := []*corev1.Pod{
		{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "web", UID: "u1"}, Spec: corev1.PodSpec{NodeName: "b", Containers: []corev1.Container{{Name: "web"}, {Name: "side"}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{running, {Name: "side"}}}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "done", UID: "u2"}, Spec: corev1.PodSpec{NodeName: "b"}, Status: corev1.PodStatus{Phase: corev1.PodSucceeded}},
	}
	s := &Server{cfg: Config{Node: "b", Pods: pods{on: func() []*corev1.Pod { return slices.Clone(bound) }}}}
	list := func(path string) (out corev1.PodList) {
		t.Helper()
		code, body := asks(t, s, path)
		if err := json.Unmarshal([]byte(body), &out); err != nil || code != 200 || out.Kind != "PodList" || out.APIVersion != "v1" {
			t.Fatalf("%s: %d %s", path, code, body)
		}
		return out
	}
	if got := list("/pods").Items; len(got) != 2 || got[0].Name != "done" || got[1].UID != "u1" || got[1].Status.Phase != corev1.PodRunning {
		t.Errorf("%+v", got)
	}
	if got := list("/runningpods/").Items; len(got) != 1 || got[0].UID != "u1" || len(got[0].Spec.Containers) != 1 || got[0].Spec.Containers[0].Image != "web:1" || got[0].Status.Phase != "" {
		t.Errorf("%+v", got)
	}
	bound = nil
	if got := list("/pods").Items; got == nil || len(got) != 0 {
		t.Errorf("%+v", got)
	}
	for _, path := range []string{"/logs/syslog", "/configz", "/metrics/x", "/pods/x"} {
		if code, body := asks(t, s, path); code != http.StatusNotFound || !strings.Contains(body, "virtual node") {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	if code, body := asks(t, s, "/healthz"); code != 200 || body != "ok" {
		t.Errorf("%d %s", code, body)
	}
}
