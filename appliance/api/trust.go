package api

import (
	"slices"
	"time"

	"rivulet/fabric/peer"
	"rivulet/fabric/trust"
)

// Word is an operator decision about another cluster: the body of the routes below /v1/peers and /v1/invites. The
// answer is its peer.View, unless stated otherwise.
type Word struct {
	// Peer is a name, the prefix of an ID, or an address.
	Peer   string `json:"peer,omitempty"`
	Force  bool   `json:"force,omitempty"`
	Forget bool   `json:"forget,omitempty"`
	peer.Settings
	// Invite is a code, or to revoke an invite its ID.
	Invite string `json:"invite,omitempty"`
}

// Invited is the answer of POST /v1/invites. Only this answer has the code.
type Invited struct {
	trust.Invite
	Code string `json:"code"`
	URL  string `json:"url"`
}

// Invites is the answer of GET /v1/invites.
type Invites struct {
	Invites []trust.Invite `json:"invites"`
	Now     time.Time      `json:"now"`
}

// Of are the tokens to join this cluster, or the invites for peers.
func (l Invites) Of(join bool) Invites {
	l.Invites = slices.DeleteFunc(slices.Clone(l.Invites), func(i trust.Invite) bool { return i.Join != join })
	return l
}

// Forgotten is the answer of POST /v1/peers/forget-lan: the names of the removed peers, which were trusted by lan
// alone, and of those that are kept because pods or data depend on them.
type Forgotten struct {
	Gone []string `json:"gone"`
	Stay []string `json:"stay"`
}

// Left is the answer of POST /v1/leave: the names of the peers that were notified.
type Left struct {
	Told []string `json:"told"`
}
