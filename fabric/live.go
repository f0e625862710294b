package fabric

import (
	"context"
	"sync"
	"time"

	"rivulet/fabric/discovery"
)

// live is what may be changed while the fabric runs. Its lock is a leaf: it is
// taken with and without Fabric.mu.
type live struct {
	mu      sync.Mutex
	name    string
	closed  string
	changed chan struct{} // closed and replaced when the name is another
}

func (f *Fabric) name() string {
	f.live.mu.Lock()
	defer f.live.mu.Unlock()
	return f.live.name
}

func (f *Fabric) closed() string {
	f.live.mu.Lock()
	defer f.live.mu.Unlock()
	return f.live.closed
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

// SetClosed ends trust at first sight, for a reason that is told to those who ask,
// or (empty) begins it again. Peers that are trusted already stay.
func (f *Fabric) SetClosed(why string) {
	f.live.mu.Lock()
	same := f.live.closed == why
	f.live.closed = why
	f.live.mu.Unlock()
	if same {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.members {
		if !m.pinned && len(m.found) > 0 {
			m.pace.Found(time.Now(), true) // what was refused before may go now, and the other way round
			poke(m.paceKick)
		}
	}
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
