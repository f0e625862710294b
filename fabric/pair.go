package fabric

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"rivulet/fabric/discovery"
	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/fabric/wgkey"
)

// discovered takes in what a source tells.
func (f *Fabric) discovered(source string, ev discovery.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	entry := source + "/" + ev.Entry.Key
	if !pairing.ValidName(ev.Entry.Name) {
		ev.Entry.Name = "" // it would reach terminals and logs
	}
	ours := f.ours(ev.Entry.Addrs)
	if ours && (ev.Entry.ID == "" || ev.Entry.ID == f.cfg.Identity.ID) {
		return // a list that names us, or our own echo
	}
	key := string(ev.Entry.ID)
	if key == "" {
		key = f.known[entry]
	}
	if key == "" {
		key = entry
	}
	m := f.members[key]
	if ev.Kind == discovery.Removed {
		if m != nil {
			delete(m.found, entry)
			if len(m.found) == 0 {
				f.forget(key)
			}
		}
		delete(f.known, entry)
		return
	}
	if m == nil {
		if !f.room() {
			return
		}
		m = f.member(key, ev.Entry.ID)
		f.log.Log(context.Background(), f.newsLevel(), "discovered", "peer", ev.Entry.Name, "id", ev.Entry.ID.Short(), "addrs", ev.Entry.Addrs, "source", source)
	}
	m.found[entry] = ev.Entry
	f.plane.kick() // one more place where it may be
	f.notify()
	switch {
	case !m.pinned:
		f.due(m, m.id == "" || f.starts(m.id))
	case ev.Kind == discovery.Changed || m.state != peer.Connected || !slices.Contains(ev.Entry.Addrs, m.rec.Control):
		// It has moved, perhaps. Only the exchange proves it, and moves the endpoint.
		f.due(m, true)
	}
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

// pairLoop tries the exchange whenever it is due.
func (f *Fabric) pairLoop(ctx context.Context, key string, m *member) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		f.mu.Lock()
		next, due := m.pace.Next()
		idle := !m.pinned && len(m.found) == 0 // refused an inbound request, or forgotten
		f.mu.Unlock()
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
			f.mu.Lock()
			if len(m.found) == 0 {
				f.forget(key)
			}
			f.mu.Unlock()
		}
	}
}

// attempt runs the exchange with each address until one succeeds.
func (f *Fabric) attempt(ctx context.Context, key string, m *member) {
	f.mu.Lock()
	id, addrs, pinned, name, mine := m.id, m.addrs(), m.pinned, m.title(), false
	m.backoff, m.attempting = m.pace, true
	m.pace.Done() // what is found from here on is new
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		m.attempting = false
		m.tries++
		f.mu.Unlock()
	}()

	_, _, _, told, _ := f.keys.ours()
	err := fmt.Errorf("fabric: no address is known")
	if f.leaving.Load() {
		addrs, pinned, err = nil, false, leavingError(f.name())
	}
	if id != "" && !pinned && f.mayCall(id, name, false, netip.Addr{}) == nil && len(f.relaysTo(id)) > 0 && !reachable(ctx, addrs) {
		r, e := f.exchangeRelayed(ctx, id)
		if e == nil {
			f.exchanged(key, m, r, told)
			return
		}
		if err = worse(err, e); pairing.Refused(e) {
			addrs = nil // it has answered
		}
	}
	for _, a := range addrs {
		if !pinned {
			if e := f.mayCall(id, name, f.onLink(a.Addr()), a.Addr()); e != nil {
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
		if !f.endedThere(id, err) {
			if r, e := f.exchangeRelayed(ctx, id); e == nil {
				f.exchanged(key, m, r, told)
				return
			} else if ctx.Err() != nil {
				return
			}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	err = pairing.AsTold(err, f.name(), m.handle())
	refused, reason := pairing.Refused(err), explain(err, addrs)
	if p, ok := f.decisions.Revocation(id); ok && p.Denied && mine {
		reason = deniedReason(p)
	}
	m.refusal, m.mine = err, mine
	m.proved = m.proved || id != "" && !mine && answered(err)
	if _, again := m.pace.Next(); !again { // else it was found anew meanwhile
		f.failed(m, refused)
	}
	switch {
	case m.state == peer.Connected: // the tunnel is proof enough
		f.log.Debug("exchange failed", "peer", m.title(), "err", err)
	case refused || pairing.Code(err) == "pending":
		f.set(m, refusedState(err, mine), reason)
	case m.state != peer.Refused && m.state != peer.Waiting && m.state != peer.Denied:
		f.set(m, m.state, explain(err, addrs))
	case m.pinned:
		f.set(m, peer.Connecting, explain(err, addrs))
	default:
		f.set(m, peer.Discovered, explain(err, addrs))
	}
}

func (f *Fabric) failed(m *member, refused bool) {
	p := m.backoff
	p.Failed(time.Now(), refused)
	m.backoff, m.pace = p, p
	poke(m.paceKick)
}

// exchanged notes a success.
func (f *Fabric) exchanged(key string, m *member, r peer.Record, told wgkey.Public) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m.id == "" { // now we know who is at the address
		known := f.member(string(r.ID), r.ID)
		for entry, e := range m.found {
			known.found[entry], f.known[entry] = e, string(r.ID)
		}
		m.found = map[string]discovery.Entry{}
		f.forget(key)
		m = known
	}
	m.exchanged, m.backoff, m.refusal, m.told = time.Now(), pairing.Pace{}, nil, told
	if m.state.Apart() {
		f.set(m, peer.Connecting, "")
	} else if m.state == peer.Connected {
		f.set(m, peer.Connected, "")
	}
	poke(m.pingKick)
}

// heard is told of everyone who tried the exchange with us.
func (f *Fabric) heard(from pairing.Sender, msg pairing.Message, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.members[string(from.ID)]
	if err == nil {
		if m == nil || !m.pinned {
			return
		}
		if m.rec.Complete() && msg.SeenAs == m.rec.PeerMappedCIDR {
			m.pace.Done()
			m.exchanged, m.backoff, m.refusal = time.Now(), pairing.Pace{}, nil
			if m.state.Apart() {
				f.set(m, peer.Connecting, "")
			}
			poke(m.pingKick)
		} else if _, due := m.pace.Next(); !due {
			f.due(m, false) // should it not come back to tell us the rest
		}
		return
	}
	f.log.Debug("refused an exchange", "from", from.Addr, "id", from.ID.Short(), "err", err)
	if m == nil {
		if !f.onLink(from.Addr) && !worthShowing(err) || !f.room() {
			return
		}
		m = f.member(string(from.ID), from.ID)
	}
	if pairing.ValidName(msg.Name) { // of a message that was refused it may be anything
		m.name = msg.Name
	}
	port := msg.ControlPort
	if port == 0 {
		port = f.cfg.Port
	}
	m.knocked, m.proved, m.refusal, m.mine = netip.AddrPortFrom(from.Addr, port), true, err, true
	if m.state != peer.Connected {
		state, reason := refusedState(err, true), explain(err, nil)
		if p, ok := f.decisions.Revocation(from.ID); ok && state == peer.Denied {
			reason = deniedReason(p)
		}
		f.set(m, state, reason)
	}
	poke(m.paceKick) // it is remembered for a while from now
}

// worthShowing reports whether a stranger from elsewhere is shown: it has waited for
// a person, or has shown an invite or a proof. Others from far away would only fill the list.
func worthShowing(err error) bool {
	switch pairing.Code(err) {
	case "pending", "name-taken", "wrong-proof", "invite":
		return true
	}
	return false
}

// worse returns the error that tells more: that of somebody who answered.
func worse(old, err error) error {
	if pairing.Refused(old) && !pairing.Refused(err) {
		return old
	}
	return err
}

// explain makes one line with a cure of why an exchange failed.
func explain(err error, addrs []netip.AddrPort) string {
	var known *rpc.Error
	var wrong *rpc.WrongPeerError
	switch {
	case errors.As(err, &known):
		return known.Error()
	case errors.As(err, &wrong):
		return fmt.Sprintf("another cluster (%s) answers at its address: wait until it is discovered anew, or look for two devices with one address", wrong.Got.Short())
	case len(addrs) == 0:
		return "no address is known: switch it on, on the same LAN"
	}
	why := "no answer"
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil && !op.Timeout() {
		why = op.Err.Error()
	}
	return fmt.Sprintf("it cannot be reached at %s (%s): is rivulet running there, and does its firewall let TCP %d in?", addrs[0], why, addrs[0].Port())
}
