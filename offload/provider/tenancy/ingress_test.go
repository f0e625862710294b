package tenancy

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"rivulet/fabric/peer"
	"rivulet/offload/policy"
	"rivulet/test/await"
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
	if err := ingress("own", nil); !refused(err, "rivulet-twin-ingresses") {
		t.Errorf("no class is lent: %v, want refused", err)
	}
	for name, labels := range map[string]map[string]string{"own": nil, "lent": {policy.LentLabel: "ingress"}} {
		if _, err := p.admin.NetworkingV1().IngressClasses().Create(ctx, &networkingv1.IngressClass{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
			Spec: networkingv1.IngressClassSpec{Controller: "example.com/c"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	await.True(t, time.Minute, "the class that is lent", func() bool { return ingress("lent", nil) == nil })
	for words, try := range map[string]func() error{
		"only the ingress class lent": func() error { return ingress("own", nil) },
		"each rule a host":            func() error { return ingress("lent", func(i *networkingv1.Ingress) { i.Spec.Rules[0].Host = "" }) },
		"defaultBackend": func() error {
			b := backend()
			return ingress("lent", func(i *networkingv1.Ingress) { i.Spec.DefaultBackend = &b })
		},
		"wildcards": func() error {
			return ingress("lent", func(i *networkingv1.Ingress) { i.Spec.Rules[0].Host = "*.example" })
		},
		"its own hosts": func() error {
			return ingress("lent", func(i *networkingv1.Ingress) {
				i.Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{"other.example"}, SecretName: "key"}}
			})
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

// A host is one cluster's: this one's first, then the consumer's that came first, also
// if they come at once; and what this cluster takes later ends the consumer's.
func testHosts(t *testing.T, p *provider) {
	ctx := t.Context()
	type side struct {
		id   peer.ID
		c    kubernetes.Interface
		twin string
	}
	sides := []side{{id: alice}, {id: bob}}
	for i := range sides {
		sides[i].twin = p.twinOf(t, sides[i].id, "lab")
		sides[i].c, _ = p.consumer(t, sides[i].id, nil)
	}
	class, prefix := "lent", networkingv1.PathTypePrefix
	ingress := func(name, host string) *networkingv1.Ingress {
		return &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.IngressSpec{IngressClassName: &class, Rules: []networkingv1.IngressRule{{Host: host, IngressRuleValue: networkingv1.IngressRuleValue{
			HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{Path: "/", PathType: &prefix, Backend: backend()}}}}}}}}
	}
	make := func(c kubernetes.Interface, ns string, i *networkingv1.Ingress) error {
		_, err := c.NetworkingV1().Ingresses(ns).Create(ctx, i, metav1.CreateOptions{})
		return err
	}
	taken := func(err error) bool {
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "use another host")
	}
	own := func(name, host string) {
		t.Helper()
		if err := make(p.admin, "default", ingress(name, host)); err != nil {
			t.Fatal(err)
		}
	}
	a, b := sides[0], sides[1]
	own("own", "own.example")
	own("wide", "*.wide.example")
	for _, host := range []string{"own.example", "shop.wide.example"} {
		if err := make(a.c, a.twin, ingress("thief", host)); !taken(err) {
			t.Errorf("%s of the owner: %v", host, err)
		}
	}
	// At once, again and again: one gets it.
	for n := range 5 {
		host := fmt.Sprintf("race%d.example", n)
		var wg sync.WaitGroup
		var got atomic.Int32
		for _, s := range sides {
			for i := range 4 {
				wg.Go(func() {
					if err := make(s.c, s.twin, ingress(fmt.Sprint("race", n, "-", i), host)); err == nil {
						got.Add(map[peer.ID]int32{alice: 1, bob: 1 << 8}[s.id])
					} else if !taken(err) {
						t.Error(err)
					}
				})
			}
		}
		wg.Wait()
		if n := got.Load(); n != 4 && n != 4<<8 {
			t.Errorf("%s: %x", host, n)
		}
	}
	// By a patch of what was another's to begin with.
	if err := make(a.c, a.twin, ingress("mine", "a.example")); err != nil {
		t.Fatal(err)
	}
	if err := make(b.c, b.twin, ingress("mine", "b.example")); err != nil {
		t.Fatal(err)
	}
	_, err := b.c.NetworkingV1().Ingresses(b.twin).Patch(ctx, "mine", types.JSONPatchType, []byte(`[{"op":"replace","path":"/spec/rules/0/host","value":"a.example"}]`), metav1.PatchOptions{})
	if !taken(err) {
		t.Errorf("by a patch: %v", err)
	}
	if _, err := a.c.NetworkingV1().Ingresses(a.twin).Patch(ctx, "mine", types.MergePatchType, []byte(`{"metadata":{"labels":{"x":"y"}}}`), metav1.PatchOptions{}); err != nil {
		t.Errorf("its own: %v", err)
	}
	// The owner comes later.
	own("later", "a.example")
	await.True(t, time.Minute, "the owner's later Ingress takes the host", func() bool {
		_, err := p.admin.NetworkingV1().Ingresses(a.twin).Get(ctx, "mine", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	if err := make(a.c, a.twin, ingress("mine", "a.example")); !taken(err) {
		t.Errorf("after that: %v", err)
	}
	if _, err := p.admin.NetworkingV1().Ingresses(b.twin).Get(ctx, "mine", metav1.GetOptions{}); err != nil {
		t.Errorf("another's Ingress has gone, too: %v", err)
	}
	for _, ns := range []string{"default", a.twin, b.twin} {
		if err := p.admin.NetworkingV1().Ingresses(ns).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			t.Error(err)
		}
	}
}

func backend() networkingv1.IngressBackend {
	return networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: "web", Port: networkingv1.ServiceBackendPort{Number: 80}}}
}
