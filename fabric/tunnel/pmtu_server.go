package tunnel

import (
	"fmt"

	"rivulet/fabric/tunnel/wgdev"
)

// measure follows the paths to the peers in force. It is called with mu held.
func (s *Server) measure() {
	if s.sizes == nil {
		sizes, err := measurePaths(s.cfg.Address, &s.counts.Large, s.pathMTU, inUse(s.dev), s.log)
		if err != nil {
			s.log.Warn("paths are not measured", "err", err)
			return
		}
		s.sizes = sizes
	}
	for id := range s.mtus {
		if !s.cfg.has(id) {
			delete(s.mtus, id)
		}
	}
	s.sizes.set(s.cfg)
}

// pathMTU applies a measurement to the MSS of new connections, and to the route for all other packets.
func (s *Server) pathMTU(id string, mtu int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dev == nil || !s.cfg.has(id) || s.mtus[id] == mtu {
		return
	}
	if s.mtus == nil {
		s.mtus = map[string]int{}
	}
	was := s.cfg.mtuOf(id, s.mtus)
	s.mtus[id] = mtu
	if table, err := s.cfg.table(s.mtus); err != nil {
		s.log.Warn("path measured", "peer", id, "mtu", mtu, "err", err)
	} else {
		s.translator.Set(table)
	}
	var err error
	if s.unrouted, err = setLink(s.cfg, s.mtus); err != nil {
		s.log.Warn("path measured", "peer", id, "mtu", mtu, "err", err)
	}
	if now := s.cfg.mtuOf(id, s.mtus); now != was {
		s.log.Info("path measured", "peer", id, "mtu", now, "was", was)
	}
}

func (c Config) has(id string) bool {
	for _, p := range c.Peers {
		if p.ID == id {
			return true
		}
	}
	return false
}

// mtuOf is what fits through the path to a peer.
func (c Config) mtuOf(id string, mtus map[string]int) int {
	if m := mtus[id]; m > 0 && m < c.MTU {
		return m
	}
	return c.MTU
}

// routeMTU is the MTU of a peer's route; 0 is none, which means the tunnel's.
func (c Config) routeMTU(id string, mtus map[string]int) int {
	if m := c.mtuOf(id, mtus); m < c.MTU {
		return m
	}
	return 0
}

// inUse names the path to a peer that the device's packets take now: another one may fit less, or more.
func inUse(dev *wgdev.Device) func(Peer) string {
	return func(p Peer) string {
		for _, path := range dev.Paths.Status(p.PublicKey.Bytes()) {
			if path.Used {
				return fmt.Sprint(path.Kind, path.Addr, path.Via)
			}
		}
		return ""
	}
}
