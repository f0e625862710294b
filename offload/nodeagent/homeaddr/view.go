package homeaddr

import (
	"maps"
	"net/netip"
	"slices"

	"rivulet/fabric/peer"
	"rivulet/offload/elsewhere"
)

// Pair is a prefix at home, and the same here. Both have one size.
type Pair struct{ Home, Here netip.Prefix }

// View is how a home sees the addresses of pods, the first pair that has one decides: single pods at clusters that this
// one does not know, which home relays to; those of this cluster; those at home; and those at further peers that home and
// this cluster see under different prefixes. Addresses in no pair are the same at home and here.
type View []Pair

// ViewOf is the view of a home; nil without a link to it, or if the two see each other under prefixes of different
// sizes. pods is this cluster's pod CIDR, under is how home sees other peers' pods.
func ViewOf(links []peer.Link, home peer.ID, pods netip.Prefix, under elsewhere.Under) View {
	at := slices.IndexFunc(links, func(l peer.Link) bool { return l.ID == home })
	if at < 0 {
		return nil
	}
	l := links[at]
	v := View{{l.LocalMappedCIDR, pods}, {l.PeerCIDR, l.PeerMappedCIDR}}
	for i, p := range v {
		if !p.usable() {
			return nil
		}
		v[i] = Pair{p.Home.Masked(), p.Here.Masked()}
	}
	if v[0].overlaps(v[1]) {
		return nil
	}
	direct := View{v[0], v[1]}
	for _, l := range links { // in order
		p := Pair{under.Prefixes[l.ID].Masked(), l.PeerMappedCIDR.Masked()}
		if p.usable() {
			direct = append(direct, p)
		}
		if l.ID == home || p.Home == p.Here || len(v) >= mostPairs || !p.usable() || slices.ContainsFunc(v, p.overlaps) {
			continue
		}
		v = append(v, p)
	}
	var relayed View
	for _, pod := range slices.SortedFunc(maps.Keys(under.Relayed), netip.Addr.Compare) {
		here, ok := peer.Translate(under.Relayed[pod], l.PeerCIDR, l.PeerMappedCIDR)
		if ok && usable(pod) && !slices.ContainsFunc(direct, func(p Pair) bool { return p.Home.Contains(pod) }) {
			relayed = append(relayed, Pair{netip.PrefixFrom(pod, 32), netip.PrefixFrom(here, 32)})
		}
	}
	return append(relayed, v...)
}

// single reports whether the pair is one of relayed pods.
func (p Pair) single() bool { return p.Home.IsSingleIP() }

// mostPairs bounds the rules of one pod.
const mostPairs = 64

func (p Pair) usable() bool {
	return p.Home.IsValid() && p.Here.IsValid() && usable(p.Home.Addr()) && usable(p.Here.Addr()) && p.Home.Bits() == p.Here.Bits()
}

func (p Pair) overlaps(q Pair) bool { return p.Home.Overlaps(q.Home) || p.Here.Overlaps(q.Here) }

// ToHome translates an address here to home's; false: home has none for it.
func (v View) ToHome(here netip.Addr) (netip.Addr, bool) {
	return v.to(here, func(p Pair) (from, to netip.Prefix) { return p.Here, p.Home })
}

// ToHere translates an address of home to the one here; false: there is none.
func (v View) ToHere(home netip.Addr) (netip.Addr, bool) {
	return v.to(home, func(p Pair) (from, to netip.Prefix) { return p.Home, p.Here })
}

func (v View) to(a netip.Addr, way func(Pair) (from, to netip.Prefix)) (netip.Addr, bool) {
	for _, p := range v {
		from, to := way(p)
		if out, ok := peer.Translate(a, from, to); ok {
			other := slices.ContainsFunc(v, func(q Pair) bool { _, to := way(q); return q.single() && !p.single() && to.Addr() == out })
			return out, !other // what home relays by has no meaning of its own
		}
	}
	for _, p := range v { // an address with another meaning at the other end has none
		if _, to := way(p); to.Contains(a) {
			return netip.Addr{}, false
		}
	}
	return a, len(v) > 0
}
