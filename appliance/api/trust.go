package api

import (
	"time"

	"rivulet/fabric/trust"
)

// Word is what a person says about another cluster: the body of the routes below
// /v1/peers and /v1/invites. The answer is its peer.View, unless said otherwise.
type Word struct {
	// Peer is a name, the begin of an ID, or an address.
	Peer   string `json:"peer,omitempty"`
	Force  bool   `json:"force,omitempty"`
	Forget bool   `json:"forget,omitempty"`
	// Consume and Provide switch directions; nil leaves one as it is.
	Consume *bool `json:"consume,omitempty"`
	Provide *bool `json:"provide,omitempty"`
	// Invite is a code, or to revoke one its ID.
	Invite string `json:"invite,omitempty"`
}

// Invited is the answer of POST /v1/invites. The code is told this one time.
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

// Forgotten is the answer of POST /v1/peers/forget-lan: the names of the peers trusted by
// lan alone that are none any more, and of those that something runs on or for.
type Forgotten struct {
	Gone []string `json:"gone"`
	Stay []string `json:"stay"`
}

// Left is the answer of POST /v1/leave: the names of the peers that were told.
type Left struct {
	Told []string `json:"told"`
}
