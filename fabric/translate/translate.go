// Package translate rewrites the addresses of packets between clusters that use the same pod CIDR. It is stateless: it
// reads its rules and the packet, and writes nothing but the packet.
//
//	pod 10.42.0.5                                            pod 10.42.0.7
//	   |  10.42.0.5 > 10.200.0.7            10.201.0.5 > 10.42.0.7  ^
//	   v Out: src Local -> LocalMapped     In: dst LocalMapped -> Local |
//	  tunnel --- 10.201.0.5 > 10.200.0.7 wireguard -------------> tunnel
//
// On the wire a packet's source is how the receiver sees the sender, and its destination how the sender sees the
// receiver. Each end rewrites one address and finds the rule by the other one, which is the peer's own: so two peers
// may even have chosen the same LocalMappedCIDR for this cluster.
//
// Only packets between this cluster's published prefix and that of a peer pass, and those of this cluster's other nodes,
// unchanged; IPv6 does not. After a restart the table is empty until Set is called, so everything is dropped and counted
// in the tunnel's status.
package translate

import (
	"fmt"
	"net/netip"
	"sort"
	"sync/atomic"
)

// Rule publishes one local prefix to one peer. With LocalMappedCIDR equal to LocalCIDR packets are checked and pass
// unchanged, except for a TCP MSS that is too large.
type Rule struct {
	Peer            string       // names the peer in errors
	LocalCIDR       netip.Prefix // the local prefix as this cluster uses it
	LocalMappedCIDR netip.Prefix // the local prefix as the peer sees it, of the same size
	PeerMappedCIDR  netip.Prefix // the peer's pods as this cluster sees them
	// MTU is what fits through the path to this peer, bytes; 0 is the tunnel's.
	MTU int
}

// Node is a prefix of this cluster behind another of its nodes. Its packets pass unchanged, except for a TCP MSS that is
// too large. WireGuard has checked whose source address it is, the guard decides what such a packet reaches.
type Node struct {
	Prefix netip.Prefix
	MTU    int // as in Rule
}

// Table is a compiled, immutable set of rules.
type Table struct {
	rules []rule // by PeerMappedCIDR, ascending, disjoint
	nodes []rule // remote and mss only, the longest prefix first
}

// rule is a Rule in the form of the packet path. Addresses are numbers.
type rule struct {
	remote, remoteMask uint32
	out, in            move
	mss                uint16 // largest TCP MSS let through, 0 is any
}

// move maps an address from one prefix to another of the same size.
type move struct {
	from, to, mask uint32
	delta          uint32 // the difference for a checksum, see checksum.go
}

// same reports whether there is nothing to rewrite.
func (m *move) same() bool              { return m.from == m.to }
func (m *move) has(addr uint32) bool    { return addr&m.mask == m.from }
func (m *move) do(addr uint32) uint32   { return addr&^m.mask | m.to }
func (m *move) first() uint32           { return m.to | 1&^m.mask }
func (r *rule) covers(addr uint32) bool { return addr&r.remoteMask == r.remote }

// Compile checks the rules and builds their table. The MSS of TCP connections is clamped to mtu, that of the tunnel, or
// to the rule's; 0 leaves the MSS unchanged.
func Compile(rules []Rule, mtu int) (*Table, error) {
	t := &Table{rules: make([]rule, 0, len(rules))}
	sorted := append([]Rule(nil), rules...)
	sort.Slice(sorted, func(i, j int) bool { return sorted[i].PeerMappedCIDR.Addr().Less(sorted[j].PeerMappedCIDR.Addr()) })
	for i, r := range sorted {
		if err := r.check(); err != nil {
			return nil, err
		}
		if i > 0 && r.PeerMappedCIDR.Overlaps(sorted[i-1].PeerMappedCIDR) {
			return nil, fmt.Errorf("translate: %s of peer %s overlaps %s of peer %s; choose another prefix for one of them",
				r.PeerMappedCIDR, r.Peer, sorted[i-1].PeerMappedCIDR, sorted[i-1].Peer)
		}
		mss, err := clampTo(mtu, r.MTU)
		if err != nil {
			return nil, err
		}
		remote, remoteMask := numbers(r.PeerMappedCIDR)
		local, mask := numbers(r.LocalCIDR)
		as, _ := numbers(r.LocalMappedCIDR)
		t.rules = append(t.rules, rule{
			remote: remote, remoteMask: remoteMask, mss: mss,
			out: move{from: local, to: as, mask: mask, delta: diff32(local, as)},
			in:  move{from: as, to: local, mask: mask, delta: diff32(as, local)},
		})
	}
	return t, nil
}

// clampTo returns the largest MSS for a path: its MTU less the headers of IP and TCP.
func clampTo(tunnel, path int) (uint16, error) {
	mtu := tunnel
	if path != 0 && (mtu == 0 || path < mtu) {
		mtu = path
	}
	if mtu == 0 {
		return 0, nil
	}
	if mtu < 576 || mtu > 65535 {
		return 0, fmt.Errorf("translate: MTU %d is not in 576..65535", mtu)
	}
	return uint16(mtu - 40), nil
}

func (r Rule) check() error {
	for _, p := range []netip.Prefix{r.LocalCIDR, r.LocalMappedCIDR, r.PeerMappedCIDR} {
		if !p.IsValid() || !p.Addr().Is4() || p != p.Masked() {
			return fmt.Errorf("translate: peer %s: %q is not an IPv4 prefix", r.Peer, p)
		}
	}
	if r.LocalCIDR.Bits() != r.LocalMappedCIDR.Bits() {
		return fmt.Errorf("translate: peer %s: %s cannot be seen as %s, the sizes differ", r.Peer, r.LocalCIDR, r.LocalMappedCIDR)
	}
	if r.LocalCIDR.Overlaps(r.PeerMappedCIDR) {
		return fmt.Errorf("translate: peer %s: its prefix %s overlaps our own %s; choose another", r.Peer, r.PeerMappedCIDR, r.LocalCIDR)
	}
	return nil
}

func numbers(p netip.Prefix) (addr, mask uint32) {
	a := p.Addr().As4()
	return be32(a[:]), ^uint32(0) << (32 - p.Bits())
}

// WithNodes adds the prefixes of other nodes of this cluster to a new table. mtu is that of the tunnel.
func (t *Table) WithNodes(nodes []Node, mtu int) error {
	for _, n := range nodes {
		if !n.Prefix.IsValid() || !n.Prefix.Addr().Is4() {
			return fmt.Errorf("translate: %q of a node is not an IPv4 prefix", n.Prefix)
		}
		mss, err := clampTo(mtu, n.MTU)
		if err != nil {
			return err
		}
		remote, mask := numbers(n.Prefix.Masked())
		t.nodes = append(t.nodes, rule{remote: remote, remoteMask: mask, mss: mss})
	}
	sort.SliceStable(t.nodes, func(i, j int) bool { return t.nodes[i].remoteMask > t.nodes[j].remoteMask })
	return nil
}

// node returns the rule of the node behind which addr is, or nil.
func (t *Table) node(addr uint32) *rule {
	for i := range t.nodes {
		if t.nodes[i].covers(addr) {
			return &t.nodes[i]
		}
	}
	return nil
}

// passNode reports whether a packet from or to a node may pass.
func (t *Table) passNode(pkt []byte, h header, addr uint32) bool {
	r := t.node(addr)
	if r == nil {
		return false
	}
	switch l4 := pkt[h.size:h.total]; {
	case h.proto != tcp:
	case h.offset == 0:
		if len(l4) < 20 {
			return false
		}
		r.clamp(l4)
	case h.offset < 24:
		return false // would overwrite the header that was just checked (RFC 1858)
	}
	return true
}

// find returns the rule whose peer owns addr, or nil.
func (t *Table) find(addr uint32) *rule {
	lo, hi := 0, len(t.rules)
	for lo < hi {
		mid := int(uint(lo+hi) / 2)
		if t.rules[mid].remote <= addr {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == 0 || !t.rules[lo-1].covers(addr) {
		return nil
	}
	return &t.rules[lo-1]
}

// Translator has the table in force. All methods may be called concurrently; the zero value drops every packet.
type Translator struct {
	table atomic.Pointer[Table]
}

var empty Table

// Set puts a table in force; packets in flight finish with the old one.
func (t *Translator) Set(table *Table) { t.table.Store(table) }

// Table returns the table in force, for a whole batch of packets.
func (t *Translator) Table() *Table {
	if table := t.table.Load(); table != nil {
		return table
	}
	return &empty
}
