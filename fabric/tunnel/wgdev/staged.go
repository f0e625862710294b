package wgdev

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.zx2c4.com/wireguard/device"
)

// staged is for packets to peers without a session. WireGuard stores them until there is one: up to 128 batches of 128
// packets of 64 KiB for each peer, so a pod that floods a peer which is switched off could use all memory. And these
// packets never leave the flow, which then blocks everybody.
//
// So when the flow is blocked the stored packets are discarded, and for a second nothing more is read for peers without
// a session, except for a packet now and then that makes WireGuard retry. It takes no lock that is held while the
// device is closed, since the TUN's reader calls it.
type staged struct {
	dev     atomic.Pointer[device.Device]
	peers   atomic.Pointer[[]Peer]
	judging atomic.Bool
	gone    atomic.Pointer[goneFor]
}

const (
	goneWhile = time.Second
	goneTries = 100 * time.Millisecond
)

// goneFor are the prefixes of peers without a session, for a while.
type goneFor struct {
	prefixes []block
	until    time.Time
	tried    atomic.Int64 // when a packet was let through, ns
}

type block struct{ first, mask uint32 }

// flush discards the stored packets.
func (s *staged) flush() {
	dev, peers := s.dev.Load(), s.peers.Load()
	if dev == nil || peers == nil {
		return
	}
	for _, p := range *peers {
		if p := dev.LookupPeer(device.NoisePublicKey(p.Key)); p != nil {
			p.FlushStagedPackets()
		}
	}
	if s.judging.CompareAndSwap(false, true) {
		go func() { // it may have to wait for a change of the configuration
			defer s.judging.Store(false)
			if known, err := sessionsOf(dev); err == nil {
				s.gone.Store(goneNow(*peers, known, time.Now()))
			}
		}()
	}
}

// goneNow selects the peers without a session, or whose session is over.
func goneNow(peers []Peer, known map[Key]Session, now time.Time) *goneFor {
	g := &goneFor{until: now.Add(goneWhile)}
	for _, p := range peers {
		if now.Sub(known[p.Key].LastHandshake) < device.RejectAfterTime {
			continue
		}
		for _, prefix := range append([]netip.Prefix{p.CIDR}, p.Behind...) {
			first := prefix.Masked().Addr().As4()
			g.prefixes = append(g.prefixes, block{binary.BigEndian.Uint32(first[:]), ^uint32(0) << (32 - prefix.Bits())})
		}
	}
	if len(g.prefixes) == 0 {
		return nil
	}
	return g
}

// now returns the peers that are gone at the moment, nil if none or unknown.
func (s *staged) now() *goneFor {
	g := s.gone.Load()
	if g != nil && time.Now().After(g.until) {
		s.gone.CompareAndSwap(g, nil)
		return nil
	}
	return g
}

// refuses reports whether a packet is for a peer that is gone, and not one of those that make WireGuard retry.
func (g *goneFor) refuses(pkt []byte) bool {
	if len(pkt) < 20 {
		return false
	}
	dst := binary.BigEndian.Uint32(pkt[16:])
	for _, b := range g.prefixes {
		if dst&b.mask == b.first {
			now, tried := time.Now().UnixNano(), g.tried.Load()
			return now-tried < int64(goneTries) || !g.tried.CompareAndSwap(tried, now)
		}
	}
	return false
}
