package fabric

import (
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"testing"

	"rivulet/fabric/ipam"
	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/tunnel"
	"rivulet/fabric/wgkey"
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
	t.Parallel()
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
			taken := route(was.PeerMappedCIDR)
			keepsC := !taken.Overlaps(a.view(c).PeerMappedCIDR)
			h.add(taken)
			a.CheckPrefixes()
			a.await("another prefix for b", func() bool {
				v, back := a.view(b), b.view(a)
				return v.State == peer.Connected && back.State == peer.Connected && !v.PeerMappedCIDR.Overlaps(taken) && back.LocalMappedCIDR == v.PeerMappedCIDR &&
					a.peerConfig(b).PeerMappedCIDR == v.PeerMappedCIDR && b.peerConfig(a).LocalMappedCIDR == v.PeerMappedCIDR
			})
			if keepsC && (!reflect.DeepEqual(c.peerConfig(a), other) || c.view(a).Since != since || a.view(c).State != peer.Connected) {
				t.Errorf("c noticed: %+v, was %+v", c.peerConfig(a), other)
			}
			now := a.view(b).PeerMappedCIDR
			a.stop()
			a.start()
			if v := a.awaitState(b, peer.Connected); v.PeerMappedCIDR != now {
				t.Errorf("the restart changed %s to %s", now, v.PeerMappedCIDR)
			}
		})
	}
}

// Where every candidate is in some wide network of the host, a part of one is taken;
// the host's smaller networks and the LAN are not.
func TestNothingIsFree(t *testing.T) {
	t.Parallel()
	var h host
	small := netip.MustParsePrefix("10.64.3.0/24")
	h.add(netip.MustParsePrefix("10.0.0.0/8"), small)
	w := newWorld(t)
	block := netip.MustParsePrefix("10.64.0.0/15")
	a, b := w.cluster(1, "a", h.of, func(c *Config) { c.PeerCIDR = block }), w.cluster(2, "b")
	v := a.awaitState(b, peer.Connected)
	if v.PeerMappedCIDR != netip.MustParsePrefix("10.65.0.0/16") {
		t.Errorf("b is seen as %s", v.PeerMappedCIDR)
	}
	a.CheckPrefixes()
	a.Refresh()
	b.awaitState(a, peer.Connected)
	if got := a.view(b).PeerMappedCIDR; got != v.PeerMappedCIDR {
		t.Errorf("it changed to %s", got)
	}
}

// announced makes a stranger a peer of c, with what it says of itself; it returns the
// refusal, if there is one.
func (c *cluster) announced(t *testing.T, n byte, change func(*pairing.Self)) error {
	t.Helper()
	s := newStranger(t, n)
	change(&s.self)
	return s.pair(c)
}

// A stranger says which addresses its pods have; nothing of that decides which ones
// go into the tunnel. The site's name server is at 10.200.0.53.
func TestAnnouncedPrefixDecidesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.cluster(1, "a")
	server := netip.MustParseAddr("10.200.0.53")
	for i, cidr := range []string{"10.200.0.0/16", "172.16.0.0/16", "100.100.0.0/16", "192.168.0.0/16", "8.8.0.0/16", "240.0.0.0/16"} {
		n, p := byte(50+i), netip.MustParsePrefix(cidr)
		err := a.announced(t, n, func(s *pairing.Self) { s.PodCIDR, s.TunnelAddress = p, p.Addr().Next() })
		if err != nil {
			t.Fatalf("%s: %v", cidr, err)
		}
		v := a.viewOf(newStranger(t, n).id.ID)
		if !ipam.Within(ipam.Default, 16, v.PeerMappedCIDR) {
			t.Errorf("%s: its pods are seen as %s", cidr, v.PeerMappedCIDR)
		}
	}
	a.await("all peers in the tunnel", func() bool { return len(a.plane.config().Peers) == 6 })
	for _, p := range a.plane.config().Peers {
		if p.PeerMappedCIDR.Contains(server) || p.PeerMappedCIDR.Bits() != 16 {
			t.Errorf("%s goes into the tunnel", p.PeerMappedCIDR)
		}
	}
	for i, cidr := range []string{"10.200.0.0/24", "10.0.0.0/8", "10.200.0.0/30"} {
		p := netip.MustParsePrefix(cidr)
		err := a.announced(t, byte(70+i), func(s *pairing.Self) { s.PodCIDR, s.TunnelAddress = p, p.Addr().Next() })
		if pairing.Code(err) != "prefix" {
			t.Errorf("%s: %v, want a refusal for its size", cidr, err)
		}
	}
}

// As many announcements as an address may make leave room for others.
func TestAnnouncementsDoNotFillTheSpace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.cluster(1, "a")
	for n := range byte(12) {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{240 + n%8, n, 0, 0}), 16)
		if err := a.announced(t, 50+n, func(s *pairing.Self) { s.PodCIDR, s.TunnelAddress = p, p.Addr().Next() }); err != nil {
			t.Fatal(err)
		}
	}
	b := w.cluster(2, "b")
	a.awaitState(b, peer.Connected)
}

// What an older version has taken of a stranger's word is ours to choose again at the
// start, and both sides agree on it at once.
func TestForeignPrefixIsChosenAnewAtTheStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.cluster(1, "a"), w.cluster(2, "b")
	a.awaitState(b, peer.Connected)
	b.awaitState(a, peer.Connected)
	a.stop()
	foreign := netip.MustParsePrefix("10.200.0.0/16")
	a.store.mu.Lock()
	r := a.store.records[b.id()]
	r.PeerMappedCIDR = foreign
	a.store.records[b.id()] = r
	a.store.mu.Unlock()
	a.start()
	for _, p := range a.desired().Peers {
		if p.PeerMappedCIDR == foreign || !p.PeerMappedCIDR.IsValid() {
			t.Errorf("after the start b is seen as %s", p.PeerMappedCIDR)
		}
	}
	if links := a.Links(); len(links) != 1 {
		t.Errorf("%d links: what runs there would be given up", len(links))
	}
	a.await("agreement", func() bool {
		return a.view(b).State == peer.Connected && b.view(a).LocalMappedCIDR == a.view(b).PeerMappedCIDR && ipam.Within(ipam.Default, 16, a.view(b).PeerMappedCIDR)
	})
	if r := a.store.records[b.id()]; r.PeerMappedCIDR == foreign {
		t.Error("the old prefix is still on disk")
	}
}

// The owner names another block: all peers move there and none is lost.
func TestAnotherBlock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b, c := w.cluster(1, "a"), w.cluster(2, "b"), w.cluster(3, "c")
	for _, o := range []*cluster{b, c} {
		a.awaitState(o, peer.Connected)
		o.awaitState(a, peer.Connected)
	}
	block := netip.MustParsePrefix("100.64.0.0/10")
	a.SetPeerCIDR(block)
	for _, o := range []*cluster{b, c} {
		a.await("a prefix of the block", func() bool {
			v := a.view(o)
			return v.State == peer.Connected && o.view(a).State == peer.Connected && ipam.Within(block, 16, v.PeerMappedCIDR) && o.view(a).LocalMappedCIDR == v.PeerMappedCIDR
		})
	}
}

// Without any member: what is taken, what a full host leaves, and stored prefixes that are not of the block.
func TestPrefixes(t *testing.T) {
	block := netip.MustParsePrefix("198.18.0.0/15") // two prefixes of 16 bits
	one, two := netip.MustParsePrefix("198.18.0.0/16"), netip.MustParsePrefix("198.19.0.0/16")
	var host []netip.Prefix
	c := baseConfig(1, "here", slog.New(slog.DiscardHandler))
	c.PeerCIDR, c.TakenPrefixes = block, func() []netip.Prefix { return host }
	s := c.Store.(*store)
	s.records["a"] = peer.Record{ID: "a", PeerMappedCIDR: one}
	f, err := New(c) // it does not run
	if err != nil {
		t.Fatal(err)
	}
	p, a := f.prefixes, f.members.byID("a")

	if got, err := p.choose("b", netip.Prefix{}); err != nil || got != two {
		t.Errorf("beside a: %s, %v", got, err)
	}
	gateway, err := wgkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	f.SetGateway("g", gateway.Public().String(), two)
	if got, err := p.choose("b", netip.Prefix{}); err == nil {
		t.Errorf("beside a and a gateway: %s", got)
	}
	f.SetGateway("g", "", netip.Prefix{})
	host = []netip.Prefix{block, one}
	if got, err := p.choose("b", netip.Prefix{}); err != nil || got != two {
		t.Errorf("a part of a wider network of the host: %s, %v", got, err)
	}
	select {
	case <-a.paceKick: // of the start
	default:
	}
	p.CheckPrefixes() // a has a network of the host
	if _, due := a.Next(); !due || len(a.paceKick) != 1 {
		t.Error("it is not agreed on again")
	}

	host = nil
	stored := []peer.Record{{ID: "c", PeerMappedCIDR: one}, {ID: "b", PeerMappedCIDR: netip.MustParsePrefix("10.9.0.0/16")}, {ID: "d", PeerMappedCIDR: one}}
	if changed := p.rechoose(stored); !slices.Equal(changed, []peer.ID{"b"}) || s.records["b"].PeerMappedCIDR != two || stored[1].PeerMappedCIDR != two {
		t.Errorf("changed: %v, stored %+v", changed, s.records)
	}
	if stored[0].PeerMappedCIDR != one || stored[2].PeerMappedCIDR.IsValid() {
		t.Errorf("of two with one prefix: %s and %s", stored[0].PeerMappedCIDR, stored[2].PeerMappedCIDR)
	}
	s.setFull(true)
	stored = []peer.Record{{ID: "b", PeerMappedCIDR: netip.MustParsePrefix("10.9.0.0/16")}}
	if changed := p.rechoose(stored); len(changed) != 0 || stored[0].PeerMappedCIDR.IsValid() {
		t.Errorf("with a full disk: %v, %s", changed, stored[0].PeerMappedCIDR)
	}
}
