package tenancy

import (
	"fmt"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// A consumer writes NetworkPolicies in its twins and nowhere else, and no larger ones
// than the kernel's tables should hold.
func testPolicies(t *testing.T, p *provider) {
	ctx := t.Context()
	twin := p.twinOf(t, alice, "lab")
	c, _ := p.consumer(t, alice, nil)
	policy := func(name string, peers, except, ports int) *networkingv1.NetworkPolicy {
		rule := networkingv1.NetworkPolicyIngressRule{}
		for i := range peers {
			b := &networkingv1.IPBlock{CIDR: fmt.Sprintf("10.%d.%d.0/24", i/256, i%256)}
			for e := range except {
				b.Except = append(b.Except, fmt.Sprintf("10.%d.%d.%d/32", i/256, i%256, e))
			}
			rule.From = append(rule.From, networkingv1.NetworkPolicyPeer{IPBlock: b})
		}
		for i := range ports {
			port := intstr.FromInt32(int32(i + 1))
			rule.Ports = append(rule.Ports, networkingv1.NetworkPolicyPort{Port: &port})
		}
		return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{rule}}}
	}
	create := func(in string, n *networkingv1.NetworkPolicy) error {
		_, err := c.NetworkingV1().NetworkPolicies(in).Create(ctx, n, metav1.CreateOptions{})
		return err
	}
	if err := create(twin, policy("large", 1000, 0, 199)); err != nil {
		t.Errorf("as large as may be: %v", err)
	}
	if err := create(twin, policy("peers", 500, 2, 0)); err == nil || !strings.Contains(err.Error(), "1000 peers") {
		t.Errorf("a peer too many: %v", err)
	}
	if err := create(twin, policy("ports", 1, 0, 200)); err == nil || !strings.Contains(err.Error(), "200 rules and ports") {
		t.Errorf("a port too many: %v", err)
	}
	if err := create(twin, policy("empty", 0, 0, 0)); err != nil {
		t.Errorf("one without rules: %v", err)
	}
	for _, elsewhere := range []string{"default", "kube-system"} {
		if err := create(elsewhere, policy("x", 0, 0, 0)); !apierrors.IsForbidden(err) {
			t.Errorf("in %s: %v, want forbidden", elsewhere, err)
		}
	}
	if err := c.NetworkingV1().NetworkPolicies(twin).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
}
