package gateway

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"rivulet/fabric/gateway/gatewayproto"
)

// zone has the names of home's Services, as in home's own DNS, with the addresses at which local pods reach them:
//
//	web.shop.svc                where local pods reach the Service; of a headless one, each of its pods
//	web-0.web.shop.svc          one pod of a headless Service
//	_http._tcp.web.shop.svc     SRV: the ports, of a headless Service those of each pod
//	mail.shop.svc               CNAME: an ExternalName Service
//
// It depends on the configuration alone.
type zone struct {
	suffix string              // ".svc.<zone>."
	at     map[string]*node    // by name without the suffix, lower case
	spaces map[string]bool     // namespaces that have a Service: other names in them do not exist
	back   map[string][]string // names by reverse name
}

// node has the records of one name.
type node struct {
	addrs []netip.Addr
	ports []srv
	cname string // full, with a final dot
}

// srv is a port of a target.
type srv struct {
	name, protocol string
	port           uint16
	target         string // without the suffix
}

func zoneOf(cfg gatewayproto.Gateway) *zone {
	domain := strings.ToLower(strings.Trim(cfg.Zone, "."))
	if domain == "" {
		domain = "cluster.local"
	}
	z := &zone{suffix: ".svc." + domain + ".", at: map[string]*node{}, spaces: map[string]bool{}, back: map[string][]string{}}
	for _, s := range cfg.Services {
		name := s.Name + "." + s.Namespace
		z.spaces[s.Namespace] = true
		switch {
		case s.External != "":
			if target, ok := external(s.External); ok {
				z.at[name] = &node{cname: target}
			}
		case !s.Headless:
			n := &node{}
			n.addr(s.IP)
			for _, p := range s.Ports {
				n.ports = append(n.ports, srv{p.Name, p.Protocol, p.Port, name})
			}
			z.at[name] = n
			z.reverse(s.IP, name)
		default:
			z.headless(name, s, cfg.Pods)
		}
	}
	return z
}

// headless adds the pods of a Service that have an address.
func (z *zone) headless(name string, s gatewayproto.Service, pods map[netip.Addr]netip.Addr) {
	all := &node{}
	for _, h := range s.Hosts {
		ip := h.IP
		if !ip.IsValid() {
			ip = pods[h.Pod]
		}
		host := h.Name + "." + name
		one := z.at[host]
		if one == nil {
			one = &node{}
			z.at[host] = one
		}
		one.addr(ip)
		all.addr(ip)
		for _, p := range h.Ports {
			one.ports = append(one.ports, srv{p.Name, p.Protocol, p.Port, host})
		}
		all.ports = append(all.ports, one.ports...)
		if ip.IsValid() && ip != s.IP {
			z.reverse(ip, host)
		}
	}
	if len(s.Hosts) > 0 {
		z.at[name] = all
	}
}

func (n *node) addr(ip netip.Addr) {
	if ip = ip.Unmap(); ip.IsValid() && !slices.Contains(n.addrs, ip) {
		n.addrs = append(n.addrs, ip)
	}
}

func (z *zone) reverse(ip netip.Addr, name string) {
	if ip.Is4() {
		at := arpa(ip)
		if !slices.Contains(z.back[at], name) {
			z.back[at] = append(z.back[at], name)
		}
	}
}

// arpa is the reverse name of an IPv4 address.
func arpa(ip netip.Addr) string {
	b := ip.As4()
	return fmt.Sprintf("%d.%d.%d.%d.in-addr.arpa.", b[3], b[2], b[1], b[0])
}

// external is the full name that a Service is an alias of; false for an address.
func external(name string) (string, bool) {
	name = strings.TrimSuffix(strings.ToLower(name), ".") + "."
	if _, err := netip.ParseAddr(strings.TrimSuffix(name, ".")); err == nil || len(name) > 254 || len(name) < 2 {
		return "", false
	}
	for label := range strings.SplitSeq(strings.TrimSuffix(name, "."), ".") {
		if label == "" || len(label) > 63 {
			return "", false
		}
	}
	return name, true
}

// what is the result of a lookup of a full name.
type what int

const (
	notOurs what = iota // query the campus's DNS
	nothing             // a name of home that does not exist
	there
)

// find returns the records of a full name, which may begin with the port and protocol of an SRV record.
func (z *zone) find(full string) (n *node, known what) {
	name, ok := strings.CutSuffix(strings.ToLower(full), z.suffix)
	if !ok {
		return nil, notOurs
	}
	labels := strings.Split(name, ".")
	if !z.spaces[labels[len(labels)-1]] {
		return nil, notOurs
	}
	switch len(labels) {
	case 1: // the namespace
		return &node{}, there
	case 2, 3:
		if n := z.at[name]; n != nil {
			return n, there
		}
	case 4:
		of := z.at[strings.Join(labels[2:], ".")]
		if of == nil {
			return nil, nothing
		}
		port, protocol := strings.TrimPrefix(labels[0], "_"), strings.TrimPrefix(labels[1], "_")
		n := &node{}
		for _, p := range of.ports {
			if p.protocol == protocol && strings.ToLower(p.name) == port {
				n.ports = append(n.ports, p)
			}
		}
		if len(n.ports) > 0 {
			for _, p := range n.ports {
				for _, ip := range z.at[p.target].addrs {
					n.addr(ip)
				}
			}
			return n, there
		}
	}
	return nil, nothing
}

// names are the full names of an address, given as d.c.b.a.in-addr.arpa.
func (z *zone) names(reverse string) (out []string) {
	for _, name := range z.back[strings.ToLower(reverse)] {
		out = append(out, name+z.suffix)
	}
	return out
}
