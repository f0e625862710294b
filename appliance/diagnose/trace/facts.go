package trace

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"rivulet/appliance/api"
	"rivulet/fabric/tunnel"
	"rivulet/offload/consumer/explain"
	"rivulet/offload/networkpolicy"
	"rivulet/offload/policy"
)

// Facts are the input of a report. All objects are home's.
type Facts struct {
	// Service is followed on its port Port; nil: the pod Pod is, on PodPort (0: it has none).
	Service *corev1.Service
	Port    corev1.ServicePort
	Pod     *corev1.Pod
	PodPort uint16
	// From is the pod from which the connection is opened; nil is this device. Inside: attempts were made from inside
	// that pod's network.
	From   *corev1.Pod
	Inside bool

	Slices []discoveryv1.EndpointSlice // of Service
	// Around are the facts of `rivulet why` about the Service or the pod: Nodes, Pods, Links, Events and so on.
	Around explain.Facts
	Home   string // the name of home's node
	Peers  []api.Peer
	Tunnel *tunnel.Status
	// Policies is nil before they are known.
	Policies *networkpolicy.World
	// Unheld are NetworkPolicies that a target does not enforce, by namespace/name, with the reason.
	Unheld map[string]string

	Name    Lookup
	Rules   Rules
	Through Attempt // a connection to the Service's cluster IP
	Tried   map[netip.AddrPort]Attempt
	// Listening are the sockets that listen in a pod of this device, by address of the pod; nil if unknown.
	Listening map[netip.Addr][]netip.AddrPort
}

// Lookup is a query of the Service's name.
type Lookup struct {
	Done  bool
	Name  string
	Took  time.Duration
	Addrs []netip.Addr
	// Code is the answer's, such as NXDOMAIN; empty is success. Err is why there is no answer.
	Code, Err string
	// Direct: cluster DNS answers this device, by its own address. It is queried if the pod gets no answer.
	Direct bool
}

// Rules are those of kube-proxy for one port of the Service.
type Rules struct {
	Read bool
	Err  string // not Read
	// Leads: there is a rule for the port. Rejects: connections are refused. To are the endpoints.
	Leads, Rejects bool
	To             []netip.AddrPort
}

// Outcome of an attempt to connect.
type Outcome int

const (
	Untried Outcome = iota
	Connected
	Refused
	Silent      // no answer within the limit
	Unreachable // the network reports it
)

// Attempt is a connection that was opened and closed.
type Attempt struct {
	Outcome Outcome
	Took    time.Duration
	Err     string // of Unreachable, and the reason of Untried
}

// Endpoint is one address behind a Service, or the pod that is followed.
type Endpoint struct {
	Addr netip.AddrPort
	Pod  *corev1.Pod // nil: not a pod
	Node *corev1.Node
	// Peer is the cluster where it runs; nil: at home, or at a target that is not a peer.
	Peer                        *api.Peer
	Ready, Serving, Terminating bool
	// Left is why it is not used for connections, beside not being ready.
	Left string
}

// away reports whether the endpoint is on another cluster.
func (e Endpoint) away() bool { return e.Node != nil && e.Node.Labels[policy.VirtualNodeLabel] != "" }

// where is the name of the cluster where it runs.
func (e Endpoint) where() string {
	switch {
	case e.Peer != nil:
		return e.Peer.Name
	case e.away():
		return cmp.Or(e.Node.Labels[policy.TargetLabel], e.Node.Name)
	}
	return "home"
}

func (e Endpoint) name() string {
	if e.Pod != nil {
		return e.Pod.Name
	}
	return e.Addr.String()
}

// protocol of the port that is followed.
func (f Facts) protocol() corev1.Protocol {
	if f.Service != nil {
		return cmp.Or(f.Port.Protocol, corev1.ProtocolTCP)
	}
	return corev1.ProtocolTCP
}

// Endpoints are all of the Service, or the pod, in the order of their addresses.
func (f Facts) Endpoints() (out []Endpoint) {
	if f.Service == nil {
		addr, _ := netip.ParseAddr(f.Pod.Status.PodIP)
		ready := isReady(f.Pod)
		return []Endpoint{f.at(Endpoint{Addr: netip.AddrPortFrom(addr, f.PodPort), Pod: f.Pod, Ready: ready, Serving: ready}, f.Pod.Spec.NodeName)}
	}
	for i := range f.Slices {
		s := &f.Slices[i]
		port := portOf(s, f.Port)
		if port == 0 {
			continue
		}
		for _, e := range s.Endpoints {
			one := Endpoint{Ready: e.Conditions.Ready == nil || *e.Conditions.Ready, Terminating: e.Conditions.Terminating != nil && *e.Conditions.Terminating}
			one.Serving = one.Ready || e.Conditions.Serving != nil && *e.Conditions.Serving
			node := ""
			if e.NodeName != nil {
				node = *e.NodeName
			}
			for _, text := range e.Addresses {
				addr, err := netip.ParseAddr(text)
				if err != nil {
					continue // a name
				}
				one.Addr, one.Pod = netip.AddrPortFrom(addr.Unmap(), port), f.podAt(s.Namespace, addr.Unmap())
				at := node
				if one.Pod != nil {
					at = one.Pod.Spec.NodeName
				}
				out = append(out, f.left(f.at(one, at)))
			}
		}
	}
	slices.SortFunc(out, func(a, b Endpoint) int { return a.Addr.Compare(b.Addr) })
	return slices.CompactFunc(out, func(a, b Endpoint) bool { return a.Addr == b.Addr })
}

// portOf is the number of a Service's port in a slice, 0 if it has none.
func portOf(s *discoveryv1.EndpointSlice, port corev1.ServicePort) uint16 {
	for _, p := range s.Ports {
		name, protocol := "", corev1.ProtocolTCP
		if p.Name != nil {
			name = *p.Name
		}
		if p.Protocol != nil {
			protocol = *p.Protocol
		}
		if name == port.Name && protocol == cmp.Or(port.Protocol, corev1.ProtocolTCP) && p.Port != nil {
			return uint16(*p.Port)
		}
	}
	return 0
}

// podAt is the pod of the namespace with an address; nil if there is none.
func (f Facts) podAt(namespace string, addr netip.Addr) *corev1.Pod {
	for i := range f.Around.Pods {
		p := &f.Around.Pods[i]
		if a, err := netip.ParseAddr(p.Status.PodIP); err == nil && a == addr && p.Namespace == namespace && !finished(p) {
			return p
		}
	}
	return nil
}

// at adds where an endpoint runs.
func (f Facts) at(e Endpoint, node string) Endpoint {
	e.Node = f.node(node)
	if e.away() {
		e.Peer = f.peer(e.Node.Labels[policy.VirtualNodeLabel])
	}
	return e
}

func (f Facts) node(name string) *corev1.Node {
	for i := range f.Around.Nodes {
		if f.Around.Nodes[i].Name == name {
			return &f.Around.Nodes[i]
		}
	}
	return nil
}

func (f Facts) peer(id string) *api.Peer {
	for i := range f.Peers {
		if string(f.Peers[i].ID) == id {
			return &f.Peers[i]
		}
	}
	return nil
}

// source is where the connection begins: From as an endpoint; home's node without one.
func (f Facts) source() Endpoint {
	if f.From == nil {
		return Endpoint{Node: f.node(f.Home)}
	}
	addr, _ := netip.ParseAddr(f.From.Status.PodIP)
	return f.at(Endpoint{Addr: netip.AddrPortFrom(addr, 0), Pod: f.From}, f.From.Spec.NodeName)
}

// left adds why kube-proxy, or the reflection to the source's cluster, does not use an endpoint.
func (f Facts) left(e Endpoint) Endpoint {
	from := f.source()
	local := f.Service.Spec.InternalTrafficPolicy != nil && *f.Service.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
	switch {
	case local && (e.Node == nil || from.Node == nil || e.Node.Name != from.Node.Name):
		e.Left = "internalTrafficPolicy is Local, and it runs elsewhere"
	case from.away() && (e.Pod == nil || e.Pod.Spec.HostNetwork):
		e.Left = "only pods have addresses that are reached from other clusters"
	}
	return e
}

// used are the endpoints that connections lead to: those that are ready; if there are none, those that are ending and
// still serve; false with all others if there are none of these either.
func used(all []Endpoint) (out []Endpoint, lead bool) {
	for _, is := range []func(Endpoint) bool{
		func(e Endpoint) bool { return e.Ready && e.Left == "" },
		func(e Endpoint) bool { return e.Serving && e.Terminating && e.Left == "" },
	} {
		for _, e := range all {
			if is(e) {
				out = append(out, e)
			}
		}
		if len(out) > 0 {
			return out, true
		}
	}
	for _, e := range all {
		if e.Left == "" {
			out = append(out, e)
		}
	}
	return out, false
}

// Targets are the endpoints that are followed, at most maxEndpoints; more is how many are not.
func (f Facts) Targets() (out []Endpoint, more int) {
	out, _ = used(f.Endpoints())
	if n := len(out) - maxEndpoints; n > 0 {
		return out[:maxEndpoints], n
	}
	return out, 0
}

// targetPort is the port of the pods in words.
func (f Facts) targetPort() string {
	if t := f.Port.TargetPort; t != (intstr.IntOrString{}) {
		return t.String()
	}
	return fmt.Sprint(f.Port.Port)
}

func isReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}
