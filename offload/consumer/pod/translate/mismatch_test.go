package translate

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func TestMisfit(t *testing.T) {
	home := &corev1.Pod{Spec: corev1.PodSpec{InitContainers: []corev1.Container{{Name: "prepare", Image: "tool:1"}}, Containers: []corev1.Container{{Name: "web", Image: "example.org/web:1"}}}}
	waiting := func(text string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: text}}
	}
	ended := func(text string) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 128, Message: text}}
	}
	const pull = `Back-off pulling image "example.org/web:1": ErrImagePull: failed to pull and unpack image: no match for platform in manifest: not found`
	const exec = "failed to create containerd task: exec /web: exec format error: unknown"
	for _, c := range []struct {
		what string
		name string
		st   corev1.ContainerStatus
		want string
	}{
		{"an index without the platform", "web", corev1.ContainerStatus{State: waiting(pull)}, "example.org/web:1"},
		{"a binary of another architecture", "web", corev1.ContainerStatus{State: ended(exec)}, "example.org/web:1"},
		{"the same, between two tries", "web", corev1.ContainerStatus{State: waiting("back-off 10s restarting"), LastTerminationState: ended(exec)}, "example.org/web:1"},
		{"an init container", "prepare", corev1.ContainerStatus{State: waiting(pull)}, "tool:1"},
		{"what the provider has added is its own affair", "injected", corev1.ContainerStatus{State: waiting(pull)}, ""},
		{"an image that is not there", "web", corev1.ContainerStatus{State: waiting("not found")}, ""},
		{"it runs", "web", corev1.ContainerStatus{Started: ptr.To(true), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, LastTerminationState: ended(exec)}, ""},
	} {
		c.st.Name = c.name
		away := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{c.st}}}
		if c.name == "prepare" {
			away.Status.InitContainerStatuses, away.Status.ContainerStatuses = away.Status.ContainerStatuses, nil
		}
		if got, words := Mismatch(home, away); got != c.want || (words == "") != (c.want == "") {
			t.Errorf("%s: %q (%s), want %q", c.what, got, words, c.want)
		}
	}
	if got, _ := Mismatch(home, nil); got != "" {
		t.Error("without a pod", got)
	}
}
