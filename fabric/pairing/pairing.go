// Package pairing is how two clusters establish trust and agree on their tunnel: one idempotent exchange of messages
// that either side may start. docs/design/peering.md shows each message.
//
//	starter                                responder
//	   | -- Hello (seeYouAs if known) -----> |  learn, choose, store
//	learn, choose, store  <--- Hello ------- |
//	   | -- Hello (seeYouAs) --------------> |  learn, store      only if the answer's
//	   | <-------------------------- Hello - |                    seenAs differs from the choice
//
// Both sides process messages alike, in Party.learn; Cluster.Admit evaluates strangers, and Cluster.Join stores an
// admitted one after all other checks. A peer by lan becomes a member of the group with the proof that a stranger needs.
// Messages have sequences: late ones are ignored. A side stores its choice before it sends it, so the next exchange repairs a crash between any two steps, and
// no peer has a prefix that its chooser has forgotten. The responder stores before the starter has judged it: until the
// starter repeats its choice, its record is unconfirmed, and package fabric gives it up after a refusal or a minute.
//
// It reads and writes peer records through the interface Cluster, and takes time and network as arguments. A refusal is an
// *rpc.Error with a cure.
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

// Self is what this cluster says of itself in its messages, and the secrets that it proves in them.
type Self struct {
	ID           peer.ID
	Name         string
	Version      string
	KubeVersion  string
	WireGuardKey wgkey.Public
	// NextWireGuardKey is the planned next key, zero if there is none.
	NextWireGuardKey wgkey.Public
	TunnelPort       uint16
	ControlPort      uint16
	TunnelAddress    netip.Addr
	PodCIDR          netip.Prefix
	ServiceCIDR      netip.Prefix
	// Private and NextPrivate are the private WireGuard keys; without the first one nothing is proved. A text form of a
	// Private is the key itself, so none is ever encoded with the rest.
	Private, NextPrivate wgkey.Private `json:"-"`
	// Group is the key of this cluster's group, nil if there is none.
	Group *GroupKey `json:"-"`
}

// Sender is the sender of a message, as TLS and TCP prove it.
type Sender struct {
	ID          peer.ID
	Certificate []byte // DER
	Addr        netip.Addr
	// Binding is a value that only the two ends of this TLS connection have.
	Binding []byte
	// Inside: the message came through the tunnel, so Addr is not an address of the underlay.
	Inside bool
}

// Cluster is the cluster of a Party: what it knows of others, and what it decides about them.
type Cluster interface {
	Self() Self
	// Record returns the record of a peer; ok is false if the cluster is none.
	Record(peer.ID) (r peer.Record, ok bool)
	// Parted returns the sequences of a cluster that is a peer no more.
	Parted(peer.ID) (heard, skip uint64)
	// Invite returns the secret of an invite that the cluster has given to this one, nil if there is none. With join, this
	// device wants to be a node of that cluster.
	Invite(peer.ID) (secret []byte, join bool)
	// Admit returns how a stranger is trusted, or an *rpc.Error with the reason why not. It changes nothing: the stranger may
	// still be refused. A peer by lan that proves the group's secret is evaluated as a stranger, too: it may become a member.
	Admit(Stranger) (how string, err error)
	// Join stores the record of an admitted stranger, with all that its admission changes. It is called after all checks. An
	// *rpc.Error is a refusal after all.
	Join(Stranger, peer.Record) error
	// Save stores the record of a peer durably. It is not called for an unchanged record.
	Save(peer.Record) error
	// Choose returns the prefix under which to see the peer's pods, as large as this cluster's pod CIDR: previous if it
	// can stay.
	Choose(id peer.ID, previous netip.Prefix) (netip.Prefix, error)
	// Claim refuses, with an *rpc.Error, a record with a key of another owner, or takes from others the keys that the
	// record has proved. ErrContested means that a proof would help.
	Claim(peer.Record) error
}

// Party is one side of the exchange. Its methods may be called concurrently.
type Party struct {
	Cluster Cluster
	// Epoch is higher at every start of this cluster, and not reused even if its disk is restored from a backup.
	Epoch uint64
	Now   func() time.Time

	mu    sync.Mutex // from reading a record to saving it
	count uint64     // messages of this start
	known map[peer.ID]*numbers
}

// numbers are the sequences between this cluster and one other: received from it, and skipped towards it.
type numbers struct{ received, skip uint64 }

// maxNumbers bounds the clusters with sequences in memory.
const maxNumbers = 1024

// Post opens a connection to the peer, sends the message that compose returns for its cluster, and returns the answer.
type Post func(ctx context.Context, compose func(Sender) Message) (Message, Sender, error)

// numbers of a cluster: those of its record or its revocation, updated by later messages. It is called with mu held.
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
	if r, ok := p.Cluster.Record(id); ok {
		n.received, n.skip = max(n.received, r.Heard), max(n.skip, r.Skip)
	} else {
		heard, skip := p.Cluster.Parted(id)
		n.received, n.skip = max(n.received, heard), max(n.skip, skip)
	}
	return n
}

// hello is the present message to a cluster. It is called with mu held, so that a higher sequence is never older.
// Theirs is the key that the cluster has sent.
func (p *Party) hello(s Self, to Sender, theirs wgkey.Public) Message {
	n := p.numbers(to.ID)
	r, _ := p.Cluster.Record(to.ID)
	p.count++
	m := s.Hello(r)
	s.provePossession(&m, to.ID, theirs)
	m.Sequence, m.Heard = p.issued(n), n.received
	return m
}

// Hello is the message to a cluster with this record, without a sequence.
func (s Self) Hello(r peer.Record) Message {
	return Message{
		Versions: Versions, ID: s.ID, Name: s.Name, Version: s.Version, KubeVersion: s.KubeVersion,
		WireGuardKey: s.WireGuardKey, TunnelPort: s.TunnelPort, ControlPort: s.ControlPort, TunnelAddress: s.TunnelAddress,
		PodCIDR: s.PodCIDR, ServiceCIDR: s.ServiceCIDR, SeeYouAs: r.PeerMappedCIDR, SeenAs: r.LocalMappedCIDR,
		Roles: r.Roles, NextWireGuardKey: s.NextWireGuardKey,
	}
}

// call is hello of the starter.
func (p *Party) call(to Sender) Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, known := p.Cluster.Record(to.ID)
	self := p.Cluster.Self()
	m := p.hello(self, to, r.WireGuardKey)
	if self.Group != nil {
		m.Proof = self.Group.prove(roleStarter, to.Binding, m.ID, to.ID)
		if !known {
			m.Demands = string(ModeGroup)
		}
	}
	m.Invite, m.Join = p.Cluster.Invite(to.ID)
	return m
}

// Receive is the responder: it learns from the message and returns the answer.
func (p *Party) Receive(from Sender, m Message) (Message, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _, err := p.learn(from, m, false)
	if err != nil {
		return Message{}, err
	}
	self := p.Cluster.Self()
	answer := p.hello(self, from, m.WireGuardKey)
	// Only a sender that has proved the secret receives a proof of it.
	if key := self.Group; key.verify(m.Proof, roleStarter, from.Binding, from.ID, answer.ID) == RightProof {
		answer.Proof = key.prove(roleResponder, from.Binding, answer.ID, from.ID)
	}
	return answer, nil
}

// rounds bounds one exchange: learn, send, and two spare ones: for a peer that chose again meanwhile, and for sequences
// that have to catch up.
const rounds = 4

// Exchange is the starter. It returns when both sides have all they need, or with the reason why not; in either case
// what was learnt is stored.
func (p *Party) Exchange(ctx context.Context, post Post) (peer.Record, error) {
	var r peer.Record
	for range rounds {
		var sent uint64
		var seenAs netip.Prefix
		var provedTo wgkey.Public
		m, from, err := post(ctx, func(to Sender) Message {
			r, _ := p.Cluster.Record(to.ID)
			provedTo = r.WireGuardKey // or a newer one: then there is one more round
			hello := p.call(to)
			sent, seenAs = hello.Sequence, hello.SeenAs
			return hello
		})
		if err != nil {
			return r, err
		}
		p.mu.Lock()
		// If the peer has received more than was sent, the sequences here are outdated: learn corrects them.
		taken := m.Heard >= sent && m.Heard <= p.issued(p.numbers(from.ID))
		var stale bool
		r, stale, err = p.learn(from, m, true)
		p.mu.Unlock()
		if err != nil {
			return r, err
		}
		proved := !m.Proves || provedTo == m.WireGuardKey
		if taken && proved && !stale && r.Complete() && m.SeenAs == r.PeerMappedCIDR && seenAs == r.LocalMappedCIDR {
			return r, nil
		}
	}
	return r, refuse("bad-message", "%s does not take in what it is told", r.Name)
}

// countBits bounds the messages of one start.
const countBits = 24

// issued is the highest sequence that this cluster can have used towards a cluster.
func (p *Party) issued(n *numbers) uint64 { return p.Epoch<<countBits + p.count + n.skip }

// learn stores what the peer's message contains. Stale: the message is older than another one, and is ignored. It is
// called with mu held.
func (p *Party) learn(from Sender, m Message, starter bool) (r peer.Record, stale bool, err error) {
	self := p.Cluster.Self()
	if err := m.check(); err != nil {
		return peer.Record{}, false, err
	}
	if err := admit(self, from, m); err != nil {
		return peer.Record{}, false, err
	}
	old, known := p.Cluster.Record(from.ID)
	n := p.numbers(from.ID)
	if issued := p.issued(n); m.Heard > issued {
		// It has received higher sequences than this cluster can have sent: this disk was restored from an earlier
		// state. Continue after the highest.
		n.skip += m.Heard - issued
	}
	r = old
	save := p.Cluster.Save
	role := roleStarter
	if starter {
		role = roleResponder
	}
	s := Stranger{From: from, Message: m, Starter: starter, Proved: self.Group.verify(m.Proof, role, from.Binding, from.ID, self.ID)}
	joins := known && !starter && m.Join && len(m.Invite) > 0 // a peer, on its way to be a node of this cluster
	if !known || joins {
		how, err := p.Cluster.Admit(s)
		if err != nil {
			return peer.Record{}, false, err
		}
		if !known && m.Demands == string(ModeGroup) && s.Proved != RightProof {
			// It refuses this cluster: do not store it as a peer.
			return peer.Record{}, false, refuse("no-proof", "%s has a group whose secret %s does not have", m.Name, self.Name)
		}
		if !known {
			r = peer.Record{ID: from.ID, Trust: peer.Trust{At: p.Now()}, Unconfirmed: !starter}
		}
		r.Trust.How = how
		if how != peer.TrustLAN && how != peer.TrustGroup { // what a person has decided, or a token, does not depend on the other side
			r.Unconfirmed = false
		}
		save = func(r peer.Record) error { return p.Cluster.Join(s, r) }
	}
	if m.Sequence != 0 && m.Sequence <= n.received {
		return old, true, nil
	}
	r.Name, r.Version, r.KubeVersion = m.Name, m.Version, m.KubeVersion
	r.Certificate, r.WireGuardKey, r.TunnelAddress = from.Certificate, m.WireGuardKey, m.TunnelAddress
	r.NextWireGuardKey, r.TheirRoles, r.Skip = m.NextWireGuardKey, m.Roles, n.skip
	// A proof remains valid, also when a proved next key becomes the present one.
	shown := func(key wgkey.Public) bool {
		return !key.IsZero() && (key == old.WireGuardKey && old.KeyProved || key == old.NextWireGuardKey && old.NextKeyProved)
	}
	r.KeyProved = shown(r.WireGuardKey) || self.possesses(from.ID, r.WireGuardKey, m.KeyProof)
	r.NextKeyProved = shown(r.NextWireGuardKey) || self.possesses(from.ID, r.NextWireGuardKey, m.NextKeyProof)
	if m.Proves && len(self.ours()) > 0 && old.Complete() && (!r.KeyProved || !r.NextWireGuardKey.IsZero() && !r.NextKeyProved) {
		return old, true, nil // it has an older key of this cluster: this answer, or its next one, has the proof
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
		// A change would cut the tunnel that carries this message before the peer has received it.
	} else if r.PeerMappedCIDR, err = p.Cluster.Choose(r.ID, old.PeerMappedCIDR); err != nil {
		return peer.Record{}, false, refuse("no-prefix", "no prefix is free for the pods of %s: %v", m.Name, err)
	}
	if m.SeenAs == r.PeerMappedCIDR {
		r.Unconfirmed = false
	}
	if known && r.Trust.How == peer.TrustLAN && p.isMember(s) {
		r.Trust = peer.Trust{How: peer.TrustGroup, At: p.Now()}
	}
	if err := p.Cluster.Claim(r); err != nil { // last, since it may take a key from another
		if errors.Is(err, ErrContested) && m.Proves && !starter {
			return old, true, nil // it receives the key, and proves its own
		}
		if known := (*rpc.Error)(nil); errors.As(err, &known) {
			err = known
		}
		return peer.Record{}, false, err
	}
	if !known || !reflect.DeepEqual(r, old) {
		r.Heard = max(m.Sequence, n.received)
		err := save(r)
		if refused := (*rpc.Error)(nil); errors.As(err, &refused) {
			return peer.Record{}, false, refused
		}
		if err != nil {
			return peer.Record{}, false, refuse("store", "the record of %s cannot be saved: %v", m.Name, err)
		}
	}
	n.received = max(m.Sequence, n.received)
	return r, false, nil
}

// isMember reports whether a peer by lan has proved the group's secret in this message, and would be a member of the group
// as a stranger. It is called with mu held.
func (p *Party) isMember(s Stranger) bool {
	if s.Proved != RightProof {
		return false
	}
	how, err := p.Cluster.Admit(s)
	return err == nil && how == peer.TrustGroup
}

// Between calls do between two messages.
func (p *Party) Between(do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	do()
}

// Change changes a record between two messages.
func (p *Party) Change(id peer.ID, change func(*peer.Record)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, known := p.Cluster.Record(id)
	if !known {
		return fmt.Errorf("pairing: %s is no peer; see: rivulet peers", id.Short())
	}
	was := r
	if change(&r); reflect.DeepEqual(r, was) {
		return nil
	}
	return p.Cluster.Save(r)
}

// ClosedError is the refusal of strangers while no new peers are accepted, with the reason.
func ClosedError(why string) error {
	return refuse("closed", "no new peer is trusted here: %s", why)
}

// FullError is the refusal of strangers while there is no room for one more peer by lan.
func FullError(here, name string) *rpc.Error {
	return refuse("full", "%s has as many peers by trust.mode lan as it has room for, and none makes room for %s", here, name)
}

// admit validates the message against its sender and receiver.
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
