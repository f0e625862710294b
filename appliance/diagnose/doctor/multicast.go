package doctor

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"rivulet/appliance/health"
	"rivulet/fabric/peer"
)

var (
	multicast = Probe{Kind: health.Multicast, Title: "multicast (mDNS)", Run: probeMulticast}
	hostname  = Probe{Kind: health.Hostname, Title: "host name on the LAN", Run: probeHostname}
)

const (
	isolation = "switch client isolation (also called AP or guest isolation) off in the access point, or connect both devices to the same network by cable"
	snooping  = "let the switch or access point forward multicast: IGMP snooping off, or with a querier; \"multicast to unicast\" off"
)

// probeMulticast evaluates received packets. An answer proves both directions: another host received the query, and
// this one its answer. Silence alone proves nothing; other evidence about the LAN distinguishes a device without
// neighbours from a network that isolates its clients.
func probeMulticast(ctx context.Context, e *Env) Result {
	all, err := e.Links()
	if err != nil {
		return Skipf("the kernel cannot be asked: %v", err)
	}
	lans := usable(all)
	if len(lans) == 0 {
		return Skipf("the device is on no network")
	}
	heard, err := e.Listen()
	if err != nil && len(heard.From) == 0 {
		return Warnf("see that no firewall on this device blocks UDP 5353", "nothing can be sent or heard: %v", err)
	}
	if len(heard.From) > 0 {
		return Passf("our question was answered or others were heard: %s", addrs(heard.From))
	}
	reachable, silent := e.knownHere(ctx, lans)
	if len(reachable) > 0 {
		return Failf(snooping, "%s can be reached, yet nobody's multicast arrives here: the network filters it. Peers that are known stay, new ones are not found", addrs(reachable))
	}
	if len(silent) > 0 {
		return Failf(isolation, "%s was a peer on this LAN and answers neither multicast nor a direct call: it is switched off, or the network keeps its clients apart", addrs(silent))
	}
	gateways := e.gateways()
	around, _ := e.Neighbours() // none known
	around = slices.DeleteFunc(around, func(a netip.Addr) bool { return slices.Contains(gateways, a) })
	wireless := slices.ContainsFunc(lans, func(l Link) bool { return l.Wireless })
	switch {
	case len(around) > 0:
		return Warnf(snooping, "nobody answers, although other machines are on the LAN (%s): they may have no mDNS, or the network filters multicast", addrs(around))
	case wireless:
		return Warnf("if there is another device in this Wi-Fi: "+isolation, "nobody answers and no other machine shows itself: this device is alone, or the Wi-Fi keeps its clients apart")
	}
	return Skipf("nobody answers; no other device is known here that could")
}

// knownHere are the peers with an address on one of the LANs, by whether they accept a direct connection.
func (e *Env) knownHere(ctx context.Context, lans []Link) (reachable, silent []netip.Addr) {
	st, ok := e.running(ctx)
	if !ok {
		return nil, nil
	}
	for _, p := range st.Peers {
		addr := p.Control.Addr().Unmap()
		on := slices.ContainsFunc(lans, func(l Link) bool {
			return slices.ContainsFunc(l.Addrs, func(n netip.Prefix) bool { return n.Contains(addr) })
		})
		if !on {
			continue
		}
		if p.State == peer.Connected || e.Dial(ctx, p.Control) == nil {
			reachable = append(reachable, addr)
		} else {
			silent = append(silent, addr)
		}
	}
	return reachable, silent
}

func probeHostname(_ context.Context, e *Env) Result {
	all, err := e.Links()
	if err != nil || len(usable(all)) == 0 {
		return Skipf("the device is on no network")
	}
	heard, err := e.Listen()
	if err != nil {
		return Skipf("multicast cannot be used: %v", err)
	}
	if len(heard.SameName) > 0 {
		return Warnf("give this machine a name of its own: hostnamectl set-hostname NAME; Rivulet tells clusters apart by their ID, people do not",
			"%s is called %s.local too", addrs(heard.SameName), e.Hostname)
	}
	return Passf("nobody else says to be %s.local", e.Hostname)
}

func addrs(list []netip.Addr) string {
	const most = 5
	var out []string
	for i, a := range list {
		if i == most {
			out = append(out, "…")
			break
		}
		out = append(out, a.String())
	}
	return strings.Join(out, ", ")
}
