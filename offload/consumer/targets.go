package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/fabric/changes"
	"rivulet/fabric/panics"
	"rivulet/offload/consumer/node"
	"rivulet/offload/policy"
	"rivulet/offload/target"
)

// tidy is the pause before another try to remove a node.
const tidy = 5 * time.Second

// partUnknown is the name of virtual nodes without a peer in problems; a person may remove them.
const (
	partUnknown = "virtual nodes without a peer"
	unknownLook = time.Minute
)

// targets are those of one kind, from the last SetTargets.
type targets struct {
	all []target.Spec
	// complete: there are no others of this kind.
	complete bool
}

// SetTargets replaces the targets of a kind. Each gets a virtual node; a target that is no longer in the list loses it
// for good, with its pods: a caller lists those that it cannot reach, too. With complete, nodes of earlier runs for targets of that kind that are not in the list are
// removed as well; a caller that has not read all of its records leaves it out. It may be called at any time, before
// Run as well.
func (c *Consumer) SetTargets(kind target.Kind, all []target.Spec, complete bool) {
	c.mu.Lock()
	c.targets[kind] = targets{all, complete}
	c.mu.Unlock()
	c.checkTargets()
}

// End ends targets for good: their nodes are removed whether or not all targets of their kind are loaded.
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

// runTargets keeps one stack for each target, and removes the virtual nodes of ended targets.
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
		case c.Problems()[partUnknown] != "":
			again = time.After(unknownLook)
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

// settleTargets starts and ends stacks, and empties and removes the nodes of withdrawn targets; leaving: some pods have
// not left yet. Targets that are withdrawn and empty are taken out of wanted.
func (c *Consumer) settleTargets(ctx context.Context, wanted map[string]target.Spec) (leaving bool, err error) {
	c.stopStacks(wanted)
	for _, spec := range wanted {
		if !spec.Withdrawn {
			c.startStack(ctx, spec) // it receives offers, also of a withdrawn target
		}
	}
	list, err := c.home.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: policy.VirtualNodeLabel})
	if err != nil {
		return false, err
	}
	list.Items = slices.DeleteFunc(list.Items, func(n corev1.Node) bool { return virtualID(&n) == "" })
	c.closed.only(list.Items)
	for i := range list.Items {
		n := &list.Items[i]
		spec, ok := wanted[virtualID(n)]
		switch {
		case !ok:
		case c.lendsNothing(spec):
			c.startStack(ctx, spec) // the node may be of an earlier run, with pods on it
		default:
			c.closed.opened(n)
			err = errors.Join(err, node.Open(ctx, c.home, n), node.Unchoose(ctx, c.home, n, spec.Unchosen))
		}
	}
	again, e := c.withdrawn(ctx, wanted, list.Items)
	c.stopStacks(wanted)
	strays, e2 := c.removeStrays(ctx, wanted, list.Items)
	return again || strays, errors.Join(err, e, e2)
}

func virtualID(n *corev1.Node) string { return node.Of(n) }

// startStack starts a stack for the target, or updates the labels of the one that runs.
func (c *Consumer) startStack(ctx context.Context, spec target.Spec) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.stacks[spec.ID]; s != nil {
		s.relabel(spec.Labels)
		return
	}
	ctx, stop := context.WithCancel(ctx)
	s := &stack{spec: spec, stop: stop, done: make(chan struct{})}
	s.relabel(spec.Labels)
	c.stacks[spec.ID] = s
	c.served[spec.ID] = true
	go func() {
		defer close(s.done)
		defer stop()
		c.Keep(ctx, s.part(), func(ctx context.Context) error {
			err := panics.Call(func() error { return c.runStack(ctx, s) })
			if ctx.Err() == nil && (errors.As(err, new(*panics.Error)) || errors.Is(err, errNoOffers)) {
				err = errors.Join(err, node.Fail(ctx, c.home, s.spec.ID, err.Error())) // its offers may end it again
			}
			return err
		})
	}()
}

// part is the name of the stack in problems.
func (s *stack) part() string { return "virtual node of " + s.spec.Name }

// partPlatforms is the name of its platforms without a virtual node.
func (s *stack) partPlatforms() string { return "platforms of " + s.spec.Name }

// stopStacks ends the stacks whose target is not wanted or has changed.
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
		c.Report(s.partPlatforms(), nil)
	}
}

// removeStrays empties and deletes virtual nodes without a target: those whose stack ended in this run, those of
// targets that have ended, and, of kinds that are complete, those of earlier runs. Those of peers without a record and
// without a revocation stay, and are reported: their clusters may still run pods of home. It reports whether some pods
// have not left yet.
func (c *Consumer) removeStrays(ctx context.Context, wanted map[string]target.Spec, nodes []corev1.Node) (leaving bool, err error) {
	var unknown []string
	defer func() {
		var why error
		if len(unknown) > 0 {
			why = fmt.Errorf("%s: no peer is behind them, and no peering has ended that was, so their pods are left alone; peer with them again, or, if they are gone for good: kubectl delete node %s", strings.Join(unknown, ", "), unknown[0])
		}
		c.Report(partUnknown, why)
	}()
	for i := range nodes {
		n := &nodes[i]
		id, kind := virtualID(n), target.Kind(n.Labels[policy.KindLabel])
		c.mu.Lock()
		over := c.served[id] || c.targets[kind].complete
		c.mu.Unlock()
		if _, ok := wanted[id]; ok || !over {
			if !ok && kind == target.Peer && time.Since(c.begun) >= target.Patience {
				unknown = append(unknown, n.Name)
			}
			continue
		}
		last := c.closed.lasted(n) > c.cfg.Parting
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
