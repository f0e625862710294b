package peercheck

import (
	"fmt"

	"rivulet/appliance/api"
	"rivulet/appliance/diagnose/doctor"
	"rivulet/fabric/peer"
	"rivulet/fabric/tunnel"
	"rivulet/fabric/tunnel/paths"
)

// describeWay describes the path of the tunnel's packets. Paths other than the direct one work, but are slower.
func describeWay(p tunnel.PeerStatus) doctor.Result {
	const cure = "to have the shorter way, let UDP through between the two (rivulet doctor --only udp,firewall on both)"
	bytes := fmt.Sprintf("%d bytes received, %d sent", p.Received, p.Sent)
	switch used, ok := api.UsedPath(p); {
	case !ok:
		return doctor.Passf("UDP to and from %s, %s", p.Endpoint, bytes)
	case used.Kind == paths.Relay:
		return doctor.Warnf(cure, "UDP does not pass between the two; %s passes the packets on, which it cannot read; %s", peer.ID(used.Via).Short(), bytes)
	case used.Kind == paths.Stream:
		return doctor.Warnf(cure, "UDP does not pass; packets go in a TCP stream to %s; %s", used.Addr, bytes)
	default:
		return doctor.Passf("UDP to and from %s, %s", used.Addr, bytes)
	}
}
