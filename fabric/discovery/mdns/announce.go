package mdns

import (
	"context"
	"math/rand/v2"
	"net"
	"time"

	"github.com/grandcat/zeroconf"

	"rivulet/fabric/discovery"
	"rivulet/fabric/netmon"
)

// Announce announces on every LAN, and again when the LANs change.
func (s *Source) Announce(ctx context.Context, a discovery.Announcement) error {
	s.onLANs(ctx, "cannot announce this cluster on the LAN, trying again", nil, func(ctx context.Context, lans netmon.LANs, changed <-chan struct{}) error {
		return s.announceOn(ctx, a, lans, changed)
	})
	return nil
}

// announceOn returns when ctx ends or the LANs have changed, after a goodbye. If it is called again at once, receivers
// of the goodbye ignore it.
func (s *Source) announceOn(ctx context.Context, a discovery.Announcement, lans netmon.LANs, changed <-chan struct{}) error {
	// Without addresses, zeroconf answers with those that the interface has at that moment. The host name is the ID,
	// because two devices may both be "raspberrypi".
	server, err := zeroconf.RegisterProxy(string(a.ID), service, domain, int(a.Port), string(a.ID)+"."+domain, nil, text(a), interfaces(lans))
	if err != nil {
		return err
	}
	defer server.Shutdown()
	mouth, err := open(lans)
	if err != nil {
		return err
	}
	defer mouth.close()
	mouth.deaf()
	for n := 0; ; n++ {
		for _, lan := range lans {
			if err := mouth.send(announcement(a, lan), lan); err != nil {
				s.log.Debug("announcement not sent", "err", err)
			}
		}
		if wait(ctx, changed, s.heartbeat(n)) {
			return nil
		}
	}
}

// heartbeat is the delay after the nth announcement.
func (s *Source) heartbeat(n int) time.Duration {
	if n < len(s.timing.Again) {
		return s.timing.Again[n]
	}
	h := s.timing.Heartbeat
	return jitter(min(max(h, h*time.Duration(s.seen.Load())/fewDevices), 2*h))
}

// jitter prevents devices that were switched on together from sending together.
func jitter(d time.Duration) time.Duration { return d - d/8 + rand.N(d/4+1) }

// wait returns true if ctx ended or the LANs changed within d; 0 is no limit.
func wait(ctx context.Context, changed <-chan struct{}, d time.Duration) bool {
	var due <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		due = t.C
	}
	select {
	case <-ctx.Done():
		return true
	case <-changed:
		return true
	case <-due:
		return false
	}
}

func interfaces(lans netmon.LANs) []net.Interface {
	var out []net.Interface
	for _, lan := range lans {
		out = append(out, lan.Net())
	}
	return out
}
