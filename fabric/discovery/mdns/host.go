package mdns

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"rivulet/fabric/netmon"
)

// A device answers for a name under .local that a user can type, unless another program of the machine (avahi,
// systemd-resolved) does already. See RFC 6762, 8 and 9:
//
// 	probing ──name is free──▶ own ──another claims it──▶ probing
// 	   │ another machine has it: restart with the next name; wait for the last one to become free
// 	   │ this machine answers: silent, check again after hostAgain
//
// The zeroconf module answers for services, never for a host.

// The times of RFC 6762, 8.1, and this package's own.
const (
	hostProbe = 250 * time.Millisecond // between three probes
	hostYield = time.Second            // wait after a lost tie
	hostAgain = time.Minute            // until the machine's own responder is checked again
	hostTTL   = 120                    // seconds
	hostPause = time.Second            // between two answers on one LAN
	hostProof = hostProbe * 4 / 5      // the same during a probe by another machine
)

// HostState is who answers for a name.
type HostState string

const (
	HostProbing   HostState = "probing"
	HostOurs      HostState = "ours"
	HostElsewhere HostState = "another program of this machine"
)

// Host answers for the first of the names (labels without .local) that no other machine has, until ctx ends. If others
// have all of them it takes over the first one that becomes free: several devices may share a name, and one has it. It
// calls report after each change; a browser on the LAN can use the name in all states but HostProbing.
func (s *Source) Host(ctx context.Context, names []string, report func(name string, st HostState)) error {
	h := &host{src: s, names: names, report: report}
	s.onLANs(ctx, "cannot answer for this device's name on the LAN, trying again", nil, hearing(h.on))
	return nil
}

type host struct {
	src    *Source
	names  []string
	at     int // of names
	report func(string, HostState)
	last   struct {
		name  string
		state HostState
	}
}

func (h *host) fqdn() string { return strings.ToLower(h.names[h.at]) + "." + domain }

func (h *host) publish(st HostState) {
	if now := h.names[h.at]; h.last.name != now || h.last.state != st {
		h.last.name, h.last.state = now, st
		h.report(now, st)
	}
}

// verdict is the result of a packet for the name.
type verdict int

const (
	nothing verdict = iota
	oneself         // this machine answers for it
	taken           // another machine answers for it
	tie             // another machine probes for it at this moment, and has priority
)

// on keeps the name on these LANs, until ctx ends or they change.
func (h *host) on(ctx context.Context, at place) {
	for {
		v, over := h.probe(ctx, at)
		switch {
		case over:
			return
		case v == taken:
			h.at = (h.at + 1) % len(h.names)
			if h.at == 0 { // all are taken
				if h.awaitFree(ctx, at) {
					return
				}
			}
		case v == tie:
			if h.pass(ctx, at, hostYield) {
				return
			}
		case v == oneself:
			h.publish(HostElsewhere)
			if h.pass(ctx, at, hostAgain) {
				return
			}
		default:
			if h.serve(ctx, at) {
				return
			}
		}
	}
}

// pass waits; over is true if ctx ended or the LANs changed.
func (h *host) pass(ctx context.Context, at place, d time.Duration) (over bool) {
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return true
		case <-at.changed:
			return true
		case <-at.packets:
		case <-t.C:
			return false
		}
	}
}

// awaitFree waits until the first name may be free: its owner has sent a goodbye, or nothing for Timing.Owner and a random
// part of it. Of many devices that wait for a name one probes then, and the owner's answer makes the others wait again.
func (h *host) awaitFree(ctx context.Context, at place) (over bool) {
	name := h.fqdn()
	silence := func() time.Duration { return h.src.timing.Owner + rand.N(h.src.timing.Owner/2+1) }
	t := time.NewTimer(silence())
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return true
		case <-at.changed:
			return true
		case p := <-at.packets:
			if evaluate(p, name, at.lans) == taken {
				t.Reset(silence())
			} else if at.lans.OnLink(p.from) && departs(p.msg, name) {
				t.Reset(rand.N(hostYield))
			}
		case <-t.C:
			return false
		}
	}
}

func (h *host) probe(ctx context.Context, at place) (v verdict, over bool) {
	h.publish(HostProbing)
	for range 3 {
		for _, lan := range at.lans {
			if err := at.ear.send(probe(h.fqdn(), lan), lan); err != nil {
				h.src.log.Debug("probe not sent", "err", err)
			}
		}
		t := time.NewTimer(hostProbe)
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				t.Stop()
				return nothing, true
			case <-at.changed:
				t.Stop()
				return nothing, true
			case p := <-at.packets:
				if v := evaluate(p, h.fqdn(), at.lans); v != nothing {
					t.Stop()
					return v, false
				}
			case <-t.C:
				waiting = false
			}
		}
	}
	return nothing, false
}

// serve announces the name and answers for it until another machine claims it, too.
func (h *host) serve(ctx context.Context, at place) (over bool) {
	name := h.fqdn()
	announce := func(ttl uint32) {
		for _, lan := range at.lans {
			if err := at.ear.send(addresses(name, lan, ttl), lan); err != nil {
				h.src.log.Debug("name not announced", "err", err)
			}
		}
	}
	announce(hostTTL)
	h.publish(HostOurs)
	defer func() { announce(0) }()
	again := time.NewTimer(time.Second) // RFC 6762, 8.3: twice
	defer again.Stop()
	answered := map[int]time.Time{}
	for {
		select {
		case <-ctx.Done():
			return true
		case <-at.changed:
			return true
		case <-again.C:
			announce(hostTTL)
		case p := <-at.packets:
			if evaluate(p, name, at.lans) == taken {
				return false
			}
			lan, ok := at.lans.ByIndex(p.lan)
			if !ok || !queries(p.msg, name) || !at.lans.Own(p.from) && !(netmon.LANs{lan}).OnLink(p.from) {
				continue
			}
			if p.port != uint16(group4.Port) {
				at.ear.answer(p, name, lan)
				continue
			}
			pause := hostPause
			if len(claims(p.msg.Ns, name)) > 0 {
				pause = hostProof
			}
			if now := time.Now(); now.Sub(answered[lan.Index]) >= pause {
				answered[lan.Index] = now
				at.ear.send(addresses(name, lan, hostTTL), lan) //nolint:errcheck // it will be queried again
			}
		}
	}
}

// evaluate returns the verdict of a packet for a device that wants the name on these LANs.
func evaluate(p packet, name string, lans netmon.LANs) verdict {
	if p.msg.Response {
		claimed := claims(slices.Concat(p.msg.Answer, p.msg.Extra), name)
		if len(claimed) == 0 {
			return nothing
		}
		if slices.ContainsFunc(claimed, lans.Own) {
			return oneself
		}
		if slices.ContainsFunc(claimed, lans.OnLink) {
			return taken
		}
		return nothing // it is about a machine elsewhere
	}
	lan, ok := lans.ByIndex(p.lan)
	theirs := claims(p.msg.Ns, name)
	if !ok || len(theirs) == 0 || lans.Own(p.from) {
		return nothing
	}
	// Two probe at the same moment: the greater address wins, RFC 6762, 8.2.
	var ours []netip.Addr
	for _, a := range lan.Addrs {
		ours = append(ours, a.Addr().Unmap())
	}
	if len(ours) > 0 && slices.MaxFunc(theirs, netip.Addr.Compare).Compare(slices.MaxFunc(ours, netip.Addr.Compare)) > 0 {
		return tie
	}
	return nothing
}

// claims are the addresses that records give to the name; a goodbye gives none.
func claims(records []dns.RR, name string) (out []netip.Addr) {
	for _, rr := range records {
		if !strings.EqualFold(rr.Header().Name, name) || rr.Header().Ttl == 0 {
			continue
		}
		var raw net.IP
		switch rr := rr.(type) {
		case *dns.A:
			raw = rr.A.To4()
		case *dns.AAAA:
			raw = rr.AAAA
		}
		if a, ok := netip.AddrFromSlice(raw); ok {
			out = append(out, a.Unmap())
		}
	}
	return out
}

// departs reports whether a message is the goodbye of the name's owner.
func departs(m *dns.Msg, name string) bool {
	return m.Response && slices.ContainsFunc(m.Answer, func(rr dns.RR) bool {
		kind := rr.Header().Rrtype
		return rr.Header().Ttl == 0 && (kind == dns.TypeA || kind == dns.TypeAAAA) && strings.EqualFold(rr.Header().Name, name)
	})
}

func queries(m *dns.Msg, name string) bool {
	return !m.Response && slices.ContainsFunc(m.Question, func(q dns.Question) bool {
		return strings.EqualFold(q.Name, name) && slices.Contains([]uint16{dns.TypeA, dns.TypeAAAA, dns.TypeANY}, q.Qtype)
	})
}

// probe asks for the name, with the addresses that it would get.
func probe(name string, lan netmon.Interface) *dns.Msg {
	m := &dns.Msg{Compress: true, Question: []dns.Question{{Name: name, Qtype: dns.TypeANY, Qclass: dns.ClassINET}}}
	m.Ns = addresses(name, lan, hostTTL).Answer
	for _, rr := range m.Ns {
		rr.Header().Class = dns.ClassINET // a probe replaces no records
	}
	return m
}

// addresses announces the addresses of the name on one LAN.
func addresses(name string, lan netmon.Interface, ttl uint32) *dns.Msg {
	m := &dns.Msg{MsgHdr: dns.MsgHdr{Response: true, Authoritative: true}, Compress: true}
	m.Answer = hostRecords(name, lan, ttl)
	return m
}

// hostRecords are the addresses of an interface as records of a name.
func hostRecords(name string, lan netmon.Interface, ttl uint32) (out []dns.RR) {
	header := func(kind uint16) dns.RR_Header {
		return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET | 1<<15, Ttl: ttl} // RFC 6762, 10.2
	}
	for _, p := range lan.Addrs {
		if ip := p.Addr(); ip.Is4() {
			out = append(out, &dns.A{Hdr: header(dns.TypeA), A: ip.AsSlice()})
		} else {
			out = append(out, &dns.AAAA{Hdr: header(dns.TypeAAAA), AAAA: ip.AsSlice()})
		}
	}
	return out
}

// answer answers a legacy unicast query, as a DNS server would: RFC 6762, 6.7.
func (e *ear) answer(p packet, name string, lan netmon.Interface) {
	m := addresses(name, lan, 10)
	m.Id, m.Question = p.msg.Id, p.msg.Question
	for _, rr := range m.Answer {
		rr.Header().Class = dns.ClassINET
	}
	buf, err := m.Pack()
	if err != nil {
		return
	}
	to := &net.UDPAddr{IP: p.from.AsSlice(), Port: int(p.port), Zone: p.from.Zone()}
	if p.from.Is4() && e.v4 != nil {
		e.v4.WriteTo(buf, nil, to) //nolint:errcheck // the client retries
	} else if e.v6 != nil {
		e.v6.WriteTo(buf, nil, to) //nolint:errcheck // as above
	}
}
