package offload

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/offload/policy"
	"rivulet/test/harness/await"
)

// goesAway is what the scheduler of the story needs to send a pod away.
func goesAway(restarts corev1.RestartPolicy) corev1.PodSpec {
	return corev1.PodSpec{RestartPolicy: restarts, Tolerations: []corev1.Toleration{{Key: policy.VirtualTaint, Operator: corev1.TolerationOpExists}}}
}

// podChanges is the part of the story about pods that are changed at home while they run away:
// what Kubernetes lets change in a pod passes at home's API server, as if the pod were at
// home, and is carried.
func podChanges(t *testing.T, a, b *device) {
	ctx := t.Context()
	update := func(name, patch string) {
		t.Helper()
		must(t, second(a.Client.CoreV1().Pods("lab").Patch(ctx, name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})))
	}
	away := func(what string, pod *corev1.Pod, is func(*corev1.Pod) bool) {
		t.Helper()
		await.Empty(t, time.Minute, what, func(ctx context.Context) string {
			all := b.away(ctx, t, string(pod.UID))
			if len(all) != 1 || !is(&all[0]) {
				return fmt.Sprintf("%d pods: %+v", len(all), all)
			}
			return ""
		})
	}
	failed := func(pod *corev1.Pod) {
		t.Helper()
		await.Empty(t, time.Minute, "it has failed at home, as a kubelet has it fail", func(ctx context.Context) string {
			p, err := a.Client.CoreV1().Pods("lab").Get(ctx, pod.Name, metav1.GetOptions{})
			must(t, err)
			if p.UID != pod.UID || p.Status.Phase != corev1.PodFailed || p.Status.Reason != "DeadlineExceeded" || !strings.Contains(p.Status.Message, "longer than the specified deadline") {
				return fmt.Sprintf("%s %s %s", p.Status.Phase, p.Status.Reason, p.Status.Message)
			}
			return ""
		})
	}

	// This patch replaces the list: so do kubectl apply and kubectl replace.
	a.create(t, bare("always", goesAway(corev1.RestartPolicyAlways)))
	always := a.running(t, "always", "")
	update("always", `{"spec":{"tolerations":[{"key":"gpu","operator":"Exists"}]}}`)
	before := b.away(ctx, t, string(always.UID))[0]
	update("always", `{"spec":{"containers":[{"name":"web","image":"web:2"}]}}`)
	away("the image has gone along, in the same pod; the toleration has not: taints there are b's", always, func(p *corev1.Pod) bool {
		return p.Spec.Containers[0].Image == "web:2" && p.UID == before.UID && !slices.ContainsFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool { return t.Key == "gpu" })
	})
	update("always", `{"spec":{"activeDeadlineSeconds":1}}`)
	failed(always)
	if left := b.away(ctx, t, string(always.UID)); len(left) != 0 {
		t.Errorf("failed at home, and away there is %+v", left)
	}
	must(t, a.Client.CoreV1().Pods("lab").Delete(ctx, "always", metav1.DeleteOptions{}))
	a.gone(t, "always")

	// Its kubelet, which this story does not have, ends one that is never restarted.
	a.create(t, bare("never", goesAway(corev1.RestartPolicyNever)))
	never := a.running(t, "never", "")
	update("never", `{"spec":{"activeDeadlineSeconds":300}}`)
	away("the deadline is its kubelet's", never, func(p *corev1.Pod) bool {
		return p.Spec.ActiveDeadlineSeconds != nil && *p.Spec.ActiveDeadlineSeconds == 300
	})
	update("never", `{"spec":{"activeDeadlineSeconds":200}}`)
	away("a shorter one, too", never, func(p *corev1.Pod) bool {
		return p.Spec.ActiveDeadlineSeconds != nil && *p.Spec.ActiveDeadlineSeconds == 200
	})

	// A Job ends one that is restarted on failure.
	a.create(t, bare("failing", goesAway(corev1.RestartPolicyOnFailure)))
	failing := a.running(t, "failing", "")
	update("failing", `{"spec":{"activeDeadlineSeconds":1}}`)
	failed(failing)

	// A change that the provider does not take is told, and the pod runs on.
	a.create(t, bare("other", goesAway(corev1.RestartPolicyAlways)))
	other := a.running(t, "other", "")
	update("other", `{"metadata":{"labels":{"track":"canary"}},"spec":{"containers":[{"name":"web","image":"10.0.0.1/web:2"}]}}`)
	a.event(t, "other", "OffloadRefused", "not fetched for other clusters")
	away("it runs on as it was, with its new label", other, func(p *corev1.Pod) bool {
		return p.Spec.Containers[0].Image == "web:1" && p.Labels["track"] == "canary"
	})
	for _, name := range []string{"never", "failing", "other"} {
		must(t, a.Client.CoreV1().Pods("lab").Delete(ctx, name, metav1.DeleteOptions{}))
		a.gone(t, name)
	}
}

// kubeletAPI is the part of the story about what home's API server has from a virtual node:
// what it has from any kubelet.
func kubeletAPI(t *testing.T, a *device, pod *corev1.Pod) {
	node := pod.Spec.NodeName
	raw := func(path string) (string, error) {
		body, err := a.Client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/" + node + "/proxy" + path).DoRaw(t.Context())
		return string(body), err
	}
	for _, path := range []string{"/pods", "/runningpods/"} {
		body, err := raw(path)
		must(t, err)
		var list corev1.PodList
		if err := json.Unmarshal([]byte(body), &list); err != nil || list.Kind != "PodList" {
			t.Fatalf("%s: %v %s", path, err, body)
		}
		found := false
		for _, p := range list.Items {
			if path == "/pods" && p.Spec.NodeName != node {
				t.Errorf("%s: %s/%s is on %q", path, p.Namespace, p.Name, p.Spec.NodeName)
			}
			found = found || p.UID == pod.UID && p.Namespace == "lab" && p.Name == pod.Name && len(p.Spec.Containers) > 0
		}
		if !found {
			t.Errorf("%s does not have the pod: %.1000s", path, body)
		}
	}
	if body, err := raw("/healthz"); err != nil || body != "ok" {
		t.Errorf("healthz: %s %v", body, err)
	}
	// There is no machine that could tell of itself, and nobody to tell what pods use.
	if body, err := raw("/logs/"); !apierrors.IsNotFound(err) || !strings.Contains(body, "virtual node") {
		t.Errorf("logs: %s %v", body, err)
	}
	for _, path := range []string{"/stats/summary", "/metrics/resource"} {
		if body, err := raw(path); !apierrors.IsServiceUnavailable(err) || !strings.Contains(body, "what pods in lab-a-") {
			t.Errorf("%s: %s %v", path, body, err)
		}
	}
}

// namesAHost is the part of the story about a pod whose kubelet would have to connect to
// somebody else: home says which field, once, and nothing of it is sent.
func namesAHost(t *testing.T, a, b *device) {
	ctx := t.Context()
	spec := goesAway(corev1.RestartPolicyAlways)
	p := bare("probed", spec)
	p.Spec.Containers[0].LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Host: "10.0.0.1"}}}
	p.Spec.Containers[0].LivenessProbe.TCPSocket.Port.IntVal = 80
	p.Spec.NodeName = "b" // the scheduler would keep it at home
	a.create(t, p)
	var made *corev1.Pod
	await.Empty(t, time.Minute, "refused, by name", func(ctx context.Context) string {
		var err error
		made, err = a.Client.CoreV1().Pods("lab").Get(ctx, "probed", metav1.GetOptions{})
		must(t, err)
		if made.Status.Reason != "OffloadRefused" || !strings.Contains(made.Status.Message, "spec.containers[0].livenessProbe.tcpSocket.host") {
			return fmt.Sprintf("%s %s", made.Status.Reason, made.Status.Message)
		}
		return ""
	})
	// It is looked at again and again, as everything is; there is nothing new to say.
	for i := range 3 {
		must(t, second(a.Client.CoreV1().Pods("lab").Patch(ctx, "probed", types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{"look":"%d"}}}`, i), metav1.PatchOptions{})))
	}
	a.event(t, "probed", "OffloadRefused", "tcpSocket.host")
	events, err := a.Client.CoreV1().Events("lab").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=probed,reason=OffloadRefused"})
	must(t, err)
	if len(events.Items) != 1 || events.Items[0].Count > 1 {
		t.Errorf("told %d times: %+v", len(events.Items), events.Items)
	}
	if sent := b.away(ctx, t, string(made.UID)); len(sent) != 0 {
		t.Errorf("%d pods of it away", len(sent))
	}
	must(t, a.Client.CoreV1().Pods("lab").Delete(ctx, "probed", metav1.DeleteOptions{}))
	a.gone(t, "probed")
}
