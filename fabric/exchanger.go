package fabric

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"rivulet/fabric/broker"
	"rivulet/fabric/discovery"
	"rivulet/fabric/keyring"
	"rivulet/fabric/pairing"
	"rivulet/fabric/panics"
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
	// slots bounds the exchanges that this side begins, strangers those among them with clusters that are no peers.
	slots, strangers chan struct{}
}

// A device that starts among two hundred calls all of them: each exchange writes to the disk, behind one lock. Peers come
// before strangers, which may answer as slowly as they like.
const (
	maxExchanges          = 16
	maxStrangersExchanges = 8
)

// exchange does the exchange with a cluster that has answered a call, when it is its turn.
func (x *exchanger) exchange(ctx context.Context, pinned bool, post pairing.Post) (peer.Record, error) {
	turns := []chan struct{}{x.slots}
	if !pinned {
		turns = []chan struct{}{x.strangers, x.slots}
	}
	for _, turn := range turns {
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
		case <-ctx.Done():
			return peer.Record{}, ctx.Err()
		}
	}
	return x.party.Exchange(ctx, post)
}

// discovered processes an entry of a source.
func (x *exchanger) discovered(source string, ev discovery.Event) {
	x.members.mu.Lock()
	defer x.members.mu.Unlock()
	x.take(source, ev)
	x.retake()
}

// retake processes entries again for which there is room now. It is called with mu held.
func (x *exchanger) retake() {
	for entry, e := range x.members.missed {
		if len(x.members.all)-len(x.members.peers()) >= maxStrangers {
			return
		}
		source, _, _ := strings.Cut(entry, "/")
		x.take(source, discovery.Event{Kind: discovery.Added, Entry: e})
	}
}

// take is discovered, with mu held.
func (x *exchanger) take(source string, ev discovery.Event) {
	entry := source + "/" + ev.Entry.Key
	delete(x.members.missed, entry)
	ev.Entry.Addrs = ev.Entry.Addrs[:min(len(ev.Entry.Addrs), discovery.MaxAddrs)]
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
			x.members.missed.add(entry, ev.Entry)
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
			if err := panics.Call(func() error { x.attempt(ctx, key, m); return nil }); err != nil {
				x.members.mu.Lock()
				x.log.Error("exchange failed", "peer", m.Title(), "err", err)
				x.members.do(m, m.Failed(time.Now(), err, false, err.Error()))
				x.members.mu.Unlock()
			}
		} else if idle {
			x.members.mu.Lock()
			if m.Idle() {
				x.members.forget(key, m)
				x.retake()
			}
			x.members.mu.Unlock()
		}
	}
}

// attempt runs the exchange with each address at which the cluster answers until one succeeds.
func (x *exchanger) attempt(ctx context.Context, key string, m *member) {
	began := time.Now()
	x.members.mu.Lock()
	id, addrs, pinned, name, mine := m.ID(), m.Addrs().All(), m.Pinned(), m.Title(), false
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
	callable := slices.DeleteFunc(slices.Clone(addrs), func(a netip.AddrPort) bool {
		if pinned {
			return false
		}
		e := x.admission.mayCall(id, name, x.admission.onLink(a.Addr()), a.Addr())
		if e != nil {
			err, mine = worse(err, e), true
		}
		return e != nil
	})
	for d := range pairing.DialEach(ctx, x.identity, id, callable) {
		var r peer.Record
		e := d.Err
		if e == nil {
			r, e = x.exchange(ctx, pinned, d.Post)
		}
		if e == nil {
			x.exchanged(key, m, r, told)
			return
		}
		if ctx.Err() != nil {
			return
		}
		x.anotherAt(m, d.Addr, e)
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
	if x.failed(m, began, err, mine, addrs) {
		if _, err := x.endings.unpeer(ctx, id, Unpeer{Force: true, Forget: true, Onesided: true}); err != nil && !errors.Is(err, errConfirmed) {
			x.log.Warn("a peer that has not taken this cluster as one stays", "id", id.Short(), "err", err)
		}
	}
}

// failed processes an attempt that began then and has failed. It reports whether the cluster is a peer for this side alone.
func (x *exchanger) failed(m *member, began time.Time, err error, mine bool, addrs []netip.AddrPort) (onesided bool) {
	x.members.mu.Lock()
	defer x.members.mu.Unlock()
	id := m.ID()
	err = pairing.AsRefusal(err, x.settings.name.get(), m.Handle())
	reason := peering.Explain(err, addrs)
	if facts := x.admission.facts(id); facts.Denied && facts.Approved == "" && !m.Pinned() { // before the exchange or during it
		p, _ := x.decisions.Revocation(id)
		_, err = pairing.Evaluate(facts, m.Handle(), netip.Addr{})
		mine, reason = true, deniedReason(p)
	}
	x.log.Debug("exchange failed", "peer", m.Title(), "err", err)
	x.members.do(m, m.Failed(time.Now(), err, mine, reason))
	return m.Onesided(began, time.Now())
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
	machine := ""
	if err != nil {
		machine = x.admission.machine(from.Addr)
	}
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
	m.from = machine
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
	for entry, e := range maps.Clone(m.Entries()) {
		if m.ID() == "" || e.ID != "" || !slices.Contains(e.Addrs, a) {
			continue
		}
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
