package gateway

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"

	"rivulet/fabric/gateway/config"
)

// The longest answers: a datagram's is shorter if who asks takes no more. Whoever
// gets a cut one asks again over TCP.
const (
	datagram, framed = 1232, 64<<10 - 1
	plain            = 512 // without EDNS
	// maxChain bounds how often a name stands for another.
	maxChain = 8
)

// reply is an answer about a name of home's, as it is made.
type reply struct {
	dnsmessage.Message
	zone  *zone
	takes int // bytes that who asks takes in a datagram
	// ask is the name that has to be asked of the campus before it is complete.
	ask string
}

// ours answers a question about one of home's names; false if it is none.
func (s *names) ours(question []byte) (*reply, bool) {
	return answerOf(s.g.state.Load().zone, question)
}

// Answer is what a gateway with the configuration says to a question about one of
// home's names in a datagram; false if the campus's DNS has to be asked.
func Answer(cfg config.Gateway, question []byte) ([]byte, bool) {
	r, ours := answerOf(zoneOf(cfg), question)
	if !ours || r.ask != "" {
		return nil, false
	}
	return r.pack(datagram), true
}

func answerOf(z *zone, question []byte) (*reply, bool) {
	var p dnsmessage.Parser
	head, err := p.Start(question)
	if err != nil || head.Response || head.OpCode != 0 {
		return nil, false
	}
	q, err := p.Question()
	if err != nil || q.Class != dnsmessage.ClassINET {
		return nil, false
	}
	r := &reply{zone: z, takes: room(&p), Message: dnsmessage.Message{Questions: []dnsmessage.Question{q}, Header: dnsmessage.Header{
		ID: head.ID, Response: true, Authoritative: true, RecursionDesired: head.RecursionDesired, RecursionAvailable: true,
	}}}
	if q.Type == dnsmessage.TypePTR {
		return r, r.pointers(q.Name)
	}
	return r, r.follow(q.Name.String(), q.Type)
}

// room is how much the one who asks takes in a datagram.
func room(p *dnsmessage.Parser) int {
	if p.SkipAllQuestions() != nil || p.SkipAllAnswers() != nil || p.SkipAllAuthorities() != nil {
		return plain
	}
	for {
		h, err := p.AdditionalHeader()
		if err != nil {
			return plain
		}
		if h.Type == dnsmessage.TypeOPT {
			return min(max(int(h.Class), plain), datagram)
		}
		if p.SkipAdditional() != nil {
			return plain
		}
	}
}

// follow answers with what there is of a name, and of what it stands for.
func (r *reply) follow(name string, kind dnsmessage.Type) bool {
	for range maxChain {
		n, known := r.zone.find(name)
		switch known {
		case notOurs:
			if len(r.Answers) == 0 {
				return false
			}
			r.ask = name
			return true
		case nothing:
			r.none(dnsmessage.RCodeNameError)
			return true
		}
		if n.cname == "" {
			r.records(name, n, kind)
			return true
		}
		address := kind == dnsmessage.TypeA || kind == dnsmessage.TypeAAAA
		if !address && kind != dnsmessage.TypeCNAME { // as CoreDNS has it
			r.none(dnsmessage.RCodeSuccess)
			return true
		}
		if !r.add(&r.Answers, name, &dnsmessage.CNAMEResource{CNAME: must(n.cname)}) {
			return false
		}
		if !address {
			return true
		}
		name = n.cname
	}
	r.RCode = dnsmessage.RCodeServerFailure // a circle
	return true
}

// records adds those of the kind.
func (r *reply) records(name string, n *node, kind dnsmessage.Type) {
	switch kind {
	case dnsmessage.TypeA, dnsmessage.TypeAAAA, dnsmessage.TypeALL:
		for _, ip := range n.addrs {
			if ip.Is4() && kind != dnsmessage.TypeAAAA || ip.Is6() && kind != dnsmessage.TypeA {
				r.add(&r.Answers, name, address(ip))
			}
		}
	case dnsmessage.TypeSRV:
		told := map[string]bool{}
		for _, p := range n.ports {
			of := r.zone.at[p.target]
			if len(of.addrs) == 0 {
				continue // it is nowhere yet
			}
			target := p.target + r.zone.suffix
			r.add(&r.Answers, name, &dnsmessage.SRVResource{Weight: uint16(100 / len(n.ports)), Port: p.port, Target: must(target)})
			for _, ip := range of.addrs {
				if !told[target+ip.String()] {
					told[target+ip.String()] = true
					r.add(&r.Additionals, target, address(ip))
				}
			}
		}
	}
	if len(r.Answers) == 0 {
		r.none(dnsmessage.RCodeSuccess)
	}
}

func (r *reply) pointers(name dnsmessage.Name) bool {
	for _, of := range r.zone.names(name.String()) {
		r.add(&r.Answers, name.String(), &dnsmessage.PTRResource{PTR: must(of)})
	}
	return len(r.Answers) > 0
}

// none says that there is nothing, and for how long that may be believed.
func (r *reply) none(code dnsmessage.RCode) {
	r.RCode = code
	domain := strings.TrimPrefix(r.zone.suffix, ".svc.")
	r.add(&r.Authorities, domain, &dnsmessage.SOAResource{NS: must("ns.dns." + domain), MBox: must("hostmaster." + domain),
		Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, MinTTL: dnsTTL})
}

func (r *reply) add(to *[]dnsmessage.Resource, name string, body dnsmessage.ResourceBody) bool {
	n, err := dnsmessage.NewName(name)
	if err == nil {
		*to = append(*to, dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: n, Class: dnsmessage.ClassINET, TTL: dnsTTL}, Body: body})
	}
	return err == nil
}

func address(ip netip.Addr) dnsmessage.ResourceBody {
	if ip.Is4() {
		return &dnsmessage.AResource{A: ip.As4()}
	}
	return &dnsmessage.AAAAResource{AAAA: ip.As16()}
}

// must is for names whose lengths are known to fit: the root's stands for others.
func must(name string) dnsmessage.Name {
	n, err := dnsmessage.NewName(name)
	if err != nil {
		return dnsmessage.MustNewName(".")
	}
	return n
}

// pack is the message; cut to nothing where it is longer than most or than is taken.
func (r *reply) pack(most int) []byte {
	if most == datagram {
		most = r.takes
	}
	raw, err := r.Pack()
	if err == nil && len(raw) > most {
		r.Additionals = nil // they are a courtesy
		raw, err = r.Pack()
	}
	if err == nil && len(raw) > most {
		r.Answers, r.Authorities, r.Truncated = nil, nil, true
		raw, err = r.Pack()
	}
	if err != nil {
		r.Answers, r.Authorities, r.Additionals, r.RCode = nil, nil, nil, dnsmessage.RCodeServerFailure
		raw, _ = r.Pack() // a question that could be read
	}
	return raw
}

// elsewhere answers what the campus's DNS has to be asked for: all of the question,
// or what one of home's names stands for.
func (s *names) elsewhere(ctx context.Context, network string, question []byte, r *reply) []byte {
	if r == nil || r.ask == "" {
		return s.ask(ctx, network, question)
	}
	most := framed
	if network == "udp" {
		most = datagram
	}
	more, code, err := s.askFor(ctx, network, r.ask, r.Questions[0].Type)
	r.Authoritative = false
	if err != nil {
		r.Answers, r.RCode = nil, dnsmessage.RCodeServerFailure
		return r.pack(most)
	}
	r.Answers, r.RCode = append(r.Answers, more...), code
	return r.pack(most)
}

// askFor asks the campus's DNS for one name, over TCP if the answer is long.
func (s *names) askFor(ctx context.Context, network, name string, kind dnsmessage.Type) ([]dnsmessage.Resource, dnsmessage.RCode, error) {
	n, err := dnsmessage.NewName(name)
	if err != nil {
		return nil, 0, err
	}
	q := dnsmessage.Message{Header: dnsmessage.Header{ID: uint16(rand.Uint32()), RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: n, Type: kind, Class: dnsmessage.ClassINET}}}
	raw, err := q.Pack()
	if err != nil {
		return nil, 0, err
	}
	var m dnsmessage.Message
	if err := m.Unpack(s.ask(ctx, network, raw)); err != nil {
		return nil, 0, err
	}
	if m.Truncated && network == "udp" {
		return s.askFor(ctx, "tcp", name, kind)
	}
	if m.RCode != dnsmessage.RCodeSuccess && m.RCode != dnsmessage.RCodeNameError {
		return nil, 0, errors.New("gateway: the campus's DNS does not know")
	}
	return m.Answers, m.RCode, nil
}
