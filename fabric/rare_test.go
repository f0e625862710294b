package fabric

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/fabric/tunnel"
	"rivulet/fabric/tunnel/paths"
)

// watchedPlane reports that the path to each peer works, or fails.
type watchedPlane struct {
	*fakePlane
	fails atomic.Bool
	news  chan struct{}
}

func (p *watchedPlane) Status(ctx context.Context) (tunnel.Status, error) {
	st, err := p.fakePlane.Status(ctx)
	for i := range st.Peers {
		st.Peers[i].Paths = []paths.PathStatus{{Kind: paths.Direct, Alive: !p.fails.Load(), Used: !p.fails.Load()}}
	}
	return st, err
}

func (p *watchedPlane) WatchPaths(ctx context.Context, changed func()) error {
	for {
		changed()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.news:
		}
	}
}

// While the tunnel shows that the path works pings are rare; each of these makes one due long before its time: a path that
// fails, a connection that the peer's process has left, a tunnel that stops reporting.
func TestAPathThatWorksMakesPingsRare(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	timing := testTiming
	timing.Ping = 2 * time.Second
	var planes []*watchedPlane
	watched := func(c *Config) {
		p := &watchedPlane{fakePlane: c.DataPlane.(*fakePlane), news: make(chan struct{}, 1)}
		planes = append(planes, p)
		c.DataPlane, c.Timing = p, timing
	}
	a, b := w.cluster(1, "a", watched), w.cluster(2, "b", watched)
	rests := func() (rests bool, own time.Time) {
		a.members.mu.Lock()
		defer a.members.mu.Unlock()
		m := a.members.byID(b.cfg.Identity.ID)
		if m == nil || m.State() != peer.Connected {
			return false, time.Time{}
		}
		return m.works && m.pings.Rest(time.Now(), m.works) > 5*timing.Ping, m.View().LastSeen
	}
	report := func(works bool) {
		planes[0].fails.Store(!works)
		changes.Poke(planes[0].news)
	}
	wait := func() time.Time {
		changes.Poke(planes[0].news) // the peer may be newer than the last report
		a.await("no ping for a while", func() bool { ok, _ := rests(); return ok })
		_, own := rests()
		return own
	}
	a.awaitState(b, peer.Connected)
	last := wait()
	if seen := a.view(b).LastSeen; time.Since(seen) > time.Second {
		t.Errorf("seen %v ago, while the path works", time.Since(seen))
	}
	report(false)
	a.await("a ping after the path has failed", func() bool { _, own := rests(); return own.After(last) })
	report(true)
	wait()
	gone := time.Now()
	b.stop()
	a.awaitState(b, peer.Lost)
	if took := time.Since(gone); took > 4*timing.Ping {
		t.Errorf("lost %v after its process has ended", took)
	}
}
