package tunnel

import (
	"context"
	"slices"
	"time"
)

// pathMTU finds how large a packet may be on the path to one peer, and follows changes, in the manner of RFC 8899: it
// sends packets of several sizes to the peer's tunnel process, which answers each that arrives. It needs no messages of
// routers. Only these packets must not be fragmented outside (see whole), so a path that becomes narrower blocks
// nothing before it is measured again.
//
//	unknown --answers a small one--> sweep all sizes --> known --+
//	   ^                                                  |  ^   | every 5 s with large packets
//	   |  another address, endpoint or path              |  +---+ under way: is the size still right?
//	   +------ small ones arrive, that size does not -----+        every 10 min: more, perhaps?
//
// It reads the peer's answers and alone calls use. It stores nothing: a new process measures again, and uses the
// tunnel's MTU until then.
type pathMTU struct {
	most    int            // the tunnel's
	begin   func()         // answers to earlier probes do not count from here on
	probe   func(size int) // sends one packet of that many bytes
	answers chan int       // sizes that arrived
	doubt   chan struct{}  // receives when the path may have changed
	large   func() uint64  // how many large packets have left, to all peers
	way     func() string  // names the path in use, for one peer may have several
	use     func(mtu int)  // called whenever the MTU is measured
	now     int            // the last argument of use; 0 before
}

const (
	smallProbe = 100 // bytes; fits any path

	probeRounds  = 3
	probeWait    = 500 * time.Millisecond // for the answers of a round
	probeConfirm = 5 * time.Second
	probeRaise   = 10 * time.Minute
	probeRetry   = 2 * time.Second // while nothing is answered; doubles
	probeRetries = 30 * time.Second
)

// probeSizes are the sizes worth trying, ascending. WireGuard pads to 16 bytes, so
// steps of 16 are exact.
func probeSizes(most int) []int {
	sizes := []int{576, 784, 1008}
	for s := 1200; s < 1440; s += 16 {
		sizes = append(sizes, s)
	}
	sizes = append(sizes, 2032, 4080, 6000, 7936)
	sizes = slices.DeleteFunc(sizes, func(s int) bool { return s >= most })
	return append(sizes, most)
}

func (p *pathMTU) run(ctx context.Context) {
	known, wait, way := false, probeRetry, p.way()
	var seen uint64
	var raise time.Time
	for ctx.Err() == nil {
		if now := p.way(); now != way {
			known, way = false, now
		}
		switch {
		case !known && p.answered(ctx, smallProbe):
			p.sweep(ctx)
			known, wait, raise = true, probeRetry, time.Now().Add(probeRaise)
		case known && p.now < p.most && time.Now().After(raise):
			p.sweep(ctx)
			raise = time.Now().Add(probeRaise)
		case known && p.large() != seen:
			seen = p.large()
			if p.narrower(ctx) {
				p.sweep(ctx)
				raise = time.Now().Add(probeRaise)
			}
		}
		next := probeConfirm
		if !known {
			next, wait = wait, min(2*wait, probeRetries)
		}
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
		case <-p.doubt:
			known, wait = false, probeRetry
		case <-timer.C:
		}
		timer.Stop()
	}
}

// answered reports whether packets of the size arrive.
func (p *pathMTU) answered(ctx context.Context, size int) bool {
	p.begin()
	for range probeRounds {
		if got := p.round(ctx, []int{size}); got == size {
			return true
		}
	}
	return false
}

// narrower reports whether small packets arrive and those of the size in use do not: then the peer is not gone.
func (p *pathMTU) narrower(ctx context.Context) bool {
	p.begin()
	alive := false
	for range probeRounds {
		switch p.round(ctx, []int{smallProbe, p.now}) {
		case p.now:
			return false
		case smallProbe:
			alive = true
		}
	}
	return alive && ctx.Err() == nil
}

// sweep probes with all sizes at once and uses the largest that is answered. Three rounds compensate for packets lost
// for other reasons.
func (p *pathMTU) sweep(ctx context.Context) {
	p.begin()
	sizes, best := probeSizes(p.most), 0
	for range probeRounds {
		best = max(best, p.round(ctx, sizes))
		sizes = slices.DeleteFunc(sizes, func(s int) bool { return s <= best })
		if len(sizes) == 0 {
			break
		}
	}
	if ctx.Err() == nil && best > 0 {
		p.now = best
		p.use(best)
	}
}

// round probes with each size, the largest first, and returns the largest that was answered in time.
func (p *pathMTU) round(ctx context.Context, sizes []int) (best int) {
	for _, s := range slices.Backward(sizes) {
		p.probe(s)
	}
	most := slices.Max(sizes)
	timer := time.NewTimer(probeWait)
	defer timer.Stop()
	for best < most {
		select {
		case s := <-p.answers:
			best = max(best, s)
		case <-timer.C:
			return best
		case <-ctx.Done():
			return best
		}
	}
	return best
}
