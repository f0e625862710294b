package offload

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"rivulet/test/harness/await"
)

// providerEvents is the part of the story about what a provider says of a pod.
func providerEvents(t *testing.T, a, b *device, pod *corev1.Pod) {
	ctx := t.Context()
	away := b.away(ctx, t, string(pod.UID))[0]
	e, err := b.Client.CoreV1().Events(away.Namespace).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: "e", Namespace: away.Namespace},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: away.Namespace, Name: away.Name, UID: away.UID, FieldPath: "spec.containers{web}"},
		Type:           corev1.EventTypeWarning, Reason: "BackOff", Message: "restarting " + away.Name, Count: 1, Source: corev1.EventSource{Component: "kubelet", Host: "b-node"},
		FirstTimestamp: metav1.Now(), LastTimestamp: metav1.Now(),
	}, metav1.CreateOptions{})
	must(t, err)
	name := ""
	count := func(want int32) {
		t.Helper()
		await.Empty(t, time.Minute, fmt.Sprintf("home has it, counted %d times", want), func(ctx context.Context) string {
			list, err := a.Client.CoreV1().Events("lab").List(ctx, metav1.ListOptions{FieldSelector: "reason=BackOff"})
			if err != nil || len(list.Items) != 1 {
				return fmt.Sprintf("%d events, %v", len(list.Items), err)
			}
			got := list.Items[0]
			name = got.Name
			if got.InvolvedObject.UID != pod.UID || got.InvolvedObject.Name != pod.Name || got.Message != "restarting "+pod.Name || got.Count != want || got.Source.Host != "b" {
				return fmt.Sprintf("%+v", got)
			}
			return ""
		})
	}
	count(1)
	first := name
	e.Count = 5
	_, err = b.Client.CoreV1().Events(away.Namespace).Update(ctx, e, metav1.UpdateOptions{})
	must(t, err)
	count(5)
	if name != first {
		t.Errorf("counted again it is another event: %s, %s", first, name)
	}
}

// debugging is the part about ephemeral containers.
func debugging(t *testing.T, a, b *device, pod *corev1.Pod) {
	ctx := t.Context()
	live, err := a.Client.CoreV1().Pods("lab").Get(ctx, pod.Name, metav1.GetOptions{})
	must(t, err)
	live.Spec.EphemeralContainers = append(live.Spec.EphemeralContainers,
		corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "traces", Image: "busybox", // as kubectl debug --profile=general
			SecurityContext: &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"SYS_PTRACE"}}}}},
		corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "dbg", Image: "busybox", Stdin: true}, TargetContainerName: "web"},
		corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "root", Image: "busybox", SecurityContext: &corev1.SecurityContext{Privileged: ptr.To(true)}}})
	_, err = a.Client.CoreV1().Pods("lab").UpdateEphemeralContainers(ctx, pod.Name, live, metav1.UpdateOptions{})
	must(t, err)
	await.Empty(t, time.Minute, "the one is away, the others refused", func(ctx context.Context) string {
		away := b.away(ctx, t, string(pod.UID))[0]
		if len(away.Spec.EphemeralContainers) != 1 || away.Spec.EphemeralContainers[0].Name != "dbg" || !away.Spec.EphemeralContainers[0].Stdin {
			return fmt.Sprintf("%+v", away.Spec.EphemeralContainers)
		}
		events, err := a.Client.CoreV1().Events("lab").List(ctx, metav1.ListOptions{FieldSelector: "reason=OffloadRefused,involvedObject.name=" + pod.Name})
		if err != nil || len(events.Items) == 0 {
			return fmt.Sprintf("no event (%v)", err)
		}
		home, err := a.Client.CoreV1().Pods("lab").Get(ctx, pod.Name, metav1.GetOptions{})
		must(t, err)
		ended := map[string]string{}
		for _, c := range home.Status.EphemeralContainerStatuses {
			if c.State.Terminated != nil && c.State.Terminated.Reason == "OffloadRefused" {
				ended[c.Name] = c.State.Terminated.Message
			}
		}
		if !strings.Contains(ended["traces"], "capabilities") || !strings.Contains(ended["root"], "securityContext.privileged") {
			return fmt.Sprintf("%+v", home.Status.EphemeralContainerStatuses)
		}
		return ""
	})
}
