package elsewhere

import (
	"encoding/binary"
	"hash/fnv"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"rivulet/fabric/peer"
)

// Pods of this cluster at two providers that are no peers of each other reach each other through this one. Each such pod
// has one more address, in a part of this cluster's pod network that no pod gets: providers reach it as one of home's
// pods, and home translates it (fabric/reach). So no provider needs a prefix for a cluster that it does not know.
//
//	at b                    home                                at c
//	10.42.0.5 ─▶ 240.5.248.7 ═▶ 240.3.0.5 ─▶ 10.42.248.7
//	                            10.42.248.9 ─▶ 240.7.0.6 ═▶ 240.5.248.9 ─▶ 10.42.0.6

// mostRelayed bounds the addresses that one provider reaches through home.
const mostRelayed = 256

// relay are this cluster's pods at peers that others reach through it.
type relay struct {
	// through are their addresses in this cluster's pod network, by those in its view of the peers.
	through map[netip.Addr]netip.Addr
	// between are the providers that have pods and are no peers of each other, each pair in both orders.
	between map[[2]peer.ID]bool
}

// by is the address by which pods at a provider reach one at another; false: they do it directly, or not at all.
func (r relay) by(from, at peer.ID, pod netip.Addr) (netip.Addr, bool) {
	by, ok := r.through[pod]
	return by, ok && r.between[[2]peer.ID{from, at}]
}

// SetOurs sets the addresses of this cluster's pods at each peer, in this cluster's view, and which peers these have; one
// of which that is not known yet has no entry. It returns the addresses by which the pods reach each other through this
// cluster: none while they are at one peer alone.
func (e *Elsewhere) SetOurs(at map[peer.ID][]netip.Addr, neighbours map[peer.ID]map[peer.ID]netip.Prefix) map[netip.Addr]netip.Addr {
	now := relay{between: map[[2]peer.ID]bool{}}
	for from := range at {
		direct, known := neighbours[from]
		for to := range at {
			if _, ok := direct[to]; from != to && known && !ok && neighbours[to] != nil {
				now.between[[2]peer.ID{from, to}], now.between[[2]peer.ID{to, from}] = true, true
			}
		}
	}
	e.mu.Lock()
	if len(at) > 1 { // also between peers: connections stay when two become peers
		first, n := block(e.PodCIDR)
		now.through = assign(first, n, e.relay.through, slices.Concat(slices.Collect(maps.Values(at))...))
	}
	same, still := reflect.DeepEqual(e.at, at), reflect.DeepEqual(e.relay, now)
	e.at, e.relay = at, now
	e.mu.Unlock()
	if !same || !still {
		e.ours.Notify()
	}
	if !still {
		e.relays.Notify()
	}
	return now.through
}

// Through is the address, in this cluster's pod network, by which pods at a provider reach this cluster's pod at another
// one; false: directly, or not at all.
func (e *Elsewhere) Through(from, at peer.ID, pod netip.Addr) (netip.Addr, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.relay.by(from, at, pod)
}

// ThroughChanged reports changes of Through.
func (e *Elsewhere) ThroughChanged() (<-chan struct{}, func()) { return e.relays.Changed() }

// Relayed are the providers whose pods of this cluster reach those at others through it, by ID, sorted.
func (e *Elsewhere) Relayed() map[peer.ID][]peer.ID {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := map[peer.ID][]peer.ID{}
	for pair := range e.relay.between {
		out[pair[0]] = append(out[pair[0]], pair[1])
	}
	for _, list := range out {
		slices.Sort(list)
	}
	return out
}

// block is the part of the pod network that no pod gets: nodes have theirs from its beginning, and of the last 1/32 the
// last 1/8 is left to the tunnel's address. first is its first address, n how many there are.
func block(pods netip.Prefix) (first, n uint32) {
	size := uint32(1) << (32 - pods.Bits())
	a := pods.Masked().Addr().As4()
	return binary.BigEndian.Uint32(a[:]) + size - size/32, size/32 - size/256
}

// assign gives each pod an address of the block: the one that it has, else one that depends on the pod's, so that it is
// usually the same after a restart. Pods beyond the block's size get none.
func assign(first, n uint32, had map[netip.Addr]netip.Addr, pods []netip.Addr) map[netip.Addr]netip.Addr {
	out, taken := map[netip.Addr]netip.Addr{}, map[netip.Addr]bool{}
	give := func(pod, a netip.Addr) { out[pod], taken[a] = a, true }
	slices.SortFunc(pods, netip.Addr.Compare)
	for _, pod := range pods {
		if a, ok := had[pod]; ok {
			give(pod, a)
		}
	}
	for _, pod := range pods {
		if _, ok := out[pod]; ok || uint32(len(out)) >= n {
			continue
		}
		h := fnv.New32a()
		_, _ = h.Write(pod.AsSlice())
		for i := h.Sum32() % n; ; i = (i + 1) % n {
			a := netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, first+i)))
			if !taken[a] {
				give(pod, a)
				break
			}
		}
	}
	return out
}
