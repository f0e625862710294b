package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"rivulet/appliance/health"
	"rivulet/fabric/peer"
)

var udp = Probe{Kind: health.UDP, Title: "UDP to peers", Run: probeUDP}

// aged is when a WireGuard session is over: it shakes hands every two minutes while
// there is traffic, and a ping every two seconds is.
const aged = 3*time.Minute + 10*time.Second

// probeUDP looks at the handshakes with real peers: a test over loopback would pass
// behind every firewall.
func probeUDP(ctx context.Context, e *Env) Result {
	st, ok := e.running(ctx)
	if !ok {
		return skip("rivulet is not running, so there is no tunnel to look at")
	}
	if st.Tunnel == nil {
		return failf("see why: rivulet status", "the tunnel's process does not answer")
	}
	shook := map[string]time.Time{}
	for _, p := range st.Tunnel.Peers {
		shook[p.ID] = p.LastHandshake
	}
	var good, blocked, gone []string
	for _, p := range st.Peers {
		last, configured := shook[string(p.ID)]
		switch {
		case !configured:
		case p.State == peer.Connected, e.Now().Sub(last) < aged:
			good = append(good, p.Name)
		case e.Dial(ctx, p.Control) == nil:
			blocked = append(blocked, fmt.Sprintf("%s (%s)", p.Name, p.Tunnel))
		default:
			gone = append(gone, fmt.Sprintf("%s (%s)", p.Name, p.Control.Addr()))
		}
	}
	switch {
	case len(blocked) > 0:
		return failf(fmt.Sprintf("allow UDP %d in the firewalls of both devices and of the network between them", st.Tunnel.Port),
			"TCP reaches %s, but no handshake of the tunnel gets through", strings.Join(blocked, ", "))
	case len(gone) > 0:
		return warnf("see that it is switched on and on a network that this device reaches", "%s does not answer at all", strings.Join(gone, ", "))
	case len(good) > 0:
		return pass("handshakes with %s", strings.Join(good, ", "))
	}
	return skip("no peer yet to shake hands with")
}
