package paths

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// A peer may tell anything as the address at which it sees this device. It is advertised to all other peers, which ping
// it; so it counts while the path works by which it came, and the more sides tell the same, the more.

// maxReflexive bounds the server-reflexive addresses.
const maxReflexive = 4

// serverReflexive returns the addresses at which peers see this device, at most maxReflexive: those first that a broker
// of this device or most peers tell, then those that were told first. All peers of one network tell one address together,
// the one that stands longest. It is called with mu held.
func (m *Manager) serverReflexive() (out []netip.AddrPort) {
	var words []*path
	for _, p := range m.peers {
		for _, w := range p.paths {
			if w.kind == Direct && w.probe.alive && w.seen.IsValid() && !slices.Contains(m.cfg.UDP, w.seen) {
				words = append(words, w)
			}
		}
	}
	slices.SortFunc(words, func(a, b *path) int {
		return cmp.Or(a.seenSince.Compare(b.seenSince), a.seen.Compare(b.seen))
	})
	type claim struct {
		addr  netip.AddrPort
		by    []*peer
		votes int
	}
	var claims []*claim
	var networks []netip.Prefix
	for _, w := range words {
		from := networkOf(w.addr.Addr())
		if slices.Contains(networks, from) {
			continue
		}
		networks = append(networks, from)
		i := slices.IndexFunc(claims, func(c *claim) bool { return c.addr == w.seen })
		if i < 0 {
			i, claims = len(claims), append(claims, &claim{addr: w.seen})
		}
		if c := claims[i]; !slices.Contains(c.by, w.peer) { // a peer with two addresses is one
			c.by, c.votes = append(c.by, w.peer), c.votes+1
			if w.peer.broker {
				c.votes++
			}
		}
	}
	slices.SortStableFunc(claims, func(a, b *claim) int { return b.votes - a.votes })
	for _, c := range claims[:min(len(claims), maxReflexive)] {
		out = append(out, c.addr)
	}
	return out
}

// networkOf returns what counts as one side of the peers' words.
func networkOf(a netip.Addr) netip.Prefix {
	bits := 24
	if a.Is6() {
		bits = 64
	}
	p, _ := a.WithZone("").Prefix(bits) // an invalid address is its own network
	return p
}

// reported records the address at which the peer sees this device by the path. When this changes what is advertised, peers
// without a direct path are told, each at most once in Advertise/5.
func (w *path) reported(seen netip.AddrPort, now time.Time) {
	if seen == w.seen || !plausible(seen) {
		return
	}
	m := w.peer.m
	was := m.serverReflexive()
	w.seen, w.seenSince = seen, now
	if slices.Equal(was, m.serverReflexive()) {
		return
	}
	for _, o := range m.peers {
		if o.lost.IsZero() {
			continue
		}
		at := o.advertisedAt.Add(m.timing.Advertise / 5)
		if at.Before(now) {
			at = now
		}
		if o.advertiseAt.IsZero() || at.Before(o.advertiseAt) {
			o.advertiseAt, o.due = at, time.Time{}
		}
	}
}
