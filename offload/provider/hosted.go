package provider

import (
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
// its host may and lists it, and uses the host's part.

// HostedPrefix is the path before the routes of a host's virtual clusters and their seed. A cluster without these routes
// answers 404, so a request is never taken for one of the host itself.
const HostedPrefix = "/v1/hosted/"

// MaxHosted bounds the virtual clusters of one host that borrow here: each has limits of its own for requests.
const MaxHosted = 20

// HostedList is the body of PUT /v1/hosted: which virtual clusters of the sender may borrow. The twins of its others are
// deleted.
type HostedList struct {
	Seeds []string `json:"seeds"`
}

// HostedTenants is the answer: the addresses of their pods here, by seed.
type HostedTenants struct {
	Tenants map[string][]netip.Addr `json:"tenants"`
}

// vclusters are the virtual clusters of peers.
type vclusters struct {
	mu     sync.Mutex
	hosts  map[peer.ID]peer.ID // the host of each consumer, "" for others
	listed map[peer.ID]bool    // by virtual cluster; without a list of this run there is no entry
}

// mostRemembered bounds what is remembered of one host's virtual clusters that it does not list any more.
const mostRemembered = 10 * MaxHosted

// forget forgets a host's virtual clusters that are not listed and have no twin, if there are many. mu is held.
func (v *vclusters) forget(host peer.ID, twins map[string]peer.ID) {
	var ended []peer.ID
	for id, of := range v.hosts {
		if of == host && !v.listed[id] {
			ended = append(ended, id)
		}
	}
	if len(ended) <= mostRemembered {
		return
	}
	used := map[peer.ID]bool{}
	for _, id := range twins {
		used[id] = true
	}
	for _, id := range ended {
		if !used[id] {
			delete(v.hosts, id)
			delete(v.listed, id)
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

// ended reports whether its host has listed its virtual clusters without it.
func (p *Provider) ended(id peer.ID) bool {
	p.vclusters.mu.Lock()
	defer p.vclusters.mu.Unlock()
	listed, known := p.vclusters.listed[id]
	return known && !listed
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
	out := HostedTenants{map[string][]netip.Addr{}}
	now := map[peer.ID]bool{}
	for _, seed := range all.Seeds {
		id := peer.Hosted(host, seed)
		now[id] = true
		if p.cfg.Tenants != nil {
			out.Tenants[seed] = p.cfg.Tenants(id)
		}
	}
	p.vclusters.mu.Lock()
	before := maps.Clone(p.vclusters.listed)
	for id, of := range hosts {
		if of == host {
			p.vclusters.listed[id] = now[id]
		}
	}
	for id := range now {
		p.vclusters.hosts[id], p.vclusters.listed[id] = host, true
	}
	changed := !maps.Equal(before, p.vclusters.listed)
	if len(p.vclusters.listed) > len(before) {
		p.vclusters.forget(host, p.tenancy.Twins())
	}
	p.vclusters.mu.Unlock()
	for id := range now {
		p.tenants.Received(id)
	}
	if changed {
		p.reshared.Notify()
	}
	rpc.Write(w, http.StatusOK, out)
}

// serveHosted answers the routes of consumers for a host's virtual cluster that it has listed.
func (p *Provider) serveHosted(routes http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, ok := p.cfg.PeerID(r)
		seed, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, HostedPrefix), "/")
		id := peer.Hosted(host, seed)
		p.vclusters.mu.Lock()
		listed, told := p.vclusters.listed[id]
		p.vclusters.mu.Unlock()
		if ok && !told { // the host repeats its list after a start of this cluster
			rpc.Fail(w, http.StatusServiceUnavailable, &rpc.Error{Code: "hosted-pending", Message: "your host has not listed your virtual cluster yet", Cure: "try again in a moment"})
			return
		}
		if !ok || !listed || r.URL.RawPath != "" {
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
