package dns

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/request"
	miekg "github.com/miekg/dns"
)

// published is how long a query is held back until the address of a new pod is
// known. Resolvers wait for five seconds.
const published = 3 * time.Second

// twin is the plugin for pods of other clusters. A home namespace "lab" lives
// here in a twin namespace of another name; for pods of the same origin,
// *.lab.svc.<domain> is asked of the twin and answered under the name asked for.
// A provider's own namespace of the same name is not theirs and stays hidden.
//
//	asked:    web.lab.svc.cluster.local        from 10.42.0.7, a pod in a twin
//	resolved: web.lab-x7f2.svc.cluster.local
//	answered: web.lab.svc.cluster.local  A  10.43.1.2
//
// web alone resolves by the pod's search path in the twin without any of this.
type twin struct {
	suffix string // .svc.<domain>. in lower case
	index  *index
	past   *index // answers until index has seen the API server; may be nil
	next   plugin.Handler
}

func (t *twin) Name() string { return "twin" }

func (t *twin) ServeDNS(ctx context.Context, w miekg.ResponseWriter, r *miekg.Msg) (int, error) {
	state := request.Request{W: w, Req: r}
	client, err := netip.ParseAddr(state.IP())
	if err != nil {
		return plugin.NextOrFailure(t.Name(), t.next, ctx, w, r)
	}
	if state.QType() == miekg.TypePTR {
		if twin, home, ok := t.known().homeOf(client); ok {
			w = &homeward{w, r, t.suffix, twin, home}
		}
		return plugin.NextOrFailure(t.Name(), t.next, ctx, w, r)
	}
	home, ok := namespaceOf(state.Name(), t.suffix)
	if !ok {
		return plugin.NextOrFailure(t.Name(), t.next, ctx, w, r)
	}
	waiting, cancel := context.WithTimeout(ctx, patience(client))
	defer cancel()
	twin, ok := t.known().twinFor(waiting, client, home)
	if !ok {
		return plugin.NextOrFailure(t.Name(), t.next, ctx, w, r)
	}
	asked := r.Copy()
	asked.Question[0].Name = inNamespace(state.Name(), t.suffix, home, twin)
	return plugin.NextOrFailure(t.Name(), t.next, ctx, &homeward{w, r, t.suffix, twin, home}, asked)
}

// patience is zero for clients whose address is the host's: no pod ever has it.
func patience(client netip.Addr) time.Duration {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return 0
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr() == client.Unmap() {
			return 0
		}
	}
	return published
}

// namespaceOf returns the namespace in the name of a Service or of something below one.
func namespaceOf(name, suffix string) (namespace string, ok bool) {
	rest, ok := strings.CutSuffix(name, suffix)
	if !ok {
		return "", false
	}
	dot := strings.LastIndexByte(rest, '.')
	return rest[dot+1:], dot > 0
}

// inNamespace moves a name from one namespace to another; others stay as they are.
func inNamespace(name, suffix, from, to string) string {
	rest, ok := cutSuffixFold(name, "."+from+suffix)
	if !ok || rest == "" {
		return name
	}
	return rest + "." + to + suffix
}

func cutSuffixFold(s, suffix string) (string, bool) {
	at := len(s) - len(suffix)
	if at < 0 || !strings.EqualFold(s[at:], suffix) {
		return s, false
	}
	return s[:at], true
}

// homeward writes an answer with the names that the client knows.
type homeward struct {
	miekg.ResponseWriter
	asked              *miekg.Msg
	suffix, twin, home string
}

func (h *homeward) WriteMsg(m *miekg.Msg) error {
	m = m.Copy() // a cache may keep the other one
	m.Question = h.asked.Question
	for _, section := range [][]miekg.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			h.rename(rr)
		}
	}
	return h.ResponseWriter.WriteMsg(m)
}

func (h *homeward) rename(rr miekg.RR) {
	header := rr.Header()
	header.Name = h.name(header.Name)
	switch rr := rr.(type) {
	case *miekg.CNAME:
		rr.Target = h.name(rr.Target)
	case *miekg.SRV:
		rr.Target = h.name(rr.Target)
	case *miekg.PTR:
		rr.Ptr = h.name(rr.Ptr)
	}
}

func (h *homeward) name(name string) string {
	name = inNamespace(name, h.suffix, h.twin, h.home)
	if q := h.asked.Question[0].Name; strings.EqualFold(name, q) {
		return q // in the letters that were asked for: some resolvers insist
	}
	return name
}

func (t *twin) known() *index {
	if t.past != nil && !t.index.synced() {
		return t.past
	}
	return t.index
}
