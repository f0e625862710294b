package policy

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// Home first, then peers, then targets with After: this package makes the order in which the scheduler fills nodes. It
// has three parts, which only work together:
//
//   - NodeTaints are the taints of a virtual node (package consumer/node sets them);
//   - admission.yaml makes pods tolerate them, by the mode of their namespace;
//   - SchedulerConfig sets the weight of these taints (package appliance/engine writes it).
//
// TestAgainstAPIServer, subtest order, fills such nodes with the real scheduler.

// NodeTaints returns the taints of a virtual node. after: the target comes after the others, and its node has After as
// a label as well.
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

// SchedulerConfig returns the scheduler's configuration. kubeconfig is the file for its connection to the API server,
// because a scheduler with a configuration ignores the flag.
//
// The two other profiles are of pods in namespaces with PreferLabel (admission.yaml names them). The default one does not
// change, since other pods of the cluster have it: with rivulet-prefer one step of a price or nearness, 10 of the 200
// points of a node's preferences, is 500, more than spreading, emptier nodes and balance together (400). With
// rivulet-spread the number of replicas on a node outweighs these.
//
// Kubernetes' default weight of taints that are preferred not to be tolerated is 3; each of three steps is then worth
// 150 points. Spreading of replicas (200), emptier nodes (100), balance (100), images (100) and affinity between pods
// (200) together weigh more, so the last pods that would fit at home would run elsewhere. With a weight of 15 a step is
// 750.
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
- schedulerName: rivulet-prefer
  plugins:
    multiPoint:
      enabled: [{name: TaintToleration, weight: 15}, {name: NodeAffinity, weight: 100}]
- schedulerName: rivulet-spread
  plugins:
    multiPoint:
      enabled: [{name: TaintToleration, weight: 15}, {name: PodTopologySpread, weight: 20}]
  pluginConfig:
  - name: PodTopologySpread
    args:
      defaultingType: List
      defaultConstraints: [{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway}]
`, kubeconfig)
}
