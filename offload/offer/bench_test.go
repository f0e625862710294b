package offer

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// BenchmarkALookAtAThousandPods is what each change of a pod may cause: the room measured
// from what was summed up, and, to compare, from every pod anew.
func BenchmarkALookAtAThousandPods(b *testing.B) {
	var nodes []*corev1.Node
	for i := range 10 {
		n := node(fmt.Sprint("n", i), "4", "4Gi")
		n.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("120")
		nodes = append(nodes, n)
	}
	var pods []*corev1.Pod
	for i := range 1000 {
		p := pod(fmt.Sprint("n", i%10), "1m", "1Mi", consumer)
		p.Name = fmt.Sprint("p", i)
		short, _ := trim(p)
		pods = append(pods, short.(*corev1.Pod))
	}
	tally := NewTally(pods...)
	b.Run("summed up", func(b *testing.B) {
		for b.Loop() {
			tally.change(pods[0], pods[0])
			if len(tally.Measure(nodes, Shares{}, nil).Surplus(consumer, nil, func() []*corev1.Pod { return pods })) > 0 {
				b.Fatal("they fit")
			}
		}
	})
	b.Run("every pod", func(b *testing.B) {
		for b.Loop() {
			if m := Measure(nodes, pods, Shares{}, nil); len(m.Surplus(consumer, nil, func() []*corev1.Pod { return pods })) > 0 {
				b.Fatal("they fit")
			}
		}
	})
}
