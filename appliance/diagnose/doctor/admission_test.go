package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

// What the owner has put into the API server refuses every write, and an API is served by nobody.
// After a power cut the engine starts on that, and a node is alive; what is in the way is named, and the cure works.
func TestAPowerCutAndAWebhook(t *testing.T) {
	t.Parallel()
	server := apiserver.Start(t)
	ctx, api := t.Context(), server.Client
	check := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }
	write := func() error {
		_, err := api.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: named("mine")}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	refused := func(by string) {
		t.Helper()
		await.NoError(t, ctx, time.Minute, "a write is refused: "+by, func() error {
			if err := write(); err == nil || !strings.Contains(err.Error(), by) {
				return errors.Join(errors.New("it is not"), err)
			}
			return nil
		})
	}

	nothing := corev1.ResourceList{"count/addons.k3s.cattle.io": resource.MustParse("0"), "count/leases.coordination.k8s.io": resource.MustParse("0"), "count/secrets": resource.MustParse("0")}
	for _, ns := range []string{"kube-system", "kube-node-lease"} {
		check(api.CoreV1().ResourceQuotas(ns).Create(ctx, &corev1.ResourceQuota{ObjectMeta: named("nothing"), Spec: corev1.ResourceQuotaSpec{Hard: nothing}}, metav1.CreateOptions{}))
		await.True(t, time.Minute, "the quota is in force", func() bool {
			q, err := api.CoreV1().ResourceQuotas(ns).Get(ctx, "nothing", metav1.GetOptions{})
			return err == nil && len(q.Status.Hard) == len(nothing)
		})
	}
	for group, labels := range map[string]string{"gone.example": "", "ours.example": `"app.kubernetes.io/managed-by": "rivulet.dev"`} {
		check(api.CoreV1().RESTClient().Post().AbsPath("/apis/apiregistration.k8s.io/v1/apiservices").SetHeader("Content-Type", "application/json").Body(fmt.Appendf(nil,
			`{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1.%[1]s", "labels": {%[2]s}}, "spec": {"group": %[1]q, "version": "v1",
			"groupPriorityMinimum": 1000, "versionPriority": 10, "insecureSkipTLSVerify": true, "service": {"namespace": "gone", "name": "api"}}}`, group, labels)).DoRaw(ctx))
	}
	everything := admissionv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"*/*"}}
	all := []admissionv1.RuleWithOperations{{Operations: []admissionv1.OperationType{admissionv1.OperationAll}, Rule: everything}}
	except := admissionv1.RuleWithOperations{Operations: all[0].Operations, Rule: admissionv1.Rule{APIGroups: []string{"admissionregistration.k8s.io", "apiregistration.k8s.io"}, APIVersions: []string{"*"}, Resources: []string{"*"}}}
	registration := api.AdmissionregistrationV1()
	check(registration.ValidatingAdmissionPolicies().Create(ctx, &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: named("nobody"), Spec: admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: all[0]}}, ExcludeResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: except}}},
		Validations:      []admissionv1.Validation{{Expression: "false"}},
	}}, metav1.CreateOptions{}))
	check(registration.ValidatingAdmissionPolicyBindings().Create(ctx, &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: named("nobody"), Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: "nobody", ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
	}}, metav1.CreateOptions{}))
	refused("'nobody'")
	none, gone := admissionv1.SideEffectClassNone, admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: "gone", Name: "guard"}}
	check(registration.ValidatingWebhookConfigurations().Create(ctx, &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: named("guard"), Webhooks: []admissionv1.ValidatingWebhook{
		{Name: "guard.gone.example", Rules: all, ClientConfig: gone, SideEffects: &none, AdmissionReviewVersions: []string{"v1"}},
	}}, metav1.CreateOptions{}))
	check(registration.MutatingWebhookConfigurations().Create(ctx, &admissionv1.MutatingWebhookConfiguration{ObjectMeta: named("changer"), Webhooks: []admissionv1.MutatingWebhook{
		{Name: "changer.gone.example", Rules: all, ClientConfig: gone, SideEffects: &none, AdmissionReviewVersions: []string{"v1"}},
	}}, metav1.CreateOptions{}))
	refused("changer.gone.example")

	// The controllers of k3s are up when it has seen a file for it.
	manifests := filepath.Join(server.TLSDir, "..", "manifests")
	check(nil, os.MkdirAll(manifests, 0o700))
	check(nil, os.WriteFile(filepath.Join(manifests, "mine.yaml"), []byte("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: mine\n  namespace: default\n"), 0o600))
	server.Again(t)
	api = server.Client
	registration = api.AdmissionregistrationV1()
	await.NoError(t, ctx, 2*time.Minute, "the engine is up", func() error {
		return api.CoreV1().RESTClient().Get().AbsPath("/apis/k3s.cattle.io/v1/namespaces/kube-system/addons/mine").Do(ctx).Error()
	})
	refused("changer.gone.example") // what is not the engine's own
	if _, err := api.CoreV1().ConfigMaps("default").Get(ctx, "mine", metav1.GetOptions{}); err == nil {
		t.Error("what somebody else wrote was let in with the engine's own")
	}
	asNode := rest.CopyConfig(server.Config)
	asNode.Impersonate = rest.ImpersonationConfig{UserName: "system:node:here", Groups: []string{"system:nodes", "system:authenticated"}}
	node := kubernetes.NewForConfigOrDie(asNode)
	if _, err := node.CoordinationV1().Leases("kube-node-lease").Create(ctx, &coordinationv1.Lease{ObjectMeta: named("here")}, metav1.CreateOptions{}); err != nil {
		t.Errorf("a node cannot tell that it is alive: %v", err)
	}

	e := machine(t, nil)
	e.api = func() (kubernetes.Interface, error) { return api, nil }
	e.Now = func() time.Time { return time.Now().Add(2 * time.Minute) }
	var r Result
	await.NoError(t, ctx, time.Minute, "all is named", func() error {
		r = admission.Run(ctx, e.Env)
		for _, want := range []string{"validatingwebhookconfiguration guard refuses", "mutatingwebhookconfiguration changer refuses", "gone/guard is not there", "apiservice v1.gone.example", "apiservice v1.ours.example"} {
			if r.Status != Fail || !strings.Contains(r.Text, want) {
				return errors.New(want + " is missing: " + r.Text)
			}
		}
		return nil
	})
	_, cures, _ := strings.Cut(r.Cure, ": ")
	cures, ours, _ := strings.Cut(cures, "; ")
	if strings.Contains(cures, "v1.ours.example") || !strings.HasSuffix(ours, ": rivulet doctor --only cidr,firewall,pod-network") {
		t.Errorf("the cure deletes what is Rivulet's own: %s", r.Cure)
	}
	for _, cure := range strings.Split(cures, " && ") {
		words := strings.Fields(cure)
		if len(words) != 5 || strings.Join(words[:3], " ") != "rivulet kubectl delete" {
			t.Fatalf("%q is no command", cure)
		}
		for _, kind := range calls {
			if kind[0] == words[3] {
				// The API server asks a webhook for a moment after its deletion: its cache follows.
				await.NoError(t, ctx, time.Minute, cure, func() error {
					return api.CoreV1().RESTClient().Delete().AbsPath(kind[1] + "/" + words[4]).Do(ctx).Error()
				})
			}
		}
	}
	await.NoError(t, ctx, time.Minute, "ours is gone", func() error {
		return api.CoreV1().RESTClient().Delete().AbsPath(calls[2][1] + "/v1.ours.example").Do(ctx).Error()
	})
	await.True(t, time.Minute, "nothing is in the way", func() bool { r = admission.Run(ctx, e.Env); return r.Status == Pass })
	refused("'nobody'") // webhooks alone are gone
	check(nil, registration.ValidatingAdmissionPolicies().Delete(ctx, "nobody", metav1.DeleteOptions{}))
	await.NoError(t, ctx, time.Minute, "writes pass", write)

	// A webhook whose Service is there, and nobody behind it.
	service, err := api.CoreV1().Services("default").Create(ctx, &corev1.Service{ObjectMeta: named("guard"), Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 443}}}}, metav1.CreateOptions{})
	check(service, err)
	ignore, here := admissionv1.Ignore, admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: "default", Name: "guard"}}
	configuration := &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: named("guard"), Webhooks: []admissionv1.ValidatingWebhook{
		{Name: "other.gone.example", ClientConfig: here, SideEffects: &none, AdmissionReviewVersions: []string{"v1"}},
		{Name: "may.fail.example", ClientConfig: gone, FailurePolicy: &ignore, SideEffects: &none, AdmissionReviewVersions: []string{"v1"}},
	}}
	check(registration.ValidatingWebhookConfigurations().Create(ctx, configuration, metav1.CreateOptions{}))
	nobody := "nobody answers for its Service default/guard (" + service.Spec.ClusterIP + ":443)"
	await.NoError(t, ctx, time.Minute, "the Service without a pod is named", func() error { // the API server answers from its cache, which follows
		if r := admission.Run(ctx, e.Env); r.Status != Fail || !strings.Contains(r.Text, nobody) {
			return errors.New(r.Text)
		}
		return nil
	})
	e.dial = func(context.Context, netip.AddrPort) error { return nil }
	if r := admission.Run(ctx, e.Env); r.Status != Pass {
		t.Errorf("somebody answers: %+v", r)
	}
}
