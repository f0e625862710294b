package offload

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"rivulet/offload/policy"
	"rivulet/test/harness/await"
)

// refusedThere is the part about pods of which home does not know that the provider refuses them: a runtime class that only home has.
// Where it may run at home its owner makes another that does not go to b; elsewhere it says why.
func refusedThere(t *testing.T, a, b *device) {
	ctx := t.Context()
	must(t, second(a.Client.NodeV1().RuntimeClasses().Create(ctx, &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "own"}, Handler: "own"}, metav1.CreateOptions{})))
	classed := web(1)
	classed.Name, classed.Labels = "classed", map[string]string{"app": "classed"}
	classed.Spec.Selector.MatchLabels, classed.Spec.Template.Labels = classed.Labels, classed.Labels
	classed.Spec.Template.Spec.RuntimeClassName = ptr.To("own")
	a.create(t, classed)
	await.Empty(t, time.Minute, "the next one does not go there", func(ctx context.Context) string {
		pods := a.pods(ctx, t, "app=classed")
		for _, p := range pods {
			if p.Spec.NodeName == "" && p.DeletionTimestamp == nil && strings.Contains(fmt.Sprint(p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution), policy.TargetLabel) {
				return ""
			}
		}
		return fmt.Sprintf("%+v", pods)
	})
	events, err := a.Client.CoreV1().Events("lab").List(ctx, metav1.ListOptions{FieldSelector: "reason=OffloadRefused"})
	must(t, err)
	told := false
	for _, e := range events.Items {
		told = told || strings.HasPrefix(e.InvolvedObject.Name, "classed-") && strings.Contains(e.Message, "RuntimeClass")
	}
	if !told {
		t.Errorf("no event says what b refuses: %+v", events.Items)
	}
	must(t, a.Client.AppsV1().Deployments("lab").Delete(ctx, "classed", metav1.DeleteOptions{}))

	// What a controller would be refused there is asked for: a Job of the wrapper has no condition that tells. b has a class of that name,
	// and does not lend it.
	must(t, second(b.Client.NodeV1().RuntimeClasses().Create(ctx, &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "own"}, Handler: "own"}, metav1.CreateOptions{})))
	a.offloadNamespace(t, "far", string(policy.Remote))
	once := bare("once", corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, RuntimeClassName: ptr.To("own")})
	once.Namespace = "far"
	must(t, second(a.Client.CoreV1().Pods("far").Create(ctx, once, metav1.CreateOptions{})))
	await.Empty(t, time.Minute, "a Job's pod is refused, and the Job is taken back", func(ctx context.Context) string {
		p, err := a.Client.CoreV1().Pods("far").Get(ctx, "once", metav1.GetOptions{})
		if err != nil || p.Status.Reason != "OffloadRefused" || !strings.Contains(p.Status.Message, "runtime class own is not lent to other clusters") {
			return fmt.Sprint(p.Status, err)
		}
		jobs, err := b.Client.BatchV1().Jobs(a.twin("far")).List(ctx, metav1.ListOptions{})
		if err != nil || len(jobs.Items) != 0 {
			return fmt.Sprint(jobs, err)
		}
		return ""
	})
	must(t, a.Client.CoreV1().Pods("far").Delete(ctx, "once", metav1.DeleteOptions{}))
	await.True(t, time.Minute, "it goes at once when it is deleted", func() bool {
		_, err := a.Client.CoreV1().Pods("far").Get(ctx, "once", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	must(t, a.Client.CoreV1().Namespaces().Delete(ctx, "far", metav1.DeleteOptions{}))
	for _, d := range []*device{a, b} {
		must(t, d.Client.NodeV1().RuntimeClasses().Delete(ctx, "own", metav1.DeleteOptions{}))
	}
}
