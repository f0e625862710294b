package appliance

import (
	"rivulet/appliance/machine/usage"
	"rivulet/fabric/peer"
)

// newFootprint watches what we cost the machine.
func (s *System) newFootprint() *usage.Watch {
	return usage.New(usage.Config{
		PIDs: s.pids, Peers: s.connectedPeers, StateDir: s.cfg.Dirs.State, RAM: s.facts.MemoryBytes,
		Health: &s.health, Log: s.cfg.Log.With("component", "footprint"),
	})
}

func (s *System) connectedPeers() (n int) {
	fab := s.made.get().fabric
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
