package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"rivulet/offload/consumer/pod/translate"
)

// service explains whether a Service has endpoints and is reachable.
func (f Facts) service(s *corev1.Service) subject {
	ready := 0
	for _, p := range f.behind(s) {
		if isReady(&p) {
			ready++
		}
	}
	fine := fmt.Sprintf("it leads to %d ready pods", ready) + undeclared(s, f.behind(s))
	switch {
	case s.Spec.Type == corev1.ServiceTypeExternalName:
		fine = "it is another name of " + s.Spec.ExternalName
	case len(s.Spec.Selector) == 0:
		fine = "it leads to the addresses that somebody has written"
	}
	return subject{"Service", s.ObjectMeta, string(s.Spec.Type), append(f.endpoints(s), f.unassigned(s)...), fine}
}

// behind are the pods that a Service selects.
func (f Facts) behind(s *corev1.Service) []corev1.Pod {
	if len(s.Spec.Selector) == 0 {
		return nil
	}
	is := labels.SelectorFromSet(s.Spec.Selector)
	return f.podsOf(s.Namespace, func(p *corev1.Pod) bool { return !over(p) && is.Matches(labels.Set(p.Labels)) })
}

// endpoints is why a Service has no endpoints.
func (f Facts) endpoints(s *corev1.Service) []Reason {
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	if len(s.Spec.Selector) == 0 {
		for i := range f.Slices {
			if e := &f.Slices[i]; e.Labels[discoveryv1.LabelServiceName] == s.Name && len(e.Endpoints) > 0 {
				return nil
			}
		}
		return []Reason{{Endpoints, "it has no selector, and no addresses are written for it", "give it a selector, or make an EndpointSlice with the label " + discoveryv1.LabelServiceName + "=" + s.Name}}
	}
	pods := f.behind(s)
	if len(pods) == 0 {
		return []Reason{{Endpoints, "no pod has the labels that it selects (" + labels.FormatLabels(s.Spec.Selector) + ")", f.otherLabels(s)}}
	}
	if !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return isReady(&p) && p.DeletionTimestamp == nil }) {
		why := f.worst(pods)
		if len(why) == 0 {
			return []Reason{{Endpoints, "none of its pods is ready", "rivulet kubectl describe endpointslices -n " + s.Namespace + " -l " + discoveryv1.LabelServiceName + "=" + s.Name}}
		}
		why[0].What = "none of its pods is ready: " + why[0].What
		return why
	}
	return wrongPort(s, pods)
}

// otherLabels is the cure of a selector: the labels that all of the pods have.
func (f Facts) otherLabels(s *corev1.Service) string {
	have := map[string]string{}
	for _, p := range f.podsOf(s.Namespace, func(p *corev1.Pod) bool { return !over(p) }) {
		set := map[string]string{}
		for key := range s.Spec.Selector {
			if p.Labels[key] != "" {
				set[key] = p.Labels[key]
			}
		}
		if len(set) < len(s.Spec.Selector) {
			continue
		}
		if text := strings.ReplaceAll(labels.FormatLabels(set), ", ", ","); len(have) == 0 || have[text] != "" {
			have[text] = text
		} else {
			have = nil
			break
		}
	}
	for text := range have {
		return "have it select the pods that there are: rivulet kubectl set selector -n " + s.Namespace + " service " + s.Name + " " + text
	}
	return "start its pods, or correct the selector: rivulet kubectl get pods -n " + s.Namespace + " --show-labels"
}

// wrongPort explains a target port whose name no pod has. A number needs no declaration.
func wrongPort(s *corev1.Service, pods []corev1.Pod) (out []Reason) {
	ports := declared(pods)
	for i, p := range s.Spec.Ports {
		name := p.TargetPort.StrVal
		if p.TargetPort.Type != intstr.String || slices.ContainsFunc(ports, func(c corev1.ContainerPort) bool { return c.Name == name && sameProtocol(c, p) }) {
			continue
		}
		var there []string
		for _, c := range ports {
			if text := cmp.Or(c.Name, strconv.Itoa(int(c.ContainerPort))); sameProtocol(c, p) && !slices.Contains(there, text) {
				there = append(there, text)
			}
		}
		what, cure := fmt.Sprintf("no pod of it declares port %s", name), "correct targetPort in the Service: rivulet kubectl edit service -n "+s.Namespace+" "+s.Name
		if len(there) > 0 {
			what += "; there is " + strings.Join(there, ", ")
		}
		if len(there) == 1 {
			value := strconv.Quote(there[0])
			if _, err := strconv.Atoi(there[0]); err == nil {
				value = there[0]
			}
			cure = fmt.Sprintf(`rivulet kubectl patch service -n %s %s --type json -p '[{"op":"replace","path":"/spec/ports/%d/targetPort","value":%s}]'`, s.Namespace, s.Name, i, value)
		}
		out = append(out, Reason{Endpoints, what, cure})
	}
	return out
}

// undeclared is a remark about a target port by number that no pod declares, though its pods declare others: allowed, and
// a usual mistake. It is not a reason, since a program may listen there.
func undeclared(s *corev1.Service, pods []corev1.Pod) string {
	ports := declared(pods)
	for _, p := range s.Spec.Ports {
		number := cmp.Or(p.TargetPort.IntVal, p.Port)
		if p.TargetPort.Type != intstr.Int || len(ports) == 0 || s.Spec.ClusterIP == corev1.ClusterIPNone ||
			slices.ContainsFunc(ports, func(c corev1.ContainerPort) bool { return c.ContainerPort == number && sameProtocol(c, p) }) {
			continue
		}
		return fmt.Sprintf("; none of them declares port %d, which need not be declared; to try it: rivulet trace %s/%s", number, s.Namespace, s.Name)
	}
	return ""
}

// declared returns the ports of the containers of pods that run as long as their pods do.
func declared(pods []corev1.Pod) (out []corev1.ContainerPort) {
	for i := range pods {
		for c := range translate.KeepRunning(&pods[i]) {
			out = append(out, c.Ports...)
		}
	}
	return out
}

func sameProtocol(c corev1.ContainerPort, s corev1.ServicePort) bool {
	return cmp.Or(c.Protocol, corev1.ProtocolTCP) == cmp.Or(s.Protocol, corev1.ProtocolTCP)
}

// unassigned explains a Service for the LAN without an address there.
func (f Facts) unassigned(s *corev1.Service) []Reason {
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer || len(s.Status.LoadBalancer.Ingress) > 0 {
		return nil
	}
	if p := f.problem("service-pending", s.Namespace+"/"+s.Name); p != nil {
		return []Reason{{Address, "it has no address: " + p.Text, p.Cure}}
	}
	for i := range f.Events {
		if e := &f.Events[i]; e.InvolvedObject.UID == s.UID && e.Type == corev1.EventTypeWarning {
			what, cure, _ := strings.Cut(f.eventOf([]types.UID{s.UID}, e.Reason), "; ")
			return []Reason{{Address, "it has no address: " + what, cure}}
		}
	}
	return []Reason{{Address, "it has no address yet", "see that loadBalancer is not switched off: rivulet config show"}}
}
