package appliance

import (
	"context"
	"time"

	"rivulet/appliance/memory"
	"rivulet/fabric"
)

// peerSettled is how long after a new peer what its coming needed is done: pairing, its
// virtual node, the first offers.
const peerSettled = 20 * time.Second

// trimAfterPeers gives back what peers have used by coming. It is code above all, ten
// megabytes of it, and would stay until the next trim that is due.
func (s *System) trimAfterPeers(ctx context.Context, f *fabric.Fabric) {
	changed, stop := f.Changed()
	defer stop()
	trimAfter(ctx, changed, func() int { return len(f.Links()) }, peerSettled, func() {
		if err := memory.Trim(); err != nil {
			s.cfg.Log.Debug("what peers have used by coming stays mapped", "error", err)
		}
	})
}

// trimAfter trims when the count has grown and then not for a while.
func trimAfter(ctx context.Context, changed <-chan struct{}, count func() int, quiet time.Duration, trim func()) {
	known := count()
	var due <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			n := count()
			if n > known {
				due = time.After(quiet)
			}
			known = n
		case <-due:
			due = nil
			trim()
		}
	}
}
