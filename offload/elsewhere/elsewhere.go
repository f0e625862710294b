// Package elsewhere lets the pods of a consumer at several providers reach each other (docs/design/reach.md). An
// address in another peer's prefix counts as the consumer's only if both the consumer and the peer that has the address
// confirm it. Addresses are in the view of the provider that has them; under is home's prefix for them and for the pods
// there (homeaddr.View). Pods at providers that are no peers of each other reach each other through home (relay.go).
// Restart: no state is kept; home repeats its list every 30 s, and a provider its confirmation.
// Entries end if they are not repeated within 75 s, or if their link or twin is gone.
package elsewhere

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
)

const (
	// most bounds the addresses of one consumer, those at all peers together.
	most = 1000
	// again is the interval of repetitions, valid how long an entry holds.
	again, valid = 30 * time.Second, 75 * time.Second
	// Requests per second of one peer, and their burst.
	requestRate, requestBurst = 10, 40
	limit                     = 5 * time.Second // of one request
	first, last               = 100 * time.Millisecond, 5 * time.Second
)

// Named are addresses by the peer that has them, in that peer's view.
type Named map[peer.ID][]netip.Addr

// Peers is the part of the fabric that an Elsewhere uses.
type Peers interface {
	Links() []peer.Link
	// Changed returns a channel that receives after Links changed, and the function that ends the subscription.
	Changed() (<-chan struct{}, func())
	// Client returns a client for the control routes of a peer, which lie below the URL.
	Client(id peer.ID) (*http.Client, string, error)
}

// Provider is this cluster as one that lends.
type Provider interface {
	// Lends reports whether a peer may borrow.
	Lends(id peer.ID) bool
	// Tenants returns the addresses of a consumer's pods here, sorted.
	Tenants(id peer.ID) []netip.Addr
}

// Config are the dependencies of an Elsewhere. All fields are required.
type Config struct {
	Peers    Peers
	Provider Provider
	// PeerID identifies the sender of a request by its pinned certificate.
	PeerID func(*http.Request) (peer.ID, bool)
	// PodCIDR is this cluster's.
	PodCIDR netip.Prefix
	Log     *slog.Logger
}

// Elsewhere has both roles, home's and the provider's.
type Elsewhere struct {
	Config
	named  changes.Signal // named addresses of consumers have changed
	ours   changes.Signal // the list to send has changed
	proved changes.Signal // confirmations of peers have changed

	relays changes.Signal // relayed addresses have changed

	mu        sync.Mutex
	relay     relay
	at        map[peer.ID][]netip.Addr // this cluster's pods at peers, in this cluster's view
	reported  map[peer.ID]telling      // by consumer
	under     map[peer.ID]Under        // by consumer, the last ones received, as long as there is a link
	confirmed map[pair]confirmation
	limits    map[peer.ID]*rate.Limiter
	spoke     map[peer.ID]bool // providers that have received a list
}

// Under is how a cluster sees the pods of its peers.
type Under struct {
	// Prefixes are its prefixes for them.
	Prefixes map[peer.ID]netip.Prefix
	// Relayed are addresses of its own pods at others, in its view, and those in its own pod network by which it relays
	// to them.
	Relayed map[netip.Addr]netip.Addr
}

type telling struct {
	named Named
	when  time.Time
}

// words are the body of a list to a provider.
type words struct {
	named Named
	under Under
}

// pair is a consumer, and a peer with pods of it.
type pair struct{ consumer, at peer.ID }

type confirmation struct {
	addrs []netip.Addr // in the peer's view
	when  time.Time
}

// New makes one; Run starts it.
func New(c Config) *Elsewhere {
	return &Elsewhere{Config: c, at: map[peer.ID][]netip.Addr{}, reported: map[peer.ID]telling{}, under: map[peer.ID]Under{}, confirmed: map[pair]confirmation{}, limits: map[peer.ID]*rate.Limiter{}, spoke: map[peer.ID]bool{}}
}

// Routes returns what is served to peers, by pattern of http.ServeMux.
func (e *Elsewhere) Routes() map[string]http.Handler {
	return map[string]http.Handler{"PUT /v1/elsewhere": http.HandlerFunc(e.receive), "POST /v1/elsewhere/{consumer}": http.HandlerFunc(e.answer)}
}

// Check has to be called after the result of Links or Tenants may have changed.
func (e *Elsewhere) Check() {
	e.named.Notify()
	e.ours.Notify()
}

// Changed returns a channel that gets a value after the result of Confirmed may have changed, and the function that
// ends the subscription.
func (e *Elsewhere) Changed() (<-chan struct{}, func()) { return e.proved.Changed() }

// Confirmed are the addresses of the consumer's pods at other peers, in this cluster's view, sorted.
func (e *Elsewhere) Confirmed(consumer peer.ID) []netip.Addr {
	links := e.Peers.Links()
	e.mu.Lock()
	defer e.mu.Unlock()
	named := e.tellingOf(consumer)
	var out []netip.Addr
	for _, l := range links {
		still := setOf(named[l.ID])
		c := e.confirmed[pair{consumer, l.ID}]
		if l.ID == consumer || time.Since(c.when) > valid {
			continue
		}
		for _, a := range c.addrs {
			if here, ok := peer.Translate(a, l.PeerCIDR, l.PeerMappedCIDR); ok && a != l.Addr.Addr() && still[a] {
				out = append(out, here)
			}
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out[:min(len(out), most)]
}

// Under is how a consumer sees the pods of other peers.
func (e *Elsewhere) Under(consumer peer.ID) Under {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.under[consumer]
}

// tellingOf is the valid list of the consumer; mu is held.
func (e *Elsewhere) tellingOf(consumer peer.ID) Named {
	if t, ok := e.reported[consumer]; ok && time.Since(t.when) <= valid {
		return t.named
	}
	return nil
}

// admitted returns the sender of a request, if it is within its limits.
func (e *Elsewhere) admitted(w http.ResponseWriter, r *http.Request) (peer.ID, bool) {
	id, known := e.PeerID(r)
	if known = known && slices.ContainsFunc(e.Peers.Links(), func(l peer.Link) bool { return l.ID == id }); !known {
		rpc.Fail(w, http.StatusUnauthorized, &rpc.Error{Code: "unknown-peer", Message: "only peers are served", Cure: "peer with this cluster first"})
		return "", false
	}
	e.mu.Lock()
	l := e.limits[id]
	if l == nil {
		l = rate.NewLimiter(requestRate, requestBurst)
		e.limits[id] = l
	}
	e.mu.Unlock()
	if !l.Allow() {
		rpc.Fail(w, http.StatusTooManyRequests, &rpc.Error{Code: "too-many-requests", Message: "too many requests of your cluster in a short time", Cure: "try again in a moment"})
		return "", false
	}
	return id, true
}

// receive answers PUT /v1/elsewhere: a consumer's list of its pods elsewhere.
func (e *Elsewhere) receive(w http.ResponseWriter, r *http.Request) {
	id, ok := e.admitted(w, r)
	if !ok {
		return
	}
	if !e.Provider.Lends(id) {
		rpc.Fail(w, http.StatusForbidden, &rpc.Error{Code: "not-lent", Message: "nothing is lent to this cluster", Cure: "ask its owner: rivulet peer NAME --provide=on"})
		return
	}
	var named Named
	if !rpc.Read(w, r, &named) {
		return
	}
	n := 0
	for at, addrs := range named {
		n += len(addrs)
		if n > most || !at.Valid() || at == id {
			rpc.Fail(w, http.StatusBadRequest, &rpc.Error{Code: "bad-addresses", Message: "more addresses than count, or not of another cluster", Cure: "name at most 1000 pods"})
			return
		}
	}
	under := Under{Prefixes: map[peer.ID]netip.Prefix{}, Relayed: map[netip.Addr]netip.Addr{}}
	for _, text := range r.URL.Query()["under"] {
		at, prefix, _ := strings.Cut(text, "=")
		if p, err := netip.ParsePrefix(prefix); err == nil && named[peer.ID(at)] != nil {
			under.Prefixes[peer.ID(at)] = p
		}
	}
	for _, text := range r.URL.Query()["relayed"] {
		at, by, _ := strings.Cut(text, "=")
		from, err := netip.ParseAddr(at)
		to, err2 := netip.ParseAddr(by)
		if err == nil && err2 == nil && len(under.Relayed) < mostRelayed {
			under.Relayed[from] = to
		}
	}
	e.mu.Lock()
	same := reflect.DeepEqual(e.tellingOf(id), named) && reflect.DeepEqual(e.under[id], under)
	e.reported[id], e.under[id] = telling{named, time.Now()}, under
	e.mu.Unlock()
	if !same {
		e.named.Notify()
		e.proved.Notify()
	}
	w.WriteHeader(http.StatusNoContent)
}

// question is the body, and the answer, of POST /v1/elsewhere/{consumer}.
type question struct {
	Addresses []netip.Addr `json:"addresses"`
}

// answer answers POST /v1/elsewhere/{consumer}: those of the addresses that are the consumer's pods here, if the
// consumer's list has pods at the sender.
func (e *Elsewhere) answer(w http.ResponseWriter, r *http.Request) {
	id, ok := e.admitted(w, r)
	if !ok {
		return
	}
	var q question
	if !rpc.Read(w, r, &q) {
		return
	}
	consumer := peer.ID(r.PathValue("consumer"))
	out := question{Addresses: []netip.Addr{}}
	e.mu.Lock()
	both := len(e.tellingOf(consumer)[id]) > 0
	e.mu.Unlock()
	if both && len(q.Addresses) <= most {
		tenants := setOf(e.Provider.Tenants(consumer))
		out.Addresses = slices.DeleteFunc(q.Addresses, func(a netip.Addr) bool { return !tenants[a] })
	}
	rpc.Write(w, http.StatusOK, out)
}

func setOf(all []netip.Addr) map[netip.Addr]bool {
	out := make(map[netip.Addr]bool, len(all))
	for _, a := range all {
		out[a] = true
	}
	return out
}

// Run sends lists and queries until ctx ends.
func (e *Elsewhere) Run(ctx context.Context) error {
	e.named.Follow(ctx, e.Peers.Changed)
	e.ours.Follow(ctx, e.Peers.Changed)
	var wg sync.WaitGroup
	wg.Go(func() { e.each(ctx, &e.ours, e.toTell, e.report) })
	wg.Go(func() { e.each(ctx, &e.named, e.toAsk, e.query) })
	wg.Wait()
	return ctx.Err()
}

// job is one request to a peer: about a consumer, or about this cluster's own pods.
type job struct{ at, consumer peer.ID }

// each sends the wanted requests: at once after a change, then repeatedly, and sooner after a failure. Requests are
// concurrent: an unreachable peer does not delay the others.
func (e *Elsewhere) each(ctx context.Context, changed *changes.Signal, wanted func() map[job]any, do func(context.Context, job, any) (done bool)) {
	kick, stop := changed.Changed()
	defer stop()
	type state struct {
		what any
		due  time.Time
		wait time.Duration
	}
	states, finished := map[job]*state{}, make(chan func())
	busy := map[job]bool{}
	for {
		now, next := wanted(), again
		maps.DeleteFunc(states, func(j job, _ *state) bool { _, ok := now[j]; return !ok })
		for j, what := range now {
			s := states[j]
			if s == nil || !reflect.DeepEqual(s.what, what) {
				s = &state{what: what, wait: first}
				states[j] = s
			}
			if until := time.Until(s.due); until > 0 || busy[j] {
				next = min(next, max(until, first))
				continue
			}
			busy[j] = true
			go func() {
				within, cancel := context.WithTimeout(ctx, limit)
				defer cancel()
				done := do(within, j, what)
				report := func() {
					delete(busy, j)
					if done {
						s.due, s.wait = time.Now().Add(again), first
					} else {
						s.due, s.wait = time.Now().Add(s.wait), min(2*s.wait, last)
					}
				}
				select {
				case finished <- report:
				case <-ctx.Done():
				}
			}()
		}
		select {
		case <-ctx.Done():
			return
		case <-kick:
		case report := <-finished:
			report()
		case <-time.After(next):
		}
	}
}

// toTell are the lists for providers: where else pods of this cluster are.
func (e *Elsewhere) toTell() map[job]any {
	links := e.Peers.Links()
	e.mu.Lock()
	defer e.mu.Unlock()
	out := map[job]any{}
	for _, to := range links {
		if to.NoBorrow || len(e.at[to.ID]) == 0 {
			continue
		}
		named, under, n := Named{}, Under{map[peer.ID]netip.Prefix{}, map[netip.Addr]netip.Addr{}}, 0
		for _, l := range links {
			for _, a := range e.at[l.ID] {
				there, ok := peer.Translate(a, l.PeerMappedCIDR, l.PeerCIDR)
				if !ok || l.ID == to.ID || n == most {
					continue
				}
				named[l.ID], under.Prefixes[l.ID] = append(named[l.ID], there), l.PeerMappedCIDR
				n++
				if by, ok := e.relay.by(to.ID, l.ID, a); ok && len(under.Relayed) < mostRelayed {
					under.Relayed[a] = by
				}
			}
		}
		if len(named) > 0 || e.spoke[to.ID] {
			out[job{at: to.ID}] = words{named, under}
		}
	}
	return out
}

func (e *Elsewhere) report(ctx context.Context, j job, what any) bool {
	say, query := what.(words), url.Values{}
	for at, prefix := range say.under.Prefixes {
		query.Add("under", string(at)+"="+prefix.String())
	}
	for at, by := range say.under.Relayed {
		query.Add("relayed", at.String()+"="+by.String())
	}
	client, base, err := e.Peers.Client(j.at)
	if err == nil {
		err = rpc.Call(ctx, client, http.MethodPut, base+"/v1/elsewhere?"+query.Encode(), say.named, nil)
	}
	if err != nil {
		e.Log.Debug("a provider is not told where else pods are", "peer", j.at.Short(), "err", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.spoke[j.at] = e.spoke[j.at] || err == nil
	return err == nil
}

// toAsk are the queries to peers: which of the addresses that consumers have named are pods there.
func (e *Elsewhere) toAsk() map[job]any {
	links := e.Peers.Links()
	out := map[job]any{}
	e.mu.Lock()
	defer e.mu.Unlock()
	for consumer := range e.reported {
		if len(e.Provider.Tenants(consumer)) == 0 {
			continue
		}
		named := e.tellingOf(consumer)
		for _, l := range links {
			if addrs := named[l.ID]; len(addrs) > 0 && l.ID != consumer {
				out[job{l.ID, consumer}] = addrs
			}
		}
	}
	for consumer, t := range e.reported {
		if time.Since(t.when) > valid || !slices.ContainsFunc(links, func(l peer.Link) bool { return l.ID == consumer }) {
			delete(e.reported, consumer)
		}
	}
	maps.DeleteFunc(e.under, func(id peer.ID, _ Under) bool {
		return !slices.ContainsFunc(links, func(l peer.Link) bool { return l.ID == id })
	})
	maps.DeleteFunc(e.confirmed, func(p pair, c confirmation) bool {
		_, wanted := out[job{p.at, p.consumer}]
		return !wanted || time.Since(c.when) > valid
	})
	maps.DeleteFunc(e.limits, func(id peer.ID, _ *rate.Limiter) bool {
		return !slices.ContainsFunc(links, func(l peer.Link) bool { return l.ID == id })
	})
	return out
}

func (e *Elsewhere) query(ctx context.Context, j job, what any) bool {
	named := what.([]netip.Addr)
	var yes question
	client, url, err := e.Peers.Client(j.at)
	if err == nil {
		err = rpc.Call(ctx, client, http.MethodPost, url+"/v1/elsewhere/"+string(j.consumer), question{named}, &yes)
	}
	if err != nil {
		e.Log.Debug("a peer does not confirm a consumer's pods", "peer", j.at.Short(), "consumer", j.consumer.Short(), "err", err)
		return false
	}
	asked := setOf(named)
	yes.Addresses = slices.DeleteFunc(yes.Addresses, func(a netip.Addr) bool { return !asked[a] })
	e.mu.Lock()
	was := e.confirmed[pair{j.consumer, j.at}]
	e.confirmed[pair{j.consumer, j.at}] = confirmation{yes.Addresses, time.Now()}
	e.mu.Unlock()
	if !slices.Equal(was.addrs, yes.Addresses) {
		e.proved.Notify()
	}
	return len(yes.Addresses) == len(named) // the peer may not have the consumer's list yet
}
