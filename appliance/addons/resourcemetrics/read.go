package resourcemetrics

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// window is the time over which a kubelet averages: the interval of its measurements.
const window = 15 * time.Second

// measured is the use of CPU and memory at one time.
type measured struct {
	at     metav1.Time
	cpu    uint64 // billionths of a core
	memory uint64 // bytes of working set
}

type pod struct {
	at         metav1.Time
	containers []container
}

type container struct {
	name string
	measured
}

// read returns the measurements in a kubelet's summary. It leaves out pods with a missing measurement, because a
// partial sum would mislead an autoscaler. It has no side effects.
func read(s *stats.Summary) (*measured, map[podKey]pod) {
	var node *measured
	if m, ok := measure(s.Node.CPU, s.Node.Memory); ok {
		node = &m
	} else if idle(s) {
		node = &measured{at: s.Node.CPU.Time}
	}
	pods := make(map[podKey]pod, len(s.Pods))
	for _, p := range s.Pods {
		var out pod
		for _, c := range p.Containers {
			m, ok := measure(c.CPU, c.Memory)
			if !ok {
				out.containers = nil
				break
			}
			if out.at.IsZero() || m.at.Before(&out.at) {
				out.at = m.at
			}
			out.containers = append(out.containers, container{c.Name, m})
		}
		if len(out.containers) > 0 {
			pods[podKey{p.PodRef.Namespace, p.PodRef.Name, p.PodRef.UID}] = out
		}
	}
	return node, pods
}

// idle reports whether a virtual node has no pods. An empty summary of a real node means no measurement yet.
func idle(s *stats.Summary) bool {
	zero := func(n *uint64) bool { return n != nil && *n == 0 }
	return len(s.Pods) == 0 && s.Node.CPU != nil && s.Node.Memory != nil && s.Node.Fs == nil && s.Node.StartTime.IsZero() &&
		zero(s.Node.CPU.UsageNanoCores) && zero(s.Node.Memory.WorkingSetBytes)
}

func measure(cpu *stats.CPUStats, memory *stats.MemoryStats) (measured, bool) {
	if cpu == nil || cpu.UsageNanoCores == nil || memory == nil || memory.WorkingSetBytes == nil || *memory.WorkingSetBytes == 0 {
		return measured{}, false
	}
	return measured{cpu.Time, *cpu.UsageNanoCores, *memory.WorkingSetBytes}, true
}

func (m measured) list() corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewScaledQuantity(int64(m.cpu), resource.Nano),
		corev1.ResourceMemory: *resource.NewQuantity(int64(m.memory), resource.BinarySI),
	}
}

var apiVersion = v1beta1.SchemeGroupVersion.String()

func nodeMetrics(o *metav1.PartialObjectMetadata, m measured) v1beta1.NodeMetrics {
	return v1beta1.NodeMetrics{
		TypeMeta:   metav1.TypeMeta{APIVersion: apiVersion, Kind: "NodeMetrics"},
		ObjectMeta: objectMeta(o), Timestamp: m.at, Window: metav1.Duration{Duration: window}, Usage: m.list(),
	}
}

func podMetrics(o *metav1.PartialObjectMetadata, p pod) v1beta1.PodMetrics {
	out := v1beta1.PodMetrics{
		TypeMeta:   metav1.TypeMeta{APIVersion: apiVersion, Kind: "PodMetrics"},
		ObjectMeta: objectMeta(o), Timestamp: p.at, Window: metav1.Duration{Duration: window},
	}
	for _, c := range p.containers {
		out.Containers = append(out.Containers, v1beta1.ContainerMetrics{Name: c.name, Usage: c.list()})
	}
	return out
}

func objectMeta(o *metav1.PartialObjectMetadata) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: o.Name, Namespace: o.Namespace, Labels: o.Labels, CreationTimestamp: metav1.Now()}
}
