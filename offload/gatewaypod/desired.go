package gatewaypod

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"rivulet/fabric/gateway/gatewayproto"
)

// maxHosts bounds the pods of home with a host name that get an address of their own at the campus, each a Service
// there. The others share their Service's.
const maxHosts = 200

// desired are home's Services with their endpoints, as the gateway has to serve them. Ports keep their previous
// numbers. Addresses are set later (place). It is pure.
func desired(all []*corev1.Service, ends []*discoveryv1.EndpointSlice, was map[string]gatewayproto.Service, home, prefix netip.Prefix) map[string]gatewayproto.Service {
	reach := func(a netip.Addr) bool { return home.Contains(a) || prefix.Contains(a) }
	used := heldBy(was)
	behind := map[string][]*discoveryv1.EndpointSlice{}
	for _, e := range ends {
		key := e.Namespace + "/" + e.Labels[discoveryv1.LabelServiceName]
		behind[key] = append(behind[key], e)
	}
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b *corev1.Service) int { return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name) })
	out := map[string]gatewayproto.Service{}
	hosts := maxHosts
	for _, s := range all {
		key := s.Namespace + "/" + s.Name
		service := gatewayproto.Service{Namespace: s.Namespace, Name: s.Name}
		switch {
		case s.Spec.Type == corev1.ServiceTypeExternalName:
			service.External = s.Spec.ExternalName
		case s.Spec.ClusterIP == corev1.ClusterIPNone:
			service.Headless = true
			service.Ports = used.open(was[key].Ports, headlessPorts(s, behind[key], reach))
			service.Hosts = hostsOf(behind[key], reach)
			before := map[string][]gatewayproto.Port{}
			for _, h := range was[key].Hosts {
				before[h.Name] = h.Ports
			}
			for i := range service.Hosts {
				h := &service.Hosts[i]
				if named(*h) && home.Contains(h.Pod) && hosts > 0 {
					hosts--
					h.Ports = used.open(before[h.Name], h.Ports)
					continue
				}
				for j := range h.Ports {
					h.Ports[j].Endpoints = nil // the gateway does not forward there
				}
			}
		default:
			var ports []gatewayproto.Port
			for _, p := range s.Spec.Ports {
				if protocol, ok := protocolOf(p.Protocol); ok {
					ports = append(ports, gatewayproto.Port{Name: p.Name, Protocol: protocol, Port: uint16(p.Port), Endpoints: endpoints(behind[key], p.Name, protocol, reach)})
				}
			}
			service.Ports = used.open(was[key].Ports, ports)
		}
		out[key] = service
	}
	return out
}

// place sets the addresses at the campus. make makes the Service there of a name and its ports; it returns an invalid
// address if there is none yet.
func place(want map[string]gatewayproto.Service, prefix netip.Prefix, make func(namespace, name string, ports []gatewayproto.Port) netip.Addr) {
	for _, key := range slices.Sorted(maps.Keys(want)) {
		s := want[key]
		if len(s.Ports) > 0 { // a Service needs a port
			s.IP = make(s.Namespace, s.Name, s.Ports)
		}
		for i := range s.Hosts {
			switch h := &s.Hosts[i]; {
			case prefix.Contains(h.Pod): // it is there
			case own(*h):
				h.IP = make(s.Namespace, s.Name+"."+h.Name, h.Ports)
			default:
				h.IP = s.IP
			}
		}
		want[key] = s
	}
}

// protocolOf is the gateway's name of a protocol; it does not support SCTP.
func protocolOf(p corev1.Protocol) (string, bool) {
	switch p {
	case corev1.ProtocolTCP, "":
		return "tcp", true
	case corev1.ProtocolUDP:
		return "udp", true
	}
	return "", false
}

// headlessPorts are those of a headless Service with the numbers of its pods: nothing translates a port on the way to
// them.
func headlessPorts(s *corev1.Service, behind []*discoveryv1.EndpointSlice, reach func(netip.Addr) bool) (out []gatewayproto.Port) {
	for _, p := range s.Spec.Ports {
		protocol, ok := protocolOf(p.Protocol)
		if !ok {
			continue
		}
		ends := endpoints(behind, p.Name, protocol, reach)
		number := uint16(p.Port)
		if p.TargetPort.IntVal > 0 {
			number = uint16(p.TargetPort.IntVal)
		} else if len(ends) > 0 {
			number = ends[0].Port() // a port's name; its number is mostly the same everywhere
		}
		out = withPort(out, gatewayproto.Port{Name: p.Name, Protocol: protocol, Port: number, Endpoints: ends})
	}
	return out
}

// withPort adds a port, unless its number is there already under another name.
func withPort(ports []gatewayproto.Port, p gatewayproto.Port) []gatewayproto.Port {
	if slices.ContainsFunc(ports, func(o gatewayproto.Port) bool { return o.Protocol == p.Protocol && o.Port == p.Port }) {
		return ports
	}
	return append(ports, p)
}

// hostsOf are the ready and reachable pods behind a headless Service, in a fixed order.
func hostsOf(behind []*discoveryv1.EndpointSlice, reach func(netip.Addr) bool) []gatewayproto.Host {
	at := map[string]*gatewayproto.Host{}
	var names []string
	for _, slice := range behind {
		for _, e := range slice.Endpoints {
			if e.Conditions.Ready != nil && !*e.Conditions.Ready {
				continue
			}
			for _, a := range e.Addresses {
				ip, err := netip.ParseAddr(a)
				if err != nil || !reach(ip) {
					continue
				}
				name := dashed(ip)
				if e.Hostname != nil && *e.Hostname != "" {
					name = strings.ToLower(*e.Hostname)
				}
				h := at[name]
				if h == nil {
					h = &gatewayproto.Host{Name: name, Pod: ip}
					at[name] = h
					names = append(names, name)
				} else if h.Pod != ip {
					continue // of two pods with one host name the first counts
				}
				for _, p := range slice.Ports {
					if p.Port == nil || p.Protocol == nil {
						continue // all ports: none has a name
					}
					protocol, ok := protocolOf(*p.Protocol)
					if !ok {
						continue
					}
					port := gatewayproto.Port{Protocol: protocol, Port: uint16(*p.Port), Endpoints: []netip.AddrPort{netip.AddrPortFrom(ip, uint16(*p.Port))}}
					if p.Name != nil {
						port.Name = *p.Name
					}
					h.Ports = withPort(h.Ports, port)
				}
			}
		}
	}
	slices.Sort(names)
	var out []gatewayproto.Host
	for _, name := range names {
		out = append(out, *at[name])
	}
	return out
}

func dashed(ip netip.Addr) string {
	return strings.NewReplacer(".", "-", ":", "-").Replace(ip.String())
}

// named reports whether the pod has a host name, by which clients resolve only this pod.
func named(h gatewayproto.Host) bool { return h.Name != dashed(h.Pod) }

// own reports whether the pod gets an address of its own.
func own(h gatewayproto.Host) bool {
	return slices.ContainsFunc(h.Ports, func(p gatewayproto.Port) bool { return p.Listen != 0 })
}

// usedPorts are the used ports of the gateway.
type usedPorts map[string]bool

func heldBy(services map[string]gatewayproto.Service) usedPorts {
	d := usedPorts{}
	for _, s := range services {
		for _, p := range s.Listeners() {
			d[fmt.Sprint(p.Protocol, p.Listen)] = true
		}
	}
	return d
}

// open gives each port one of the gateway's: the previous one, or a free one.
func (d usedPorts) open(before, ports []gatewayproto.Port) (out []gatewayproto.Port) {
	for _, p := range ports {
		p.Listen = 0
		for _, b := range before {
			if b.Protocol == p.Protocol && b.Port == p.Port {
				p.Listen = b.Listen
			}
		}
		for at := gatewayproto.FirstPort; p.Listen == 0 && at <= gatewayproto.LastPort; at++ {
			if !d[fmt.Sprint(p.Protocol, at)] {
				p.Listen = uint16(at)
			}
		}
		if p.Listen == 0 {
			continue // ten thousand are used
		}
		d[fmt.Sprint(p.Protocol, p.Listen)] = true
		out = append(out, p)
	}
	return out
}
