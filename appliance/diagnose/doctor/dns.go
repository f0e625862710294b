package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"rivulet/appliance/config/fixed"
	"rivulet/appliance/health"
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
	var good, bad, loops []string
	for _, s := range servers {
		if s == fixed.ClusterDNS || fixed.NodeRange.Contains(s) {
			loops = append(loops, s.String())
			continue
		}
		if err := e.QueryDNS(ctx, netip.AddrPortFrom(s, 53)); err != nil {
			bad = append(bad, fmt.Sprintf("%s: %v", s, err))
			continue
		}
		good = append(good, s.String())
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
