package fabric

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/peering"
	"rivulet/fabric/trust"
)

// Operator decisions about a cluster. A target is as in `rivulet peers`: a name, the beginning of an ID, or an address.

// Approve permits the cluster to be a peer, and begins the exchange if the cluster can be reached. It returns the state
// after a few seconds: Waiting means that the other side has to approve as well.
func (f *Fabric) Approve(ctx context.Context, target string) (peer.View, error) {
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Timing.Decision)
	defer cancel()
	id, addr, err := f.meant(ctx, target)
	if err != nil {
		return peer.View{}, err
	}
	return f.approve(ctx, id, addr, peer.TrustApproved)
}

// ApproveAt approves the cluster with the ID at the address. Either may be empty; without an ID it approves the cluster
// that answers at the address now.
func (f *Fabric) ApproveAt(ctx context.Context, id peer.ID, address string) (peer.View, error) {
	if id == "" || address == "" {
		return f.Approve(ctx, cmp.Or(string(id), address))
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Timing.Decision)
	defer cancel()
	at, err := resolve(ctx, address, f.cfg.Port)
	if err != nil {
		return peer.View{}, err
	}
	return f.approve(ctx, id, at, peer.TrustApproved)
}

// Withdraw removes an approval that has not led to a peering. The rules for strangers apply to the cluster again; a
// peer remains one.
func (f *Fabric) Withdraw(id peer.ID) error {
	if _, pinned := f.record(id); pinned {
		return nil
	}
	if err := f.decisions.Unapprove(id); err != nil {
		return err
	}
	f.members.mu.Lock()
	defer f.members.mu.Unlock()
	if m := f.members.all[string(id)]; m != nil {
		f.do(m, m.Withdrawn(time.Now()))
	}
	return nil
}

func (f *Fabric) approve(ctx context.Context, id peer.ID, addrs []netip.AddrPort, how string) (peer.View, error) {
	if id == f.cfg.Identity.ID {
		return peer.View{}, fmt.Errorf("that is this cluster itself; name another one")
	}
	if _, pinned := f.record(id); pinned {
		notice := ""
		err := f.party.Change(id, func(r *peer.Record) {
			if r.Trust.How == peer.TrustLAN {
				r.Trust = peer.Trust{How: how, At: time.Now()}
				notice = fmt.Sprintf("its trust was %s and is %s now: it does not give way to new peers of this LAN, and unpeer --lan leaves it", peer.TrustLAN, how)
			}
		})
		f.members.mu.Lock()
		defer f.members.mu.Unlock()
		if m := f.members.all[string(id)]; m != nil {
			v := m.View()
			v.Notice = notice
			return v, err
		}
		return peer.View{}, noPeer(id.Short())
	}
	if err := f.decisions.Approve(id, how, time.Now()); err != nil {
		return peer.View{}, err
	}
	f.members.mu.Lock()
	m := f.member(string(id), id)
	before := m.Attempts()
	f.do(m, m.Approved(time.Now(), f.revokedName(id), addrs))
	f.members.mu.Unlock()
	changed, stop := f.Changed()
	defer stop()
	for {
		f.members.mu.Lock()
		refusal, _ := m.Refusal()
		v, done := m.View(), m.Pinned() || m.Attempts() > before && !m.Attempting() && pairing.Code(refusal) != ""
		f.members.mu.Unlock()
		if done {
			return v, nil
		}
		select {
		case <-ctx.Done():
			return v, nil
		case <-changed:
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// meant finds the cluster that the target names.
func (f *Fabric) meant(ctx context.Context, target string) (peer.ID, []netip.AddrPort, error) {
	f.members.mu.Lock()
	m, err := f.find(target)
	var id peer.ID
	var at []netip.AddrPort
	if m != nil {
		id, at = m.ID(), m.Addrs()
	}
	f.members.mu.Unlock()
	switch {
	case err != nil:
		return "", nil, err
	case id != "":
		return id, nil, nil
	case m == nil:
		if p, ok := f.revoked(target); ok {
			return p.ID, nil, nil
		}
		if peer.ID(target).Valid() { // a peer may reach it
			return peer.ID(target), nil, nil
		}
		if at, err = resolve(ctx, target, f.cfg.Port); err != nil {
			return "", nil, err
		}
	}
	var last error
	for _, a := range at {
		id, err := pairing.Who(ctx, f.cfg.Identity, a)
		if err == nil {
			return id, []netip.AddrPort{a}, nil
		}
		last = err
	}
	return "", nil, errors.New(peering.Explain(pairing.AsRefusal(last, f.settings.name.get(), "it"), at))
}

// resolve returns the addresses of a typed name or address.
func resolve(ctx context.Context, target string, port uint16) ([]netip.AddrPort, error) {
	host := target
	if h, p, err := net.SplitHostPort(target); err == nil {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return nil, fmt.Errorf("%q has no usable port; write ADDRESS or ADDRESS:PORT", target)
		}
		host, port = h, uint16(n)
	}
	if a, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return []netip.AddrPort{netip.AddrPortFrom(a.Unmap(), port)}, nil
	}
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil || len(found) == 0 {
		return nil, fmt.Errorf("nobody is known as %q, and it is no address; look at: rivulet peers", target)
	}
	var out []netip.AddrPort
	for _, a := range found {
		out = append(out, netip.AddrPortFrom(a.Unmap(), port))
	}
	return out, nil
}

// Deny forbids the cluster to be a peer. A peering with it ends at once.
func (f *Fabric) Deny(ctx context.Context, target string) (peer.View, error) {
	id, _, err := f.meant(ctx, target)
	if err != nil {
		return peer.View{}, err
	}
	f.members.mu.Lock()
	name := f.revokedName(id)
	if m := f.members.all[string(id)]; m != nil {
		name = m.Title()
	}
	f.members.mu.Unlock()
	pinned := false
	_, err = f.party.Farewell(id, func(heard, skip uint64) error {
		if _, pinned = f.record(id); pinned {
			return nil
		}
		return f.decisions.Revoke(trust.Revocation{ID: id, Name: name, At: time.Now(), Denied: true, Heard: heard, Skip: skip})
	})
	if err != nil {
		return peer.View{}, err
	}
	if pinned {
		return f.unpeer(ctx, id, Unpeer{Force: true})
	}
	f.members.mu.Lock()
	defer f.members.mu.Unlock()
	if m := f.members.all[string(id)]; m != nil {
		f.do(m, m.Ended(time.Now(), true, deniedReason(trust.Revocation{Name: name, ID: id, At: time.Now()})))
		return m.View(), nil
	}
	return peer.View{Record: peer.Record{ID: id, Name: name}, State: peer.Denied}, nil
}

func (f *Fabric) revokedName(id peer.ID) string {
	p, _ := f.decisions.Revocation(id)
	return p.Name
}

func deniedReason(p trust.Revocation) string {
	what := "denied here"
	if p.WasPeer {
		what = "the peering was ended here"
	}
	who := p.Name
	if who == "" {
		who = p.ID.Short()
	}
	return fmt.Sprintf("%s on %s: rivulet peer %s takes that back", what, p.At.Local().Format("2006-01-02 15:04"), who)
}

// denied are the denied clusters that are not visible now. It is called with mu held.
func (f *Fabric) denied(partings []trust.Revocation) (out []peer.View) {
	for _, p := range partings {
		if p.Denied && f.members.all[string(p.ID)] == nil {
			out = append(out, peer.View{Record: peer.Record{ID: p.ID, Name: p.Name}, State: peer.Denied, Reason: deniedReason(p), Since: p.At})
		}
	}
	return out
}

// SetRoles switches directions on and off; nil leaves one unchanged. The peer is notified.
func (f *Fabric) SetRoles(ctx context.Context, target string, consume, provide *bool) (peer.View, error) {
	id, err := f.pinned(target)
	if err != nil {
		return peer.View{}, err
	}
	err = f.party.Change(id, func(r *peer.Record) {
		if consume != nil {
			r.Roles.NoConsume = !*consume
		}
		if provide != nil {
			r.Roles.NoProvide = !*provide
		}
	})
	if err != nil {
		return peer.View{}, err
	}
	f.members.mu.Lock()
	defer f.members.mu.Unlock()
	m := f.members.all[string(id)]
	if m == nil || !m.Pinned() {
		return peer.View{}, noPeer(target)
	}
	f.do(m, m.Due(time.Now(), true))
	return m.View(), nil
}

// exchangeInside tries the exchange through the tunnel, which may be the only path.
func (f *Fabric) exchangeInside(ctx context.Context, id peer.ID) (peer.Record, error) {
	l, ok := f.Link(id)
	if !ok || !f.plane.has(id) {
		return peer.Record{}, noLink(id)
	}
	return f.party.Exchange(ctx, pairing.PostTo(f.cfg.Identity, id, l.Addr, f.Dial))
}

func (f *Fabric) parted(id peer.ID) (heard, skip uint64) {
	p, _ := f.decisions.Revocation(id)
	return p.Heard, p.Skip
}
