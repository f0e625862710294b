package mdns

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/miekg/dns"

	"rivulet/fabric/discovery"
	"rivulet/fabric/netmon"
	"rivulet/fabric/peer"
)

// txtVersion is the first TXT string. A device that announces another version is still reported; the exchange refuses
// it with a reason.
const txtVersion = "v=1"

// lowestPort is the end of the ports of system services: an announcement cannot make this cluster call those.
const lowestPort = 1024

func text(a discovery.Announcement) []string {
	out := []string{txtVersion, "id=" + string(a.ID), "name=" + a.Name, "port=" + strconv.Itoa(int(a.Port))}
	for k, v := range a.TXT {
		out = append(out, k+"="+v)
	}
	slices.Sort(out[4:])
	return out
}

// announcement is the unsolicited response that serves as heartbeat, with the addresses of the interface that sends it.
func announcement(a discovery.Announcement, lan netmon.Interface) *dns.Msg {
	instance, host := string(a.ID)+"."+serviceName, string(a.ID)+"."+domain
	header := func(name string, kind, class uint16) dns.RR_Header {
		return dns.RR_Header{Name: name, Rrtype: kind, Class: class, Ttl: 120}
	}
	const flush = dns.ClassINET | 1<<15 // RFC 6762, 10.2
	m := &dns.Msg{MsgHdr: dns.MsgHdr{Response: true, Authoritative: true}, Compress: true}
	m.Answer = []dns.RR{
		&dns.PTR{Hdr: header(serviceName, dns.TypePTR, dns.ClassINET), Ptr: instance},
		&dns.SRV{Hdr: header(instance, dns.TypeSRV, flush), Port: a.Port, Target: host},
		&dns.TXT{Hdr: header(instance, dns.TypeTXT, flush), Txt: text(a)},
	}
	m.Answer = append(m.Answer, hostRecords(host, lan, 120)...)
	return m
}

// question asks for one instance, or for the names of all if id is empty.
func question(id peer.ID) *dns.Msg {
	m := new(dns.Msg)
	if id == "" {
		m.SetQuestion(serviceName, dns.TypePTR)
	} else {
		instance := string(id) + "." + serviceName
		m.SetQuestion(instance, dns.TypeSRV)
		m.Question = append(m.Question, dns.Question{Name: instance, Qtype: dns.TypeTXT, Qclass: dns.ClassINET})
	}
	m.Id, m.RecursionDesired = 0, false // RFC 6762, 18
	return m
}

// sighting is what one packet has of one instance.
type sighting struct {
	id      peer.ID
	goodbye bool
	port    uint16
	txt     map[string]string
	addrs   []netip.Addr
}

// sightings reads a packet. Probes, announcements and answers all show that the instance exists. A sighting without
// port or text carries no change but is a sign of life.
func sightings(m *dns.Msg) []sighting {
	byID := map[peer.ID]*sighting{}
	hosts := map[string][]netip.Addr{}
	targets := map[peer.ID]string{}
	of := func(instance string) *sighting {
		id, ok := strings.CutSuffix(strings.ToLower(instance), "."+serviceName)
		if !ok || !peer.ID(id).Valid() {
			return nil
		}
		if byID[peer.ID(id)] == nil {
			byID[peer.ID(id)] = &sighting{id: peer.ID(id)}
		}
		return byID[peer.ID(id)]
	}
	for _, rr := range slices.Concat(m.Answer, m.Ns, m.Extra) {
		switch rr := rr.(type) {
		case *dns.PTR:
			if strings.EqualFold(rr.Hdr.Name, serviceName) {
				if s := of(rr.Ptr); s != nil && rr.Hdr.Ttl == 0 {
					s.goodbye = true
				}
			}
		case *dns.SRV:
			if s := of(rr.Hdr.Name); s != nil {
				if rr.Port >= lowestPort {
					s.port = rr.Port
				}
				targets[s.id] = strings.ToLower(rr.Target)
				s.goodbye = s.goodbye || rr.Hdr.Ttl == 0
			}
		case *dns.TXT:
			if s := of(rr.Hdr.Name); s != nil {
				s.txt = parseText(rr.Txt)
			}
		case *dns.A:
			if ip, ok := netip.AddrFromSlice(rr.A.To4()); ok {
				hosts[strings.ToLower(rr.Hdr.Name)] = append(hosts[strings.ToLower(rr.Hdr.Name)], ip)
			}
		case *dns.AAAA:
			if ip, ok := netip.AddrFromSlice(rr.AAAA); ok {
				hosts[strings.ToLower(rr.Hdr.Name)] = append(hosts[strings.ToLower(rr.Hdr.Name)], ip.Unmap())
			}
		}
	}
	var out []sighting
	for id, s := range byID {
		s.addrs = hosts[targets[id]]
		out = append(out, *s)
	}
	return out
}

func parseText(txt []string) map[string]string {
	out := map[string]string{}
	for _, s := range txt[:min(len(txt), 32)] {
		if k, v, ok := strings.Cut(s, "="); ok {
			out[k] = v
		}
	}
	return out
}

// isQuery reports whether the packet asks for all instances.
func isQuery(m *dns.Msg) bool {
	return !m.Response && slices.ContainsFunc(m.Question, func(q dns.Question) bool {
		return q.Qtype == dns.TypePTR && strings.EqualFold(q.Name, serviceName)
	})
}

// queried are the instances that the packet asks for.
func queried(m *dns.Msg) (ids []peer.ID) {
	if m.Response {
		return nil
	}
	for _, q := range m.Question {
		if id, ok := strings.CutSuffix(strings.ToLower(q.Name), "."+serviceName); ok && q.Qtype == dns.TypeSRV {
			ids = append(ids, peer.ID(id))
		}
	}
	return ids
}

// entry completes a sighting, received on a LAN from an address, for a report.
func entry(s sighting, lan netmon.Interface, from netip.Addr) discovery.Entry {
	// An announced address that is not on the link could direct connections to other hosts' services: only the packet's
	// own sender address may be off the link.
	addrs := slices.DeleteFunc(slices.Clone(s.addrs), func(a netip.Addr) bool {
		return a != from.WithZone("") && !(linkLocal6(a) || (netmon.LANs{lan}).OnLink(a))
	})
	if len(addrs) == 0 { // a probe has no address but its sender's
		addrs = []netip.Addr{from}
	}
	e := discovery.Entry{Key: string(s.id), ID: s.id, Name: peer.Text(s.txt["name"]), Interface: lan.Name, TXT: map[string]string{}}
	for k, v := range s.txt {
		if k != "v" && k != "id" && k != "name" && k != "port" {
			e.TXT[peer.Text(k)] = peer.Text(v)
		}
	}
	// Announcements and zeroconf's answers differ in whether they include a link-local address beside others; it is of
	// use only where it is the only one.
	routable := slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !linkLocal6(a) })
	for _, a := range addrs {
		if linkLocal6(a) {
			if routable {
				continue
			}
			a = a.WithZone(lan.Name)
		}
		if p := netip.AddrPortFrom(a, s.port); !slices.Contains(e.Addrs, p) {
			e.Addrs = append(e.Addrs, p)
		}
	}
	slices.SortFunc(e.Addrs, func(a, b netip.AddrPort) int { return rank(lan, a.Addr(), b.Addr()) })
	if len(e.Addrs) > discovery.MaxAddrs {
		own := slices.IndexFunc(e.Addrs, func(a netip.AddrPort) bool { return a.Addr().WithZone("") == from.WithZone("") })
		if own >= discovery.MaxAddrs { // where it sends from it can be reached
			e.Addrs[discovery.MaxAddrs-1] = e.Addrs[own]
		}
		e.Addrs = slices.Clone(e.Addrs[:discovery.MaxAddrs])
	}
	return e
}

func linkLocal6(a netip.Addr) bool { return a.Is6() && a.IsLinkLocalUnicast() }

// rank orders addresses: on the link and IPv4 first, link-local last.
func rank(lan netmon.Interface, a, b netip.Addr) int {
	score := func(ip netip.Addr) int {
		n := 0
		if !(netmon.LANs{lan}).OnLink(ip) {
			n += 4
		}
		if ip.IsLinkLocalUnicast() {
			n += 2
		}
		if ip.Is6() {
			n++
		}
		return n
	}
	if d := score(a) - score(b); d != 0 {
		return d
	}
	return a.Compare(b)
}
