package tunnel

import "rivulet/fabric/wgkey"

// greet sends a packet to the peers after a key has changed on either side. The side that changes second then begins
// the handshake that succeeds; otherwise the side that began too early would wait for five seconds before it retries.
func (s *Server) greet(was, cfg Config) {
	if was.Port == 0 { // no configuration before
		return
	}
	old := map[string]wgkey.Public{}
	for _, p := range was.Peers {
		old[p.ID] = p.PublicKey
	}
	for _, p := range cfg.Peers {
		before, known := old[p.ID]
		if !known || before == p.PublicKey && was.PrivateKey == cfg.PrivateKey {
			continue
		}
		s.dev.Wake(p.PublicKey.Bytes())
	}
}
