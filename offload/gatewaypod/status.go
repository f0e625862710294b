package gatewaypod

import (
	"context"
	"maps"
	"slices"
	"time"

	"rivulet/fabric/changes"
)

// measureEvery is the interval over which rates are computed.
const measureEvery = 10 * time.Second

// rate is bytes per second over the last measureEvery.
type rate struct {
	at                 time.Time
	received, sent     uint64 // at that time
	receiving, sending uint64
}

func (r *rate) note(now time.Time, received, sent uint64) {
	if d := now.Sub(r.at).Seconds(); !r.at.IsZero() && d > 0 && received >= r.received && sent >= r.sent {
		r.receiving, r.sending = uint64(float64(received-r.received)/d), uint64(float64(sent-r.sent)/d)
	} else {
		r.receiving, r.sending = 0, 0
	}
	r.at, r.received, r.sent = now, received, sent
}

// measure records the path to the gateway and its rates.
func (g *Gateway) measure(ctx context.Context) error {
	for {
		within, cancel := context.WithTimeout(ctx, 2*time.Second)
		path, up := g.cfg.Fabric.GatewayPath(within, g.cfg.Name)
		cancel()
		g.mu.Lock()
		g.path, g.pathUp = path, up
		g.rate.note(time.Now(), path.Received, path.Sent)
		g.mu.Unlock()
		if !changes.Wait(ctx, measureEvery) {
			return ctx.Err()
		}
	}
}

// Status returns the current state.
func (g *Gateway) Status() Status {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	path, up := g.cfg.Fabric.GatewayPath(ctx, g.cfg.Name)
	g.mu.Lock()
	defer g.mu.Unlock()
	s := Status{Pod: g.pod, RTT: path.RTT, Receiving: g.rate.receiving, Sending: g.rate.sending, Received: path.Received, Sent: path.Sent,
		Prefix: g.want.Prefix, Services: len(g.services), Flows: g.last.Flows}
	for _, what := range slices.Sorted(maps.Keys(g.problems)) {
		s.Problems = append(s.Problems, g.problems[what])
	}
	s.Problems = append(s.Problems, g.last.Problems...)
	switch {
	case up && path.Kind == "stream" && path.Address == "":
		s.Transport = "stream through the API server"
	case up && path.Kind == "direct":
		s.Transport = "udp " + path.Address
	case up:
		s.Transport = path.Kind + " " + path.Address
	}
	switch {
	case g.want.Generation == 0:
		s.Reason = "the campus has not been reached yet"
	case g.pod == "":
		s.Reason = "the gateway does not run"
	case !up:
		s.Reason = "the tunnel does not reach the gateway"
	default:
		s.Ready = true
	}
	if !s.Ready && len(s.Problems) > 0 {
		s.Reason += ": " + s.Problems[0]
	}
	return s
}
