package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"sync/atomic"
	"time"

	"rivulet/fabric/panics"
	"rivulet/offload/consumer/node"
	"rivulet/offload/consumer/pod"
	"rivulet/offload/consumer/reflect"
	"rivulet/offload/consumer/stream"
	"rivulet/offload/consumer/volume"
	"rivulet/offload/offer"
	"rivulet/offload/target"
)

// DefaultMissing is how long a target may lack nodes of a platform, while it is reachable, before the virtual node of
// that platform is removed. It is longer than Kubernetes' own eviction timeout, so the pods have been evicted by then.
const DefaultMissing = 10 * time.Minute

// mostNodes bounds the virtual nodes of all targets: one for each of 256 peers that nobody has approved
// (fabric/trust), and half of them left for others. Further platforms get only half of all, so that they never keep a
// target from its first node.
const mostNodes = 512

// errNoOffers: the target's stream of offers has ended before the target.
var errNoOffers = errors.New("offload: no offers any more")

// kubeletPort is the standard port of kubelets.
const kubeletPort = 10250

// branches are the platforms of one target: for each a virtual node and the port of its kubelet API.
//
//	platform in the offer         ─▶ open ─▶ Ready or not, as the offer has it
//	platform not in the offer     ─▶ not Ready ─▶ (Missing later) the node is removed
//	no offer from the target      ─▶ not Ready; Missing does not advance
type branches struct {
	c        *Consumer
	s        *stack
	name     string
	target   target.Target
	pods     *pod.Controller
	twins    *collector
	supply   *reflect.Supply
	existing map[offer.Platform]string // nodes of earlier runs
	down     atomic.Bool               // the target was lost since it was last reachable
	failed   chan error
	log      *slog.Logger
}

type branch struct {
	name    string
	node    *node.Node
	offers  chan offer.Offer
	stop    context.CancelFunc // nil: it does not run
	done    chan struct{}
	missing time.Time // when the offers began to lack the platform; zero if they have it
}

// run follows the target's offers until ctx ends or a branch fails.
func (b *branches) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() {
		for _, one := range b.all() {
			b.close(one)
		}
	}()
	for platform, name := range b.existing {
		if err := b.open(ctx, platform, name); err != nil {
			return err
		}
	}
	offers, last := b.target.Offers(ctx), ""
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-b.failed:
			return err
		case o, ok := <-offers:
			if !ok {
				return fmt.Errorf("%w: %s", errNoOffers, cmp.Or(last, "its target has ended"))
			}
			last = o.Reason
			if err := b.take(ctx, o); err != nil {
				return err
			}
		}
	}
}

// take passes to each branch its platform's part of the offer.
func (b *branches) take(ctx context.Context, o offer.Offer) error {
	b.c.offered(b.target.ID(), o.Withdrawn)
	all := b.all()
	split := o.Split()
	if len(split) == 0 { // no offer, or no node that can run anything: it has no platforms
		for _, one := range all {
			b.update(one, o)
		}
		return nil
	}
	if len(o.Platforms) == 0 && len(all) == 1 { // its offers do not distinguish platforms: it has that of its node
		for platform, one := range all {
			b.c.Report(b.s.partPlatforms(), nil)
			b.move(platform, split[0].Platform(), one)
			return b.updateOrOpen(ctx, one, split[0])
		}
	}
	var left error
	for _, part := range split {
		if part.OS != "" && part.OS != "linux" {
			continue // offloaded pods are for Linux
		}
		one := all[part.Platform()]
		delete(all, part.Platform())
		if one == nil {
			if err := b.room(part.Platform()); err != nil {
				left = cmp.Or(left, err)
				continue
			}
		}
		if err := b.updateOrOpen(ctx, one, part); err != nil {
			return err
		}
	}
	b.c.Report(b.s.partPlatforms(), left)
	for platform, one := range all {
		if !o.Ready {
			b.update(one, offer.Offer{Reason: o.Reason, Heard: o.Heard})
			continue
		}
		if one.missing.IsZero() {
			one.missing = time.Now()
			b.log.Info("the target has no nodes of a platform any more; its virtual node goes if that stays so", "node", one.name, "platform", platform, "after", b.c.cfg.Missing)
		}
		if time.Since(one.missing) < b.c.cfg.Missing {
			b.update(one, offer.Offer{Reason: fmt.Sprintf("%s has no %s nodes any more", b.name, platform)})
			continue
		}
		b.remove(ctx, platform, one)
	}
	return nil
}

// room returns an error if the target may not have a virtual node for one more platform. Nodes of platforms that are
// missing count until they are removed, so changing platforms gets no further ones.
func (b *branches) room(platform offer.Platform) error {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	all, mine := 0, len(b.s.branches)
	for _, s := range b.c.stacks {
		all += len(s.branches)
	}
	switch {
	case mine >= offer.MaxPlatforms:
		return fmt.Errorf("no virtual node for %s: %s has %d already", platform, b.name, mine)
	case all >= mostNodes || mine > 0 && all >= mostNodes/2:
		return fmt.Errorf("no virtual node for %s of %s: there are %d; end some peers: rivulet unpeer NAME", platform, b.name, all)
	}
	return nil
}

func (b *branches) updateOrOpen(ctx context.Context, one *branch, o offer.Offer) error {
	if one == nil || one.stop == nil {
		name := ""
		if one != nil {
			name = one.name
		}
		if err := b.open(ctx, o.Platform(), name); err != nil {
			return err
		}
		one = b.all()[o.Platform()]
	}
	one.missing = time.Time{}
	b.update(one, o)
	return nil
}

// update is called by run only.
func (b *branches) update(one *branch, o offer.Offer) {
	if one.stop != nil {
		offer.Replace(one.offers, o)
	}
}

// open starts a branch; without a name it chooses one.
func (b *branches) open(ctx context.Context, platform offer.Platform, name string) error {
	if name == "" {
		var err error
		if name, err = b.c.platformName(ctx, b.s, platform); err != nil {
			return err
		}
	}
	ip, port, release := b.address(name)
	server, err := stream.Listen(stream.Config{
		IP: ip, Port: port, Authority: b.c.cfg.Authority, Home: b.c.home, Target: b.target.Config(), Node: name, Pods: b.pods, Log: b.log,
	})
	if err != nil {
		release()
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	one := &branch{name: name, offers: make(chan offer.Offer, 1), stop: stop, done: make(chan struct{})}
	one.node = node.New(b.c.home, b.c.cache, node.Identity{Name: name, Target: b.name, ID: b.target.ID(), Kind: b.s.spec.Kind, After: b.s.spec.After, Labels: &b.s.own,
		IP: ip, Port: server.Port(), Alone: b.c.cfg.Everywhere}, b, b.log)
	back := &handBack{home: b.c.home, node: name, after: b.c.cfg.HandBack, log: b.log}
	fail := func(err error) {
		select {
		case b.failed <- err:
		case <-ctx.Done():
		}
	}
	b.c.mu.Lock()
	b.s.branches[platform] = one
	b.c.mu.Unlock()
	b.pods.Serve(name)
	noVolumes := b.c.volumes.Serve(&volume.Place{Node: name, Target: b.target, Owner: b})
	go func() {
		defer close(one.done)
		defer panics.To(fail)
		defer release()
		defer noVolumes()
		err := together(ctx, server.Run,
			func(ctx context.Context) error { return one.node.Run(ctx, back.through(ctx, fail, one.offers)) })
		server.Close()
		if ctx.Err() == nil {
			fail(err)
		}
	}()
	return nil
}

// address returns where a virtual node's kubelet API is served. Each node has its own address, so that a client that
// uses the node's address and the standard kubelet port reaches this API and not home's kubelet.
func (b *branches) address(node string) (ip netip.Addr, port uint16, release func()) {
	if b.c.cfg.Address != nil {
		ip, release, err := b.c.cfg.Address(node)
		if err == nil {
			return ip, kubeletPort, release
		}
		b.log.Warn("a virtual node has no address of its own: programs that ask nodes by their addresses get home's kubelet for it", "node", node, "err", err)
	}
	return b.c.cfg.NodeIP, b.c.cfg.NodePort, func() {}
}

// close ends the branch and keeps its Node.
func (b *branches) close(one *branch) {
	if one.stop == nil {
		return
	}
	one.stop()
	<-one.done
	close(one.offers)
	one.stop = nil
}

// remove ends a branch and deletes its Node; after a failure the next offer repeats it.
func (b *branches) remove(ctx context.Context, platform offer.Platform, one *branch) {
	b.close(one)
	err := node.Remove(ctx, b.c.home, one.name)
	b.c.Report("virtual node "+one.name, err)
	if err != nil {
		return
	}
	b.log.Info("virtual node removed: its target has no nodes of the platform any more", "node", one.name, "platform", platform)
	b.c.mu.Lock()
	delete(b.s.branches, platform)
	b.c.mu.Unlock()
}

func (b *branches) move(from, to offer.Platform, one *branch) {
	if from == to {
		return
	}
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	delete(b.s.branches, from)
	b.s.branches[to] = one
}

func (b *branches) all() map[offer.Platform]*branch {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	return maps.Clone(b.s.branches)
}

// NodeChanged implements node.Owner.
func (b *branches) NodeChanged(name string) {
	b.c.volumes.Check(name)
	if !b.Up() {
		b.down.Store(true)
	} else if b.down.Swap(false) {
		b.pods.Reconnect()
		b.supply.Renew()
	}
	b.resync()
	b.c.cfg.NodesChanged()
}

// resync queues all pods, and the twins of all namespaces.
func (b *branches) resync() {
	for ns := range b.c.policy.Namespaces() {
		b.pods.Prepare(ns)
	}
	b.pods.Resync()
	b.twins.poke()
}

// Offloaded reports whether pods of the namespace may run on the target, and its claims get a volume there.
func (b *branches) Offloaded(namespace string) bool {
	ns, _ := b.c.policy.Get(namespace)
	return ns.Allows(b.name)
}

// Freed implements volume.Owner.
func (b *branches) Freed(namespace string) {
	if !b.Offloaded(namespace) {
		b.twins.poke()
	}
}

// Up reports whether the target can run anything.
func (b *branches) Up() bool {
	for _, one := range b.all() {
		if one.node.Ready() {
			return true
		}
	}
	return false
}

// Platform is that of a virtual node, empty before the first offer.
func (b *branches) Platform(name string) (os, arch string) {
	for _, one := range b.all() {
		if one.name == name {
			o := one.node.Offer()
			return o.OS, o.Architecture
		}
	}
	return "", ""
}
