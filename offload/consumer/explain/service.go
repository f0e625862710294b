package explain

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// service explains whether a Service has endpoints and is reachable.
func (f Facts) service(s *corev1.Service) subject {
	ready := 0
	for _, p := range f.behind(s) {
		if isReady(&p) {
			ready++
		}
	}
	fine := fmt.Sprintf("it leads to %d ready pods", ready)
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
	return f.wrongPort(s, pods)
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

// wrongPort explains a target port that no pod has.
func (f Facts) wrongPort(s *corev1.Service, pods []corev1.Pod) (out []Reason) {
	var ports []corev1.ContainerPort
	for i := range pods {
		for k := range pods[i].Spec.Containers {
			ports = append(ports, pods[i].Spec.Containers[k].Ports...)
		}
	}
	var there []string
	for _, p := range ports {
		text := fmt.Sprint(p.ContainerPort)
		if p.Name != "" {
			text = p.Name
		}
		if !slices.Contains(there, text) {
			there = append(there, text)
		}
	}
	for i, p := range s.Spec.Ports {
		target := p.TargetPort
		has := slices.ContainsFunc(ports, func(c corev1.ContainerPort) bool {
			return target.Type == intstr.String && c.Name == target.StrVal || target.Type == intstr.Int && c.ContainerPort == target.IntVal
		})
		if has || len(ports) == 0 && target.Type == intstr.Int || s.Spec.ClusterIP == corev1.ClusterIPNone && target.Type == intstr.Int {
			continue
		}
		what, cure := fmt.Sprintf("no pod of it declares port %s", target.String()), "correct targetPort in the Service"
		if len(there) > 0 {
			what += "; there is " + strings.Join(there, ", ")
		}
		if len(there) == 1 {
			value := `"` + there[0] + `"`
			if ports[0].Name == "" {
				value = there[0]
			}
			cure = fmt.Sprintf(`rivulet kubectl patch service -n %s %s --type json -p '[{"op":"replace","path":"/spec/ports/%d/targetPort","value":%s}]'`, s.Namespace, s.Name, i, value)
		}
		out = append(out, Reason{Endpoints, what, cure})
	}
	return out
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
