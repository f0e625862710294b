// Package translatetest has the pods that tests of translation and of its users share. It has no state.
package translatetest

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"rivulet/offload/policy"
)

// Then is the time of the transitions and starts of Running.
var Then = metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))

// Web is a pod as home's API server hands it out: bound, with the token volume
// and the tolerations that admission added.
func Web() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web-7d9-x2x", Namespace: "lab", UID: "u-1", Generation: 1,
			Labels: map[string]string{"app": "web", "pod-template-hash": "7d9"}, Annotations: map[string]string{"note": "n"}},
		Spec: corev1.PodSpec{
			NodeName: "b", NodeSelector: map[string]string{"kubernetes.io/hostname": "b"}, ServiceAccountName: "builder",
			SchedulerName: "default-scheduler", Priority: ptr.To[int32](5), PriorityClassName: "high",
			Tolerations: []corev1.Toleration{
				{Key: policy.VirtualTaint, Operator: corev1.TolerationOpExists},
				{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To[int64](300)},
				{Operator: corev1.TolerationOpExists},
				{Key: "gpu", Operator: corev1.TolerationOpExists}},
			ReadinessGates: []corev1.PodReadinessGate{{ConditionType: "lb"}},
			Containers: []corev1.Container{{Name: "web", Image: "web:1",
				VolumeMounts: []corev1.VolumeMount{{Name: "kube-api-access-abc", MountPath: "/var/run/secrets"}, {Name: "conf", MountPath: "/conf"}},
				Env: []corev1.EnvVar{
					{Name: "POD", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
					{Name: "NODE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}},
					{Name: "IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}}}}},
			Volumes: []corev1.Volume{
				{Name: "kube-api-access-abc", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
					Sources: []corev1.VolumeProjection{
						{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{ExpirationSeconds: ptr.To[int64](3607), Path: "token"}},
						{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"}}}}}}},
				{Name: "conf", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "conf"}}}}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending, QOSClass: corev1.PodQOSBurstable},
	}
}

// Running is an away pod as the provider shows it, with a sidecar of its own.
func Running() *corev1.Pod {
	cond := func(t corev1.PodConditionType) corev1.PodCondition {
		return corev1.PodCondition{Type: t, Status: corev1.ConditionTrue, LastTransitionTime: Then, ObservedGeneration: 7}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web-7d9-x2x-abcde", UID: "away"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, ObservedGeneration: 7, StartTime: &Then, QOSClass: corev1.PodQOSGuaranteed,
			HostIP: "100.127.9.9", PodIP: "10.42.0.7", PodIPs: []corev1.PodIP{{IP: "10.42.0.7"}, {IP: "fd00::7"}},
			Conditions: []corev1.PodCondition{cond(corev1.PodScheduled), cond(corev1.PodInitialized), cond(corev1.ContainersReady), cond(corev1.PodReady)},
			ContainerStatuses: []corev1.ContainerStatus{
				{Name: "injected", ContainerID: "c-9", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
				{Name: "web", ContainerID: "c-1", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: Then}}}},
		}}
}

// Ungated is Web without a readiness gate.
func Ungated() *corev1.Pod {
	p := Web()
	p.Spec.ReadinessGates = nil
	return p
}

// Exit is the state of a container that has ended by itself.
func Exit(code int32) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Error", Message: "its own word"}}
}
