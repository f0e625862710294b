// Package ipam chooses the prefix under which this cluster sees a peer's pods. It is a pure function of the prefixes in
// use.
//
// The prefix is part of a block that the owner of this cluster can configure, and as large as this cluster's pod CIDR.
// A peer's own prefix has no influence: a stranger could announce the address of the site's name server. The search
// begins at a place that depends on the peer's ID: different devices rarely choose different prefixes for one peer, and
// a device that lost its records most likely chooses the same prefix again.
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

var ErrExhausted = errors.New("ipam: no prefix is free")

// Default is the default block: 2048 prefixes of 16 bits that no site uses, since routers do not forward them. The
// kernels of devices do. On the LAN, the packets have addresses of the LAN.
var Default = netip.MustParsePrefix("240.0.0.0/5")

// blocks are the permitted ranges of a block: none is part of the Internet.
var blocks = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"),
	netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("240.0.0.0/4"),
}

// Check validates a block for prefixes of the given length.
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

// Choose returns a prefix of the given length in the block that overlaps nothing in taken: previous if that is one.
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

// Within reports whether p can be a prefix of the block.
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
