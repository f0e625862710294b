package policy

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// Home first, then peers, then targets that come after the others: the order in which the
// scheduler fills nodes is made in this package, of three parts that only work together.
//
//   - NodeTaints are the taints of a virtual node (package consumer/node puts them on);
//   - admission.yaml has pods tolerate them, by the mode of their namespace;
//   - SchedulerConfig gives these taints their weight (package appliance/engine writes it).
//
// TestAgainstAPIServer, subtest order, fills such nodes with the real scheduler.

// NodeTaints returns the taints of a virtual node. after is for a target that comes after the
// others; its node has After as a label, too.
func NodeTaints(after bool) []corev1.Taint {
	taints := []corev1.Taint{
		{Key: VirtualTaint, Effect: corev1.TaintEffectNoSchedule},
		{Key: AwayTaint, Effect: corev1.TaintEffectPreferNoSchedule},
	}
	if after {
		taints = append(taints, corev1.Taint{Key: After, Effect: corev1.TaintEffectPreferNoSchedule})
	}
	return taints
}

// SchedulerConfig returns the scheduler's configuration; kubeconfig is the file by which it
// reaches the API server, because a scheduler with a configuration ignores the flag.
//
// Upstream gives taints that are preferred not to be tolerated a weight of 3, and each of three
// steps is worth 150 points then; spreading replicas (200), emptier nodes (100), balance (100),
// images (100) and affinity between pods (200) together weigh more, and the last pods that
// would fit at home run elsewhere. With 15 a step is 750.
func SchedulerConfig(kubeconfig string) string {
	return fmt.Sprintf(`apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection:
  kubeconfig: %q
profiles:
- schedulerName: default-scheduler
  plugins:
    multiPoint:
      enabled: [{name: TaintToleration, weight: 15}]
`, kubeconfig)
}
