package tenancy

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	admissionv1beta1 "k8s.io/api/admissionregistration/v1beta1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"rivulet/test/harness/await"
)

// What the owner has admission add to every pod does not keep tenants' out: a class of priority by default, defaults of a LimitRange,
// and what a tenant might ask for itself. What does keep them out is told to the owner by name.
func testOwnersAdmission(t *testing.T, p *provider) {
	ctx := t.Context()
	twin := p.twinOf(t, carol, "changed")
	c, _ := p.consumer(t, carol, nil)
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	create := func(ctx context.Context, change func(*corev1.Pod)) (*corev1.Pod, error) {
		return c.CoreV1().Pods(twin).Create(ctx, bare("x", change), dry)
	}
	classes, policies, bindings := p.admin.SchedulingV1().PriorityClasses(), p.admin.AdmissionregistrationV1beta1().MutatingAdmissionPolicies(), p.admin.AdmissionregistrationV1beta1().MutatingAdmissionPolicyBindings()
	for _, class := range []schedulingv1.PriorityClass{{ObjectMeta: metav1.ObjectMeta{Name: "owners-default"}, GlobalDefault: true, Value: 1000}, {ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 5000}} {
		if _, err := classes.Create(ctx, &class, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = classes.Delete(context.WithoutCancel(ctx), class.Name, metav1.DeleteOptions{}) }()
	}
	// The owner's own pods have the default: then the tenants' would.
	await.Empty(t, time.Minute, "the default is in force", func(ctx context.Context) string {
		made, err := p.admin.CoreV1().Pods("default").Create(ctx, bare("x", nil), dry)
		if err != nil {
			return err.Error()
		}
		if *made.Spec.Priority != 1000 {
			return made.Spec.PriorityClassName
		}
		return ""
	})
	await.Empty(t, time.Minute, "a tenant's pod is let in", func(ctx context.Context) string {
		if _, err := create(ctx, nil); err != nil {
			return err.Error()
		}
		return ""
	})
	for what, change := range map[string]func(*corev1.Pod){"no class": nil, "a class of the owner's": func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" }} {
		made, err := create(ctx, change)
		if err != nil || made.Spec.PriorityClassName != "rivulet-tenants" || *made.Spec.Priority != 0 || *made.Spec.PreemptionPolicy != corev1.PreemptNever {
			t.Errorf("%s: %v, want priority 0 of class rivulet-tenants: %+v", what, err, made.Spec)
		}
	}

	limits := &corev1.LimitRange{}
	if err := yaml.UnmarshalStrict([]byte(`{metadata: {name: owners}, spec: {limits: [{type: Container, default: {memory: 8Mi, cpu: 10m}, defaultRequest: {memory: 8Mi, cpu: 1m}}]}}`), limits); err != nil {
		t.Fatal(err)
	}
	if _, err := p.admin.CoreV1().LimitRanges(twin).Create(ctx, limits, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	change := func(name, patch string) {
		t.Helper()
		policy, binding := &admissionv1beta1.MutatingAdmissionPolicy{}, &admissionv1beta1.MutatingAdmissionPolicyBinding{}
		policy.Name, binding.Name, binding.Spec.PolicyName = name, name, name
		if err := yaml.UnmarshalStrict([]byte(`{failurePolicy: Fail, reinvocationPolicy: Never, matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [CREATE]}]},
			mutations: [{patchType: JSONPatch, jsonPatch: {expression: "[`+patch+`]"}}]}`), &policy.Spec); err != nil {
			t.Fatal(err)
		}
		if _, err := policies.Create(ctx, policy, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := bindings.Create(ctx, binding, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(name string) {
		_ = bindings.Delete(context.WithoutCancel(ctx), name, metav1.DeleteOptions{})
		_ = policies.Delete(context.WithoutCancel(ctx), name, metav1.DeleteOptions{})
	}
	defer remove("zz-additions")
	add := func(path, value string) string {
		return `JSONPatch{op: 'add', path: '` + path + `', value: ` + value + `}`
	}
	change("zz-additions", strings.Join([]string{add("/spec/nodeSelector", "{'disk': 'ssd'}"),
		add("/spec/tolerations/-", "{'key': 'gpu', 'operator': 'Exists'}"), add("/spec/containers/-", "{'name': 'sidecar', 'image': 'quay.io/a/b'}"),
		add("/spec/initContainers", "[{'name': 'sidecar-first', 'image': 'quay.io/a/b', 'restartPolicy': 'Always'}]"), add("/spec/volumes", "[{'name': dyn('extra'), 'emptyDir': dyn({})}]")}, ", "))
	await.Empty(t, time.Minute, "a pod with what the owner adds is let in", func(ctx context.Context) string {
		made, err := create(ctx, nil)
		if err != nil {
			return err.Error()
		}
		if made.Spec.NodeSelector["disk"] != "ssd" || len(made.Spec.Containers) != 2 || len(made.Spec.InitContainers) != 1 || made.Spec.Containers[0].Resources.Limits.Memory().String() != "8Mi" || *made.Spec.Priority != 0 {
			return "nothing is added yet"
		}
		return ""
	})
	if why := p.evaluate(ctx); why != "" {
		t.Errorf("the owner is told %s", why)
	}

	// Where it is refused the tenant reads what, and the owner who.
	remove("zz-additions")
	change("owners-disk", add("/spec/volumes", "[{'name': dyn('host'), 'hostPath': dyn({'path': '/x'})}]"))
	defer remove("owners-disk")
	await.Empty(t, time.Minute, "a pod with a volume of the host's is refused", func(ctx context.Context) string {
		if _, err := create(ctx, nil); err == nil || !strings.Contains(err.Error(), "volumes") || strings.Contains(err.Error(), "owners-disk") {
			return fmt.Sprint(err)
		}
		return ""
	})
	why := p.evaluate(ctx)
	for _, word := range []string{"MutatingAdmissionPolicy owners-disk", "volumes", "; ", "rivulet.dev/origin"} {
		if !strings.Contains(why, word) {
			t.Errorf("the owner is not told of %s: %s", word, why)
		}
	}
	remove("owners-disk")
	await.True(t, time.Minute, "they are let in again", func() bool { _, err := create(ctx, nil); return err == nil && p.evaluate(ctx) == "" })
	p.release(t, carol, "changed")
}
