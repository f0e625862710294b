package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"rivulet/appliance/config/fixed"
	"rivulet/appliance/health"
)

// What resolvers are asked. They know the root's name servers by the Internet, and the second by themselves (RFC 6303,
// section 4.2: dnsmasq with bogus-priv, unbound, BIND, systemd-resolved).
var (
	ofTheInternet = dns.Question{Name: ".", Qtype: dns.TypeNS}
	ofItself      = dns.Question{Name: "1.0.0.127.in-addr.arpa.", Qtype: dns.TypePTR}
)

var dnsUpstream = Probe{Kind: health.DNS, Title: "DNS", Run: probeDNS}

func probeDNS(ctx context.Context, e *Env) Result {
	const file = "/etc/resolv.conf"
	var servers []netip.Addr
	for line := range strings.Lines(e.read(file)) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(f[1]); err == nil && !slices.Contains(servers, a) {
			servers = append(servers, a)
		}
	}
	if len(servers) == 0 {
		return Warnf("write a nameserver line into it, or let DHCP do so, if names outside are needed", "%s names no server: only names of the cluster are answered", file)
	}
	var good, inside, bad, loops []string
	for _, s := range servers {
		if s == fixed.ClusterDNS || fixed.NodeRange.Contains(s) {
			loops = append(loops, s.String())
			continue
		}
		at := netip.AddrPortFrom(s, 53)
		err := e.QueryDNS(ctx, at, ofTheInternet)
		switch {
		case err == nil:
			good = append(good, s.String())
		case e.QueryDNS(ctx, at, ofItself) == nil:
			inside = append(inside, s.String())
		default:
			bad = append(bad, fmt.Sprintf("%s: %v", s, err))
		}
	}
	if len(good) == 0 && len(inside) > 0 {
		return Warnf("connect the router to the Internet, or look at what this server asks", "%s is silent about names of the Internet; those of the LAN and of the cluster are answered", strings.Join(inside, ", "))
	}
	for _, s := range inside {
		bad = append(bad, s+" about names of the Internet")
	}
	switch {
	case len(good) > 0 && len(bad)+len(loops) == 0:
		return Passf("%s answers", strings.Join(good, ", "))
	case len(good) > 0 && len(bad) == 0:
		return Passf("%s answers; %s is the cluster itself and is left out", strings.Join(good, ", "), strings.Join(loops, ", "))
	case len(good) > 0:
		return Warnf("take the dead server out of "+file, "%s answers, but not %s", strings.Join(good, ", "), strings.Join(bad, "; "))
	case len(loops) > 0 && len(bad) == 0:
		return Failf("name the network's own server in "+file, "a loop: %s names the cluster (%s), which asks the server named there", file, strings.Join(loops, ", "))
	}
	return Failf("look at the network's DNS server, or name another in "+file, "no server answers: %s", strings.Join(bad, "; "))
}
