package stream

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"rivulet/offload/pod"
)

// resource answers /metrics/resource, the form in which a metrics-server asks.
// It wants CPU as a counter, and the target's metrics API tells a rate: the
// counter is the rate added up from one look to the next. It begins at zero with
// each start of this process, as a kubelet's does with a container's.
func (s *Server) resource(w http.ResponseWriter, r *http.Request) {
	used, ok := s.used(w, r)
	if !ok {
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	s.counters.write(w, used, time.Now())
}

// counters are what containers have used of CPU since they were looked at first.
type counters struct {
	mu  sync.Mutex
	all map[string]*counter
}

type counter struct {
	seconds float64
	at      time.Time
}

// longest is the longest time for which a rate is believed: between two looks
// that are further apart nobody knows what was used.
const longest = 2 * time.Minute

func (c *counters) add(key string, nano uint64, now time.Time) float64 {
	one := c.all[key]
	if one == nil {
		one = &counter{at: now}
		c.all[key] = one
	}
	if since := min(now.Sub(one.at), longest); since > 0 {
		one.seconds += float64(nano) / 1e9 * since.Seconds()
	}
	one.at = now
	return one.seconds
}

func (c *counters) write(w io.Writer, used []pod.Usage, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.all
	if before == nil {
		before = map[string]*counter{}
	}
	c.all = map[string]*counter{} // what is not there any more is forgotten
	keep := func(key string) string {
		if one := before[key]; one != nil {
			c.all[key] = one
		}
		return key
	}
	var containerCPU, containerMemory, started, podCPU, podMemory string
	var cpu, memory uint64
	ms := now.UnixMilli()
	for i := range used {
		u := &used[i]
		labels := fmt.Sprintf("namespace=%q,pod=%q", u.Namespace, u.Name)
		var sumCPU, sumMemory uint64
		for _, k := range u.Containers {
			own := fmt.Sprintf("container=%q,", k.Name) + labels
			containerCPU += fmt.Sprintf("container_cpu_usage_seconds_total{%s} %g %d\n", own, c.add(keep(string(u.UID)+"/"+k.Name), k.CPU, now), ms)
			containerMemory += fmt.Sprintf("container_memory_working_set_bytes{%s} %d %d\n", own, k.Memory, ms)
			if !u.Started.IsZero() {
				started += fmt.Sprintf("container_start_time_seconds{%s} %d\n", own, u.Started.Unix())
			}
			sumCPU, sumMemory = sumCPU+k.CPU, sumMemory+k.Memory
		}
		podCPU += fmt.Sprintf("pod_cpu_usage_seconds_total{%s} %g %d\n", labels, c.add(keep(string(u.UID)), sumCPU, now), ms)
		podMemory += fmt.Sprintf("pod_memory_working_set_bytes{%s} %d %d\n", labels, sumMemory, ms)
		cpu, memory = cpu+sumCPU, memory+sumMemory
	}
	family := func(name, kind, text string) {
		fmt.Fprintf(w, "# TYPE %s %s\n%s", name, kind, text)
	}
	family("container_cpu_usage_seconds_total", "counter", containerCPU)
	family("container_memory_working_set_bytes", "gauge", containerMemory)
	family("container_start_time_seconds", "gauge", started)
	family("node_cpu_usage_seconds_total", "counter", fmt.Sprintf("node_cpu_usage_seconds_total %g %d\n", c.add(keep(""), cpu, now), ms))
	family("node_memory_working_set_bytes", "gauge", fmt.Sprintf("node_memory_working_set_bytes %d %d\n", memory, ms))
	family("pod_cpu_usage_seconds_total", "counter", podCPU)
	family("pod_memory_working_set_bytes", "gauge", podMemory)
	family("resource_scrape_error", "gauge", "resource_scrape_error 0\n")
}
