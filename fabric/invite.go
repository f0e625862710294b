package fabric

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"rivulet/fabric/changes"
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

// expireEvery is how often it is stored which invites have expired.
const expireEvery = time.Minute

// expire stores which invites have expired, until ctx ends and once more then: a board without a clock may start again with
// an earlier time.
func (o *operator) expire(ctx context.Context) {
	for {
		if err := o.decisions.Expire(time.Now()); err != nil {
			o.log.Warn("it cannot be stored which invites have expired", "err", err)
		}
		if ctx.Err() != nil {
			return
		}
		changes.Wait(ctx, expireEvery)
	}
}

// Invites returns the invites of this cluster, the oldest first.
func (o *operator) Invites() []trust.Invite { return o.decisions.Invites() }

// Revoke revokes an invite or a token, and returns it: what a used one has made stays.
func (o *operator) Revoke(id string) (trust.Invite, error) { return o.decisions.RevokeInvite(id) }

// Accept takes an invite to the cluster that made it. If it returns no error, both are peers.
func (o *operator) Accept(ctx context.Context, text string) (peer.View, error) {
	c, err := trust.ParseCode(text)
	if err != nil {
		return peer.View{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, o.patience)
	defer cancel()
	if _, known := o.members.record(c.ID); known { // the invite is not used up
		return o.approve(ctx, c.ID, c.Addrs, peer.TrustInvite)
	}
	v, _, err := o.try(ctx, c, false, peer.TrustInvite)
	if err != nil || !v.State.Apart() {
		return v, err
	}
	reason := v.Reason
	if reason == "" {
		reason = fmt.Sprintf("no answer at %v: is it switched on, and does its firewall let TCP %d in?", c.Addrs, o.port)
	}
	return v, fmt.Errorf("the invite has not worked: %s", reason)
}

// try brings an invite or a token to its cluster, and returns its state and the reason of a refusal. Nothing of the attempt
// is stored: if it fails or is cut off, a denial and an approval are what they were, and it may be repeated.
func (o *operator) try(ctx context.Context, c trust.Code, join bool, how string) (v peer.View, refusal, err error) {
	v, err = func() (peer.View, error) {
		defer o.admission.use(c, join)()
		defer o.decisions.Try(c.ID, how, time.Now())()
		return o.approve(ctx, c.ID, c.Addrs, how)
	}()
	if err != nil || !v.State.Apart() {
		return v, nil, err
	}
	o.members.mu.Lock()
	defer o.members.mu.Unlock()
	m := o.members.byID(c.ID)
	if m == nil {
		return v, nil, nil
	}
	refusal, _ = m.Refusal()
	p, _ := o.decisions.Revocation(c.ID)
	_, approved := o.decisions.Approved(c.ID)
	switch {
	case p.Denied:
		o.members.do(m, m.Ended(time.Now(), true, deniedReason(p)))
	case !approved:
		o.members.do(m, m.Withdrawn(time.Now())|m.Reconsider(time.Now()))
	}
	return v, refusal, nil
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
