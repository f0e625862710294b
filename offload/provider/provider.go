// Package provider lends capacity of one cluster to others. It wires tenancy, which grants, and tenants, which removes
// what consumers leave behind. It reads who is a peer, who may borrow, and the share. It alone decides which clusters
// may no longer borrow, and has their twins deleted. Restart: it checks these clusters once; running pods are not
// touched. Failure: in Problems.
package provider

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/offload/offer"
	"rivulet/offload/parts"
	"rivulet/offload/provider/tenancy"
	"rivulet/offload/provider/tenants"
)

// Peers is the part of the fabric that a Provider uses.
type Peers interface {
	peer.Following
	// Peerings are all peers at one moment: those of Links, and those without a tunnel.
	Peerings() ([]peer.Link, []peer.Unlinked)
	// Handle serves a route to peers.
	Handle(pattern string, h http.Handler)
}

// Hosted are consumers on this device with connections of their own: virtual clusters.
type Hosted interface {
	// Consumers are the names of all, connected or not.
	Consumers() map[peer.ID]string
	// Identities are the IDs of all; false while some are not known.
	Identities() (map[peer.ID]bool, bool)
	// Members are the bounds of single ones: CPU, memory, pods, and the storage of claims.
	Members() map[peer.ID]offer.Member
	// API is the address on this device of one's API server, for its pods; not valid for others.
	API(id peer.ID) netip.AddrPort
	// Away are the addresses of one's pods at further targets.
	Away(id peer.ID) []netip.Addr
	// Changed reports changes of Consumers, Members, API and Away, like that of peer.Following.
	Changed() (<-chan struct{}, func())
	// Handle serves a route to them.
	Handle(pattern string, h http.Handler)
	// PeerID identifies the one that sent a request, by its connection; false for others.
	PeerID(r *http.Request) (peer.ID, bool)
}

// Config are the dependencies of a Provider: Peers, Local, PeerID and Log must be set; fields about peers are filled
// in.
type Config struct {
	Peers Peers
	// Hosted are consumers in addition to peers; nil are none.
	Hosted Hosted
	tenancy.Config
}

// Provider is the lender's side of offloading.
type Provider struct {
	*parts.Parts
	cfg       Config
	tenancy   *tenancy.Tenancy
	tenants   *tenants.Tracker
	reshared  changes.Signal // the share has changed
	vclusters vclusters
}

// New makes a Provider and adds its routes to the fabric; Run starts it.
func New(cfg Config) (*Provider, error) {
	client, err := kubernetes.NewForConfig(cfg.Local)
	if err != nil {
		return nil, err
	}
	p := &Provider{Parts: parts.New(cfg.Log), cfg: cfg, vclusters: vclusters{hosts: map[peer.ID]peer.ID{}, standing: map[peer.ID]standing{}}}
	served := cfg.Config
	served.PeerID = p.sender
	p.tenants = tenants.New(tenants.Config{Client: client, IsPeer: p.isPeer, Stays: p.stays, PeerID: p.sender, Log: cfg.Log.With("part", "tenants")})
	served.Log = cfg.Log.With("part", "tenancy")
	served.PeerName, served.Neighbours, served.Lends = p.peerName, p.neighbours, p.Lends
	served.HostOf = p.hostOf
	p.tenancy, err = tenancy.New(served)
	if err != nil {
		return nil, err
	}
	hosted := http.NewServeMux()
	cfg.Peers.Handle("PUT /v1/hosted", http.HandlerFunc(p.list))
	cfg.Peers.Handle(HostedPrefix, p.serveHosted(hosted))
	for pattern, handler := range p.tenancy.Routes() {
		hosted.Handle(pattern, p.tenants.Observe(handler))
		cfg.Peers.Handle(pattern, p.tenants.Observe(handler))
		if cfg.Hosted != nil {
			cfg.Hosted.Handle(pattern, p.tenants.Observe(handler))
		}
	}
	return p, nil
}

// Run serves consumers until ctx ends; it may be called once.
func (p *Provider) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { p.Keep(ctx, "tenancy", p.tenancy.Run) })
	wg.Go(func() { p.Keep(ctx, "tenants", p.followTenants) })
	wg.Go(func() { p.Keep(ctx, "silent tenants", p.tenants.Run) })
	wg.Go(func() { p.followBorrowers(ctx) })
	wg.Wait()
	return ctx.Err()
}

// Problems are the parts that do not run, with the reason. They are retried.
func (p *Provider) Problems() map[string]string {
	out := p.Parts.Problems()
	if err := p.tenancy.Problem(); err != nil {
		out["bounds of consumers"] = err.Error()
	}
	if why := p.tenancy.Refuses(); why != "" {
		out["pods of consumers"] = why
	}
	others, _ := p.unlisted("")
	for id, twins := range others {
		out["virtual cluster "+id.Short()] = fmt.Sprintf("%s, its host, does not list it, and has not said that it has ended: it may be restored from before it. Its namespaces here (%s) get nothing more and are kept; if it is gone: rivulet tenants remove %s",
			cmp.Or(p.peerName(id), p.hostOf(id).Short()), strings.Join(slices.Sorted(slices.Values(twins)), ", "), id.Short())
	}
	return out
}

// Twins is the tenancy, with the namespaces of consumers.
func (p *Provider) Twins() *tenancy.Tenancy { return p.tenancy }

// ShareChanged sends offers with changed Config.Shares at once.
func (p *Provider) ShareChanged() {
	p.tenancy.ShareChanged()
	p.reshared.Notify()
}

// TenantsChanged sends offers with changed Config.Tenants at once.
func (p *Provider) TenantsChanged() { p.tenancy.ShareChanged() }

// WithheldChanged applies changed Config.Withheld at once.
func (p *Provider) WithheldChanged() { p.tenancy.WithheldChanged() }

// Consumer is one cluster that borrows from this one, or has twins here.
type Consumer struct {
	tenancy.Consumer
	// Peer is false for a cluster that is not a peer and has twins here.
	Peer bool `json:"peer"`
	// VCluster: it is a virtual cluster of this device. Course is its course, as NAMESPACE/NAME; empty: none.
	VCluster bool   `json:"vcluster,omitempty"`
	Course   string `json:"course,omitempty"`
	// Unlisted: it is a virtual cluster that its host, a peer, neither lists nor has ended. It gets nothing more.
	Unlisted bool `json:"unlisted,omitempty"`
	// Silent is the time since its last request; Left, after how much more silence its twins are deleted. Both are zero
	// while it sends requests.
	Silent time.Duration `json:"silent,omitempty"`
	Left   time.Duration `json:"left,omitempty"`
}

// Consumers are the clusters that borrow from this one, or have twins here, by ID; lent is what all may use together.
func (p *Provider) Consumers() (out []Consumer, lent corev1.ResourceList) {
	all, lent := p.tenancy.Status()
	courses := p.courses()
	for _, c := range all {
		silence := p.tenants.Silence(c.ID)
		one := Consumer{Consumer: c, Peer: p.isPeer(c.ID), Unlisted: p.standing(c.ID) == unlisted, Silent: silence.For, Left: silence.Left}
		one.Course, one.VCluster = courses[c.ID]
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b Consumer) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return out, lent
}

// courses are those of the virtual clusters of this device, empty for one without a course.
func (p *Provider) courses() map[peer.ID]string {
	out := map[peer.ID]string{}
	if p.cfg.Hosted == nil {
		return out
	}
	members := p.cfg.Hosted.Members()
	for id := range p.hosted() {
		out[id] = ""
		if groups := members[id].Groups; len(groups) > 0 { // its course first, then the parents of that
			out[id] = groups[0].Name
		}
	}
	return out
}

// account is the peer that accounts for a consumer: the host of a virtual cluster, or itself.
func (p *Provider) account(id peer.ID) peer.ID { return cmp.Or(p.hostOf(id), id) }

func (p *Provider) link(id peer.ID) (peer.Link, bool) {
	links := p.cfg.Peers.Links()
	i := slices.IndexFunc(links, func(l peer.Link) bool { return l.ID == id })
	if i < 0 {
		return peer.Link{}, false
	}
	return links[i], true
}

// hosted are the names of consumers on this device.
func (p *Provider) hosted() map[peer.ID]string {
	if p.cfg.Hosted == nil {
		return nil
	}
	return p.cfg.Hosted.Consumers()
}

func (p *Provider) isHosted(id peer.ID) bool { _, ok := p.hosted()[id]; return ok }

// stays reports whether the silence of a consumer ends nothing: it is on this device, or it is no peer and may be on this
// device, since not all of these can be read.
func (p *Provider) stays(id peer.ID) bool {
	if p.cfg.Hosted == nil {
		return false
	}
	have, known := p.cfg.Hosted.Identities()
	return have[id] || !known && !p.isPeer(id)
}

// sender identifies the sender of a request: by a connection on this device, or by its certificate.
func (p *Provider) sender(r *http.Request) (peer.ID, bool) {
	if id, ok := r.Context().Value(hostedKey{}).(peer.ID); ok {
		return id, true
	}
	if p.cfg.Hosted != nil {
		if id, ok := p.cfg.Hosted.PeerID(r); ok {
			return id, true
		}
	}
	return p.cfg.PeerID(r)
}

func (p *Provider) peerName(id peer.ID) string {
	l, _ := p.link(p.account(id))
	return cmp.Or(l.Name, p.hosted()[id])
}

// isPeer reports whether a consumer is a peer, with a tunnel or not, or on this device, or at a peer.
func (p *Provider) isPeer(id peer.ID) bool {
	links, unlinked := p.cfg.Peers.Peerings()
	at := p.account(id)
	return slices.ContainsFunc(links, func(l peer.Link) bool { return l.ID == at }) ||
		slices.ContainsFunc(unlinked, func(u peer.Unlinked) bool { return u.ID == at }) || p.isHosted(id)
}

// followed reports changes of peers, of hosted consumers and of the share, until ctx ends.
func (p *Provider) followed(ctx context.Context) (<-chan struct{}, func()) {
	signal := new(changes.Signal)
	changed, stop := signal.Changed()
	signal.Follow(ctx, p.cfg.Peers.Changed, p.reshared.Changed)
	if p.cfg.Hosted != nil {
		signal.Follow(ctx, p.cfg.Hosted.Changed)
	}
	return changed, stop
}

func (p *Provider) neighbours() map[peer.ID]netip.Prefix {
	out := map[peer.ID]netip.Prefix{}
	for _, l := range p.cfg.Peers.Links() {
		out[l.ID] = l.PeerMappedCIDR
	}
	return out
}

// A peering has two directions. If one is switched off, the other cluster counts as no peer in that direction. The end
// of a peering ends both.

// Lends reports whether the cluster may borrow from this one. A virtual cluster may until it is deleted, even with a
// share of nothing: no setting ends what it has.
func (p *Provider) Lends(id peer.ID) bool {
	l, linked := p.link(p.account(id))
	return p.isHosted(id) || p.lendsTo(l) && !p.barred(id) && (linked || p.hostOf(id) == "")
}

// lendsTo is also false while the share of peers is nothing, as if the direction were switched off for each of them.
func (p *Provider) lendsTo(l peer.Link) bool {
	return !l.NoLend && (p.cfg.Shares == nil || !p.cfg.Shares().Peers.None())
}

// borrowers are the clusters that may borrow from this one.
func (p *Provider) borrowers() map[peer.ID]bool {
	out := map[peer.ID]bool{}
	for _, l := range p.cfg.Peers.Links() {
		out[l.ID] = p.lendsTo(l)
	}
	for id := range p.hosted() {
		out[id] = true
	}
	for id, host := range p.vclusterHosts() {
		if may, linked := out[host]; linked && !p.barred(id) {
			out[id] = may
		}
	}
	return out
}

// followBorrowers ends requests of clusters that may no longer borrow, and updates the bounds of the others.
func (p *Provider) followBorrowers(ctx context.Context) {
	changed, stop := p.followed(ctx)
	defer stop()
	for {
		if p.cfg.Hosted != nil {
			p.tenancy.Host(p.cfg.Hosted.Members())
		}
		p.tenancy.Only(p.borrowers())
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// notice is the time between the withdrawal of the offer to a peer and the deletion of its twins: its Services leave
// the pods out, and their owners make others.
const notice = 5 * time.Second

// evicted are the clusters whose twins have to be deleted, and after what notice. For each it is certain that it may no
// longer borrow; that it is missing from a list is not enough.
func (p *Provider) evicted() map[peer.ID]time.Duration {
	out := map[peer.ID]time.Duration{}
	for _, id := range p.cfg.Peers.Departed() {
		out[id] = 0
	}
	for _, l := range p.cfg.Peers.Links() {
		if out[l.ID] = notice; p.lendsTo(l) {
			delete(out, l.ID)
		}
	}
	for id, host := range p.vclusterHosts() {
		if wait, evicted := out[host]; evicted {
			out[id] = wait
		} else if p.standing(id) == ended {
			out[id] = notice
		}
	}
	return out
}

// retry is the pause before twins that still exist are checked again.
const retry = 5 * time.Second

// stillness is how long after its last twin is gone a cluster may still get one: earlier requests have been answered by
// then.
const stillness = 10 * time.Second

// shorter is the shorter of two pauses; 0 is none.
func shorter(a, b time.Duration) time.Duration {
	if a == 0 {
		return b
	}
	return min(a, b)
}

// followTenants deletes the twins of clusters that may no longer borrow. After a start it checks all of them once.
func (p *Provider) followTenants(ctx context.Context) error {
	changed, stop := p.followed(ctx)
	defer stop()
	clean := map[peer.ID]time.Time{} // since when nothing of it was found here
	told := map[peer.ID]time.Time{}  // since when the offer has been withdrawn
	for {
		again := time.Duration(0)
		ids := p.evicted()
		for id := range told {
			if _, ok := ids[id]; !ok {
				delete(clean, id)
				delete(told, id)
			}
		}
		var errs []error
		for id, notice := range ids {
			if told[id].IsZero() {
				told[id] = time.Now()
			}
			if wait := notice - time.Since(told[id]); wait > 0 {
				again = shorter(again, wait)
				continue
			}
			if since, ok := clean[id]; ok && time.Since(since) >= stillness {
				continue
			}
			again = shorter(again, retry)
			left, err := p.tenancy.Evict(ctx, id)
			errs = append(errs, err)
			if _, seen := clean[id]; left > 0 || err != nil {
				delete(clean, id)
			} else if !seen {
				clean[id] = time.Now()
			}
		}
		p.Report("twins of former peers", errors.Join(errs...))
		var timer <-chan time.Time
		if again > 0 {
			timer = time.After(again)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-timer:
		}
	}
}
