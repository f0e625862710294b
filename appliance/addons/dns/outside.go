package dns

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/nonwriter"
	miekg "github.com/miekg/dns"

	"rivulet/fabric/ipam"
)

// The site's DNS servers also answer the site's internal names, which are not for tenants. A name is public if it has a
// public address. For a tenant other names do not exist: NXDOMAIN without the zone of the answer, whether the site has
// the name or not.
//
// 	A, AAAA                public addresses, and the aliases that lead to them
// 	MX, NS, SRV,           those whose target is public; HTTPS and SVCB with public hints only
// 	  HTTPS, SVCB
// 	CNAME, TXT, CAA        of a public name
// 	all others             nothing
//
// Queries to the site contain only name and type of the client's message.

// maxTargets bounds how many targets of one answer are checked; the rest is left out.
const maxTargets = 8

// resolverPatience is how long a client waits for an answer (resolv.conf(5)).
const resolverPatience = 5 * time.Second

// queryBuffer is the size of a UDP answer that usual paths do not fragment, bytes (DNS Flag Day 2020).
const queryBuffer = 1232

// outside answers a tenant's query for a name outside the cluster.
func (t *twin) outside(ctx context.Context, w miekg.ResponseWriter, r *miekg.Msg, v *view) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, resolverPatience)
	defer cancel()
	o := outside{twin: t, ctx: ctx, w: w, own: t.networks(), known: map[string]bool{}}
	name, qtype := r.Question[0].Name, r.Question[0].Qtype
	if qtype == miekg.TypeANY {
		qtype = miekg.TypeA // RFC 8482
	}
	got, code, err := o.query(name, qtype)
	if got == nil {
		return code, err
	}
	if got.Rcode != miekg.RcodeSuccess && got.Rcode != miekg.RcodeNameError {
		return got.Rcode, nil
	}
	if !v.shows(got) {
		return deny(w, r)
	}
	m := new(miekg.Msg)
	m.SetReply(r)
	m.RecursionAvailable, m.Truncated = true, got.Truncated
	if m.Answer = o.shown(name, got); len(m.Answer) == 0 && !o.public(name) {
		return deny(w, r)
	}
	return miekg.RcodeSuccess, w.WriteMsg(m)
}

// outside is one query of a tenant.
type outside struct {
	*twin
	ctx   context.Context
	w     miekg.ResponseWriter
	own   []netip.Prefix
	known map[string]bool // names checked so far
}

func (o *outside) query(name string, qtype uint16) (*miekg.Msg, int, error) {
	q := new(miekg.Msg)
	q.SetQuestion(name, qtype)
	q.SetEdns0(queryBuffer, false)
	got := nonwriter.New(o.w)
	code, err := plugin.NextOrFailure(o.Name(), o.next, o.ctx, got, q)
	if got.Msg == nil {
		return nil, code, err
	}
	return got.Msg.Copy(), code, err // a cache may keep the original
}

// shown returns the records of an answer that a tenant receives.
func (o *outside) shown(name string, got *miekg.Msg) (kept []miekg.RR) {
	if slices.ContainsFunc(got.Answer, o.publicAddress) {
		o.known[miekg.CanonicalName(name)] = true // the usual case: no second query
	}
	for _, rr := range got.Answer {
		keep := false
		switch rr := rr.(type) {
		case *miekg.A, *miekg.AAAA:
			keep = o.publicAddress(rr)
		case *miekg.MX:
			keep = o.public(rr.Mx)
		case *miekg.NS:
			keep = o.public(rr.Ns)
		case *miekg.SRV:
			keep = o.public(rr.Target)
		case *miekg.HTTPS:
			keep = o.service(&rr.SVCB)
		case *miekg.SVCB:
			keep = o.service(rr)
		case *miekg.TXT, *miekg.CAA, *miekg.CNAME:
			keep = o.public(name)
		}
		if keep {
			kept = append(kept, rr)
		}
	}
	return kept
}

func (o *outside) publicAddress(rr miekg.RR) bool {
	var ip net.IP
	switch rr := rr.(type) {
	case *miekg.A:
		ip = rr.A
	case *miekg.AAAA:
		ip = rr.AAAA
	}
	return o.publicIP(ip)
}

func (o *outside) publicIP(ip net.IP) bool {
	addr, ok := netip.AddrFromSlice(ip)
	return ok && ipam.Public(addr, o.own...)
}

// service reports whether a service binding has public addresses only.
func (o *outside) service(s *miekg.SVCB) bool {
	for _, value := range s.Value {
		var hints []net.IP
		switch hint := value.(type) {
		case *miekg.SVCBIPv4Hint:
			hints = hint.Hint
		case *miekg.SVCBIPv6Hint:
			hints = hint.Hint
		}
		if slices.ContainsFunc(hints, func(ip net.IP) bool { return !o.publicIP(ip) }) {
			return false
		}
	}
	target := s.Target
	if target == "." {
		target = s.Hdr.Name
	}
	return o.public(target)
}

// public reports whether a name has a public address.
func (o *outside) public(name string) bool {
	name = miekg.CanonicalName(name)
	if is, ok := o.known[name]; ok {
		return is
	}
	if len(o.known) == maxTargets || o.ctx.Err() != nil || miekg.IsSubDomain(o.domain, name) {
		return false
	}
	o.known[name] = false
	for _, qtype := range []uint16{miekg.TypeA, miekg.TypeAAAA} {
		if got, _, _ := o.query(name, qtype); got != nil && slices.ContainsFunc(got.Answer, o.publicAddress) {
			o.known[name] = true
			return true
		}
	}
	return false
}
