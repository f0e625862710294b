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
	addrs := o.addresses()
	if len(addrs) == 0 {
		return trust.Invite{}, trust.Code{}, fmt.Errorf("this device has no address on a LAN, so nobody could come to the invite; plug in a cable or look at lan.interfaces")
	}
	i, secret, err := o.decisions.NewInvite(time.Now())
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
	o.mu.Lock()
	o.invites[c.ID] = c.Secret
	o.mu.Unlock()
	_, known := o.members.record(c.ID)
	defer func() {
		o.mu.Lock()
		delete(o.invites, c.ID)
		o.mu.Unlock()
	}()
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

func (o *operator) invitedBy(id peer.ID) []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.invites[id]
}
