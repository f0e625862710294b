package mdns

import (
	"net/netip"
	"time"

	"rivulet/fabric/discovery"
	"rivulet/fabric/netmon"
	"rivulet/fabric/peer"
)

// maxEntries bounds what a LAN can make us remember.
const maxEntries = 1024

// cache turns sightings into events. It has no clock and is used by one goroutine.
type cache struct {
	timing  Timing
	entries map[key]*cached
	tell    func(discovery.Event)
}

// key: a device that is on two LANs of ours is one entry per LAN inside, and one
// outside, that of the first LAN.
type key struct {
	id  peer.ID
	lan int
}

type cached struct {
	entry   discovery.Entry
	expires time.Time
	asked   bool // asked for since the last sign of life
	leaving bool // said goodbye
}

// see takes in a sighting. It reports whether more is to be known: the device
// sent from an address that we do not have of it.
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
		if len(c.entries) >= maxEntries {
			return false
		}
		first := c.best(s.id) == nil
		old = &cached{entry: e}
		c.entries[k] = old
		c.alive(now, old)
		switch {
		case first:
			c.tell(discovery.Event{Kind: discovery.Added, Entry: e})
		case c.best(s.id) == old:
			c.tell(discovery.Event{Kind: discovery.Changed, Entry: e})
		}
		return len(s.addrs) == 0
	}
	c.alive(now, old)
	if len(s.addrs) == 0 {
		if !knows(old.entry, from) {
			return true
		}
		// A probe does not take addresses away.
		e.Addrs = withPort(old.entry.Addrs, s.port)
	}
	if !e.Equal(old.entry) {
		old.entry = e
		if c.best(s.id) == old {
			c.tell(discovery.Event{Kind: discovery.Changed, Entry: e})
		}
	}
	return false
}

func (c *cache) alive(now time.Time, e *cached) {
	e.expires, e.asked, e.leaving = now.Add(c.timing.Expire), false, false
}

// best is the entry of the device that is told: that of the first LAN.
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

// tick expires what is due and returns the IDs to be asked for, and when to tick again.
func (c *cache) tick(now time.Time) (ask []peer.ID, next time.Time) {
	for k, e := range c.entries {
		if !now.Before(e.expires) {
			c.remove(k)
			continue
		}
		at := e.expires
		if !e.asked && !e.leaving {
			at = e.expires.Add(-c.timing.Expire / 4)
			if !now.Before(at) {
				e.asked, at = true, e.expires
				ask = append(ask, k.id)
			}
		}
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return ask, next
}

// keep removes what was heard on LANs that are gone.
func (c *cache) keep(lans netmon.LANs) {
	for k := range c.entries {
		if _, ok := lans.ByIndex(k.lan); !ok {
			c.remove(k)
		}
	}
}

func (c *cache) remove(k key) {
	e, told := c.entries[k], c.best(k.id)
	delete(c.entries, k)
	if e != told {
		return
	}
	if other := c.best(k.id); other != nil {
		c.tell(discovery.Event{Kind: discovery.Changed, Entry: other.entry})
		return
	}
	c.tell(discovery.Event{Kind: discovery.Removed, Entry: e.entry})
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
