package tenancy

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"rivulet/fabric/peer"
	"rivulet/offload/policy"
	"rivulet/test/harness/await"
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
		"its pods here": func() error {
			return ingress("lent", func(i *networkingv1.Ingress) { i.Spec.Rules[0].HTTP.Paths[0].Backend.Service.Name = "web" })
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

// What an Ingress leads to is written by Kubernetes alone, out of the consumer's pods here: not by the consumer, neither when
// it is made nor later, nor by another name; and one that was there before leads nowhere else either.
func testWhereIngressesLead(t *testing.T, p *provider) {
	ctx := t.Context()
	twin := p.twinOf(t, alice, "lab")
	c, _ := p.consumer(t, alice, nil)
	const name = policy.IngressServicePrefix + "shop"
	pods := corev1.ServiceSpec{Selector: map[string]string{"app": "shop"}, Ports: []corev1.ServicePort{{Port: 80}}}
	service := func(change func(*corev1.Service)) *corev1.Service {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: *pods.DeepCopy()}
		change(s)
		return s
	}
	refused := func(what string, err error) {
		t.Helper()
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), policy.IngressServicePrefix+"*") {
			t.Errorf("%s: %v, want it refused", what, err)
		}
	}
	for what, change := range map[string]func(*corev1.Service){
		"a name": func(s *corev1.Service) {
			s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "nas.lan"}
		},
		"endpoints by hand": func(s *corev1.Service) { s.Spec.Selector = nil },
		"an annotation":     func(s *corev1.Service) { s.Annotations = map[string]string{"haproxy.org/backend-config-snippet": "x"} },
	} {
		_, err := c.CoreV1().Services(twin).Create(ctx, service(change), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		refused(what, err)
	}
	made, err := c.CoreV1().Services(twin).Create(ctx, service(func(*corev1.Service) {}), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(*corev1.Service){
		"a name later": func(s *corev1.Service) {
			s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "nas.lan"}
		},
		"endpoints by hand later": func(s *corev1.Service) { s.Spec.Selector = nil },
	} {
		other := made.DeepCopy()
		change(other)
		_, err := c.CoreV1().Services(twin).Update(ctx, other, metav1.UpdateOptions{})
		refused(what, err)
	}

	slice := func(name, of string) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: of}}, AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.77.0.11"}}}, Ports: []discoveryv1.EndpointPort{{Port: ptr.To[int32](6443)}}}
	}
	_, err = c.DiscoveryV1().EndpointSlices(twin).Create(ctx, slice("mine", name), metav1.CreateOptions{})
	refused("a slice", err)
	mine, err := c.DiscoveryV1().EndpointSlices(twin).Create(ctx, slice("mine", "shop"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.DiscoveryV1().EndpointSlices(twin).Patch(ctx, mine.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"kubernetes.io/service-name":"`+name+`"}}}`), metav1.PatchOptions{})
	refused("a slice under another name", err)
	of := metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + name}
	await.Empty(t, time.Minute, "Kubernetes has written the endpoints", func(ctx context.Context) string {
		written, err := c.DiscoveryV1().EndpointSlices(twin).List(ctx, of)
		if err != nil || len(written.Items) != 1 {
			return fmt.Sprint(written, err)
		}
		_, err = c.DiscoveryV1().EndpointSlices(twin).Patch(ctx, written.Items[0].Name, types.MergePatchType, []byte(`{"endpoints":[{"addresses":["10.77.0.11"]}]}`), metav1.PatchOptions{})
		refused("what Kubernetes has written", err)
		_, err = c.DiscoveryV1().EndpointSlices(twin).Patch(ctx, written.Items[0].Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"kubernetes.io/service-name":"shop"}}}`), metav1.PatchOptions{})
		refused("what Kubernetes has written, under another name", err)
		return ""
	})

	// From before there was the policy: made while the namespace is none of a consumer's.
	class, before := "lent", networkingv1.PathTypePrefix
	old := twinNamespace("led-astray", "led-astray", alice)
	mark := old.Labels
	old.Labels = nil
	if old, err = p.admin.CoreV1().Namespaces().Create(ctx, old, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.admin.NetworkingV1().Ingresses(old.Name).Create(ctx, &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Name: "old"}, Spec: networkingv1.IngressSpec{IngressClassName: &class,
		Rules: []networkingv1.IngressRule{{Host: "old.example", IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{Path: "/", PathType: &before,
			Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: "anywhere", Port: networkingv1.ServiceBackendPort{Number: 80}}}}}}}}}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	old.Labels = mark
	if _, err := p.admin.CoreV1().Namespaces().Update(ctx, old, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	await.True(t, time.Minute, "an Ingress from before ends", func() bool {
		_, err := p.admin.NetworkingV1().Ingresses(old.Name).Get(ctx, "old", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	if err := p.admin.CoreV1().Namespaces().Delete(ctx, old.Name, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
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
	return networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: policy.IngressServicePrefix + "web", Port: networkingv1.ServiceBackendPort{Number: 80}}}
}
