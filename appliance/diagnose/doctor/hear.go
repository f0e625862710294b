package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/net/ipv4"
)

const (
	// listening is how long answers are waited for; responders may take up to half
	// a second on purpose, radio needs some more.
	listening = 2500 * time.Millisecond
	mdnsPort  = 5353
)

var mdnsGroup = net.IPv4(224, 0, 0, 251)

// hear asks everybody on the LANs for any service and for our own name, twice, and
// listens for whatever others say meanwhile.
func hear(hostname string) (Heard, error) {
	all, err := links()
	if err != nil {
		return Heard{}, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), listening)
	defer cancel()
	var (
		mu   sync.Mutex
		out  Heard
		errs []error
		wg   sync.WaitGroup
	)
	for _, l := range all {
		if !l.LAN || !l.Up || !l.Carrier {
			continue
		}
		wg.Go(func() {
			err := hearOn(ctx, l.Name, hostname, func(from netip.Addr, sameName bool) {
				if isOurs(all, from) {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if !slices.Contains(out.From, from) {
					out.From = append(out.From, from)
				}
				if sameName && !slices.Contains(out.SameName, from) {
					out.SameName = append(out.SameName, from)
				}
			})
			if err != nil {
				mu.Lock()
				errs = append(errs, fmt.Errorf("%s: %w", l.Name, err))
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	slices.SortFunc(out.From, netip.Addr.Compare)
	slices.SortFunc(out.SameName, netip.Addr.Compare)
	if len(out.From) > 0 {
		return out, nil // one LAN that works is enough to judge by
	}
	return out, errors.Join(errs...)
}

func isOurs(all []Link, addr netip.Addr) bool {
	return slices.ContainsFunc(all, func(l Link) bool {
		return slices.ContainsFunc(l.Addrs, func(p netip.Prefix) bool { return p.Addr() == addr })
	})
}

// hearOn listens on one LAN until ctx ends.
func hearOn(ctx context.Context, lan, hostname string, told func(from netip.Addr, sameName bool)) error {
	ifi, err := net.InterfaceByName(lan)
	if err != nil {
		return err
	}
	// Shares the port with every other responder of the machine.
	c, err := net.ListenMulticastUDP("udp4", ifi, &net.UDPAddr{IP: mdnsGroup, Port: mdnsPort})
	if err != nil {
		return err
	}
	defer c.Close()
	p := ipv4.NewPacketConn(c)
	if err := errors.Join(p.SetMulticastInterface(ifi), p.SetMulticastTTL(255), p.SetControlMessage(ipv4.FlagInterface, true)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	host := dns.Fqdn(strings.ToLower(hostname) + ".local")
	question, err := query(host)
	if err != nil {
		return err
	}
	group := &net.UDPAddr{IP: mdnsGroup, Port: mdnsPort}
	if _, err := p.WriteTo(question, nil, group); err != nil {
		return err
	}
	again := time.AfterFunc(listening/3, func() { p.WriteTo(question, nil, group) }) //nolint:errcheck // it is only a repetition
	defer again.Stop()
	buf := make([]byte, 9000)
	for {
		n, cm, src, err := p.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) || ctx.Err() != nil {
			return nil
		}
		udp, ok := src.(*net.UDPAddr)
		if err != nil || !ok || cm != nil && cm.IfIndex != ifi.Index {
			continue
		}
		m := new(dns.Msg)
		if m.Unpack(buf[:n]) == nil {
			told(udp.AddrPort().Addr().Unmap(), m.Response && claims(m, host))
		}
	}
}

// query asks for all services, for Rivulet's, and for who has our name. Multicast
// answers are wanted: what is to be learnt is whether multicast comes through.
func query(host string) ([]byte, error) {
	m := &dns.Msg{Question: []dns.Question{
		{Name: "_services._dns-sd._udp.local.", Qtype: dns.TypePTR, Qclass: dns.ClassINET},
		{Name: "_rivulet._tcp.local.", Qtype: dns.TypePTR, Qclass: dns.ClassINET},
		{Name: host, Qtype: dns.TypeA, Qclass: dns.ClassINET},
	}}
	return m.Pack()
}

// claims reports whether an answer says that its sender is called host.
func claims(m *dns.Msg, host string) bool {
	return slices.ContainsFunc(slices.Concat(m.Answer, m.Extra), func(rr dns.RR) bool {
		_, is4 := rr.(*dns.A)
		return is4 && strings.EqualFold(rr.Header().Name, host)
	})
}
