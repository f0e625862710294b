package doctor

import (
	"context"
	"fmt"
	"strings"

	"rivulet/appliance/health"
	"rivulet/fabric/peer"
)

var udp = Probe{Kind: health.UDP, Title: "UDP to peers", Run: probeUDP}

// probeUDP checks the tunnels to real peers, which are pinged every other second: a test over loopback would pass
// behind every firewall.
func probeUDP(ctx context.Context, e *Env) Result {
	st, ok := e.running(ctx)
	if !ok {
		return e.unasked("rivulet is not running, so there is no tunnel to look at", nil)
	}
	if st.Tunnel == nil {
		return Failf("see why: rivulet status", "the tunnel's process does not answer")
	}
	configured := map[string]bool{}
	for _, p := range st.Tunnel.Peers {
		configured[p.ID] = true
	}
	var good, streamed, blocked, gone []string
	for _, p := range st.Peers {
		switch {
		case !configured[string(p.ID)]: // discovered, no peer
		case p.State == peer.Connected && strings.HasPrefix(p.Path, "stream "):
			streamed = append(streamed, fmt.Sprintf("%s (%s)", p.Name, p.Tunnel))
		case p.State == peer.Connected:
			good = append(good, p.Name)
		case e.Dial(ctx, p.Control) == nil:
			blocked = append(blocked, fmt.Sprintf("%s (%s)", p.Name, p.Tunnel))
		default:
			gone = append(gone, fmt.Sprintf("%s (%s)", p.Name, p.Control.Addr()))
		}
	}
	allow := fmt.Sprintf("allow UDP %d in the firewalls of both devices and of the network between them", st.Tunnel.Port)
	switch {
	case len(blocked) > 0:
		return Failf(allow,
			"TCP reaches %s, but nothing of the tunnel gets through", strings.Join(blocked, ", "))
	case len(gone) > 0:
		return Warnf("see that it is switched on and on a network that this device reaches", "%s does not answer at all", strings.Join(gone, ", "))
	case len(streamed) > 0:
		return Warnf(allow, "UDP does not pass: the tunnel to %s goes through a TCP connection, which is slower", strings.Join(streamed, ", "))
	case len(good) > 0:
		return Passf("the tunnel carries to %s", strings.Join(good, ", "))
	}
	return Skipf("no peer yet that could be reached")
}
