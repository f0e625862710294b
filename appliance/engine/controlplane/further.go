package controlplane

import (
	"net/netip"

	"rivulet/fabric/peer"
)

// FurtherPath is the route on Host that streams Further, a line for each change. AtPath, with the ID of one, is before
// the provider's routes of that cluster.
const FurtherPath, AtPath = "/v1/targets", "/at/"

// Known is the parameter of FurtherPath with the ID of a target for which the virtual cluster has a node; it may be repeated.
const Known = "known"

// Further are the peers of the host on which a virtual cluster may run pods, too.
type Further struct {
	// Control is the host's address inside the tunnel that leads their pods to the virtual cluster's API server.
	Control netip.AddrPort
	Links   []peer.Link
	// Unlinked are those without a tunnel: they do not answer, and what runs there goes on.
	Unlinked []peer.Unlinked `json:",omitempty"`
	// Ended are those of before that have ended for good: their peering was ended, or the owner does not allow them any
	// more. One that is in no list may be a target that the host does not know of.
	Ended []peer.ID `json:",omitempty"`
}
