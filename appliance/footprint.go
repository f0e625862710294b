package appliance

import (
	"rivulet/appliance/footprint"
	"rivulet/fabric/peer"
)

// newFootprint watches what we cost the machine.
func (s *System) newFootprint() *footprint.Watch {
	return footprint.New(footprint.Config{
		PIDs: s.pids, Peers: s.connectedPeers, StateDir: s.cfg.Dirs.State, RAM: s.facts.MemoryBytes,
		Health: &s.health, Log: s.cfg.Log.With("component", "footprint"),
	})
}

func (s *System) connectedPeers() (n int) {
	s.mu.Lock()
	fab := s.fabric
	s.mu.Unlock()
	if fab == nil {
		return 0
	}
	for _, p := range fab.Peers() {
		if p.State == peer.Connected {
			n++
		}
	}
	return n
}
