package doctor

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"rivulet/fabric/discovery/mdns"
	"rivulet/fabric/netmon"
)

// listening is how long to wait for answers; responders may delay them by up to 500 ms, and radio needs more.
const listening = 2500 * time.Millisecond

// listen queries all hosts on the LANs for any service and for this host's name, twice, and receives packets of others
// meanwhile.
func listen(hostname string) (Received, error) {
	all, err := system{}.Links()
	if err != nil {
		return Received{}, err
	}
	var lans netmon.LANs
	for _, l := range all {
		if !l.LAN || !l.Up || !l.Carrier {
			continue
		}
		ifi, err := net.InterfaceByName(l.Name)
		if err != nil {
			continue // gone meanwhile
		}
		lans = append(lans, netmon.Interface{Index: ifi.Index, Name: l.Name, MTU: ifi.MTU, Addrs: l.Addrs})
	}
	if len(lans) == 0 {
		return Received{}, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), listening)
	defer cancel()
	host := dns.Fqdn(strings.ToLower(hostname) + ".local")
	var out Received
	err = mdns.Query(ctx, lans, query(host), listening/3, func(from netip.Addr, m *dns.Msg) {
		if !from.Is4() || isOurs(all, from) {
			return
		}
		if !slices.Contains(out.From, from) {
			out.From = append(out.From, from)
		}
		if m.Response && claims(m, host) && !slices.Contains(out.SameName, from) {
			out.SameName = append(out.SameName, from)
		}
	})
	slices.SortFunc(out.From, netip.Addr.Compare)
	slices.SortFunc(out.SameName, netip.Addr.Compare)
	return out, err
}

func isOurs(all []Link, addr netip.Addr) bool {
	return slices.ContainsFunc(all, func(l Link) bool {
		return slices.ContainsFunc(l.Addrs, func(p netip.Prefix) bool { return p.Addr() == addr })
	})
}

// query is for all services, for Rivulet's, and for the address of this host's name. It requests multicast answers,
// because the question is whether multicast arrives.
func query(host string) *dns.Msg {
	return &dns.Msg{Question: []dns.Question{
		{Name: "_services._dns-sd._udp.local.", Qtype: dns.TypePTR, Qclass: dns.ClassINET},
		{Name: "_rivulet._tcp.local.", Qtype: dns.TypePTR, Qclass: dns.ClassINET},
		{Name: host, Qtype: dns.TypeA, Qclass: dns.ClassINET},
	}}
}

// claims reports whether an answer claims the name host for its sender.
func claims(m *dns.Msg, host string) bool {
	return slices.ContainsFunc(slices.Concat(m.Answer, m.Extra), func(rr dns.RR) bool {
		_, is4 := rr.(*dns.A)
		return is4 && strings.EqualFold(rr.Header().Name, host)
	})
}
