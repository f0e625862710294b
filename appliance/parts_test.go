package appliance

import (
	"sync"
	"testing"

	"rivulet/appliance/network"
)

// Components that start again write while everything else reads (with -race).
func TestPartsAreSharedSafely(t *testing.T) {
	s, writes := &System{}, 0
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { s.made.set(func(p *parts) { writes++; p.routes = network.NewRoutes(nil) }) })
		all.Go(func() { _, _ = s.made.get(), s.connectedPeers() })
	}
	all.Wait()
	if writes != 8 {
		t.Errorf("%d writes, want 8: some got lost", writes)
	}
}
