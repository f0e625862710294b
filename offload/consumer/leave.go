package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"rivulet/offload/consumer/node"
	"rivulet/offload/consumer/pod"
	"rivulet/offload/policy"
	"rivulet/offload/target"
)

// How pods leave a target that lends nothing any more, or that is none:
//
//	told ─▶ node closed ─▶ pods deleted: Services leave them out, owners make others
//	        pods of Jobs: not ready, and no other is made yet
//	     ─▶ the target tells that their twins are gone ─▶ pods let go, those of Jobs Failed ─▶ node removed
//	     ─▶ nobody is there who could tell ─▶ the same, DefaultParting later; pods of ReplicaSets at once

// DefaultParting is how long pods stay at home whose target cannot tell any more that
// they have ended: as long as a provider takes to empty a twin, and some.
const DefaultParting = 70 * time.Second

const (
	// Between looks at who is leaving: at first, and when that takes long.
	leaveLook, leaveLast = time.Second, 10 * time.Second
	leaveTry             = 30 * time.Second
	leaveWrites          = 8 // writes at once
)

// leave takes the pods away that were sent to a virtual node before it was closed, and
// reports whether all have gone. Where nobody can be asked what still runs (unasked) pods of ReplicaSets go at
// once, and in the end, with over, all do.
func (c *Consumer) leave(ctx context.Context, n *corev1.Node, why string, unasked, over bool) (empty bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, leaveTry)
	defer cancel()
	if err := node.Close(ctx, c.home, n, why); err != nil {
		return false, err
	}
	list, err := c.home.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + n.Name + ",status.phase!=Succeeded,status.phase!=Failed"})
	if err != nil {
		return false, fmt.Errorf("offload: pods of virtual node %s: %w", n.Name, err)
	}
	closed := node.Closed(n)
	var mu sync.Mutex
	var errs []error
	left := 0
	room := make(chan struct{}, leaveWrites)
	var busy sync.WaitGroup
	for i := range list.Items {
		p := &list.Items[i]
		if p.CreationTimestamp.After(closed) && p.DeletionTimestamp == nil && staysPut(p) {
			continue // another would come at once in the place of one that was not even sent
		}
		left++
		room <- struct{}{}
		busy.Go(func() {
			defer func() { <-room }()
			if err := c.leaves(ctx, p, why, unasked, over); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	busy.Wait()
	return left == 0, errors.Join(errs...)
}

// staysPut reports whether no taint keeps the pod off a node.
func staysPut(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool {
		return t.Operator == corev1.TolerationOpExists && (t.Key == "" || t.Key == policy.WithdrawnTaint)
	})
}

func (c *Consumer) leaves(ctx context.Context, p *corev1.Pod, why string, unasked, over bool) error {
	opts := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}}
	owner := metav1.GetControllerOf(p)
	switch {
	case over, unasked && owner != nil && owner.Kind == "ReplicaSet": // of which there may be two for a moment
		opts.GracePeriodSeconds = ptr.To[int64](0)
	case p.DeletionTimestamp != nil:
		return nil // whoever serves the node lets it go
	case owner != nil && owner.Kind == "Job":
		// Its controller would make another beside one that is being deleted.
		unready := p.DeepCopy()
		if unready.Status = pod.Unready(p, why); pod.Ready(p) {
			_, err := c.home.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, unready, metav1.UpdateOptions{})
			return unlessGone(err)
		}
		return nil
	}
	return unlessGone(c.home.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, opts))
}

func unlessGone(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // another look follows
	}
	return err
}

// withdrawn empties the nodes of targets that lend nothing any more. Those that are empty
// are taken out of wanted, and so removed. It reports whether another look is due.
func (c *Consumer) withdrawn(ctx context.Context, wanted map[string]target.Spec, nodes []corev1.Node) (again bool, err error) {
	for id, spec := range wanted {
		lendsNothing := c.lendsNothing(spec)
		c.mu.Lock()
		s := c.stacks[id]
		c.mu.Unlock()
		if s != nil {
			s.leaving.Store(lendsNothing)
		}
		if !lendsNothing {
			continue
		}
		there, done := false, true
		for i := range nodes {
			n := &nodes[i]
			if virtualID(n) != id {
				continue
			}
			over := time.Since(node.Closed(n)) > c.cfg.Parting && s != nil && s.untold.Load()
			empty, e := c.leave(ctx, n, spec.Name+" lends nothing to this cluster any more", false, over)
			there, done, err = true, done && empty && e == nil, errors.Join(err, e)
		}
		switch {
		case !done:
			again = true
		case there:
			again = again || !spec.Withdrawn // its next stack listens for offers
			delete(wanted, id)
		case spec.Withdrawn:
			delete(wanted, id)
		}
	}
	return again, err
}

// vacate asks the target every while, as long as it lends nothing, what of ours is gone there.
func (c *Consumer) vacate(ctx context.Context, s *stack, pods *pod.Controller) error {
	tick := time.NewTicker(leaveLook)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if !s.leaving.Load() {
			continue
		}
		bounded, cancel := context.WithTimeout(ctx, leaveTry)
		s.untold.Store(errors.Is(pods.Vacate(bounded), target.ErrRefused))
		cancel()
	}
}

// changesMind is how long a target that has said that it lends nothing is taken at its
// word: each change of it costs writes and pods.
const changesMind = 10 * time.Second

// offered takes in whether the offers of a target say that it lends nothing any more.
func (c *Consumer) offered(id string, withdrawn bool) {
	c.mu.Lock()
	since, was := c.parting[id]
	news := was != withdrawn && (withdrawn || time.Since(since) > changesMind)
	switch {
	case !news:
	case withdrawn:
		c.parting[id] = time.Now()
	default:
		delete(c.parting, id)
	}
	c.mu.Unlock()
	if news {
		c.checkTargets()
	}
}

// LendNothing are the IDs of the targets whose offers say that they lend this cluster nothing, sorted.
func (c *Consumer) LendNothing() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.parting))
}

// lendsNothing says so of a target: by what it was told of, or by its own offers.
func (c *Consumer) lendsNothing(spec target.Spec) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, said := c.parting[spec.ID]
	return spec.Withdrawn || said
}
