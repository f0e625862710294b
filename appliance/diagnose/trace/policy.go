package trace

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"rivulet/offload/networkpolicy"
)

// maxSources bounds the pods of which the policies are evaluated for a connection from this device.
const maxSources = 500

// policy evaluates the NetworkPolicies of both ends. Away pods are held by them, too: their provider enforces the same
// policies, translated.
func (f Facts) policy(from, e Endpoint) Hop {
	h := Hop{Name: "policy", Verdict: OK}
	switch {
	case f.Policies == nil:
		h.Verdict, h.Text = Unknown, "the NetworkPolicies have not been read yet"
		return h
	case !e.Addr.Addr().IsValid() || e.Pod == nil:
		h.Text = "none: it is not a pod with an address"
		return h
	}
	k := networkpolicy.Packet{From: from.Addr.Addr(), To: e.Addr.Addr(), Protocol: f.protocol(), Port: e.Addr.Port()}
	d := networkpolicy.NewDecider(*f.Policies)
	if f.From == nil || f.From.Spec.HostNetwork {
		k.From = netip.Addr{}
	}
	out, in := d.Decide(k)
	switch {
	case len(out.Policies)+len(in.Policies) == 0:
		h.Text = "no NetworkPolicy selects the pod"
		if f.From != nil {
			h.Text = "no NetworkPolicy selects either pod"
		}
	case !k.From.IsValid():
		h = f.fromPods(d, k, in, h)
	case !out.Allowed:
		h.Verdict, h.Text, h.Cure = Fails, fmt.Sprintf("NetworkPolicy %s does not let %s out to %s of %s", policies(out.Policies), f.From.Name, port(k), e.name()), f.edit(out.Policies, "egress")
	case !in.Allowed:
		h.Verdict, h.Text, h.Cure = Fails, fmt.Sprintf("NetworkPolicy %s does not let %s in to %s of %s", policies(in.Policies), f.From.Name, port(k), e.name()), f.edit(in.Policies, "ingress")
	default:
		h.Text = "allowed by " + policies(slices.Concat(out.Policies, in.Policies))
	}
	if h.Verdict != OK || !e.away() {
		return h
	}
	for _, p := range slices.Concat(out.Policies, in.Policies) {
		if why := f.Unheld[p.Namespace+"/"+p.Name]; why != "" {
			h.Text += fmt.Sprintf("; %s does not enforce %s (%s)", e.where(), p.Name, why)
		}
	}
	h.Text += "; the isolation at " + e.where() + " lets in this cluster's node and pods only"
	return h
}

// fromPods evaluates the policies for pods, because they always let the node in.
func (f Facts) fromPods(d *networkpolicy.Decider, k networkpolicy.Packet, in networkpolicy.Side, h Hop) Hop {
	let, one := 0, ""
	others := 0
	for i, p := range f.Policies.Pods {
		if i == maxSources {
			break
		}
		if !p.Addr.IsValid() || p.Addr == k.To {
			continue
		}
		k.From = p.Addr
		others++
		if out, in := d.Decide(k); out.Allowed && in.Allowed {
			if let++; one == "" {
				one = p.Namespace + "/" + p.Name
			}
		}
	}
	switch blocks := slices.ContainsFunc(in.Policies, hasBlocks); {
	case let > 0 && let == others:
		h.Text = fmt.Sprintf("%s let all pods in", policies(in.Policies))
	case let > 0:
		h.Verdict, h.Text = Unknown, fmt.Sprintf("%s let in %d of %d pods, such as %s", policies(in.Policies), let, others, one)
		h.Cure = "name the pod that connects: " + f.command() + " --from NAMESPACE/POD"
	case blocks || others == 0 && slices.ContainsFunc(in.Policies, func(p *networkingv1.NetworkPolicy) bool { return len(p.Spec.Ingress) > 0 }):
		h.Verdict, h.Text = Unknown, fmt.Sprintf("%s let in no pod that there is now, but others", policies(in.Policies))
		h.Cure = "name the pod that connects: " + f.command() + " --from NAMESPACE/POD"
	default:
		h.Verdict, h.Text, h.Cure = Fails, fmt.Sprintf("NetworkPolicy %s lets no pod in to %s", policies(in.Policies), port(k)), f.edit(in.Policies, "ingress")
	}
	return h
}

// command is the one that made this report.
func (f Facts) command() string {
	if f.Service == nil {
		return "rivulet trace pod/" + f.Pod.Name + " -n " + f.Pod.Namespace
	}
	return "rivulet trace svc/" + f.Service.Name + " -n " + f.Service.Namespace
}

func hasBlocks(p *networkingv1.NetworkPolicy) bool {
	for _, r := range p.Spec.Ingress {
		if slices.ContainsFunc(r.From, func(p networkingv1.NetworkPolicyPeer) bool { return p.IPBlock != nil }) {
			return true
		}
	}
	return false
}

// policies are the names, at most maxEndpoints.
func policies(all []*networkingv1.NetworkPolicy) string {
	var out []string
	for i, p := range all {
		if i == maxEndpoints {
			out = append(out, fmt.Sprintf("and %d more", len(all)-i))
			break
		}
		out = append(out, p.Namespace+"/"+p.Name)
	}
	return strings.Join(out, ", ")
}

func (f Facts) edit(all []*networkingv1.NetworkPolicy, way string) string {
	return fmt.Sprintf("add the pod and the port to %s of that policy, or remove it: rivulet kubectl edit networkpolicy -n %s %s", way, all[0].Namespace, all[0].Name)
}

func port(k networkpolicy.Packet) string {
	if k.Port == 0 {
		return "any port"
	}
	return fmt.Sprintf("port %d/%s", k.Port, k.Protocol)
}
