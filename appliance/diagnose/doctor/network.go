package doctor

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"rivulet/appliance/health"
)

var (
	lan          = Probe{Kind: health.LAN, Title: "network interfaces", Every: soon, Run: probeLAN}
	defaultRoute = Probe{Kind: health.DefaultRoute, Title: "default route", Run: probeDefaultRoute}
)

// usable are the links that lead to a LAN now.
func usable(all []Link) []Link {
	return slices.DeleteFunc(slices.Clone(all), func(l Link) bool { return !l.LAN || !l.Up || !l.Carrier || len(l.Addrs) == 0 })
}

func probeLAN(ctx context.Context, e *Env) Result {
	all, err := e.Links()
	if err != nil {
		return Skipf("the kernel cannot be asked: %v", err)
	}
	var up, down, radios []string
	joined := false
	cure := "plug a cable in, or join a Wi-Fi network; the cluster itself works without"
	for _, l := range all {
		switch {
		case !l.LAN:
		case !l.Up:
			down = append(down, l.Name+" is switched off")
		case l.Wireless && (!l.Carrier || ownOnly(l.Addrs)):
			radios = append(radios, l.Name)
		case !l.Carrier:
			down = append(down, l.Name+" has no cable or no partner at its other end")
		case len(l.Addrs) == 0:
			down = append(down, l.Name+" has no address")
			cure = "see that the network has a DHCP server and needs no sign-in, or give the interface an address"
		default:
			up = append(up, l.Name+" "+l.Addrs[0].String())
			joined = joined || slices.ContainsFunc(l.Addrs, func(p netip.Prefix) bool { return !p.Addr().IsLinkLocalUnicast() })
		}
	}
	if !joined && e.cableRefused(ctx) { // without a network a cable has an address that it gave itself
		return Warnf("compare identity, password, certificate and the server's name in network/wired.8021x on the boot partition with what the network's owner says, and start the device again",
			"the network of the cable does not accept the sign-in (802.1X)")
	}
	if len(up) > 0 {
		return Passf("%s", strings.Join(up, ", "))
	}
	for _, name := range radios {
		text, do := e.wifi(ctx, name)
		down, cure = append(down, cmp.Or(text, name+" has joined no network, or has no address there")), cmp.Or(do, cure)
	}
	if len(down) > 0 {
		return Warnf(cure, "no other device can be reached: %s", strings.Join(down, ", "))
	}
	return Warnf("see whether the kernel has a driver for the network card: dmesg", "there is no network interface that leads to a LAN")
}

// cableRefused reports whether wpa_supplicant has logged that the last sign-in by cable was refused.
func (e *Env) cableRefused(ctx context.Context) bool {
	if !e.exists("/etc/rivulet/network/wired.conf") {
		return false
	}
	log, _ := e.Exec(ctx, "journalctl", "-b", "-q", "-u", "rivulet-wired@*", "-o", "cat", "-n", "200", "--no-pager") // without it nothing is known
	return strings.LastIndex(log, ": CTRL-EVENT-EAP-FAILURE ") > strings.LastIndex(log, ": CTRL-EVENT-EAP-SUCCESS ")
}

func probeDefaultRoute(_ context.Context, e *Env) Result {
	routes, err := e.Routes()
	if err != nil {
		return Skipf("the kernel cannot be asked: %v", err)
	}
	var ways []string
	for _, r := range routes {
		if r.To.Bits() == 0 {
			way := r.Link
			if r.Via.IsValid() {
				way = fmt.Sprintf("%s through %s", r.Via, r.Link)
			}
			if !slices.Contains(ways, way) {
				ways = append(ways, way)
			}
		}
	}
	if len(ways) == 0 {
		return Warnf("connect a router where images are to come from the Internet; or: rivulet image push FILE.tar",
			"none; cluster and peers work without, registries on the Internet are out of reach")
	}
	return Passf("%s", strings.Join(ways, ", "))
}

// gateways are the routers of default routes.
func (e *Env) gateways() (out []netip.Addr) {
	routes, _ := e.Routes() // no routes, no gateways
	for _, r := range routes {
		if r.To.Bits() == 0 && r.Via.IsValid() {
			out = append(out, r.Via)
		}
	}
	return out
}
