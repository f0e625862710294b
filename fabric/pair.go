package fabric

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"time"

	"rivulet/fabric/discovery"
	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/peering"
	"rivulet/fabric/wgkey"
)

func (f *Fabric) discovered(source string, ev discovery.Event) {
	f.members.mu.Lock()
	defer f.members.mu.Unlock()
	entry := source + "/" + ev.Entry.Key
	if !pairing.ValidName(ev.Entry.Name) {
		ev.Entry.Name = "" // terminals and logs would show it
	}
	ours := f.ours(ev.Entry.Addrs)
	if ours && (ev.Entry.ID == "" || ev.Entry.ID == f.cfg.Identity.ID) {
		return // a list with this cluster, or its own echo
	}
	key := string(ev.Entry.ID)
	if key == "" {
		key = f.known[entry]
	}
	if key == "" {
		key = entry
	}
	m := f.members.all[key]
	if ev.Kind == discovery.Removed {
		if m != nil {
			if m.Gone(entry) {
				f.forget(key)
			}
		}
		delete(f.known, entry)
		return
	}
	if m == nil {
		if !f.makeRoomForStranger() {
			return
		}
		m = f.member(key, ev.Entry.ID)
		f.log.Log(context.Background(), f.newsLevel(), "discovered", "peer", ev.Entry.Name, "id", ev.Entry.ID.Short(), "addrs", ev.Entry.Addrs, "source", source)
	}
	f.do(m, m.Found(time.Now(), entry, ev.Entry, ev.Kind == discovery.Changed, f.first(m.ID())))
}

// ours reports whether all the addresses are this device's own.
func (f *Fabric) ours(addrs []netip.AddrPort) bool {
	lans := f.cfg.LANs.LANs()
	for _, a := range addrs {
		if !(lans.Own(a.Addr()) || a.Addr().IsLoopback()) || a.Port() != f.cfg.Port {
			return false
		}
	}
	return len(addrs) > 0
}

// pairLoop runs the exchange whenever it is due.
func (f *Fabric) pairLoop(ctx context.Context, key string, m *member) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		f.members.mu.Lock()
		next, due := m.Next()
		idle := m.Idle() // refused an inbound request, or forgotten
		f.members.mu.Unlock()
		switch {
		case due:
			timer.Reset(time.Until(next))
		case idle:
			timer.Reset(f.cfg.Timing.Forget)
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
			f.attempt(ctx, key, m)
		} else if idle {
			f.members.mu.Lock()
			if m.Idle() {
				f.forget(key)
			}
			f.members.mu.Unlock()
		}
	}
}

// attempt runs the exchange with each address until one succeeds.
func (f *Fabric) attempt(ctx context.Context, key string, m *member) {
	f.members.mu.Lock()
	id, addrs, pinned, name, mine := m.ID(), m.Addrs(), m.Pinned(), m.Title(), false
	m.Begin()
	f.members.mu.Unlock()
	defer func() {
		f.members.mu.Lock()
		m.End()
		f.members.mu.Unlock()
	}()

	told := f.keys.Now().NextPublic
	err := fmt.Errorf("fabric: no address is known")
	if f.admission.leaving.Load() {
		addrs, pinned, err = nil, false, leavingError(f.settings.name.get())
	}
	if id != "" && !pinned && f.admission.mayCall(id, name, false, netip.Addr{}) == nil && len(f.relaysTo(id)) > 0 && !reachable(ctx, addrs) {
		r, e := f.exchangeRelayed(ctx, id)
		if e == nil {
			f.exchanged(key, m, r, told)
			return
		}
		if err = worse(err, e); pairing.Refused(e) {
			addrs = nil // the cluster has answered
		}
	}
	for _, a := range addrs {
		if !pinned {
			if e := f.admission.mayCall(id, name, f.admission.onLink(a.Addr()), a.Addr()); e != nil {
				err, mine = worse(err, e), true
				continue
			}
		}
		r, e := f.party.Exchange(ctx, pairing.PostTo(f.cfg.Identity, id, a, nil))
		if e == nil {
			f.exchanged(key, m, r, told)
			return
		}
		if ctx.Err() != nil {
			return
		}
		f.anotherAt(m, a, e)
		err, mine = worse(err, e), false
	}
	if pinned {
		if r, e := f.exchangeInside(ctx, id); e == nil {
			f.exchanged(key, m, r, told)
			return
		} else if ctx.Err() != nil {
			return
		}
		if !f.endings.endedThere(id, err) {
			if r, e := f.exchangeRelayed(ctx, id); e == nil {
				f.exchanged(key, m, r, told)
				return
			} else if ctx.Err() != nil {
				return
			}
		}
	}
	f.members.mu.Lock()
	defer f.members.mu.Unlock()
	err = pairing.AsRefusal(err, f.settings.name.get(), m.Handle())
	reason := peering.Explain(err, addrs)
	if p, ok := f.decisions.Revocation(id); ok && p.Denied && mine {
		reason = deniedReason(p)
	}
	f.log.Debug("exchange failed", "peer", m.Title(), "err", err)
	f.do(m, m.Failed(time.Now(), err, mine, reason))
}

// exchanged processes a successful exchange.
func (f *Fabric) exchanged(key string, m *member, r peer.Record, told wgkey.Public) {
	f.members.mu.Lock()
	defer f.members.mu.Unlock()
	if m.ID() == "" { // now the ID at the address is known
		known := f.member(string(r.ID), r.ID)
		for _, entry := range known.TakeOver(m.Machine) {
			f.known[entry] = string(r.ID)
		}
		f.forget(key)
		m = known
	}
	f.do(m, m.Exchanged(time.Now(), told))
}

// received processes an inbound exchange and its result.
func (f *Fabric) received(from pairing.Sender, msg pairing.Message, err error) {
	f.members.mu.Lock()
	defer f.members.mu.Unlock()
	m := f.members.all[string(from.ID)]
	if err == nil {
		if m != nil {
			f.do(m, m.Received(time.Now(), msg.SeenAs == m.Record().PeerMappedCIDR))
		}
		return
	}
	f.log.Debug("refused an exchange", "from", from.Addr, "id", from.ID.Short(), "err", err)
	if m == nil {
		if !f.admission.onLink(from.Addr) && !worthShowing(err) || !f.makeRoomForStranger() {
			return
		}
		m = f.member(string(from.ID), from.ID)
	}
	reason := peering.Explain(err, nil)
	if p, ok := f.decisions.Revocation(from.ID); ok && peering.RefusedState(err, true) == peer.Denied {
		reason = deniedReason(p)
	}
	at := netip.AddrPortFrom(from.Addr, cmp.Or(msg.ControlPort, f.cfg.Port))
	f.do(m, m.Requested(time.Now(), msg.Name, at, err, reason))
}

// worthShowing reports whether a stranger from another network is shown: it waits for an operator, or has sent an
// invite or a proof. Other strangers would only fill the list.
func worthShowing(err error) bool {
	switch pairing.Code(err) {
	case "pending", "name-taken", "wrong-proof", "invite":
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
func (f *Fabric) exchangeInside(ctx context.Context, id peer.ID) (peer.Record, error) {
	l, ok := f.Link(id)
	if !ok || !f.plane.has(id) {
		return peer.Record{}, noLink(id)
	}
	return f.party.Exchange(ctx, pairing.PostTo(f.cfg.Identity, id, l.Addr, f.Dial))
}
