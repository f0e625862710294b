package tunnel

import "rivulet/fabric/wgkey"

// greet sends something to the peers with whom a key has changed, on our side or on
// theirs. Whoever changes second then begins the handshake that works; without it
// the side that began too early would wait for five seconds before it tries again.
func (s *Server) greet(was, cfg Config) {
	if was.Port == 0 { // nothing was there before
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
