package stream

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"rivulet/offload/consumer/pod"
)

// resource answers /metrics/resource, the format for a metrics-server. It needs CPU as a counter, and the target's
// metrics API has a rate, so the rate is added up from one reading to the next. The counter begins at zero with each
// start of this process, as a kubelet's does with a container's.
func (s *Server) resource(w http.ResponseWriter, r *http.Request) {
	used, ok := s.used(w, r)
	if !ok {
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	s.counters.write(w, used, time.Now())
}

// counters are the CPU usage of containers since their first reading.
type counters struct {
	mu  sync.Mutex
	all map[string]*counter
}

type counter struct {
	seconds float64
	at      time.Time
}

// longest is the longest interval for which a rate is used: over a longer one the usage is unknown.
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

// key is that of a pod's container, or of the pod if container is empty.
func key(u *pod.Usage, container string) string { return string(u.UID) + "/" + container }

// count adds up the usage until now, and returns it in core seconds: for each container, for each pod (a container
// without a name) and, by the empty key, for the node. Entries that are gone are dropped.
func (c *counters) count(used []pod.Usage, now time.Time) map[string]float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.all
	c.all = map[string]*counter{}
	out := map[string]float64{}
	add := func(key string, nano uint64) {
		if one := before[key]; one != nil {
			c.all[key] = one
		}
		out[key] = c.add(key, nano, now)
	}
	var all uint64
	for i := range used {
		u := &used[i]
		var sum uint64
		for _, k := range u.Containers {
			add(key(u, k.Name), k.CPU)
			sum += k.CPU
		}
		add(key(u, ""), sum)
		all += sum
	}
	add("", all)
	return out
}

// families are a kubelet's, with its texts and order.
var families = []struct{ name, kind, help string }{
	{"container_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed by the container in core-seconds"},
	{"container_memory_working_set_bytes", "gauge", "Current working set of the container in bytes"},
	{"container_start_time_seconds", "gauge", "Start time of the container since unix epoch in seconds"},
	{"node_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed by the node in core-seconds"},
	{"node_memory_working_set_bytes", "gauge", "Current working set of the node in bytes"},
	{"pod_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed by the pod in core-seconds"},
	{"pod_memory_working_set_bytes", "gauge", "Current working set of the pod in bytes"},
	{"resource_scrape_error", "gauge", "1 if there was an error while getting container metrics, 0 otherwise"},
}

func (c *counters) write(w io.Writer, used []pod.Usage, now time.Time) {
	seconds := c.count(used, now)
	ms := now.UnixMilli()
	samples := map[string]string{}
	sample := func(family, labels string, value any, at bool) {
		if labels != "" {
			labels = "{" + labels + "}"
		}
		line := fmt.Sprintf("%s%s %v", family, labels, value)
		if at {
			line += fmt.Sprintf(" %d", ms)
		}
		samples[family] += line + "\n"
	}
	var memory uint64
	for i := range used {
		u := &used[i]
		labels := fmt.Sprintf("namespace=%q,pod=%q", u.Namespace, u.Name)
		var sum uint64
		for _, k := range u.Containers {
			own := fmt.Sprintf("container=%q,", k.Name) + labels
			sample("container_cpu_usage_seconds_total", own, seconds[key(u, k.Name)], true)
			sample("container_memory_working_set_bytes", own, k.Memory, true)
			if !k.Started.IsZero() {
				sample("container_start_time_seconds", own, k.Started.Unix(), false)
			}
			sum += k.Memory
		}
		sample("pod_cpu_usage_seconds_total", labels, seconds[key(u, "")], true)
		sample("pod_memory_working_set_bytes", labels, sum, true)
		memory += sum
	}
	sample("node_cpu_usage_seconds_total", "", seconds[""], true)
	sample("node_memory_working_set_bytes", "", memory, true)
	sample("resource_scrape_error", "", 0, false)
	for _, f := range families {
		if samples[f.name] != "" {
			fmt.Fprintf(w, "# HELP %s [STABLE] %s\n# TYPE %s %s\n%s", f.name, f.help, f.name, f.kind, samples[f.name])
		}
	}
}
