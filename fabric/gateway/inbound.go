package gateway

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
)

// Packets of home's pods arrive for the address under which home sees a pod here, and are forwarded to that pod from
// the gateway's own address.

// pod returns the real address of a local pod; false if home has no such pod.
func (g *Gateway) pod(seen netip.Addr) (netip.Addr, bool) {
	real, ok := g.state.Load().cfg.Pods[seen]
	return real, ok
}

func (g *Gateway) tcpFromHome(from, to netip.AddrPort, a *arrival) {
	real, ok := g.pod(to.Addr())
	if !ok {
		g.flows.refused.Add(1)
		a.refuse()
		return
	}
	if !g.flows.enter(&g.flows.tcp, maxTCP) {
		a.refuse()
		return
	}
	defer g.flows.tcp.Add(-1)
	d := net.Dialer{Timeout: dialLimit}
	// The pod's connection comes first: home receives the pod's refusal, not the gateway's acceptance.
	c, err := d.DialContext(g.ctx, "tcp", netip.AddrPortFrom(real, to.Port()).String())
	if err != nil {
		g.log.Debug("pod not reached", "pod", real, "port", to.Port(), "err", err)
		if errors.Is(err, syscall.ECONNREFUSED) {
			a.refuse()
		} else {
			a.ignore()
		}
		return
	}
	in, err := a.accept()
	if err != nil {
		c.Close()
		return
	}
	splice(g.ctx, in, c.(*net.TCPConn))
}

func (g *Gateway) udpFromHome(_, to netip.AddrPort, accept func() (*gonet.UDPConn, error)) {
	real, ok := g.pod(to.Addr())
	if !ok {
		g.flows.refused.Add(1)
		return
	}
	if !g.flows.enter(&g.flows.udp, maxUDP) {
		return
	}
	// Not in the goroutine: the next datagram of the flow must find it.
	in, err := accept()
	if err != nil {
		g.flows.udp.Add(-1)
		return
	}
	go func() {
		defer g.flows.udp.Add(-1)
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(real, to.Port())))
		if err != nil {
			in.Close()
			return
		}
		exchange(in, c)
	}()
}

// reachTCP connects to an endpoint of a Service of home: through the tunnel if it is a pod at home, directly if it is a
// local one. From is the client.
func (g *Gateway) reachTCP(ctx context.Context, from netip.Addr, to netip.AddrPort) (halfCloser, error) {
	if real, ok := g.pod(to.Addr()); ok {
		d := net.Dialer{Timeout: reachLimit}
		c, err := d.DialContext(ctx, "tcp", netip.AddrPortFrom(real, to.Port()).String())
		if err != nil {
			return nil, err
		}
		return c.(*net.TCPConn), nil
	}
	s := g.state.Load()
	if !s.cfg.Home.Contains(to.Addr()) {
		return nil, errNoWay
	}
	ctx, cancel := context.WithTimeout(ctx, reachLimit)
	defer cancel()
	return g.stack.dialTCP(ctx, s.seen(from), to)
}

func (g *Gateway) reachUDP(from netip.Addr, to netip.AddrPort) (net.Conn, error) {
	if real, ok := g.pod(to.Addr()); ok {
		return net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(real, to.Port())))
	}
	s := g.state.Load()
	if !s.cfg.Home.Contains(to.Addr()) {
		return nil, errNoWay
	}
	return g.stack.dialUDP(s.seen(from), to)
}

var errNoWay = errors.New("gateway: the endpoint is neither at home nor here")

// reachLimit bounds the attempt at one endpoint before the next is tried.
const reachLimit = 5 * time.Second
