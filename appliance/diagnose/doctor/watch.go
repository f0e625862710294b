package doctor

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"rivulet/appliance/addons/podview"
	"rivulet/appliance/api"
	"rivulet/appliance/config/fixed"
	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/fabric/changes"
)

// The intervals of checks on a running device: for what every pod needs, what changes with temperature and load, what
// changes by work on the machine, what changes with a cable, and what a user waits for.
const (
	always = 5 * time.Second
	seldom = 15 * time.Second
	atOnce = 10 * time.Second
	soon   = 30 * time.Second
	often  = 5 * time.Minute
	rarely = time.Hour
)

// Watcher checks a running device periodically, and at once on request.
type Watcher struct {
	health     *health.Tracker
	state, run string
	node       netip.Addr
	supervisor api.Supervisor
	pods       *podview.View
	again      chan struct{}
	healed     map[string]healing // by probe

	mu    sync.Mutex
	fixes map[string]string // what the fix of a probe does, of those with a finding
}

// healing is the last time that a probe's Fix was done.
type healing struct {
	at  time.Time
	err error
}

// NewWatcher returns one for the device with these folders and this supervisor, which reports to t.
func NewWatcher(t *health.Tracker, state, run string, node netip.Addr, own api.Supervisor) *Watcher {
	return &Watcher{
		health: t, state: state, run: run, node: node, supervisor: own, pods: podview.New(fixed.Bridge, "ulet", supervisorsView()),
		again: make(chan struct{}, 1), healed: map[string]healing{}, fixes: map[string]string{},
	}
}

// env returns a new Env for each check, because its Machine caches what it has read.
func (w *Watcher) env() *Env {
	e := here(w.state, w.run, w.supervisor, w.pods)
	e.Node = w.node
	return e
}

// Again runs all probes with an interval now; it does not wait for them.
func (w *Watcher) Again() {
	changes.Poke(w.again)
}

// Fixes are the fixes for present findings of probes with an interval: by code, what each does.
func (w *Watcher) Fixes() map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.fixes)
}

func (w *Watcher) setFixes(r Report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range r.Findings {
		delete(w.fixes, f.Name)
		if f.Fix != "" && f.Status != Pass && f.Status != Skip {
			w.fixes[f.Name] = f.Fix
		}
	}
}

// repair does the fix of one probe, as `rivulet doctor --only CODE --fix` does.
func (w *Watcher) repair(ctx context.Context, code string) ([]Fixed, error) {
	asked, err := Find([]string{code})
	if err != nil {
		return nil, err
	}
	done := Repair(ctx, Run(ctx, w.env(), asked), func(string, string) {})
	w.Again()
	if len(done) == 0 {
		return nil, errors.New("there is nothing to repair any more, or nothing that is safe to repair; see: rivulet doctor")
	}
	return done, nil
}

// Routes registers the routes of `rivulet doctor` and of the web console: to check again after a repair, and the fixes
// that there are.
func (w *Watcher) Routes(mux *http.ServeMux) {
	mux.Handle("POST /v1/doctor", api.JSON(func(*http.Request) (any, error) { w.Again(); return struct{}{}, nil }))
	mux.Handle("GET /v1/doctor/fixes", api.JSON(func(*http.Request) (any, error) { return w.Fixes(), nil }))
	mux.Handle("POST /v1/doctor/fixes/{code}", api.JSON(func(r *http.Request) (any, error) { return w.repair(r.Context(), r.PathValue("code")) }))
}

// Run runs the probes with an interval until ctx ends. After a finding a probe runs again sooner, so that a repaired
// problem is cleared. It is Ready after the first round.
func (w *Watcher) Run(ctx context.Context, stage *lifecycle.Stage) error {
	w.watch(ctx, stage.Ready)
	return nil
}

// heal does the fixes of probes with Heals, each at most once in a while.
func (w *Watcher) heal(ctx context.Context, asked []Probe, rep Report) {
	for i, p := range asked {
		fix, last := rep.Findings[i].Result.Fix, w.healed[p.Name()]
		if !p.Heals || fix == nil {
			continue
		}
		if time.Since(last.at) > 2*atOnce {
			ctx, cancel := context.WithTimeout(ctx, timeLimit)
			last = healing{time.Now(), fix.Do(ctx)}
			cancel()
			w.healed[p.Name()] = last
		}
		if last.err != nil {
			w.health.SetAt(p.Kind, health.Error, "", rep.Findings[i].Text+"; "+last.err.Error(), rep.Findings[i].Cure)
		}
	}
}

func (w *Watcher) watch(ctx context.Context, ready func()) {
	watched := slices.DeleteFunc(Probes(), func(p Probe) bool { return p.Every == 0 })
	due := make(map[string]time.Time, len(watched))
	for {
		begun := time.Now()
		asked := slices.DeleteFunc(slices.Clone(watched), func(p Probe) bool { return begun.Before(due[p.Name()]) })
		rep := Run(ctx, w.env(), asked)
		if ctx.Err() != nil {
			return // the result of a cancelled probe is invalid
		}
		rep.Report(w.health)
		w.setFixes(rep)
		w.heal(ctx, asked, rep)
		for i, p := range asked {
			wait := p.Every
			if s := rep.Findings[i].Status; s == Warn || s == Fail {
				wait = min(wait, atOnce)
			}
			due[p.Name()] = time.Now().Add(wait)
		}
		ready()
		next := time.Now().Add(rarely)
		for _, at := range due {
			if at.Before(next) {
				next = at
			}
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-ctx.Done():
		case <-w.again:
			clear(due)
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}
