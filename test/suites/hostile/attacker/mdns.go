package attacker

import (
	"fmt"
	"net"

	"github.com/miekg/dns"
)

// Announcement is what a well-behaved cluster would multicast of itself: change it as
// you like before Send.
func (a *Attacker) Announcement() *dns.Msg {
	const service = "_rivulet._tcp.local."
	instance, host := a.ID+"."+service, a.ID+".local."
	header := func(name string, kind, class uint16) dns.RR_Header {
		return dns.RR_Header{Name: name, Rrtype: kind, Class: class, Ttl: 120}
	}
	const flush = dns.ClassINET | 1<<15
	return &dns.Msg{MsgHdr: dns.MsgHdr{Response: true, Authoritative: true}, Compress: true, Answer: []dns.RR{
		&dns.PTR{Hdr: header(service, dns.TypePTR, dns.ClassINET), Ptr: instance},
		&dns.SRV{Hdr: header(instance, dns.TypeSRV, flush), Port: Port, Target: host},
		&dns.TXT{Hdr: header(instance, dns.TypeTXT, flush), Txt: []string{"v=1", "id=" + a.ID, "name=" + a.Name, fmt.Sprintf("port=%d", Port)}},
		&dns.A{Hdr: header(host, dns.TypeA, flush), A: a.Addr.AsSlice()},
	}}
}

// Send multicasts a message on the LAN.
func (a *Attacker) Send(m *dns.Msg) error {
	raw, err := m.Pack()
	if err != nil {
		return err
	}
	return a.room.Try(func() error {
		c, err := net.DialUDP("udp4", &net.UDPAddr{IP: a.Addr.AsSlice(), Port: 5353}, &net.UDPAddr{IP: net.IPv4(224, 0, 0, 251), Port: 5353})
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write(raw)
		return err
	})
}
