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

	"rivulet/fabric/panics"
	"rivulet/offload/consumer/node"
	"rivulet/offload/consumer/pod"
	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/policy"
	"rivulet/offload/target"
)

// How pods leave a target that has withdrawn its offer or has ended:
//
// 	withdrawn ─▶ node closed ─▶ pods deleted: Services leave them out, owners make others
// 	             pods of Jobs: not ready, not replaced yet
// 	     ─▶ the target reports that their twins are gone ─▶ pods released, those of Jobs Failed ─▶ node removed
// 	     ─▶ no report possible ─▶ the same, DefaultParting later; pods of ReplicaSets at once

// DefaultParting is how long pods stay at home after their target has become unable to report their end: somewhat
// longer than a provider takes to empty a twin.
const DefaultParting = 70 * time.Second

const (
	// The interval of checks of leaving pods, at first and at most.
	leaveLook, leaveLast = time.Second, 10 * time.Second
	leaveTry             = 30 * time.Second
	leaveWrites          = 8 // concurrent writes
)

// leave removes the pods that were sent to a virtual node before it was closed, and reports whether all have gone. If
// the target cannot report what still runs (unasked), pods of ReplicaSets go at once, and with over all of them.
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
			continue // one that was never sent would be replaced at once
		}
		left++
		room <- struct{}{}
		busy.Go(func() {
			defer func() { <-room }()
			defer panics.To(func(err error) {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			})
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

// closings are the closed virtual nodes, and since when this process has found them closed. The time of a node's taint is a
// wall clock's, which may be set meanwhile: pods that still end would run twice.
type closings struct {
	mu    sync.Mutex
	since map[string]time.Time
}

// lasted is how long a virtual node has been found closed, or about to be; 0 at the first call.
func (c *closings) lasted(n *corev1.Node) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	since, known := c.since[n.Name]
	if !known {
		since = time.Now()
		c.since[n.Name] = since
	}
	return time.Since(since)
}

// opened ends the count of a node.
func (c *closings) opened(n *corev1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.since, n.Name)
}

// only ends the counts of all nodes but these.
func (c *closings) only(nodes []corev1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.since, func(name string, _ time.Time) bool {
		return !slices.ContainsFunc(nodes, func(n corev1.Node) bool { return n.Name == name })
	})
}

// staysPut reports whether the pod tolerates every taint, so that it would come back.
func staysPut(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool {
		return t.Operator == corev1.TolerationOpExists && (t.Key == "" || t.Key == policy.WithdrawnTaint)
	})
}

func (c *Consumer) leaves(ctx context.Context, p *corev1.Pod, why string, unasked, over bool) error {
	opts := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}}
	owner := metav1.GetControllerOf(p)
	switch {
	case over, unasked && owner != nil && owner.Kind == "ReplicaSet": // two may run for a moment
		opts.GracePeriodSeconds = ptr.To[int64](0)
	case p.DeletionTimestamp != nil:
		return nil // the pod controller of the node releases it
	case owner != nil && owner.Kind == "Job":
		// Its controller would make another beside one that is being deleted.
		unready := p.DeepCopy()
		if unready.Status = translate.Unready(p, why); translate.Ready(p) {
			_, err := c.home.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, unready, metav1.UpdateOptions{})
			return unlessGone(err)
		}
		return nil
	}
	return unlessGone(c.home.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, opts))
}

func unlessGone(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // the next check repeats it
	}
	return err
}

// withdrawn empties the nodes of targets whose offers are withdrawn, and takes empty ones out of wanted, so that they
// are removed. It reports whether another check is due.
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
			over := c.closed.lasted(n) > c.cfg.Parting && s != nil && s.untold.Load()
			empty, e := c.leave(ctx, n, spec.Name+" lends nothing to this cluster any more", false, over)
			there, done, err = true, done && empty && e == nil, errors.Join(err, e)
		}
		switch {
		case !done:
			again = true
		case there:
			again = again || !spec.Withdrawn // its new stack receives offers
			delete(wanted, id)
		case spec.Withdrawn:
			delete(wanted, id)
		}
	}
	return again, err
}

// vacate queries a withdrawn target regularly for twins of this cluster that are gone.
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

// changesMind is how long a withdrawal holds before it can be taken back: each change costs writes and pods.
const changesMind = 10 * time.Second

// offered records whether the offers of a target are withdrawn.
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

// LendNothing are the IDs, sorted, of the targets whose offers are withdrawn.
func (c *Consumer) LendNothing() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.parting))
}

// lendsNothing reports whether a target is withdrawn, by its Spec or its own offers.
func (c *Consumer) lendsNothing(spec target.Spec) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, said := c.parting[spec.ID]
	return spec.Withdrawn || said
}
