package fabric

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/peering"
	"rivulet/fabric/rpc"
	"rivulet/fabric/trust"
)

// operator carries out operator decisions about a cluster. A target is as in `rivulet peers`: a name, the beginning of
// an ID, or an address. An address means the cluster that proves itself there now, whatever others claim. It alone makes approvals, denials and invites.
type operator struct {
	identity  rpc.Identity
	port      uint16
	patience  time.Duration       // how long a caller waits for the result
	addresses func() []netip.Addr // this cluster's, for invites
	settings  *settings
	decisions *trust.Store
	members   *members
	party     *pairing.Party
	endings   *endings
	admission *admission
	log       *slog.Logger
}

// Approve permits the cluster to be a peer, and begins the exchange if the cluster can be reached. It returns the state
// after a few seconds: Waiting means that the other side has to approve as well.
func (o *operator) Approve(ctx context.Context, target string) (peer.View, error) {
	ctx, cancel := context.WithTimeout(ctx, o.patience)
	defer cancel()
	id, addr, err := o.meant(ctx, target)
	if err != nil {
		return peer.View{}, err
	}
	return o.approve(ctx, id, addr, peer.TrustApproved)
}

// ApproveAt approves the cluster with the ID at the address. Either may be empty; without an ID it approves the cluster
// that answers at the address now.
func (o *operator) ApproveAt(ctx context.Context, id peer.ID, address string) (peer.View, error) {
	if address == "" {
		return o.Approve(ctx, string(id))
	}
	ctx, cancel := context.WithTimeout(ctx, o.patience)
	defer cancel()
	at, err := resolve(ctx, address, o.port)
	if err == nil && id == "" {
		id, at, err = o.who(ctx, at)
	}
	if err != nil {
		return peer.View{}, err
	}
	return o.approve(ctx, id, at, peer.TrustApproved)
}

// Withdraw removes an approval that has not led to a peering. The rules for strangers apply to the cluster again; a
// peer remains one.
func (o *operator) Withdraw(id peer.ID) error {
	var pinned bool
	var err error
	o.party.Between(func() {
		if _, pinned = o.members.record(id); !pinned {
			err = o.decisions.Unapprove(id)
		}
	})
	if pinned || err != nil {
		return err
	}
	o.members.mu.Lock()
	defer o.members.mu.Unlock()
	if m := o.members.byID(id); m != nil {
		o.members.do(m, m.Withdrawn(time.Now()))
	}
	return nil
}

// approve makes the cluster a peer, or changes how a peer is trusted, and returns the state after a few seconds. An
// operator's approval is stored first. That by an invite is in force for the attempt alone (trust.Store.Try).
func (o *operator) approve(ctx context.Context, id peer.ID, addrs []netip.AddrPort, how string) (peer.View, error) {
	if id == o.identity.ID {
		return peer.View{}, fmt.Errorf("that is this cluster itself; name another one")
	}
	var pinned bool
	var err error
	o.party.Between(func() {
		if _, pinned = o.members.record(id); !pinned && how == peer.TrustApproved {
			err = o.decisions.Approve(id, how, time.Now())
		}
	})
	if pinned {
		notice := ""
		err = o.party.Change(id, func(r *peer.Record) {
			if r.Trust.How == peer.TrustLAN {
				r.Trust, r.Unconfirmed = peer.Trust{How: how, At: time.Now()}, false
				notice = fmt.Sprintf("its trust was %s and is %s now: it does not give way to new peers of this LAN, and unpeer --lan leaves it", peer.TrustLAN, how)
			}
		})
		o.members.mu.Lock()
		defer o.members.mu.Unlock()
		if m := o.members.byID(id); m != nil {
			v := m.View()
			v.Notice = notice
			return v, err
		}
		return peer.View{}, noPeer(id.Short())
	}
	if err != nil {
		return peer.View{}, err
	}
	o.members.mu.Lock()
	m := o.members.member(string(id), id)
	before := m.Attempts()
	o.members.do(m, m.Approved(time.Now(), o.revokedName(id), addrs))
	o.members.mu.Unlock()
	changed, stop := o.members.Changed()
	defer stop()
	for {
		o.members.mu.Lock()
		refusal, _ := m.Refusal()
		// It may have called meanwhile and be a peer by that: the answer to this side's own call decides.
		v, done := m.View(), !m.Attempting() && (m.Pinned() || m.Attempts() > before && pairing.Code(refusal) != "")
		o.members.mu.Unlock()
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
func (o *operator) meant(ctx context.Context, target string) (peer.ID, []netip.AddrPort, error) {
	if at, ok := literal(target, o.port); ok {
		return o.who(ctx, []netip.AddrPort{at})
	}
	o.members.mu.Lock()
	m, err := o.members.find(target)
	var id peer.ID
	var at []netip.AddrPort
	if m != nil {
		id, at = m.ID(), m.Addrs().All()
	}
	o.members.mu.Unlock()
	switch {
	case err != nil:
		return "", nil, err
	case id != "":
		return id, nil, o.onlyOne(id, target)
	case m == nil:
		if p, ok, err := revoked(o.decisions, target); ok || err != nil {
			return p.ID, nil, err
		}
		if peer.ID(target).Valid() { // a peer may reach it
			return peer.ID(target), nil, nil
		}
		if at, err = resolve(ctx, target, o.port); err != nil {
			return "", nil, err
		}
	}
	return o.who(ctx, at)
}

// onlyOne returns an error if the target is also the beginning of the ID of a cluster with a revocation.
func (o *operator) onlyOne(id peer.ID, target string) error {
	if string(id) == target {
		return nil
	}
	for _, p := range peer.Meant(o.decisions.Revocations(), target, func(p trust.Revocation) (peer.ID, []string) { return p.ID, nil }) {
		if p.ID != id {
			return ambiguous(target, []string{string(id), string(p.ID)})
		}
	}
	return nil
}

// who returns the cluster that proves itself at one of the addresses now, and that address.
func (o *operator) who(ctx context.Context, at []netip.AddrPort) (peer.ID, []netip.AddrPort, error) {
	last := errors.New("no address is known")
	for _, a := range at {
		id, err := pairing.Who(ctx, o.identity, a)
		if err == nil {
			return id, []netip.AddrPort{a}, nil
		}
		last = err
	}
	return "", nil, errors.New(peering.Explain(pairing.AsRefusal(last, o.settings.name.get(), "it"), at))
}

// literal returns a typed address, with the default port if it has none, and false for anything else.
func literal(target string, port uint16) (netip.AddrPort, bool) {
	if at, err := netip.ParseAddrPort(target); err == nil {
		return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()), at.Port() != 0
	}
	a, err := netip.ParseAddr(strings.Trim(target, "[]"))
	return netip.AddrPortFrom(a.Unmap(), port), err == nil
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
	if at, ok := literal(host, port); ok {
		return []netip.AddrPort{at}, nil
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
func (o *operator) Deny(ctx context.Context, target string) (peer.View, error) {
	id, _, err := o.meant(ctx, target)
	if err != nil {
		return peer.View{}, err
	}
	o.members.mu.Lock()
	name := o.revokedName(id)
	if m := o.members.byID(id); m != nil {
		name = m.Title()
	}
	o.members.mu.Unlock()
	pinned := false
	_, err = o.party.Farewell(id, func(heard, skip uint64) error {
		if _, pinned = o.members.record(id); pinned {
			return nil
		}
		return o.decisions.Revoke(trust.Revocation{ID: id, Name: name, At: time.Now(), Denied: true, Heard: heard, Skip: skip})
	})
	if err != nil {
		return peer.View{}, err
	}
	if pinned {
		return o.endings.unpeer(ctx, id, Unpeer{Force: true})
	}
	o.members.mu.Lock()
	defer o.members.mu.Unlock()
	if m := o.members.byID(id); m != nil {
		o.members.do(m, m.Ended(time.Now(), true, deniedReason(trust.Revocation{Name: name, ID: id, At: time.Now()})))
		return m.View(), nil
	}
	return peer.View{Record: peer.Record{ID: id, Name: name}, State: peer.Denied}, nil
}

func (o *operator) revokedName(id peer.ID) string {
	p, _ := o.decisions.Revocation(id)
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

// Set changes settings of a peer, which is notified of its roles.
func (o *operator) Set(ctx context.Context, target string, settings peer.Settings) (peer.View, error) {
	id, err := o.members.pinned(target)
	if err != nil {
		return peer.View{}, err
	}
	var bad error
	err = o.party.Change(id, func(r *peer.Record) { bad = settings.Apply(r) })
	err = cmp.Or(bad, err)
	if err != nil {
		return peer.View{}, err
	}
	o.members.mu.Lock()
	defer o.members.mu.Unlock()
	m := o.members.byID(id)
	if m == nil || !m.Pinned() {
		return peer.View{}, noPeer(target)
	}
	do := peering.Changed
	if settings.Consume != nil || settings.Provide != nil {
		do |= m.Due(time.Now(), true)
	}
	o.members.do(m, do)
	return m.View(), nil
}
