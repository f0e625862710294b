package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/tun"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

const (
	nic = 1
	// MTU is small enough, including the tunnel's overhead, for any campus network: no packet is fragmented on the way.
	MTU = 1280
	// queued bounds the stack's packets that wait for WireGuard; more are dropped, and TCP slows down.
	queued = 1024
	// batch is how many packets pass WireGuard at a time.
	batch = 64

	// TCP buffers grow with the path up to these bytes.
	bufferMin, bufferStart, bufferMax = 4 << 10, 256 << 10, 1 << 20
)

// netstack is a network stack in this process, and the TUN of WireGuard to it. It accepts packets for any address.
type netstack struct {
	*stack.Stack
	link   *channel.Endpoint
	ctx    context.Context
	close  context.CancelFunc
	events chan tun.Event
	once   sync.Once
	// heeds reports whether a ping of the address is answered.
	heeds func(netip.Addr) bool
}

var _ tun.Device = (*netstack)(nil)

func newNetstack(heeds func(netip.Addr) bool) (*netstack, error) {
	n := &netstack{
		Stack: stack.New(stack.Options{
			NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
			TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4},
		}),
		link: channel.New(queued, MTU, ""), events: make(chan tun.Event, 1), heeds: heeds,
	}
	n.ctx, n.close = context.WithCancel(context.Background())
	// WireGuard has authenticated the packets, which protects their contents better than checksums do.
	n.link.LinkEPCapabilities = stack.CapabilityRXChecksumOffload
	sack, moderate := tcpip.TCPSACKEnabled(true), tcpip.TCPModerateReceiveBufferOption(true)
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: bufferMin, Default: bufferStart, Max: bufferMax}
	send := tcpip.TCPSendBufferSizeRangeOption{Min: bufferMin, Default: bufferStart, Max: bufferMax}
	for _, o := range []tcpip.SettableTransportProtocolOption{&sack, &moderate, &receive, &send} {
		if err := n.SetTransportProtocolOption(tcp.ProtocolNumber, o); err != nil {
			return nil, fmt.Errorf("gateway: network stack: %s", err)
		}
	}
	if err := n.CreateNIC(nic, n.link); err != nil {
		return nil, fmt.Errorf("gateway: network stack: %s", err)
	}
	// Accept packets for all addresses, and send from all.
	n.SetPromiscuousMode(nic, true) // the NIC exists
	n.SetSpoofing(nic, true)
	n.AddRoute(tcpip.Route{Destination: header.IPv4EmptySubnet, NIC: nic})
	return n, nil
}

// Read returns the stack's packets to WireGuard.
func (n *netstack) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	pkt := n.link.ReadContext(n.ctx)
	if pkt == nil {
		return 0, os.ErrClosed
	}
	for i := 0; ; {
		at := offset
		for _, part := range pkt.AsSlices() {
			at += copy(bufs[i][at:], part)
		}
		sizes[i] = at - offset
		pkt.DecRef()
		if i++; i == len(bufs) {
			return i, nil
		}
		if pkt = n.link.Read(); pkt == nil {
			return i, nil
		}
	}
}

// Write gives decrypted packets of WireGuard to the stack.
func (n *netstack) Write(bufs [][]byte, offset int) (int, error) {
	for _, b := range bufs {
		packet := b[offset:]
		if len(packet) < header.IPv4MinimumSize || packet[0]>>4 != 4 {
			continue
		}
		ip := header.IPv4(packet)
		if ip.Protocol() == uint8(header.ICMPv4ProtocolNumber) && !n.heeds(addrOf(ip.DestinationAddress())) {
			continue // the stack would answer a ping for an unknown address
		}
		pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(packet)})
		n.link.InjectInbound(header.IPv4ProtocolNumber, pkt)
		pkt.DecRef()
	}
	return len(bufs), nil
}

// Close ends the stack, and all its connections.
func (n *netstack) Close() error {
	n.once.Do(func() {
		n.close()
		n.RemoveNIC(nic) // it exists
		n.Stack.Close()
		n.link.Close()
		close(n.events)
	})
	return nil
}

func (*netstack) File() *os.File             { return nil }
func (*netstack) Name() (string, error)      { return "netstack", nil }
func (*netstack) MTU() (int, error)          { return MTU, nil }
func (n *netstack) Events() <-chan tun.Event { return n.events }
func (*netstack) BatchSize() int             { return batch }

// dialTCP connects from one address to another, inside the tunnel.
func (n *netstack) dialTCP(ctx context.Context, from netip.Addr, to netip.AddrPort) (*gonet.TCPConn, error) {
	var wq waiter.Queue
	ep, e := n.NewEndpoint(tcp.ProtocolNumber, ipv4.ProtocolNumber, &wq)
	if e != nil {
		return nil, errors.New(e.String())
	}
	writable, now := waiter.NewChannelEntry(waiter.WritableEvents)
	wq.EventRegister(&writable)
	defer wq.EventUnregister(&writable)
	keepAlive(ep)
	if e = ep.Bind(full(from, 0)); e == nil {
		e = ep.Connect(full(to.Addr(), to.Port()))
	}
	if _, ok := e.(*tcpip.ErrConnectStarted); ok {
		select {
		case <-ctx.Done():
			ep.Abort()
			return nil, ctx.Err()
		case <-now:
		}
		e = ep.LastError()
	}
	if e != nil {
		ep.Close()
		return nil, fmt.Errorf("connect to %s: %s", to, e)
	}
	return gonet.NewTCPConn(&wq, ep), nil
}

func (n *netstack) dialUDP(from netip.Addr, to netip.AddrPort) (*gonet.UDPConn, error) {
	local, remote := full(from, 0), full(to.Addr(), to.Port())
	return gonet.DialUDP(n.Stack, &local, &remote, ipv4.ProtocolNumber)
}

// onTCP calls handle for each incoming connection; handle must call accept or refuse.
func (n *netstack) onTCP(handle func(from, to netip.AddrPort, a *arrival)) {
	f := tcp.NewForwarder(n.Stack, 0, maxOpening, func(r *tcp.ForwarderRequest) {
		from, to := ends(r.ID())
		handle(from, to, &arrival{r})
	})
	n.SetTransportProtocolHandler(tcp.ProtocolNumber, f.HandlePacket)
}

// arrival is an unanswered TCP connection.
type arrival struct{ r *tcp.ForwarderRequest }

func (a *arrival) accept() (*gonet.TCPConn, error) {
	var wq waiter.Queue
	ep, err := a.r.CreateEndpoint(&wq)
	if err != nil {
		a.r.Complete(true)
		return nil, errors.New(err.String())
	}
	a.r.Complete(false)
	keepAlive(ep)
	return gonet.NewTCPConn(&wq, ep), nil
}

// refuse answers with a reset; ignore lets the other side retry.
func (a *arrival) refuse() { a.r.Complete(true) }
func (a *arrival) ignore() { a.r.Complete(false) }

// onUDP calls handle for the first datagram of each flow.
func (n *netstack) onUDP(handle func(from, to netip.AddrPort, accept func() (*gonet.UDPConn, error))) {
	f := udp.NewForwarder(n.Stack, func(r *udp.ForwarderRequest) {
		from, to := ends(r.ID())
		handle(from, to, func() (*gonet.UDPConn, error) {
			var wq waiter.Queue
			ep, err := r.CreateEndpoint(&wq)
			if err != nil {
				return nil, errors.New(err.String())
			}
			return gonet.NewUDPConn(&wq, ep), nil
		})
	})
	n.SetTransportProtocolHandler(udp.ProtocolNumber, f.HandlePacket)
}

func ends(id stack.TransportEndpointID) (from, to netip.AddrPort) {
	return netip.AddrPortFrom(addrOf(id.RemoteAddress), id.RemotePort), netip.AddrPortFrom(addrOf(id.LocalAddress), id.LocalPort)
}

func addrOf(a tcpip.Address) netip.Addr {
	ip, _ := netip.AddrFromSlice(a.AsSlice())
	return ip
}

func full(a netip.Addr, port uint16) tcpip.FullAddress {
	return tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFromSlice(a.AsSlice()), Port: port}
}

// After keepIdle a silent connection is probed, and ended after keepCount probes without an answer: a connection ends
// after a quarter of an hour without home.
const (
	keepIdle  = 5 * time.Minute
	keepEvery = time.Minute
	keepCount = 10
)

func keepAlive(ep tcpip.Endpoint) {
	ep.SocketOptions().SetKeepAlive(true)
	idle, every := tcpip.KeepaliveIdleOption(keepIdle), tcpip.KeepaliveIntervalOption(keepEvery)
	ep.SetSockOpt(&idle) // without it, the connection lasts longer
	ep.SetSockOpt(&every)
	ep.SetSockOptInt(tcpip.KeepaliveCountOption, keepCount)
}
