package pairing

import (
	"fmt"
	"net/netip"

	"rivulet/fabric/peer"
)

// Mode is how clusters that nobody has spoken of become peers.
type Mode string

// The modes. Any other value is ModeClosed.
const (
	ModeLAN    Mode = "lan"   // those on a link of ours, at first sight
	ModeGroup  Mode = "group" // those that prove the group's secret
	ModeAsk    Mode = "ask"   // none: a person says yes to each
	ModeClosed Mode = "closed"
)

// Proved is what a message shows of the group's secret.
type Proved int

// What a proof can be.
const (
	NoProof Proved = iota
	WrongProof
	RightProof
)

// Stranger is somebody of whom there is no record.
type Stranger struct {
	From    Sender
	Message Message
	Proved  Proved
	// Starter: we have called, and this is the answer.
	Starter bool
}

// Facts are all that counts when a stranger is judged.
type Facts struct {
	Mode Mode
	Why  string // of ModeClosed
	// Approved is how the yes of a person came about, peer.TrustApproved or
	// peer.TrustInvite; empty if there is none.
	Approved string
	// Denied: a person has said no, or has ended the peering; Was: it was a peer.
	Denied, Was bool
	// HasInvite: the message carries the secret of an invite of ours; InviteError is
	// why it is not good for anything.
	HasInvite   bool
	InviteError error
	// NameOf is the trusted peer that has the stranger's name already.
	NameOf peer.ID
	Proved Proved
	OnLink bool
	// Here is our name, for messages.
	Here string
}

// Evaluate says how a stranger is trusted, or with an *rpc.Error why it is not. A
// person's word goes before all rules, the no before the yes of an old invite.
//
//	no of a person ─▶ refused           (an invite is a younger yes)
//	yes of a person, invite ─▶ trusted
//	name of another peer ─▶ refused     (not in mode lan: there names mean little)
//	lan: on a link?  group: proof?  ask: asks  ─▶
func Evaluate(f Facts, name string, at netip.Addr) (how string, err error) {
	switch {
	case f.HasInvite && f.InviteError == nil:
		return peer.TrustInvite, nil
	case f.Approved != "":
		return f.Approved, nil
	case f.HasInvite:
		return "", refuse("invite", "%s does not take the invite: %v", f.Here, f.InviteError)
	case f.Denied && f.Was:
		return "", refuse("unpeered", "%s has ended the peering with %s", f.Here, name)
	case f.Denied:
		return "", refuse("denied", "%s was denied on %s", name, f.Here)
	case f.Mode == ModeLAN && !f.OnLink:
		return "", refuse("not-on-link", "%s is not known on %s and its address %s is behind a router; only clusters on the same link are trusted at first sight", name, f.Here, at)
	case f.Mode == ModeLAN:
		return peer.TrustLAN, nil
	case f.Mode != ModeGroup && f.Mode != ModeAsk:
		return "", ClosedError(f.Why)
	case f.Mode == ModeGroup && f.Proved == NoProof:
		return "", refuse("no-proof", "%s has a group and %s has shown no proof of its secret", f.Here, name)
	case f.Mode == ModeGroup && f.Proved == WrongProof:
		return "", refuse("wrong-proof", "%s and %s have different group secrets", f.Here, name)
	case f.NameOf != "":
		return "", refuse("name-taken", "another cluster is known on %s as %s: its ID is %s, and now one comes under that name with another key", f.Here, name, f.NameOf.Short())
	case f.Mode == ModeGroup:
		return peer.TrustGroup, nil
	}
	e := refuse("pending", "%s waits on %s for somebody to say yes", name, f.Here)
	e.Cure = fmt.Sprintf("run on %s: rivulet approve %s", f.Here, name)
	return "", e
}
