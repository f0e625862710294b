package peercheck

import (
	"context"
	"fmt"
	"time"

	"rivulet/appliance/diagnose/doctor"
)

// Checks through the tunnel.

// large is the size of a payload that needs several packets, bytes.
const large = 32 << 10

func (e *examination) answer(ctx context.Context) doctor.Result {
	a, err := e.Query(ctx, 0)
	if err != nil {
		return doctor.Failf(fmt.Sprintf("see rivulet status there: its supervisor may be stopped or busy; if not, let UDP %d through in both directions", e.Peer.Tunnel.Port()),
			"the tunnel has keys, and yet no answer comes through it (%s)", reason(err))
	}
	e.received = a
	return doctor.Passf("it answered after %s", a.Took.Round(10*time.Microsecond))
}

func (e *examination) mtu(ctx context.Context) doctor.Result {
	a, err := e.Query(ctx, large)
	if err != nil || len(a.Payload) != large {
		why := "they came back short"
		if err != nil {
			why = reason(err)
		}
		return doctor.Failf("look for a link with a smaller MTU between the two (a VPN, PPPoE, another switch) and for a firewall that drops ICMP \"too big\" or UDP fragments",
			"small packets pass and large ones do not (%s)", why)
	}
	fits := ""
	if p, ok := e.tunnelPeer(); ok && p.MTU > 0 {
		fits = fmt.Sprintf("; packets of %d bytes fit", p.MTU)
	}
	return doctor.Passf("%d KiB went there and back in %s%s", large>>10, a.Took.Round(10*time.Microsecond), fits)
}

func (e *examination) translation(context.Context) doctor.Result {
	p := e.Peer
	if !p.LocalMappedCIDR.Contains(e.received.SeenAs) {
		return doctor.Failf("restart rivulet here (systemctl restart rivulet), so that both agree on prefixes anew; if it comes back, report it as a bug of rivulet",
			"it sees this device as %s, which is not in %s, the prefix that it has told us", e.received.SeenAs, p.LocalMappedCIDR)
	}
	return doctor.Passf("its pods are %s here, ours are %s there", p.PeerMappedCIDR, p.LocalMappedCIDR)
}

func (e *examination) dns(context.Context) doctor.Result {
	if e.received.DNS != "" {
		return doctor.Warnf("see rivulet status there", "names are not answered in its cluster (%s)", e.received.DNS)
	}
	return doctor.Passf("it answers in its cluster")
}

func (e *examination) api(ctx context.Context) doctor.Result {
	v, err := e.API(ctx)
	if err != nil {
		return doctor.Failf("see rivulet status there: its engine may be starting", "its API server cannot be used from here (%s)", err)
	}
	return doctor.Passf("Kubernetes %s answers through the tunnel", v)
}
