package networkpolicy

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
)

// Range is a range of IPv4 addresses, both ends included.
type Range struct{ First, Last netip.Addr }

// ranges are disjoint and sorted.
type ranges []span

type span struct{ first, last uint32 }

// blocks are the addresses of all ipBlocks together, in as few ranges as possible: without those of peers, unless a
// block lies among these.
func blocks(all []networkingv1.IPBlock, peers []netip.Prefix) ranges {
	var out ranges
	for _, b := range all {
		cidr, ok := prefix4(b.CIDR)
		if !ok {
			continue // IPv6, which pods do not have, or empty
		}
		one := ranges{cidr}
		if !slices.ContainsFunc(peers, func(p netip.Prefix) bool { return cidr.within(p) }) {
			one = one.outside(peers)
		}
		for _, text := range b.Except {
			if not, ok := prefix4(text); ok {
				one = one.without(not)
			}
		}
		out = append(out, one...)
	}
	return out.merged()
}

func prefix4(text string) (span, bool) {
	p, err := netip.ParsePrefix(text)
	if err != nil || !p.Addr().Is4() {
		return span{}, false
	}
	return spanOf(p), true
}

func spanOf(p netip.Prefix) span {
	first := number(p.Masked().Addr())
	return span{first, first | uint32(uint64(1)<<(32-p.Bits())-1)}
}

func (s span) within(p netip.Prefix) bool {
	if !p.Addr().Is4() {
		return false
	}
	all := spanOf(p)
	return all.first <= s.first && s.last <= all.last
}

func number(a netip.Addr) uint32 { b := a.As4(); return binary.BigEndian.Uint32(b[:]) }

func address(n uint32) netip.Addr {
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

// without removes the addresses of not.
func (r ranges) without(not span) ranges {
	var out ranges
	for _, s := range r {
		if s.last < not.first || s.first > not.last {
			out = append(out, s)
			continue
		}
		if s.first < not.first {
			out = append(out, span{s.first, not.first - 1})
		}
		if s.last > not.last {
			out = append(out, span{not.last + 1, s.last})
		}
	}
	return out
}

// outside removes the addresses of the prefixes.
func (r ranges) outside(not []netip.Prefix) ranges {
	for _, p := range not {
		if p.Addr().Is4() {
			r = r.without(spanOf(p))
		}
	}
	return r
}

// merged sorts ranges and joins those that overlap or touch.
func (r ranges) merged() ranges {
	slices.SortFunc(r, func(a, b span) int { return cmp.Or(cmp.Compare(a.first, b.first), cmp.Compare(a.last, b.last)) })
	var out ranges
	for _, s := range r {
		if n := len(out); n > 0 && (s.first <= out[n-1].last || s.first == out[n-1].last+1) {
			out[n-1].last = max(out[n-1].last, s.last)
			continue
		}
		out = append(out, s)
	}
	return out
}

func (r ranges) contains(a netip.Addr) bool {
	n := number(a)
	return slices.ContainsFunc(r, func(s span) bool { return s.first <= n && n <= s.last })
}

// prefixes are the fewest that cover exactly these ranges.
func (r ranges) prefixes() []netip.Prefix {
	var out []netip.Prefix
	for _, s := range r {
		for first := uint64(s.first); first <= uint64(s.last); {
			bits := 32
			for bits > 0 {
				size := uint64(1) << (32 - bits + 1)
				if first%size != 0 || first+size-1 > uint64(s.last) {
					break
				}
				bits--
			}
			out = append(out, netip.PrefixFrom(address(uint32(first)), bits))
			first += uint64(1) << (32 - bits)
		}
	}
	return out
}

func (r ranges) public() []Range {
	var out []Range
	for _, s := range r {
		out = append(out, Range{address(s.first), address(s.last)})
	}
	return out
}
