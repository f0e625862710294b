package offload

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"rivulet/offload/offer"
	"rivulet/offload/pod"
	"rivulet/offload/reflect"
	"rivulet/offload/target"
)

// stack is everything that runs for one target.
type stack struct {
	spec target.Spec
	stop context.CancelFunc
	done chan struct{}

	// These are guarded by Offload.mu; empty until the stack is built.
	name     string
	pods     *pod.Controller
	branches map[offer.Platform]*branch
}

// runStack builds the stack and runs it until ctx ends or a part of it fails.
//
//	target ──offers──▶ branches ──▶ a node and a port for each platform
//	   ▲                   │ready
//	   └── pods, reflect, twins
func (o *Offload) runStack(ctx context.Context, s *stack) error {
	if !o.policy.WaitSynced(ctx) {
		return ctx.Err()
	}
	name, existing, err := o.nameFor(ctx, s)
	if err != nil {
		return err
	}
	log := o.cfg.Log.With("target", name)
	target, err := s.spec.New(name, log)
	if err != nil {
		return err
	}
	if c, ok := target.(interface{ Close() }); ok {
		defer c.Close()
	}

	offloaded := func(namespace string) bool {
		ns, ok := o.policy.Get(namespace)
		return ok && ns.Allows(name)
	}
	var keeps func() bool
	if k, ok := target.(interface{ Keeps() bool }); ok {
		keeps = k.Keeps
	}
	twins := newRetirement(o.home, target, offloaded, o.recorder, log)
	branches := &branches{o: o, s: s, name: name, target: target, offloaded: offloaded, existing: existing, failed: make(chan error), log: log}
	pods := pod.New(pod.Config{
		Home: o.home, Target: target, Cluster: o.cfg.ClusterID, HostIP: o.cfg.NodeIP,
		Nodes: slices.Collect(maps.Values(existing)), Platform: branches.platform,
		Offloaded: offloaded, Look: o.policy.Look, Up: branches.up, Departed: func(ns string) {
			if !offloaded(ns) {
				twins.poke()
			}
		},
		Unfit:     o.unfit,
		Keeps:     keeps,
		NoHomeAPI: !s.spec.Control.IsValid() && !s.spec.HomeAPI,
		Claim: func(ctx context.Context, ns, claim string) (string, string, error) {
			return o.volumes.AwayClaimOf(ctx, ns, claim, target.ID())
		},
		Recorder: o.recorder, Log: log,
	})
	twins.pods, branches.pods = pods, pods
	resync := func() {
		pods.Resync()
		twins.poke()
	}
	var down atomic.Bool // the target was lost since it was last there
	branches.changed = func() {
		if !branches.up() {
			down.Store(true)
		} else if down.Swap(false) {
			pods.Reconnect()
		}
		resync()
	}

	o.mu.Lock()
	s.pods, s.branches = pods, map[offer.Platform]*branch{}
	o.mu.Unlock()
	defer func() {
		o.mu.Lock()
		s.pods, s.branches = nil, nil
		o.mu.Unlock()
	}()

	changed, stop := o.policy.Changed() // before anything looks at the namespaces
	defer stop()
	return together(ctx,
		pods.Run,
		twins.run,
		branches.run,
		func(ctx context.Context) error {
			return reflect.Run(ctx, reflect.Config{Home: o.home, Target: target, Namespaces: o.policy, ClusterID: o.cfg.ClusterID, Control: s.spec.Control, Policies: o.cfg.Policies, Recorder: o.recorder, Log: log})
		},
		func(ctx context.Context) error {
			for {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-changed:
					resync()
				}
			}
		},
	)
}

// together runs all parts until ctx ends or one of them does; the others are
// ended then. It returns the error of the first.
func together(ctx context.Context, parts ...func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, run := range parts {
		wg.Go(func() {
			err := run(ctx)
			if err == nil {
				err = context.Canceled
			}
			cancel(err)
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}
