package stream

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"rivulet/offload/pod"
)

var measured = time.Unix(1700000000, 0)

func used() []pod.Usage {
	return []pod.Usage{
		{Namespace: "lab", Name: "web-1", UID: "u1", Started: measured.Add(-time.Hour), At: measured,
			Containers: []pod.ContainerUsage{{Name: "web", CPU: 200_000_000, Memory: 10 << 20}, {Name: "side", CPU: 50_000_000, Memory: 2 << 20}}},
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
	s := &Server{cfg: Config{Node: "b", Usage: func(context.Context) ([]pod.Usage, error) { return used(), nil }}}
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
		len(p.Containers) != 2 || *p.CPU.UsageNanoCores != 250_000_000 || *p.Containers[1].Memory.WorkingSetBytes != 2<<20 {
		t.Errorf("%s", body)
	}
}

func TestNothingRunsThere(t *testing.T) {
	got := Summary("b", nil, measured)
	if *got.Node.CPU.UsageNanoCores != 0 || *got.Node.Memory.WorkingSetBytes != 0 || got.Pods == nil {
		t.Errorf("%+v", got.Node)
	}
}

func TestTheTargetDoesNotTell(t *testing.T) {
	fault := errors.New("offload: b does not answer; see rivulet peers")
	var some []pod.Usage
	s := &Server{cfg: Config{Node: "b", Usage: func(context.Context) ([]pod.Usage, error) { return some, fault }}}
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
		`container_start_time_seconds{container="web",namespace="lab",pod="web-1"} 1699996400`, "resource_scrape_error 0")
	want(look(used(), 10*time.Second), `container_cpu_usage_seconds_total{container="web",namespace="lab",pod="web-1"} 2 `,
		`pod_cpu_usage_seconds_total{namespace="lab",pod="web-1"} 2.5 `, `pod_cpu_usage_seconds_total{namespace="lab",pod="web-2"} 10 `,
		"node_cpu_usage_seconds_total 12.5 ", "node_memory_working_set_bytes 33554432 ")
	want(look(used(), time.Hour), `pod_cpu_usage_seconds_total{namespace="lab",pod="web-2"} 130 `) // nobody knows more than two minutes of it
	want(look(used()[:1], time.Hour), `pod_cpu_usage_seconds_total{namespace="lab",pod="web-1"} 32.5 `)
	want(look(used(), time.Hour), `pod_cpu_usage_seconds_total{namespace="lab",pod="web-2"} 0 `) // forgotten while it was not there
	want(look(used(), 0), `pod_cpu_usage_seconds_total{namespace="lab",pod="web-1"} 32.5 `)      // a clock that goes back takes nothing away
}
