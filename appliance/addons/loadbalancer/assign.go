package loadbalancer

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"rivulet/fabric/netmon"
)

// Port is protocol and number of a port.
type Port struct {
	Protocol corev1.Protocol `json:"protocol"`
	Number   uint16          `json:"number"`
}

func (p Port) String() string { return fmt.Sprintf("%d/%s", p.Number, p.Protocol) }

// Reasons of events.
const (
	reasonGiven    = "LANAddress"
	reasonNoLAN    = "NoLANAddress"
	reasonReserved = "PortOfDevice"
	reasonListener = "PortInUse"
	reasonConflict = "PortConflict"
	reasonTenant   = "NotLent"
	reasonAddress  = "NotOurAddress"
	reasonFamily   = "NoIPv4"
)

// decision is the result for one Service: addresses, or why it has none.
type decision struct {
	addrs              []netip.Addr
	reason, text, cure string
}

func (d decision) String() string {
	if d.reason != "" {
		return d.text + "; " + d.cure
	}
	var s []string
	for _, a := range d.addrs {
		s = append(s, a.String())
	}
	return "reached from the LAN at " + strings.Join(s, ", ")
}

// situation is the input of decisions beside the Services.
type situation struct {
	addrs    []netip.Addr
	nodes    []Node
	own      map[Port]string
	listener func(Port) (who string, listens bool)
	tenants  map[string]bool // namespaces
}

// assign decides for Services, the oldest first, which has precedence for a port. It has no side effects.
func assign(services []*corev1.Service, in situation) []decision {
	type endpoint struct {
		addr netip.Addr
		port Port
	}
	taken := map[endpoint]string{}
	out := make([]decision, len(services))
	for i, s := range services {
		d := alone(s, in)
		for _, a := range d.addrs {
			for _, p := range portsOf(s) {
				if winner := taken[endpoint{a, p}]; winner != "" && d.reason == "" {
					d = decision{nil, reasonConflict, fmt.Sprintf("port %s belongs to the older Service %s", p, winner), "choose another port, or delete that one"}
				}
			}
		}
		for _, a := range d.addrs {
			for _, p := range portsOf(s) {
				taken[endpoint{a, p}] = s.Namespace + "/" + s.Name
			}
		}
		out[i] = d
	}
	return out
}

// alone decides for a Service as if it were the only one.
func alone(s *corev1.Service, in situation) decision {
	no := func(reason, cure, text string, args ...any) decision {
		return decision{nil, reason, fmt.Sprintf(text, args...), cure}
	}
	if in.tenants[s.Namespace] {
		return no(reasonTenant, "use type ClusterIP, or keep the Service at home", "addresses of this device are not lent to other clusters")
	}
	if !slices.Contains(s.Spec.IPFamilies, corev1.IPv4Protocol) && len(s.Spec.IPFamilies) > 0 {
		return no(reasonFamily, "leave ipFamilies out", "only IPv4 is offered")
	}
	for _, p := range portsOf(s) {
		if what := in.own[p]; what != "" {
			return no(reasonReserved, "choose another port", "port %s is %s on this device", p, what)
		}
		if who, listens := in.listener(p); listens {
			return no(reasonListener, "choose another port, or stop that program", "port %s of this device is listened on%s, which the Service would cut off", p, who)
		}
	}
	addrs := slices.Clone(in.addrs)
	for _, n := range in.nodes { // a port that one of its programs uses stays that program's
		if !slices.Contains(addrs, n.Addr) && !slices.ContainsFunc(portsOf(s), func(p Port) bool { return n.Taken[p] }) {
			addrs = append(addrs, n.Addr)
		}
	}
	if len(addrs) == 0 {
		return no(reasonNoLAN, "plug in a cable or join a Wi-Fi; it goes on by itself", "the device has no address on a LAN")
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	if wish := s.Spec.LoadBalancerIP; wish != "" {
		addr, err := netip.ParseAddr(wish)
		if err != nil || !slices.Contains(addrs, addr) {
			return no(reasonAddress, "leave loadBalancerIP out", "loadBalancerIP %s is no address of this device", wish)
		}
		addrs = []netip.Addr{addr}
	}
	return decision{addrs: addrs}
}

func portsOf(s *corev1.Service) []Port {
	var out []Port
	for _, p := range s.Spec.Ports {
		protocol := p.Protocol
		if protocol == "" {
			protocol = corev1.ProtocolTCP
		}
		out = append(out, Port{protocol, uint16(p.Port)})
	}
	return out
}

// older compares times of creation, which are whole seconds. Of two Services of one second, one that has addresses is the
// older, so that a new Service never takes the port of one in use.
func older(a, b *corev1.Service) int {
	pending := func(s *corev1.Service) int {
		if len(s.Status.LoadBalancer.Ingress) > 0 {
			return 0
		}
		return 1
	}
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(pending(a), pending(b)), cmp.Compare(a.UID, b.UID))
}

// Addresses are those at which the LANs reach the device, sorted. Link-local addresses (169.254) count only if there
// are no others.
func Addresses(lans netmon.LANs) []netip.Addr {
	var out []netip.Addr
	for _, lan := range lans {
		var good, makeshift []netip.Addr
		for _, p := range lan.Addrs {
			switch a := p.Addr(); {
			case !a.Is4() || a.IsLoopback():
			case a.IsLinkLocalUnicast():
				makeshift = append(makeshift, a)
			default:
				good = append(good, a)
			}
		}
		if len(good) == 0 {
			good = makeshift
		}
		out = append(out, good...)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}
