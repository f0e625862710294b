package doctor

import (
	"context"
	"fmt"
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
	if fixed.Shared.Overlaps(fixed.NodeRange) && tailscaleDrops(ctx, e) {
		clash = append(clash, "Tailscale drops what comes from 100.64.0.0/10 and not through it, the node's own address among it")
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

// tailscaleDrops looks for Tailscale's rule that drops other sources in its range, which also applies to lo.
func tailscaleDrops(ctx context.Context, e *Env) bool {
	all, err := e.Links()
	if err != nil || !slices.ContainsFunc(all, func(l Link) bool { return strings.HasPrefix(l.Name, "tailscale") && l.Up }) {
		return false
	}
	out, err := e.Exec(ctx, "iptables-save", "-t", "filter")
	return err == nil && slices.ContainsFunc(strings.Split(out, "\n"), func(l string) bool {
		return strings.HasPrefix(l, "-A ts-input") && strings.Contains(l, "-s 100.64.0.0/10") && strings.HasSuffix(l, "DROP")
	})
}
