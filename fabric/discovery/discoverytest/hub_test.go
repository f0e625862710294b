package discoverytest

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"rivulet/fabric/discovery"
	"rivulet/fabric/peer"
)

// The fake has to pass the contract too, or tests that use it prove little.
func TestHub(t *testing.T) {
	Run(t, Traits{Names: true, Expiry: 5 * time.Second, Prompt: 5 * time.Second, Addrs: [2]string{"192.0.2.1", "192.0.2.2"}}, func(t *testing.T) Stage {
		hub, events := NewHub(), make(chan discovery.Event, 16)
		go hub.Source("watcher", netip.Addr{}).Watch(t.Context(), func(e discovery.Event) { events <- e })
		return &hubStage{t: t, hub: hub, events: events}
	})
}

type hubStage struct {
	t      *testing.T
	hub    *Hub
	events chan discovery.Event
	stop   context.CancelFunc
}

const other = peer.ID("other")

func (s *hubStage) Events() <-chan discovery.Event { return s.events }
func (s *hubStage) Goodbye()                       { s.stop() }
func (s *hubStage) Die()                           { s.hub.Remove(other) }

func (s *hubStage) Announce(at netip.AddrPort, name string) {
	s.hub.mu.Lock()
	gone := len(s.hub.entries) == 0
	s.hub.mu.Unlock()
	if gone {
		var ctx context.Context
		ctx, s.stop = context.WithCancel(s.t.Context())
		go s.hub.Source(other, at.Addr()).Announce(ctx, discovery.Announcement{ID: other, Name: name, Port: at.Port()})
		return
	}
	s.hub.Set(discovery.Entry{Key: string(other), ID: other, Name: name, Addrs: []netip.AddrPort{at}})
}

func (s *hubStage) Second(at netip.AddrPort, name string) {
	s.hub.Set(discovery.Entry{Key: "second", ID: "second", Name: name, Addrs: []netip.AddrPort{at}})
}
