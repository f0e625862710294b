package controlplane

import (
	"net/netip"

	"rivulet/fabric/peer"
)

// FurtherPath is the route on Host that streams Further, a line for each change. AtPath, with the ID of one, is before
// the provider's routes of that cluster.
const FurtherPath, AtPath = "/v1/targets", "/at/"

// Further are the peers of the host on which a virtual cluster may run pods, too.
type Further struct {
	// Control is the host's address inside the tunnel that leads their pods to the virtual cluster's API server.
	Control netip.AddrPort
	Links   []peer.Link
}
