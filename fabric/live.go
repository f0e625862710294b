package fabric

import (
	"context"
	"net/netip"
	"sync"

	"rivulet/fabric/discovery"
	"rivulet/fabric/pairing"
)

// live has the settings that may change while the fabric runs. Its lock is a leaf: it is taken with and without
// Fabric.mu.
type live struct {
	mu      sync.Mutex
	name    string
	policy  Policy
	group   *pairing.GroupKey // nil except with ModeGroup
	noRelay bool
	stream  uint16 // one more port for streams; 0 is none
	// peerCIDR is the block of the prefixes of peers.
	peerCIDR netip.Prefix
	changed  chan struct{} // closed and replaced when the name changes
}

func (f *Fabric) name() string {
	f.live.mu.Lock()
	defer f.live.mu.Unlock()
	return f.live.name
}

// SetName changes this cluster's name. Peers and the LAN are notified at once.
func (f *Fabric) SetName(name string) {
	f.live.mu.Lock()
	if f.live.name == name {
		f.live.mu.Unlock()
		return
	}
	f.live.name = name
	close(f.live.changed)
	f.live.changed = make(chan struct{})
	f.live.mu.Unlock()
	f.mu.Lock()
	f.names()
	f.notify()
	f.mu.Unlock()
	f.Refresh()
}

// announce announces this cluster until ctx ends or its name changes.
func (f *Fabric) announce(ctx context.Context, s discovery.Source) error {
	f.live.mu.Lock()
	name, changed := f.live.name, f.live.changed
	f.live.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-ctx.Done():
		case <-changed:
			cancel()
		}
	}()
	return s.Announce(ctx, discovery.Announcement{ID: f.cfg.Identity.ID, Name: name, Port: f.cfg.Port})
}

// SetPaths sets whether peers may reach each other through this device, and the additional TCP port for streams where
// UDP is blocked (0: none).
func (f *Fabric) SetPaths(relay bool, streamPort uint16) {
	f.live.mu.Lock()
	same := f.live.noRelay == !relay && f.live.stream == streamPort
	f.live.noRelay, f.live.stream = !relay, streamPort
	f.live.mu.Unlock()
	if !same {
		f.plane.kick()
		f.mu.Lock()
		f.notify() // the reported neighbours depend on it
		f.mu.Unlock()
	}
}

func (f *Fabric) relays() bool {
	f.live.mu.Lock()
	defer f.live.mu.Unlock()
	return !f.live.noRelay
}

func (f *Fabric) streamPort() uint16 {
	f.live.mu.Lock()
	defer f.live.mu.Unlock()
	return f.live.stream
}
