package gateway

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"rivulet/fabric/gateway/gatewayproto"
)

// Local pods reach a Service of home at a port of the gateway: the campus Service that the pod resolves leads there. A
// listener is one such port.
type listener struct {
	protocol string
	listen   uint16
	close    func()
}

// tries is how many endpoints of a Service are tried for one connection.
const tries = 3

// openDoors opens the ports of cfg, and closes all others. Those that cannot be opened are problems, retried with the
// next configuration.
func (g *Gateway) openDoors(cfg gatewayproto.Gateway) (problems []string) {
	type place struct {
		protocol string
		listen   uint16
	}
	want := map[place]bool{}
	for _, s := range cfg.Services {
		for _, p := range s.Listeners() {
			want[place{p.Protocol, p.Listen}] = true
		}
	}
	for at, d := range g.listeners {
		p := place{d.protocol, d.listen}
		if !want[p] {
			d.close()
			delete(g.listeners, at)
		}
		delete(want, p)
	}
	for p := range want {
		open := g.openTCP
		if p.protocol == "udp" {
			open = g.openUDP
		}
		stop, err := open(p.listen)
		if err != nil {
			problems = append(problems, fmt.Sprintf("port %d/%s cannot be opened: %v", p.listen, p.protocol, err))
			continue
		}
		g.listeners[fmt.Sprint(p.protocol, p.listen)] = &listener{p.protocol, p.listen, stop}
	}
	return problems
}

// behind lists the endpoints behind a listener, in the order to try them.
func (g *Gateway) behind(protocol string, listen uint16) []netip.AddrPort {
	ends := g.state.Load().ends[fmt.Sprint(protocol, listen)]
	out := make([]netip.AddrPort, len(ends))
	for i, j := range rand.Perm(len(ends)) {
		out[i] = ends[j]
	}
	return out[:min(len(out), tries)]
}

func (g *Gateway) openTCP(port uint16) (func(), error) {
	l, err := net.Listen("tcp", fmt.Sprintf("%s:%d", g.bind, port))
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			c, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil { // for example no file descriptors
				time.Sleep(100 * time.Millisecond)
				continue
			}
			go g.tcpFromPod(c.(*net.TCPConn), port)
		}
	}()
	return func() { l.Close() }, nil
}

func (g *Gateway) tcpFromPod(c *net.TCPConn, port uint16) {
	if !g.flows.enter(&g.flows.tcp, maxTCP) {
		abort(c)
		return
	}
	defer g.flows.tcp.Add(-1)
	ctx, cancel := context.WithTimeout(g.ctx, 2*reachLimit)
	defer cancel()
	if out := g.reachAny(ctx, source(c.RemoteAddr()), g.behind("tcp", port)); out != nil {
		splice(g.ctx, c, out)
		return
	}
	abort(c)
}

// patience is how long an endpoint has to answer before the next one is tried, too. The pod has been accepted already and
// does not try again by itself: so much an endpoint costs whose node is gone and that is still listed.
const patience = 300 * time.Millisecond

// reachAny connects to the endpoint that answers first, or returns nil. The next one is tried when one refuses, or when the
// last one has not answered for patience.
func (g *Gateway) reachAny(ctx context.Context, from netip.Addr, ends []netip.AddrPort) halfCloser {
	ctx, cancel := context.WithCancel(ctx)
	answers, open := make(chan halfCloser, len(ends)), 0 // nil: not reached
	defer func() {
		cancel()
		go func() { // those that answer too late
			for range open {
				if c := <-answers; c != nil {
					c.Close()
				}
			}
		}()
	}()
	next := time.NewTimer(0)
	defer next.Stop()
	for len(ends) > 0 || open > 0 {
		select {
		case c := <-answers:
			open--
			if c != nil {
				return c
			}
			next.Reset(0)
		case <-next.C:
			if len(ends) == 0 {
				continue
			}
			to := ends[0]
			ends, open = ends[1:], open+1
			go func() {
				c, err := g.reachTCP(ctx, from, to)
				if err != nil {
					g.log.Debug("endpoint not reached", "endpoint", to, "err", err)
					c = nil
				}
				answers <- c
			}()
			next.Reset(patience)
		}
	}
	return nil
}

// udpDoor is a UDP port with its flows, by sender.
type udpDoor struct {
	g    *Gateway
	sock *net.UDPConn
	port uint16

	mu    sync.Mutex
	flows map[netip.AddrPort]*udpSide
}

func (g *Gateway) openUDP(port uint16) (func(), error) {
	sock, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(fmt.Sprintf("%s:%d", g.bindIP(), port))))
	if err != nil {
		return nil, err
	}
	d := &udpDoor{g: g, sock: sock, port: port, flows: map[netip.AddrPort]*udpSide{}}
	go d.run()
	return func() {
		sock.Close()
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, f := range d.flows {
			f.Close()
		}
	}, nil
}

func (d *udpDoor) run() {
	buf := make([]byte, maxDatagram)
	for {
		n, from, err := d.sock.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error for an earlier datagram
		}
		if f := d.flow(from); f != nil {
			f.deliver(append([]byte(nil), buf[:n]...))
		}
	}
}

// flow returns the sender's flow, or a new one.
func (d *udpDoor) flow(from netip.AddrPort) *udpSide {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f := d.flows[from]; f != nil {
		return f
	}
	ends := d.g.behind("udp", d.port)
	if len(ends) == 0 || !d.g.flows.enter(&d.g.flows.udp, maxUDP) {
		return nil
	}
	f := newUDPSide(d.sock, from)
	d.flows[from] = f
	go func() {
		defer d.g.flows.udp.Add(-1)
		defer func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			delete(d.flows, from)
		}()
		out, err := d.g.reachUDP(from.Addr().Unmap(), ends[0])
		if err != nil {
			d.g.log.Debug("endpoint not reached", "endpoint", ends[0], "err", err)
			f.Close()
			return
		}
		exchange(f, out)
	}()
	return f
}

func source(a net.Addr) netip.Addr {
	p, _ := netip.ParseAddrPort(a.String())
	return p.Addr().Unmap()
}
