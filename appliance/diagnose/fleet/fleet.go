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
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"rivulet/appliance/api"
	"rivulet/appliance/config"
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
	Fabric     *atomic.Pointer[fabric.Fabric] // nil before it has started
	Supervisor api.Supervisor
	Settings   Settings
}

// Settings are in force now: by Fleet the owner allows peers of the group to see this device.
type Settings interface{ Now() config.Loaded }

// Fleet has both sides. Its methods may be called concurrently.
type Fleet struct {
	Config
	peers peers // live; tests have their own

	own, all cached
	mu       sync.Mutex
	limits   map[peer.ID]*rate.Limiter
}

// New returns one that serves nothing yet.
func New(c Config) *Fleet {
	return &Fleet{Config: c, peers: live{c.Fabric}, own: newCached(), all: newCached(), limits: map[peer.ID]*rate.Limiter{}}
}

// peers are listed and queried.
type peers interface {
	list() []peer.View
	query(context.Context, peer.ID) (Summary, error)
}

// live are the peers of the fabric.
type live struct {
	fabric *atomic.Pointer[fabric.Fabric]
}

func (l live) list() []peer.View {
	if fab := l.fabric.Load(); fab != nil {
		return fab.Peers()
	}
	return nil
}

func (l live) query(ctx context.Context, id peer.ID) (s Summary, err error) {
	client, base, err := l.fabric.Load().Client(id)
	if err != nil {
		return s, err
	}
	return s, rpc.Call(ctx, client, http.MethodGet, base+Path, nil, &s)
}

func (f *Fleet) allowed() bool { return f.Settings.Now().Config.Fleet }

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
	case !f.allowed() || !slices.ContainsFunc(f.group(), func(v peer.View) bool { return v.ID == id }):
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
	return slices.DeleteFunc(slices.Clone(f.peers.list()), func(v peer.View) bool { return v.Trust.How != peer.TrustGroup || v.State.Apart() })
}

// Own is the summary of this device.
func (f *Fleet) Own() Summary {
	return f.own.get(context.Background(), func(context.Context) any { return Summarize(f.Supervisor.Status(), time.Now()) }).(Summary)
}

// Members are this device and those of its group, the worst first.
func (f *Fleet) Members(ctx context.Context) Answer {
	return f.all.get(ctx, func(ctx context.Context) any { return f.members(ctx) }).(Answer)
}

func (f *Fleet) members(ctx context.Context) Answer {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	st := f.Supervisor.Status()
	own := f.Own()
	out := Answer{Allowed: f.allowed(), Members: []Member{{ID: st.ID, Name: st.Name, Here: true, State: Shown, Summary: &own}}}
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
	s, err := f.peers.query(ctx, v.ID)
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
