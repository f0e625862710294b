package offload

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/offload/node"
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
func (o *Offload) SetTargets(kind target.Kind, all []target.Spec, complete bool) {
	o.mu.Lock()
	o.targets[kind] = targets{all, complete}
	o.mu.Unlock()
	select {
	case o.retarget <- struct{}{}:
	default:
	}
}

// wanted are all targets, by ID.
func (o *Offload) wanted() map[string]target.Spec {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := map[string]target.Spec{}
	for _, t := range o.targets {
		for _, spec := range t.all {
			out[spec.ID] = spec
		}
	}
	return out
}

// runTargets keeps one stack for each target, and removes the virtual nodes of what
// is none any more.
func (o *Offload) runTargets(ctx context.Context) {
	defer o.stopStacks(nil)
	for {
		wanted := o.wanted()
		o.stopStacks(wanted)
		for _, spec := range wanted {
			o.startStack(ctx, spec)
		}
		err := o.removeStrays(ctx, wanted)
		o.problem("virtual nodes", err)
		var again <-chan time.Time
		if err != nil {
			again = time.After(tidy)
		}
		select {
		case <-ctx.Done():
			return
		case <-o.retarget:
		case <-again:
		}
	}
}

// startStack starts one for the target unless it has one.
func (o *Offload) startStack(ctx context.Context, spec target.Spec) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stacks[spec.ID] != nil {
		return
	}
	ctx, stop := context.WithCancel(ctx)
	s := &stack{spec: spec, stop: stop, done: make(chan struct{})}
	o.stacks[spec.ID] = s
	o.served[spec.ID] = true
	go func() {
		defer close(s.done)
		defer stop()
		o.keep(ctx, s.part(), func(ctx context.Context) error { return o.runStack(ctx, s) })
	}()
}

// part is what the stack's problems are called.
func (s *stack) part() string { return "virtual node of " + s.spec.Name }

// stopStacks ends the stacks whose target is not wanted, or has to be made anew.
func (o *Offload) stopStacks(wanted map[string]target.Spec) {
	o.mu.Lock()
	var ended []*stack
	for id, s := range o.stacks {
		if spec, ok := wanted[id]; ok && spec.Key == s.spec.Key {
			continue
		}
		ended = append(ended, s)
		delete(o.stacks, id)
	}
	o.mu.Unlock()
	for _, s := range ended {
		s.stop()
		<-s.done
		o.problem(s.part(), nil)
	}
}

// removeStrays deletes virtual nodes without a target: those whose stack ended in
// this run or of which it is known that their time is over, and, of kinds that are
// completely known, those of earlier runs.
func (o *Offload) removeStrays(ctx context.Context, wanted map[string]target.Spec) error {
	nodes, err := o.home.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: policy.VirtualNodeLabel})
	if err != nil {
		return err
	}
	for _, n := range nodes.Items {
		id, kind := n.Labels[policy.VirtualNodeLabel], target.Kind(n.Labels[policy.KindLabel])
		if kind == "" { // made by an earlier version
			kind = target.Peer
		}
		o.mu.Lock()
		over := o.served[id] || o.targets[kind].complete
		o.mu.Unlock()
		if _, ok := wanted[id]; ok || !over {
			continue
		}
		o.cfg.Log.Info("removing the virtual node of a target that is none any more", "node", n.Name, "kind", kind, "id", id)
		if err := node.Remove(ctx, o.home, n.Name); err != nil {
			return err
		}
	}
	return nil
}
