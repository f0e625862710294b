package fabric

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"rivulet/fabric/netmon"
	"rivulet/fabric/peer"
	"rivulet/fabric/trust"
)

// Invite creates an invite: the first cluster that brings it within ten minutes becomes a peer, from any network. The
// code has the addresses at which this cluster may be reached.
func (o *operator) Invite() (trust.Invite, trust.Code, error) {
	return o.invite(trust.InviteLife, false)
}

// Token creates a token: the first device that brings it becomes a node of this cluster.
func (o *operator) Token(life time.Duration) (trust.Invite, trust.Code, error) {
	return o.invite(life, true)
}

func (o *operator) invite(life time.Duration, join bool) (trust.Invite, trust.Code, error) {
	addrs := o.addresses()
	if len(addrs) == 0 {
		return trust.Invite{}, trust.Code{}, fmt.Errorf("this device has no address on a LAN, so nobody could come to the invite; plug in a cable or look at lan.interfaces")
	}
	i, secret, err := o.decisions.NewInvite(time.Now(), life, join)
	if err != nil {
		return trust.Invite{}, trust.Code{}, err
	}
	c := trust.Code{ID: o.identity.ID, Secret: secret}
	for _, a := range addrs {
		c.Addrs = append(c.Addrs, netip.AddrPortFrom(a, o.port))
	}
	o.log.Info("invite made", "invite", i.ID, "expires", i.Expires)
	return i, c, nil
}

// Invites returns the invites of this cluster, the oldest first.
func (o *operator) Invites() []trust.Invite { return o.decisions.Invites() }

func (o *operator) Revoke(id string) error { return o.decisions.RevokeInvite(id) }

// Accept takes an invite to the cluster that made it. If it returns no error, both are peers.
func (o *operator) Accept(ctx context.Context, text string) (peer.View, error) {
	c, err := trust.ParseCode(text)
	if err != nil {
		return peer.View{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, o.patience)
	defer cancel()
	defer o.use(c, false)()
	_, known := o.members.record(c.ID)
	if known { // the invite is not used up
		return o.approve(ctx, c.ID, c.Addrs, peer.TrustInvite)
	}
	v, err := o.approve(ctx, c.ID, c.Addrs, peer.TrustInvite)
	switch {
	case err != nil:
		return v, err
	case v.State.Apart():
		// A failed invite is not stored: it may be tried again.
		if err := o.decisions.Met(c.ID); err != nil {
			return v, err
		}
		reason := v.Reason
		if reason == "" {
			reason = fmt.Sprintf("no answer at %v: is it switched on, and does its firewall let TCP %d in?", c.Addrs, o.port)
		}
		return v, fmt.Errorf("the invite has not worked: %s", reason)
	}
	return v, nil
}

// invitable are the addresses for an invite, IPv4 first: an invite has room for few.
func invitable(lans netmon.LANs) (out []netip.Addr) {
	for _, v4 := range []bool{true, false} {
		for _, lan := range lans {
			for _, p := range lan.Addrs {
				if a := p.Addr(); a.Is4() == v4 && !a.IsLinkLocalUnicast() {
					out = append(out, a)
				}
			}
		}
	}
	return out
}

// use puts the secret into messages to its cluster until the returned function is called.
func (o *operator) use(c trust.Code, join bool) (stop func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.invites[c.ID] = received{c.Secret, join}
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.invites, c.ID)
	}
}

func (o *operator) invitedBy(id peer.ID) (secret []byte, join bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	r := o.invites[id]
	return r.secret, r.join
}
