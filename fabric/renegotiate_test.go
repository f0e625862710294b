package fabric

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"

	"rivulet/fabric/peer"
	"rivulet/fabric/tunnel"
)

// A prefix under which we see a peer is taken by a network that has come up: another
// is chosen and told, both tunnels follow, and other peers are not touched.
func TestPrefixIsChosenAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var vpn atomic.Pointer[netip.Prefix]
	a := w.cluster(1, "a", func(c *Config) {
		c.TakenPrefixes = func() []netip.Prefix {
			if p := vpn.Load(); p != nil {
				return []netip.Prefix{*p}
			}
			return nil
		}
	})
	b, c := w.cluster(2, "b"), w.cluster(3, "c")
	for _, o := range []*cluster{b, c} {
		agreedUpon(t, a, o, peer.TrustLAN, peer.TrustLAN)
	}
	before, other := a.view(b), a.view(c)
	taken := before.PeerMappedCIDR
	vpn.Store(&taken)
	a.Refresh()
	a.await("another prefix, on both sides", func() bool {
		x, y := a.view(b), b.view(a)
		return !x.PeerMappedCIDR.Overlaps(taken) && x.PeerMappedCIDR == y.LocalMappedCIDR && x.State == peer.Connected && y.State == peer.Connected
	})
	b.await("it in the tunnel of b, too", func() bool {
		return slices.ContainsFunc(b.plane.config().Peers, func(p tunnel.Peer) bool {
			return p.ID == string(a.id()) && p.LocalMappedCIDR == a.view(b).PeerMappedCIDR
		})
	})
	if now := a.view(c); now.PeerMappedCIDR != other.PeerMappedCIDR || now.LocalMappedCIDR != other.LocalMappedCIDR || !now.Since.Equal(other.Since) {
		t.Errorf("c was touched: %+v, before %+v", now, other)
	}
}
