package translate

import (
	"strings"
	"testing"

	"rivulet/offload/consumer/pod/translate/translatetest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func TestDebuggersAreStartedOnce(t *testing.T) {
	home := translatetest.Web()
	common := func(name string) corev1.EphemeralContainerCommon {
		return corev1.EphemeralContainerCommon{Name: name, Image: "busybox", Env: []corev1.EnvVar{
			{Name: "POD", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}}}}
	}
	for _, name := range []string{"there", "new", "ran", "root"} {
		home.Spec.EphemeralContainers = append(home.Spec.EphemeralContainers, corev1.EphemeralContainer{EphemeralContainerCommon: common(name), TargetContainerName: "web"})
	}
	home.Spec.EphemeralContainers[3].SecurityContext = &corev1.SecurityContext{Privileged: ptr.To(true)}
	home.Status.EphemeralContainerStatuses = []corev1.ContainerStatus{{Name: "ran", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	away := translatetest.Running()
	away.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: common("there")}}
	toHomeAPI(&away.Spec, "lab", "10.43.7.7")

	missing, refused := AwayDebuggers(home, away)
	if len(missing) != 1 || missing[0].Name != "new" || missing[0].TargetContainerName != "web" {
		t.Fatalf("to start: %+v", missing)
	}
	if env, from := missing[0].Env, missing[0].EnvFrom; len(env) != 1 || env[0].Value != "b" || len(from) != 1 || from[0].ConfigMapRef.Name != "rivulet-home-variables" {
		t.Errorf("environment %+v, from %+v", env, from)
	}
	if len(refused) != 1 || !strings.Contains(refused["root"], "spec.ephemeralContainers[3].securityContext.privileged") {
		t.Errorf("refused: %+v", refused)
	}
	if home.Spec.EphemeralContainers[1].Env[0].ValueFrom == nil {
		t.Error("the pod of home, which lives in a cache, was changed")
	}
}

func TestStatusOfDebuggers(t *testing.T) {
	home := translatetest.Ungated()
	for _, name := range []string{"ended", "runs", "lost", "new"} {
		home.Spec.EphemeralContainers = append(home.Spec.EphemeralContainers, corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: name}})
	}
	up := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: translatetest.Then}}
	home.Status.EphemeralContainerStatuses = []corev1.ContainerStatus{
		{Name: "ended", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 3}}},
		{Name: "lost", State: up}}
	away := translatetest.Running()
	away.Status.EphemeralContainerStatuses = []corev1.ContainerStatus{{Name: "runs", State: up}, {Name: "theirs", State: up}}
	got := Status(home, Away{Pod: away}, view).EphemeralContainerStatuses
	if len(got) != 3 || got[0].State.Terminated.ExitCode != 3 || got[1].State.Running == nil || got[2].State.Terminated == nil || got[2].State.Terminated.Reason != "ContainerStatusUnknown" {
		t.Fatalf("%+v", got)
	}
}
