package external

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// prepare completes the template of a pod for the rules of the namespace, as far as that does not change what the pod
// does. Other pods are refused: the error names each field that is the reason.
func (t *Target) prepare(home string, template map[string]any) error {
	now := t.rules.get()
	spec, _ := template["spec"].(map[string]any)
	if spec == nil {
		return errors.New("a template without a spec")
	}
	if t.cfg.Settings.Security == SecurityRestricted || t.cfg.Settings.Security == SecurityAuto && now.security == "restricted" {
		if err := restrict(spec); err != nil {
			return err
		}
	}
	request(spec, demanded(now.quotas), given(now.limits))
	if t.cfg.Network == nil {
		return nil
	}
	if policy, _ := spec["dnsPolicy"].(string); policy != "" && policy != string(corev1.DNSClusterFirst) {
		return nil // it uses another DNS, or was prepared already
	}
	dns, ok := t.cfg.Network.DNS(home)
	if !ok {
		return errors.New("the gateway there is not ready yet, so names of home would not be found; see rivulet burst status")
	}
	if dns != nil {
		spec["dnsPolicy"] = string(corev1.DNSNone)
		spec["dnsConfig"] = dnsOf(dns, spec["dnsConfig"])
	}
	return nil
}

// dnsOf merges the gateway's configuration with the pod's own.
func dnsOf(dns *corev1.PodDNSConfig, own any) map[string]any {
	servers, searches, options := []any{}, []any{}, []any{}
	for _, s := range dns.Nameservers {
		servers = append(servers, s)
	}
	for _, s := range dns.Searches {
		searches = append(searches, s)
	}
	for _, o := range dns.Options {
		option := map[string]any{"name": o.Name}
		if o.Value != nil {
			option["value"] = *o.Value
		}
		options = append(options, option)
	}
	if had, ok := own.(map[string]any); ok {
		more := func(key string) []any { list, _ := had[key].([]any); return list }
		servers, searches, options = append(servers, more("nameservers")...), append(searches, more("searches")...), append(options, more("options")...)
	}
	return map[string]any{"nameservers": servers, "searches": searches, "options": options}
}

// restrict sets what the Pod Security level "restricted" requires explicitly, and what is true of compatible pods
// anyway: they run as an ordinary user, without capabilities and without further rights. Whether the image supports
// that is found at its start; its kubelet reports it.
func restrict(spec map[string]any) error {
	var faults []string
	pod := child(spec, "securityContext")
	fault := func(path, why string) { faults = append(faults, path+" ("+why+")") }
	check := func(path string, c map[string]any) {
		if v, ok := c["runAsNonRoot"].(bool); ok && !v {
			fault(path+".runAsNonRoot", "must not be false")
		}
		if id := fmt.Sprint(c["runAsUser"]); c["runAsUser"] != nil && id == "0" {
			fault(path+".runAsUser", "must not be 0")
		}
		if profile, ok := c["seccompProfile"].(map[string]any); ok && profile["type"] == "Unconfined" {
			fault(path+".seccompProfile", "must not be Unconfined")
		}
	}
	check("spec.securityContext", pod)
	for _, list := range []string{"initContainers", "containers"} {
		items, _ := spec[list].([]any)
		for i, item := range items {
			c, ok := item.(map[string]any)
			if !ok {
				continue
			}
			path, own := fmt.Sprintf("spec.%s[%d].securityContext", list, i), child(c, "securityContext")
			check(path, own)
			if v, ok := own["allowPrivilegeEscalation"].(bool); ok && v {
				fault(path+".allowPrivilegeEscalation", "must be false")
			}
			own["allowPrivilegeEscalation"] = false
			capabilities := child(own, "capabilities")
			added, _ := capabilities["add"].([]any)
			for _, a := range added {
				if a != "NET_BIND_SERVICE" {
					fault(path+".capabilities.add", fmt.Sprintf("%v is not allowed", a))
				}
			}
			if dropped, _ := capabilities["drop"].([]any); !slices.Contains(dropped, any("ALL")) {
				capabilities["drop"] = append(dropped, "ALL")
			}
		}
	}
	if len(faults) > 0 {
		return fmt.Errorf("the namespace enforces the Pod Security level restricted, and in the way are %s; remove the fields, or keep the pod at home (label rivulet.dev/offload=off in its template)", strings.Join(faults, ", "))
	}
	if _, said := pod["runAsNonRoot"]; !said {
		pod["runAsNonRoot"] = true
	}
	if _, said := pod["seccompProfile"]; !said {
		pod["seccompProfile"] = map[string]any{"type": "RuntimeDefault"}
	}
	return nil
}

// child returns the object under the key, and makes it if it is missing.
func child(o map[string]any, key string) map[string]any {
	next, ok := o[key].(map[string]any)
	if !ok {
		next = map[string]any{}
		o[key] = next
	}
	return next
}

// demanded are the resources for which quotas require a request of every pod.
func demanded(quotas []corev1.ResourceQuota) []string {
	var out []string
	for i := range quotas {
		for key := range quotas[i].Spec.Hard {
			name := strings.TrimPrefix(string(key), corev1.DefaultResourceRequestsPrefix)
			if name == string(corev1.ResourceCPU) || name == string(corev1.ResourceMemory) || name == string(corev1.ResourceEphemeralStorage) {
				out = append(out, name)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// given are the resources that containers get a request of by the namespace's defaults.
func given(limits []corev1.LimitRange) map[string]bool {
	out := map[string]bool{}
	for i := range limits {
		for _, l := range limits[i].Spec.Limits {
			if l.Type != corev1.LimitTypeContainer {
				continue
			}
			for _, list := range []corev1.ResourceList{l.DefaultRequest, l.Default} {
				for name := range list {
					out[string(name)] = true
				}
			}
		}
	}
	return out
}

// request adds explicit zero requests to containers without any, if a quota requires it.
func request(spec map[string]any, demanded []string, given map[string]bool) {
	zero := resource.NewQuantity(0, resource.DecimalSI).String()
	for _, list := range []string{"initContainers", "containers"} {
		items, _ := spec[list].([]any)
		for _, item := range items {
			c, ok := item.(map[string]any)
			if !ok {
				continue
			}
			for _, name := range demanded {
				resources := child(c, "resources")
				limits, _ := resources["limits"].(map[string]any)
				requests := child(resources, "requests")
				if requests[name] == nil && limits[name] == nil && !given[name] {
					requests[name] = zero
				}
			}
		}
	}
}
