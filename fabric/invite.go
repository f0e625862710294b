package fabric

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"rivulet/fabric/peer"
	"rivulet/fabric/trust"
)

// Invite creates an invite: the first cluster that brings it within ten minutes becomes a peer, from any network. The
// code has the addresses at which this cluster may be reached.
func (f *Fabric) Invite() (trust.Invite, trust.Code, error) {
	addrs := f.addresses()
	if len(addrs) == 0 {
		return trust.Invite{}, trust.Code{}, fmt.Errorf("this device has no address on a LAN, so nobody could come to the invite; plug in a cable or look at lan.interfaces")
	}
	i, secret, err := f.decisions.NewInvite(time.Now())
	if err != nil {
		return trust.Invite{}, trust.Code{}, err
	}
	c := trust.Code{ID: f.cfg.Identity.ID, Secret: secret}
	for _, a := range addrs {
		c.Addrs = append(c.Addrs, netip.AddrPortFrom(a, f.cfg.Port))
	}
	f.log.Info("invite made", "invite", i.ID, "expires", i.Expires)
	return i, c, nil
}

// Invites returns the invites of this cluster, the oldest first.
func (f *Fabric) Invites() []trust.Invite { return f.decisions.Invites() }

func (f *Fabric) Revoke(id string) error { return f.decisions.RevokeInvite(id) }

// Accept takes an invite to the cluster that made it. If it returns no error, both are peers.
func (f *Fabric) Accept(ctx context.Context, text string) (peer.View, error) {
	c, err := trust.ParseCode(text)
	if err != nil {
		return peer.View{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Timing.Decision)
	defer cancel()
	f.imu.Lock()
	f.invites[c.ID] = c.Secret
	f.imu.Unlock()
	_, known := f.record(c.ID)
	defer func() {
		f.imu.Lock()
		delete(f.invites, c.ID)
		f.imu.Unlock()
	}()
	if known { // the invite is not used up
		return f.approve(ctx, c.ID, c.Addrs, peer.TrustInvite)
	}
	v, err := f.approve(ctx, c.ID, c.Addrs, peer.TrustInvite)
	switch {
	case err != nil:
		return v, err
	case v.State.Apart():
		// A failed invite is not stored: it may be tried again.
		if err := f.decisions.Met(c.ID); err != nil {
			return v, err
		}
		reason := v.Reason
		if reason == "" {
			reason = fmt.Sprintf("no answer at %v: is it switched on, and does its firewall let TCP %d in?", c.Addrs, f.cfg.Port)
		}
		return v, fmt.Errorf("the invite has not worked: %s", reason)
	}
	return v, nil
}

// addresses are this cluster's, IPv4 first: an invite has room for few.
func (f *Fabric) addresses() (out []netip.Addr) {
	if f.cfg.Addresses != nil {
		return f.cfg.Addresses()
	}
	for _, v4 := range []bool{true, false} {
		for _, lan := range f.cfg.LANs.LANs() {
			for _, p := range lan.Addrs {
				if a := p.Addr(); a.Is4() == v4 && !a.IsLinkLocalUnicast() {
					out = append(out, a)
				}
			}
		}
	}
	return out
}

func (f *Fabric) invitedBy(id peer.ID) []byte {
	f.imu.Lock()
	defer f.imu.Unlock()
	return f.invites[id]
}
