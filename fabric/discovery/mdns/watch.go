package mdns

import (
	"context"
	"time"

	"github.com/grandcat/zeroconf"

	"rivulet/fabric/discovery"
	"rivulet/fabric/netmon"
	"rivulet/fabric/peer"
)

// Watch tells what is on the LANs.
func (s *Source) Watch(ctx context.Context, tell func(discovery.Event)) error {
	c := &cache{timing: s.timing, entries: map[key]*cached{}, tell: tell, known: s.kept}
	s.onLANs(ctx, "cannot listen for other clusters on the LAN, trying again", c.keep, hearing(func(ctx context.Context, at place) {
		s.watchOn(ctx, c, at)
	}))
	return nil
}

// watchOn returns when ctx ends or the LANs have changed.
func (s *Source) watchOn(ctx context.Context, c *cache, at place) {
	var asked, heard time.Time // when we, and when another device, last asked for everybody
	asking := lookups{window: 3 * s.timing.Window, at: map[peer.ID]time.Time{}}
	askings := 0
	ask, tick := time.NewTimer(0), time.NewTimer(s.timing.Expire)
	defer ask.Stop()
	defer tick.Stop()
	if len(s.timing.Ask) > 0 {
		ask.Reset(s.timing.Ask[0])
	}
	for {
		var now time.Time
		select {
		case <-ctx.Done():
			return
		case <-at.changed:
			return
		case <-ask.C:
			now = time.Now()
			// The answers to another device's question tell us as much: after a power
			// cut a whole room asks at once.
			if asked.IsZero() || heard.Before(asked) || now.Sub(heard) > s.timing.AskAgain/2 {
				asked = now
				s.ask(ctx, at.lans, "")
			}
			if askings++; askings < len(s.timing.Ask) {
				ask.Reset(s.timing.Ask[askings])
			} else {
				ask.Reset(jitter(s.timing.AskAgain))
			}
		case <-tick.C:
			now = time.Now()
		case p := <-at.packets:
			now = time.Now()
			lan, ok := s.lans.LANs().ByIndex(p.lan) // with all addresses that are ours by now
			if !ok || !(netmon.LANs{lan}).OnLink(p.from) {
				continue // another interface, ourselves, or from behind a router
			}
			if asks(p.msg) {
				heard = now
			}
			for _, seen := range sightings(p.msg) {
				if c.see(now, seen, lan, p.from) && asking.may(now, seen.id, false) {
					s.ask(ctx, at.lans, seen.id)
				}
			}
		}
		dying, next := c.tick(now)
		for _, id := range dying {
			if asking.may(now, id, s.kept(id)) {
				s.ask(ctx, at.lans, id)
			}
		}
		if !next.IsZero() {
			tick.Reset(max(next.Sub(now), 10*time.Millisecond))
		}
	}
}

// ask lets zeroconf ask for one device, or for everybody if id is empty. The
// answers are multicast: the ear hears them too, and knows which interface they
// came by, so what zeroconf makes of them is not used.
func (s *Source) ask(ctx context.Context, lans netmon.LANs, id peer.ID) {
	family := zeroconf.IPType(zeroconf.IPv4)
	for _, lan := range lans {
		if !has4(lan) {
			family = zeroconf.IPv4AndIPv6
		}
	}
	r, err := zeroconf.NewResolver(zeroconf.SelectIfaces(interfaces(lans)), zeroconf.SelectIPTraffic(family))
	if err != nil {
		s.log.Debug("cannot ask the LAN", "err", err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, s.timing.Window)
	entries := make(chan *zeroconf.ServiceEntry)
	if id == "" {
		err = r.Browse(ctx, service, domain, entries)
	} else {
		err = r.Lookup(ctx, string(id), service, domain, entries)
	}
	if err != nil {
		s.log.Debug("cannot ask the LAN", "err", err)
	}
	go func() {
		defer cancel()
		for range entries { // closed when the window is over
		}
	}()
}
