// Package pairing is how two clusters come to trust each other and agree on how
// their tunnel is made: one idempotent exchange of messages, that either side may
// start. docs/design/peering.md shows it message by message.
//
//	starter                                responder
//	   | -- Hello (seeYouAs if known) -----> |  learn, choose, store
//	learn, choose, store  <--- Hello ------- |
//	   | -- Hello (seeYouAs) --------------> |  learn, store      only if the answer's
//	   | <-------------------------- Hello - |                    seenAs is not our choice
//
// Both sides do the same with what they hear: Party.learn. Whether a stranger is heard
// at all is judged by Judge. Messages are numbered: one that comes late is not learnt. What a side chooses it
// stores before it tells, so a crash between any two steps is healed by the next
// exchange and never leaves a peer with a prefix that its chooser has forgotten.
//
// It reads and writes peer records through functions it is given, and takes time
// and network as arguments. A refusal is an *rpc.Error with a cure.
package pairing

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"sync"
	"time"

	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/fabric/wgkey"
)

// Self is what a cluster tells of itself.
type Self struct {
	ID           peer.ID
	Name         string
	Version      string
	KubeVersion  string
	WireGuardKey wgkey.Public
	// NextWireGuardKey is the one we will change to, none if we will not.
	NextWireGuardKey wgkey.Public
	TunnelPort       uint16
	ControlPort      uint16
	TunnelAddress    netip.Addr
	PodCIDR          netip.Prefix
	ServiceCIDR      netip.Prefix
}

// Sender is who a message came from, as TLS and TCP prove it.
type Sender struct {
	ID          peer.ID
	Certificate []byte // DER
	Addr        netip.Addr
	// Binding is a value that both ends of this TLS connection know, and nobody else.
	Binding []byte
	// Inside: it came through the tunnel, so Addr says nothing of where the sender is.
	Inside bool
}

// Party is one side of the exchange. Its methods may be called concurrently.
type Party struct {
	Self   func() Self
	Record func(peer.ID) (peer.Record, bool)
	// Save keeps the record durably. It is not called for a record that is there already.
	Save func(peer.Record) error
	// Choose returns the prefix under which to see the peer's pods, as large as our own
	// pod CIDR; previous if it can stay.
	Choose func(id peer.ID, previous netip.Prefix) (netip.Prefix, error)
	// Admit says how a stranger is trusted, or with an *rpc.Error why it is not.
	Admit func(Stranger) (how string, err error)
	// Claim refuses, with an *rpc.Error, a record with a key that is another's, or takes from
	// others what the record has proved; with ErrContested where a proof would help. It may be nil.
	Claim func(peer.Record) error
	// Keys are our private WireGuard keys, the next one none if there is none. It may be nil:
	// then nothing is proved.
	Keys func() (present, next wgkey.Private)
	// Group is the key of our group, nil if we are in none. It may be nil itself.
	Group func() *GroupKey
	// Invite is the secret of an invite that the cluster has given us, nil if there is
	// none. It may be nil itself.
	Invite func(peer.ID) []byte
	// Parted returns the sequences of a cluster that is a peer no more. It may be nil.
	Parted func(peer.ID) (heard, skip uint64)
	// Epoch is higher at every start of this cluster, and not used twice even if its
	// disk is brought back to an earlier day.
	Epoch uint64
	Now   func() time.Time

	mu    sync.Mutex // from reading a record to saving it
	count uint64     // messages of this start
	known map[peer.ID]*numbers
}

// numbers are the sequences that go to and fro between us and one other cluster.
type numbers struct{ received, skip uint64 }

// maxNumbers bounds for how many clusters numbers are kept in memory.
const maxNumbers = 1024

// Post opens a connection to the peer, sends what say returns for who is there, and
// brings the answer.
type Post func(ctx context.Context, compose func(Sender) Message) (Message, Sender, error)

// numbers of a cluster: what its record says, or its parting, and what has been
// heard and said since. It is called with mu held.
func (p *Party) numbers(id peer.ID) *numbers {
	n := p.known[id]
	if n == nil {
		if len(p.known) >= maxNumbers {
			p.known = nil // those of peers are in their records
		}
		if p.known == nil {
			p.known = map[peer.ID]*numbers{}
		}
		n = &numbers{}
		p.known[id] = n
	}
	if r, ok := p.Record(id); ok {
		n.received, n.skip = max(n.received, r.Heard), max(n.skip, r.Skip)
	} else if p.Parted != nil {
		heard, skip := p.Parted(id)
		n.received, n.skip = max(n.received, heard), max(n.skip, skip)
	}
	return n
}

// hello is what we have to say to a cluster, now. It is called with mu held, so that
// what has a higher number is not older. theirs is the key that the cluster has told.
func (p *Party) hello(to Sender, theirs wgkey.Public) Message {
	s, n := p.Self(), p.numbers(to.ID)
	r, _ := p.Record(to.ID)
	p.count++
	m := s.Hello(r)
	p.provePossession(&m, to.ID, theirs)
	m.Sequence, m.Heard = p.issued(n), n.received
	return m
}

// Hello is what there is to say to a cluster with this record, without a number.
func (s Self) Hello(r peer.Record) Message {
	return Message{
		Versions: Versions, ID: s.ID, Name: s.Name, Version: s.Version, KubeVersion: s.KubeVersion,
		WireGuardKey: s.WireGuardKey, TunnelPort: s.TunnelPort, ControlPort: s.ControlPort, TunnelAddress: s.TunnelAddress,
		PodCIDR: s.PodCIDR, ServiceCIDR: s.ServiceCIDR, SeeYouAs: r.PeerMappedCIDR, SeenAs: r.LocalMappedCIDR,
		Roles: r.Roles, NextWireGuardKey: s.NextWireGuardKey,
	}
}

// call is hello of the one who starts.
func (p *Party) call(to Sender) Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, _ := p.Record(to.ID)
	m := p.hello(to, r.WireGuardKey)
	if key := p.group(); key != nil {
		m.Proof = key.prove(roleStarter, to.Binding, m.ID, to.ID)
		if _, known := p.Record(to.ID); !known {
			m.Demands = string(ModeGroup)
		}
	}
	if p.Invite != nil {
		m.Invite = p.Invite(to.ID)
	}
	return m
}

func (p *Party) group() *GroupKey {
	if p.Group == nil {
		return nil
	}
	return p.Group()
}

// Receive is the responder: it learns from the message and answers it.
func (p *Party) Receive(from Sender, m Message) (Message, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _, err := p.learn(from, m, false)
	if err != nil {
		return Message{}, err
	}
	answer := p.hello(from, m.WireGuardKey)
	// Only who has shown that it knows the secret gets to see a proof of it.
	if key := p.group(); key.verify(m.Proof, roleStarter, from.Binding, from.ID, answer.ID) == RightProof {
		answer.Proof = key.prove(roleResponder, from.Binding, answer.ID, from.ID)
	}
	return answer, nil
}

// rounds bounds one exchange: learn, tell, and two to spare: for a peer that chose
// anew in between, and for numbers that have to catch up.
const rounds = 4

// Exchange is the starter. It returns when both sides know what they need of each
// other, or with the reason why not; in either case what was learnt has been saved.
func (p *Party) Exchange(ctx context.Context, post Post) (peer.Record, error) {
	var r peer.Record
	for range rounds {
		var sent uint64
		var provedTo wgkey.Public
		m, from, err := post(ctx, func(to Sender) Message {
			r, _ := p.Record(to.ID)
			provedTo = r.WireGuardKey // or a newer one: then there is a round more
			hello := p.call(to)
			sent = hello.Sequence
			return hello
		})
		if err != nil {
			return r, err
		}
		p.mu.Lock()
		// A peer that has received more than was sent has outdated numbers here: learn sees to that.
		taken := m.Heard >= sent && m.Heard <= p.issued(p.numbers(from.ID))
		var stale bool
		r, stale, err = p.learn(from, m, true)
		p.mu.Unlock()
		if err != nil {
			return r, err
		}
		proved := !m.Proves || provedTo == m.WireGuardKey
		if taken && proved && !stale && r.Complete() && m.SeenAs == r.PeerMappedCIDR {
			return r, nil
		}
	}
	return r, refuse("bad-message", "%s does not take in what it is told", r.Name)
}

// countBits are what one start has for its messages.
const countBits = 24

// issued is the highest number that we can have used towards a cluster.
func (p *Party) issued(n *numbers) uint64 { return p.Epoch<<countBits + p.count + n.skip }

// learn turns what the peer says into what is remembered of it. A message that is
// older than another one is not learnt: stale. It is called with mu held.
func (p *Party) learn(from Sender, m Message, starter bool) (r peer.Record, stale bool, err error) {
	self := p.Self()
	if err := m.check(); err != nil {
		return peer.Record{}, false, err
	}
	if err := admit(self, from, m); err != nil {
		return peer.Record{}, false, err
	}
	old, known := p.Record(from.ID)
	n := p.numbers(from.ID)
	if issued := p.issued(n); m.Heard > issued {
		// It has heard more of us than we can have said: our disk was brought back to an
		// earlier day. We go on after that.
		n.skip += m.Heard - issued
	}
	r = old
	if !known {
		role := roleStarter
		if starter {
			role = roleResponder
		}
		s := Stranger{From: from, Message: m, Starter: starter, Proved: p.group().verify(m.Proof, role, from.Binding, from.ID, self.ID)}
		how, err := p.Admit(s)
		if err != nil {
			return peer.Record{}, false, err
		}
		if m.Demands == string(ModeGroup) && s.Proved != RightProof {
			// It will not have us: do not remember it as a peer.
			return peer.Record{}, false, refuse("no-proof", "%s has a group whose secret %s does not have", m.Name, self.Name)
		}
		r = peer.Record{ID: from.ID, Trust: peer.Trust{How: how, At: p.Now()}}
	}
	if m.Sequence != 0 && m.Sequence <= n.received {
		return old, true, nil
	}
	r.Name, r.Version, r.KubeVersion, r.Protocol = m.Name, m.Version, m.KubeVersion, m.common()
	r.Certificate, r.WireGuardKey, r.TunnelAddress = from.Certificate, m.WireGuardKey, m.TunnelAddress
	r.NextWireGuardKey, r.TheirRoles, r.Skip = m.NextWireGuardKey, m.Roles, n.skip
	// What was proved once is known, of a next key that is the present one now, too.
	shown := func(key wgkey.Public) bool {
		return !key.IsZero() && (key == old.WireGuardKey && old.KeyProved || key == old.NextWireGuardKey && old.NextKeyProved)
	}
	r.KeyProved = shown(r.WireGuardKey) || p.possesses(from.ID, self.ID, r.WireGuardKey, m.KeyProof)
	r.NextKeyProved = shown(r.NextWireGuardKey) || p.possesses(from.ID, self.ID, r.NextWireGuardKey, m.NextKeyProof)
	if m.Proves && len(p.ours()) > 0 && old.Complete() && (!r.KeyProved || !r.NextWireGuardKey.IsZero() && !r.NextKeyProved) {
		return old, true, nil // it has an older key of ours: this answer, or its next one, has the proof
	}
	if p.Claim != nil {
		err := p.Claim(r)
		if errors.Is(err, ErrContested) && m.Proves && !starter {
			return old, true, nil // it hears our key, and proves its own
		}
		if known := (*rpc.Error)(nil); errors.As(err, &known) {
			err = known
		}
		if err != nil {
			return peer.Record{}, false, err
		}
	}
	if !from.Inside {
		r.Control = netip.AddrPortFrom(from.Addr, m.ControlPort)
		r.Tunnel = netip.AddrPortFrom(from.Addr, m.TunnelPort)
	} else if !r.Control.IsValid() { // met through another: only the ports are known
		r.Control = netip.AddrPortFrom(netip.IPv4Unspecified(), m.ControlPort)
		r.Tunnel = netip.AddrPortFrom(netip.IPv4Unspecified(), m.TunnelPort)
	}
	r.PeerCIDR = m.PodCIDR
	if m.SeeYouAs.IsValid() {
		r.LocalMappedCIDR = m.SeeYouAs
	}
	if from.Inside && old.PeerMappedCIDR.IsValid() && old.PeerMappedCIDR.Bits() == r.PeerCIDR.Bits() {
		// What carries this message would be gone before the peer has heard of it.
	} else if r.PeerMappedCIDR, err = p.Choose(r.ID, old.PeerMappedCIDR); err != nil {
		return peer.Record{}, false, refuse("no-prefix", "no prefix is free for the pods of %s: %v", m.Name, err)
	}
	if !known || !reflect.DeepEqual(r, old) {
		r.Heard = max(m.Sequence, n.received)
		if err := p.Save(r); err != nil {
			return peer.Record{}, false, refuse("store", "the record of %s cannot be saved: %v", m.Name, err)
		}
	}
	n.received = max(m.Sequence, n.received)
	return r, false, nil
}

// Change changes a record between two messages.
func (p *Party) Change(id peer.ID, change func(*peer.Record)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, known := p.Record(id)
	if !known {
		return fmt.Errorf("pairing: %s is no peer; see: rivulet peers", id.Short())
	}
	was := r
	if change(&r); reflect.DeepEqual(r, was) {
		return nil
	}
	return p.Save(r)
}

// ClosedError is what a stranger is told while nobody new is trusted, and why.
func ClosedError(why string) error {
	return refuse("closed", "no new peer is trusted here: %s", why)
}

// FullError is what a stranger is told while there is no room for one more peer by lan.
func FullError(here, name string) *rpc.Error {
	return refuse("full", "%s has as many peers by trust.mode lan as it has room for, and none makes room for %s", here, name)
}

// admit judges the message by who sent it and to whom.
func admit(self Self, from Sender, m Message) error {
	switch {
	case m.ID != from.ID:
		return refuse("identity", "a message of %s came from %s", m.ID.Short(), from.ID.Short())
	case from.ID == self.ID:
		return refuse("clone", "the device at %s has the identity of this cluster", from.Addr)
	case wgkey.Common([]wgkey.Public{m.WireGuardKey, m.NextWireGuardKey}, []wgkey.Public{self.WireGuardKey, self.NextWireGuardKey}):
		return refuse("same-key", "%s at %s has a WireGuard key of this cluster", m.Name, from.Addr)
	case m.PodCIDR.Bits() != self.PodCIDR.Bits():
		return refuse("prefix", "%s has %s for its pods and %s has %s: the sizes differ", m.Name, m.PodCIDR, self.Name, self.PodCIDR)
	case m.SeeYouAs.IsValid() && m.SeeYouAs.Bits() != self.PodCIDR.Bits():
		return refuse("prefix", "%s sees this cluster as %s, which is not of the size of %s", m.Name, m.SeeYouAs, self.PodCIDR)
	}
	return nil
}
