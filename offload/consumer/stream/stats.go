package stream

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"

	"rivulet/offload/consumer/pod"
)

// statsPatience bounds one reading of the target's metrics: clients of a kubelet wait no longer.
const statsPatience = 6 * time.Second

// summary answers /stats/summary like a kubelet, from the target's resource metrics API: CPU and memory of containers
// and pods, and their sum.
func (s *Server) summary(w http.ResponseWriter, r *http.Request) {
	used, ok := s.used(w, r)
	if !ok {
		return
	}
	w.Header().Set("Content-Type", "application/json")
	now := time.Now()
	_ = json.NewEncoder(w).Encode(Summary(s.cfg.Node, used, s.counters.count(used, now), now)) // the client is gone
}

func (s *Server) usage(r *http.Request) ([]pod.Usage, error) {
	ctx, cancel := context.WithTimeout(r.Context(), statsPatience)
	defer cancel()
	return s.cfg.Pods.Usage(ctx, s.cfg.Node)
}

func (s *Server) used(w http.ResponseWriter, r *http.Request) ([]pod.Usage, bool) {
	used, err := s.usage(r)
	if err != nil && len(used) == 0 {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return nil, false
	}
	return used, true
}

// Summary makes a kubelet's summary of the pods' usage; seconds is their CPU usage so far. It is pure.
func Summary(node string, used []pod.Usage, seconds map[string]float64, now time.Time) *stats.Summary {
	out := &stats.Summary{Pods: []stats.PodStats{}}
	var cpu, memory uint64
	at := now
	for i := range used {
		u := &used[i]
		p := stats.PodStats{PodRef: stats.PodReference{Namespace: u.Namespace, Name: u.Name, UID: string(u.UID)}, StartTime: metav1.NewTime(u.Started)}
		var podCPU, podMemory uint64
		for _, c := range u.Containers {
			p.Containers = append(p.Containers, stats.ContainerStats{Name: c.Name, StartTime: metav1.NewTime(c.Started),
				CPU: cpuStats(u.At, c.CPU, seconds[key(u, c.Name)]), Memory: memoryStats(u.At, c.Memory)})
			podCPU, podMemory = podCPU+c.CPU, podMemory+c.Memory
		}
		p.CPU, p.Memory = cpuStats(u.At, podCPU, seconds[key(u, "")]), memoryStats(u.At, podMemory)
		out.Pods = append(out.Pods, p)
		cpu, memory = cpu+podCPU, memory+podMemory
		if u.At.Before(at) {
			at = u.At
		}
	}
	out.Node = stats.NodeStats{NodeName: node, CPU: cpuStats(at, cpu, seconds[""]), Memory: memoryStats(at, memory)}
	return out
}

func cpuStats(at time.Time, nano uint64, seconds float64) *stats.CPUStats {
	return &stats.CPUStats{Time: metav1.NewTime(at), UsageNanoCores: ptr.To(nano), UsageCoreNanoSeconds: ptr.To(uint64(seconds * 1e9))}
}

func memoryStats(at time.Time, bytes uint64) *stats.MemoryStats {
	return &stats.MemoryStats{Time: metav1.NewTime(at), UsageBytes: ptr.To(bytes), WorkingSetBytes: ptr.To(bytes)}
}
