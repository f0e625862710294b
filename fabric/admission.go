package fabric

import (
	"cmp"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"rivulet/fabric/connlimit"
	"rivulet/fabric/keyring"
	"rivulet/fabric/lanpeers"
	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/fabric/trust"
)

// Policy is which clusters become peers without an operator decision. The zero Policy is none.
type Policy struct {
	Mode pairing.Mode
	// Why is the reason that strangers receive with ModeClosed.
	Why string
	// Secret is the group's, for ModeGroup.
	Secret string
}

// admission decides which strangers become peers, and with which ones this cluster begins an exchange. It is this cluster
// in the exchange (pairing.Cluster). It reads the policy, operator decisions, members and keys; it alone counts the peers
// trusted by lan.
type admission struct {
	base      pairing.Self // what does not change
	kube      func() string
	settings  *settings
	decisions *trust.Store
	keys      *keyring.Ring
	members   *members
	prefixes  *prefixes
	gateways  *gateways
	endings   *endings
	lan       *lanpeers.Admission
	// onLink reports whether no router is between this device and the address.
	onLink func(netip.Addr) bool
	// hardware is the hardware address of a neighbour; it may be nil.
	hardware func(netip.Addr) string
	// leaving: no cluster may become a peer in this run.
	leaving atomic.Bool
	log     *slog.Logger

	mu      sync.Mutex           // a leaf
	invites map[peer.ID]received // while in use
}

// received is the secret of an invite, or of a token to join, of another cluster.
type received struct {
	secret []byte
	join   bool
}

// Self is this cluster's part of a message.
func (a *admission) Self() pairing.Self {
	s, keys := a.base, a.keys.Now()
	s.Name, s.KubeVersion, s.Group = a.settings.name.get(), a.kube(), a.settings.group()
	s.WireGuardKey, s.NextWireGuardKey, s.Private, s.NextPrivate = keys.Public, keys.NextPublic, keys.Private, keys.Next
	return s
}

func (a *admission) Record(id peer.ID) (peer.Record, bool) { return a.members.record(id) }

func (a *admission) Save(r peer.Record) error { return a.members.save(r) }

func (a *admission) Choose(id peer.ID, previous netip.Prefix) (netip.Prefix, error) {
	return a.prefixes.choose(id, previous)
}

func (a *admission) Parted(id peer.ID) (heard, skip uint64) {
	p, _ := a.decisions.Revocation(id)
	return p.Heard, p.Skip
}

func (a *admission) Invite(id peer.ID) (secret []byte, join bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.invites[id]
	return r.secret, r.join
}

// use puts the secret into messages to its cluster until the returned function is called.
func (a *admission) use(c trust.Code, join bool) (stop func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.invites[c.ID] = received{c.Secret, join}
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.invites, c.ID)
	}
}

// polling asks which peers are in use before a stranger's message is evaluated, where it might displace a peer: that calls the
// API server, and the evaluation holds the lock of all exchanges.
func (a *admission) polling(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, _ := rpc.PeerID(r)
		at, err := netip.ParseAddrPort(r.RemoteAddr)
		if _, known := a.members.record(id); !known && err == nil && a.settings.policy().Mode == pairing.ModeLAN {
			a.lan.Poll(a.source(at.Addr().Unmap()), a.members.lanPeers())
		}
		next.ServeHTTP(w, r)
	})
}

// Admit evaluates a stranger with all local facts. It changes nothing: Join does.
func (a *admission) Admit(s pairing.Stranger) (string, error) {
	if a.leaving.Load() {
		return "", leavingError(a.settings.name.get())
	}
	id := s.From.ID
	facts := a.facts(id)
	facts.Proved, facts.OnLink = s.Proved, !s.From.Inside && a.onLink(s.From.Addr)
	if len(s.Message.Invite) > 0 && !s.Starter {
		facts.HasInvite, facts.Join = true, s.Message.Join
		facts.InviteError = a.decisions.Check(s.Message.Invite, id, time.Now(), s.Message.Join)
	}
	facts.NameOf = a.taken(s.Message.Name, id)
	how, err := pairing.Evaluate(facts, s.Message.Name, s.From.Addr)
	if err == nil && how == peer.TrustLAN {
		_, err = a.roomFor(s.From.Addr, s.Message.Name)
	}
	return how, err
}

// taken is the peer that has the name of a stranger. One who is a peer already comes under no name: its key is known.
func (a *admission) taken(name string, id peer.ID) peer.ID {
	a.members.mu.Lock()
	defer a.members.mu.Unlock()
	if m := a.members.all[string(id)]; m != nil && m.Pinned() {
		return ""
	}
	return a.members.namesake(name, id)
}

// Join makes an admitted stranger a peer or a node: its invite is used up, its record stored, and where it is trusted by lan
// its place is counted and another one may make room. What was not stored has not used a place.
func (a *admission) Join(s pairing.Stranger, r peer.Record) error {
	if len(s.Message.Invite) > 0 && !s.Starter {
		_, approved := a.decisions.Approved(r.ID)
		err := a.decisions.Redeem(s.Message.Invite, r.ID, time.Now(), s.Message.Join)
		if why := trust.Refusal(""); errors.As(err, &why) && (s.Message.Join || !approved) {
			return pairing.InviteError(a.settings.name.get(), s.Message.Join, why)
		} else if err != nil && !errors.As(err, &why) {
			return err
		}
	}
	if r.Trust.How != peer.TrustLAN {
		return a.members.save(r)
	}
	victim, err := a.roomFor(s.From.Addr, s.Message.Name)
	if err != nil {
		return err
	}
	if err := a.members.save(r); err != nil {
		return err
	}
	source := a.source(s.From.Addr)
	a.lan.Admit(source)
	a.makeRoom(victim, source)
	return nil
}

func (a *admission) facts(id peer.ID) pairing.Facts {
	p := a.settings.policy()
	facts := pairing.Facts{Mode: p.Mode, Why: cmp.Or(p.Why, "nothing says whom to trust"), Here: a.settings.name.get()}
	if y, ok := a.decisions.Approved(id); ok {
		facts.Approved = y.How
	}
	if left, ok := a.decisions.Revocation(id); ok {
		facts.Denied, facts.Was = left.Denied, left.WasPeer
	}
	return facts
}

func leavingError(name string) *rpc.Error {
	return &rpc.Error{Code: "leaving", Message: name + " is being reset", Cure: "wait until it is back"}
}

// mayCall returns why this cluster does not start the exchange with a stranger: an exchange would make the stranger
// trust this cluster, and reveal its identity.
func (a *admission) mayCall(id peer.ID, name string, onLink bool, at netip.Addr) error {
	facts := a.facts(id)
	facts.OnLink = onLink
	switch {
	case a.leaving.Load():
		return leavingError(a.settings.name.get())
	case facts.Approved != "" || facts.Mode == pairing.ModeGroup && !facts.Denied:
		return nil // the answer is evaluated
	}
	facts.NameOf = a.taken(name, id) // as far as an announcement can be believed
	how, err := pairing.Evaluate(facts, cmp.Or(name, "it"), at)
	if err == nil && how == peer.TrustLAN {
		a.lan.Poll(a.source(at), a.members.lanPeers())
		_, err = a.roomFor(at, cmp.Or(name, "it"))
	}
	if e := new(rpc.Error); errors.As(err, &e) && (e.Code == "denied" || e.Code == "unpeered") {
		e.Cure = "rivulet peer " + cmp.Or(name, id.Short()) + " takes that back"
	}
	return err
}

// The number of peers that are trusted by lan alone is bounded by package lanpeers.

// source is what counts as one machine: the hardware address of a neighbour, or its address where that is unknown.
func (a *admission) source(at netip.Addr) string {
	return cmp.Or(a.neighbour(at), at.WithZone("").String())
}

// machine is source for strangers of any network: without a hardware address, one /64 of IPv6 is one machine.
func (a *admission) machine(at netip.Addr) string {
	return cmp.Or(a.neighbour(at), connlimit.Source(at).String())
}

// neighbour is the hardware address of a neighbour, empty if it is none or unknown.
func (a *admission) neighbour(at netip.Addr) string {
	if a.hardware == nil {
		return ""
	}
	return a.hardware(at)
}

// source is the source of a peer at the time of trust.
func (m *member) source() string {
	return cmp.Or(m.Record().Trust.Source, m.Record().Control.Addr().WithZone("").String())
}

// lanPeers are the peers trusted by lan alone.
func (s *members) lanPeers() (out []lanpeers.Peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.peers() {
		if m.Record().Trust.How == peer.TrustLAN {
			out = append(out, lanpeers.Peer{ID: m.ID(), Source: m.source(), Leaving: m.Displaced(),
				Answers: m.State() == peer.Connected, State: m.Since(), Trusted: m.Record().Trust.At})
		}
	}
	return out
}

// roomFor returns the peer that a stranger at the address would displace; none if there is room.
func (a *admission) roomFor(at netip.Addr, name string) (victim peer.ID, err error) {
	victim, ok := a.lan.Room(a.source(at), a.members.lanPeers())
	if !ok {
		return "", pairing.FullError(a.settings.name.get(), name)
	}
	return victim, nil
}

// makeRoom ends the peering with a peer that a newcomer of the source displaces, if there is one. The displaced peer is
// notified, and may return when there is room.
func (a *admission) makeRoom(victim peer.ID, source string) {
	a.members.mu.Lock()
	defer a.members.mu.Unlock()
	if m := a.members.byID(victim); m != nil && a.members.run != nil {
		m.Displace(true)
		if m.source() != source {
			a.lan.Displaced()
		}
		ctx := a.members.run
		a.log.Info("a peer makes room for a newcomer", "peer", m.Record().Name, "id", victim.Short())
		a.members.loops.Go(func() { // not here: the caller holds the exchange's lock
			if _, err := a.endings.unpeer(ctx, victim, Unpeer{Force: true, Forget: true}); err != nil {
				a.log.Warn("a peer that was to make room stays", "id", victim.Short(), "err", err)
				a.members.mu.Lock()
				m.Displace(false)
				a.members.mu.Unlock()
			}
		})
	}
}
