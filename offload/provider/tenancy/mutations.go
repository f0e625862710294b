package tenancy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"rivulet/fabric/changes"
	"rivulet/offload/policy"
	"rivulet/offload/replacement"
)

// Mutations of pods by this cluster's owner (defaults, tolerations, labels, sidecars) are admitted where tenants might
// request the same. A refused one would leave every tenant's pod waiting. So a minimal pod is tried by a dry run, and
// the owner gets the refusal together with the webhooks and policies that change new pods here. Tenants get the refusal
// only.

const admissionLook = time.Minute

// Refuses is why every pod of a consumer is refused, in the owner's terms; empty if none is.
func (t *Tenancy) Refuses() string { return ptr.Deref(t.refusing.Load(), "") }

// watchAdmission updates Refuses until ctx ends.
func (t *Tenancy) watchAdmission(ctx context.Context) {
	for {
		why := t.evaluate(ctx)
		if ctx.Err() != nil {
			return
		}
		if why != "" && why != t.Refuses() {
			t.Log.Warn(why)
		}
		t.refusing.Store(&why)
		if !changes.Wait(ctx, admissionLook) {
			return
		}
	}
}

func (t *Tenancy) evaluate(ctx context.Context) string {
	twins, _ := t.twins.List(labels.Everything()) // a cache cannot fail
	i := slices.IndexFunc(twins, func(ns *corev1.Namespace) bool { return ns.DeletionTimestamp == nil && isBounded(ns) })
	if i < 0 || !t.policies.InForce() {
		return ""
	}
	_, err := t.client.CoreV1().Pods(twins[i].Name).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "rivulet-probe"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "rivulet.dev/pause:1"}}}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if !replacement.ForGood(err) {
		return ""
	}
	why := fmt.Sprintf("this cluster's own admission lets no pod of another cluster in: %v", err)
	if by := t.mutators(ctx); len(by) > 0 {
		why += "; new pods are changed by " + strings.Join(by, ", ") + ": have it leave out namespaces with the label " + policy.OriginLabel
	} else {
		why += "; have it leave out namespaces with the label " + policy.OriginLabel
	}
	return why
}

// mutators are the owner's webhooks and policies that change new pods.
func (t *Tenancy) mutators(ctx context.Context) (out []string) {
	hooks, err := t.client.AdmissionregistrationV1().MutatingWebhookConfigurations().List(ctx, metav1.ListOptions{})
	if err == nil {
		for i := range hooks.Items {
			h := &hooks.Items[i]
			if slices.ContainsFunc(h.Webhooks, func(w admissionv1.MutatingWebhook) bool {
				return slices.ContainsFunc(w.Rules, func(r admissionv1.RuleWithOperations) bool { return ofPods(r.Resources) })
			}) {
				out = append(out, "MutatingWebhookConfiguration "+h.Name)
			}
		}
	}
	policies, err := t.client.AdmissionregistrationV1beta1().MutatingAdmissionPolicies().List(ctx, metav1.ListOptions{})
	if err == nil {
		for i := range policies.Items {
			p := &policies.Items[i]
			if p.Spec.MatchConstraints == nil || strings.HasPrefix(p.Name, "rivulet-") {
				continue
			}
			for _, r := range p.Spec.MatchConstraints.ResourceRules {
				if ofPods(r.Resources) {
					out = append(out, "MutatingAdmissionPolicy "+p.Name)
					break
				}
			}
		}
	}
	return out
}

func ofPods(resources []string) bool {
	return slices.ContainsFunc(resources, func(r string) bool { return r == "pods" || strings.HasPrefix(r, "*") })
}
