package peer

import "time"

// How a peer came to be trusted.
const (
	TrustLAN      = "lan"      // met on the same link (trust on first use); its key is pinned
	TrustGroup    = "group"    // has proved the group's secret
	TrustApproved = "approved" // approved by an operator here
	TrustInvite   = "invite"   // one side had an invite of the other
	// The other device is a node of the same cluster: it has joined this one with a token, or this one has joined it.
	TrustWorker = "worker"
	TrustServer = "server"
)

// Trust is how and when a peer came to be trusted.
type Trust struct {
	How string    `json:"how"`
	At  time.Time `json:"at"`
	// Source is the machine of a peer trusted by lan: its hardware address, or its address where that is unknown.
	Source string `json:"source,omitempty"`
}

// Node reports whether the device is a node of this cluster, and no other cluster.
func (t Trust) Node() bool { return t.How == TrustWorker || t.How == TrustServer }

func (t Trust) String() string {
	switch t.How {
	case TrustLAN:
		return "trusted because it was met on the LAN"
	case TrustGroup:
		return "trusted because it has the group's secret"
	case TrustApproved:
		return "trusted because it was approved here"
	case TrustInvite:
		return "trusted because of an invite"
	case TrustWorker:
		return "trusted because it has joined this cluster"
	case TrustServer:
		return "trusted because this device has joined its cluster"
	}
	return "trusted"
}

// Roles are the directions of a peering that one side has switched off. The zero value is both on.
type Roles struct {
	NoConsume bool `json:"noConsume,omitempty"` // it borrows nothing
	NoProvide bool `json:"noProvide,omitempty"` // it lends nothing
}

// NoBorrow reports whether either side has switched off borrowing from the peer.
func (r Record) NoBorrow() bool { return r.Roles.NoConsume || r.TheirRoles.NoProvide }

// NoLend reports the same for lending to the peer.
func (r Record) NoLend() bool { return r.Roles.NoProvide || r.TheirRoles.NoConsume }
