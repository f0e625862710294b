package provider

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/offload/provider/tenancy"
)

// Virtual clusters of peers (docs/design/vclusters.md, "Further nodes"). Each is a consumer of its own here, for which
// its host, a peer, sends the requests. Its identity follows from the host's (peer.Hosted). It may borrow as long as
// its host may and lists it, and uses the host's part. Its twins go when its host says that it has ended. One that is
// merely not listed gets nothing more, and what it has stays: its host may be older than it, or unable to read it.

// HostedPrefix is the path before the routes of a host's virtual clusters and their seed. A cluster without these routes
// answers 404, so a request is never taken for one of the host itself.
const HostedPrefix = "/v1/hosted/"

// MaxHosted bounds the virtual clusters of one host that borrow here: each has limits of its own for requests.
const MaxHosted = 20

// HostedList is the body of PUT /v1/hosted: which virtual clusters of the sender may borrow, and which have ended here,
// by deletion or because they may not borrow here any more. The twins of these are deleted, unless they are in both.
type HostedList struct {
	Seeds []string `json:"seeds"`
	Ended []string `json:"ended,omitempty"`
}

// HostedTenants is the answer: the addresses of their pods here, by seed.
type HostedTenants struct {
	Tenants map[string][]netip.Addr `json:"tenants"`
	// Unlisted are those of the sender that have twins here and were in neither list, by identity: the sender says which
	// have ended. Loading: it is not complete yet.
	Unlisted []peer.ID `json:"unlisted,omitempty"`
	Loading  bool      `json:"loading,omitempty"`
}

// standing is what the host of a virtual cluster has said of it in this run; zero is nothing yet.
type standing int

const (
	listed   standing = iota + 1 // it may borrow
	unlisted                     // its host has listed others
	ended
)

// vclusters are the virtual clusters of peers.
type vclusters struct {
	mu       sync.Mutex
	hosts    map[peer.ID]peer.ID // the host of each consumer, "" for others
	standing map[peer.ID]standing
}

// mostRemembered bounds what is remembered of one host's virtual clusters that it does not list any more.
const mostRemembered = 10 * MaxHosted

// forget forgets a host's virtual clusters that are not listed and have no twin, if there are many. mu is held.
func (v *vclusters) forget(host peer.ID, twins map[string]peer.ID) {
	var others []peer.ID
	for id, of := range v.hosts {
		if of == host && v.standing[id] != listed {
			others = append(others, id)
		}
	}
	if len(others) <= mostRemembered {
		return
	}
	used := map[peer.ID]bool{}
	for _, id := range twins {
		used[id] = true
	}
	for _, id := range others {
		if !used[id] {
			delete(v.hosts, id)
			delete(v.standing, id)
		}
	}
}

type hostedKey struct{}

// hostOf is the host of a virtual cluster of a peer, "" for other consumers.
func (p *Provider) hostOf(id peer.ID) peer.ID {
	p.vclusters.mu.Lock()
	defer p.vclusters.mu.Unlock()
	host, cached := p.vclusters.hosts[id]
	if !cached && p.tenancy != nil {
		known := false
		if host, known = tenancy.LabelledHost(p.tenancy, id); known {
			p.vclusters.hosts[id] = host
		}
	}
	return host
}

// vclusterHosts are the hosts of all known virtual clusters of peers, by virtual cluster.
func (p *Provider) vclusterHosts() map[peer.ID]peer.ID {
	for _, id := range p.tenancy.Twins() {
		p.hostOf(id)
	}
	p.vclusters.mu.Lock()
	defer p.vclusters.mu.Unlock()
	out := map[peer.ID]peer.ID{}
	for id, host := range p.vclusters.hosts {
		if host != "" {
			out[id] = host
		}
	}
	return out
}

// standing is what the host of a virtual cluster has said of it; zero for other consumers.
func (p *Provider) standing(id peer.ID) standing {
	p.vclusters.mu.Lock()
	defer p.vclusters.mu.Unlock()
	return p.vclusters.standing[id]
}

// barred reports whether a consumer is a virtual cluster that its host does not list, or has ended.
func (p *Provider) barred(id peer.ID) bool {
	said := p.standing(id)
	return said == unlisted || said == ended
}

// unlisted are the virtual clusters of a host, of all with "", that have twins here and that their host neither lists nor
// has ended, with their twins; known is false before twins are loaded.
func (p *Provider) unlisted(host peer.ID) (out map[peer.ID][]string, known bool) {
	twins, known := p.tenancy.KnownTwins()
	p.vclusters.mu.Lock()
	defer p.vclusters.mu.Unlock()
	out = map[peer.ID][]string{}
	for twin, id := range twins {
		if p.vclusters.standing[id] == unlisted && (host == "" || p.vclusters.hosts[id] == host) {
			out[id] = append(out[id], twin)
		}
	}
	return out, known
}

// Linked adds links of the virtual clusters of peers with pods here: their hosts' under their own IDs.
func (p *Provider) Linked(links []peer.Link) []peer.Link {
	for id, host := range p.vclusterHosts() {
		if i := slices.IndexFunc(links, func(l peer.Link) bool { return l.ID == host }); i >= 0 {
			l := links[i]
			l.ID = id
			links = append(slices.Clip(links), l)
		}
	}
	return links
}

// list answers PUT /v1/hosted.
func (p *Provider) list(w http.ResponseWriter, r *http.Request) {
	host, ok := p.cfg.PeerID(r)
	if _, linked := p.link(host); !ok || !linked {
		rpc.Fail(w, http.StatusUnauthorized, &rpc.Error{Code: "unknown-peer", Message: "only peers are served", Cure: "peer with this cluster first"})
		return
	}
	var all HostedList
	if !rpc.Read(w, r, &all) {
		return
	}
	if len(all.Seeds) > MaxHosted {
		rpc.Fail(w, http.StatusForbidden, &rpc.Error{Code: "too-many-hosted", Message: "more virtual clusters than may borrow here", Cure: "give at most 20 of them this target: rivulet vcluster set NAME --targets none"})
		return
	}
	hosts := p.vclusterHosts()
	out := HostedTenants{Tenants: map[string][]netip.Addr{}}
	now := map[peer.ID]standing{}
	for _, seed := range all.Ended {
		now[peer.Hosted(host, seed)] = ended
	}
	for _, seed := range all.Seeds {
		id := peer.Hosted(host, seed)
		now[id] = listed
		if p.cfg.Tenants != nil {
			out.Tenants[seed] = p.cfg.Tenants(id)
		}
	}
	p.vclusters.mu.Lock()
	before := maps.Clone(p.vclusters.standing)
	for id, of := range hosts {
		if said := p.vclusters.standing[id]; of == host && (said != ended || now[id] == listed) {
			p.vclusters.standing[id] = cmp.Or(now[id], unlisted)
		}
	}
	for id, said := range now {
		if said == listed {
			p.vclusters.hosts[id], p.vclusters.standing[id] = host, listed
		}
	}
	changed := !maps.Equal(before, p.vclusters.standing)
	if len(p.vclusters.standing) > len(before) {
		p.vclusters.forget(host, p.tenancy.Twins())
	}
	p.vclusters.mu.Unlock()
	for id, said := range now {
		if said == listed {
			p.tenants.Received(id)
		}
	}
	if changed {
		p.reshared.Notify()
	}
	others, known := p.unlisted(host)
	out.Unlisted, out.Loading = slices.Sorted(maps.Keys(others)), !known
	rpc.Write(w, http.StatusOK, out)
}

// serveHosted answers the routes of consumers for a host's virtual cluster that it has listed.
func (p *Provider) serveHosted(routes http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, ok := p.cfg.PeerID(r)
		seed, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, HostedPrefix), "/")
		id := peer.Hosted(host, seed)
		said := p.standing(id)
		if ok && said == 0 { // the host repeats its list after a start of this cluster
			rpc.Fail(w, http.StatusServiceUnavailable, &rpc.Error{Code: "hosted-pending", Message: "your host has not listed your virtual cluster yet", Cure: "try again in a moment"})
			return
		}
		if !ok || said != listed || r.URL.RawPath != "" {
			rpc.Fail(w, http.StatusForbidden, &rpc.Error{Code: "not-hosted", Message: "your host does not let your virtual cluster borrow here", Cure: "rivulet vcluster set NAME --targets PEER"})
			return
		}
		inner := r.WithContext(context.WithValue(r.Context(), hostedKey{}, id))
		url := *r.URL
		url.Path = "/" + path
		inner.URL = &url
		routes.ServeHTTP(w, inner)
	})
}
