package offload

import (
	"context"
	"sync"
	"sync/atomic"

	"rivulet/offload/node"
	"rivulet/offload/pod"
	"rivulet/offload/reflect"
	"rivulet/offload/stream"
	"rivulet/offload/target"
	"rivulet/offload/volume"
)

// stack is everything that runs for one target.
type stack struct {
	spec target.Spec
	stop context.CancelFunc
	done chan struct{}

	// These are guarded by Offload.mu; nil until the stack is built.
	name string
	node *node.Node
	pods *pod.Controller
}

// runStack builds the stack and runs it until ctx ends or a part of it fails.
//
//	target ──offers──▶ node ──ready──▶ pods, twins
//	   ▲                 │port
//	   └── stream, pods, reflect, twins
func (o *Offload) runStack(ctx context.Context, s *stack) error {
	if !o.policy.WaitSynced(ctx) {
		return ctx.Err()
	}
	name, err := o.nameFor(ctx, s)
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
	var pods *pod.Controller
	server, err := stream.Listen(stream.Config{
		IP: o.cfg.NodeIP, TLSDir: o.cfg.ServerTLSDir, Target: target.Config(), Node: name, Log: log,
		Usage: func(ctx context.Context) ([]pod.Usage, error) { return pods.Usage(ctx) },
		Away:  func(namespace, name string) (string, string, error) { return pods.Away(namespace, name) },
	})
	if err != nil {
		return err
	}
	defer server.Close()

	twins := newRetirement(o.home, target, offloaded, o.recorder, log)
	resync := func() {
		pods.Resync()
		twins.poke()
	}
	var down atomic.Bool // the target was lost since it was last there
	var vnode *node.Node
	vnode = node.New(o.home, node.Identity{Name: name, ID: target.ID(), Kind: s.spec.Kind, After: s.spec.After, IP: o.cfg.NodeIP, Port: server.Port()}, func() {
		if !vnode.Ready() {
			down.Store(true)
		} else if down.Swap(false) {
			pods.Reconnect()
		}
		o.volumes.Look(name)
		resync()
	}, log)
	pods = pod.New(pod.Config{
		Home: o.home, Target: target, Cluster: o.cfg.ClusterID, HostIP: o.cfg.NodeIP,
		Offloaded: offloaded, Up: vnode.Ready, Departed: func(ns string) {
			if !offloaded(ns) {
				twins.poke()
			}
		},
		Platform:  func() (os, arch string) { last := vnode.Offer(); return last.OS, last.Architecture },
		NoHomeAPI: !s.spec.Control.IsValid(),
		Claim: func(ctx context.Context, ns, claim string) (string, string, error) {
			return o.volumes.AwayClaimOf(ctx, ns, claim, target.ID())
		},
		Recorder: o.recorder, Log: log,
	})
	twins.pods = pods
	defer o.volumes.Serve(&volume.Place{Node: name, Target: target, Offloaded: offloaded, Ready: vnode.Ready})()
	back := &handBack{home: o.home, node: name, after: o.cfg.HandBack, log: log}

	o.mu.Lock()
	s.node, s.pods = vnode, pods
	o.mu.Unlock()
	defer func() {
		o.mu.Lock()
		s.node, s.pods = nil, nil
		o.mu.Unlock()
	}()

	return together(ctx,
		server.Run,
		pods.Run,
		twins.run,
		func(ctx context.Context) error { return vnode.Run(ctx, back.through(ctx, target.Offers(ctx))) },
		func(ctx context.Context) error {
			return reflect.Run(ctx, reflect.Config{Home: o.home, Target: target, Namespaces: o.policy, ClusterID: o.cfg.ClusterID, Control: s.spec.Control, Policies: o.cfg.Policies, Recorder: o.recorder, Log: log})
		},
		func(ctx context.Context) error {
			changed, stop := o.policy.Changed()
			defer stop()
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
