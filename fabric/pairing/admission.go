package pairing

import (
	"fmt"
	"net/netip"

	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
)

// Mode is how clusters without an operator decision become peers.
type Mode string

// The modes. Any other value is ModeClosed.
const (
	ModeLAN    Mode = "lan"   // on a link of this device, on first use
	ModeGroup  Mode = "group" // by a proof of the group's secret
	ModeAsk    Mode = "ask"   // none: an operator approves each
	ModeClosed Mode = "closed"
)

// Proved is the result of checking a message's proof of the group's secret.
type Proved int

const (
	NoProof Proved = iota
	WrongProof
	RightProof
)

// Stranger is a cluster without a record.
type Stranger struct {
	From    Sender
	Message Message
	Proved  Proved
	// Starter: this cluster has called, and evaluates the answer.
	Starter bool
}

// Facts are the inputs of the evaluation of a stranger.
type Facts struct {
	Mode Mode
	Why  string // of ModeClosed
	// Approved is the kind of an operator's approval, peer.TrustApproved or peer.TrustInvite; empty if there is none.
	Approved string
	// Denied: an operator has denied it, or has ended the peering; Was: it was a peer.
	Denied, Was bool
	// HasInvite: the message has the secret of an invite of this cluster; InviteError is why it is not valid.
	HasInvite   bool
	InviteError error
	// Join: the invite is to make it a node of this cluster.
	Join bool
	// NameOf is the trusted peer with the same name.
	NameOf peer.ID
	Proved Proved
	OnLink bool
	// Here is this cluster's name, for messages.
	Here string
}

// InviteError is the refusal of an invite, or with join of a token, that is not valid here.
func InviteError(here string, join bool, why error) *rpc.Error {
	what := "invite"
	if join {
		what = "token"
	}
	return refuse(what, "%s does not take the %s: %v", here, what, why)
}

// Evaluate returns how a stranger is trusted, or an *rpc.Error with the reason why not. Operator decisions take
// precedence over all rules, and a denial over the approval by an older invite.
//
//	token to join ─▶ a node, or refused
//	denied by an operator ─▶ refused       (an invite is a newer approval)
//	approved by an operator, invite ─▶ trusted
//	name of another peer ─▶ refused        (not in mode lan, where names are not unique)
//	lan: on a link?  group: proof?  ask: waits for an operator  ─▶
func Evaluate(f Facts, name string, at netip.Addr) (how string, err error) {
	switch {
	case f.Join && f.InviteError != nil:
		return "", InviteError(f.Here, true, f.InviteError)
	case f.Join:
		return peer.TrustWorker, nil
	case f.HasInvite && f.InviteError == nil:
		return peer.TrustInvite, nil
	case f.Approved != "":
		return f.Approved, nil
	case f.HasInvite:
		return "", InviteError(f.Here, false, f.InviteError)
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
