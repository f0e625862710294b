package fabric

import (
	"context"
	"net/netip"
	"sync"

	"rivulet/fabric/discovery"
	"rivulet/fabric/pairing"
)

// live is what may be changed while the fabric runs. Its lock is a leaf: it is
// taken with and without Fabric.mu.
type live struct {
	mu      sync.Mutex
	name    string
	policy  Policy
	group   *pairing.GroupKey // nil but with ModeGroup
	noRelay bool
	stream  uint16 // one more port for streams; 0 is none
	// peerCIDR is the block that the prefixes of peers are chosen from.
	peerCIDR netip.Prefix
	changed  chan struct{} // closed and replaced when the name is another
}

func (f *Fabric) name() string {
	f.live.mu.Lock()
	defer f.live.mu.Unlock()
	return f.live.name
}

// SetName gives this cluster another name for its peers: they are told at once,
// and so is the LAN.
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

// announce announces this cluster until ctx ends or it has another name.
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

// SetPaths says whether peers may reach each other through this device, and on which
// TCP port beside the control port they may come where UDP does not pass (0: none).
func (f *Fabric) SetPaths(relay bool, streamPort uint16) {
	f.live.mu.Lock()
	same := f.live.noRelay == !relay && f.live.stream == streamPort
	f.live.noRelay, f.live.stream = !relay, streamPort
	f.live.mu.Unlock()
	if !same {
		f.plane.kick()
		f.mu.Lock()
		f.notify() // whom we tell of whom
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
