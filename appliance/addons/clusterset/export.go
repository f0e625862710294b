package clusterset

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

const (
	// maxExports, maxEndpoints and maxLine (bytes) bound what one cluster exports.
	maxExports, maxEndpoints, maxLine = 256, 4096, 2 << 20
	// maxStrangerLine bounds a line of a peer that is trusted by the LAN alone, of which there may be hundreds.
	maxStrangerLine = 128 << 10
	// maxPorts and maxMeta bound the ports, and the labels or annotations, of one export.
	maxPorts, maxMeta = 64, 32
	// maxValue bounds an annotation, bytes.
	maxValue = 1024
)

// message is one line of GET /v1/exports.
type message struct {
	// Exports are all of the cluster's; nil in a heartbeat, which changes nothing.
	Exports *[]Export `json:"exports,omitempty"`
}

// Export is one exported Service.
type Export struct {
	Namespace             string                               `json:"namespace"`
	Name                  string                               `json:"name"`
	Headless              bool                                 `json:"headless,omitempty"`
	Ports                 []mcs.ServicePort                    `json:"ports,omitempty"`
	SessionAffinity       corev1.ServiceAffinity               `json:"sessionAffinity,omitempty"`
	AffinityConfig        *corev1.SessionAffinityConfig        `json:"sessionAffinityConfig,omitempty"`
	InternalTrafficPolicy *corev1.ServiceInternalTrafficPolicy `json:"internalTrafficPolicy,omitempty"`
	TrafficDistribution   *string                              `json:"trafficDistribution,omitempty"`
	Labels                map[string]string                    `json:"labels,omitempty"`
	Annotations           map[string]string                    `json:"annotations,omitempty"`
	Slices                []Slice                              `json:"slices,omitempty"`
}

// Slice are endpoints with the same ports.
type Slice struct {
	Ports     []discoveryv1.EndpointPort `json:"ports"`
	Endpoints []Endpoint                 `json:"endpoints"`
}

// Endpoint is one pod. Its address is in the view of the cluster that has it.
type Endpoint struct {
	Address     netip.Addr `json:"address"`
	Hostname    string     `json:"hostname,omitempty"`
	Ready       bool       `json:"ready,omitempty"`
	Serving     bool       `json:"serving,omitempty"`
	Terminating bool       `json:"terminating,omitempty"`
}

// room is what one cluster's exports have of what its peers accept.
type room struct{ exports, endpoints, bytes int }

// take reports whether one more export is within the bounds.
func (r *room) take(e Export) bool {
	raw, err := json.Marshal(e)
	next := room{r.exports + 1, r.endpoints, r.bytes + len(raw) + 1}
	for _, s := range e.Slices {
		next.endpoints += len(s.Endpoints)
	}
	if err != nil || next.exports > maxExports || next.endpoints > maxEndpoints || next.bytes > maxLine-1024 {
		return false
	}
	*r = next
	return true
}

// checked returns the valid exports of another cluster, and what is wrong with others.
func checked(all []Export) (valid []Export, err error) {
	faults := 0
	fault := func(e error) { // the first is enough to read
		if faults++; err == nil {
			err = e
		}
	}
	seen, endpoints := map[[2]string]bool{}, 0
	for _, e := range all {
		key := [2]string{e.Namespace, e.Name}
		if seen[key] {
			continue
		}
		seen[key] = true
		for _, s := range e.Slices {
			endpoints += len(s.Endpoints)
		}
		if len(valid) == maxExports || endpoints > maxEndpoints {
			fault(fmt.Errorf("more than %d exports or %d endpoints; the rest does not count", maxExports, maxEndpoints))
			break
		}
		if err := e.check(); err != nil {
			fault(fmt.Errorf("export %.80q of namespace %.80q: %w", e.Name, e.Namespace, err))
			continue
		}
		valid = append(valid, e)
	}
	if faults > 1 {
		err = fmt.Errorf("%w; and %d more", err, faults-1)
	}
	return valid, err
}

func (e Export) check() error {
	switch {
	case len(validation.IsDNS1123Label(e.Namespace)) > 0:
		return errors.New("not the name of a namespace")
	case len(validation.IsDNS1035Label(e.Name)) > 0:
		return errors.New("not the name of a Service")
	case len(e.Ports) > maxPorts:
		return fmt.Errorf("%d ports; at most %d are taken", len(e.Ports), maxPorts)
	case len(e.Ports) == 0 && !e.Headless:
		return errors.New("no ports")
	case !slices.Contains([]corev1.ServiceAffinity{"", corev1.ServiceAffinityNone, corev1.ServiceAffinityClientIP}, e.SessionAffinity):
		return errors.New("session affinity of an unknown kind")
	case e.AffinityConfig != nil && e.SessionAffinity != corev1.ServiceAffinityClientIP:
		return errors.New("a configuration of session affinity without session affinity")
	}
	if c := e.AffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil && (*c.ClientIP.TimeoutSeconds < 1 || *c.ClientIP.TimeoutSeconds > 86400) {
		return errors.New("a timeout of session affinity beyond a day")
	}
	if p := e.InternalTrafficPolicy; p != nil && *p != corev1.ServiceInternalTrafficPolicyCluster && *p != corev1.ServiceInternalTrafficPolicyLocal {
		return errors.New("an unknown internal traffic policy")
	}
	if d := e.TrafficDistribution; d != nil && len(validation.IsValidLabelValue(*d)) > 0 {
		return errors.New("an unknown traffic distribution")
	}
	names := map[string]bool{}
	for _, p := range e.Ports {
		if names[p.Name] || p.Name == "" && len(e.Ports) > 1 {
			return errors.New("ports without a name of their own")
		}
		names[p.Name] = true
		if err := checkPort(p.Name, p.Protocol, p.Port, p.AppProtocol); err != nil {
			return err
		}
	}
	if err := errors.Join(checkMeta("label", e.Labels, validation.IsValidLabelValue), checkMeta("annotation", e.Annotations, func(v string) []string {
		if len(v) > maxValue {
			return []string{"too long"}
		}
		return nil
	})); err != nil {
		return err
	}
	for _, s := range e.Slices {
		if len(s.Ports) > maxPorts || len(s.Endpoints) > 1000 {
			return errors.New("too many ports or endpoints in a slice")
		}
		names := map[string]bool{}
		for _, p := range s.Ports {
			if p.Name == nil || p.Protocol == nil || p.Port == nil || names[*p.Name] {
				return errors.New("a port of endpoints without a name of its own, protocol or number")
			}
			names[*p.Name] = true
			if err := checkPort(*p.Name, *p.Protocol, *p.Port, p.AppProtocol); err != nil {
				return err
			}
		}
		for _, p := range s.Endpoints {
			if !p.Address.Is4() || p.Hostname != "" && len(validation.IsDNS1123Label(p.Hostname)) > 0 {
				return errors.New("an endpoint without a valid address or hostname")
			}
		}
	}
	return nil
}

func checkPort(name string, protocol corev1.Protocol, port int32, app *string) error {
	if name != "" && len(validation.IsDNS1123Label(name)) > 0 || port < 1 || port > 65535 ||
		!slices.Contains([]corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}, protocol) ||
		app != nil && len(validation.IsQualifiedName(*app)) > 0 {
		return fmt.Errorf("port %.40q %.10q %d is none", name, protocol, port)
	}
	return nil
}

// checkMeta refuses keys that mean something to Kubernetes, the API of cluster sets or Rivulet.
func checkMeta(what string, all map[string]string, value func(string) []string) error {
	if len(all) > maxMeta {
		return fmt.Errorf("%d %ss; at most %d are taken", len(all), what, maxMeta)
	}
	for k, v := range all {
		if len(validation.IsQualifiedName(k)) > 0 || len(value(v)) > 0 || owned(k) {
			return fmt.Errorf("%s %.80q is not taken", what, k)
		}
	}
	return nil
}

// owned reports whether a key of labels or annotations is of Kubernetes, the API of cluster sets or Rivulet.
func owned(key string) bool {
	domain, _, qualified := strings.Cut(key, "/")
	return qualified && slices.ContainsFunc([]string{"kubernetes.io", "k8s.io", "x-k8s.io", "rivulet.dev"}, func(of string) bool {
		return domain == of || strings.HasSuffix(domain, "."+of)
	})
}
