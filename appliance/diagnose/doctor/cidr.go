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

var cidr = Probe{Kind: health.CIDR, Title: "addresses of the cluster", Every: always, Run: probeCIDR}

// ourLinks are the prefixes of interfaces whose routes are the cluster's own.
var ourLinks = []string{"lo", "riv", "cni", "veth", "kube-"}

func probeCIDR(ctx context.Context, e *Env) Result {
	routes, err := e.Routes()
	if err != nil {
		return Skipf("the kernel cannot be asked: %v", err)
	}
	var clash, wide []string
	for _, r := range routes {
		if r.To.Bits() == 0 || slices.ContainsFunc(ourLinks, func(p string) bool { return strings.HasPrefix(r.Link, p) }) {
			continue
		}
		for i, own := range fixed.Networks {
			if !r.To.Overlaps(own) {
				continue
			}
			line := fmt.Sprintf("%s on %s and the cluster's %s (%s)", r.To, r.Link, []string{"pods", "Services", "node addresses"}[i], own)
			if r.To.Bits() >= own.Bits() {
				clash = append(clash, line)
			} else {
				wide = append(wide, line)
			}
		}
	}
	clash = append(clash, dropped(ctx, e)...)
	if away := podsRouted(e); away != "" {
		return Failf("look for it: ip rule; a VPN makes such a rule for an exit node or for all traffic: leave it, or start it after Rivulet, which puts its own rules in front",
			"%s", away)
	}
	switch {
	case len(clash) > 0:
		return Failf("give that network another range (or leave it: ip route del), with Tailscale: sudo tailscale set --netfilter-mode=off; or have this device choose others at its next start, "+
			"with its name and key, without its objects and volumes: rivulet reset",
			"the same addresses twice: %s", strings.Join(clash, "; "))
	case len(wide) > 0:
		return Warnf("nothing, unless something there has one of these addresses", "a wider network covers the cluster's, its part of it is out of reach from here: %s", strings.Join(wide, "; "))
	}
	return Passf("%s, %s and %s are used by nobody else here", fixed.PodCIDR, fixed.ServiceCIDR, fixed.NodeRange)
}

// podsRouted asks the kernel where it sends packets to a pod of this node; empty unless they leave by something else than
// the bridge. Routes alone do not tell: a rule may choose another table first.
func podsRouted(e *Env) string {
	links, err := e.Links()
	at := slices.IndexFunc(links, func(l Link) bool { return l.Name == fixed.Bridge && l.Up })
	if err != nil || at < 0 {
		return ""
	}
	for _, own := range links[at].Addrs {
		if pod := own.Addr().Next(); own.Addr().Is4() && own.Contains(pod) {
			if by, err := e.RouteTo(pod); err == nil && by != fixed.Bridge {
				return fmt.Sprintf("packets to pods (%s) leave by %s and not by %s: a rule of routing takes them", pod, by, fixed.Bridge)
			}
		}
	}
	return ""
}

// dropped are rules that drop the cluster's addresses unless they come through an interface of another network. Tailscale
// (chain ts-input) and other VPNs have such rules for their own range; they also apply to lo and to the tunnel.
func dropped(ctx context.Context, e *Env) (found []string) {
	out, err := e.Exec(ctx, "iptables-save", "-t", "filter")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(out) {
		words := strings.Fields(line)
		through := after(words, "!", "-i")
		if len(words) < 2 || words[0] != "-A" || through == "" || through == "lo" || through == fixed.Tunnel || !slices.Contains([]string{"DROP", "REJECT"}, after(words, "-j")) {
			continue
		}
		from, err := netip.ParsePrefix(after(words, "-s"))
		if err != nil || !slices.ContainsFunc(fixed.Networks[:], from.Overlaps) {
			continue
		}
		whose := "a rule (iptables -S " + words[1] + ")"
		if words[1] == "ts-input" {
			whose = "Tailscale"
		}
		found = append(found, fmt.Sprintf("%s drops what comes from %s and not through %s, the node's own address among it", whose, from, through))
	}
	return found
}

// after returns the word after these.
func after(words []string, these ...string) string {
	for i := range words {
		if rest := words[i:]; len(rest) > len(these) && slices.Equal(rest[:len(these)], these) {
			return rest[len(these)]
		}
	}
	return ""
}
