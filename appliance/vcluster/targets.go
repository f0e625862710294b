package vcluster

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"path"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/httpstream"

	"rivulet/appliance/engine/controlplane"
	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/offload/homeapi"
	"rivulet/offload/provider"
	peertarget "rivulet/offload/target/peer"
)

// A virtual cluster with targets is a consumer of peers of its host, too. The host sends its requests, and tells each peer
// which of its virtual clusters may borrow there.

const (
	// AllTargets allows all peers.
	AllTargets = "all"
	maxTargets = 20
	// listEvery is the interval in which peers with targets are told, and report where the pods are.
	listEvery, listLimit = 2 * time.Second, 5 * time.Second
	// retryEvery is the interval in which a peer that has refused is told again: it may have been starting.
	retryEvery = time.Minute
	// mostAway bounds the addresses of a virtual cluster's pods at one peer.
	mostAway = 1000
)

// targets is the part of a Manager about them; its mu guards it.
type targets struct {
	k       *Manager
	fabric  peertarget.Fabric
	control netip.AddrPort
	away    map[peer.ID]map[peer.ID][]netip.Addr // by virtual cluster and peer, in the host's view
}

func checkTargets(all []string) error {
	if len(all) > maxTargets || len(all) > 1 && slices.Contains(all, AllTargets) || slices.Contains(all, "") {
		return fmt.Errorf("%.60q are no targets; name at most %d peers, or all, or none", strings.Join(all, ","), maxTargets)
	}
	return nil
}

// allows reports whether its pods may run at the peer. Names are what this cluster calls its peers; an ID is a name, too.
func (r record) allows(host peer.ID, l peer.Link) bool {
	return r.targetable(host) && !l.NoBorrow && !r.Deleting && slices.ContainsFunc(r.Targets, func(t string) bool { return t == AllTargets || t == l.Name || t == string(l.ID) })
}

// known reports whether each of its targets is one peering, and no two have its name. Otherwise a peer that is not allowed
// may be the target under a name that it had, or has again.
func (r record) known(all []peer.Link) bool {
	for _, t := range r.Targets {
		n := 0
		for _, l := range all {
			if t == l.Name || t == string(l.ID) {
				n++
			}
		}
		if t != AllTargets && n != 1 {
			return false
		}
	}
	return true
}

// peerings are all peers, with a tunnel or without.
func peerings(f peertarget.Fabric) (all []peer.Link) {
	links, unlinked := f.Peerings()
	all = slices.Clone(links)
	for _, u := range unlinked {
		all = append(all, u.Link)
	}
	return all
}

// targetable reports whether its identity follows from this device's. One of an earlier version, or of a backup of another
// device, has none that peers accept.
func (r record) targetable(host peer.ID) bool { return r.ID == peer.Hosted(host, r.Seed) }

// Away are the addresses of a virtual cluster's pods at peers, in the host's view, sorted.
func (t *targets) Away(id peer.ID) (out []netip.Addr) {
	k := t.k
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, at := range k.targets.away[id] {
		out = append(out, at...)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// FollowTargets serves the targets of virtual clusters until ctx ends. control and router lead pods at peers to API servers here.
func (t *targets) FollowTargets(ctx context.Context, f peertarget.Fabric, control netip.AddrPort, router *homeapi.Router) {
	k := t.k
	k.mu.Lock()
	k.targets.fabric, k.targets.control = f, control
	k.mu.Unlock()
	signal := new(changes.Signal)
	changed, stop := signal.Changed()
	defer stop()
	signal.Follow(ctx, f.Changed, k.changed.Changed)
	ask, unheard := time.NewTicker(retryEvery), map[peer.ID]bool{} // that were asked, and have only refused
	defer ask.Stop()
	gates, told := map[peer.ID]context.CancelFunc{}, map[peer.ID]bool{}
	var serving sync.WaitGroup
	defer serving.Wait()
	for {
		seeds, apis := map[peer.ID]map[string]peer.ID{}, map[peer.ID]netip.AddrPort{}
		links := f.Links()
		k.mu.Lock()
		records := make([]record, 0, len(k.all))
		at := map[peer.ID]netip.AddrPort{}
		for _, c := range k.all {
			r := c.record()
			records, at[r.ID] = append(records, r), c.address()
		}
		slices.SortFunc(records, func(a, b record) int { return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.Name, b.Name)) })
		for _, r := range records {
			for _, l := range links {
				if r.allows(k.cfg.ID, l) && len(seeds[l.ID]) < provider.MaxHosted {
					if seeds[l.ID] == nil {
						seeds[l.ID] = map[string]peer.ID{}
					}
					seeds[l.ID][r.Seed], apis[r.ID] = r.ID, at[r.ID]
				}
			}
		}
		k.mu.Unlock()
		for id, at := range apis {
			if gates[id] == nil {
				serve, end := context.WithCancel(ctx)
				gates[id] = end
				serving.Go(func() {
					router.Serve(serve, &homeapi.Gate{API: at.String(), Names: homeapi.Names, Log: k.cfg.Log, Ours: func(a netip.Addr) bool { return slices.Contains(k.Away(id), a) }})
				})
			}
		}
		for id, end := range gates {
			if _, still := apis[id]; !still {
				end()
				delete(gates, id)
			}
		}
		var calls sync.WaitGroup
		var mu sync.Mutex
		for _, l := range links {
			if l.State == peer.Lost && !told[l.ID] {
				delete(told, l.ID)
			}
		}
		next, before := map[peer.ID]map[peer.ID][]netip.Addr{}, maps.Clone(told)
		for _, l := range links {
			// A peer is told once after a start, and after it was lost, too: what ended before may still be there.
			if some, asked := before[l.ID]; len(seeds[l.ID]) == 0 && (asked && !some || !asked && l.State != peer.Connected) {
				continue
			}
			calls.Go(func() {
				at, again, err := list(ctx, k, f, l, seeds[l.ID])
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					k.cfg.Log.Debug("a peer is not told which virtual clusters may borrow there, or have ended", "peer", l.Name, "err", err)
				}
				if answered := (*rpc.Error)(nil); err == nil || again {
					told[l.ID] = again || len(seeds[l.ID]) > 0
				} else if errors.As(err, &answered) && !before[l.ID] { // of an earlier version, or it lends nothing
					told[l.ID], unheard[l.ID] = false, true
				}
				for _, id := range seeds[l.ID] {
					if next[id] == nil {
						next[id] = map[peer.ID][]netip.Addr{}
					}
					if err != nil { // a lost peer's pods may still run
						next[id][l.ID] = k.awayAt(id, l.ID)
					} else {
						next[id][l.ID] = at[id]
					}
				}
			})
		}
		calls.Wait()
		k.mu.Lock()
		moved := !reflect.DeepEqual(k.targets.away, next)
		k.targets.away = next
		k.mu.Unlock()
		if moved {
			k.changed.Notify()
		}
		var again <-chan time.Time
		if len(seeds) > 0 || slices.ContainsFunc(links, func(l peer.Link) bool { return told[l.ID] }) {
			again = time.After(listEvery)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-again:
		case <-ask.C: // it may have been starting
			for id := range unheard {
				delete(told, id)
			}
			clear(unheard)
		}
	}
}

func (t *targets) awayAt(id, at peer.ID) []netip.Addr {
	k := t.k
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.targets.away[id][at]
}

// list tells a peer which virtual clusters may borrow, and of those that it asks about which have ended. It returns the
// addresses of their pods there in this cluster's view; only addresses of the peer's own pods count. again: the peer has
// not loaded yet which others it has, or was not told of one that has ended.
func list(ctx context.Context, k *Manager, f peertarget.Fabric, l peer.Link, seeds map[string]peer.ID) (at map[peer.ID][]netip.Addr, again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	client, base, err := f.Client(l.ID)
	if err != nil {
		return nil, false, err
	}
	all, got := provider.HostedList{Seeds: []string{}}, provider.HostedTenants{}
	for seed := range seeds {
		all.Seeds = append(all.Seeds, seed)
	}
	slices.Sort(all.Seeds)
	if err = rpc.Call(ctx, client, http.MethodPut, base+"/v1/hosted", all, &got); err != nil {
		return nil, false, err
	}
	if all.Ended = endedAt(k, peerings(f), l, got.Unlisted); len(all.Ended) > 0 {
		if err = rpc.Call(ctx, client, http.MethodPut, base+"/v1/hosted", all, nil); err != nil {
			return nil, true, err
		}
	}
	out := map[peer.ID][]netip.Addr{}
	for seed, id := range seeds {
		for _, a := range got.Tenants[seed] {
			if here, ok := peer.Translate(a, l.PeerCIDR, l.PeerMappedCIDR); ok && here != l.Addr.Addr() && len(out[id]) < mostAway {
				out[id] = append(out[id], here)
			}
		}
	}
	return out, got.Loading, nil
}

// further are its targets now, and those of the known ones that have ended for it.
func further(c *cluster, f peertarget.Fabric, known map[peer.ID]bool) controlplane.Further {
	c.k.mu.Lock()
	out := controlplane.Further{Control: c.k.targets.control}
	c.k.mu.Unlock()
	links, unlinked := f.Peerings()
	for _, u := range unlinked {
		if c.record().allows(c.k.cfg.ID, u.Link) {
			out.Unlinked = append(out.Unlinked, peer.Unlinked{Link: peer.Link{ID: u.ID, Name: u.Name, State: u.State}, Why: u.Why})
		}
	}
	for _, l := range links {
		if c.record().allows(c.k.cfg.ID, l) {
			out.Links = append(out.Links, peer.Link{ID: l.ID, Name: l.Name, Addr: l.Addr, PeerCIDR: l.PeerCIDR, PeerMappedCIDR: l.PeerMappedCIDR, LocalMappedCIDR: l.LocalMappedCIDR, State: l.State})
		}
	}
	slices.SortFunc(out.Links, func(a, b peer.Link) int { return strings.Compare(string(a.ID), string(b.ID)) })
	slices.SortFunc(out.Unlinked, func(a, b peer.Unlinked) int { return strings.Compare(string(a.ID), string(b.ID)) })
	own, over := c.record(), map[peer.ID]bool{} // by peer, whether it has ended
	for _, id := range f.Departed() {
		over[id] = true
	}
	all := peerings(f)
	for _, l := range all {
		over[l.ID] = !own.allows(c.k.cfg.ID, l) && own.known(all)
	}
	for id := range known {
		if here, ok := over[id]; here || !ok && len(own.Targets) == 0 {
			out.Ended = append(out.Ended, id)
		}
	}
	slices.Sort(out.Ended)
	return out
}

// mostKnown bounds the targets of which a virtual cluster says that it knows them.
const mostKnown = 1000

// serveFurther streams them, once they are known here.
func serveFurther(c *cluster, w http.ResponseWriter, r *http.Request) {
	c.k.mu.Lock()
	f := c.k.targets.fabric
	c.k.mu.Unlock()
	if f == nil {
		http.Error(w, "the peers are not known yet; try again in a moment", http.StatusServiceUnavailable)
		return
	}
	signal := new(changes.Signal)
	changed, stop := signal.Changed()
	defer stop()
	signal.Follow(r.Context(), c.k.changed.Changed, f.Changed)
	known := map[peer.ID]bool{} // the virtual cluster may have a node for them
	for _, id := range r.URL.Query()[controlplane.Known] {
		if len(known) < mostKnown {
			known[peer.ID(id)] = true
		}
	}
	for last := (controlplane.Further{}); ; {
		now := further(c, f, known)
		for _, l := range now.Links {
			known[l.ID] = true
		}
		for _, u := range now.Unlinked {
			known[u.ID] = true
		}
		if !last.Control.IsValid() || !reflect.DeepEqual(last, now) {
			last = now
			if json.NewEncoder(w).Encode(now) != nil || http.NewResponseController(w).Flush() != nil {
				return
			}
		}
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
	}
}

// atTarget are the routes of a peer that a virtual cluster may use there.
var atTarget = []string{"/v1/offer", "/v1/namespaces", "/v1/namespaces/", "/v1/volumes/", "/k8s/"}

// toTarget sends a request of a virtual cluster to one of its targets.
func toTarget(c *cluster, w http.ResponseWriter, r *http.Request) {
	id, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, controlplane.AtPath), "/")
	at := "/" + rest
	own := c.record()
	c.k.mu.Lock()
	f := c.k.targets.fabric
	c.k.mu.Unlock()
	refuse := func(why string) {
		rpc.Fail(w, http.StatusForbidden, &rpc.Error{Code: "not-a-target", Message: why, Cure: "the owner of its device can allow it: rivulet vcluster set " + own.Name + " --targets PEER"})
	}
	open := slices.ContainsFunc(atTarget, func(p string) bool { return at == p || strings.HasSuffix(p, "/") && strings.HasPrefix(at, p) })
	if f == nil || !open || r.URL.RawPath != "" || path.Clean(at) != strings.TrimSuffix(at, "/") {
		refuse("the request is none that a target answers")
		return
	}
	l, ok := f.Link(peer.ID(id))
	if !ok || !own.allows(c.k.cfg.ID, l) {
		refuse("pods of this virtual cluster may not run there")
		return
	}
	transport, base, err := transportTo(f, l.ID, httpstream.IsUpgradeRequest(r))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	// The request ends when the target is taken back.
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	changed, stop := c.k.changed.Changed()
	defer stop()
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-changed:
				if !c.record().allows(c.k.cfg.ID, l) {
					cancel()
				}
			}
		}
	}()
	to, _ := url.Parse(base) // made from an address
	(&httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1, ErrorLog: slog.NewLogLogger(c.k.cfg.Log.Handler(), slog.LevelDebug),
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = to.Scheme, to.Host, to.Host
			p.Out.URL.Path, p.Out.URL.RawPath = provider.HostedPrefix+own.Seed+at, ""
		},
		ModifyResponse: rpc.EndBody(r),
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, fmt.Sprintf("peer %s does not answer: %v; see: rivulet peers", l.Name, err), http.StatusBadGateway)
		},
	}).ServeHTTP(w, r.WithContext(ctx))
}

// transportTo is how a peer is reached: sessions need HTTP/1.1.
func transportTo(f peertarget.Fabric, id peer.ID, session bool) (http.RoundTripper, string, error) {
	client, base, err := f.Client(id)
	if err != nil || !session {
		if err != nil {
			return nil, "", err
		}
		return client.Transport, base, nil
	}
	cert, key, server, name, err := f.TLS(id)
	if err != nil {
		return nil, "", err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, "", err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(server)
	return &http.Transport{DialContext: f.Dial, DisableKeepAlives: true, TLSHandshakeTimeout: toPodTime, TLSClientConfig: &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, RootCAs: roots, ServerName: name, NextProtos: []string{"http/1.1"},
	}}, base, nil
}
