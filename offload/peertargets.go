package offload

import (
	"sync"

	"rivulet/offload/target"
	peertarget "rivulet/offload/target/peer"
)

// peerTargets are the peers' targets that are in use: each has to hear of all links,
// because its pods may talk to those of other peers.
type peerTargets struct {
	mu  sync.Mutex
	all map[*openPeer]struct{}
}

func newPeerTargets() *peerTargets { return &peerTargets{all: map[*openPeer]struct{}{}} }

// openPeer is a peer's target that is forgotten when it is closed.
type openPeer struct {
	*peertarget.Target
	among *peerTargets
}

func (p *peerTargets) add(t *peertarget.Target) target.Target {
	p.mu.Lock()
	defer p.mu.Unlock()
	open := &openPeer{t, p}
	p.all[open] = struct{}{}
	return open
}

// Close forgets it, too.
func (t *openPeer) Close() {
	t.among.mu.Lock()
	delete(t.among.all, t)
	t.among.mu.Unlock()
	t.Target.Close()
}

// linksChanged has to be called after the fabric's links have changed.
func (p *peerTargets) linksChanged() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for t := range p.all {
		t.LinksChanged()
	}
}
