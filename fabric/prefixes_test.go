package fabric

import (
	"net/netip"
	"slices"
	"sync"
	"testing"

	"rivulet/fabric/peer"
	"rivulet/fabric/tunnel"
)

// host is what a device's routes are.
type host struct {
	mu  sync.Mutex
	has []netip.Prefix
}

func (h *host) add(p ...netip.Prefix) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.has = append(h.has, p...)
}

func (h *host) routes() []netip.Prefix {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.has)
}

func (h *host) of(c *Config) { c.TakenPrefixes = h.routes }

func (c *cluster) peerConfig(of *cluster) tunnel.Peer {
	for _, p := range c.plane.config().Peers {
		if p.ID == string(of.cfg.Identity.ID) {
			return p
		}
	}
	return tunnel.Peer{}
}

// The host gets a route, of a VPN say, that is the prefix of a peer, a part of it,
// or more than it: the peer gets another prefix and hears of it. The other peer
// does not notice, and a restart changes nothing more.
func TestColliding(t *testing.T) {
	for name, route := range map[string]func(netip.Prefix) netip.Prefix{
		"the same":     func(p netip.Prefix) netip.Prefix { return p },
		"a part":       func(p netip.Prefix) netip.Prefix { return netip.PrefixFrom(p.Addr().Next(), 32) },
		"wider by one": func(p netip.Prefix) netip.Prefix { return netip.PrefixFrom(p.Addr(), p.Bits()-1).Masked() },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			var h host
			a, b, c := w.cluster(1, "a", h.of), w.cluster(2, "b"), w.cluster(3, "c")
			was := a.awaitState(b, peer.Connected)
			a.awaitState(c, peer.Connected)
			b.awaitState(a, peer.Connected)
			c.awaitState(a, peer.Connected)
			other, since := c.peerConfig(a), c.view(a).Since
			taken := route(was.Remote)
			keepsC := !taken.Overlaps(a.view(c).Remote)
			h.add(taken)
			a.CheckPrefixes()
			a.await("another prefix for b", func() bool {
				v, back := a.view(b), b.view(a)
				return v.State == peer.Connected && back.State == peer.Connected && !v.Remote.Overlaps(taken) && back.As == v.Remote &&
					a.peerConfig(b).Remote == v.Remote && b.peerConfig(a).As == v.Remote
			})
			if keepsC && (c.peerConfig(a) != other || c.view(a).Since != since || a.view(c).State != peer.Connected) {
				t.Errorf("c noticed: %+v, was %+v", c.peerConfig(a), other)
			}
			now := a.view(b).Remote
			a.stop()
			a.start()
			if v := a.awaitState(b, peer.Connected); v.Remote != now {
				t.Errorf("the restart changed %s to %s", now, v.Remote)
			}
		})
	}
}

// Where every candidate is in some wide network of the host, a part of one is taken;
// the host's smaller networks and the LAN are not.
func TestNothingIsFree(t *testing.T) {
	var h host
	h.add(netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("10.64.3.0/24"))
	w := newWorld(t)
	a, b := w.cluster(1, "a", h.of), w.cluster(2, "b")
	v := a.awaitState(b, peer.Connected)
	if v.Remote != netip.MustParsePrefix("10.65.0.0/16") {
		t.Errorf("b is seen as %s", v.Remote)
	}
	a.CheckPrefixes()
	a.Refresh()
	b.awaitState(a, peer.Connected)
	if got := a.view(b).Remote; got != v.Remote {
		t.Errorf("it changed to %s", got)
	}
}
