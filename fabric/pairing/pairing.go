// Package pairing is how two clusters come to trust each other and agree on how
// their tunnel is made: one idempotent exchange of messages, that either side may
// start. docs/fabric.md shows it message by message.
//
//	starter                                responder
//	   | -- Hello (seeYouAs if known) -----> |  learn, choose, store
//	learn, choose, store  <--- Hello ------- |
//	   | -- Hello (seeYouAs) --------------> |  learn, store      only if the answer's
//	   | <-------------------------- Hello - |                    seenAs is not our choice
//
// Both sides do the same with what they hear: Party.learn. What a side chooses it
// stores before it tells, so a crash between any two steps is healed by the next
// exchange and never leaves a peer with a prefix that its chooser has forgotten.
//
// It reads and writes peer records through functions it is given, and takes time
// and network as arguments. A refusal is an *rpc.Error with a cure.
package pairing

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"sync"
	"time"

	"rivulet/fabric/peer"
)

// Self is what a cluster tells of itself.
type Self struct {
	ID            peer.ID
	Name          string
	Version       string
	KubeVersion   string
	WireGuardKey  string // public, base64
	TunnelPort    uint16
	ControlPort   uint16
	TunnelAddress netip.Addr
	PodCIDR       netip.Prefix
	ServiceCIDR   netip.Prefix
}

// Sender is who a message came from, as TLS and TCP prove it.
type Sender struct {
	ID          peer.ID
	Certificate []byte // DER
	Addr        netip.Addr
}

// Party is one side of the exchange. Its methods may be called concurrently.
type Party struct {
	Self   func() Self
	Record func(peer.ID) (peer.Record, bool)
	// Save keeps the record durably. It is not called for a record that is there already.
	Save func(peer.Record) error
	// Choose returns the prefix under which to see the peer's pods; previous if it can stay.
	Choose func(id peer.ID, theirs, previous netip.Prefix) (netip.Prefix, error)
	// OnLink reports whether no router is between us and the address.
	OnLink func(netip.Addr) bool
	// Closed says why no stranger is trusted, not even on the link; empty lets OnLink
	// decide. It may be nil.
	Closed func() string
	Now    func() time.Time

	mu sync.Mutex // from reading a record to saving it
}

// Post carries a message to the peer and brings its answer.
type Post func(context.Context, Message) (Message, Sender, error)

// Hello is what we have to say to the peer with this record (the zero record: to a stranger).
func (s Self) Hello(r peer.Record) Message {
	return Message{
		Versions: Versions, ID: s.ID, Name: s.Name, Version: s.Version, KubeVersion: s.KubeVersion,
		WireGuardKey: s.WireGuardKey, TunnelPort: s.TunnelPort, ControlPort: s.ControlPort, TunnelAddress: s.TunnelAddress,
		PodCIDR: s.PodCIDR, ServiceCIDR: s.ServiceCIDR, SeeYouAs: r.Remote, SeenAs: r.As,
	}
}

// Receive is the responder: it learns from the message and answers it.
func (p *Party) Receive(from Sender, m Message) (Message, error) {
	r, err := p.learn(from, m)
	if err != nil {
		return Message{}, err
	}
	return p.Self().Hello(r), nil
}

// rounds bounds one exchange: learn, tell, and one to spare for a peer that chose
// anew in between.
const rounds = 3

// Exchange is the starter. id may be empty if nothing is known of who is there.
// It returns when both sides know what they need of each other, or with the
// reason why not; in either case what was learnt has been saved.
func (p *Party) Exchange(ctx context.Context, id peer.ID, post Post) (peer.Record, error) {
	r, _ := p.Record(id)
	for range rounds {
		m, from, err := post(ctx, p.Self().Hello(r))
		if err != nil {
			return r, err
		}
		if r, err = p.learn(from, m); err != nil {
			return r, err
		}
		if r.Complete() && m.SeenAs == r.Remote {
			return r, nil
		}
	}
	return r, refuse("bad-message", "%s does not take in the prefix it is told", r.Name)
}

// learn turns what the peer says into what is remembered of it.
func (p *Party) learn(from Sender, m Message) (peer.Record, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	self := p.Self()
	if err := m.check(); err != nil {
		return peer.Record{}, err
	}
	if err := admit(self, from, m); err != nil {
		return peer.Record{}, err
	}
	old, known := p.Record(from.ID)
	if !known && p.Closed != nil {
		if why := p.Closed(); why != "" {
			return peer.Record{}, ClosedError(why)
		}
	}
	if !known && !p.OnLink(from.Addr) {
		return peer.Record{}, refuse("not-on-link", "%s is not known here and its address %s is behind a router; only clusters on the same link are trusted at first sight", m.Name, from.Addr)
	}
	r := old
	if !known {
		r = peer.Record{ID: from.ID, Trust: peer.Trust{How: peer.TrustLAN, At: p.Now()}}
	}
	r.Name, r.Version, r.KubeVersion = m.Name, m.Version, m.KubeVersion
	r.Certificate, r.WireGuardKey, r.TunnelAddress = from.Certificate, m.WireGuardKey, m.TunnelAddress
	r.Control = netip.AddrPortFrom(from.Addr, m.ControlPort)
	r.Tunnel = netip.AddrPortFrom(from.Addr, m.TunnelPort)
	r.Theirs = m.PodCIDR
	if m.SeeYouAs.IsValid() {
		r.As = m.SeeYouAs
	}
	var err error
	if r.Remote, err = p.Choose(r.ID, r.Theirs, old.Remote); err != nil {
		e := refuse("no-prefix", "no prefix is free for the pods of %s: %v", m.Name, err)
		return peer.Record{}, e
	}
	if r.Remote.Bits() != r.Theirs.Bits() {
		return peer.Record{}, fmt.Errorf("pairing: chose %s for %s: the sizes differ", r.Remote, r.Theirs)
	}
	if !known || !reflect.DeepEqual(r, old) {
		if err := p.Save(r); err != nil {
			return peer.Record{}, refuse("store", "the record of %s cannot be saved: %v", m.Name, err)
		}
	}
	return r, nil
}

// ClosedError is what a stranger is told while nobody new is trusted, and why.
func ClosedError(why string) error {
	return refuse("closed", "no new peer is trusted here: %s", why)
}

// admit judges the message by who sent it and to whom.
func admit(self Self, from Sender, m Message) error {
	switch {
	case m.ID != from.ID:
		return refuse("identity", "a message of %s came from %s", m.ID.Short(), from.ID.Short())
	case from.ID == self.ID:
		return refuse("clone", "the device at %s has the identity of this cluster", from.Addr)
	case m.WireGuardKey == self.WireGuardKey:
		return refuse("same-key", "%s at %s has the WireGuard key of this cluster", m.Name, from.Addr)
	case m.SeeYouAs.IsValid() && m.SeeYouAs.Bits() != self.PodCIDR.Bits():
		return refuse("prefix", "%s sees this cluster as %s, which is not of the size of %s", m.Name, m.SeeYouAs, self.PodCIDR)
	}
	return nil
}
