package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/fabric/panics"
	"rivulet/fabric/peer"
	"rivulet/offload/consumer/pod"
	"rivulet/offload/consumer/reflect"
	"rivulet/offload/consumer/volume"
	"rivulet/offload/offer"
	"rivulet/offload/target"
)

// stack are the parts that run for one target.
type stack struct {
	spec target.Spec
	stop context.CancelFunc
	done chan struct{}
	// leaving: the target's offer is withdrawn. untold: it refuses to report which twins are gone.
	leaving, untold atomic.Bool

	own atomic.Pointer[map[string]string] // target.Spec.Labels

	// These are guarded by Consumer.mu; empty until the stack is built.
	name     string
	pods     *pod.Controller
	tenants  func() (addrs []netip.Addr, neighbours map[peer.ID]netip.Prefix, heard bool) // home's pods there, and the target's peers, by the target; nil: no such reports
	branches map[offer.Platform]*branch
}

// labels are home's own for the virtual nodes.
func (s *stack) labels() map[string]string { return *s.own.Load() }

// relabel sets them. The caller holds Consumer.mu.
func (s *stack) relabel(labels map[string]string) {
	if old := s.own.Swap(&labels); old == nil || maps.Equal(*old, labels) {
		return
	}
	for _, b := range s.branches {
		b.node.Relabel()
	}
}

// rivulet is implemented by targets that are Rivulet clusters.
type rivulet interface {
	Keeps() bool
	HomeAddresses() string
	Lost() bool
	Tenants() (addrs []netip.Addr, neighbours map[peer.ID]netip.Prefix, heard bool)
}

// runStack builds the stack and runs it until ctx ends or a part of it fails.
//
//	target ──offers──▶ branches ──▶ a node and a port for each platform
//	   ▲                   │ready
//	   └── pods, reflect, twins
func (c *Consumer) runStack(ctx context.Context, s *stack) error {
	if !c.policy.WaitSynced(ctx) {
		return ctx.Err()
	}
	name, existing, err := c.nameFor(ctx, s)
	if err != nil {
		return err
	}
	var api string // where home's pods find its API server
	if s.spec.Control.IsValid() {
		service, err := c.home.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("offload: the address of home's API server: %w", err)
		}
		api = service.Spec.ClusterIP
	}
	log := c.cfg.Log.With("target", name)
	target, err := s.spec.New(name, log)
	if err != nil {
		return err
	}
	if t, ok := target.(interface{ Close() }); ok {
		defer t.Close()
	}

	offloaded := func(namespace string) bool {
		ns, ok := c.policy.Get(namespace)
		return ok && ns.Allows(name)
	}
	fits := fitting{c}
	unfit, unwelcome := fits.unfit, fits.unwelcome(name)
	if c.cfg.Everywhere {
		unfit, unwelcome = fits.unfitInside, fits.unwelcomeInside(name)
	}
	twins := newRetirement(c.home, target, c.policy, c.recorder, log)
	departed := func(ns string) { // a pod or data, perhaps the last
		if !offloaded(ns) {
			twins.poke()
		}
	}
	branches := &branches{c: c, s: s, name: name, target: target, offloaded: offloaded, existing: existing, failed: make(chan error), freed: departed, log: log}
	supply := &reflect.Supply{}
	cfg := pod.Config{
		Home: c.home, Cache: c.cache, HomeNode: c.cfg.HomeNode, Target: target, Cluster: c.cfg.ID, HostIP: c.cfg.NodeIP, Words: c.cfg.Words,
		Nodes: slices.Collect(maps.Values(existing)), Platform: branches.platform,
		Offloaded: offloaded, Reflects: func(namespace string) bool { ns, _ := c.policy.Get(namespace); return ns.Reflects(name) }, Parse: c.policy.Parse, Check: c.policy.Check, Up: branches.up, Departed: departed,
		Bring: supply.Bring, Unreferred: supply.Check,
		Unfit: unfit, Unwelcome: unwelcome, Elsewhere: fits.elsewhere(name),
		Moved:     c.cfg.Moved,
		NoHomeAPI: !s.spec.Control.IsValid() && !s.spec.HomeAPI,
		Claim: func(ctx context.Context, ns, claim string) (string, string, error) {
			name, why, err := c.volumes.AwayClaimOf(ctx, ns, claim, target.ID())
			var foreign *volume.Foreign
			if errors.As(err, &foreign) {
				err = &pod.Unmovable{Why: foreign.Error() + "; let the namespace run at home, too: rivulet offload " + ns + " --when burst; or keep the pod at home (label rivulet.dev/offload=off in its template), or make the claim again with storageClassName: local-path"}
			}
			return name, why, err
		},
		Recorder: c.recorder, Log: log,
	}
	able, isRivulet := target.(rivulet)
	if isRivulet {
		cfg.Keeps, cfg.HomeAddresses, cfg.Lost = able.Keeps, able.HomeAddresses, able.Lost
	}
	pods := pod.New(cfg)
	twins.pods, branches.pods = pods, pods
	resync := func() {
		for ns := range c.policy.Namespaces() {
			pods.Prepare(ns)
		}
		pods.Resync()
		twins.poke()
	}
	var down atomic.Bool // the target was lost since it was last reachable
	branches.changed = func() {
		if !branches.up() {
			down.Store(true)
		} else if down.Swap(false) {
			pods.Reconnect()
			supply.Renew()
		}
		resync()
	}

	c.mu.Lock()
	s.pods, s.branches = pods, map[offer.Platform]*branch{}
	if isRivulet {
		s.tenants = able.Tenants
	}
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		s.pods, s.branches, s.tenants = nil, nil, nil
		c.mu.Unlock()
	}()

	node := c.cfg.NodeIP
	if c.cfg.Everywhere { // it is the host's: ports there are the host's, too
		node = netip.Addr{}
	}
	changed, stop := c.policy.Changed() // before the first read of the namespaces
	defer stop()
	return together(ctx,
		pods.Run,
		twins.run,
		branches.run,
		func(ctx context.Context) error { return c.vacate(ctx, s, pods) },
		func(ctx context.Context) error { return followLoss(ctx, target, cfg.Lost, pods.Resync) },
		func(ctx context.Context) error {
			return reflect.Run(ctx, reflect.Config{Home: c.home, Target: target, Namespaces: c.policy, Cache: c.cache, ClusterID: c.cfg.ID, Control: s.spec.Control, APIAddress: api,
				NodeAddress: node, Policies: c.cfg.Policies, Used: pods.Refers, Supply: supply, Recorder: c.recorder, Log: log})
		},
		func(ctx context.Context) error {
			for {
				resync()
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-changed:
				}
			}
		},
	)
}

// followLoss calls turned whenever the target is lost or reachable again.
func followLoss(ctx context.Context, t target.Target, lost func() bool, turned func()) error {
	r, ok := t.(reflect.Reach)
	if !ok || lost == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	changed, stop := r.Changed()
	defer stop()
	for was := false; ; {
		if is := lost(); is != was {
			was = is
			turned()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// together runs all parts until ctx ends or one of them returns or panics; it then ends the others. It returns the first
// error.
func together(ctx context.Context, parts ...func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, run := range parts {
		wg.Go(func() {
			err := panics.Call(func() error { return run(ctx) })
			if err == nil {
				err = context.Canceled
			}
			cancel(err)
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}
