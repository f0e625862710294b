package attacker

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"

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
)

const mtu = 1280

// inner is the attacker's network inside the tunnel: a stack that sends from any
// address and takes packets for any, and packets that a test has made by hand.
type inner struct {
	*stack.Stack
	link   *channel.Endpoint
	raw    chan []byte
	ctx    context.Context
	cancel context.CancelFunc
	events chan tun.Event
	once   sync.Once
}

func newInner() (*inner, error) {
	n := &inner{
		Stack: stack.New(stack.Options{
			NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
			TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4},
		}),
		link: channel.New(1024, mtu, ""), raw: make(chan []byte), events: make(chan tun.Event, 1),
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	if err := n.CreateNIC(1, n.link); err != nil {
		return nil, fmt.Errorf("attacker: %s", err)
	}
	n.SetPromiscuousMode(1, true)
	n.SetSpoofing(1, true)
	n.AddRoute(tcpip.Route{Destination: header.IPv4EmptySubnet, NIC: 1})
	return n, nil
}

func full(a netip.AddrPort) tcpip.FullAddress {
	return tcpip.FullAddress{NIC: 1, Addr: tcpip.AddrFromSlice(a.Addr().AsSlice()), Port: a.Port()}
}

func (n *inner) dialTCP(ctx context.Context, from netip.Addr, to netip.AddrPort) (net.Conn, error) {
	return gonet.DialTCPWithBind(ctx, n.Stack, full(netip.AddrPortFrom(from, 0)), full(to), ipv4.ProtocolNumber)
}

func (n *inner) dialUDP(from netip.Addr, to netip.AddrPort) (net.Conn, error) {
	local, remote := full(netip.AddrPortFrom(from, 0)), full(to)
	return gonet.DialUDP(n.Stack, &local, &remote, ipv4.ProtocolNumber)
}

func (n *inner) listen(at netip.AddrPort) (net.Listener, error) {
	return gonet.ListenTCP(n.Stack, full(at), ipv4.ProtocolNumber)
}

// Read gives WireGuard what leaves, a packet at a time.
func (n *inner) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	got := make(chan *stack.PacketBuffer, 1)
	ctx, cancel := context.WithCancel(n.ctx)
	defer cancel()
	go func() { got <- n.link.ReadContext(ctx) }()
	for {
		select {
		case b := <-n.raw:
			cancel()
			if pkt := <-got; pkt != nil { // both at once: the stack's is lost, and sent again
				pkt.DecRef()
			}
			sizes[0] = copy(bufs[0][offset:], b)
			return 1, nil
		case pkt := <-got:
			if pkt == nil {
				return 0, os.ErrClosed
			}
			at := offset
			for _, part := range pkt.AsSlices() {
				at += copy(bufs[0][at:], part)
			}
			sizes[0] = at - offset
			pkt.DecRef()
			return 1, nil
		}
	}
}

// Write takes what WireGuard has decrypted.
func (n *inner) Write(bufs [][]byte, offset int) (int, error) {
	for _, b := range bufs {
		packet := b[offset:]
		if len(packet) < header.IPv4MinimumSize || packet[0]>>4 != 4 {
			continue
		}
		pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(packet)})
		n.link.InjectInbound(header.IPv4ProtocolNumber, pkt)
		pkt.DecRef()
	}
	return len(bufs), nil
}

// Close ends the stack and what runs in it.
func (n *inner) Close() error {
	n.once.Do(func() {
		n.cancel()
		n.RemoveNIC(1)
		n.Stack.Close()
		n.link.Close()
		close(n.events)
	})
	return nil
}

func (*inner) File() *os.File             { return nil }
func (*inner) Name() (string, error)      { return "attacker", nil }
func (*inner) MTU() (int, error)          { return mtu, nil }
func (n *inner) Events() <-chan tun.Event { return n.events }
func (*inner) BatchSize() int             { return 1 }
