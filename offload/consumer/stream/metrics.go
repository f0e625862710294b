package stream

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/offload/consumer/pod/translate"
)

// metrics answers /metrics with a kubelet's metrics of its pods. A virtual node has none of a kubelet's own work and
// machine.
func (s *Server) metrics(w http.ResponseWriter, _ *http.Request) {
	pods, containers := 0, map[string]int{"created": 0, "exited": 0, "running": 0}
	for _, p := range s.cfg.Pods.On(s.cfg.Node) {
		runs := false
		for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses} {
			for i := range list {
				switch st := list[i].State; {
				case st.Running != nil:
					runs = true
					containers["running"]++
				case st.Terminated != nil:
					containers["exited"]++
				}
			}
		}
		if runs {
			pods++
		}
	}
	e := exposition{}
	e.add("kubelet_node_name", "gauge", "The node's name. The count is always 1.", fmt.Sprintf("node=%q", s.cfg.Node), 1)
	e.add("kubelet_running_pods", "gauge", "Number of pods that have a running pod sandbox", "", pods)
	for _, state := range []string{"created", "exited", "running"} {
		e.add("kubelet_running_containers", "gauge", "Number of containers currently running", fmt.Sprintf("container_state=%q", state), containers[state])
	}
	e.write(w)
}

// cadvisor answers /metrics/cadvisor for the containers of home's pods, from the target's resource metrics API: CPU,
// working set and start, but no disks and networks.
func (s *Server) cadvisor(w http.ResponseWriter, r *http.Request) {
	images := map[types.UID]map[string]string{}
	for _, p := range s.cfg.Pods.On(s.cfg.Node) {
		images[p.UID] = map[string]string{}
		for c := range translate.KeepRunning(p) {
			images[p.UID][c.Name] = c.Image
		}
	}
	used, failed := s.usage(r)
	e, seconds := exposition{}, map[string]float64{}
	if failed == nil || len(used) > 0 { // removes counters of those that are gone
		seconds = s.counters.count(used, time.Now())
	}
	for i := range used {
		u := &used[i]
		for _, c := range u.Containers {
			labels := fmt.Sprintf("container=%q,image=%q,namespace=%q,pod=%q", c.Name, images[u.UID][c.Name], u.Namespace, u.Name)
			e.add("container_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed in seconds.", `cpu="total",`+labels, seconds[key(u, c.Name)])
			e.add("container_memory_working_set_bytes", "gauge", "Current working set in bytes.", labels, c.Memory)
			if !c.Started.IsZero() {
				e.add("container_start_time_seconds", "gauge", "Start time of the container since unix epoch in seconds.", labels, c.Started.Unix())
			}
		}
	}
	fault := 0
	if failed != nil {
		fault = 1
	}
	e.add("container_scrape_error", "gauge", "1 if there was an error while getting container metrics, 0 otherwise", "", fault)
	e.write(w)
}

// probes answers /metrics/probes, empty: the provider's kubelet counts probes.
func (s *Server) probes(w http.ResponseWriter, _ *http.Request) { (&exposition{}).write(w) }

// exposition is a page of metrics in Prometheus' text format.
type exposition struct {
	order []string
	texts map[string]string
}

func (e *exposition) add(family, kind, help, labels string, value any) {
	if e.texts == nil {
		e.texts = map[string]string{}
	}
	if e.texts[family] == "" {
		e.order = append(e.order, family)
		e.texts[family] = fmt.Sprintf("# HELP %s %s\n# TYPE %s %s\n", family, help, family, kind)
	}
	if labels != "" {
		labels = "{" + labels + "}"
	}
	e.texts[family] += fmt.Sprintf("%s%s %v\n", family, labels, value)
}

func (e *exposition) write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	var page strings.Builder
	for _, family := range e.order {
		page.WriteString(e.texts[family])
	}
	_, _ = w.Write([]byte(page.String())) // the client is gone
}
