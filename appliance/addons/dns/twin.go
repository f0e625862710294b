package dns

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/dnsutil"
	"github.com/coredns/coredns/plugin/pkg/nonwriter"
	"github.com/coredns/coredns/request"
	miekg "github.com/miekg/dns"

	"rivulet/fabric/ipam"
	"rivulet/offload/homeapi"
	"rivulet/offload/nodeagent/homeaddr"
)

// published is how long a query waits until the address of a new pod is known. Resolvers wait for 5 s.
const published = 3 * time.Second

// twin is the plugin for tenants. The home namespace "lab" has a twin here with another name; for tenants of the same
// origin *.lab.svc.<domain> is resolved in the twin and answered under the queried name.
//
//	query:    web.lab.svc.cluster.local        from 10.42.0.7, a pod in a twin
//	resolved: web.lab-x7f2.svc.cluster.local
//	answer:   web.lab.svc.cluster.local  A  10.43.1.2
//
// The short name web resolves by the pod's search path in the twin without any of this. For a tenant made for home's
// addresses (package homeaddr) queries and answers have the cluster IPs and pod addresses at home. Other namespaces of
// the cluster do not exist for a tenant in any query (addresses, SRV, PTR, aliases), and of other names only public
// ones do (outside.go).
type twin struct {
	domain   string // lower case
	pods     netip.Prefix
	services netip.Prefix
	dns      netip.Addr                        // the cluster IP of this server
	sees     func(origin string) homeaddr.View // how a home sees pods; nil is none
	index    *index
	past     *index // answers until index has synced; may be nil
	networks func() []netip.Prefix
	next     plugin.Handler
}

func (t *twin) Name() string { return "twin" }

func (t *twin) ServeDNS(ctx context.Context, w miekg.ResponseWriter, r *miekg.Msg) (int, error) {
	state := request.Request{W: w, Req: r}
	client, err := netip.ParseAddr(state.IP())
	if err != nil {
		return miekg.RcodeRefused, nil
	}
	client = client.Unmap()
	x := t.known()
	name := state.Name()
	reverse := miekg.IsSubDomain("in-addr.arpa.", name) || miekg.IsSubDomain("ip6.arpa.", name)
	shared := miekg.IsSubDomain(clusterSet, name)
	inside := reverse || shared || miekg.IsSubDomain(t.domain, name)
	if inside && !x.synced() && x != t.past && t.pods.Contains(client) && !ofHost(client) {
		return miekg.RcodeServerFailure, nil // the pod's namespace is not known yet
	}
	patience := time.Duration(0)
	if inside && x.twinned() && !ofHost(client) {
		patience = published
	}
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	who, known := x.who(waiting, client)
	switch {
	case !known && inside && patience > 0 && t.pods.Contains(client):
		return miekg.RcodeRefused, nil
	case !known && !inside && x.twinned() && t.pods.Contains(client) && !ofHost(client):
		return t.outside(ctx, w, r, &view{x: x, origin: "nobody's", domain: t.domain}) // it may be a tenant
	case who.origin == "":
		return plugin.NextOrFailure(t.Name(), t.next, ctx, w, r)
	case shared: // the owner's imports
		return deny(w, r)
	}
	if m := t.itself(r, name); m != nil {
		return m.Rcode, w.WriteMsg(m)
	}
	v := view{x: x, origin: who.origin, domain: t.domain, namespace: who.namespace}
	if !inside {
		return t.outside(ctx, w, r, &v)
	}
	asked := r
	if reverse && who.homeAddresses {
		var ok bool
		if asked, ok = t.leadAddress(v, who, r, name); !ok {
			return deny(w, r)
		}
	}
	if !reverse {
		var ok bool
		if asked, ok = v.lead(r); !ok {
			return deny(w, r)
		}
	}
	got := nonwriter.New(w)
	code, err := plugin.NextOrFailure(t.Name(), t.next, ctx, got, asked)
	if got.Msg == nil {
		return code, err
	}
	answer := got.Msg.Copy() // a cache may keep the original
	if !v.shows(answer) || reverse && !t.reverse(name, answer) {
		return deny(w, r)
	}
	if who.homeAddresses && !t.homeAddresses(waiting, v, who, answer) {
		return miekg.RcodeServerFailure, nil // the Service is new, or home is no peer
	}
	if asked != r && reverse {
		for _, rr := range answer.Answer {
			if h := rr.Header(); strings.EqualFold(h.Name, asked.Question[0].Name) {
				h.Name = r.Question[0].Name
			}
		}
	}
	v.homeward(answer, r, reverse)
	return code, w.WriteMsg(answer)
}

// leadAddress converts a query for a home address to one for the address here; false if nothing at home has it.
func (t *twin) leadAddress(v view, who tenant, r *miekg.Msg, name string) (*miekg.Msg, bool) {
	a, err := netip.ParseAddr(dnsutil.ExtractAddressFromReverse(name))
	if err != nil {
		return r, true
	}
	here, ok := v.x.addresses(v.origin).here[a]
	if !ok && t.services.Contains(a) {
		return r, false
	}
	if !ok {
		here = a
		if who.homePods {
			if here, ok = t.sees(v.origin).ToHere(a); !ok {
				return r, false
			}
		}
	}
	if here == a {
		return r, true
	}
	there, err := miekg.ReverseAddr(here.String())
	if err != nil {
		return nil, false
	}
	asked := r.Copy()
	asked.Question[0].Name = there
	return asked, true
}

// homeAddresses replaces the addresses of Services and pods in an answer by those at home; false if one has none until
// ctx ends.
func (t *twin) homeAddresses(ctx context.Context, v view, who tenant, m *miekg.Msg) bool {
	for _, section := range [][]miekg.RR{m.Answer, m.Extra} {
		for _, rr := range section {
			a, ok := rr.(*miekg.A)
			if !ok {
				continue
			}
			here, ok := netip.AddrFromSlice(a.A.To4())
			if !ok || here == t.dns {
				continue
			}
			home := here
			switch {
			case t.services.Contains(here):
				home, ok = v.x.homeAddress(ctx, v.origin, here)
			case who.homePods:
				home, ok = t.sees(v.origin).ToHome(here)
			}
			if !ok {
				return false
			}
			a.A = home.AsSlice()
		}
	}
	return true
}

// itself answers queries for the cluster DNS by its name and address, which are the same in every cluster; nil for
// others. Programs name it as their resolver, such as nginx.
func (t *twin) itself(r *miekg.Msg, name string) *miekg.Msg {
	own := serviceName + "." + serviceNamespace + ".svc." + t.domain
	at, err := miekg.ReverseAddr(t.dns.String())
	if !t.dns.IsValid() || err != nil || name != own && name != at {
		return nil
	}
	m := new(miekg.Msg).SetReply(r)
	m.Authoritative = true
	head := func(kind uint16) miekg.RR_Header {
		return miekg.RR_Header{Name: r.Question[0].Name, Rrtype: kind, Class: miekg.ClassINET, Ttl: 5}
	}
	switch kind := r.Question[0].Qtype; {
	case name == own && kind == miekg.TypeA:
		m.Answer = []miekg.RR{&miekg.A{Hdr: head(kind), A: t.dns.AsSlice()}}
	case name == at && kind == miekg.TypePTR:
		m.Answer = []miekg.RR{&miekg.PTR{Hdr: head(kind), Ptr: own}}
	}
	return m
}

// deny answers that the name does not exist.
func deny(w miekg.ResponseWriter, r *miekg.Msg) (int, error) {
	m := new(miekg.Msg)
	m.SetRcode(r, miekg.RcodeNameError)
	m.Authoritative = true
	return miekg.RcodeNameError, w.WriteMsg(m)
}

// view is the cluster as tenants of one origin see it, from a pod in namespace. twin and home are the queried
// namespace, if it has another name here; api: the query is for home's API server.
type view struct {
	x              *index
	origin, domain string
	namespace      string
	twin, home     string
	api            bool
}

// apiAway and apiHome are the names of home's API server: the Service that leads there from a twin, and Service
// kubernetes, its usual name.
func (v *view) apiAway(twin string) string { return homeapi.Service + "." + twin + ".svc." + v.domain }
func (v *view) apiHome() string            { return homeapi.Host + "." + v.domain }

// lead converts a query to names of this cluster; false if the client has no such name.
func (v *view) lead(r *miekg.Msg) (*miekg.Msg, bool) {
	name := miekg.CanonicalName(r.Question[0].Name)
	if name == v.domain {
		return r, true
	}
	if miekg.IsSubDomain(v.apiHome(), name) {
		v.api = true
		asked := r.Copy()
		asked.Question[0].Name = moved(name, v.apiHome(), v.apiAway(v.namespace))
		return asked, true
	}
	ns, kind := namespaceOf(name, v.domain)
	twin, ok := v.x.twinOf(v.origin, ns)
	if !ok || kind == "pod" && twin != ns {
		return nil, false
	}
	if twin == ns {
		return r, true
	}
	v.twin, v.home = twin, ns
	asked := r.Copy()
	asked.Question[0].Name = inNamespace(name, v.domain, ns, twin)
	return asked, true
}

// shows reports whether the client may see all cluster names in the answer: an alias may lead anywhere.
func (v *view) shows(m *miekg.Msg) bool {
	for _, section := range [][]miekg.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			for _, name := range append(targets(rr), &rr.Header().Name) {
				if !v.sees(miekg.CanonicalName(*name)) {
					return false
				}
			}
		}
	}
	return true
}

func (v *view) sees(name string) bool {
	if !miekg.IsSubDomain(v.domain, name) || name == v.domain || name == "ns.dns."+v.domain || name == "hostmaster."+v.domain {
		return true
	}
	ns, _ := namespaceOf(name, v.domain)
	return v.x.originOf(ns) == v.origin
}

// reverse reports whether the answer for an address may be given, and keeps only names in it. For addresses that are
// not public these are names of the cluster and, as shows has checked, the client's own.
func (t *twin) reverse(name string, m *miekg.Msg) bool {
	a, err := netip.ParseAddr(dnsutil.ExtractAddressFromReverse(name))
	public := err == nil && ipam.Public(a, t.networks()...)
	m.Ns, m.Extra = nil, nil
	for _, rr := range m.Answer {
		if p, ok := rr.(*miekg.PTR); !ok || !public && !miekg.IsSubDomain(t.domain, miekg.CanonicalName(p.Ptr)) {
			return false
		}
	}
	return len(m.Answer) > 0
}

// homeward replaces names in an answer by those that the client uses.
func (v *view) homeward(m *miekg.Msg, asked *miekg.Msg, reverse bool) {
	m.Question = asked.Question
	for _, section := range [][]miekg.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			for _, name := range append(targets(rr), &rr.Header().Name) {
				if p, ok := rr.(*miekg.PTR); ok && reverse && name == &p.Ptr {
					ns, _ := namespaceOf(miekg.CanonicalName(*name), v.domain)
					*name = inNamespace(moved(*name, v.apiAway(ns), v.apiHome()), v.domain, ns, v.x.homeOf(ns))
					continue
				}
				*name = v.name(*name, asked.Question[0].Name)
			}
		}
	}
}

func (v *view) name(name, asked string) string {
	if v.api {
		name = moved(name, v.apiAway(v.namespace), v.apiHome())
	}
	if v.twin != "" {
		name = inNamespace(name, v.domain, v.twin, v.home)
	}
	if strings.EqualFold(name, asked) {
		return asked // in the case of the query: some resolvers require it
	}
	return name
}

// targets are the names that a record leads to.
func targets(rr miekg.RR) []*string {
	switch rr := rr.(type) {
	case *miekg.CNAME:
		return []*string{&rr.Target}
	case *miekg.SRV:
		return []*string{&rr.Target}
	case *miekg.PTR:
		return []*string{&rr.Ptr}
	}
	return nil
}

// ofHost reports whether the address is the host's: no pod ever has it.
func ofHost(client netip.Addr) bool {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr() == client {
			return true
		}
	}
	return false
}

// namespaceOf returns the namespace in a name of the cluster: that of a Service ("svc"), of something below one, of a
// pod ("pod"), or the namespace itself.
func namespaceOf(name, domain string) (namespace, kind string) {
	rest, ok := strings.CutSuffix(name, "."+domain)
	if !ok {
		return "", ""
	}
	for _, kind := range []string{"svc", "pod"} {
		if rest, ok := strings.CutSuffix(rest, "."+kind); ok {
			return rest[strings.LastIndexByte(rest, '.')+1:], kind
		}
	}
	return "", ""
}

// inNamespace moves a name from one namespace to another; others stay.
func inNamespace(name, domain, from, to string) string {
	if from == "" || to == "" {
		return name
	}
	return moved(name, from+".svc."+domain, to+".svc."+domain)
}

// moved replaces from by to in a name that is from or below it.
func moved(name, from, to string) string {
	at := len(name) - len(from)
	if at < 0 || !strings.EqualFold(name[at:], from) || at > 0 && (at == 1 || name[at-1] != '.') {
		return name
	}
	return name[:at] + to
}

func (t *twin) known() *index {
	if t.past != nil && !t.index.synced() {
		return t.past
	}
	return t.index
}
