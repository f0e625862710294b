package mdns

import (
	"math/rand/v2"
	"net/netip"
	"time"

	"rivulet/fabric/discovery"
	"rivulet/fabric/netmon"
	"rivulet/fabric/peer"
)

// Bounds of the entries stored, in all and of one sender. A sender may announce a few devices (a copied disk, a proxy).
const (
	maxEntries = 1024
	maxBySame  = 16
)

// cache turns sightings into events. It has no clock and is used by one goroutine.
type cache struct {
	timing  Timing
	entries map[key]*cached
	report  func(discovery.Event)
	// known reports devices that a flood of others must not displace; nil is none.
	known func(peer.ID) bool
}

// A device on two LANs of this one has one entry per LAN here, but is reported once, with the entry of the first LAN.
type key struct {
	id  peer.ID
	lan int
}

type cached struct {
	entry    discovery.Entry
	from     netip.Addr // first sender
	expires  time.Time
	queried  bool          // since the last sign of life, by this device or another
	patience time.Duration // before it is queried, so that one device of many does it
	leaving  bool          // goodbye received
}

// see processes a sighting. It returns true if the entry is incomplete: the device sent from an address that its entry
// does not have.
func (c *cache) see(now time.Time, s sighting, lan netmon.Interface, from netip.Addr) (incomplete bool) {
	k := key{s.id, lan.Index}
	old := c.entries[k]
	if s.goodbye {
		if old != nil && !old.leaving {
			old.leaving, old.expires = true, now.Add(c.timing.Goodbye)
		}
		return false
	}
	if s.port == 0 || s.txt == nil {
		if old == nil {
			return true
		}
		c.alive(now, old)
		return !knows(old.entry, from)
	}
	e := entry(s, lan, from)
	if old == nil {
		if !c.makeRoom(s.id, from) {
			return false
		}
		first := c.best(s.id) == nil
		old = &cached{entry: e, from: from}
		c.entries[k] = old
		c.alive(now, old)
		switch {
		case first:
			c.report(discovery.Event{Kind: discovery.Added, Entry: e})
		case c.best(s.id) == old:
			c.report(discovery.Event{Kind: discovery.Changed, Entry: e})
		}
		return len(s.addrs) == 0
	}
	c.alive(now, old)
	if len(s.addrs) == 0 {
		if !knows(old.entry, from) {
			return true
		}
		// A probe does not remove addresses.
		e.Addrs = withPort(old.entry.Addrs, s.port)
	}
	if !e.Equal(old.entry) {
		old.entry = e
		if c.best(s.id) == old {
			c.report(discovery.Event{Kind: discovery.Changed, Entry: e})
		}
	}
	return false
}

// makeRoom makes room for one more entry. Anybody can announce any number of devices: when there are too many, a random
// one that is not known to be real is removed. A real device announces itself again, and is known after one answer.
func (c *cache) makeRoom(id peer.ID, from netip.Addr) bool {
	same := 0
	var victim, sameVictim *key
	for k, e := range c.entries { // in random order
		if e.from == from {
			same++
		}
		if c.known != nil && c.known(k.id) {
			continue
		}
		victim = &k
		if e.from == from {
			sameVictim = &k
		}
	}
	switch {
	case same >= maxBySame && (c.known == nil || !c.known(id)):
		victim = sameVictim
	case len(c.entries) < maxEntries:
		return true
	}
	if victim == nil {
		return false
	}
	c.remove(*victim)
	return true
}

func (c *cache) alive(now time.Time, e *cached) {
	e.expires, e.queried, e.leaving, e.patience = now.Add(c.timing.Expire), false, false, rand.N(c.timing.Expire/16+1)
}

// best is the reported entry of the device: that of the first LAN.
func (c *cache) best(id peer.ID) *cached {
	var best *cached
	lan := 0
	for k, e := range c.entries {
		if k.id == id && (best == nil || k.lan < lan) {
			best, lan = e, k.lan
		}
	}
	return best
}

// tick expires entries. It returns the IDs to query, and the time of the next tick.
func (c *cache) tick(now time.Time) (query []peer.ID, next time.Time) {
	for k, e := range c.entries {
		if !now.Before(e.expires) {
			c.remove(k)
			continue
		}
		at := e.expires
		if !e.queried && !e.leaving {
			at = e.expires.Add(e.patience - c.timing.Expire/4)
			if !now.Before(at) {
				e.queried, at = true, e.expires
				query = append(query, k.id)
			}
		}
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return query, next
}

// queried processes another device's query for this one: its answer will be received here as well.
func (c *cache) queried(id peer.ID) {
	for k, e := range c.entries {
		if k.id == id {
			e.queried = true
		}
	}
}

// keep removes the entries of LANs that are gone.
func (c *cache) keep(lans netmon.LANs) {
	for k := range c.entries {
		if _, ok := lans.ByIndex(k.lan); !ok {
			c.remove(k)
		}
	}
}

func (c *cache) remove(k key) {
	e, known := c.entries[k], c.best(k.id)
	delete(c.entries, k)
	if e != known {
		return
	}
	if other := c.best(k.id); other != nil {
		c.report(discovery.Event{Kind: discovery.Changed, Entry: other.entry})
		return
	}
	c.report(discovery.Event{Kind: discovery.Removed, Entry: e.entry})
}

func knows(e discovery.Entry, from netip.Addr) bool {
	for _, a := range e.Addrs {
		if a.Addr().WithZone("") == from.WithZone("") {
			return true
		}
	}
	return false
}

func withPort(addrs []netip.AddrPort, port uint16) []netip.AddrPort {
	out := make([]netip.AddrPort, len(addrs))
	for i, a := range addrs {
		out[i] = netip.AddrPortFrom(a.Addr(), port)
	}
	return out
}
