// Package static is the discovery source for configured addresses. It reads the list it is given and writes nothing.
// Entries have no ID and do not expire: only a connection shows whether a cluster is there.
package static

import (
	"context"
	"net/netip"
	"slices"
	"sync"

	"rivulet/fabric/discovery"
)

// Source is a list of control addresses that can be replaced at any time.
type Source struct {
	mu    sync.Mutex
	addrs []netip.AddrPort
	set   chan struct{} // closed when addrs is replaced
}

func New(addrs ...netip.AddrPort) *Source {
	return &Source{addrs: addrs, set: make(chan struct{})}
}

func (s *Source) Set(addrs ...netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Equal(s.addrs, addrs) {
		return
	}
	s.addrs = addrs
	close(s.set)
	s.set = make(chan struct{})
}

func (s *Source) Name() string { return "static" }

// Announce only waits: there is no receiver.
func (s *Source) Announce(ctx context.Context, _ discovery.Announcement) error {
	<-ctx.Done()
	return nil
}

// Watch reports one entry per address. A new port of a known address is a change.
func (s *Source) Watch(ctx context.Context, report func(discovery.Event)) error {
	reported := discovery.List{}
	for {
		s.mu.Lock()
		addrs, set := s.addrs, s.set
		s.mu.Unlock()
		now := map[string]discovery.Entry{}
		for _, a := range addrs {
			key := a.Addr().String()
			e := now[key]
			now[key] = discovery.Entry{Key: key, Addrs: append(e.Addrs, a)}
		}
		reported.Report(now, report)
		select {
		case <-ctx.Done():
			return nil
		case <-set:
		}
	}
}
