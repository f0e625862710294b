package fabric

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"time"

	"rivulet/fabric/panics"
	"rivulet/fabric/peer"
	"rivulet/fabric/peering"
	"rivulet/fabric/rpc"
)

// pinger follows which peers answer through the tunnel, and compares clocks with them.
type pinger struct {
	identity rpc.Identity
	clients  *clients
	members  *members
	plane    *plane
	clock    Clock // it may be nil
	timing   Timing
	log      *slog.Logger
}

// loop follows whether the peer answers.
func (p *pinger) loop(ctx context.Context, m *member) {
	client := &http.Client{CheckRedirect: noRedirect, Transport: &http.Transport{
		TLSClientConfig: rpc.ClientTLS(p.identity, m.ID()),
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := p.clients.dialPeer(m.ID(), p.timing.PingTimeout)(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return leftConn{c, p.members, m}, nil
		},
		MaxResponseHeaderBytes: 8 << 10,
		DisableCompression:     true,
		ReadBufferSize:         1 << 10, // per peer, and there is little to read
		WriteBufferSize:        1 << 10,
		// HTTP/1: a ping that times out closes its connection, so the next one does not wait for TCP to recover from a
		// link that was cut.
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
		up, why := p.plane.tunnel(m.ID())
		p.members.mu.Lock()
		link, ok := m.Link()
		var rest time.Duration
		if m.State() == peer.Connected {
			rest = m.pings.Rest(time.Now(), m.works)
		}
		switch {
		case !ok:
			timer.Stop() // pingKick receives when there is something to ping
		case !up:
			wait, effects := m.Unplugged(time.Now(), why)
			m.pings.Needed()
			p.members.do(m, effects)
			timer.Reset(wait)
		case rest > 0:
			timer.Reset(rest)
		}
		p.members.mu.Unlock()
		if !ok || !up || rest > 0 {
			continue
		}
		started := time.Now()
		var rtt time.Duration
		err := panics.Call(func() (err error) { rtt, err = p.ping(ctx, client, link); return err })
		if ctx.Err() != nil {
			return
		}
		p.members.mu.Lock()
		if !m.Pinned() { // no peer any more: a late answer has no meaning
			p.members.mu.Unlock()
			timer.Stop()
			continue
		}
		var effects peering.Effects
		var wait time.Duration
		if err == nil {
			wait, effects = m.Answered(time.Now(), rtt)
			m.pings.Answered(time.Now(), rtt)
		} else {
			p.log.Debug("ping failed", "peer", m.Title(), "err", err)
			_, trouble := p.plane.tunnel(m.ID())
			wait, effects = m.Missed(time.Now(), trouble)
			m.pings.Needed()
		}
		p.members.do(m, effects)
		p.members.mu.Unlock()
		timer.Reset(max(wait-time.Since(started), wait/4))
	}
}

// leftConn reports that its client has closed it, as it does when the peer has: the peer's process may have ended while
// its tunnel continues.
type leftConn struct {
	net.Conn
	members *members
	of      *member
}

func (c leftConn) Close() error {
	defer c.members.doubt(c.of)
	return c.Conn.Close()
}

// ping returns the round trip time of one small request.
func (p *pinger) ping(ctx context.Context, c *http.Client, l peer.Link) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timing.PingTimeout)
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
	io.Copy(io.Discard, io.LimitReader(resp.Body, rpc.MaxBody)) //nolint:errcheck // only to reuse the connection
	if resp.StatusCode != http.StatusNoContent {
		return 0, fmt.Errorf("answered %d", resp.StatusCode)
	}
	rtt := max(answered.Sub(wrote), time.Microsecond)
	p.receiveTime(l, resp.Header, rtt+time.Since(answered))
	return rtt, nil
}
