package mdns

import (
	"context"
	"math/rand/v2"
	"time"

	"rivulet/fabric/discovery"
	"rivulet/fabric/netmon"
	"rivulet/fabric/peer"
)

func (s *Source) Watch(ctx context.Context, report func(discovery.Event)) error {
	c := &cache{timing: s.timing, entries: map[key]*cached{}, report: report, known: s.retained}
	s.onLANs(ctx, "cannot listen for other clusters on the LAN, trying again", c.keep, hearing(func(ctx context.Context, at place) {
		s.watchOn(ctx, c, at)
	}))
	return nil
}

// watchOn returns when ctx ends or the LANs have changed.
func (s *Source) watchOn(ctx context.Context, c *cache, at place) {
	var asked, othersQueried time.Time // last query for all, of this device and of others
	defer s.seen.Store(0)
	asking := lookups{window: s.timing.Once, at: map[peer.ID]time.Time{}}
	askings := 0
	ask, tick := time.NewTimer(0), time.NewTimer(s.timing.Expire)
	defer ask.Stop()
	defer tick.Stop()
	if len(s.timing.Query) > 0 {
		ask.Reset(s.timing.Query[0] + rand.N(firstQuery))
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
			// The answers to another device's query are received as well: after a power cut all devices of a room would
			// query at once, and each would answer each.
			if othersQueried.IsZero() || othersQueried.Before(asked) || now.Sub(othersQueried) > s.timing.QueryAgain/2 {
				asked = now
				s.query(at, "")
			}
			if askings++; askings < len(s.timing.Query) {
				ask.Reset(s.timing.Query[askings])
			} else {
				ask.Reset(jitter(s.timing.QueryAgain))
			}
		case <-tick.C:
			now = time.Now()
		case p := <-at.packets:
			now = time.Now()
			lan, ok := s.lans.LANs().ByIndex(p.lan) // with all addresses that this device has by now
			if !ok || !(netmon.LANs{lan}).OnLink(p.from) {
				continue // another interface, this device, or from behind a router
			}
			if isQuery(p.msg) {
				othersQueried = now
			}
			for _, id := range queried(p.msg) {
				c.queried(id)
			}
			for _, seen := range sightings(p.msg) {
				if c.see(now, seen, lan, p.from) && asking.may(now, seen.id, false) {
					s.query(at, seen.id)
				}
			}
		}
		dying, next := c.tick(now)
		s.seen.Store(int64(len(c.entries)))
		for _, id := range dying {
			if asking.may(now, id, s.retained(id)) {
				s.query(at, id)
			}
		}
		if !next.IsZero() {
			tick.Reset(max(next.Sub(now), 10*time.Millisecond))
		}
	}
}

// firstQuery bounds the delay of the first query, so that one device of many that start together sends it.
const firstQuery = 300 * time.Millisecond

// query queries one device, or all if id is empty. Answers are multicast and received by the ear, which reports their
// interface.
func (s *Source) query(at place, id peer.ID) {
	for _, lan := range at.lans {
		if err := at.ear.send(question(id), lan); err != nil {
			s.log.Debug("cannot ask the LAN", "err", err)
		}
	}
}
