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
	"gvisor.dev/gvisor/pkg/tcpip/stack/gro"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"rivulet/fabric/tunnel/gso"
)

const (
	nic = 1
	// MTU is small enough, including the tunnel's overhead, for any campus network: no packet is fragmented on the way.
	MTU = 1280
	// queued bounds the stack's packets that wait for WireGuard; more are dropped, and TCP slows down.
	queued = 1024
	// batch is how many packets pass WireGuard at a time: more than the largest packet of the stack is split into.
	batch = 128

	// segments is the data of one packet of the stack: as many full segments, with the options that are usual, as UDP
	// takes at once when each is a message of WireGuard. What a pod sends is read in pieces of that size: one of
	// another would be split again, with a small packet each time.
	segments = (1<<16 - 1 - header.IPv4MinimumSize - header.UDPMinimumSize) / (MTU + messageOver) * (MTU - header.IPv4MinimumSize - header.TCPMinimumSize - tcpOptions)
	// messageOver is by how much a message of WireGuard is longer than its packet, tcpOptions the length of timestamps.
	messageOver, tcpOptions = 32, 12

	// joined is how many connections one bucket of the joining has at most.
	joined = 8

	// TCP buffers grow with the path up to these bytes.
	bufferMin, bufferStart, bufferMax = 4 << 10, 256 << 10, 1 << 20
)

// link is the stack's device. Its packets are as large as the tunnel takes in one piece; Read splits them where the path
// has an MTU.
type link struct{ *channel.Endpoint }

// GSOMaxSize bounds the packets of the stack, from which it takes room for headers.
func (link) GSOMaxSize() uint32 { return segments + header.TCPTotalHeaderMaximumSize + 1 }

// DeliverNetworkPacket gets the packets that are joined before the stack gets them.
func (l link) DeliverNetworkPacket(protocol tcpip.NetworkProtocolNumber, pkt *stack.PacketBuffer) {
	l.InjectInbound(protocol, pkt)
}

func (link) DeliverLinkPacket(tcpip.NetworkProtocolNumber, *stack.PacketBuffer) {}

// netstack is a network stack in this process, and the TUN of WireGuard to it. It accepts packets for any address.
type netstack struct {
	*stack.Stack
	link   link
	ctx    context.Context
	close  context.CancelFunc
	events chan tun.Event
	once   sync.Once
	// heeds reports whether a ping of the address is answered.
	heeds func(netip.Addr) bool
	// whole reports whether home takes packets in one piece at the moment; nil is never.
	whole func() bool

	rest *stack.PacketBuffer // read, and not given to WireGuard yet; of the one reader

	joining sync.Mutex
	join    gro.GRO // segments of one batch that follow each other
}

var _ tun.Device = (*netstack)(nil)

func newNetstack(heeds func(netip.Addr) bool) (*netstack, error) {
	n := &netstack{
		Stack: stack.New(stack.Options{
			NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
			TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4},
		}),
		link: link{channel.New(queued, MTU, "")}, events: make(chan tun.Event, 1), heeds: heeds,
	}
	n.link.SupportedGSOKind = stack.HostGSOSupported
	n.join.Init(true)
	n.join.Dispatcher = n.link
	n.ctx, n.close = context.WithCancel(context.Background())
	// WireGuard has authenticated the packets, which protects their contents better than checksums do.
	n.link.LinkEPCapabilities = stack.CapabilityRXChecksumOffload
	sack, moderate := tcpip.TCPSACKEnabled(true), tcpip.TCPModerateReceiveBufferOption(true)
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: bufferMin, Default: bufferStart, Max: bufferMax}
	send := tcpip.TCPSendBufferSizeRangeOption{Min: bufferMin, Default: bufferStart, Max: bufferMax}
	// Without RACK: the stack's takes a burst of acknowledgements for loss (https://github.com/google/gvisor/issues/9778).
	recovery := tcpip.TCPRecovery(0)
	for _, o := range []tcpip.SettableTransportProtocolOption{&sack, &moderate, &receive, &send, &recovery} {
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
	pkt := n.rest
	if n.rest = nil; pkt == nil {
		pkt = n.link.ReadContext(n.ctx)
	}
	if pkt == nil {
		return 0, os.ErrClosed
	}
	whole := n.whole != nil && n.whole()
	for i := 0; ; {
		if i > 0 && parts(pkt, whole) > len(bufs)-i {
			n.rest = pkt
			return i, nil
		}
		i += give(pkt, whole, bufs[i:], sizes[i:], offset)
		pkt.DecRef()
		if i == len(bufs) {
			return i, nil
		}
		if pkt = n.link.Read(); pkt == nil {
			return i, nil
		}
	}
}

// parts is into how many packets one of the stack is split at most.
func parts(pkt *stack.PacketBuffer, whole bool) int {
	if segment := int(pkt.GSOOptions.MSS); segment > 0 && !whole {
		return (pkt.Size() + segment - 1) / segment
	}
	return 1
}

// give writes a packet of the stack to bufs, whole or in parts, and returns their number. The stack leaves the checksum of
// a packet with segments to its device.
func give(pkt *stack.PacketBuffer, whole bool, bufs [][]byte, sizes []int, offset int) int {
	at := offset
	for _, part := range pkt.AsSlices() {
		at += copy(bufs[0][at:], part)
	}
	sizes[0] = at - offset
	if pkt.GSOOptions.Type == stack.GSONone {
		return 1
	}
	raw, segment := bufs[0][offset:at], int(pkt.GSOOptions.MSS)
	if whole {
		if n := gso.Divide(raw, segment, bufs, sizes, offset); n > 0 {
			return n
		}
	}
	if segment == 0 {
		segment = len(raw)
	}
	count, err := gso.Split(raw, segment, bufs, sizes, offset)
	if err != nil {
		return 0 // TCP sends it again
	}
	return count
}

// Write gives decrypted packets of WireGuard to the stack, segments of one connection that follow each other in one
// piece.
func (n *netstack) Write(bufs [][]byte, offset int) (int, error) {
	n.joining.Lock()
	defer n.joining.Unlock()
	for _, b := range bufs {
		packet := b[offset:]
		if len(packet) < header.IPv4MinimumSize || packet[0]>>4 != 4 {
			continue
		}
		ip := header.IPv4(packet)
		if ip.Protocol() == uint8(header.ICMPv4ProtocolNumber) && !n.heeds(addrOf(ip.DestinationAddress())) {
			continue // the stack would answer a ping for an unknown address
		}
		if gso.Marked(packet) {
			if _, _, ok := gso.Open(packet); !ok {
				continue
			}
		}
		pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(packet)})
		pkt.NetworkProtocolNumber, pkt.RXChecksumValidated = header.IPv4ProtocolNumber, true
		n.join.Enqueue(pkt)
		pkt.DecRef()
	}
	for range joined { // each time the first of every bucket leaves
		n.join.Flush()
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

// stackConn is a connection inside the tunnel; abort resets it.
type stackConn struct {
	*gonet.TCPConn
	ep tcpip.Endpoint
}

// dialTCP connects from one address to another, inside the tunnel.
func (n *netstack) dialTCP(ctx context.Context, from netip.Addr, to netip.AddrPort) (*stackConn, error) {
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
	return &stackConn{gonet.NewTCPConn(&wq, ep), ep}, nil
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

func (a *arrival) accept() (*stackConn, error) {
	var wq waiter.Queue
	ep, err := a.r.CreateEndpoint(&wq)
	if err != nil {
		a.r.Complete(true)
		return nil, errors.New(err.String())
	}
	a.r.Complete(false)
	keepAlive(ep)
	return &stackConn{gonet.NewTCPConn(&wq, ep), ep}, nil
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
