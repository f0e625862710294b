package fabric

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"rivulet/fabric/peer"
)

// A peer that is lost costs no more the longer it is: dials that nobody answers end
// with the ping that they are for.
func TestLostPeerHoldsNoDials(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var silent atomic.Bool // nobody answers, and nobody refuses either
	var open, begun atomic.Int32
	a := w.cluster(1, "a", func(c *Config) {
		c.Timing.PingTimeout = 50 * time.Millisecond
		through := c.Dial
		c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if !silent.Load() {
				return through(ctx, network, addr)
			}
			begun.Add(1)
			open.Add(1)
			defer open.Add(-1)
			<-ctx.Done()
			return nil, ctx.Err()
		}
	})
	b := w.cluster(2, "b")
	a.awaitState(b, peer.Connected)
	silent.Store(true)
	w.sever(b)
	a.await("many pings without an answer", func() bool { return begun.Load() > 30 })
	a.await("few open dials", func() bool { return open.Load() <= 5 })
}
