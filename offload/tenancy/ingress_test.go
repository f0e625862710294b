package tenancy

import (
	"context"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/offload/policy"
)

// Ingresses of a consumer are of the class that this cluster lends, of none if it lends
// none; they name their hosts and say nothing to the controller behind its back.
func testIngresses(t *testing.T, p *provider) {
	ctx := t.Context()
	twin := p.twinOf(t, alice, "lab")
	c, _ := p.consumer(t, alice, nil)
	ingress := func(class string, change func(*networkingv1.Ingress)) error {
		prefix := networkingv1.PathTypePrefix
		i := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: networkingv1.IngressSpec{IngressClassName: &class, Rules: []networkingv1.IngressRule{{Host: "shop.example", IngressRuleValue: networkingv1.IngressRuleValue{
			HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{Path: "/", PathType: &prefix, Backend: backend()}}}}}}}}
		if change != nil {
			change(i)
		}
		_, err := c.NetworkingV1().Ingresses(twin).Create(ctx, i, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	refused := func(err error, words string) bool {
		return err != nil && strings.Contains(err.Error(), words)
	}
	p.until(t, "no class is lent", func(context.Context) bool { return refused(ingress("own", nil), "rivulet-twin-ingresses") })
	for name, labels := range map[string]map[string]string{"own": nil, "lent": {policy.LentLabel: "ingress"}} {
		if _, err := p.admin.NetworkingV1().IngressClasses().Create(ctx, &networkingv1.IngressClass{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
			Spec: networkingv1.IngressClassSpec{Controller: "example.com/c"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	p.until(t, "the class that is lent", func(context.Context) bool { return ingress("lent", nil) == nil })
	for words, try := range map[string]func() error{
		"only the ingress class lent": func() error { return ingress("own", nil) },
		"each rule a host":            func() error { return ingress("lent", func(i *networkingv1.Ingress) { i.Spec.Rules[0].Host = "" }) },
		"defaultBackend": func() error {
			b := backend()
			return ingress("lent", func(i *networkingv1.Ingress) { i.Spec.DefaultBackend = &b })
		},
		"annotations of an Ingress": func() error {
			return ingress("lent", func(i *networkingv1.Ingress) {
				i.Annotations = map[string]string{"nginx.ingress.kubernetes.io/server-snippet": "x"}
			})
		},
	} {
		if err := try(); !refused(err, words) {
			t.Errorf("%v, want %q", err, words)
		}
	}
}

func backend() networkingv1.IngressBackend {
	return networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: "web", Port: networkingv1.ServiceBackendPort{Number: 80}}}
}
