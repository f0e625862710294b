// Package ipam chooses the prefix under which this cluster sees a peer's pods.
// It is pure: everything that is taken comes in, one prefix comes out.
//
// The prefix is always ours: a part of a block that the owner of this cluster can
// configure, as large as our own pod CIDR. What a peer says of its own prefix
// decides nothing: an address that a stranger names may be the site's name
// server. Where in the block the search begins follows from the peer's ID: two
// devices that know the same peer rarely see it under the same prefix as another,
// and a device that lost its records most likely chooses what it chose before.
package ipam

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"

	"rivulet/fabric/peer"
)

// ErrExhausted is returned when nothing is free.
var ErrExhausted = errors.New("ipam: no prefix is free")

// Default is the block where none is configured: 2048 prefixes of 16 bits that no
// site has, for routers do not carry them. The kernels of devices do, and nobody
// else sees them: on the LAN a peer's packets have the addresses of the LAN.
var Default = netip.MustParsePrefix("240.0.0.0/5")

// blocks are those that a block may be of: no part of the Internet.
var blocks = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"),
	netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("240.0.0.0/4"),
}

// Check says what is wrong with a block for prefixes of the given length.
func Check(block netip.Prefix, bits int) error {
	switch {
	case !block.IsValid() || !block.Addr().Is4():
		return errors.New("it is no IPv4 prefix")
	case block != block.Masked():
		return fmt.Errorf("it has bits behind its length; write %s", block.Masked())
	case block.Bits() > bits:
		return fmt.Errorf("it is too small: one peer takes a /%d of it", bits)
	case !slices.ContainsFunc(blocks, func(b netip.Prefix) bool { return b.Bits() <= block.Bits() && b.Contains(block.Addr()) }):
		return fmt.Errorf("it is not in one of %v", blocks)
	}
	return nil
}

// Choose returns a prefix of the given length in the block that overlaps nothing in
// taken: previous if it is such a one.
func Choose(block netip.Prefix, bits int, id peer.ID, previous netip.Prefix, taken []netip.Prefix) (netip.Prefix, error) {
	if err := Check(block, bits); err != nil {
		return netip.Prefix{}, fmt.Errorf("ipam: prefixes cannot be chosen from %s: %w", block, err)
	}
	taken = append(slices.Clone(taken), netip.PrefixFrom(broadcast, 32))
	free := func(p netip.Prefix) bool { return !slices.ContainsFunc(taken, p.Overlaps) }
	if Within(block, bits, previous) && free(previous) {
		return previous, nil
	}
	n := uint64(1) << (bits - block.Bits())
	start := hash(id) % n
	for i := range n {
		if p := part(block, bits, (start+i)%n); free(p) {
			return p, nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("%w for %s in %s: remove peers that are gone, or give more room with tunnel.peerCIDR", ErrExhausted, id.Short(), block)
}

// Within reports whether p is a prefix that can have been chosen.
func Within(block netip.Prefix, bits int, p netip.Prefix) bool {
	return p.IsValid() && p.Bits() == bits && p == p.Masked() && block.Contains(p.Addr())
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

func hash(id peer.ID) uint64 {
	h := fnv.New64a()
	h.Write([]byte(id))
	return h.Sum64()
}

// part returns the i-th prefix of the given length in the block.
func part(block netip.Prefix, bits int, i uint64) netip.Prefix {
	a := block.Addr().As4()
	binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(a[:])|uint32(i)<<(32-bits))
	return netip.PrefixFrom(netip.AddrFrom4(a), bits)
}
