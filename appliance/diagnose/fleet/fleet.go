// Package fleet shows the devices of a group on one page: each device whose owner allows it (`fleet: true`) answers its
// peers of the same group with a summary of its state.
//
//	GET /v1/fleet (socket) ─▶ Members ─▶ GET /v1/fleet of each peer of the group, inside the tunnel ─▶ answer
//
// It reads the status, the configuration and the peers. It writes nothing; answers are cached in memory for a short
// time, so that many readers cost as much as one. Restart: the caches are empty. Failure: a device that does not answer,
// does not allow it, or is of a version without the route, is listed with that as its state.
//
// A summary has names, figures, and codes and titles of problems; no texts, subjects or addresses. What a peer sends is
// a hint: it is bounded, cleaned and cut, and decides nothing but the order of the list.
package fleet

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"rivulet/appliance/api"
	"rivulet/fabric"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
)

// Path is the route, on the socket and for peers.
const Path = "/v1/fleet"

const (
	// mostPeers and atOnce bound the peers that are queried, in all and at the same time.
	mostPeers, atOnce = 200, 16
	// patience bounds one answer, and limit all of them together.
	patience, limit = 3 * time.Second, 8 * time.Second
	// fresh is how long answers are used again.
	fresh = 2 * time.Second
	// A peer's requests per second, and their burst.
	requestRate, requestBurst = 2, 10
)

// Config has the dependencies; all fields are required.
type Config struct {
	Fabric func() *fabric.Fabric // nil before it has started
	Status func() api.Status
	Allow  func() bool // the owner allows peers of the group to see this device
}

// Fleet has both sides. Its methods may be called concurrently.
type Fleet struct {
	Config
	// peers and query are those of the fabric; tests have their own.
	peers func() []peer.View
	query func(context.Context, peer.ID) (Summary, error)

	own, all cached
	mu       sync.Mutex
	limits   map[peer.ID]*rate.Limiter
}

// New returns one that serves nothing yet.
func New(c Config) *Fleet {
	f := &Fleet{Config: c, own: newCached(), all: newCached(), limits: map[peer.ID]*rate.Limiter{}}
	f.peers = func() []peer.View {
		if fab := c.Fabric(); fab != nil {
			return fab.Peers()
		}
		return nil
	}
	f.query = func(ctx context.Context, id peer.ID) (s Summary, err error) {
		client, base, err := c.Fabric().Client(id)
		if err != nil {
			return s, err
		}
		return s, rpc.Call(ctx, client, http.MethodGet, base+Path, nil, &s)
	}
	return f
}

// Routes registers the route of `rivulet status --fleet`.
func (f *Fleet) Routes(mux *http.ServeMux) {
	mux.Handle("GET "+Path, api.JSON(func(r *http.Request) (any, error) { return f.Members(r.Context()), nil }))
}

// Serve answers peers.
func (f *Fleet) Serve(fab *fabric.Fabric) { fab.Handle("GET "+Path, http.HandlerFunc(f.answer)) }

// answer answers a peer: of the same group, and while the owner allows it.
func (f *Fleet) answer(w http.ResponseWriter, r *http.Request) {
	id, _ := rpc.PeerID(r)
	f.respond(w, id)
}

func (f *Fleet) respond(w http.ResponseWriter, id peer.ID) {
	switch {
	case !f.Allow() || !slices.ContainsFunc(f.group(), func(v peer.View) bool { return v.ID == id }):
		rpc.Fail(w, http.StatusForbidden, &rpc.Error{Code: notShown, Message: "this device does not show its status to your cluster", Cure: "ask its owner for `fleet: true`, with trust by a group's secret"})
	case !f.admit(id):
		rpc.Fail(w, http.StatusTooManyRequests, &rpc.Error{Code: "too-many-requests", Message: "too many requests of your cluster in a short time", Cure: "try again in a moment"})
	default:
		rpc.Write(w, http.StatusOK, f.Own())
	}
}

// notShown is the code of a refusal.
const notShown = "fleet-not-shown"

// admit is false if the peer sends too many requests. Limits of clusters that are no peers any more are dropped.
func (f *Fleet) admit(id peer.ID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.limits) > mostPeers {
		clear(f.limits)
	}
	l := f.limits[id]
	if l == nil {
		l = rate.NewLimiter(requestRate, requestBurst)
		f.limits[id] = l
	}
	return l.Allow()
}

// group are the peers that have proved the group's secret, and are peers still.
func (f *Fleet) group() []peer.View {
	return slices.DeleteFunc(slices.Clone(f.peers()), func(v peer.View) bool { return v.Trust.How != peer.TrustGroup || v.State.Apart() })
}

// Own is the summary of this device.
func (f *Fleet) Own() Summary {
	return f.own.get(context.Background(), func(context.Context) any { return Summarize(f.Status(), time.Now()) }).(Summary)
}

// Members are this device and those of its group, the worst first.
func (f *Fleet) Members(ctx context.Context) Answer {
	return f.all.get(ctx, func(ctx context.Context) any { return f.members(ctx) }).(Answer)
}

func (f *Fleet) members(ctx context.Context) Answer {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	st := f.Status()
	own := f.Own()
	out := Answer{Allowed: f.Allow(), Members: []Member{{ID: st.ID, Name: st.Name, Here: true, State: Shown, Summary: &own}}}
	views := f.group()
	slices.SortFunc(views, func(a, b peer.View) int { return cmp.Compare(a.ID, b.ID) })
	out.More = max(0, len(views)-mostPeers)
	views = views[:min(len(views), mostPeers)]
	found := make([]Member, len(views))
	slots := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for i, v := range views {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			found[i] = f.member(ctx, v)
		})
	}
	all.Wait()
	out.Members = append(out.Members, found...)
	slices.SortStableFunc(out.Members, Worst)
	return out
}

// member queries one device.
func (f *Fleet) member(ctx context.Context, v peer.View) Member {
	m := Member{ID: v.ID, Name: cmp.Or(v.Name, v.ID.Short()), RTT: v.RTT, Seen: v.LastSeen, State: Silent}
	if v.State != peer.Connected {
		m.Reason = strings.ToLower(string(v.State))
		return m
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s, err := f.query(ctx, v.ID)
	var refused *rpc.Error
	switch {
	case err == nil:
		s.clean()
		m.State, m.Summary = Shown, &s
	case errors.As(err, &refused) && (refused.Code == notShown || refused.Code == "http"): // "http": an older version has no route
		m.State, m.Reason = Hidden, "does not show its status"
	case errors.As(err, &refused):
		m.Reason = "its answer is unusable: " + refused.Code
	default:
		m.Reason = "does not answer"
	}
	return m
}

// cached is a value that is used again for a short time. Callers wait for one that is being made.
type cached struct {
	lock  chan struct{}
	at    time.Time
	value any
}

func newCached() cached { return cached{lock: make(chan struct{}, 1)} }

func (c *cached) get(ctx context.Context, compute func(context.Context) any) any {
	c.lock <- struct{}{}
	defer func() { <-c.lock }()
	if c.value == nil || time.Since(c.at) > fresh {
		c.value = compute(context.WithoutCancel(ctx)) // a caller that goes away takes nothing from the others
		c.at = time.Now()
	}
	return c.value
}
