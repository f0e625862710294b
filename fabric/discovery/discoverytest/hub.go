package discoverytest

import (
	"context"
	"net/netip"
	"sync"

	"rivulet/fabric/discovery"
	"rivulet/fabric/peer"
)

// Hub is a LAN in memory.
type Hub struct {
	mu       sync.Mutex
	entries  map[peer.ID]discovery.Entry
	watchers map[*watcher]struct{}
}

type watcher struct {
	self   peer.ID
	events chan discovery.Event
}

func NewHub() *Hub {
	return &Hub{entries: map[peer.ID]discovery.Entry{}, watchers: map[*watcher]struct{}{}}
}

// Source returns the source of the device with the ID and the address.
func (h *Hub) Source(id peer.ID, addr netip.Addr) discovery.Source { return &hubSource{h, id, addr} }

type hubSource struct {
	hub  *Hub
	id   peer.ID
	addr netip.Addr
}

func (s *hubSource) Name() string { return "hub" }

func (s *hubSource) Announce(ctx context.Context, a discovery.Announcement) error {
	s.hub.Set(discovery.Entry{Key: string(a.ID), ID: a.ID, Name: a.Name, Addrs: []netip.AddrPort{netip.AddrPortFrom(s.addr, a.Port)}, TXT: a.TXT})
	<-ctx.Done()
	s.hub.Remove(a.ID)
	return nil
}

func (s *hubSource) Watch(ctx context.Context, report func(discovery.Event)) error {
	w := &watcher{self: s.id, events: make(chan discovery.Event, 1024)}
	s.hub.mu.Lock()
	for _, e := range s.hub.entries {
		w.send(discovery.Event{Kind: discovery.Added, Entry: e})
	}
	s.hub.watchers[w] = struct{}{}
	s.hub.mu.Unlock()
	defer func() {
		s.hub.mu.Lock()
		defer s.hub.mu.Unlock()
		delete(s.hub.watchers, w)
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-w.events:
			report(e)
		}
	}
}

// Set adds or replaces an entry on the LAN.
func (h *Hub) Set(e discovery.Entry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	kind := discovery.Added
	if old, ok := h.entries[e.ID]; ok {
		if kind = discovery.Changed; old.Equal(e) {
			return
		}
	}
	h.entries[e.ID] = e
	h.send(discovery.Event{Kind: kind, Entry: e})
}

func (h *Hub) Remove(id peer.ID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e, ok := h.entries[id]; ok {
		delete(h.entries, id)
		h.send(discovery.Event{Kind: discovery.Removed, Entry: e})
	}
}

func (h *Hub) send(e discovery.Event) {
	for w := range h.watchers {
		w.send(e)
	}
}

func (w *watcher) send(e discovery.Event) {
	if e.Entry.ID != w.self {
		w.events <- e
	}
}
