package mdns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/miekg/dns"
	"golang.org/x/net/bpf"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"rivulet/fabric/netmon"
)

const port = 5353

var (
	group4 = &net.UDPAddr{IP: net.IPv4(224, 0, 0, 251), Port: port}
	group6 = &net.UDPAddr{IP: net.ParseIP("ff02::fb"), Port: port}
)

// packet is one mDNS message with its interface and sender.
type packet struct {
	msg  *dns.Msg
	lan  int // interface index
	from netip.Addr
	port uint16 // of from; another than 5353 is a client that cannot receive multicast
}

// ear is a pair of sockets on the multicast groups. Go opens a socket that is bound to a multicast address with
// SO_REUSEADDR, so that it shares the port with zeroconf's and with other responders on the device.
type ear struct {
	v4 *ipv4.PacketConn
	v6 *ipv6.PacketConn
}

// open joins the groups on the LANs; one family is enough.
func open(lans netmon.LANs) (*ear, error) {
	e := &ear{}
	c4, err4 := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(224, 0, 0, 0), Port: port})
	if err4 == nil {
		e.v4 = ipv4.NewPacketConn(c4)
		err4 = errors.Join(e.v4.SetControlMessage(ipv4.FlagInterface, true), e.v4.SetMulticastTTL(255))
	}
	c6, err6 := net.ListenUDP("udp6", &net.UDPAddr{IP: net.ParseIP("ff02::"), Port: port})
	if err6 == nil {
		e.v6 = ipv6.NewPacketConn(c6)
		err6 = errors.Join(e.v6.SetControlMessage(ipv6.FlagInterface, true), e.v6.SetMulticastHopLimit(255))
	}
	if err4 != nil && err6 != nil {
		e.close()
		return nil, fmt.Errorf("mdns: open UDP port 5353: %w", errors.Join(err4, err6))
	}
	joined := 0
	for _, lan := range lans {
		ifi := lan.Net()
		if e.v4 != nil && e.v4.JoinGroup(&ifi, &net.UDPAddr{IP: group4.IP}) == nil {
			joined++
		}
		if e.v6 != nil && e.v6.JoinGroup(&ifi, &net.UDPAddr{IP: group6.IP}) == nil {
			joined++
		}
	}
	if joined == 0 {
		e.close()
		return nil, fmt.Errorf("mdns: no LAN interface lets us join the multicast group")
	}
	return e, nil
}

func (e *ear) close() {
	if e.v4 != nil {
		e.v4.Close()
	}
	if e.v6 != nil {
		e.v6.Close()
	}
}

// deaf prevents a send-only ear from buffering packets.
func (e *ear) deaf() {
	none := []bpf.RawInstruction{{Op: 0x06}} // ret #0
	if e.v4 != nil {
		e.v4.SetBPF(none) //nolint:errcheck // failure costs a full buffer only
	}
	if e.v6 != nil {
		e.v6.SetBPF(none) //nolint:errcheck // as above
	}
}

// listen sends received packets to out, until the ear is closed or ctx ends.
func (e *ear) listen(ctx context.Context, out chan<- packet) {
	if e.v4 != nil {
		go pump(ctx, out, func(b []byte) (n, lan int, from net.Addr, err error) {
			n, cm, from, err := e.v4.ReadFrom(b)
			if cm != nil {
				lan = cm.IfIndex
			}
			return n, lan, from, err
		})
	}
	if e.v6 != nil {
		go pump(ctx, out, func(b []byte) (n, lan int, from net.Addr, err error) {
			n, cm, from, err := e.v6.ReadFrom(b)
			if cm != nil {
				lan = cm.IfIndex
			}
			return n, lan, from, err
		})
	}
}

func pump(ctx context.Context, out chan<- packet, read func([]byte) (int, int, net.Addr, error)) {
	buf := make([]byte, 9000) // RFC 6762, 17
	for {
		n, lan, src, err := read(buf)
		if errors.Is(err, net.ErrClosed) || ctx.Err() != nil {
			return
		}
		udp, ok := src.(*net.UDPAddr)
		if err != nil || !ok {
			continue
		}
		msg := new(dns.Msg)
		if msg.Unpack(buf[:n]) != nil {
			continue
		}
		select {
		case out <- packet{msg: msg, lan: lan, from: udp.AddrPort().Addr().Unmap(), port: udp.AddrPort().Port()}:
		case <-ctx.Done():
			return
		}
	}
}

// send multicasts the message on one LAN, over IPv4 if the LAN has it.
func (e *ear) send(m *dns.Msg, lan netmon.Interface) error {
	buf, err := m.Pack()
	if err != nil {
		return fmt.Errorf("mdns: encode: %w", err)
	}
	if e.v4 != nil && has4(lan) {
		_, err = e.v4.WriteTo(buf, &ipv4.ControlMessage{IfIndex: lan.Index}, group4)
	} else if e.v6 != nil {
		_, err = e.v6.WriteTo(buf, &ipv6.ControlMessage{IfIndex: lan.Index}, group6)
	}
	if err != nil {
		return fmt.Errorf("mdns: send on %s: %w", lan.Name, err)
	}
	return nil
}

func has4(lan netmon.Interface) bool {
	for _, p := range lan.Addrs {
		if p.Addr().Is4() {
			return true
		}
	}
	return false
}
