package gateway

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"

	"rivulet/fabric/gateway/gatewayproto"
)

// The gateway answers queries for home's Services, as home's own DNS would, with the addresses at which local pods
// reach them (zone). All other queries are forwarded to the campus's DNS. Pods have the search domains of their home
// namespace, so that queries for `name` and `name.namespace` arrive with the full name.

const (
	dnsTTL   = 5 // seconds: a Service may be recreated
	dnsLimit = 4 * time.Second
	maxDNS   = 256 // forwarded queries at a time
	// datagram bounds an answer over UDP, bytes, plain that for clients without EDNS. A client repeats a truncated
	// query over TCP.
	datagram, plain = 1232, dns.MinMsgSize
	// maxChain bounds the aliases followed for one name.
	maxChain = 8
)

// names is the DNS server.
type names struct {
	g    *Gateway
	next []string // host:port of the campus's DNS servers
	busy chan struct{}
}

// ServeDNS answers on the address until ctx ends. Next are the servers for other names.
func (g *Gateway) ServeDNS(ctx context.Context, addr string, next []string) error {
	packets, err := net.ListenPacket("udp", addr)
	if err != nil {
		return err
	}
	defer packets.Close()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	defer l.Close()
	stop := context.AfterFunc(ctx, func() { packets.Close(); l.Close() })
	defer stop()
	handler := dns.HandlerFunc((&names{g: g, next: next, busy: make(chan struct{}, maxDNS)}).answer)
	ended := make(chan error, 2)
	for _, s := range []*dns.Server{{PacketConn: packets, UDPSize: datagram}, {Listener: l, ReadTimeout: 2 * dnsLimit, WriteTimeout: 2 * dnsLimit}} {
		s.Handler = handler
		go func() { ended <- s.ActivateAndServe() }()
	}
	if err = <-ended; ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// answer answers one query. A client repeats one that is dropped.
func (s *names) answer(w dns.ResponseWriter, question *dns.Msg) {
	network := w.RemoteAddr().Network()
	r, ours := answerOf(s.g.state.Load().zone, question)
	if !ours || r.alias != "" {
		select {
		case s.busy <- struct{}{}:
			defer func() { <-s.busy }()
		default:
			_ = w.Close() // the connection, if there is one
			return
		}
		if ours {
			r.complete(s.resolve, network)
		} else {
			r = &reply{Msg: s.resolve(network, question)}
			r.Id = question.Id
		}
	}
	r.cut(network, question)
	_ = w.WriteMsg(r.Msg)
}

// resolve forwards a query to the campus's servers, one after the other. If none answers, it fails at once, so that the
// pod does not wait.
func (s *names) resolve(network string, question *dns.Msg) *dns.Msg {
	q := question.Copy()
	q.Id = dns.Id()
	for i, server := range s.next {
		c := dns.Client{Net: network, Timeout: dnsLimit / time.Duration(len(s.next)-i+1), UDPSize: dns.DefaultMsgSize}
		if answer, _, err := c.Exchange(q, server); err == nil {
			return answer
		}
	}
	return new(dns.Msg).SetRcode(question, dns.RcodeServerFailure)
}

// Answer is the gateway's answer to a query for one of home's names in a datagram; false if the campus's DNS has to be
// queried.
func Answer(cfg gatewayproto.Gateway, question []byte) ([]byte, bool) {
	q := new(dns.Msg)
	if q.Unpack(question) != nil {
		return nil, false
	}
	r, ours := answerOf(zoneOf(cfg), q)
	if !ours || r.alias != "" {
		return nil, false
	}
	r.cut("udp", q)
	raw, err := r.Pack()
	return raw, err == nil
}

// reply is an answer under construction, for one of home's names.
type reply struct {
	*dns.Msg
	zone *zone
	// alias has to be resolved by the campus's DNS to complete the answer.
	alias string
}

// answerOf answers a query for one of home's names; false if the name is not home's.
func answerOf(z *zone, question *dns.Msg) (*reply, bool) {
	if question.Response || question.Opcode != dns.OpcodeQuery || len(question.Question) != 1 || question.Question[0].Qclass != dns.ClassINET {
		return nil, false
	}
	r := &reply{zone: z, Msg: new(dns.Msg).SetReply(question)}
	r.Authoritative, r.RecursionAvailable = true, true
	q := question.Question[0]
	if q.Qtype == dns.TypePTR {
		for _, of := range z.names(q.Name) {
			r.Answer = append(r.Answer, &dns.PTR{Hdr: head(q.Name, dns.TypePTR), Ptr: of})
		}
		return r, len(r.Answer) > 0
	}
	return r, r.follow(q.Name, q.Qtype)
}

// follow adds the records of a name, and of its alias.
func (r *reply) follow(name string, kind uint16) bool {
	for range maxChain {
		n, known := r.zone.find(name)
		switch known {
		case notOurs:
			if len(r.Answer) == 0 {
				return false
			}
			r.alias = name
			return true
		case nothing:
			r.none(dns.RcodeNameError)
			return true
		}
		if n.cname == "" {
			r.records(name, n, kind)
			return true
		}
		address := kind == dns.TypeA || kind == dns.TypeAAAA
		if !address && kind != dns.TypeCNAME { // as in CoreDNS
			r.none(dns.RcodeSuccess)
			return true
		}
		r.Answer = append(r.Answer, &dns.CNAME{Hdr: head(name, dns.TypeCNAME), Target: n.cname})
		if !address {
			return true
		}
		name = n.cname
	}
	r.Rcode = dns.RcodeServerFailure // a loop of aliases
	return true
}

func (r *reply) records(name string, n *node, kind uint16) {
	switch kind {
	case dns.TypeA, dns.TypeAAAA, dns.TypeANY:
		for _, ip := range n.addrs {
			if ip.Is4() && kind != dns.TypeAAAA || ip.Is6() && kind != dns.TypeA {
				r.Answer = append(r.Answer, address(name, ip))
			}
		}
	case dns.TypeSRV:
		listed := map[string]bool{}
		for _, p := range n.ports {
			of := r.zone.at[p.target]
			if len(of.addrs) == 0 {
				continue // it has no address yet
			}
			target := p.target + r.zone.suffix
			r.Answer = append(r.Answer, &dns.SRV{Hdr: head(name, kind), Weight: uint16(100 / len(n.ports)), Port: p.port, Target: target})
			for _, ip := range of.addrs {
				if !listed[target+ip.String()] {
					listed[target+ip.String()] = true
					r.Extra = append(r.Extra, address(target, ip))
				}
			}
		}
	}
	if len(r.Answer) == 0 {
		r.none(dns.RcodeSuccess)
	}
}

// none answers that there are no records, with the time for which that may be cached.
func (r *reply) none(code int) {
	r.Rcode = code
	domain := strings.TrimPrefix(r.zone.suffix, ".svc.")
	r.Ns = []dns.RR{&dns.SOA{Hdr: head(domain, dns.TypeSOA), Ns: "ns.dns." + domain, Mbox: "hostmaster." + domain,
		Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: dnsTTL}}
}

// complete adds the campus's DNS records of the alias.
func (r *reply) complete(resolve func(network string, q *dns.Msg) *dns.Msg, network string) {
	q := new(dns.Msg).SetQuestion(r.alias, r.Question[0].Qtype)
	more := resolve(network, q)
	if more.Truncated {
		more = resolve("tcp", q)
	}
	r.Authoritative = false
	if r.Rcode = more.Rcode; r.Rcode != dns.RcodeSuccess && r.Rcode != dns.RcodeNameError {
		r.Answer, r.Rcode = nil, dns.RcodeServerFailure
		return
	}
	r.Answer = append(r.Answer, more.Answer...)
}

// cut truncates the answer to the client's maximum size.
func (r *reply) cut(network string, question *dns.Msg) {
	most := dns.MaxMsgSize
	if network == "udp" {
		most = plain
		if o := question.IsEdns0(); o != nil {
			most = min(int(o.UDPSize()), datagram)
		}
	}
	r.Truncate(most)
}

func head(name string, kind uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: dnsTTL}
}

func address(name string, ip netip.Addr) dns.RR {
	if ip.Is4() {
		return &dns.A{Hdr: head(name, dns.TypeA), A: ip.AsSlice()}
	}
	return &dns.AAAA{Hdr: head(name, dns.TypeAAAA), AAAA: ip.AsSlice()}
}
