package consumer

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/fabric/panics"
	"rivulet/fabric/peer"
	"rivulet/offload/consumer/pod"
	"rivulet/offload/consumer/reflect"
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
	peer     rivulet // the target; nil if it is no Rivulet cluster
	branches map[offer.Platform]*branch
}

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
	reflect.Reach
	Lost() bool
	// Tenants are home's pods there, and the target's peers, by the target.
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

	twins := newRetirement(c.home, target, c.policy, c.recorder, log)
	branches := &branches{c: c, s: s, name: name, target: target, existing: existing, failed: make(chan error), twins: twins, supply: &reflect.Supply{}, log: log}
	pods := pod.New(pod.Config{
		Home:   pod.Home{Client: c.home, Cache: c.cache, Node: c.cfg.HomeNode, ID: c.cfg.ID, HostIP: c.cfg.NodeIP, Words: c.cfg.Words, Recorder: c.recorder, Moved: c.cfg.Moved},
		Target: target, Namespaces: c.policy, Nodes: branches, Claims: c.volumes, Supply: branches.supply, Fit: fitting{c, name},
		NoHomeAPI: !s.spec.Control.IsValid() && !s.spec.HomeAPI, Log: log,
	})
	for _, node := range existing {
		pods.Serve(node)
	}
	twins.pods, branches.pods = pods, pods

	able, _ := target.(rivulet)
	c.mu.Lock()
	s.pods, s.branches, s.peer = pods, map[offer.Platform]*branch{}, able
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		s.pods, s.branches, s.peer = nil, nil, nil
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
		func(ctx context.Context) error { return followLoss(ctx, able, pods) },
		func(ctx context.Context) error {
			return reflect.Run(ctx, reflect.Config{Home: c.home, Target: target, Namespaces: c.policy, Cache: c.cache, ClusterID: c.cfg.ID, Control: s.spec.Control, APIAddress: api,
				NodeAddress: node, Policies: c.cfg.Policies, Used: pods.Refers, Supply: branches.supply, Recorder: c.recorder, Log: log})
		},
		func(ctx context.Context) error {
			for {
				branches.resync()
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-changed:
				}
			}
		},
	)
}

// followLoss queues all pods whenever the target is lost or reachable again.
func followLoss(ctx context.Context, t rivulet, pods *pod.Controller) error {
	if t == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	changed, stop := t.Changed()
	defer stop()
	for was := false; ; {
		if is := t.Lost(); is != was {
			was = is
			pods.Resync()
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
