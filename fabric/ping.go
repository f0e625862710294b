package fabric

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"time"

	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
)

// pingLoop follows whether the peer answers through the tunnel.
func (f *Fabric) pingLoop(ctx context.Context, m *member) {
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig:        rpc.ClientTLS(f.cfg.Identity, m.id),
		DialContext:            f.dialPeer(m.id, f.cfg.Timing.PingTimeout),
		MaxResponseHeaderBytes: 8 << 10,
		ReadBufferSize:         1 << 10, // for each peer, and there is nothing to read
		WriteBufferSize:        1 << 10,
		// HTTP/1: a ping that times out takes its connection with it, so the next one
		// does not wait for TCP to recover from a link that was cut.
	}}
	defer client.CloseIdleConnections()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.pingKick:
		case <-timer.C:
		}
		up, why := f.plane.tunnel(m.id)
		f.mu.Lock()
		link, ok := m.link()
		switch {
		case !ok:
			timer.Stop() // pingKick says when there is something to ping
		case !up:
			timer.Reset(f.unplugged(m, why))
		default:
			m.unplugged = time.Time{}
		}
		f.mu.Unlock()
		if !ok || !up {
			continue
		}
		started := time.Now()
		rtt, err := f.ping(ctx, client, link)
		if ctx.Err() != nil {
			return
		}
		f.mu.Lock()
		if !m.pinned { // no peer any more: an answer that was on its way says nothing
			f.mu.Unlock()
			timer.Stop()
			continue
		}
		wait := f.pinged(m, rtt, err)
		f.mu.Unlock()
		timer.Reset(max(wait-time.Since(started), wait/4))
	}
}

// ping returns the round trip time of one small request.
func (f *Fabric) ping(ctx context.Context, c *http.Client, l peer.Link) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Timing.PingTimeout)
	defer cancel()
	var wrote, answered time.Time
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		WroteRequest:         func(httptrace.WroteRequestInfo) { wrote = time.Now() },
		GotFirstResponseByte: func() { answered = time.Now() },
	})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+l.Addr.String()+"/v1/ping", nil)
	if err != nil {
		return 0, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, io.LimitReader(resp.Body, rpc.MaxBody)) //nolint:errcheck // only to use the connection again
	if resp.StatusCode != http.StatusNoContent {
		return 0, fmt.Errorf("answered %d", resp.StatusCode)
	}
	rtt := max(answered.Sub(wrote), time.Microsecond)
	f.heardTime(l, resp.Header, rtt+time.Since(answered))
	return rtt, nil
}

// unplugged takes in that this device has no tunnel to the peer, why it has none, if that
// is known, and returns when to look again. A tunnel that is configured anew, or whose
// process is replaced, is back before a peer counts as lost. It is called with mu held.
func (f *Fabric) unplugged(m *member, why string) time.Duration {
	t := f.cfg.Timing
	if m.unplugged.IsZero() {
		m.unplugged = time.Now()
	}
	if m.state == peer.Connected && time.Since(m.unplugged) < time.Duration(t.Misses)*t.PingTimeout {
		return t.Probe
	}
	switch {
	case m.state == peer.Connected:
		m.rtt, m.here = 0, true
		f.set(m, peer.Lost, cmp.Or(why, "there is no tunnel on this device; look at: rivulet status"))
	case why != "" && m.state != peer.Refused:
		m.here = true
		f.set(m, m.state, why)
	}
	return t.Ping
}

// pinged takes in a result and returns when to ping next. It is called with mu held.
func (f *Fabric) pinged(m *member, rtt time.Duration, err error) time.Duration {
	t := f.cfg.Timing
	if err == nil {
		m.misses, m.lastSeen, m.rtt, m.here = 0, time.Now(), rtt, false
		f.set(m, peer.Connected, "")
		if _, due := m.pace.Next(); m.tryNext && !due && !m.attempting {
			f.due(m, true) // it has changed its key, and will say so
		}
		return t.Ping
	}
	m.misses++
	f.log.Debug("ping failed", "peer", m.title(), "misses", m.misses, "err", err)
	f.plane.doubt()
	f.missedKey(m)
	if m.misses < t.Misses {
		return t.Probe
	}
	m.rtt = 0
	_, trouble := f.plane.tunnel(m.id)
	here := m.here // what the reason says is over
	m.here = trouble != ""
	switch {
	case trouble == "" && (m.state == peer.Connected || here && m.state == peer.Lost):
		f.set(m, peer.Lost, "it has stopped answering: is it switched on, and "+m.passage())
	case m.state == peer.Connected:
		f.set(m, peer.Lost, trouble)
	case trouble != "" && m.state != peer.Refused:
		f.set(m, m.state, trouble)
	case (m.reason == "" || here) && m.state != peer.Refused:
		f.set(m, m.state, "the tunnel carries nothing yet: "+m.passage())
	}
	if _, due := m.pace.Next(); !due && !m.attempting && time.Since(m.exchanged) > 5*t.Ping {
		f.due(m, true) // perhaps one side has moved, or has forgotten the other
	}
	if m.misses < 20 {
		return t.Probe
	}
	return t.Ping
}
