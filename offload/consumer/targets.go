package consumer

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/fabric/changes"
	"rivulet/offload/consumer/node"
	"rivulet/offload/policy"
	"rivulet/offload/target"
)

// tidy is how long to wait before another try to remove a node.
const tidy = 5 * time.Second

// targets are those of one kind, as somebody told of them.
type targets struct {
	all []target.Spec
	// complete says that there are no others of this kind.
	complete bool
}

// SetTargets says which targets of a kind there are now, in place of what was said
// before. Each gets a virtual node; one that is not in the list any more loses it,
// for good, and its pods with it. With complete, nodes of that kind are removed, too,
// which are left of earlier runs and stand for targets that are not in the list: who
// has not read all of his records yet leaves it out. It may be called at any time,
// before Run as well.
func (c *Consumer) SetTargets(kind target.Kind, all []target.Spec, complete bool) {
	c.mu.Lock()
	c.targets[kind] = targets{all, complete}
	c.mu.Unlock()
	c.checkTargets()
}

// End says of targets that they are none any more, and will not be: their nodes go whether
// all of their kind are known or not.
func (c *Consumer) End(ids ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range ids {
		c.served[id], c.ended[id] = true, true
	}
}

func (c *Consumer) checkTargets() {
	changes.Poke(c.retarget)
}

// wanted are all targets, by ID.
func (c *Consumer) wanted() map[string]target.Spec {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]target.Spec{}
	for _, t := range c.targets {
		for _, spec := range t.all {
			out[spec.ID] = spec
		}
	}
	return out
}

// runTargets keeps one stack for each target, and removes the virtual nodes of what
// is none any more.
func (c *Consumer) runTargets(ctx context.Context) {
	defer c.stopStacks(nil)
	look := leaveLook
	for {
		wanted := c.wanted()
		leaving, err := c.settleTargets(ctx, wanted)
		c.Report("virtual nodes", err)
		var again <-chan time.Time
		switch {
		case leaving:
			again = time.After(look)
			look = min(look*5/4, leaveLast)
		case err != nil:
			again = time.After(tidy)
		}
		select {
		case <-ctx.Done():
			return
		case <-c.retarget:
			look = leaveLook
		case <-again:
		}
	}
}

// settleTargets starts and ends stacks, and empties and removes the nodes of what lends
// nothing any more; leaving says that pods are still on their way. Of wanted, what is withdrawn
// and empty is taken out.
func (c *Consumer) settleTargets(ctx context.Context, wanted map[string]target.Spec) (leaving bool, err error) {
	c.stopStacks(wanted)
	for _, spec := range wanted {
		if !spec.Withdrawn {
			c.startStack(ctx, spec) // it listens for offers, whatever they say
		}
	}
	list, err := c.home.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: policy.VirtualNodeLabel})
	if err != nil {
		return false, err
	}
	for i := range list.Items {
		n := &list.Items[i]
		spec, ok := wanted[virtualID(n)]
		switch {
		case !ok:
		case c.lendsNothing(spec):
			c.startStack(ctx, spec) // the node may be of an earlier run, with pods on it
		default:
			err = errors.Join(err, node.Open(ctx, c.home, n))
		}
	}
	again, e := c.withdrawn(ctx, wanted, list.Items)
	c.stopStacks(wanted)
	strays, e2 := c.removeStrays(ctx, wanted, list.Items)
	return again || strays, errors.Join(err, e, e2)
}

func virtualID(n *corev1.Node) string { return n.Labels[policy.VirtualNodeLabel] }

// startStack starts one for the target unless it has one.
func (c *Consumer) startStack(ctx context.Context, spec target.Spec) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stacks[spec.ID] != nil {
		return
	}
	ctx, stop := context.WithCancel(ctx)
	s := &stack{spec: spec, stop: stop, done: make(chan struct{})}
	c.stacks[spec.ID] = s
	c.served[spec.ID] = true
	go func() {
		defer close(s.done)
		defer stop()
		c.Keep(ctx, s.part(), func(ctx context.Context) error { return c.runStack(ctx, s) })
	}()
}

// part is what the stack's problems are called.
func (s *stack) part() string { return "virtual node of " + s.spec.Name }

// stopStacks ends the stacks whose target is not wanted, or has to be made anew.
func (c *Consumer) stopStacks(wanted map[string]target.Spec) {
	c.mu.Lock()
	var ended []*stack
	for id, s := range c.stacks {
		if spec, ok := wanted[id]; ok && spec.Key == s.spec.Key {
			continue
		}
		ended = append(ended, s)
		delete(c.stacks, id)
	}
	c.mu.Unlock()
	for _, s := range ended {
		s.stop()
		<-s.done
		c.Report(s.part(), nil)
	}
}

// removeStrays empties and deletes virtual nodes without a target: those whose stack ended
// in this run or of which it is known that their time is over, and, of kinds that are
// completely known, those of earlier runs. It reports whether pods are still on their way.
func (c *Consumer) removeStrays(ctx context.Context, wanted map[string]target.Spec, nodes []corev1.Node) (leaving bool, err error) {
	for i := range nodes {
		n := &nodes[i]
		id, kind := virtualID(n), target.Kind(n.Labels[policy.KindLabel])
		c.mu.Lock()
		over := c.served[id] || c.targets[kind].complete
		c.mu.Unlock()
		if _, ok := wanted[id]; ok || !over {
			continue
		}
		last := time.Since(node.Closed(n)) > c.cfg.Parting
		empty, e := c.leave(ctx, n, "its cluster is no peer any more", true, last)
		if e == nil && (empty || last) {
			c.cfg.Log.Info("removing the virtual node of a target that is none any more", "node", n.Name, "kind", kind, "id", id)
			e = node.Remove(ctx, c.home, n.Name)
		} else {
			leaving = true
		}
		err = errors.Join(err, e)
	}
	return leaving, err
}
