// Package ipam chooses the prefix under which this cluster sees a peer's pods.
// It is pure: everything that is taken comes in, one prefix comes out.
//
// Every cluster has the same pod CIDR by default, so the peer's own prefix is
// seldom free; and it is taken only if it is private, for a peer that says its
// pods are 8.0.0.0/8 would get our traffic to that part of the Internet. The
// candidates are then, in this order, the blocks of the same
// size in 10.128.0.0/9, 172.16.0.0/12 and 100.64.0.0/10. Where in a range the
// search begins follows from the peer's ID: two devices that know the same peer
// rarely see it under the same prefix as another, and a device that lost its
// records most likely chooses what it chose before.
package ipam

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"

	"rivulet/fabric/peer"
)

// ErrExhausted is returned when nothing is free.
var ErrExhausted = errors.New("ipam: no prefix is free")

var ranges = []netip.Prefix{
	netip.MustParsePrefix("10.128.0.0/9"),
	netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("100.64.0.0/10"),
}

// privateRanges are those that a peer's pods may be in.
var privateRanges = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"),
	netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("100.64.0.0/10"),
}

// Choose returns a prefix of the size of theirs that overlaps nothing in taken:
// previous if that is still free, else theirs, else a candidate.
func Choose(id peer.ID, theirs, previous netip.Prefix, taken []netip.Prefix) (netip.Prefix, error) {
	if !theirs.IsValid() || !theirs.Addr().Is4() {
		return netip.Prefix{}, fmt.Errorf("ipam: %s is not an IPv4 prefix; peers need an IPv4 pod CIDR", theirs)
	}
	bits := theirs.Bits()
	free := func(p netip.Prefix) bool {
		for _, t := range taken {
			if t.Overlaps(p) {
				return false
			}
		}
		return true
	}
	if previous.IsValid() && previous.Bits() == bits && private(previous) && free(previous) {
		return previous.Masked(), nil
	}
	if private(theirs) && free(theirs) {
		return theirs.Masked(), nil
	}
	for _, r := range ranges {
		if bits < r.Bits() {
			continue // a block of this size does not fit
		}
		n := uint64(1) << (bits - r.Bits())
		start := hash(id) % n
		for i := range n {
			if p := block(r, bits, (start+i)%n); free(p) {
				return p, nil
			}
		}
	}
	return netip.Prefix{}, fmt.Errorf("%w for %s as large as %s: remove peers that are gone, or give this cluster a smaller pod CIDR",
		ErrExhausted, id.Short(), theirs)
}

func private(p netip.Prefix) bool {
	return slices.ContainsFunc(privateRanges, func(r netip.Prefix) bool { return r.Bits() <= p.Bits() && r.Contains(p.Addr()) })
}

func hash(id peer.ID) uint64 {
	h := fnv.New64a()
	h.Write([]byte(id))
	return h.Sum64()
}

// block returns the i-th prefix of the given length in r.
func block(r netip.Prefix, bits int, i uint64) netip.Prefix {
	a := r.Addr().As4()
	v := uint32(a[0])<<24 | uint32(a[1])<<16 | uint32(a[2])<<8 | uint32(a[3])
	v |= uint32(i) << (32 - bits)
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}), bits)
}
