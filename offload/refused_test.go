package offload

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	admissionv1beta1 "k8s.io/api/admissionregistration/v1beta1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"rivulet/offload/consumer/pod/translate"
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

// gatedThere is the part about a provider whose own policy holds pods by a scheduling gate, as Kueue does: home names the
// gate and whose it is, and the pod runs when the provider removes it.
func gatedThere(t *testing.T, a, b *device) {
	ctx := t.Context()
	policies, bindings := b.Client.AdmissionregistrationV1beta1().MutatingAdmissionPolicies(), b.Client.AdmissionregistrationV1beta1().MutatingAdmissionPolicyBindings()
	ignore := admissionv1beta1.Ignore
	must(t, second(policies.Create(ctx, &admissionv1beta1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "queue"}, Spec: admissionv1beta1.MutatingAdmissionPolicySpec{
		FailurePolicy: &ignore, ReinvocationPolicy: admissionv1beta1.NeverReinvocationPolicy,
		MatchConstraints: &admissionv1beta1.MatchResources{ResourceRules: []admissionv1beta1.NamedRuleWithOperations{{RuleWithOperations: admissionv1beta1.RuleWithOperations{
			Operations: []admissionv1beta1.OperationType{admissionv1beta1.Create}, Rule: admissionv1beta1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}}}}}},
		MatchConditions: []admissionv1beta1.MatchCondition{{Name: "queued", Expression: `object.metadata.?labels.?queued.orValue('') == 'yes'`}},
		Mutations: []admissionv1beta1.Mutation{{PatchType: admissionv1beta1.PatchTypeJSONPatch, JSONPatch: &admissionv1beta1.JSONPatch{
			Expression: `[JSONPatch{op: 'add', path: '/spec/schedulingGates', value: [{'name': 'kueue.x-k8s.io/admission'}]}]`}}},
	}}, metav1.CreateOptions{})))
	must(t, second(bindings.Create(ctx, &admissionv1beta1.MutatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "queue"}, Spec: admissionv1beta1.MutatingAdmissionPolicyBindingSpec{PolicyName: "queue"}}, metav1.CreateOptions{})))
	await.Empty(t, time.Minute, "the policy is in force", func(ctx context.Context) string {
		p := bare("probe", corev1.PodSpec{})
		p.Namespace, p.Labels = "default", map[string]string{"queued": "yes"}
		made, err := b.Client.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil || len(made.Spec.SchedulingGates) == 0 {
			return fmt.Sprint("no gate: ", err)
		}
		return ""
	})
	held := bare("held", corev1.PodSpec{Tolerations: []corev1.Toleration{{Key: policy.VirtualTaint, Operator: corev1.TolerationOpExists}}})
	held.Labels = map[string]string{"queued": "yes"}
	a.create(t, held)
	var at *corev1.Pod
	await.Empty(t, time.Minute, "home names the gate, and whose it is", func(ctx context.Context) string {
		p, err := a.Client.CoreV1().Pods("lab").Get(ctx, "held", metav1.GetOptions{})
		must(t, err)
		at = p
		c := translate.Condition(&p.Status, translate.OffloadedCondition)
		const gate = "its owner's policy or queue holds the pod by scheduling gate kueue.x-k8s.io/admission"
		if p.Status.Reason != translate.ReasonGated || !strings.Contains(p.Status.Message, "on b: "+gate) || c == nil || !strings.Contains(c.Message, gate) {
			return fmt.Sprintf("%+v", p.Status)
		}
		return ""
	})
	is := b.away(ctx, t, string(at.UID))[0]
	must(t, second(b.Client.CoreV1().Pods(is.Namespace).Patch(ctx, is.Name, types.JSONPatchType, []byte(`[{"op":"remove","path":"/spec/schedulingGates"}]`), metav1.PatchOptions{})))
	a.running(t, "held", "")
	must(t, a.Client.CoreV1().Pods("lab").Delete(ctx, "held", metav1.DeleteOptions{}))
	a.gone(t, "held")
	must(t, bindings.Delete(ctx, "queue", metav1.DeleteOptions{}))
	must(t, policies.Delete(ctx, "queue", metav1.DeleteOptions{}))
}
