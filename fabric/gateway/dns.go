package gateway

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"

	"rivulet/fabric/gateway/config"
)

// The gateway answers the names of home's Services, as home's own DNS would: with
// where pods here reach them (zone). Everything else is looked up in the campus's DNS. Pods have
// search domains of their home namespace, so that `name` and `name.namespace` come
// here in full.

const (
	dnsTTL   = 5 // seconds: a Service may be made anew
	dnsLimit = 4 * time.Second
	maxDNS   = 256 // questions passed on at a time
	// datagram bounds an answer over UDP, bytes, plain that for clients without EDNS; a client repeats a question over TCP
	// when the answer is cut.
	datagram, plain = 1232, dns.MinMsgSize
	// maxChain bounds how often a name stands for another.
	maxChain = 8
)

// names is the DNS server.
type names struct {
	g    *Gateway
	next []string // host:port of the campus's servers
	busy chan struct{}
}

// ServeDNS answers on the address until ctx ends. next are the servers for what home does not know.
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

// answer answers one question. A client repeats one that is dropped.
func (s *names) answer(w dns.ResponseWriter, question *dns.Msg) {
	network := w.RemoteAddr().Network()
	r, ours := answerOf(s.g.state.Load().zone, question)
	if !ours || r.alias != "" {
		select {
		case s.busy <- struct{}{}:
			defer func() { <-s.busy }()
		default:
			_ = w.Close() // the connection, where there is one
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

// resolve passes a question on to the campus's servers, one after the other. Without an answer that is a failure at once, so that
// the pod does not wait.
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

// Answer is what a gateway with the configuration says to a question about one of
// home's names in a datagram; false if the campus's DNS has to be asked.
func Answer(cfg config.Gateway, question []byte) ([]byte, bool) {
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

// reply is an answer about a name of home's, as it is made.
type reply struct {
	*dns.Msg
	zone *zone
	// alias is the name that has to be looked up in the campus's DNS before it is complete.
	alias string
}

// answerOf answers a question about one of home's names; false if it is none.
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

// follow answers with what there is of a name, and of what it stands for.
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
		if !address && kind != dns.TypeCNAME { // as CoreDNS has it
			r.none(dns.RcodeSuccess)
			return true
		}
		r.Answer = append(r.Answer, &dns.CNAME{Hdr: head(name, dns.TypeCNAME), Target: n.cname})
		if !address {
			return true
		}
		name = n.cname
	}
	r.Rcode = dns.RcodeServerFailure // a circle
	return true
}

// records adds those of the kind.
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
				continue // it is nowhere yet
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

// none says that there is nothing, and for how long that may be believed.
func (r *reply) none(code int) {
	r.Rcode = code
	domain := strings.TrimPrefix(r.zone.suffix, ".svc.")
	r.Ns = []dns.RR{&dns.SOA{Hdr: head(domain, dns.TypeSOA), Ns: "ns.dns." + domain, Mbox: "hostmaster." + domain,
		Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: dnsTTL}}
}

// complete adds what the campus's DNS has of the alias.
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

// cut makes it as short as the client takes it.
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
