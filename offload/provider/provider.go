// Package provider lends room of one cluster to others. It wires the parts of the lender's side: tenancy, which grants,
// and tenants, which looks after what consumers leave behind. It reads who is a peer, who may borrow and the share. It
// alone decides whose time here is over, and has their twins deleted. Restart: it checks once all that are known to be
// over; nothing that runs is touched. Failure: in Problems.
package provider

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"

	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/offload/offer"
	"rivulet/offload/parts"
	"rivulet/offload/provider/tenancy"
	"rivulet/offload/provider/tenants"
)

// Peers is what a Provider needs of the fabric.
type Peers interface {
	peer.Following
	// Handle serves a route to peers.
	Handle(pattern string, h http.Handler)
}

// Hosted are consumers on this device, each with a connection of its own: virtual clusters.
type Hosted interface {
	// Consumers are the names of all there are, connected or not.
	Consumers() map[peer.ID]string
	// Members bound what single ones get: CPU, memory, pods, and the storage of claims.
	Members() map[peer.ID]offer.Member
	// API is where pods of one find its API server, on this device; not valid for others.
	API(id peer.ID) netip.AddrPort
	// Changed follows Consumers, Members and API, as that of peer.Following.
	Changed() (<-chan struct{}, func())
	// Handle serves a route to them.
	Handle(pattern string, h http.Handler)
	// PeerID tells which of them sent a request, by its connection; false for others.
	PeerID(r *http.Request) (peer.ID, bool)
}

// Config is what a Provider needs: Peers, Local, PeerID and Log must be set, and what is told
// of peers is left out.
type Config struct {
	Peers Peers
	// Hosted are consumers beside the peers; nil are none.
	Hosted Hosted
	tenancy.Config
}

// Provider is the lender's side of offloading.
type Provider struct {
	*parts.Parts
	cfg      Config
	tenancy  *tenancy.Tenancy
	guests   *tenants.Guests
	reshared changes.Signal // the share is another
}

// New makes a Provider and adds its routes to the fabric; Run starts it.
func New(cfg Config) (*Provider, error) {
	client, err := kubernetes.NewForConfig(cfg.Local)
	if err != nil {
		return nil, err
	}
	p := &Provider{Parts: parts.New(cfg.Log), cfg: cfg}
	served := cfg.Config
	served.PeerID = p.sender
	p.guests = tenants.New(tenants.Config{Client: client, IsPeer: p.isPeer, Stays: p.isHosted, PeerID: p.sender, Log: cfg.Log.With("part", "guests")})
	served.Log = cfg.Log.With("part", "tenancy")
	served.PeerName, served.Neighbours, served.Lends = p.peerName, p.neighbours, p.Lends
	p.tenancy, err = tenancy.New(served)
	if err != nil {
		return nil, err
	}
	for pattern, handler := range p.tenancy.Routes() {
		cfg.Peers.Handle(pattern, p.guests.Observe(handler))
		if cfg.Hosted != nil {
			cfg.Hosted.Handle(pattern, p.guests.Observe(handler))
		}
	}
	return p, nil
}

// Run serves consumers until ctx ends; it may be called once.
func (p *Provider) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { p.Keep(ctx, "tenancy", p.tenancy.Run) })
	wg.Go(func() { p.Keep(ctx, "guests", p.followGuests) })
	wg.Go(func() { p.Keep(ctx, "silent guests", p.guests.Run) })
	wg.Go(func() { p.followBorrowers(ctx) })
	wg.Wait()
	return ctx.Err()
}

// Problems say what does not run, and why. It is tried again.
func (p *Provider) Problems() map[string]string {
	out := p.Parts.Problems()
	if err := p.tenancy.Problem(); err != nil {
		out["bounds of consumers"] = err.Error()
	}
	if why := p.tenancy.Refuses(); why != "" {
		out["pods of consumers"] = why
	}
	return out
}

// Twins knows the namespaces of consumers.
func (p *Provider) Twins() *tenancy.Tenancy { return p.tenancy }

// ShareChanged tells consumers of other Config.Shares at once.
func (p *Provider) ShareChanged() {
	p.tenancy.ShareChanged()
	p.reshared.Notify()
}

// TenantsChanged tells consumers of other Config.Tenants at once.
func (p *Provider) TenantsChanged() { p.tenancy.ShareChanged() }

// WithheldChanged has other registries withheld at once.
func (p *Provider) WithheldChanged() { p.tenancy.WithheldChanged() }

// Consumer is one cluster that borrows from this one, or did.
type Consumer struct {
	tenancy.Consumer
	// Peer is false for what a cluster left here that is no peer.
	Peer bool `json:"peer"`
	// Silent is for how long it has not been heard; Left, after how much more silence
	// its twins are deleted. Both are zero while it is heard.
	Silent time.Duration `json:"silent,omitempty"`
	Left   time.Duration `json:"left,omitempty"`
}

// Consumers are the clusters that borrow from this one, or did, by ID.
func (p *Provider) Consumers() (out []Consumer) {
	for _, c := range p.tenancy.Status() {
		silence := p.guests.Silence(c.ID)
		out = append(out, Consumer{Consumer: c, Peer: p.isPeer(c.ID), Silent: silence.For, Left: silence.Left})
	}
	slices.SortFunc(out, func(a, b Consumer) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return out
}

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

// sender tells who sent a request: by a connection of this device, or by its certificate.
func (p *Provider) sender(r *http.Request) (peer.ID, bool) {
	if p.cfg.Hosted != nil {
		if id, ok := p.cfg.Hosted.PeerID(r); ok {
			return id, true
		}
	}
	return p.cfg.PeerID(r)
}

func (p *Provider) peerName(id peer.ID) string {
	l, _ := p.link(id)
	return cmp.Or(l.Name, p.hosted()[id])
}

func (p *Provider) isPeer(id peer.ID) bool {
	_, ok := p.link(id)
	return ok || p.isHosted(id)
}

// followed tells of other peers, other hosted consumers and another share, until ctx ends.
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

// A peering has two directions, and each can be switched off: then it is as if the
// other were no peer, in that direction. And a peering can end, which ends both.

// Lends reports whether the cluster may borrow from us. A virtual cluster may until it is deleted, however little its
// owner leaves to it: no setting ends what it has.
func (p *Provider) Lends(id peer.ID) bool {
	l, _ := p.link(id)
	return p.isHosted(id) || p.lendsTo(l)
}

// lendsTo is false, too, while the share of peers is nothing: then it is as if the direction were switched off for each of them.
func (p *Provider) lendsTo(l peer.Link) bool {
	return !l.NoLend && (p.cfg.Shares == nil || !p.cfg.Shares().Peers.None())
}

// borrowers are those that may borrow from us.
func (p *Provider) borrowers() map[peer.ID]bool {
	out := map[peer.ID]bool{}
	for _, l := range p.cfg.Peers.Links() {
		out[l.ID] = p.lendsTo(l)
	}
	for id := range p.hosted() {
		out[id] = true
	}
	return out
}

// followBorrowers ends what is under way for those that may not borrow from us any more, and
// keeps the bounds of the others.
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

// notice is how long before its twins are deleted a peer is told that nothing is lent to
// it any more: its Services leave the pods out, and their owners make others.
const notice = 5 * time.Second

// evicted are the clusters whose twins have to go, and after what notice. Each is one of
// which it is known that its time is over; that somebody is merely not in a list says nothing.
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
	return out
}

// retry is the pause before twins are looked at again that are still there.
const retry = 5 * time.Second

// stillness is how long after the last twin of a cluster is gone no more can come: what
// was asked for before has been answered.
const stillness = 10 * time.Second

// shorter is the shorter of two pauses; 0 is none.
func shorter(a, b time.Duration) time.Duration {
	if a == 0 {
		return b
	}
	return min(a, b)
}

// followGuests deletes what is left of clusters to which nothing is lent any more.
// After a start it looks once at all of them.
func (p *Provider) followGuests(ctx context.Context) error {
	changed, stop := p.followed(ctx)
	defer stop()
	clean := map[peer.ID]time.Time{} // since when nothing of it was seen here
	told := map[peer.ID]time.Time{}  // since when nothing is lent to it
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
