package offload

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/fabric/peer"
	"rivulet/offload/node"
	"rivulet/offload/pod"
	"rivulet/offload/reflect"
	"rivulet/offload/stream"
	peertarget "rivulet/offload/target/peer"
)

// stack is everything that runs for one target.
type stack struct {
	link peer.Link
	stop context.CancelFunc
	done chan struct{}

	// These are guarded by Offload.mu; nil until the stack is built.
	name   string
	target *peertarget.Target
	node   *node.Node
	pods   *pod.Controller
}

// startStack starts one for the peer unless it has one.
func (o *Offload) startStack(ctx context.Context, link peer.Link) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stacks[link.ID] != nil {
		return
	}
	ctx, stop := context.WithCancel(ctx)
	s := &stack{link: link, stop: stop, done: make(chan struct{})}
	o.stacks[link.ID] = s
	o.served[link.ID] = true
	go func() {
		defer close(s.done)
		defer stop()
		o.keep(ctx, "virtual node of "+link.Name, func(ctx context.Context) error { return o.runStack(ctx, s) })
	}()
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
	target, err := o.newTarget(s.link, name, log)
	if err != nil {
		return err
	}
	defer target.Close()

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

	twins := newRetirement(o.home, target, offloaded, log)
	resync := func() {
		pods.Resync()
		twins.poke()
	}
	var down atomic.Bool // the target was lost since it was last there
	var vnode *node.Node
	vnode = node.New(o.home, node.Identity{Name: name, ID: target.ID(), IP: o.cfg.NodeIP, Port: server.Port()}, func() {
		if !vnode.Ready() {
			down.Store(true)
		} else if down.Swap(false) {
			pods.Reconnect()
		}
		resync()
	}, log)
	pods = pod.New(pod.Config{
		Home: o.home, Target: target, Cluster: o.cfg.ClusterID, HostIP: o.cfg.NodeIP,
		Offloaded: offloaded, Up: vnode.Ready, Departed: func(ns string) {
			if !offloaded(ns) {
				twins.poke()
			}
		},
		Platform: func() (os, arch string) { last := vnode.Offer(); return last.OS, last.Architecture },
		Recorder: o.recorder, Log: log,
	})
	twins.pods = pods
	back := &handBack{home: o.home, node: name, after: o.cfg.HandBack, log: log}

	o.mu.Lock()
	s.target, s.node, s.pods = target, vnode, pods
	o.mu.Unlock()
	defer func() {
		o.mu.Lock()
		s.target, s.node, s.pods = nil, nil, nil
		o.mu.Unlock()
	}()

	return together(ctx,
		server.Run,
		pods.Run,
		twins.run,
		func(ctx context.Context) error { return vnode.Run(ctx, back.through(ctx, target.Offers(ctx))) },
		func(ctx context.Context) error {
			return reflect.Run(ctx, reflect.Config{Home: o.home, Target: target, Namespaces: o.policy, ClusterID: o.cfg.ClusterID, Control: o.cfg.Control, Log: log})
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

func (o *Offload) newTarget(link peer.Link, name string, log *slog.Logger) (*peertarget.Target, error) {
	cert, key, server, serverName, err := o.cfg.Peers.TLS(link.ID)
	if err != nil {
		return nil, fmt.Errorf("offload: certificates for peer %s: %w", link.Name, err)
	}
	client, base, err := o.cfg.Peers.Client(link.ID)
	if err != nil {
		return nil, fmt.Errorf("offload: control route to peer %s: %w", link.Name, err)
	}
	return peertarget.New(peertarget.Config{
		Name: name, Link: link, Links: o.cfg.Peers.Links, PodCIDR: o.cfg.PodCIDR,
		Dial: o.cfg.Peers.Dial, HTTP: client, BaseURL: base,
		Cert: cert, Key: key, ServerCert: server, ServerName: serverName, Log: log,
	})
}

// nameFor picks the virtual node's name, one stack at a time.
func (o *Offload) nameFor(ctx context.Context, s *stack) (string, error) {
	nodes, err := o.home.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", fmt.Errorf("offload: names of nodes: %w", err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if s.name == "" {
		s.name = node.Name(s.link.Name, string(s.link.ID), s.link.ID.Short(), nodes.Items, func(name string) bool {
			for id, other := range o.stacks {
				if id != s.link.ID && other.name == name {
					return true
				}
			}
			return false
		})
	}
	return s.name, nil
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
