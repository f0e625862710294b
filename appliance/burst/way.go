package burst

import (
	"context"
	"sync"
	"time"

	"rivulet/offload/target/external"
)

// Gateway connects home and the pods at one target.
type Gateway interface {
	external.Network
	// Run creates and maintains it until ctx ends; after an error it is called again.
	Run(ctx context.Context) error
	// Status is shown by rivulet burst status, as JSON.
	Status() any
}

// way runs a gateway; nil is none.
type way struct {
	gateway Gateway
	cancel  context.CancelFunc
	done    chan struct{}

	mu  sync.Mutex
	why error // of the last failure
}

const firstPause, longestPause = time.Second, time.Minute

// join starts the gateway of a target, if it needs one; m.mu is held.
func (m *Manager) join(e *entry) {
	if e.way != nil || e.broken != nil || e.double != nil || e.Settings.Network == external.NetworkNone {
		return
	}
	if m.cfg.Gateway == nil {
		e.broken = errNoGateway
		return
	}
	g, err := m.cfg.Gateway(e.id(), e.Settings, e.credential)
	if err != nil {
		e.broken = err
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &way{gateway: g, cancel: cancel, done: make(chan struct{})}
	e.way = w
	go func() {
		defer close(w.done)
		pause := firstPause
		for ctx.Err() == nil {
			begun := time.Now()
			err := g.Run(ctx)
			if ctx.Err() != nil {
				return
			}
			w.mu.Lock()
			w.why = err
			w.mu.Unlock()
			m.cfg.Log.Warn("the gateway of a burst target does not run", "name", e.Settings.Name, "err", err, "retry", pause)
			if time.Since(begun) > longestPause {
				pause = firstPause
			}
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
			pause = min(2*pause, longestPause)
		}
	}()
}

// stop stops the gateway and returns after its end.
func (w *way) stop() {
	if w == nil {
		return
	}
	w.cancel()
	<-w.done
}

func (w *way) failure() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.why
}

func (m *Manager) stopWays() {
	m.mu.Lock()
	m.running = false
	var all []*way
	for _, e := range m.entries {
		all = append(all, e.way)
		e.way = nil
	}
	m.mu.Unlock()
	for _, w := range all {
		w.stop()
	}
}
