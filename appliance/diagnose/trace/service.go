package trace

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"rivulet/offload/consumer/explain"
)

// Report evaluates the facts.
func (f Facts) Report() Report {
	r := Report{Kind: "Pod"}
	if f.From != nil {
		r.From = f.From.Namespace + "/" + f.From.Name
	}
	if f.Service != nil {
		r.Kind, r.Namespace, r.Name = "Service", f.Service.Namespace, f.Service.Name
		r.Hops = append(r.Hops, f.name(), f.service())
		if f.Service.Spec.Type == corev1.ServiceTypeExternalName {
			r.conclude()
			return r
		}
		r.Port = fmt.Sprintf("%d/%s", f.Port.Port, f.protocol())
		r.Hops = append(r.Hops, f.endpoints())
		if !f.headless() {
			r.Hops = append(r.Hops, f.rules())
		}
	} else {
		r.Namespace, r.Name = f.Pod.Namespace, f.Pod.Name
		if f.PodPort != 0 {
			r.Port = fmt.Sprintf("%d/%s", f.PodPort, f.protocol())
		}
	}
	targets, _ := f.Targets()
	for _, e := range targets {
		for _, h := range f.to(e) {
			h.Pod = e.name()
			if e.Addr.IsValid() {
				h.Endpoint = e.Addr.String()
			}
			r.Hops = append(r.Hops, h)
		}
	}
	r.conclude()
	return r
}

func (f Facts) headless() bool { return f.Service.Spec.ClusterIP == corev1.ClusterIPNone }

// name evaluates the answer of cluster DNS.
func (f Facts) name() Hop {
	h := Hop{Name: "name", Verdict: OK, Took: f.Name.Took}
	want := f.addresses()
	switch l := f.Name; {
	case f.From != nil && (f.From.Spec.DNSPolicy == corev1.DNSDefault || f.From.Spec.DNSPolicy == corev1.DNSNone || f.From.Spec.HostNetwork && f.From.Spec.DNSPolicy != corev1.DNSClusterFirstWithHostNet):
		h.Verdict, h.Text = Fails, f.From.Name+" does not use cluster DNS (dnsPolicy: "+string(f.From.Spec.DNSPolicy)+")"
		h.Cure = "set dnsPolicy: ClusterFirst (with hostNetwork: ClusterFirstWithHostNet) for its pods, or use the cluster IP"
	case !l.Done:
		h.Verdict, h.Text = Unknown, "cluster DNS was not queried: "+orReason(l.Err)
	case l.Err != "" && l.Direct:
		h.Verdict, h.Text, h.Cure = Fails, "cluster DNS answers this device, but not the pod: "+l.Err, "rivulet doctor --only pod-network,service-rules"
	case l.Err != "":
		h.Verdict, h.Text, h.Cure = Fails, "cluster DNS does not answer: "+l.Err, "see what the stage dns waits for: rivulet status"
	case l.Code != "" && f.Service.Spec.Type == corev1.ServiceTypeExternalName:
		h.Verdict, h.Text, h.Cure = Fails, l.Name+" leads to "+f.Service.Spec.ExternalName+", which has no address ("+l.Code+")", "correct externalName of the Service, or see the servers in /etc/resolv.conf: rivulet doctor --only dns"
	case (l.Code != "" || len(l.Addrs) == 0) && f.headless():
		// Without endpoints that are ready, a headless Service has no name.
		h.Verdict, h.Text, h.follows = Fails, l.Name+" has no address: none of its endpoints is ready", true
	case l.Code == "SERVFAIL":
		h.Verdict, h.Text, h.Cure = Fails, "cluster DNS cannot answer for "+l.Name+" (SERVFAIL): it has not read the Services yet", "see what the stage dns waits for: rivulet status"
	case l.Code != "":
		h.Verdict, h.Text, h.Cure = Fails, "cluster DNS has no "+l.Name+" ("+l.Code+")", "wait a few seconds if the Service is new; if it stays: systemctl restart rivulet"
	case f.Service.Spec.Type != corev1.ServiceTypeExternalName && !f.headless() && !slices.Equal(l.Addrs, want):
		h.Verdict, h.Text, h.Cure = Fails, fmt.Sprintf("%s is %s, and the Service has %s", l.Name, list(l.Addrs), list(want)), "wait a few seconds if the Service is new; if it stays: systemctl restart rivulet"
	default:
		h.Text = l.Name + " is " + list(l.Addrs)
		if l.Took > slowName {
			h.Verdict, h.Cure = Slow, "see whether the device is busy: rivulet doctor; a name with a dot at its end saves queries"
		}
	}
	return h
}

func (f Facts) addresses() (out []netip.Addr) {
	for _, text := range f.Service.Spec.ClusterIPs {
		if a, err := netip.ParseAddr(text); err == nil {
			out = append(out, a)
		}
	}
	return out
}

// service describes the Service.
func (f Facts) service() Hop {
	s := f.Service
	h := Hop{Name: "service", Verdict: OK}
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		h.Text = "it is another name of " + s.Spec.ExternalName
		return h
	}
	words := []string{string(s.Spec.Type) + " " + s.Spec.ClusterIP}
	if f.headless() {
		words[0] = "headless"
	}
	port := fmt.Sprintf("port %d", f.Port.Port)
	if f.Port.Name != "" {
		port += " (" + f.Port.Name + ")"
	}
	words = append(words, fmt.Sprintf("%s/%s leads to port %s of the pods", port, f.protocol(), f.targetPort()))
	if len(s.Spec.Selector) > 0 {
		words = append(words, "selects "+labels.FormatLabels(s.Spec.Selector))
	} else {
		words = append(words, "no selector: its endpoints are written by hand")
	}
	if s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		words = append(words, "a client stays at its endpoint (sessionAffinity: ClientIP)")
	}
	if p := s.Spec.InternalTrafficPolicy; p != nil && *p == corev1.ServiceInternalTrafficPolicyLocal {
		words = append(words, "internalTrafficPolicy: Local")
	}
	for _, i := range s.Status.LoadBalancer.Ingress {
		words = append(words, "on the LAN at "+i.IP+i.Hostname)
	}
	h.Text = strings.Join(words, ", ")
	return h
}

// endpoints evaluates which addresses the Service leads to. If none is ready, the reason is at a later hop of theirs.
func (f Facts) endpoints() Hop {
	h := Hop{Name: "endpoints", Verdict: OK}
	all := f.Endpoints()
	lead, ready := used(all)
	switch {
	case len(all) == 0:
		h.Verdict = Fails
		h.Text, h.Cure = f.noEndpoints()
		return h
	case len(lead) == 0:
		h.Verdict, h.Text, h.Cure = Fails, fmt.Sprintf("none of %d is used: %s", len(all), all[0].Left), "run a pod of it on the node of its clients, or: set internalTrafficPolicy: Cluster"
		if f.source().away() {
			h.Cure = "lead the Service to a pod at home that forwards to it, or run the pods that need it at home"
		}
		return h
	case !ready:
		h.Verdict, h.follows = Fails, true
		h.Text = fmt.Sprintf("none of %d is ready: %s", len(lead), names(lead))
		h.Cure = "rivulet why svc/" + f.Service.Name + " -n " + f.Service.Namespace
	case lead[0].Ready:
		h.Text = fmt.Sprintf("%d ready: %s", len(lead), names(lead))
	default:
		h.Text = fmt.Sprintf("none is ready; %d that end still serve: %s", len(lead), names(lead))
	}
	for _, e := range all {
		switch {
		case slices.ContainsFunc(lead, func(l Endpoint) bool { return l.Addr == e.Addr }):
		case e.Left != "":
			h.Text += fmt.Sprintf("; %s is left out: %s", e.name(), e.Left)
		case e.Terminating:
			h.Text += "; " + e.name() + " is ending"
		case e.Pod != nil:
			h.Text += "; " + e.name() + " is not ready: " + f.why(e.Pod).What
		default:
			h.Text += "; " + e.name() + " is not ready"
		}
	}
	if n := len(lead) - maxEndpoints; n > 0 {
		h.Text += fmt.Sprintf("; the first %d are followed below", maxEndpoints)
	}
	return h
}

// noEndpoints is the reason that `rivulet why` has.
func (f Facts) noEndpoints() (what, cure string) {
	if f.Service != nil && len(f.Slices) > 0 && len(f.Service.Spec.Selector) == 0 {
		return "its EndpointSlices have no addresses for port " + f.Port.Name, "name the ports of its EndpointSlices like those of the Service"
	}
	about := f.Around
	about.Object, about.Pod = f.Service, nil
	for _, r := range explain.Explain(about).Reasons {
		if r.Code != explain.Fine && r.Code != explain.Address {
			return "there are none: " + r.What, r.Cure
		}
	}
	return "there are none yet", "wait a few seconds; if it stays: rivulet kubectl get endpointslices -n " + f.Service.Namespace
}

func names(all []Endpoint) string {
	var out []string
	for i, e := range all {
		if i == maxEndpoints {
			out = append(out, fmt.Sprintf("and %d more", len(all)-i))
			break
		}
		text := e.Addr.String()
		if e.Pod != nil {
			text += " (" + e.Pod.Name + ", " + e.where() + ")"
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

// rules evaluates those of kube-proxy, and the connection to the cluster IP where all endpoints themselves answer.
func (f Facts) rules() Hop {
	h := Hop{Name: "rules", Verdict: OK, Took: f.Through.Took}
	ip := netip.AddrPortFrom(first(f.addresses()), uint16(f.Port.Port))
	all := f.Endpoints()
	lead, ready := used(all)
	const again = "wait half a minute: rules are made anew by themselves; find out which program removes them: rivulet doctor --only service-rules,iptables"
	answer := 0
	for _, e := range lead {
		if f.Tried[e.Addr].Outcome == Connected {
			answer++
		}
	}
	known := 0
	for _, to := range f.Rules.To {
		if slices.ContainsFunc(lead, func(e Endpoint) bool { return e.Addr == to }) {
			known++
		}
	}
	switch {
	case !f.Rules.Read:
		h.Verdict, h.Text = Unknown, "kube-proxy's rules cannot be read: "+orReason(f.Rules.Err)
	case !ready:
		h.Text = fmt.Sprintf("connections to %s are refused, because no endpoint is ready", ip)
		if f.Rules.Leads {
			h.Text = fmt.Sprintf("%s leads to %d endpoints", ip, len(f.Rules.To))
		}
	case f.Rules.Rejects || !f.Rules.Leads || known == 0:
		h.Verdict, h.Text, h.Cure = Fails, fmt.Sprintf("kube-proxy has no rule that leads %s to an endpoint", ip), again
	case f.Through.Outcome > Connected && answer == len(lead):
		h.Verdict, h.Text, h.Cure = Fails, fmt.Sprintf("%s does not connect (%s), and its endpoints do", ip, f.Through.words()), again
	default:
		h.Text = fmt.Sprintf("%s leads to %d of %d endpoints", ip, known, len(lead))
		if f.Through.Outcome == Connected {
			h.Text += ", and connects"
		}
	}
	return h
}

func (a Attempt) words() string {
	switch a.Outcome {
	case Connected:
		return "connected"
	case Refused:
		return "refused"
	case Silent:
		return fmt.Sprintf("no answer within %s", connectLimit)
	}
	return orReason(a.Err)
}

func orReason(s string) string {
	if s == "" {
		return "no reason is known"
	}
	return s
}

func first(all []netip.Addr) netip.Addr {
	if len(all) == 0 {
		return netip.Addr{}
	}
	return all[0]
}

func list(all []netip.Addr) string {
	var out []string
	for i, a := range all {
		if i == maxEndpoints {
			out = append(out, fmt.Sprintf("and %d more", len(all)-i))
			break
		}
		out = append(out, a.String())
	}
	return strings.Join(out, ", ")
}

// why is the first reason that `rivulet why` has for a pod.
func (f Facts) why(p *corev1.Pod) explain.Reason {
	about := f.Around
	about.Object, about.Pod, about.LeftOut = nil, p, nil
	return explain.Explain(about).Reasons[0]
}
