package trace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"rivulet/appliance/config/fixed"
	"rivulet/appliance/machine/host"
	"rivulet/offload/nodeagent/podnet"
)

// place is where attempts are made: this device, or inside the network of one of its pods.
type place struct{ ns *os.File }

// placeOf is the network of a pod; false if it runs on another device.
func placeOf(p *corev1.Pod) (place, bool) {
	all, err := podnet.Read(fixed.CNIResults, podnet.Exists)
	if err != nil {
		return place{}, false
	}
	for _, one := range all {
		if one.Namespace == p.Namespace && one.Name == p.Name && (one.UID == "" || one.UID == string(p.UID)) {
			f, err := podnet.Namespace(one.Veth)
			return place{f}, err == nil
		}
	}
	return place{}, false
}

func (p place) close() {
	if p.ns != nil {
		p.ns.Close()
	}
}

// do runs f with the place's network. It must not start goroutines that use the network.
func (p place) do(f func() error) error {
	if p.ns == nil {
		return f()
	}
	return host.OnThread(func() error {
		if err := netns.Set(netns.NsHandle(p.ns.Fd())); err != nil {
			return err
		}
		return f()
	})
}

// connect opens a TCP connection and closes it.
func (p place) connect(ctx context.Context, to netip.AddrPort) Attempt {
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	var a Attempt
	err := p.do(func() error {
		begun := time.Now()
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp4", to.String())
		a.Took = time.Since(begun)
		if err == nil {
			c.Close()
		}
		return err
	})
	a.Outcome, a.Err = outcome(err)
	return a
}

func outcome(err error) (Outcome, string) {
	var op *net.OpError
	switch {
	case err == nil:
		return Connected, ""
	case errors.Is(err, syscall.ECONNREFUSED):
		return Refused, ""
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &op) && op.Timeout():
		return Silent, ""
	case op != nil && op.Err != nil:
		return Unreachable, op.Err.Error()
	}
	return Unreachable, err.Error()
}

// dnsLimit bounds one query; a lost packet is sent again.
const (
	dnsLimit = 2 * time.Second
	dnsTries = 2
)

// lookup queries a server for IPv4 addresses of a name.
func (p place) lookup(ctx context.Context, server netip.AddrPort, name string) (l Lookup) {
	l = Lookup{Done: true, Name: name}
	q := new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeA)
	begun := time.Now()
	for range dnsTries {
		err := p.do(func() error {
			ctx, cancel := context.WithTimeout(ctx, dnsLimit)
			defer cancel()
			c, err := (&net.Dialer{}).DialContext(ctx, "udp4", server.String())
			if err != nil {
				return err
			}
			defer c.Close()
			end, _ := ctx.Deadline()
			_ = c.SetDeadline(end)
			conn := &dns.Conn{Conn: c}
			if err := conn.WriteMsg(q); err != nil {
				return err
			}
			reply, err := conn.ReadMsg()
			if err != nil {
				return err
			}
			l.answer(reply)
			return nil
		})
		l.Took = time.Since(begun)
		switch what, text := outcome(err); what {
		case Connected:
			l.Err = ""
			return l
		case Silent:
			l.Err = "no answer within " + dnsLimit.String()
		case Refused:
			l.Err = "nothing listens at " + server.String()
		default:
			l.Err = text
		}
	}
	return l
}

func (l *Lookup) answer(reply *dns.Msg) {
	if reply.Rcode != dns.RcodeSuccess {
		l.Code = dns.RcodeToString[reply.Rcode]
		if l.Code == "" {
			l.Code = fmt.Sprint(reply.Rcode)
		}
		return
	}
	for _, rr := range reply.Answer {
		if a, ok := rr.(*dns.A); ok {
			if addr, ok := netip.AddrFromSlice(a.A.To4()); ok {
				l.Addrs = append(l.Addrs, addr)
			}
		}
	}
	slices.SortFunc(l.Addrs, netip.Addr.Compare)
	if len(l.Addrs) == 0 {
		l.Code = "no address"
	}
}

// listening are the TCP sockets that listen there.
func (p place) listening() (out []netip.AddrPort, err error) {
	err = p.do(func() error {
		four, err := netlink.SocketDiagTCP(unix.AF_INET)
		six, _ := netlink.SocketDiagTCP(unix.AF_INET6) // a kernel without IPv6 has none
		for _, s := range slices.Concat(four, six) {
			if addr, ok := netip.AddrFromSlice(s.ID.Source); ok && s.State == netlink.TCP_LISTEN {
				out = append(out, netip.AddrPortFrom(addr.Unmap(), s.ID.SourcePort))
			}
		}
		return err
	})
	return out, err
}
