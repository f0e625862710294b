package peer

import "time"

// How a peer came to be trusted.
const (
	TrustLAN      = "lan"      // met on the same link, and pinned since (trust on first use)
	TrustGroup    = "group"    // has proved the group's secret
	TrustApproved = "approved" // a person here has said yes
	TrustInvite   = "invite"   // one of both sides had an invite of the other
)

// Trust says how a peer came to be trusted.
type Trust struct {
	How string    `json:"how"`
	At  time.Time `json:"at"`
	// Source is the machine that one trusted by lan was met at: its hardware address, or
	// its address where that is not known.
	Source string `json:"source,omitempty"`
}

// String says it in words.
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
	}
	return "trusted"
}

// Roles are the directions of a peering that one side has switched off. The zero
// value is both on.
type Roles struct {
	NoConsume bool `json:"noConsume,omitempty"` // it borrows nothing
	NoProvide bool `json:"noProvide,omitempty"` // it lends nothing
}

// NoBorrow reports whether we may not borrow from the peer, because one of both
// sides has that direction switched off.
func (r Record) NoBorrow() bool { return r.Roles.NoConsume || r.TheirRoles.NoProvide }

// NoLend is the same of lending to the peer.
func (r Record) NoLend() bool { return r.Roles.NoProvide || r.TheirRoles.NoConsume }
