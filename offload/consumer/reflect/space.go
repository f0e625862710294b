package reflect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"rivulet/fabric/panics"
	"rivulet/offload/consumer/homecache"
	"rivulet/offload/foreign"
	"rivulet/offload/policy"
	"rivulet/offload/target"
	"rivulet/offload/watch"
)

// workers per namespace: enough to hide the round trip of a tunnel.
const workers = 4

// syncLook is the pause between two checks whether both sides are listed; the first pod of the namespace waits for it.
const syncLook = 20 * time.Millisecond

// errRenew ends a space, so that the next one lists both sides anew.
var errRenew = errors.New("reflect: listing anew what the target has")

// errTwinLost ends a space whose twin is gone or denies access.
var errTwinLost = errors.New("reflect: the twin namespace is gone or closed to us")

// space reflects one home namespace into its twin:
//
//	home informers ─┐                        ┌─ create / update / delete
//	                ├─▶ queue ─▶ reconcile ──┤
//	twin informers ─┘  (by kind and name)    └─ event at home
//
// Both sides feed the queue, so that manual changes in the twin are reverted as well.
type space struct {
	home, twin string // namespaces
	clients    clients
	kept       *foreign.Kept // of the target's objects
	cache      *homecache.Cache
	target     string // its name
	owner      string // value of policy.ReflectedLabel
	mode       policy.Namespace
	kinds      map[string]mirror
	queue      *watch.Retries[key]
	recorder   record.EventRecorder
	log        *slog.Logger
	reach      func() (<-chan struct{}, func())
	beside     []func(context.Context) // further loops
	asksAgain  bool                    // the target may accept more kinds later

	renew chan struct{} // see Supply.Renew
	over  chan struct{} // closed when run ends
	known func() bool   // whether the references of pods are loaded

	mu       sync.Mutex
	reported map[key]string       // the last event of an object, to avoid repeats
	checks   map[key][]chan error // callers that wait for an object: see Supply
	// leftSince is since when a part of an object has been left out.
	leftSince map[key]time.Time
}

type key struct{ kind, name string }

// clients are the two sides.
type clients struct{ home, twin kubernetes.Interface }

// mirror is one kind within one space; kindReflector implements it for all.
type mirror interface {
	// informers returns those of home and twin, to be run and watched; nil if it has none.
	informers() (home *homecache.Informer, twin cache.SharedIndexInformer)
	// reconcile makes one object of the twin match home.
	reconcile(ctx context.Context, name string) error
	// names of all objects at home, and of made ones.
	names() []string
	// extra returns further objects to reconcile after the named one has changed; without a name, all made ones.
	extra(name string) []key
}

func newSpace(c Config, recorder record.EventRecorder, log *slog.Logger, home, twin string, mode policy.Namespace, without map[string]bool) *space {
	s := &space{
		home: home, twin: twin, target: c.Target.Name(), owner: c.ClusterID, recorder: recorder, log: log,
		mode:     mode,
		clients:  clients{home: c.Home, twin: c.Target.Client()},
		kept:     target.Kept(c.Target),
		cache:    c.Cache,
		queue:    watch.Queue[key](200*time.Millisecond, time.Minute),
		reported: map[key]string{}, leftSince: map[key]time.Time{}, checks: map[key][]chan error{}, over: make(chan struct{}), renew: make(chan struct{}, 1),
		known: func() bool { _, known := c.Used(policy.Object{}); return known },
	}
	s.beside = append(s.beside, func(ctx context.Context) { target.FollowLink(ctx, c.Target, s.queue.RetryAll) })
	if r, ok := c.Target.(Reach); ok {
		s.reach = r.Changed
	}
	service, slice, configMap := withHomeAPI(home, c.Control, c.APIAddress, services(s.twinOf(c)), endpointSlices(c.Target.Away), configMaps())
	serviceKeeper, sliceKeeper := newKindReflector(s, service), newKindReflector(s, slice)
	mapKeeper, secretKeeper := newKindReflector(s, configMap), newKindReflector(s, secrets())
	mapKeeper.used = func(name string) (used, known bool) {
		return c.Used(policy.Object{Kind: policy.KindConfigMap, Namespace: home, Name: name})
	}
	secretKeeper.used = func(name string) (used, known bool) {
		return c.Used(policy.Object{Kind: policy.KindSecret, Namespace: home, Name: name})
	}
	node := c.NodeAddress.IsGlobalUnicast()
	if node { // a home without a node has none
		withNodePorts(c.NodeAddress, serviceKeeper, sliceKeeper)
	}
	withLeftOut(c, serviceKeeper, sliceKeeper)
	s.kinds = map[string]mirror{
		"Service":         serviceKeeper,
		"EndpointSlice":   sliceKeeper,
		mapKeeper.name:    mapKeeper,
		secretKeeper.name: secretKeeper,
	}
	h, limited := c.Target.(Holder)
	if limited {
		maps.DeleteFunc(s.kinds, func(kind string, _ mirror) bool { return !h.Holds(kind) })
		if s.kinds["Service"] == nil {
			s.kinds["Service"] = unheldServices(s)
		}
	}
	if !node && !(limited && !h.Holds(lanKind)) {
		s.kinds[lanKind] = withLAN(s, serviceKeeper)
	}
	if _, refuses := without[policy.NetworkPolicyKind]; refuses || c.Policies == nil {
		s.kinds[policy.NetworkPolicyKind] = unheldPolicies(s)
	} else {
		n := newNetworkPolicies(s, c)
		s.kinds[policy.NetworkPolicyKind], s.beside = n, append(s.beside, n.follow)
	}
	if mayChange, refuses := without[policy.IngressKind]; !refuses {
		n := newIngresses(s, c)
		withIngresses(n, serviceKeeper, secretKeeper)
		s.kinds[policy.IngressKind] = n
	} else if !mayChange && (node || limited && !h.Holds("Service")) { // a virtual cluster's host opens them, not its further nodes
		s.kinds[policy.IngressKind] = unheldIngresses(s)
	}
	for _, mayChange := range without {
		s.asksAgain = s.asksAgain || mayChange
	}
	return s
}

// twinOf returns the twins of this namespace and of the others that are offloaded to the same target.
func (s *space) twinOf(c Config) func(string) (string, bool) {
	return func(home string) (string, bool) {
		if home == s.home {
			return s.twin, true
		}
		if ns, ok := c.Namespaces.Get(home); !ok || !ns.Reflects(s.target) {
			return "", false
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		twin, err := c.Target.Namespace(ctx, home) // cached there
		if err != nil {
			s.log.Warn("an alias keeps a name of home", "namespace", home, "err", err)
		}
		return twin, err == nil
	}
}

// run reflects until ctx ends or the twin is lost.
func (s *space) run(ctx context.Context) error {
	ctx, end := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer close(s.over)
	defer s.queue.ShutDown()
	defer end(nil)

	running.Go(func() {
		defer panics.To(end)
		select {
		case <-ctx.Done():
		case <-s.renew:
			end(errRenew)
		}
	})
	for kind, m := range s.kinds {
		home, twin := m.informers()
		if home != nil {
			running.Go(func() {
				defer panics.To(end)
				home.Run(ctx, s.queued(kind))
			})
		}
		if twin != nil {
			if err := s.follow(ctx, end, kind, twin, &running); err != nil {
				return err
			}
		}
	}
	// Nothing is decided before both sides of every kind were listed completely.
	if wait.PollUntilContextCancel(ctx, syncLook, true, func(context.Context) (bool, error) { return s.synced(), nil }) != nil {
		return context.Cause(ctx)
	}
	s.log.Debug("reflecting", "twin", s.twin)
	for _, m := range s.kinds {
		for _, k := range m.extra("") {
			s.queue.Add(k)
		}
	}
	running.Go(func() { watch.Work(ctx, s.queue, workers, func(k key) { s.inspect(ctx, k, end) }) })
	for _, follow := range s.beside {
		running.Go(func() {
			defer panics.To(end)
			follow(ctx)
		})
	}
	if s.asksAgain {
		timer := time.AfterFunc(again, func() { end(errRights) })
		defer timer.Stop()
	}
	s.watchReach(ctx)
	return context.Cause(ctx)
}

// synced reports whether both sides of every kind were listed, and the pods on the target.
func (s *space) synced() bool {
	if !s.known() {
		return false
	}
	for _, m := range s.kinds {
		home, twin := m.informers()
		if home != nil && !home.HasSynced() || twin != nil && !twin.HasSynced() {
			return false
		}
	}
	return true
}

// queued queues the changes of a kind.
func (s *space) queued(kind string) cache.ResourceEventHandler {
	return watch.All(func(o any) {
		if m, err := meta.Accessor(o); err == nil {
			s.queue.Add(key{kind, m.GetName()})
			for _, other := range s.kinds[kind].extra(m.GetName()) {
				s.queue.Add(other)
			}
		}
	})
}

// follow runs an informer of the twin and queues its changes.
func (s *space) follow(ctx context.Context, end context.CancelCauseFunc, kind string, informer cache.SharedIndexInformer, running *sync.WaitGroup) error {
	_, err := informer.AddEventHandler(s.queued(kind))
	if err == nil {
		err = informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) {
			if lost(err) {
				end(fmt.Errorf("%w: watch %s: %w", errTwinLost, kind, err))
			}
			s.log.Debug("watch interrupted", "kind", kind, "err", err)
		})
	}
	if err != nil {
		return fmt.Errorf("reflect: watch %s: %w", kind, err)
	}
	running.Go(func() {
		defer panics.To(end)
		informer.RunWithContext(ctx)
	})
	return nil
}

// patience is how many failures in a row are not logged: 12 s, so that a restart of the neighbour is not a warning for
// each object.
const patience = 6

// inspect reconciles a due object.
func (s *space) inspect(ctx context.Context, k key, end context.CancelCauseFunc) {
	waiting := s.waiting(k)
	err := s.kinds[k.kind].reconcile(ctx, k.name)
	for _, w := range waiting {
		w <- err
	}
	switch {
	case ctx.Err() != nil:
	case err == nil:
		s.queue.Forget(k)
	case lost(err):
		end(fmt.Errorf("%w: %w", errTwinLost, err))
	default:
		laggingCache := apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || errors.Is(err, target.ErrNotYet)
		if !laggingCache && s.queue.NumRequeues(k) >= patience {
			s.log.Warn("not reflected yet", "kind", k.kind, "name", k.name, "err", err)
		}
		s.queue.AddRateLimited(k)
	}
}

// watchReach compares all EndpointSlices and NetworkPolicies after the addresses that the target reaches have changed.
// It returns when ctx ends.
func (s *space) watchReach(ctx context.Context) {
	var changed <-chan struct{}
	var tick <-chan time.Time
	if s.reach != nil {
		c, stop := s.reach()
		defer stop()
		changed = c
	} else {
		t := time.NewTicker(reachInterval)
		defer t.Stop()
		tick = t.C
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-tick:
		}
		for _, kind := range []string{"EndpointSlice", policy.NetworkPolicyKind} {
			if m, ok := s.kinds[kind]; ok {
				for _, name := range m.names() {
					s.queue.Add(key{kind, name})
				}
			}
		}
	}
}

// report makes an event at home, once for the same text.
func (s *space) report(k key, about runtime.Object, reason, message string) {
	s.mu.Lock()
	again := s.reported[k] == message
	s.reported[k] = message
	s.mu.Unlock()
	if !again {
		s.recorder.Event(about, corev1.EventTypeWarning, reason, message)
	}
}

// settled clears the last event of an object that is reconciled.
func (s *space) settled(k key) {
	s.mu.Lock()
	delete(s.reported, k)
	delete(s.leftSince, k)
	s.mu.Unlock()
}
