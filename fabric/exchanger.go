package fabric

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"rivulet/fabric/broker"
	"rivulet/fabric/discovery"
	"rivulet/fabric/keyring"
	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/peering"
	"rivulet/fabric/relay"
	"rivulet/fabric/rpc"
	"rivulet/fabric/trust"
	"rivulet/fabric/wgkey"
)

// exchanger runs the exchange with each cluster whenever it is due, processes inbound exchanges, and turns discovery
// entries into members.
type exchanger struct {
	identity  rpc.Identity
	port      uint16
	lans      LANs
	forget    time.Duration // how long a cluster that is no peer is kept after its last sign of life
	settings  *settings
	decisions *trust.Store
	keys      *keyring.Ring
	members   *members
	admission *admission
	endings   *endings
	party     *pairing.Party
	plane     *plane
	clients   *clients
	relay     *relay.Relay
	brokers   *broker.Client
	log       *slog.Logger
}

// discovered processes an entry of a source.
func (x *exchanger) discovered(source string, ev discovery.Event) {
	x.members.mu.Lock()
	defer x.members.mu.Unlock()
	entry := source + "/" + ev.Entry.Key
	if !pairing.ValidName(ev.Entry.Name) {
		ev.Entry.Name = "" // terminals and logs would show it
	}
	ours := x.ours(ev.Entry.Addrs)
	if ours && (ev.Entry.ID == "" || ev.Entry.ID == x.identity.ID) {
		return // a list with this cluster, or its own echo
	}
	key := string(ev.Entry.ID)
	if key == "" {
		key = x.members.known[entry]
	}
	if key == "" {
		key = entry
	}
	m := x.members.all[key]
	if ev.Kind == discovery.Removed {
		if m != nil && m.Gone(entry) {
			x.members.forget(key, m)
		}
		delete(x.members.known, entry)
		return
	}
	if m == nil {
		if !x.members.makeRoomForStranger() {
			return
		}
		m = x.members.member(key, ev.Entry.ID)
		x.log.Log(context.Background(), x.members.newsLevel(), "discovered", "peer", ev.Entry.Name, "id", ev.Entry.ID.Short(), "addrs", ev.Entry.Addrs, "source", source)
	}
	x.members.do(m, m.Found(time.Now(), entry, ev.Entry, ev.Kind == discovery.Changed, x.members.first(m.ID())))
}

// ours reports whether all the addresses are this device's own.
func (x *exchanger) ours(addrs []netip.AddrPort) bool {
	lans := x.lans.LANs()
	for _, a := range addrs {
		if !(lans.Own(a.Addr()) || a.Addr().IsLoopback()) || a.Port() != x.port {
			return false
		}
	}
	return len(addrs) > 0
}

// loop runs the exchange whenever it is due.
func (x *exchanger) loop(ctx context.Context, key string, m *member) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		x.members.mu.Lock()
		next, due := m.Next()
		idle := m.Idle() // refused an inbound request, or forgotten
		x.members.mu.Unlock()
		switch {
		case due:
			timer.Reset(time.Until(next))
		case idle:
			timer.Reset(x.forget)
		default:
			timer.Stop()
		}
		select {
		case <-ctx.Done():
			return
		case <-m.paceKick:
			continue
		case <-timer.C:
		}
		if due {
			x.attempt(ctx, key, m)
		} else if idle {
			x.members.mu.Lock()
			if m.Idle() {
				x.members.forget(key, m)
			}
			x.members.mu.Unlock()
		}
	}
}

// attempt runs the exchange with each address until one succeeds.
func (x *exchanger) attempt(ctx context.Context, key string, m *member) {
	x.members.mu.Lock()
	id, addrs, pinned, name, mine := m.ID(), m.Addrs(), m.Pinned(), m.Title(), false
	m.Begin()
	x.members.mu.Unlock()
	defer func() {
		x.members.mu.Lock()
		m.End()
		x.members.mu.Unlock()
	}()

	told := x.keys.Now().NextPublic
	err := fmt.Errorf("fabric: no address is known")
	if x.admission.leaving.Load() {
		addrs, pinned, err = nil, false, leavingError(x.settings.name.get())
	}
	if id != "" && !pinned && x.admission.mayCall(id, name, false, netip.Addr{}) == nil && len(x.relaysTo(id)) > 0 && !reachable(ctx, addrs) {
		r, e := x.exchangeRelayed(ctx, id)
		if e == nil {
			x.exchanged(key, m, r, told)
			return
		}
		if err = worse(err, e); pairing.Refused(e) {
			addrs = nil // the cluster has answered
		}
	}
	for _, a := range addrs {
		if !pinned {
			if e := x.admission.mayCall(id, name, x.admission.onLink(a.Addr()), a.Addr()); e != nil {
				err, mine = worse(err, e), true
				continue
			}
		}
		r, e := x.party.Exchange(ctx, pairing.PostTo(x.identity, id, a, nil))
		if e == nil {
			x.exchanged(key, m, r, told)
			return
		}
		if ctx.Err() != nil {
			return
		}
		x.anotherAt(m, a, e)
		err, mine = worse(err, e), false
	}
	if pinned {
		if r, e := x.exchangeInside(ctx, id); e == nil {
			x.exchanged(key, m, r, told)
			return
		} else if ctx.Err() != nil {
			return
		}
		if !x.endings.endedThere(id, err) {
			r, e := x.exchangeRelayed(ctx, id)
			if e == nil {
				x.exchanged(key, m, r, told)
				return
			} else if ctx.Err() != nil {
				return
			}
			err = worse(err, e)
			x.endings.endedThere(id, err)
		}
	}
	x.members.mu.Lock()
	defer x.members.mu.Unlock()
	err = pairing.AsRefusal(err, x.settings.name.get(), m.Handle())
	reason := peering.Explain(err, addrs)
	if facts := x.admission.facts(id); facts.Denied && facts.Approved == "" && !m.Pinned() { // before the exchange or during it
		p, _ := x.decisions.Revocation(id)
		_, err = pairing.Evaluate(facts, m.Handle(), netip.Addr{})
		mine, reason = true, deniedReason(p)
	}
	x.log.Debug("exchange failed", "peer", m.Title(), "err", err)
	x.members.do(m, m.Failed(time.Now(), err, mine, reason))
}

// exchanged processes a successful exchange.
func (x *exchanger) exchanged(key string, m *member, r peer.Record, told wgkey.Public) {
	x.members.mu.Lock()
	defer x.members.mu.Unlock()
	if m.ID() == "" { // now the ID at the address is known
		known := x.members.member(string(r.ID), r.ID)
		for _, entry := range known.TakeOver(m.Machine) {
			x.members.known[entry] = string(r.ID)
		}
		x.members.forget(key, m)
		m = known
	}
	x.members.do(m, m.Exchanged(time.Now(), told))
}

// received processes an inbound exchange and its result.
func (x *exchanger) received(from pairing.Sender, msg pairing.Message, err error) {
	x.members.mu.Lock()
	defer x.members.mu.Unlock()
	m := x.members.all[string(from.ID)]
	if err == nil {
		if m != nil {
			x.members.do(m, m.Received(time.Now(), msg.SeenAs == m.Record().PeerMappedCIDR))
		}
		return
	}
	x.log.Debug("refused an exchange", "from", from.Addr, "id", from.ID.Short(), "err", err)
	if m == nil {
		if !x.admission.onLink(from.Addr) && !worthShowing(err) || !x.members.makeRoomForStranger() {
			return
		}
		m = x.members.member(string(from.ID), from.ID)
	}
	reason := peering.Explain(err, nil)
	if p, ok := x.decisions.Revocation(from.ID); ok && peering.RefusedState(err, true) == peer.Denied {
		reason = deniedReason(p)
	}
	at := netip.AddrPortFrom(from.Addr, cmp.Or(msg.ControlPort, x.port))
	x.members.do(m, m.Requested(time.Now(), msg.Name, at, err, reason))
}

// worthShowing reports whether a stranger from another network is shown: it waits for an operator, or has sent an
// invite or a proof. Other strangers would only fill the list.
func worthShowing(err error) bool {
	switch pairing.Code(err) {
	case "pending", "name-taken", "wrong-proof", "invite", "token":
		return true
	}
	return false
}

// worse returns the more specific error: that of a cluster that answered.
func worse(old, err error) error {
	if pairing.Refused(old) && !pairing.Refused(err) {
		return old
	}
	return err
}

// exchangeInside tries the exchange through the tunnel, which may be the only path.
func (x *exchanger) exchangeInside(ctx context.Context, id peer.ID) (peer.Record, error) {
	l, ok := x.members.Link(id)
	if !ok || !x.plane.has(id) {
		return peer.Record{}, noLink(id)
	}
	return x.party.Exchange(ctx, pairing.PostTo(x.identity, id, l.Addr, x.clients.Dial))
}

// anotherAt separates a configured address (without ID) from its previous cluster, if e shows that another cluster is
// there now, and makes an exchange with it due.
func (x *exchanger) anotherAt(m *member, a netip.AddrPort, e error) {
	var wrong *rpc.WrongPeerError
	if !errors.As(e, &wrong) {
		return
	}
	x.members.mu.Lock()
	defer x.members.mu.Unlock()
	for entry, ok := m.Unnamed(a); ok; entry, ok = m.Unnamed(a) {
		delete(x.members.known, entry)
		if !x.members.makeRoomForStranger() {
			m.Gone(entry)
			continue
		}
		n := x.members.member(entry, "")
		m.Split(entry, n.Machine)
		x.members.do(n, n.Due(time.Now(), true))
	}
}
