package offload

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/offload/policy"
	"rivulet/offload/replacement"
	"rivulet/test/harness/await"
)

// itsOwnRecord: at a provider that keeps pods there is no ReplicaSet around them. What is
// deleted while the provider's supervisor is down is not lost; what the provider refuses
// waits in a ReplicaSet; and of a pod that must not run twice the second begins when the
// first has ended.
func itsOwnRecord(t *testing.T, a, b *device, web *corev1.Pod) {
	ctx := t.Context()
	sets, err := b.Client.AppsV1().ReplicaSets("").List(ctx, metav1.ListOptions{LabelSelector: policy.OriginLabel})
	must(t, err)
	if len(sets.Items) != 0 {
		t.Errorf("%d ReplicaSets at the provider", len(sets.Items))
	}
	p := b.away(ctx, t, string(web.UID))[0]
	twin, err := b.Client.CoreV1().Namespaces().Get(ctx, p.Namespace, metav1.GetOptions{})
	must(t, err)
	// kubectl drain asks who makes the pod again.
	if c := metav1.GetControllerOf(&p); c == nil || c.Kind != "Namespace" || c.UID != twin.UID {
		t.Errorf("controlled by %+v", c)
	}
	if p.Labels[policy.KeptLabel] != string(replacement.AtOnce) || !replacement.Kept(&p) {
		t.Errorf("%v %v", p.Labels, p.Finalizers)
	}

	alone := bare("alone", corev1.PodSpec{Tolerations: []corev1.Toleration{{Key: policy.VirtualTaint, Operator: corev1.TolerationOpExists}}})
	alone.Labels = map[string]string{"app": "alone"}
	a.create(t, alone)
	at := a.running(t, "alone", "")
	first := b.away(ctx, t, string(at.UID))[0]
	if first.Labels[policy.KeptLabel] != string(replacement.AfterEnd) {
		t.Errorf("nobody would run two of it, and it is %v", first.Labels)
	}
	b.stop()
	must(t, b.Client.CoreV1().Pods(first.Namespace).EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: first.Namespace, Name: first.Name}}))
	await.Empty(t, time.Minute, "it has ended", func(ctx context.Context) string {
		p, err := b.Client.CoreV1().Pods(first.Namespace).Get(ctx, first.Name, metav1.GetOptions{})
		must(t, err) // it stays
		if !replacement.Ended(p) {
			return fmt.Sprint(p.DeletionTimestamp)
		}
		return ""
	})
	b.start()
	restarted := func(times int32) {
		t.Helper()
		await.Empty(t, time.Minute, fmt.Sprintf("restarted %d times", times), func(ctx context.Context) string {
			p, err := a.Client.CoreV1().Pods("lab").Get(ctx, "alone", metav1.GetOptions{})
			must(t, err)
			if st := p.Status.ContainerStatuses; p.UID != at.UID || len(st) != 1 || st[0].RestartCount != times || st[0].State.Running == nil {
				return fmt.Sprintf("%s %+v", p.UID, st)
			}
			return ""
		})
	}
	restarted(1)
	// Changed labels go on to those that come after; the provider's own do not.
	must(t, second(a.Client.CoreV1().Pods("lab").Patch(ctx, "alone", types.MergePatchType, []byte(`{"metadata":{"labels":{"app":null,"new":"1"}}}`), metav1.PatchOptions{})))
	await.Empty(t, time.Minute, "its labels are those of home", func(ctx context.Context) string {
		if away := b.away(ctx, t, string(at.UID)); len(away) != 1 || away[0].Labels["new"] != "1" || away[0].Labels["app"] != "" {
			return fmt.Sprint(len(away))
		}
		return ""
	})
	is := b.away(ctx, t, string(at.UID))[0]
	must(t, second(b.Client.CoreV1().Pods(is.Namespace).Patch(ctx, is.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"provider":"1"}}}`), metav1.PatchOptions{})))
	must(t, b.Client.CoreV1().Pods(is.Namespace).Delete(ctx, is.Name, metav1.DeleteOptions{}))
	restarted(2)
	await.Empty(t, time.Minute, "the second is let go", func(ctx context.Context) string {
		if away := b.away(ctx, t, string(at.UID)); len(away) != 1 || away[0].UID == is.UID {
			return fmt.Sprint(len(away))
		}
		return ""
	})
	is = b.away(ctx, t, string(at.UID))[0]
	if is.Labels["new"] != "1" || is.Labels["app"] != "" || is.Labels["provider"] != "" || !strings.HasPrefix(is.Name, "alone-") || !replacement.Kept(&is) {
		t.Errorf("the third is %s %v", is.Name, is.Labels)
	}

	// What there is no room for waits as a ReplicaSet does, with the provider's words.
	large := bare("large", corev1.PodSpec{Tolerations: alone.Spec.Tolerations, NodeName: "b"})
	large.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1000")}
	a.create(t, large)
	await.Empty(t, time.Minute, "a pod that is too large says what it waits for", func(ctx context.Context) string {
		p, err := a.Client.CoreV1().Pods("lab").Get(ctx, "large", metav1.GetOptions{})
		must(t, err)
		if p.Status.Reason != "OffloadPending" || !strings.Contains(p.Status.Message, "exceeded quota") {
			return p.Status.Reason + " " + p.Status.Message
		}
		return ""
	})
	for _, name := range []string{"large", "alone"} {
		must(t, a.Client.CoreV1().Pods("lab").Delete(ctx, name, metav1.DeleteOptions{}))
		a.gone(t, name)
	}
	await.Empty(t, time.Minute, "nothing is left of them", func(ctx context.Context) string {
		sets, err := b.Client.AppsV1().ReplicaSets("").List(ctx, metav1.ListOptions{LabelSelector: policy.OriginLabel})
		must(t, err)
		_, err = b.Client.CoreV1().Pods(is.Namespace).Get(ctx, is.Name, metav1.GetOptions{})
		if len(sets.Items) > 0 || !apierrors.IsNotFound(err) {
			return fmt.Sprint(len(sets.Items), err)
		}
		return ""
	})
}
