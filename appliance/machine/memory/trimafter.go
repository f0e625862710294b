package memory

import (
	"context"
	"log/slog"
	"time"
)

// peerSettled is how long after a new peer the work for it is done: pairing, its virtual node, the first offers.
const peerSettled = 20 * time.Second

// TrimAfterPeers releases, until ctx ends, the memory used for new peers: count returns their number, changes
// subscribes to changes of it. It is mostly code, 10 MB, and would stay until the next regular trim.
func TrimAfterPeers(ctx context.Context, changes func() (<-chan struct{}, func()), count func() int, log *slog.Logger) {
	changed, stop := changes()
	defer stop()
	trimAfter(ctx, changed, count, peerSettled, func() {
		if err := Trim(); err != nil {
			log.Debug("what peers have used by coming stays mapped", "err", err)
		}
	})
}

// trimAfter trims when the count has grown and then not changed for the time quiet.
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
